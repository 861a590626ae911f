"""Sweeps on a real Slurm, in fair weather and foul: the table is complete and the same, each cell is run once.

All scenarios go on at the same time on one cluster, each in an output folder of its own; a test waits for its scenario.
Most of them run stand-ins (stand_in/), which cost nothing; `quick` is the real sweep. Slurm looks at time limits every
30 s and takes as long to miss a node, so that the slowest take about two minutes, mostly asleep.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from lab_config import HIGH, LOW, SMALL_ACCOUNT, SMALL_LIMIT
from slurm_cluster import Cluster, laboratory, wait_until
from story import SLURM, Story

from harness.launch import tickets
from harness.record import RunDirectory

pytestmark = [pytest.mark.slow, pytest.mark.slurm, pytest.mark.timeout(2400)]

NODES = 10
AT_ONCE = 6  # scenarios; most of them sleep most of the time
PATIENCE = 2300.0
SHIM = """#!/bin/sh
{sbatch} "$@"
kill -KILL $PPID
"""

Scenario = Callable[[Cluster, Path], Story | None]  # a story that is returned must have the calm one's table
SCENARIOS: dict[str, Scenario] = {}
CALM = "stormy_on_this_machine"


def scenario(function: Scenario) -> Scenario:
    """Registered in the order of the file: what sleeps longest stands first."""
    SCENARIOS[function.__name__] = function
    return function


@pytest.fixture(scope="session")
def ten_nodes() -> Iterator[Cluster]:
    """Ten nodes, so that scenarios in which nodes die do not disturb the others."""
    with laboratory("--nodes", str(NODES)) as made:
        yield made


@pytest.fixture(scope="module")
def going_on(
    request: pytest.FixtureRequest, ten_nodes: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Story | None]]]:
    """The scenarios of the selected tests, all under way."""
    wanted = {match[1] for item in request.session.items if (match := re.search(r"\[(\w+)\]", item.name))}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        folder = tmp_path_factory.mktemp("out")
        yield {
            name: pool.submit(function, ten_nodes, folder / name)
            for name, function in SCENARIOS.items()
            if name in {*wanted, CALM}
        }
        pool.shutdown(cancel_futures=True)


def on(*nodes: int) -> str:
    """Keeps jobs to these nodes."""
    others = ",".join(f"gpu{number}" for number in range(1, NODES + 1) if number not in nodes)
    return f"++launcher.sbatch.exclude='{others}'"


FOUR = on(1, 2, 3, 4)  # of nobody in particular; nodes that die are those of one scenario alone


# ------------------------------------------------------------------------------------------------- time limits
@scenario
def a_run_longer_than_its_time_limit_goes_on_in_the_next(cluster: Cluster, out: Path) -> Story:
    story = Story(out, cluster, {"0": {"seconds": 9}})
    # Slurm may send the signal a minute early: there must be something left of the time limit even so
    limits = ("launcher.resources={tiny-s: {minutes: 2}}", "launcher.signal_seconds=30", "launcher.requeues=5")
    ended = story.end(story.sweep(*limits, FOUR), 600)
    assert ended.status == 0, ended.text
    story.check_each_once()
    assert story.jobs_of(0) == 1  # under the same number
    assert story.outcomes(0)[:-1] and set(story.outcomes(0)[:-1]) == {"interrupted"}
    assert max(line.restart for line in story.journal("start")) == len(story.outcomes(0)) - 1
    assert story.words(0)[-1] == "COMPLETED"
    return story


@scenario
def a_run_that_hears_nothing_is_ended_by_its_time_limit_and_submitted_again(cluster: Cluster, out: Path) -> Story:
    story = Story(out, cluster, {"0": {"deaf": 3}})
    limits = ("launcher.resources={tiny-s: {minutes: 1}}", "launcher.signal_seconds=30")
    ended = story.end(story.sweep(*limits, FOUR), 600)
    assert ended.status == 0, ended.text
    story.check_each_once()
    # Slurm may send the signal a minute early: to a job that is only starting, which ends it
    words = story.words(0)
    assert words[-2:] == ["TIMEOUT", "COMPLETED"] and set(words[:-2]) <= {"FAILED"}, words
    assert story.jobs_of(0) == len(words)
    assert story.outcomes(0) == ["interrupted", "complete"]
    return story


# ------------------------------------------------------------------------------------------------- nodes that die
@scenario
def runs_of_a_node_that_dies_go_on_elsewhere(cluster: Cluster, out: Path) -> Story:
    story = Story(out, cluster, {"any": {"seconds": 2.5}})
    command = story.sweep("++launcher.sbatch.gres=gpu:1", on(5, 6))
    for seed in range(4):
        story.until_steps(2, seed)
    lost = tuple(seed for seed, node in story.nodes().items() if node == "gpu5")
    cluster.order("power-off gpu5")
    assert len(lost) == 2, (lost, story.heard())
    try:
        ended = story.end(command, 400)
    finally:
        cluster.order("start gpu5")
    assert ended.status == 0, ended.text
    story.check_each_once(killed=lost)
    for seed in range(4):
        assert story.jobs_of(seed) == 1
        assert story.outcomes(seed) == (["interrupted", "complete"] if seed in lost else ["complete"])
        assert story.words(seed) == (["NODE_FAIL", "COMPLETED"] if seed in lost else ["COMPLETED"])
    return story


@scenario
def a_run_whose_node_only_fell_silent_does_not_run_twice(cluster: Cluster, out: Path) -> Story:
    story = Story(out, cluster, {"0": {"seconds": 7}})
    command = story.sweep(on(7, 8))
    story.until_steps(1, 0)
    node = story.nodes()[0]
    cluster.order(f"kill-daemon {node}")  # its job lives on, unseen, while Slurm starts another
    try:
        ended = story.end(command, 600)
    finally:
        cluster.order(f"start {node}")
    assert ended.status == 0, ended.text
    story.check_each_once()
    assert story.jobs_of(0) == 1
    return story


# ------------------------------------------------------------------------------------------------- preemption
@scenario
def preempted_runs_go_on_afterwards(cluster: Cluster, out: Path) -> Story:
    story = Story(out, cluster, {"any": {"seconds": 2.0}})
    command = story.sweep(f"launcher.partition={LOW}", "++launcher.sbatch.gres=gpu:1", on(9, 10))
    for seed in range(4):
        story.until_steps(2, seed)
    victims = [seed for seed, node in story.nodes().items() if node == "gpu9"]
    assert len(victims) == 2, (victims, story.heard())
    urgent = ("-p", HIGH, "-w", "gpu9", "--gres=gpu:2", "--mem=100", "-o", "/dev/null", "--wrap", "sleep 4")
    cluster.client("sbatch", *urgent)
    ended = story.end(command)
    assert ended.status == 0, ended.text
    story.check_each_once()
    for seed in range(4):
        assert story.words(seed) == (["PREEMPTED", "COMPLETED"] if seed in victims else ["COMPLETED"])
        assert story.outcomes(seed) == (["interrupted", "complete"] if seed in victims else ["complete"])
        assert story.jobs_of(seed) == 1
    return story


# ------------------------------------------------------------------------------------------------- the real sweep
@scenario
def quick_as_jobs_is_quick_on_this_machine(cluster: Cluster, out: Path) -> None:
    jobs, here = Story(out / "jobs", cluster, real=True), Story(out / "here", cluster, real=True)
    local = here.start("sweep=quick", "workers=1")
    options = ("launcher.parallel=4", "++launcher.sbatch.gres=gpu:1", FOUR)
    first = jobs.end(jobs.sweep(*options, name="quick"), 2200)
    assert first.status == 0, first.text
    second = here.end(local, 2200)
    assert second.status == 0, second.text
    assert jobs.table("quick") == here.table("quick")
    used = set(cluster.client("sacct", "-n", "-X", "-P", "-o", "NodeList", "--name", "quick").split())
    assert {"gpu1", "gpu2", "gpu3", "gpu4"} <= used
    given = cluster.client("sacct", "-n", "-X", "-P", "-o", "AllocTRES", "--name", "quick")
    assert "gres/gpu=1" in given


# ------------------------------------------------------------------------------------------------- fair weather
@scenario
def stormy_on_this_machine(cluster: Cluster, out: Path) -> Story:
    """What the table must be, whatever happens."""
    story = Story(out, cluster)
    ended = story.end(story.start("sweep=stormy", "workers=2"))
    assert ended.status == 0, ended.text
    story.check_each_once()
    return story


# ------------------------------------------------------------------------------------------------- runs that die
@scenario
def runs_that_are_killed_once_are_submitted_again(cluster: Cluster, out: Path) -> Story:
    story = Story(out, cluster, {"any": {"die": 3}, "3": {"die": None}})
    ended = story.end(story.sweep(FOUR))
    assert ended.status == 0, ended.text
    story.check_each_once()
    assert [story.outcomes(seed) for seed in range(4)] == [["failed", "complete"]] * 3 + [["complete"]]
    assert [story.jobs_of(seed) for seed in range(4)] == [2, 2, 2, 1]
    assert story.words(0) == ["FAILED", "COMPLETED"]
    return story


@scenario
def a_run_that_fails_is_a_failure_and_the_others_are_not(cluster: Cluster, out: Path) -> Story:
    story = Story(out, cluster, {"2": {"fail": 4}})
    ended = story.end(story.sweep(FOUR))
    assert ended.status == 3, ended.text
    state = story.runs[2].state()
    assert (state.state, state.failure_class) == ("failed", "crash")
    assert "as arranged" in ended.text and "as arranged" in (state.error or "")
    assert story.jobs_of(2) == 1
    assert all(story.runs[seed].state().is_complete for seed in (0, 1, 3))
    (out / "trouble.json").write_text("{}")
    again = story.do("retry", "wait=true", FOUR)
    assert again.status == 0, again.text
    story.check_each_once()
    assert [story.jobs_of(seed) for seed in range(4)] == [1, 1, 2, 1]
    return story


@scenario
def too_little_memory_is_named_and_not_tried_again_as_it_was(cluster: Cluster, out: Path) -> None:
    story = Story(out, cluster, {"1": {"hog": 3000}})
    small = "launcher.resources={tiny-s: {mem_gb: 1}}"
    ended = story.end(story.sweep("seed=0,1", small, FOUR))
    state = story.runs[1].state()
    assert story.runs[0].state().is_complete
    assert state.state in ("failed", "complete"), (state, ended.text)
    assert story.jobs_of(1) <= 2


# ------------------------------------------------------------------------------------------------- users
@scenario
def one_cancelled_element_leaves_the_others_alone(cluster: Cluster, out: Path) -> Story:
    story = Story(out, cluster, {"any": {"seconds": 2}})
    command = story.sweep(FOUR)
    story.until_steps(2, 1)
    cluster.client("scancel", story.job(1))
    ended = story.end(command)
    assert ended.status == 3, ended.text
    assert story.runs[1].state().state == "interrupted"
    assert "CANCELLED" in (story.runs[1].state().error or "")
    assert story.words(1) == ["CANCELLED"]
    assert all(story.runs[seed].state().is_complete for seed in (0, 2, 3))
    again = story.end(story.sweep(FOUR))
    assert again.status == 0, again.text
    story.check_each_once()
    assert [story.jobs_of(seed) for seed in range(4)] == [1, 2, 1, 1]
    return story


@scenario
def a_killed_command_loses_nothing(cluster: Cluster, out: Path) -> Story:
    story = Story(out, cluster, {"any": {"seconds": 2}})
    command = story.sweep(FOUR)
    story.until_steps(1, 0)
    command.send_signal(signal.SIGKILL)
    command.wait()
    told = story.do("status")
    assert told.status == 3 and "RUNNING" in told.text, told.text
    again = story.end(story.sweep(FOUR))
    assert again.status == 0, again.text
    story.check_each_once()
    assert [story.jobs_of(seed) for seed in range(4)] == [1] * 4
    assert [story.outcomes(seed) for seed in range(4)] == [["complete"]] * 4
    return story


@scenario
def a_command_killed_while_it_submits_loses_nothing(cluster: Cluster, out: Path) -> Story:
    story = Story(out, cluster, {"any": {"seconds": 0.3}})
    shims = out / "bin"
    shims.mkdir()
    (shims / "sbatch").write_text(SHIM.format(sbatch="/usr/bin/sbatch"))
    (shims / "sbatch").chmod(0o755)
    killed = story.end(story.start("sweep=stormy", *SLURM, FOUR, path=shims))
    assert killed.status == -signal.SIGKILL, killed.text
    again = story.end(story.sweep(FOUR))
    assert again.status == 0, again.text
    story.check_each_once()
    return story


@scenario
def the_same_command_twice_at_once_runs_each_cell_once(cluster: Cluster, out: Path) -> Story:
    story = Story(out, cluster, {"any": {"seconds": 0.5}})
    both = [story.sweep(FOUR) for _ in range(2)]
    for ended in [story.end(command) for command in both]:
        assert ended.status == 0, ended.text
    story.check_each_once()
    assert [story.jobs_of(seed) for seed in range(4)] == [1] * 4
    assert [story.outcomes(seed) for seed in range(4)] == [["complete"]] * 4
    return story


@scenario
def it_returns_at_once_is_watched_cancelled_and_taken_up_again(cluster: Cluster, out: Path) -> Story:
    story = Story(out, cluster, {"any": {"seconds": 10}})
    few = (FOUR, "launcher.parallel=2")
    submitted = story.end(story.start("sweep=stormy", *SLURM, *few))
    assert submitted.status == 0, submitted.text
    wait_until(lambda: len({line.seed for line in story.journal("step")}) == 2, 120, f"two runs; {story.heard()}")
    told = story.do("status", *few)
    assert told.status == 3
    assert told.text.count(" RUNNING") == told.text.count(" PENDING") == 2, told.text
    cancelled = story.do("cancel", *few)
    assert cancelled.status in (0, 3), cancelled.text
    wait_until(lambda: {run.state().state for run in story.runs.values()} == {"interrupted"}, 60, cancelled.text)
    assert all("cancel" in (run.state().error or "").lower() for run in story.runs.values())
    assert not story.journal("end")
    (out / "trouble.json").write_text("{}")
    again = story.end(story.sweep(*few))
    assert again.status == 0, again.text
    story.check_each_once()
    return story


# ------------------------------------------------------------------------------------------------- searches
@scenario
def a_search_is_left_taken_up_again_and_stops_what_it_prunes(cluster: Cluster, out: Path) -> None:
    story = Story(out, cluster, {"any": {"seconds": 0.7}})
    search = ("sweep=sought", *SLURM, "sweep.tune.parallel=2", FOUR)
    left = story.start(*search)
    wait_until(lambda: len({line.pid for line in story.journal("step")}) == 2, 120, f"two jobs; {story.heard()}")
    left.send_signal(signal.SIGINT)
    ended = story.end(left)
    assert ended.status == 130 and "the jobs go on" in ended.text, ended.text
    again = story.end(story.start(*search))
    assert again.status == 0, again.text
    runs = [RunDirectory(path) for path in sorted((out / "runs").iterdir()) if path.is_dir()]
    states = [run.state() for run in runs]
    assert len(runs) == 4 and {state.state for state in states} == {"complete", "interrupted"}, again.text
    pruned = [state for state in states if state.state == "interrupted"]
    assert all("pruned: trial" in (state.error or "") and state.last_step < 12 for state in pruned)
    assert again.text.count("the pruner gave it up after step") >= len(pruned)
    assert [len(tickets.history(run.path)) for run in runs] == [1] * 4  # each had one job, which never came back
    assert len(story.journal("start")) == 4 and {line.restart for line in story.journal()} == {0}
    ids = {ticket.job_id for run in runs for ticket in tickets.history(run.path)}
    assert not ids & {job for job, _, _ in cluster.queue()}


# ------------------------------------------------------------------------------------------------- sites
@scenario
def a_small_queue_is_filled_in_waves(cluster: Cluster, out: Path) -> None:
    story = Story(out, cluster, {"any": {"seconds": 0.1}})
    seeds = f"sweep.axes.seed=[{','.join(map(str, range(SMALL_LIMIT * 2 + 1)))}]"
    ended = story.end(story.sweep(seeds, f"launcher.account={SMALL_ACCOUNT}", FOUR))
    assert ended.status == 0, ended.text
    story.check_each_once()
    assert [story.jobs_of(seed) for seed in range(SMALL_LIMIT * 2 + 1)] == [1] * (SMALL_LIMIT * 2 + 1)


@scenario
def a_student_waits_for_its_teacher_and_is_not_started_without_it(cluster: Cluster, out: Path) -> None:
    story = Story(out, cluster, {"skill_grpo": {"fail": 1}, "any": {"seconds": 0.5}})
    ended = story.end(story.sweep(FOUR, name="taught"))
    assert ended.status == 3, ended.text
    assert story.states() == ["failed", "pending"], ended.text
    assert "needs the weights" in ended.text, ended.text
    (out / "trouble.json").write_text("{}")
    again = story.end(story.sweep("do=retry", FOUR, name="taught"))
    assert again.status == 0, again.text
    ends = [line.pid for line in story.journal("end")]
    starts = [line.pid for line in story.journal("start")]
    assert starts[-1] == ends[-1] and len(ends) == 2


@scenario
def a_cluster_without_accounting_will_do(cluster: Cluster, out: Path) -> Story:
    with laboratory("--without-accounting") as plain:
        story = Story(out, plain, {"any": {"seconds": 0.2}, "0": {"die": 3}, "1": {"fail": 2}})
        ended = story.end(story.sweep())
        assert ended.status == 3, ended.text
        assert [story.outcomes(seed) for seed in range(4)] == [["failed", "complete"], ["failed"]] + [["complete"]] * 2
        (out / "trouble.json").write_text("{}")
        again = story.do("retry", "wait=true")
        assert again.status == 0, again.text
        story.check_each_once()
    return story


# ------------------------------------------------------------------------------------------------- the tests
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_whatever_happens_the_table_is_the_same(name: str, going_on: dict[str, Future[Story | None]]) -> None:
    calm, story = going_on[CALM].result(PATIENCE), going_on[name].result(PATIENCE)
    assert calm is not None
    if story is not None:
        assert story.table() == calm.table()
