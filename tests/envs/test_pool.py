from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psutil
import pytest
from fake_env import fake_task, make_broken, make_fake

from envs.interface import EnvConfig, EnvironmentFailure, Observation, StepResult
from envs.pool import EnvPool, OrderedPool

CONFIG = EnvConfig(max_steps=5)


@pytest.fixture
def pool2() -> Iterator[EnvPool]:
    with EnvPool(make_fake, CONFIG, workers=2) as pool:
        yield pool


def played(workers: int) -> list[object]:
    """Everything said in two rounds over slots that share tasks, with a failing slot in between."""
    said: list[object] = []
    with EnvPool(make_fake, CONFIG, workers=workers) as pool:
        for round_ in range(2):
            tasks = {slot: fake_task(f"{(slot + round_) // 3}") for slot in range(9)}
            said.append(list(pool.reset(tasks).items()))
            for step in range(3):
                actions = {s: "win" if (s + step) % 4 == 3 else "go" if s % 2 else "nonsense" for s in range(9)}
                if step == 1:
                    actions[4] = "raise"
                answers = pool.step(actions)
                said.append([(s, str(a) if isinstance(a, EnvironmentFailure) else a) for s, a in answers.items()])
    return said


def test_results_do_not_depend_on_worker_count() -> None:
    alone = played(0)
    assert alone == played(1) == played(3)
    assert any("broken inside" in str(entry) for entry in alone)


def test_slots_of_a_task_share_a_worker_and_load_is_spread(pool2: EnvPool) -> None:
    pool2.reset({slot: fake_task(f"{slot // 4}") for slot in range(8)})
    pids = [answer.observation.text.split()[1] for answer in results(pool2.step(dict.fromkeys(range(8), "pid")))]
    assert len(set(pids[:4])) == len(set(pids[4:])) == 1
    assert pids[0] != pids[4]
    assert str(os.getpid()) not in pids


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_costs_its_own_slot_only(workers: int) -> None:
    with EnvPool(make_fake, CONFIG, workers=workers) as pool:
        pool.reset({0: fake_task("a"), 1: fake_task("a"), 2: fake_task("b")})
        answers = pool.step({0: "go", 1: "raise", 2: "fail"})
        assert isinstance(answers[0], StepResult)
        assert isinstance(answers[1], EnvironmentFailure) and "KeyError" in str(answers[1])
        assert isinstance(answers[2], EnvironmentFailure) and str(answers[2]) == "engine crash"
        again = pool.step({0: "go", 1: "go", 2: "go"})
        assert isinstance(again[0], StepResult)
        assert isinstance(again[1], EnvironmentFailure) and "broken inside" in str(again[1])
        assert isinstance(pool.reset({1: fake_task("a")})[1], Observation)
        assert isinstance(pool.step({1: "go"})[1], StepResult)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_task_that_cannot_be_loaded_fails_alone(workers: int) -> None:
    with EnvPool(make_fake, CONFIG, workers=workers) as pool:
        answers = pool.reset({0: fake_task("a", "unloadable"), 1: fake_task("b")})
        assert isinstance(answers[0], EnvironmentFailure) and "t/a" in str(answers[0])
        assert isinstance(answers[1], Observation)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_environment_that_cannot_be_made_is_a_failure_that_says_why(workers: int) -> None:
    with EnvPool(make_broken, CONFIG, workers=workers) as pool:
        answer = pool.reset({0: fake_task("a")})[0]
        assert isinstance(answer, EnvironmentFailure) and "No module named 'engine'" in str(answer)


def test_a_killed_worker_loses_its_slots_and_is_replaced(pool2: EnvPool) -> None:
    tasks = {slot: fake_task(f"{slot // 2}") for slot in range(4)}
    pool2.reset(tasks)
    before = pool2.worker_pids
    pids = {s: a.observation.text.split()[1] for s, a in enumerate(results(pool2.step(dict.fromkeys(range(4), "pid"))))}
    os.kill(int(pids[0]), signal.SIGKILL)
    answers = pool2.step({0: "go", 2: "go"})  # slot 1 was on the dead worker too, but is not asked
    assert isinstance(answers[0], EnvironmentFailure) and "worker" in str(answers[0])
    assert isinstance(answers[2], StepResult)
    assert isinstance(pool2.step({1: "go"})[1], EnvironmentFailure)
    assert all(isinstance(a, Observation) for a in pool2.reset(tasks).values())
    assert all(isinstance(a, StepResult) for a in pool2.step(dict.fromkeys(range(4), "go")).values())
    assert len(pool2.worker_pids) == 2 and set(pool2.worker_pids) != set(before)


def test_death_in_the_middle_of_a_step_and_of_a_reset(pool2: EnvPool) -> None:
    pool2.reset({0: fake_task("a"), 1: fake_task("b")})
    answers = pool2.step({0: "die", 1: "go"})
    assert isinstance(answers[0], EnvironmentFailure) and "signal 9" in str(answers[0])
    assert isinstance(answers[1], StepResult)
    again = pool2.reset({0: fake_task("a", "deadly")})
    assert isinstance(again[0], EnvironmentFailure)
    healthy = pool2.reset({0: fake_task("a"), 1: fake_task("b")})
    assert all(isinstance(answer, Observation) for answer in healthy.values())


def test_a_hung_worker_is_replaced() -> None:
    with EnvPool(make_fake, CONFIG, workers=1, timeout=3.0) as pool:
        pool.reset({0: fake_task("a")})
        assert "did not answer" in str(pool.step({0: "hang"})[0])
        assert isinstance(pool.reset({0: fake_task("a")})[0], Observation)


def test_close_ends_the_workers_and_a_closed_pool_says_so() -> None:
    pool = EnvPool(make_fake, CONFIG, workers=2)
    pool.reset({0: fake_task("a"), 1: fake_task("b")})
    pids = pool.worker_pids
    assert len(pids) == 2
    pool.close()
    pool.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    with pytest.raises(RuntimeError, match="closed"):
        pool.step({0: "go"})


def test_environments_are_reused_and_kept_for_their_task() -> None:
    with EnvPool(make_fake, CONFIG) as pool:
        instances = set()
        for round_ in range(20):
            pool.reset({slot: fake_task(f"{(slot + round_) % 3}") for slot in range(3)})
            for answer in results(pool.step(dict.fromkeys(range(3), "pid"))):
                instances.add(answer.observation.text.split()[3])
        assert len(instances) == 3


def test_misuse_is_named() -> None:
    with pytest.raises(ValueError, match="env_workers=-1"):
        EnvPool(make_fake, CONFIG, workers=-1)
    with EnvPool(make_fake, CONFIG) as pool, pytest.raises(ValueError, match="slot 7 was never reset"):
        pool.step({7: "go"})


@pytest.mark.parametrize("workers", [0, 2])
def test_ordered_view(workers: int) -> None:
    pool = OrderedPool(EnvPool(make_fake, CONFIG, workers=workers))
    first = pool.reset([fake_task("a"), fake_task("b"), fake_task("a")])
    assert [o.text for o in first if isinstance(o, Observation)] == ["start t/a", "start t/b", "start t/a"]
    second = pool.step([2, 0], ["win", "go"])
    assert [r.success for r in second if isinstance(r, StepResult)] == [True, False]
    with pytest.raises(ValueError, match="twice"):
        pool.step([0, 0], ["go", "go"])
    pool.close()


def results(answers: dict[int, StepResult | EnvironmentFailure]) -> list[StepResult]:
    out = []
    for slot, answer in answers.items():
        assert isinstance(answer, StepResult), f"slot {slot}: {answer}"
        out.append(answer)
    return out
