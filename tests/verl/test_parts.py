"""Episodes played elsewhere: failures are counted, limits hold, and nothing fatal is passed over."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import verl_helpers as helpers

from envs.interface import Task
from harness.training.episode import EpisodeRequest
from harness.training.verl.parts import POLICY, TEACHER, RemoteNetwork, RemotePlayer, RemoteScorer, RemoteTeacher
from harness.training.verl.rows import packed
from methods.interface import Trajectory

ABOUT = {
    "fatal": "",
    "tokens": 7,
    "seconds": 1.0,
    "env_seconds": 0.5,
    "dropped_history": 1,
    "truncated_prompts": 0,
    "retried": 1,
}


class Services:
    """Agent loops that answer as they are told."""

    workers = 1
    global_steps = 0

    def __init__(self, answers):
        self.answers, self.asked, self.called = answers, [], []

    def play(self, wanted, loop, source=POLICY, training=True):
        self.asked.append((list(wanted), loop, source, training))
        return self.answers[: len(wanted)]

    def score_samples(self, samples, source, partition):
        self.called.append(source)
        return [torch.arange(len(sample.response), dtype=torch.float32) for sample in samples]

    def load_teacher(self, folder):
        self.called.append(("load", folder))

    def release_teacher(self):
        self.called.append("release")

    def follow(self, decay):
        self.called.append(("follow", decay))


def answer(failure=None, **about):
    trajectory = Trajectory(0, 3, 2, "t", "kind", "do it", failure=failure)
    trajectory.termination = "infra_failure" if failure else "done"
    samples, text = packed(trajectory, "per_step", 0)
    return SimpleNamespace(samples=samples, text=text, about={**ABOUT, **about})


def player(answers, **named):
    config = helpers.run_config("grpo", Path("nowhere"))
    return RemotePlayer(Services(answers), config, **named)


def requests(count):
    return [EpisodeRequest(Task(f"t{i}", "kind", "0"), 3, 2, (0, i)) for i in range(count)]


def test_episodes_come_back_in_order_with_what_they_cost():
    made = player([answer(), answer("broke")])
    played, stats = made.play(requests(2), 0.4)
    assert [t.index for t in played] == [0, 1]
    assert [t.failure for t in played] == [None, "broke"]
    assert (stats.tokens, stats.retried, stats.dropped_history, stats.env_seconds) == (14, 2, 2, 0.5)
    (wanted, loop, source, training) = made.services.asked[0]
    assert (loop, source, training) == ("per_step", POLICY, False)
    assert [w.temperature for w in wanted] == [0.4, 0.4]


def test_an_error_that_is_not_the_environments_stops_the_run():
    with pytest.raises(RuntimeError, match="task t1 cannot be played: ValueError: too long"):
        player([answer(), answer("x", fatal="ValueError: too long")]).play(requests(2), 1.0)


def test_a_teacher_plays_with_its_own_weights():
    made = player([answer()], source=TEACHER)
    made.play(requests(1), 1.0)
    assert made.services.asked[0][2] == TEACHER


def test_only_marked_tokens_are_scored():
    services = Services([])
    scorer = RemoteScorer(services, TEACHER, RemoteNetwork(64), None, "growing", 1.0, 100)
    found = scorer.logprobs([[5, 6, 7, 8, 9], [1, 2, 3]], [[2, 4], [1]])
    assert [scores.tolist() for scores in found] == [[0.0, 2.0], [0.0]]
    assert services.called == [TEACHER]
    assert scorer.logprobs([], []) == []


def test_a_frozen_teacher_is_loaded_when_first_needed_and_let_go():
    services = Services([])
    teacher = RemoteTeacher(services, RemoteNetwork(8), Path("folder"), None)
    teacher.after_update()
    assert services.called == []
    teacher.network()
    teacher.network()
    teacher.release()
    teacher.network()
    assert services.called == [("load", Path("folder")), "release", ("load", Path("folder"))]
    assert not teacher.moves


def test_a_moving_average_stands_from_the_start_and_follows():
    services = Services([])
    teacher = RemoteTeacher(services, RemoteNetwork(8), None, 0.9)
    teacher.after_update()
    teacher.release()
    assert services.called == [("load", None), ("follow", 0.9)]
    assert teacher.moves
