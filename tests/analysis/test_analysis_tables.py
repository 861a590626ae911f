"""The files: complete, honest in their typography, the same bytes for the same records, and free of the network."""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from analysis import __main__ as command
from analysis.collect import collect
from analysis.page import html
from analysis.render import Block, Document, Text, markdown, plain
from analysis.table_csv import csv_text
from analysis.tables import document, make_tables, write_main_table
from analysis.terminal import terminal

TABLES_ONLY = ("figures=none", "report=false")
VOID = {"meta", "br", "hr", "img", "link", "input"}


def solve(rows: list[dict[str, Any]], share: float, seed: int) -> list[dict[str, Any]]:
    """That share of each type's five tasks is solved; seed n differs in its first n tasks."""
    solved = [int(r["task_id"].rpartition("-")[2]) < share * 5 for r in rows]
    return [{**r, "success": not s if i < seed else s} for i, (r, s) in enumerate(zip(rows, solved, strict=True))]


@pytest.fixture
def decided(sweep: Any) -> Any:
    """A sweep where OPID is clearly better than GRPO on the seen panel, and Vanilla clearly worse."""
    for row, share, jitter in (("vanilla", 0.0, 1), ("grpo", 0.4, 0), ("opid", 0.8, 1)):
        for seed in (0, 1, 2):
            sweep.edit_episodes(row, seed, lambda rows, s=share, j=jitter * seed: solve(rows, s, j))
    return sweep


def read_csv(tables: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(csv_text(tables))))


# ---------------------------------------------------------------------------------------------- files
def test_the_same_records_give_the_same_bytes(sweep: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    first = write_main_table(sweep.out, "main_table")
    before = {path: path.read_bytes() for path in (first["csv"], first["md"], first["html"])}
    second = write_main_table(sweep.out, "main_table")
    assert {path: path.read_bytes() for path in before} == before
    assert first["text"] == second["text"] and first["incomplete"] == 0
    other = tmp_path_factory.mktemp("elsewhere")
    (sweep.out / "runs").rename(other / "runs")
    (sweep.out / "results").rename(other / "results")
    third = write_main_table(other, "main_table")
    assert [third[k].read_bytes() for k in ("csv", "md", "html")] == list(before.values())  # type: ignore[literal-required]


def test_the_order_of_episodes_within_a_file_changes_nothing(sweep: Any) -> None:
    before = csv_text(make_tables(collect(sweep.out, "main_table")))
    for row in ("grpo", "opid"):
        sweep.edit_episodes(row, 1, lambda rows: rows[::-1])
    assert csv_text(make_tables(collect(sweep.out, "main_table"))) == before


def test_no_file_names_a_place_or_a_time_of_this_machine(sweep: Any) -> None:
    written = write_main_table(sweep.out, "main_table")
    for path in (written["csv"], written["md"], written["html"]):
        text = path.read_text()
        assert str(sweep.out) not in text and str(Path.home()) not in text
        assert not re.search(r"20\d\d-\d\d-\d\d|\d\d:\d\d:\d\d", text)


def test_the_csv_holds_every_number_with_its_context(sweep: Any) -> None:
    rows = read_csv(make_tables(collect(sweep.out, "main_table")))
    plain = {"success", "difference", "learning", "out_of_distribution", "aggregate", "cost", "published"}
    assert {r["table"] for r in rows} == plain
    micro = next(r for r in rows if r["row"] == "opid" and r["metric"] == "success_micro" and r["panel"] == "seen")
    assert (micro["n_seeds"], micro["n_tasks"], micro["selection"], micro["source"]) == ("3", "30", "last", "records")
    assert len(micro["panel_hash"]) == 64 and micro["interval"] == "t over seeds" and micro["level"] == "0.95"
    assert float(micro["lo"]) < float(micro["value"]) < float(micro["hi"])
    for r in rows:
        assert r["status"] and r["source"] and r["metric"] and r["unit"]
        if r["table"] == "published":
            assert r["status"] in ("quoted", "imported", "derived") and "arXiv" in r["source"] and not r["row"]
        else:
            assert r["source"] == "records"


def test_micro_macro_and_score_never_share_a_column(sweep: Any) -> None:
    rows = read_csv(make_tables(collect(sweep.out, "main_table")))
    assert not any("score" in r["metric"] for r in rows)
    headers = [h for b in document(make_tables(collect(sweep.out, "main_table"))).blocks for h in b.header]
    assert not any("micro" in h.lower() and "macro" in h.lower() for h in headers)
    assert not any("Avg" in h for h in headers)


# ---------------------------------------------------------------------------------------------- typography
def test_bold_only_where_both_intervals_exclude_zero(decided: Any) -> None:
    tables = make_tables(collect(decided.out, "main_table"))
    text = markdown(document(tables))
    block = text.split("## alfworld: success on seen")[1].split("## ")[0]
    lines = {
        line.split(" | ")[0].strip("| ").partition(" \\[")[0].partition(" [")[0]: line
        for line in block.splitlines()
        if line.startswith("|")
    }
    assert re.search(r"\*\*[\d.]+ \[[^]]+\] ▲\*\*", lines["OPID"]) and lines["OPID"].count("**") == 4
    assert "▼" in lines["Vanilla"] and "**" not in lines["Vanilla"]
    assert "**" not in lines["GRPO"] and "▲" not in lines["GRPO"]
    assert "<strong>" in html(document(tables))
    assert "▲" in plain(terminal(tables))


def test_nothing_is_bold_in_a_sweep_of_one_seed(make_sweep: Callable[..., Any]) -> None:
    sweep = make_sweep(seeds=(0,))
    for row, share in (("grpo", 0.0), ("opid", 1.0)):
        sweep.edit_episodes(row, 0, lambda rows, s=share: solve(rows, s, 0))
    page = document(make_tables(collect(sweep.out, "main_table")))
    assert not any(entry.strong for block in page.blocks for row in block.rows for entry in row)
    assert "ᵉ" in markdown(page)


def test_numbers_of_other_people_look_different_and_are_never_bold(decided: Any) -> None:
    page = document(make_tables(collect(decided.out, "main_table")))
    block = page.blocks[-1]
    assert block.title.startswith("Published numbers")
    ours = {"Our row", "Δ ours − theirs"}
    for row in block.rows:
        for header, entry in zip(block.header, row, strict=True):
            assert entry.foreign == (header not in ours) and not entry.strong
        assert row[block.header.index("Δ ours − theirs")].text == "n/a"
        assert "arXiv:2606.26790, Table" in row[block.header.index("Source")].text
    assert not any(entry.foreign for other in page.blocks[:-1] for row in other.rows for entry in row)
    assert "*91.2*" in markdown(page) and '<em class="other">91.2</em>' in html(page)
    assert "other scale (local), tiny model (tiny-s), generated tasks" in block.caption


def test_the_title_says_what_the_scale_is_worth(sweep: Any, make_sweep: Callable[..., Any]) -> None:
    page = document(make_tables(collect(sweep.out, "main_table")))
    assert "scale=local" in page.title and "not comparable with paper numbers" in page.title
    assert "tiny model" in page.lead[0]
    sweep.write_plan(scale="test")
    for cell in sweep.cells:
        cell["scale"] = "test"
    sweep.write_plan(scale="test")
    assert "mean nothing" in document(make_tables(collect(sweep.out, "main_table"))).lead[0]


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        ((0, 1, 2), "With 3 seeds, no permutation test over seeds can reach 0.05: the smallest attainable two-sided p"),
        ((0, 1, 2), "is 0.25 when seeds are paired (sign flips, which cannot reach 0.05) and 0.1 for 3 against 3"),
        (
            (0, 1, 2, 3, 4),
            "With 5 seeds, the smallest attainable two-sided p is 0.0625 when seeds are paired",
        ),
        ((0,), "With 1 seed, no permutation test over seeds can reach 0.05"),
    ],
)
def test_the_smallest_attainable_p_is_printed(make_sweep: Callable[..., Any], seeds: Any, words: str) -> None:
    tables = make_tables(collect(make_sweep(seeds=seeds, per_type=1).out, "main_table"))
    assert words in document(tables).notes[3]
    assert "smallest attainable" in " ".join(plain(terminal(tables)).split())


def test_captions_refer_to_the_notes_they_mean(sweep: Any) -> None:
    page = document(make_tables(collect(sweep.out, "main_table")))
    notes = page.notes
    assert notes[2].startswith("Bold") and "smallest attainable" in notes[3] and notes[10].startswith("Published")
    assert notes[12].startswith("What a seed replicates") and "note 13" in notes[1]
    assert "were picked among several" in notes[13] and "no search of its own" in notes[13]
    assert "gaps made on purpose" in notes[14] and "is an oracle" in notes[14] and "may tie at equal time" in notes[14]
    assert len(notes) == 15
    assert "notes 13 to 15" in terminal(make_tables(collect(sweep.out, "main_table"))).notes[2]


def test_a_table_without_opid_has_no_word_about_its_settings_in_the_terminal(make_sweep: Callable[..., Any]) -> None:
    sweep = make_sweep(rows=[{"id": "grpo", "label": "GRPO", "kind": "method"}], seeds=(0,), per_type=1)
    assert not any("OPID" in note for note in terminal(make_tables(collect(sweep.out, "main_table"))).notes)


def test_windows_of_training_success_are_named_in_steps(sweep: Any) -> None:
    tables = make_tables(collect(sweep.out, "main_table"))
    assert "First 5 steps, %" in markdown(document(tables)) and "last 5" in plain(terminal(tables))
    assert "First 5 %" not in markdown(document(tables))


def test_a_derived_number_that_is_not_the_only_one_possible_looks_so(sweep: Any) -> None:
    page = document(make_tables(collect(sweep.out, "main_table")))
    text = markdown(page)
    assert "*≈85.9‡*" in text and "*≈60.9‡*" in text
    assert "*70.7‡*" in text  # derived, and the only solution
    assert "*≈79.1‡*" in text and "*≈71.6‡*" in text  # only with all rows of their table together
    assert "≈" in page.blocks[-1].caption and "≈ before it" in page.notes[10]
    assert "≈85.9‡" in plain(terminal(make_tables(collect(sweep.out, "main_table"))))


def test_missing_failed_and_refused_cells_stay_visible(sweep: Any) -> None:
    sweep.write_state("opid", 1, state="failed", failure_class="oom", error="out of\nmemory <b>")
    for seed in (0, 1, 2):
        sweep.write_state("opid_random", seed, state="interrupted", last_step=3)
    sweep.edit_episodes("grpo", 2, lambda rows: [{**r, "temperature": 1.0} for r in rows])
    tables = make_tables(collect(sweep.out, "main_table"))
    text, short = markdown(document(tables)), plain(terminal(tables))
    assert "Not complete: 4 of 15 planned runs" in text and "out of memory \\<b\\>" in text
    assert "<b>" not in html(document(tables))
    for shown in (text, short):
        assert "2/3" in shown and "0/3" in shown and "mixed" in shown and "11 of 15 planned runs are complete" in shown
    assert re.search(r"\| GRPO \[\w\] \| method \| 3/3 ! \| mixed \|", text)
    assert "had the missing ones solved nothing or everything: OPID, seen, skills off: " in text
    assert all(r["status"] == "mixed" for r in read_csv(tables) if r["row"] == "grpo" and r["table"] == "success")


def test_a_sweep_of_which_nothing_has_run_gives_a_table_too(sweep: Any) -> None:
    import shutil

    shutil.rmtree(sweep.out / "runs")
    tables = make_tables(collect(sweep.out, "main_table"))
    assert "0 of 15 planned runs are complete" in plain(terminal(tables))
    assert {line.row for line, *_ in tables.learning} == {"grpo", "opid", "opid_random"}  # rows that train
    assert "Not complete: 15 of 15" in markdown(document(tables)) and html(document(tables))
    assert {r["status"] for r in read_csv(tables) if r["source"] == "records"} <= {"missing"}


# ---------------------------------------------------------------------------------------------- renderers
class Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_asks_for_nothing(sweep: Any) -> None:
    text = html(document(make_tables(collect(sweep.out, "main_table"))))
    parser = Balanced()
    parser.feed(text)
    assert parser.open == [] and parser.links == []
    assert not {"script", "link", "img", "iframe"} & parser.seen
    assert "url(" not in text and "@import" not in text and "http" not in text.replace("http-equiv", "")
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text and 'tabindex="0"' in text


def test_text_fits_a_terminal(sweep: Any) -> None:
    sweep.rows = [{**row, "label": row["label"] * 6} for row in sweep.rows]
    sweep.write_plan()
    for width in (100, 118):
        text = plain(terminal(make_tables(collect(sweep.out, "main_table"))), width=width)
        assert max(map(len, text.splitlines())) <= width


def hostile() -> Document:
    entry = Text("<script>|*x*`\\", hint='"><b>')
    return Document("<t> *t*", ("a|b",), (Block("B", ("h|", "i"), ((entry, Text("1")),)),), ("<w>",), ("n_n",))


def test_labels_and_messages_mean_nothing_to_markdown_or_html() -> None:
    text = html(hostile())
    assert "<script>" not in text and "<t>" not in text and "<w>" not in text and '""><b>' not in text
    line = next(line for line in markdown(hostile()).splitlines() if "script" in line)
    assert len(re.findall(r"(?<!\\)\|", line)) == 3 and "\\*x\\*" in line


def test_many_warnings_are_counted_in_the_terminal_and_all_in_the_files() -> None:
    page = Document("T", (), (), tuple(f"warning {i}" for i in range(40)), ())
    assert "and 28 more" in plain(page) and "warning 39" not in plain(page)
    assert "warning 39" in markdown(page) and "warning 39" in html(page)


def test_a_table_with_a_ragged_row_is_refused() -> None:
    with pytest.raises(ValueError, match="2 columns"):
        Block("B", ("a", "b"), ((Text("1"),),))


# ---------------------------------------------------------------------------------------------- command
def test_the_command_writes_prints_and_ends_with_0(sweep: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["sweep=main_table", f"out={sweep.out}", *TABLES_ONLY]) == 0
    printed = capsys.readouterr().out
    assert "GRPO" in printed and "main_table.html" in printed


def test_the_command_ends_with_3_when_runs_are_missing(sweep: Any, capsys: pytest.CaptureFixture[str]) -> None:
    sweep.write_state("opid", 1, state="failed")
    assert command.main(["sweep=main_table", f"out={sweep.out}", *TABLES_ONLY]) == 3
    assert "Not complete: 1 of 15" in capsys.readouterr().out


def test_a_reader_that_leaves_early_is_no_error(sweep: Any) -> None:
    # More than a pipe holds, so that writing ends while the table is printed, not after it.
    sweep.rows = [{**row, "label": row["label"] * 40} for row in sweep.rows]
    sweep.write_plan()
    made = f"{sys.executable} -m analysis sweep=main_table 'out={sweep.out}' {' '.join(TABLES_ONLY)}"
    line = f"{made} | head -n 1; exit ${{PIPESTATUS[0]}}"
    for command_line in (line, line.replace("head -n 1", "true")):
        done = subprocess.run(["bash", "-c", command_line], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["swep=main_table"], "did you mean 'sweep'"),
        (["sweep=main_tabl", "out={out}"], "did you mean 'main_table'"),
        (["main_table"], "KEY=VALUE"),
        (["sweep="], "has no value"),
        ([], "sweep (command line): is missing"),
        (["sweep=main_table", "out={out}/nowhere"], "is not a folder"),
    ],
)
def test_a_wrong_command_ends_with_2_and_one_clear_error(
    sweep: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert command.main([a.format(out=sweep.out) for a in arguments]) == 2
    errors = capsys.readouterr().err
    assert words in errors and errors.count("error:") == 1 and "Traceback" not in errors


def test_a_folder_that_cannot_be_written_ends_with_2(
    sweep: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness import files

    def refuse(path: Path, data: bytes) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(files, "write_new", refuse)
    assert command.main(["sweep=main_table", f"out={sweep.out}", *TABLES_ONLY]) == 2
    assert "main_table.csv" in capsys.readouterr().err


def test_help_says_how_and_needs_no_data_library() -> None:
    code = (
        "import sys; from analysis.__main__ import main; status = main(['--help']); "
        "assert status == 0 and not {'pandas', 'numpy', 'pyarrow'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "sweep=NAME" in done.stdout and "Exit status" in done.stdout


def test_the_command_imports_no_model_library_and_another_process_writes_the_same_bytes(sweep: Any) -> None:
    code = (
        "import sys; from analysis.__main__ import main; "
        f"status = main(['sweep=main_table', 'out={sweep.out}', *{TABLES_ONLY}]); "
        "heavy = {'torch', 'transformers', 'mlflow', 'textworld', 'alfworld', 'hydra'} & set(sys.modules); "
        "print(sorted(heavy), file=sys.stderr); sys.exit(status or bool(heavy))"
    )
    before = {k: p.read_bytes() for k, p in write_main_table(sweep.out, "main_table").items() if isinstance(p, Path)}
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "PATH": ""}  # another order of every set, and no git
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert {k: (sweep.out / f"results/main_table/main_table.{k}").read_bytes() for k in before} == before
