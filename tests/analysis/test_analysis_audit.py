"""The audit of published tables: its arithmetic by brute force, its findings, and the document."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import __main__ as command
from analysis import audit
from analysis.audit_page import render
from analysis.cells import Metric
from analysis.published import published_numbers

DOCUMENT = Path(__file__).parents[2] / "docs" / "audit.md"


# ---------------------------------------------------------------------------------------------- arithmetic
@given(st.integers(1, 200), st.floats(0, 1))
def test_a_share_is_found_again_from_its_printed_form(n: int, share: float) -> None:
    k = round(share * n)
    assert k in audit.counts(round(100 * k / n, 1), n)


@given(st.integers(0, 1000), st.integers(1, 150))
def test_counts_are_all_that_could_be_printed_so(tenths: int, n: int) -> None:
    value = tenths / 10
    assert audit.counts(value, n) == tuple(k for k in range(n + 1) if abs(100 * k / n - value) <= 0.05 + 1e-9)


def test_totals_agree_with_brute_force() -> None:
    cells = (50.0, 33.3, 100.0)
    found = set()
    for sizes in itertools.product(range(1, 13), repeat=3):
        if sum(sizes) == 12:
            for won in itertools.product(*(audit.counts(v, n) for v, n in zip(cells, sizes, strict=True))):
                found.add(sum(won))
    assert audit.totals(cells, 12) == found
    assert audit.totals((33.3, 33.3), 4) == frozenset()


def test_rows_that_can_share_games_are_told_from_those_that_cannot() -> None:
    assert audit.can_share_games([(50.0, 25.0), (100.0, 75.0)], 6)
    assert not audit.can_share_games([(33.3, 50.0), (25.0, 50.0)], 6)


# ---------------------------------------------------------------------------------------------- ALFWorld
def test_the_papers_own_rows_are_macro_and_all_others_micro() -> None:
    rows = audit.alfworld("Table 1")
    assert len(rows) == 33
    assert {(r.method, r.backbone) for r in rows if r.kind is Metric.MACRO} == {
        ("OPID", b) for b in ("Qwen2.5-3B-Instruct", "Qwen2.5-7B-Instruct", "Qwen3-1.7B")
    }
    for table, count in (("Table 2", 3), ("Table 3", 2), ("Table 8", 3)):
        others = audit.alfworld(table)
        assert len(others) == count and {r.kind for r in others} == {Metric.MACRO}


def test_averages_that_no_128_episodes_give() -> None:
    odd = {(r.method, r.backbone): r for r in audit.alfworld("Table 1") if not r.fits_episodes}
    assert {key: r.average for key, r in odd.items() if r.kind is Metric.MICRO} == {
        ("GRPO+OPSD", "Qwen2.5-7B-Instruct"): 80.4,
        ("Skill-SD", "Qwen2.5-7B-Instruct"): 85.1,
    }
    assert odd["GRPO+OPSD", "Qwen2.5-7B-Instruct"].cut_off == 103
    assert odd["OPID", "Qwen3-1.7B"].cut_off is None
    assert [(method, share) for method, share, value in audit.fractions() if not audit.is_count(value, 128)] == [
        ("OPID", "100% training data")
    ]


def test_printed_micro_averages_lie_among_those_that_fit_the_cells() -> None:
    for row in audit.alfworld("Table 1"):
        if row.kind is Metric.MICRO and row.fits_episodes:
            assert set(audit.counts(row.average, 128)) & audit.totals(row.cells, 128), row
    assert next(r for r in audit.alfworld("Table 2") if r.method == "w/o step skill").micro is None


def test_derived_numbers_of_the_reference_file_lie_within_what_fits() -> None:
    """An independent derivation: most likely episode means, and macro means of every row."""
    rows = {(r.method, r.backbone): r for r in audit.alfworld("Table 1")}
    checked = 0
    for n in published_numbers():
        row = rows.get((n["method"], n["backbone"]))
        if row is None or n["column"].startswith("unseen"):
            continue
        if n["table"] == "ALFWorld macro avg":
            assert audit.macro(row.cells) == pytest.approx(float(n["value"]), abs=0.051)
            checked += 1
        if n["table"] == "ALFWorld micro avg":
            assert row.micro is not None and row.micro[0] - 0.05 <= float(n["value"]) <= row.micro[1] + 0.05
            checked += 1
    assert checked >= 33


def test_no_other_row_can_have_been_evaluated_on_the_games_of_opid() -> None:
    rows = audit.alfworld("Table 1")
    for row in rows:
        own = next(r for r in rows if r.method == "OPID" and r.backbone == row.backbone)
        assert audit.can_share_games([row.cells, own.cells], 128) == (row is own)


# ---------------------------------------------------------------------------------------------- search
def test_bamboogle_is_a_mean_of_two_batches_in_31_of_33_rows() -> None:
    rows = audit.search()
    assert len(rows) == 33 and audit.QUESTIONS % audit.BATCH == 1
    artefact = [r for r in rows if r.batch_mean is not None]
    assert len(artefact) == 31
    assert {(r.method, r.bamboogle) for r in rows if r.batch_mean is None} == {("GRPO", 26.4), ("GRPO", 37.6)}
    assert [r.bamboogle for r in artefact if audit.is_count(r.bamboogle, 125)] == [0.0]
    own = next(r for r in rows if (r.method, r.backbone) == ("OPID", "Qwen2.5-3B-Instruct"))
    assert own.batch_mean == (40, 1) and round(own.pooled, 1) == 32.8 and round(own.pooled_average, 1) == 40.2


def test_every_batch_mean_is_the_only_one_that_fits() -> None:
    for row in audit.search():
        fitting = [
            (x, b) for x in range(125) for b in (0, 1) if abs(100 * (x / 124 + b) / 2 - row.bamboogle) <= audit.ROUNDED
        ]
        assert len(fitting) <= 1 and (fitting[0] if fitting else None) == row.batch_mean


def test_pooled_numbers_agree_with_the_reference_file() -> None:
    rows = {(r.method, r.backbone): r for r in audit.search()}
    checked = 0
    for n in published_numbers():
        values = {"Bamboogle pooled": "pooled", "Search-QA avg with pooled Bamboogle": "pooled_average"}
        if n["table"] in values:
            found = getattr(rows[n["method"], n["backbone"]], values[n["table"]])
            assert found == pytest.approx(float(n["value"]), abs=0.051), n
            checked += 1
    assert checked == 66


def test_printed_search_averages_are_the_mean_of_their_seven_cells() -> None:
    for row in audit.search():
        assert abs(audit.macro(row.cells) - row.average) <= 0.1 + 1e-9


# ---------------------------------------------------------------------------------------------- other papers
def test_rows_that_papers_share_are_found() -> None:
    found = {(s.method, s.backbone, s.what, s.value) for s in audit.shared_between_papers()}
    assert ("GRPO", "Qwen2.5-3B-Instruct", "ALFWorld", 75.0) in found
    assert ("GiGPO", "Qwen2.5-7B-Instruct", "ALFWorld", 90.8) in found
    assert not any(method == "OPID" for method, *_ in found)


# ---------------------------------------------------------------------------------------------- the document
def test_the_document_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["audit"]) == 0
    printed = capsys.readouterr().out
    assert printed == render() == DOCUMENT.read_text(encoding="utf-8"), "python -m analysis audit > docs/audit.md"


def test_the_document_says_what_is_wrong() -> None:
    text = render()
    for words in (
        "macro mean over task types in 3 rows, which are the 3 of OPID, and the episode mean (micro) in the other 30",
        "2 of those 30 print an average to which no number of 128 episodes rounds",
        "31 of 33 Bamboogle cells are the unweighted mean of a batch of 124 questions and a batch of 1",
        "30 of 33 rows of Table 1 are recorded as equal, cell by cell",
        "| OPID, Qwen2.5-3B-Instruct | 66.1 | (40/124 + 1) / 2 | – | 32.8 | 45.0 | 40.2 |",
        "| Qwen2.5-3B-Instruct | SDAR | 84.4 | 80.1 | 84.4 | −0.1 | +4.2 |",
    ):
        assert words in text
    assert not re.search(r"\bnan\b|\binf\b|\bNone\b", text)


def test_the_audit_needs_no_model_and_no_records() -> None:
    code = (
        "import sys; from analysis.__main__ import main; status = main(['audit']); "
        "assert not {'torch', 'transformers', 'pandas', 'pyarrow'} & set(sys.modules), sorted(sys.modules); "
        "sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == render()
