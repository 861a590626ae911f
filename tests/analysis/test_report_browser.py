"""The report in a real browser: nothing is fetched, nothing is complained of, keys page, nothing overflows a phone."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from report_records import HOSTILE, keep, trajectory, turn

from analysis.outputs import write_extras

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")
PROBE = """
const wrong = [];
addEventListener("error", (event) => wrong.push(String(event.message)), true);
document.addEventListener("securitypolicyviolation", (event) => wrong.push(event.violatedDirective));
addEventListener("load", () => setTimeout(() => {
  const by = (id) => document.getElementById(id);
  const list = by("steps");
  const press = (key) => {
    const event = new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true});
    list.dispatchEvent(event);
    return [key, by("where").textContent, by("pick-item").selectedIndex, event.defaultPrevented];
  };
  list.focus();
  const focus = document.activeElement.id;
  const outline = getComputedStyle(list).outlineStyle;
  const keys = ["ArrowRight", "ArrowLeft", "End", "ArrowRight", "Home", "PageDown", "PageUp", "x"].map(press);
  const shown = by("step").textContent;
  const choose = (select, index) => { select.selectedIndex = index; select.dispatchEvent(new Event("change")); };
  const before = by("run-name").textContent;
  choose(by("pick-row"), 1);
  const stops = [...document.querySelectorAll("a[href], button:not(:disabled), select, [tabindex='0']")];
  const wide = [...document.querySelectorAll("body *")].filter((each) =>
    each.getBoundingClientRect().right > innerWidth + 1 && !each.closest(".frame, .sheet, .skip, #steps"));
  parent.postMessage(JSON.stringify({
    width: innerWidth, wrong, focus, outline, keys, shown, changed: by("run-name").textContent !== before,
    task: by("task").textContent, first: stops[0].className, nameless: stops.filter((each) =>
      !each.textContent.trim() && !each.getAttribute("aria-label") && !each.labels?.length).length,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    wide: wide.slice(0, 3).map((each) => `${each.tagName}#${each.id}.${each.className}`),
    dark: matchMedia("(prefers-color-scheme: dark)").matches, paper: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(document.body).color, pictures: [...document.images].every((each) => each.naturalWidth > 0),
    fetched: performance.getEntriesByType("resource").map((each) => each.name).filter((name) => !/^data:/.test(name)),
    scripts: document.scripts.length,
  }), "*");
}, 50));
"""
WIDTHS = (390, 1280)


def probed(path: Path) -> None:
    """Lets one more script into the page: the probe."""
    text = path.read_text().replace(' loading="lazy"', "")
    digest = base64.b64encode(hashlib.sha256(PROBE.encode()).digest()).decode()
    text = text.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    path.with_name("probed.html").write_text(text.replace("</head>", f"<script>{PROBE}</script></head>", 1))
    frames = "".join(f'<iframe src="probed.html" width="{width}" height="900"></iframe>' for width in WIDTHS)
    collect = "addEventListener('message', (e) => { out.textContent += e.data + '\\n'; });"
    wrapper = f"<pre id='out'></pre><script>const out = document.getElementById('out'); {collect}</script>{frames}"
    path.with_name("wrapper.html").write_text(f"<!DOCTYPE html>{wrapper}")


def browse(folder: Path, profile: Path, *flags: str) -> tuple[list[dict[str, Any]], str]:
    command = [
        *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
        *(f"--user-data-dir={profile}", "--virtual-time-budget=8000", "--enable-logging=stderr", *flags),
        *("--window-size=1400,2000", "--dump-dom", (folder / "wrapper.html").as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    said = re.search(r'<pre id="out">(.*?)</pre>', done.stdout, re.DOTALL)
    if said is None or not said[1].strip():
        pytest.skip(f"the browser does not work here: {done.stderr[-300:]}")
    found = [json.loads(line) for line in html.unescape(said[1]).split("\n") if line]
    return sorted(found, key=lambda each: each["width"]), done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not BROWSER, reason="no Chromium is installed (chromium, chromium-browser, google-chrome)")
def test_the_report_in_a_browser(sweep: Any, tmp_path: Path) -> None:
    for row in ("grpo", "opid"):
        steps = [turn(f"go to shelf {n}", observation=HOSTILE, skill=HOSTILE) for n in range(30)]
        keep(sweep, row, 0, trajectory(turns=steps, task=HOSTILE), trajectory(step=9), trajectory("evaluation"))
    sweep.edit_episodes("opid", 1, lambda rows: [*rows, rows[0]])
    sweep.write_state("grpo", 2, state="failed", error="out of memory " * 30)
    write_extras(sweep.out, sweep.name, ("overall",))
    page = sweep.out / "results" / sweep.name / "report.html"
    probed(page)
    pages, log = browse(page.parent, tmp_path / "profile")
    assert [each["width"] for each in pages] == list(WIDTHS)
    for each in pages:
        assert each["wrong"] == [] and each["fetched"] == [] and each["pictures"]
        assert each["scripts"] == 3  # data, viewer, probe: what the records say added none
        assert each["overflow"] <= 0 and each["wide"] == []
        assert each["keys"] == [
            ["ArrowRight", "Step 2 of 30", 0, True],
            ["ArrowLeft", "Step 1 of 30", 0, True],
            ["End", "Step 30 of 30", 0, True],
            ["ArrowRight", "Step 30 of 30", 0, True],
            ["Home", "Step 1 of 30", 0, True],
            ["PageDown", "Step 1 of 2", 1, True],
            ["PageUp", "Step 1 of 30", 0, True],
            ["x", "Step 1 of 30", 0, False],
        ]
        assert HOSTILE in each["shown"] and each["task"] == HOSTILE and each["changed"]
        assert each["first"] == "skip" and each["nameless"] == 0 and each["focus"] == "steps"
        assert each["outline"] != "none"
    assert not re.findall(r"CONSOLE.*", log)
    (dark, _), _ = browse(page.parent, tmp_path / "dark", "--blink-settings=preferredColorScheme=0")
    assert dark["dark"] and dark["paper"] != pages[0]["paper"] and dark["ink"] != pages[0]["ink"]
