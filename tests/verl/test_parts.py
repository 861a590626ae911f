"""Episodes played elsewhere: failures are counted, limits hold, and nothing fatal is passed over."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import verl_helpers as helpers

from envs.interface import PromptParts, Task
from harness.states import classify
from harness.training.episode import EpisodeRequest
from harness.training.verl.outcome import VerlError
from harness.training.verl.parts import (
    POLICY,
    TEACHER,
    RemoteNetwork,
    RemotePlayer,
    RemoteScorer,
    RemoteTeacher,
    RemoteTrainer,
    SamplerGapError,
)
from harness.training.verl.rows import packed
from methods.interface import Trajectory, Turn

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


def test_a_lost_answer_is_no_broken_environment():
    """verl logs an error around an agent loop and goes on: evaluations would be complete with episodes left out."""
    with pytest.raises(RuntimeError, match=r"task t1 was lost: .*without an answer.*verl/log\.txt"):
        player([answer(), None]).play(requests(2), 1.0)


@pytest.mark.parametrize("kind", ["crash", "infra", "oom"])
def test_an_error_that_is_not_the_environments_stops_the_run_with_its_class(kind):
    broken = answer("x", fatal="ValueError: too long", failure_class=kind)
    with pytest.raises(VerlError, match="task t1 cannot be played: ValueError: too long") as raised:
        player([answer(), broken]).play(requests(2), 1.0)
    assert classify(raised.value) == kind


# --------------------------------------------------------------------------------------- samplers and training workers
class Scoring(Services):
    """The training workers' log-probs are those that were sampled, less `apart`."""

    def __init__(self, apart):
        super().__init__([])
        self.apart = apart

    def store(self, samples, order, partition, share=1):
        return samples

    def score(self, stored, source, entropy=False):
        return [torch.tensor(sample.logprobs) - self.apart for sample in stored]

    def entropies(self, stored):
        return [torch.ones(len(sample.response)) for sample in stored]


def settled(apart):
    """A trainer that has put rows of one episode beside the samplers' log-probs."""
    trainer = RemoteTrainer.__new__(RemoteTrainer)
    trainer.services, trainer.config = Scoring(apart), helpers.run_config("grpo", Path("nowhere"))
    played = Trajectory(0, 0, 0, "t", "kind", "do it")
    played.turns.append(Turn(PromptParts("a", "b", "c", "d"), "saw", [5, 6], [7, 8], [-1.0, -2.0], action="go"))
    trainer._settle([played])
    return trainer, played


def test_the_trainers_logprobs_take_the_place_of_the_samplers():
    trainer, played = settled(0.125)
    assert trainer.apart == (0.125, 0.125)
    assert played.turns[0].old_logprobs == [-1.125, -2.125]


@pytest.mark.parametrize("apart", [0.51, 11.0, float("nan")])
def test_samplers_that_hold_another_policy_stop_the_run(apart):
    with pytest.raises(SamplerGapError, match=r"step 0: .* nats per token .*verl\.max_sampler_gap=0\.5 allows less"):
        settled(apart)


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
