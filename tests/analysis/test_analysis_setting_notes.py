"""What tables say of their setting is true of it: notes by scale, model, protocol and analyzer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from analysis.collect import collect
from analysis.render import plain
from analysis.tables import document, make_tables
from analysis.terminal import terminal

ROWS = (
    {"id": "grpo", "label": "GRPO", "kind": "baseline"},
    {"id": "opid", "label": "OPID", "kind": "method"},
)
LARGE = {"backbone": "qwen2.5-3b", "embedded": False}


@pytest.fixture
def texts_of(make_sweep: Callable[..., Any]) -> Callable[..., tuple[str, str, tuple[str, ...]]]:
    """(lead, what the terminal says below its tables, notes from 13 on) of a sweep whose cells are changed so."""

    def made(scale: str, **changes: Any) -> tuple[str, str, tuple[str, ...]]:
        sweep = make_sweep(rows=ROWS, panels=("seen",), per_type=1, scale=scale)
        for cell in sweep.cells:
            own = dict(changes)
            if cell["row"] != "opid":
                own.pop("analyzer", None)
            cell.update(own)
        sweep.write_plan()
        tables = make_tables(collect(sweep.out, "main_table"))
        page = document(tables)
        short = terminal(tables)
        assert short.notes[-1] in " ".join(plain(short, width=10_000).split("\n"))
        return " ".join(page.lead), short.notes[-1], page.notes[12:]

    return made


TextsOf = Callable[..., tuple[str, str, tuple[str, ...]]]


def test_the_papers_scale_is_told_as_it_is(texts_of: TextsOf) -> None:
    lead, short, notes = texts_of("paper", protocol="paper", analyzer="openai", **LARGE)
    everything = " ".join((lead, short, *notes))
    for untrue in (
        "tiny",
        "0.25",
        "share learning rate",
        "on purpose",
        "oracle",
        "GRPO got no such search",
        "games of",
    ):
        assert untrue not in everything, untrue
    assert "protocol=paper: each row has the formulas and coefficients that its paper prints" in everything
    assert "the last note of the files" in lead and "Where the evaluation differs" in notes[-1]
    assert "128" in notes[-1] and "name no seeds" in notes[-1]
    assert notes[0].startswith("What a seed replicates") and f"notes 13 to {12 + len(notes)} of" in short


def test_the_local_scale_keeps_its_cautions(texts_of: TextsOf) -> None:
    _, short, notes = texts_of("local")
    assert "0.25" in notes[1] and "gaps made on purpose" in notes[2] and "is an oracle" in notes[2]
    assert (
        "tiny bases have gaps" in short and "oracle" in short and not any("differs from the papers" in n for n in notes)
    )


def test_an_embedded_model_with_another_analyzer_has_no_oracle(texts_of: TextsOf) -> None:
    _, short, notes = texts_of("local", analyzer="openai")
    assert "oracle" not in " ".join((short, *notes)) and "gaps made on purpose" in notes[2]


def test_the_rules_analyzer_is_an_oracle_for_any_model(texts_of: TextsOf) -> None:
    _, short, notes = texts_of("device", **LARGE)
    everything = " ".join((short, *notes))
    assert "is an oracle" in everything and "gaps made on purpose" not in everything
    assert "shares code and wording" not in everything
    assert "They were not picked for models of this scale" in everything


def test_an_older_plan_does_not_say_who_wrote_the_skills(texts_of: TextsOf) -> None:
    _, short, notes = texts_of("local", analyzer="")
    assert "does not say who wrote the skills" in " ".join(notes) and "oracle" not in short


def test_the_authors_scripts_are_named(texts_of: TextsOf) -> None:
    notes = texts_of("paper", protocol="code", **LARGE)[2]
    assert any("what its authors' launch scripts ran" in note for note in notes)
    assert not any("0.25" in note for note in notes)
