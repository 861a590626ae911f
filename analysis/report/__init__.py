"""One self-contained page per sweep, results/<sweep>/report.html: everything a reviewer asks, without a network.

The page holds one script, written by hand and named to the browser by its hash: nothing else on the page can run, and
nothing can be loaded (Content-Security-Policy). Whatever comes from records enters as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from analysis.blocks_runs import NOT_COMPLETE
from analysis.figures import FAMILIES, Result
from analysis.page import STYLE, block_html, list_html
from analysis.render import Block, Document
from analysis.report import states
from analysis.report.sampled import Sampled, sample
from analysis.tableset import Tables
from harness.files import atomic_write

NAME = "report.html"
PICTURES = 24 << 20  # bytes of images in a page, at most
_HERE = Path(__file__).parent


def write_report(out: Path, sweep: str, tables: Tables, page: Document, figures: Sequence[Result] | None) -> Path:
    """Write <out>/results/<sweep>/report.html. figures: what figures.write returned, None if it was not asked.

    Raises harness.files.RecordError if it cannot be written. The same records give the same bytes.
    """
    path = out / "results" / sweep / NAME
    atomic_write(path, report(out, sweep, tables, page, figures).encode(errors="replace"))
    return path


def report(out: Path, sweep: str, tables: Tables, page: Document, figures: Sequence[Result] | None) -> str:
    """The page. page: tables.document(tables)."""
    trajectories = sample(out, tables)
    kept = [*page.warnings, *trajectories.problems]
    told = list_html("ul", kept, "warnings") if kept else f"<p>{escape(page.no_warnings)}</p>"
    deviations = list_html("ul", page.footnotes, "feet") if page.footnotes else "<p>None is recorded.</p>"
    missing = [block for block in page.blocks if block.title.startswith(NOT_COMPLETE)]
    done = [states.completeness(tables), *missing, *states.panels(tables)]
    results = [block for block in page.blocks if block not in missing]
    sections = [
        ("tables", "Tables", _blocks("t", results)),
        ("figures", "Figures", _figures(figures)),
        ("trajectories", "Trajectories", _viewer(trajectories)),
        ("completeness", "Completeness", _blocks("c", done)),
        ("warnings", page.sections[0], told),
        ("deviations", "Deviations and remarks on rows", deviations),
        ("provenance", "Provenance", _blocks("p", states.provenance(out, tables))),
        ("notes", "Notes: how every number is defined", list_html("ol", page.notes)),
    ]
    script = (_HERE / "viewer.js").read_text(encoding="utf-8") if trajectories.rows else ""
    body = "".join(
        f'<section id="{name}" aria-labelledby="{name}-title">\n<h2 id="{name}-title">{escape(heading)}</h2>\n'
        f"{content}</section>\n"
        for name, heading, content in sections
    )
    files = ", ".join(f"main_table.{ending}" for ending in ("csv", "md", "html", "tex"))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(f'Report: {page.title}')}</title>\n"
        f"<style>{STYLE}{(_HERE / 'report.css').read_text(encoding='utf-8')}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the tables</a>\n'
        f'<header>\n<h1>{escape(page.title)}</h1>\n<div class="lead">'
        f"{''.join(f'<p>{escape(line)}</p>' for line in page.lead)}</div>\n{_counts(tables, len(kept))}"
        f'<p class="hint">Sweep <code>{escape(sweep)}</code>, made from its records alone. The same numbers: '
        f"<code>{files}</code> beside this page.</p>\n</header>\n"
        f'{_contents(sections, results)}<main id="main" tabindex="-1">\n{body}</main>\n'
        + (f"<script>{script}</script>\n" if script else "")
        + "</body>\n</html>\n"
    )


def _policy(script: str) -> str:
    """Nothing is loaded but images that the page holds itself; nothing runs but the script with this hash."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    runs = f"'sha256-{digest}'" if script else "'none'"
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {runs}; base-uri 'none'"


def _counts(tables: Tables, warnings: int) -> str:
    cells = tables.records.cells
    done, planned = int(cells["complete"].sum()), len(cells)
    items = [
        (f"{done} of {planned}", "runs complete", "completeness", done < planned),
        (f"{warnings}", "warnings" if warnings != 1 else "warning", "warnings", warnings > 0),
    ]
    inner = "".join(
        f'<li class="{"alarm" if alarm else "fine"}"><strong>{number}</strong><a href="#{link}">{text}</a></li>'
        for number, text, link, alarm in items
    )
    return f'<ul class="counts">{inner}</ul>\n'


def _contents(sections: Sequence[tuple[str, str, str]], results: Sequence[Block]) -> str:
    entries = []
    for name, heading, _ in sections:
        below = ""
        if name == "tables":
            below = "".join(f'<li><a href="#t{n}">{escape(block.title)}</a></li>' for n, block in enumerate(results, 1))
        entries.append(f'<li><a href="#{name}">{escape(heading)}</a>{f"<ul>{below}</ul>" if below else ""}</li>')
    return f'<nav aria-label="Contents"><ol>\n{"".join(entries)}\n</ol></nav>\n'


def _blocks(prefix: str, blocks: Sequence[Block]) -> str:
    return "".join(block_html(f"{prefix}{number}", block, level=3) for number, block in enumerate(blocks, 1))


# ---------------------------------------------------------------------------------------------- figures
def _figures(figures: Sequence[Result] | None) -> str:
    if figures is None:
        return "<p>No figure was asked for: figures=all draws them.</p>\n"
    made, not_drawn, left_out = [], [], []
    used = 0
    for name, result in figures:
        family = next((family for family in sorted(FAMILIES, key=len, reverse=True) if name.startswith(family)), "")
        if isinstance(result, str):
            not_drawn.append(f"{name}: {result}")
            continue
        picture = next(path for path in result if path.suffix == ".png")
        data = picture.read_bytes()
        if used + len(data) > PICTURES:
            left_out.append(f"figures/{picture.name}")
            continue
        used += len(data)
        files = ", ".join(f"figures/{path.name}" for path in result)
        about = FAMILIES.get(family, name)
        made.append(
            f'<figure><div class="sheet" tabindex="0" role="region" aria-label="{escape(f"Figure {name}")}">'
            f'<img loading="lazy" decoding="async" alt="{escape(f"{name}: {about}")}" '
            f'src="data:image/png;base64,{base64.b64encode(data).decode()}"></div>\n'
            f"<figcaption><strong>{escape(name)}</strong>: {escape(about)}. Files: <code>{escape(files)}</code>"
            "</figcaption></figure>\n"
        )
    text = "".join(made)
    if left_out:
        text += f"<p>Too large for this page: <code>{escape(', '.join(left_out))}</code></p>\n"
    if not_drawn:
        text += f"<h3>Not drawn, and why</h3>\n{list_html('ul', not_drawn)}"
    return text or "<p>There is none.</p>\n"


# ---------------------------------------------------------------------------------------------- trajectories
def _viewer(trajectories: Sampled) -> str:
    """Empty controls that the script fills, and the data as JSON in which nothing can end the element."""
    told = f'<p class="caption">{escape(trajectories.told)}</p>\n'
    if not trajectories.rows:
        return told
    data = json.dumps(trajectories.rows, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        data = data.replace(character, f"\\u{ord(character):04x}")
    pickers = "".join(
        f'<div><label for="pick-{name}">{text}</label><select id="pick-{name}"></select></div>'
        for name, text in (("row", "Row"), ("run", "Seed"), ("group", "Phase"), ("item", "Trajectory"))
    )
    buttons = "".join(
        f'<button type="button" id="{name}">{text}</button>'
        for name, text in (
            ("step-back", "← Step before"),
            ("step-on", "Next step →"),
            ("item-back", "⇤ Trajectory before"),
            ("item-on", "Next trajectory ⇥"),
        )
    )
    return (
        f"{told}<noscript><p>Paging needs JavaScript.</p></noscript>\n"
        f'<div id="viewer" hidden>\n<div class="picker">{pickers}</div>\n<div class="turn">{buttons}</div>\n'
        '<p class="hint">In the list of steps: <kbd>←</kbd> <kbd>→</kbd> step, <kbd>Home</kbd> <kbd>End</kbd> first '
        'and last, <kbd>Page Up</kbd> <kbd>Page Down</kbd> trajectory. Run <code id="run-name"></code></p>\n'
        '<p id="task"></p>\n<ul class="about" id="about"></ul>\n<dl id="skill"></dl>\n'
        '<div class="pages"><ol id="steps" role="listbox" tabindex="0" aria-label="Steps of the trajectory"></ol>\n'
        '<div><p class="where" id="where" role="status"></p><dl id="step"></dl></div></div>\n</div>\n'
        f'<script type="application/json" id="trajectory-data">{data}</script>\n'
    )
