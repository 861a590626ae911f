"""The report: whole, self-contained, bounded, the same twice, and deaf to whatever records say."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import zstandard
from report_records import HOSTILE, keep, trajectory, turn

from analysis import __main__ as command
from analysis import figures, outputs, report
from analysis.collect import collect
from analysis.report import sampled
from analysis.tables import document, make_tables

VOID = {"meta", "br", "hr", "img", "link", "input"}
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)


class Page(HTMLParser):
    """Elements of a page; `text` is what a reader sees, by the section that it stands in."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.sections: dict[str, str] = {}
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self.open]
        if "script" in tags:
            self.scripts[-1] += data
        section = next((a.get("id") for tag, a in self.open if tag == "section"), None)
        if section and "script" not in tags:
            self.sections[section] = self.sections.get(section, "") + data

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag == name]


def make(sweep: Any, drawn: Sequence[figures.Result] | None = None) -> str:
    tables = make_tables(collect(sweep.out, sweep.name))
    path = report.write_report(sweep.out, sweep.name, tables, document(tables), drawn)
    assert path == sweep.out / "results" / sweep.name / "report.html"
    return path.read_text()


def data_of(page: Page) -> list[Any]:
    found: list[Any] = json.loads(page.scripts[0])
    return found


def items_of(page: Page) -> list[Any]:
    return [i for row in data_of(page) for run in row["runs"] for group in run["groups"] for i in group["items"]]


# ------------------------------------------------------------------------------------------- the page
def test_every_section_is_there_and_nothing_is_asked_of_a_network(sweep: Any) -> None:
    keep(sweep, "grpo", 0, trajectory(), trajectory("evaluation"))
    picture = sweep.out / "overall-alfworld.png"
    picture.write_bytes(PNG)
    drawn: list[figures.Result] = [("overall-alfworld", (picture,)), ("retirement", "no teacher here")]
    text = make(sweep, drawn)
    page = Page(text)
    wanted = ("tables", "figures", "trajectories", "completeness", "warnings", "deviations", "provenance", "notes")
    assert tuple(a["id"] for a in page.all("section")) == wanted and set(page.sections) == set(wanted)
    links = [a.get(name) or "" for _, a in page.elements for name in ("src", "href", "action") if name in a]
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    ids = [a["id"] for _, a in page.elements if a.get("id")]
    assert len(ids) == len(set(ids)) and {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert "url(" not in text and "@import" not in text and "http:" not in text and "https:" not in text
    assert [base64.b64decode((a["src"] or "").partition(",")[2]) for a in page.all("img")] == [PNG]
    assert "success of every row on every panel" in page.sections["figures"]
    assert "retirement: no teacher here" in page.sections["figures"]


def test_only_the_one_script_may_run_and_nothing_may_be_loaded(sweep: Any) -> None:
    keep(sweep, "grpo", 0, trajectory())
    page = Page(make(sweep))
    policy = next(a["content"] or "" for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    script = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert "default-src 'none'" in policy and f"script-src 'sha256-{script}'" in policy
    assert len(page.scripts) == 2
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert not {"innerHTML", "outerHTML", "document.write", "eval(", "fetch("} & set(
        re.findall(r"innerHTML|outerHTML|document\.write|eval\(|fetch\(", page.scripts[1])
    )


def test_a_keyboard_and_a_screen_reader_find_their_way(sweep: Any) -> None:
    keep(sweep, "grpo", 0, trajectory())
    text = make(sweep)
    page = Page(text)
    body = [tag for tag, _ in page.elements].index("body")
    assert page.elements[body + 1][1] == {"class": "skip", "href": "#main"}
    assert {a["for"] for a in page.all("label")} == {a["id"] for a in page.all("select")}
    assert all(a.get("aria-labelledby") or a.get("aria-label") for a in page.all("div") if a.get("role") == "region")
    assert all(a.get("alt") for a in page.all("img"))
    assert page.all("html") == [{"lang": "en"}] and len(page.all("main")) == len(page.all("h1")) == 1
    steps = next(a for a in page.all("ol") if a.get("role") == "listbox")
    assert steps["tabindex"] == "0" and steps["aria-label"]
    assert "prefers-color-scheme: dark" in text and ":focus-visible" in text and "@media print" in text
    assert any(a.get("name") == "viewport" for a in page.all("meta"))


def test_the_same_records_give_the_same_bytes_elsewhere_too(
    sweep: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    keep(sweep, "grpo", 0, trajectory(), trajectory("evaluation"))
    first = make(sweep)
    assert make(sweep) == first
    other = tmp_path_factory.mktemp("elsewhere")
    for name in ("runs", "results"):
        (sweep.out / name).rename(other / name)
    old, sweep.out = sweep.out, other
    assert make(sweep) == first
    assert str(old) not in first and str(Path.home()) not in first


# ------------------------------------------------------------------------------------------- hostile records
def test_whatever_records_say_stays_text(sweep: Any) -> None:
    hostile = turn(HOSTILE, observation=HOSTILE, skill=HOSTILE, valid=False, invalid_reason=HOSTILE)
    item = trajectory(task=HOSTILE, skill=HOSTILE, termination=HOSTILE, task_id=HOSTILE, turns=[hostile])
    keep(sweep, "opid", 0, item, trajectory("evaluation", panel=HOSTILE))
    sweep.rows = [{**row, "label": HOSTILE} if row["id"] == "opid" else row for row in sweep.rows]
    sweep.write_plan(title=HOSTILE)
    sweep.write_state("opid", 1, state="failed", error=HOSTILE, failure_class=HOSTILE)
    for name in ("overall", HOSTILE):
        (sweep.out / f"{name[:7].replace('/', '_')}.png").write_bytes(PNG)
    drawn: list[figures.Result] = [(HOSTILE, (sweep.out / "overall.png",)), ("profile", HOSTILE)]
    page = Page(make(sweep, drawn))
    assert len(page.scripts) == 2 and len(page.all("script")) == 2
    assert [(a["src"] or "")[:10] for a in page.all("img")] == ["data:image"]
    shown = data_of(page)[0]["runs"][0]["groups"][0]["items"][0]
    assert shown["task"] == shown["skill"] == HOSTILE
    assert shown["steps"][0] == {
        **{"o": HOSTILE, "r": HOSTILE, "s": HOSTILE, "bad": True},
        "f": f"malformed: {HOSTILE}",
    }
    assert "alert(1)" in page.sections["completeness"] and "alert(1)" in page.sections["figures"]


@pytest.mark.parametrize(
    "broken",
    [b"no json\n", b"[1, 2]\n", b'{"phase": "train", "turns": [1, {"observation": 3, "reward": NaN}]}\n'],
)
def test_lines_of_any_shape_are_survived(sweep: Any, broken: bytes) -> None:
    path = sweep.run_dir("grpo", 0) / sampled.NAME
    whole = json.dumps(trajectory()).encode() + b"\n"
    path.write_bytes(zstandard.ZstdCompressor().compress(whole + broken))
    page = Page(make(sweep))
    assert len(items_of(page)) == (2 if b"turns" in broken else 1)
    warned = "GRPO, seed 0: 1 of the chosen trajectories are not readable" in page.sections["warnings"]
    assert warned == (b"turns" not in broken)


def test_a_lone_surrogate_breaks_no_page(sweep: Any) -> None:
    keep(sweep, "grpo", 0, trajectory(task="\ud800"))
    assert items_of(Page(make(sweep)))[0]["task"] == "?"


def test_a_file_that_is_cut_off_gives_what_came_before_and_a_warning(sweep: Any) -> None:
    keep(sweep, "grpo", 0, trajectory())
    path = sweep.run_dir("grpo", 0) / sampled.NAME
    path.write_bytes(path.read_bytes() + b"no frame at all")
    page = Page(make(sweep))
    assert len(items_of(page)) == 1
    assert "GRPO, seed 0: trajectories.jsonl.zst cannot be read to its end" in page.sections["warnings"]


# ------------------------------------------------------------------------------------------- bounds
def test_a_run_shows_a_few_of_each_phase_spread_over_its_steps(sweep: Any) -> None:
    trained = [trajectory(step=n) for n in range(1, 41)]
    keep(sweep, "grpo", 0, *trained, *[trajectory("evaluation", sample=n) for n in range(9)])
    page = Page(make(sweep))
    groups = data_of(page)[0]["runs"][0]["groups"]
    assert [(g["label"], len(g["items"])) for g in groups] == [
        ("training", sampled.PER_GROUP),
        ("evaluation on seen, skills off", sampled.PER_GROUP),
    ]
    labels = [item["label"] for item in groups[0]["items"]]
    assert labels[0].startswith("step 1:") and labels[-1].startswith("step 40:")
    assert "12 of 49 trajectories in the records of all 1 runs" in page.sections["trajectories"]


def test_long_texts_long_trajectories_and_many_groups_end(sweep: Any) -> None:
    long = trajectory(turns=sampled.STEPS + 5)
    long["turns"][0]["observation"] = "x" * (sampled.LETTERS + 7)
    panels = [trajectory("evaluation", panel=f"p{n}", sample=k) for n in range(9) for k in range(6)]
    keep(sweep, "grpo", 0, long, *panels)
    items = items_of(Page(make(sweep)))
    assert len(items) == sampled.PER_RUN
    assert len(items[0]["steps"]) == sampled.STEPS and items[0]["more"].startswith("5 further steps")
    assert items[0]["steps"][0]["o"].endswith("x… (7 more letters)")


def test_all_of_a_sweep_stays_within_its_budget_and_every_row_has_a_seed(
    sweep: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for row in ("vanilla", "grpo", "opid"):
        for seed in (0, 1, 2):
            keep(sweep, row, seed, *[trajectory(turns=20) for _ in range(6)])
    whole = len(make(sweep))
    monkeypatch.setattr(sampled, "RUNS", 4)
    page = Page(make(sweep))
    assert [[run["label"] for run in row["runs"]] for row in data_of(page)] == [
        ["seed 0", "seed 1"],
        ["seed 0"],
        ["seed 0"],
    ]
    assert "in the records of 4 of the 9 runs" in page.sections["trajectories"]
    monkeypatch.setattr(sampled, "RUNS", 9)
    monkeypatch.setattr(sampled, "CHARACTERS", 20_000)
    small = make(sweep)
    assert whole - len(small) > 30_000 and 0 < len(items_of(Page(small))) < 54


def test_without_trajectories_there_is_no_script(sweep: Any) -> None:
    page = Page(make(sweep))
    assert page.scripts == [] and "No run of this sweep has recorded" in page.sections["trajectories"]
    assert "script-src 'none'" in make(sweep)


def test_figures_that_were_not_asked_for_or_are_too_large_are_told(sweep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "figures=all draws them" in Page(make(sweep)).sections["figures"]
    picture = sweep.out / "overall-alfworld.png"
    picture.write_bytes(PNG)
    monkeypatch.setattr(report, "PICTURES", 10)
    page = Page(make(sweep, [("overall-alfworld", (picture,))]))
    assert page.all("img") == []
    assert "Too large for this page: figures/overall-alfworld.png" in page.sections["figures"]


# ------------------------------------------------------------------------------------------- what is wrong is shown
Edit = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


def on_seen(**change: Any) -> Edit:
    return lambda rows: [{**r, **change} if r["panel"] == "seen" else r for r in rows]


@pytest.mark.parametrize(
    ("edit", "code", "words", "instead"),
    [
        (on_seen(score=float("nan")), "nan_score", "NaN in 30 graded episodes", "invalid"),
        (lambda rows: [*rows, rows[0]], "duplicated", "2 records share panel, skills, task and repeat", "invalid"),
        (on_seen(panel_hash="f" * 64), "mixed_panel_hash", "more than one panel hash", "mixed"),
        (on_seen(prompt_protocol="full/tagged"), "mixed_prompt_protocol", "more than one prompt protocol", "mixed"),
        (on_seen(temperature=1.0), "mixed_temperature", "more than one evaluation temperature", "mixed"),
    ],
)
def test_evaluations_that_cannot_be_averaged(sweep: Any, edit: Edit, code: str, words: str, instead: str) -> None:
    sweep.edit_episodes("opid", 1, edit)
    page = Page(make(sweep))
    assert words in page.sections["warnings"] and code in page.sections["completeness"]
    seen = page.sections["tables"].partition("success on seen")[2].partition("success on unseen")[0]
    line = seen.partition("OPID")[2].partition("OPID, random")[0]
    assert "3/3 !" in line and instead in line and not re.search(r"\d\d\.\d", line)


def test_missing_runs_stand_in_the_table_and_in_the_report(sweep: Any) -> None:
    sweep.write_state("opid", 1, state="failed", failure_class="oom", error="out of memory", last_step=4)
    sweep.write_state("grpo", 2, state="interrupted", last_step=3)
    page = Page(make(sweep))
    text = page.sections["completeness"]
    assert "Not complete: 2 of 15 planned runs" in text and "out of memory" in text
    assert "Failed" in text and "Interrupted" in text and "2/3" in page.sections["tables"]
    counts = [tag for tag in page.elements if tag[1].get("class") == "alarm"]
    assert len(counts) == 1
    tables = make_tables(collect(sweep.out, sweep.name))
    assert "13 of 15" in make(sweep) and len(document(tables).blocks) > 3


def test_runs_of_several_commits_stand_in_warnings_and_provenance(sweep: Any) -> None:
    sweep.write_provenance("opid", 1, "beef" * 10, dirty=True)
    page = Page(make(sweep))
    assert "2 versions of the code" in page.sections["warnings"]
    assert f"{'beef' * 10}, with changes {'d' * 64}" in page.sections["provenance"]
    assert "14 of 15" in page.sections["provenance"] and "mixed_code" in page.sections["completeness"]


def test_provenance_tells_what_is_recorded_and_no_folder_of_the_program(sweep: Any) -> None:
    path = sweep.run_dir("opid", 1) / "provenance.json"
    content = json.loads(path.read_text())
    content |= {
        "python": {"implementation": "CPython", "version": "3.11.9"},
        "packages": {"torch": "2.13"},
        "host": {"name": "node7", "cores": 4, "system": "Linux"},
        "device": "cuda:H200",
        "argv": ["/home/me/secret/harness", "sweep=main_table", "seed=1"],
    }
    path.write_text(json.dumps(content))
    text = Page(make(sweep)).sections["provenance"]
    for words in ("CPython 3.11.9", "package torch", "node7, 4 cores", "cuda:H200", "sweep=main_table seed=1"):
        assert words in text
    assert "/home/me" not in text


def test_deviations_and_panels_are_told(sweep: Any) -> None:
    page = Page(make(sweep))
    assert "[a]" in page.sections["deviations"] and "released code" in page.sections["deviations"]
    text = page.sections["completeness"]
    assert hashlib.sha256(b"seen").hexdigest() in text and "compact/bare" in text and "generated-0" in text


def test_tokens_come_with_the_skill_term_only_where_it_fits(sweep: Any) -> None:
    fits = turn(tokens=["go", "to"], skill_advantage=[0.12345, -0.2])
    misses = turn(tokens=["go"], skill_advantage=[0.1, 0.2])
    keep(sweep, "opid", 0, trajectory(turns=[fits, misses]))
    steps = items_of(Page(make(sweep)))[0]["steps"]
    assert steps[0]["k"] == [["go", 0.1235], ["to", -0.2]] and "k" not in steps[1]


# ------------------------------------------------------------------------------------------- the command
def test_the_command_prints_what_was_written_and_what_was_not_and_why(
    sweep: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["figures=overall,sample_efficiency", "report=true"]
    assert command.main(["sweep=main_table", f"out={sweep.out}", *settings]) == 0
    printed = capsys.readouterr().out
    assert "figures/overall-alfworld.png, .pdf" in printed and "report.html  (" in printed
    assert "not drawn: sample_efficiency: no row is planned on more than one fraction" in printed
    page = Page((sweep.out / "results/main_table/report.html").read_text())
    assert len(page.all("img")) == 1 and "sample_efficiency" in page.sections["figures"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("figures=overal", "did you mean 'overall'"),
        ("figures=none,overall", "there is no such family"),
        ("report=yes", "must be true or false"),
        ("report=", "has no value"),
    ],
)
def test_a_wrong_setting_writes_nothing(
    sweep: Any, capsys: pytest.CaptureFixture[str], setting: str, words: str
) -> None:
    assert command.main(["sweep=main_table", f"out={sweep.out}", setting]) == 2
    assert words in capsys.readouterr().err
    assert [path.name for path in (sweep.out / "results/main_table").iterdir()] == ["plan.json"]


def test_a_large_sweep_gets_figures_only_when_they_are_asked_for(
    sweep: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(figures, "write", lambda out, name, which, tables: asked.append(which) or [])
    arguments = ["sweep=main_table", f"out={sweep.out}"]
    command.main(arguments)
    assert asked == ["all"]
    monkeypatch.setattr(outputs, "LARGE", 14)
    command.main(arguments)
    assert "no figures: they take minutes for 15 runs; figures=all draws them" in capsys.readouterr().out
    assert "figures=all draws them" in (sweep.out / "results/main_table/report.html").read_text()
    assert asked == ["all"]
    command.main([*arguments, "figures=all"])
    assert asked == ["all", "all"]


def test_figures_and_report_can_be_left_out(sweep: Any) -> None:
    assert outputs.write_extras(sweep.out, sweep.name, (), report=False) == []
    (line,) = outputs.write_extras(sweep.out, sweep.name, ())
    assert "report.html" in line and not (sweep.out / "results/main_table/figures").exists()


def test_figures_and_report_import_no_model_library(sweep: Any) -> None:
    keep(sweep, "grpo", 0, trajectory())
    code = (
        "import sys; from analysis.__main__ import main; "
        f"status = main(['sweep=main_table', 'out={sweep.out}', 'figures=overall']); "
        "heavy = {'torch', 'transformers', 'mlflow', 'textworld', 'alfworld', 'hydra'} & set(sys.modules); "
        "print(sorted(heavy), file=sys.stderr); sys.exit(status or bool(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "report.html" in done.stdout
