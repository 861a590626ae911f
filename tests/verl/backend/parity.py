"""One recorded batch through the local engine and through verl's workers, for every method file: what differs.

As a program: `python parity.py FOLDER OUT.json METHOD...`; one process for all methods, because verl takes ten seconds
to import. OUT: "<method>/<context>" -> largest absolute differences of advantages, losses, gradients and more.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1]


def main(arguments: Sequence[str]) -> None:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    os.environ |= {
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_USE_EXTERNAL_MODULES": "harness.training.verl.cpu",
        **{"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
    }
    sys.path[:0] = [str(FOLDER), str(FOLDER / "backend"), str(FOLDER.parent)]
    import torch

    torch.set_num_threads(1)
    folder, out, *methods = arguments
    found = _compare_all(Path(folder), methods)
    Path(out).write_text(json.dumps(found, indent=1))


def _compare_all(folder: Path, methods: Sequence[str]) -> dict[str, dict[str, float]]:
    import verl_helpers as helpers
    from services import InProcessServices

    from harness.training.verl.config import compose

    policy, teacher = helpers.save_backbone(folder / "policy"), helpers.save_backbone(folder / "teacher", seed=1)
    first = helpers.run_config("grpo", policy, kl_coef=0.01)
    # Another model than the policy as the reference: at the first step of a run the KL term would be 0.
    services = InProcessServices(compose(first, folder), reference=teacher)
    services.eos = helpers.tokenizer().eos_token_id
    initial = services.weights()
    found = {}
    for method in methods:
        for context in ("per_step", "growing"):
            # Two mini-batches and both optional terms in one case each; one mini-batch makes gradients comparable.
            extra = {"kl_coef": 0.01, "entropy_coef": 0.001} if context == "per_step" else {}
            config = helpers.run_config(method, policy, context, grad_clip=1e9, group_size=4, **extra)
            services.set_weights(initial)
            found[f"{method}/{context}"] = _compare(config, folder, teacher, services)
            print(method, context, found[f"{method}/{context}"], flush=True)
    return found


def _compare(config: Any, folder: Path, teacher: Path, services: Any) -> dict[str, float]:
    from harness.training.verl.parts import RemoteNetwork, RemoteTrainer
    from methods import registry as methods_registry
    from methods.interface import MethodContext, Validation

    with _local(config, folder, teacher) as (local, analysis, parts):
        played, _ = local.sampler.play(local.requests(1), config.training.temperature)
        for i, trajectory in enumerate(played):  # a random policy never succeeds: without rewards nothing is compared
            trajectory.turns[-1].reward = float(i % 3 == 0)
            trajectory.success = i % 3 == 0
        local.sampler = _Recorded(played)
        skills = parts.skills
        analyze = _both_skills if analysis.analyzer is not None else None
        local.method.context = dataclasses.replace(local.method.context, analyze=analyze)
        context = MethodContext(
            local.planned,
            config.seed,
            analyze,
            skills.of_trajectory if skills is not None else None,
        )
        network = RemoteNetwork(1024)
        extras = dataclasses.replace(local.extras, reference=network if config.training.kl_coef else None)
        remote = RemoteTrainer(
            services,
            teacher if config.method.teacher.weights == "frozen" else None,
            config,
            network,
            parts.chat,
            parts.pool,
            parts.prompter,
            parts.train.tasks,
            methods_registry.build(config.method, context),
            extras,
        )
        remote.sampler = _Recorded(played)
        for trainer in (local, remote):
            if trainer.method.measures_teacher:
                trainer.method.teacher_measured(Validation(0.5, 4))
        seen, wanted = _noting(local), _noting(remote)
        gradients: dict[str, Any] = {}
        step = local.optimizer.step

        def noting(*given: Any, **named: Any) -> Any:
            gradients.update({n: p.grad.clone() for n, p in local.network.model.named_parameters()})
            return step(*given, **named)

        local.optimizer.step = noting
        ours, _ = local.step(1)
        theirs, _ = remote.step(1)
        return {
            "advantages": _largest(seen["data"].advantages, wanted["data"].advantages),
            "teacher": max(
                [0.0]
                + [
                    _largest(seen["data"].batch.teacher[c], wanted["data"].batch.teacher[c])
                    for c in seen["data"].batch.teacher
                ]
            ),
            "loss": abs(ours["train/loss"] - theirs["train/loss"]),
            "gradients": max(_largest(gradients[n], services.gradients[n]) for n in gradients),
            "gradient": max(float(g.abs().max()) for g in gradients.values()),
            "entropy": abs(ours["train/entropy"] - theirs["train/entropy"]),
            "kl_reference": abs(ours.get("train/kl_reference", 0.0) - theirs.get("train/kl_reference", 0.0)),
            "reference": theirs.get("train/kl_reference", 0.0),
            "method": max(
                [0.0] + [abs(ours[n] - theirs[n]) for n in ours if n.startswith("method/") and ours[n] == ours[n]]
            ),
            "names": float(len(set(ours) ^ set(theirs) - {"train/sampler_gap", "train/sampler_gap_max"})),
            "channels": float(len(seen["data"].batch.teacher)),
        }


def _both_skills(trajectories: Sequence[Any]) -> Any:
    """An analysis with skills of both kinds; the rules find no step skill in what a random policy does."""
    from concurrent.futures import Future

    from methods.interface import Analysis

    answer: Future[Any] = Future()
    answer.set_result([Analysis("find candle, take candle", {1: "open cabinet 1"}) for _ in trajectories])
    return answer


@contextlib.contextmanager
def _local(config: Any, folder: Path, teacher: Path) -> Iterator[Any]:
    from transformers import AutoModelForCausalLM

    from harness.parts import analysis_of, parts_of, trainer_of
    from harness.training.network import Network
    from methods.interface import Validation

    def load() -> Network:
        return Network(AutoModelForCausalLM.from_pretrained(teacher, dtype="float32"))

    with parts_of(config) as parts, analysis_of(config, parts, folder / "runs" / "x") as analysis:
        trainer = trainer_of(config, parts, analysis, load, lambda: Validation(0.5, 4))
        if trainer.reference_scorer is not None:
            trainer.reference_scorer = trainer.scorer(load())
        yield trainer, analysis, parts


class _Recorded:
    """A sampler that always plays the same."""

    def __init__(self, played: Sequence[Any]) -> None:
        self.played = played

    def play(self, requests: Sequence[Any], temperature: float) -> Any:
        from harness.training.rollout import RolloutStats

        return copy.deepcopy(list(self.played)), RolloutStats()


def _noting(trainer: Any) -> dict[str, Any]:
    """What the trainer's updater is given."""
    kept: dict[str, Any] = {}
    update = trainer.updater.update

    def noting(data: Any) -> Any:
        kept["data"] = data
        return update(data)

    trainer.updater.update = noting
    return kept


def _largest(first: Any, second: Any) -> float:
    return float((first - second).abs().max())


if __name__ == "__main__":
    main(sys.argv[1:])
