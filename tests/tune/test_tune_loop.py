"""Whole searches with stand-ins for runs: values, failures, pruning, seeds, going on, sharing."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tune_helpers import ENTRY, HERE, MINI

from harness.tune.actions import act
from harness.tune.study import Entry, Study

Asks = Callable[..., Any]
ONE = "sweep.tune.space={training.lr: null}"  # the weight alone is searched


def do(asking: Asks, out: Path, *arguments: str, what: str = "run") -> tuple[int, Study]:
    ask = asking("method=opid", f"out={out}", "tracking=none", "workers=2", ONE, f"do={what}", *arguments)
    code = act(ask.plan, ask.tune, ask.composer, ask.command, entry=ENTRY)
    (search,) = ask.searches()
    return code, Study(search, ask.tune, ask.plan.results / "studies")


def results(study: Study) -> list[dict[str, str]]:
    with (study.journal.parents[1] / "tune.csv").open() as file:
        return list(csv.DictReader(file))


def starts(told: Path) -> Counter[str]:
    return Counter(line.split()[1] for line in told.read_text().splitlines() if line.startswith("start"))


def complete(entries: list[Entry]) -> list[Entry]:
    return [e for e in entries if e.state == "COMPLETE"]


def test_a_search_finds_goes_on_to_the_total_and_then_has_nothing_to_do(
    asking: Asks, fakes: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pruning = "sweep.tune.pruner=none"
    code, study = do(asking, tmp_path, "sweep.tune.trials=3", pruning)
    assert code == 0 and [e.state for e in study.entries()] == ["COMPLETE"] * 3
    assert study.entries()[0].params == {"method.coef": 0.25}
    for entry in study.entries():
        expected = max(0.0, 1 - abs(math.log10(entry.params["method.coef"]) + 1))  # as fake_trials.success says
        assert entry.values["validation/success"] == pytest.approx(expected, abs=0.026)
        (name,) = entry.fingerprints
        assert (tmp_path / "runs" / name / "state.json").exists()
    code, study = do(asking, tmp_path, "sweep.tune.trials=5", pruning)
    assert code == 0 and len(study.entries()) == 5 and max(starts(fakes).values()) == 1
    before = fakes.read_text()
    code, study = do(asking, tmp_path, "sweep.tune.trials=5", pruning)
    assert code == 0 and fakes.read_text() == before
    printed = capfd.readouterr()
    assert "all 5 trials of 1 searches are done, nothing to run" in printed.err
    best = max(study.entries(), key=lambda e: e.values["validation/success"])
    rows = results(study)
    assert len(rows) == 5 and {r["trial"] for r in rows if r["best"] == "1"} == {str(best.number)}
    row = rows[best.number]
    assert (row["seeds"], row["episodes"], row["runs"]) == ("1", "20", best.fingerprints[0])
    assert float(row["success_low"]) < best.values["validation/success"] <= float(row["success_high"])
    page = (study.journal.parents[1] / "tune.md").read_text()
    assert "n = 1 seeds x 20 episodes" in page and "looks better than it is" in page
    assert f"method.coef={best.params['method.coef']!r}" in page and "evaluation.panels" not in page
    records = [json.loads(line) for line in (study.journal.parents[1] / "trials.jsonl").read_text().splitlines()]
    assert [r["values"] for r in records] == [dict(e.values) for e in study.entries()]


def test_a_died_trial_is_told_as_failed_with_its_reason(asking: Asks, fakes: Path, tmp_path: Path) -> None:
    space = "sweep.tune.rows.opid={method.coef: {choices: [0.95, 0.25], low: null, high: null, log: null}}"
    code, study = do(asking, tmp_path, space, "sweep.tune.trials=4", "sweep.tune.pruner=none")
    failed = [e for e in study.entries() if e.state == "FAIL"]
    assert failed and code == 3 and len(study.entries()) == 4
    assert all("coef is too much" in e.reason and e.params["method.coef"] == 0.95 for e in failed)
    assert all(e.fingerprints and e.fingerprints[0] in e.reason for e in failed)
    assert any(r["state"] == "FAIL" and "coef is too much" in r["reason"] for r in results(study))


def test_a_full_disk_ends_the_search_and_fails_no_trial(
    asking: Asks, fakes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("sweep.tune.trials=3", "sweep.tune.pruner=none")
    full = fakes.with_name(f"{fakes.name}.full")
    full.touch()
    code, study = do(asking, tmp_path, *arguments)
    assert code == 3 and {e.state for e in study.entries()} == {"RUNNING"}
    said = capsys.readouterr().err
    assert "failed (disk): OSError: [Errno 28]" in said and "then the same command goes on with them" in said
    full.unlink()
    code, study = do(asking, tmp_path, *arguments)
    assert code == 0 and [e.state for e in study.entries()] == ["COMPLETE"] * 3


def test_the_pruner_stops_a_run_at_a_step_boundary(asking: Asks, fakes: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("FAKE_SECONDS", "0.7")
    arguments = ["training.steps=8", "sweep.tune.trials=6", "sweep.tune.startup=1", "sweep.tune.parallel=1"]
    code, study = do(asking, tmp_path, *arguments)
    pruned = [e for e in study.entries() if e.state == "PRUNED"]
    assert code == 0 and pruned and complete(study.entries())
    for entry in pruned:
        (name,) = entry.fingerprints
        state = json.loads((tmp_path / "runs" / name / "state.json").read_text())
        assert state["state"] == "interrupted" and 1 <= state["last_step"] < 8
        assert f"pruned: trial {entry.number} of {study.search.name}" in state["error"]
        assert "the pruner gave it up after step" in entry.reason and entry.looks
        assert not entry.values


def test_a_trial_is_the_mean_of_its_seeds_and_told_in_their_order(asking: Asks, fakes: Path, tmp_path: Path) -> None:
    code, study = do(asking, tmp_path, "sweep.axes.seed=[0,1]", "sweep.tune.trials=2", "sweep.tune.startup=9")
    assert code == 0
    for entry in study.entries():
        assert len(entry.fingerprints) == 2 and [s["seed"] for s in entry.seeds] == [0, 1]
        assert list(entry.looks) == [1, 2, 3, 4, 5]  # two looks and the end of the first seed, two of the second
    assert results(study)[0]["episodes"] == "40"


def test_several_objectives(asking: Asks, fakes: Path, tmp_path: Path) -> None:
    both = "sweep.tune.objectives={validation/success: max, cost/tokens: min}"
    code, study = do(asking, tmp_path, both, "sweep.tune.pruner=none", "sweep.tune.sampler=nsgaii")
    assert code == 0 and all(e.values["cost/tokens"] == 300.0 for e in study.entries())
    assert "no other beats in every objective" in (study.journal.parents[1] / "tune.md").read_text()


def test_plan_and_status_only_read(
    asking: Asks, fakes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, study = do(asking, tmp_path, what="plan")
    told = capsys.readouterr().out
    assert code == 0 and "method.coef: 0.01 to 1, log" in told and "4 trials: 4 to begin" in told
    assert "on the panel validation alone" in told and "expected CPU time: at most 0." in told
    assert do(asking, tmp_path, what="status")[0] == 3
    assert not study.journal.exists() and not (tmp_path / "runs").exists()
    do(asking, tmp_path, "sweep.tune.trials=2")
    capsys.readouterr()
    do(asking, tmp_path, what="plan")
    assert "2 complete, 2 to begin" in capsys.readouterr().out
    assert do(asking, tmp_path, "sweep.tune.trials=2", what="status")[0] == 0
    assert "| complete" in capsys.readouterr().out


SEARCH = """
import sys
from harness import prepare
prepare.prepare = lambda config, progress: None
from tune_helpers import Asking, ENTRY
from harness.compose import composer
from harness.tune.actions import act
ask = Asking(composer(sys.argv[1]), *sys.argv[2:])
sys.exit(act(ask.plan, ask.tune, ask.composer, ask.command, entry=ENTRY))
"""


@pytest.fixture
def command(tmp_path: Path, fakes: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts a search in a process of its own."""
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    (tmp_path / "conf" / "sweep" / "mini.yaml").write_text(MINI)

    def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        words = [str(tmp_path / "conf"), "method=opid", f"out={tmp_path}", "tracking=none", ONE, *arguments]
        return subprocess.Popen(
            [sys.executable, "-c", SEARCH, *words],
            env={**os.environ, "PYTHONPATH": str(HERE), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def entries(tmp_path: Path) -> list[dict[str, Any]]:
    (file,) = (tmp_path / "results").glob("*/trials.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.slow
def test_two_commands_at_once_share_one_study(command: Callable[..., Any], fakes: Path, tmp_path: Path) -> None:
    both = [command("sweep.tune.trials=6", "sweep.tune.pruner=none", "workers=1", FAKE_SECONDS="0.3") for _ in "12"]
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    found = entries(tmp_path)
    assert [e["number"] for e in found] == list(range(6)) and {e["state"] for e in found} == {"COMPLETE"}
    assert set(starts(fakes).values()) == {1}


@pytest.mark.slow
def test_a_killed_search_goes_on_where_it_was(command: Callable[..., Any], fakes: Path, tmp_path: Path) -> None:
    arguments = ["sweep.tune.trials=3", "sweep.tune.pruner=none", "workers=1", "training.steps=6"]
    first = command(*arguments, FAKE_SECONDS="0.5")
    deadline = time.monotonic() + 300
    while "step" not in fakes.read_text():
        assert time.monotonic() < deadline and first.poll() is None, first.communicate()[0]
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    second = command(*arguments)
    said = second.communicate()[0]
    assert second.returncode == 0, said
    found = entries(tmp_path)
    assert [e["state"] for e in found] == ["COMPLETE"] * 3
    steps = Counter(tuple(line.split()[1:]) for line in fakes.read_text().splitlines() if line.startswith("step"))
    assert max(steps.values()) == 1  # the run went on from its last step


@pytest.mark.slow
def test_a_stopped_search_says_so_and_goes_on(command: Callable[..., Any], fakes: Path, tmp_path: Path) -> None:
    arguments = ["sweep.tune.trials=2", "sweep.tune.pruner=none", "workers=1", "training.steps=30"]
    first = command(*arguments, FAKE_SECONDS="0.3")
    deadline = time.monotonic() + 300
    while "step" not in fakes.read_text():
        assert time.monotonic() < deadline and first.poll() is None, first.communicate()[0]
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    said = first.communicate()[0]
    assert first.returncode == 130 and "stopped; the same command again goes on from here" in said, said
    second = command(*arguments)
    assert second.wait() == 0, second.communicate()[0]
    assert [e["state"] for e in entries(tmp_path)] == ["COMPLETE"] * 2
