"""Optuna's side: the total, sharing, taking over, a torn journal."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.tune.study import FINGERPRINTS, Study

Asks = Callable[..., Any]
HERE = Path(__file__).parent


@pytest.fixture
def study(asking: Asks, tmp_path: Path) -> Study:
    ask = asking("method=opid")
    (search,) = ask.searches()
    return Study(search, ask.tune, tmp_path)


def again(study: Study) -> Study:
    """As the next command sees it."""
    return Study(study.search, study.tune, study.journal.parent)


def test_nothing_is_made_by_looking(study: Study) -> None:
    assert study.entries() == [] and not study.journal.exists()


def test_trials_are_a_total_and_the_first_is_what_there_is(study: Study) -> None:
    values = [0.5, 0.9, 0.7]
    for number, value in enumerate(values):
        asked = study.ask()
        assert asked is not None and asked.number == number
        if number == 0:
            assert asked.params == study.search.start
        asked.note(**{FINGERPRINTS: [f"{number:016x}"]})
        asked.complete([value])
    later = again(study)
    assert later.to_do() == 1 and later.best() == [1]
    failed = later.ask()
    assert failed is not None
    failed.end("FAIL", "it broke")
    assert later.ask() is None and later.to_do() == 0 and again(study).ask() is None
    entries = again(study).entries()
    assert [e.state for e in entries] == ["COMPLETE"] * 3 + ["FAIL"]
    assert entries[3].reason == "it broke" and entries[1].fingerprints == (f"{1:016x}",)
    assert entries[1].values == {"validation/success": 0.9}


def test_the_same_history_asks_for_the_same(study: Study, tmp_path: Path) -> None:
    other = Study(study.search, study.tune, tmp_path / "other")
    other.journal.parent.mkdir()
    for _ in range(3):
        one, two = study.ask(), other.ask()
        assert one is not None and two is not None and one.params == two.params
        one.complete([0.3])
        two.complete([0.3])


def test_a_trial_whose_process_died_is_taken_over_with_its_parameters(study: Study, tmp_path: Path) -> None:
    code = (
        "import os, pickle, sys\n"
        "study = pickle.load(open(sys.argv[1], 'rb'))\n"
        "asked = study.ask(); asked = study.ask(); asked.report(1, 0.25)\n"
        "print(sorted(asked.params.items()), flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    (tmp_path / "study.pkl").write_bytes(pickle.dumps(study))
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "study.pkl")], capture_output=True, text=True, check=False
    )
    assert done.returncode == -9, done.stderr
    mine = again(study)
    first, second = mine.ask(), mine.ask()
    assert first is not None and second is not None and (first.number, second.number) == (0, 1)
    assert str(sorted(second.params.items())) == done.stdout.strip()
    assert second.reported == {1: 0.25} and not second.report(1, 0.9)
    third = mine.ask()
    assert third is not None and third.number == 2  # the two are ours now


def test_a_living_trial_of_another_command_is_left_alone(study: Study) -> None:
    asked = study.ask()
    other = again(study)
    taken = other.ask()
    assert asked is not None and taken is not None and taken.number == 1
    asked.leave()
    back = other.ask()
    assert back is not None and back.number == 0 and back.params == asked.params


def test_two_commands_never_ask_for_more_than_the_total(study: Study, tmp_path: Path) -> None:
    code = (
        "import pickle, sys\n"
        "study = pickle.load(open(sys.argv[1], 'rb'))\n"
        "while (asked := study.ask()) is not None:\n"
        "    print(asked.number, flush=True); asked.complete([0.1 * asked.number])\n"
    )
    (tmp_path / "study.pkl").write_bytes(pickle.dumps(study))
    command = [sys.executable, "-c", code, str(tmp_path / "study.pkl")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) for _ in range(2)]
    numbers = sorted(int(line) for process in both for line in (process.communicate()[0] or "").split())
    assert numbers == [0, 1, 2, 3] and [e.state for e in study.entries()] == ["COMPLETE"] * 4


def test_a_torn_line_is_cut_off(study: Study) -> None:
    asked = study.ask()
    assert asked is not None
    asked.complete([0.5])
    with study.journal.open("ab") as file:
        file.write(b'{"op_code":4,"worker_id"')
    later = again(study)
    assert [e.state for e in later.entries()] == ["COMPLETE"]
    nxt = later.ask()
    assert nxt is not None
    nxt.complete([0.6])
    assert len(again(study).entries()) == 2


def test_importances_need_trials_that_differ(study: Study) -> None:
    assert "four complete trials" in str(study.importances())
    for value in (0.1, 0.2, 0.3, 0.4):
        asked = study.ask()
        assert asked is not None
        asked.complete([value])
    found = study.importances()
    assert isinstance(found, dict) and set(found) == {"method.coef", "training.lr"}
    assert sum(found.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("sampler", ["random", "qmc", "nsgaii", "tpe"])
def test_samplers_stay_in_the_space(asking: Asks, tmp_path: Path, sampler: str) -> None:
    ask = asking("method=gigpo", f"sweep.tune.sampler={sampler}")
    (search,) = ask.searches()
    study = Study(search, ask.tune, tmp_path)
    while (asked := study.ask()) is not None:
        assert all(d.holds(asked.params[d.key]) for d in search.dimensions)
        asked.complete([0.5])
