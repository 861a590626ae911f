"""Writes the recorded batches of `data/`: what `Trainer.step` hands to OPID in the tiny environment, as arrays.

To change them: PYTHONPATH=tests python tests/methods/record_batches.py

Besides the fields of the batch a file holds what the step did with it: `used/advantages` [R, T], and
`used/new_logprobs` [R, T], log-probs of the same tokens after the step's update.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import tiny_env
import torch
from methods_helpers import DATA, LAYOUTS, Arrays, opid_config
from tiny_model import make_model, make_tokenizer
from torch import Tensor

from envs.interface import EnvConfig
from envs.pool import EnvPool, OrderedPool
from harness.config import RunConfig, TrainingConfig
from harness.training.batch import build_rows
from harness.training.chat import ChatFormat
from harness.training.loop import Trainer
from harness.training.network import Network
from methods import registry
from methods.interface import Batch, MethodConfig, MethodContext
from methods.skills import analyzer

CHANNELS = ("routed", "additive")
COEF, WEIGHT_STEP = 0.25, 2.0
WEIGHTS = {"episode": COEF, "step": COEF * WEIGHT_STEP}
CLIP = 0.1  # nats; shifts of this model reach about 0.5
SEED = 10  # of a step with solved and failed tasks in both layouts
AFTER_UPDATE = "used/new_logprobs"


def method_config(channels: str) -> MethodConfig:
    router = "additive" if channels == "additive" else "critical_first"
    return opid_config(router, COEF, weight_step=WEIGHT_STEP, clip=CLIP)


def record(layout: str, channels: str) -> Arrays:
    """One training step of OPID: its batch, its advantages, and the log-probs after it."""
    config = RunConfig(
        method=method_config(channels),
        env=EnvConfig(name="tiny", max_steps=4, history=2),
        training=TrainingConfig(
            steps=1,
            tasks_per_step=4,
            group_size=4,
            context=layout,
            max_prompt_tokens=200,
            max_response_tokens=3,
            lr=1e-2,  # large: the update has to reach the clipping range
            micro_batch_tokens=256,
        ),
        seed=SEED,
    )
    tokenizer = make_tokenizer()
    rules = analyzer.build("rules", analyzer.AnalyzerContext(config.method.skill.max_step_skills, tiny_env.hindsight))
    trainer = Trainer(
        config,
        Network(make_model(tokenizer, SEED)),
        ChatFormat(tokenizer),
        OrderedPool(EnvPool(tiny_env.make, config.env, 0)),
        tiny_env.prompter(config.env),
        tiny_env.load_panel(config.env, "train").tasks,
        registry.build(config.method, MethodContext(config.training.steps, config.seed, rules.analyze)),
    )
    seen: list[tuple[Batch, Tensor]] = []
    advantages = trainer.method.advantages

    def listening(step: int, batch: Batch) -> Tensor:
        seen.append((batch, advantages(step, batch)))
        return seen[-1][1]

    trainer.method.advantages = listening  # type: ignore[method-assign]
    _, played = trainer.step(1)
    batch, used = seen[0]
    after = trainer.scorer(trainer.network).batch_logprobs(build_rows(played, layout), batch)
    return {**to_arrays(batch), "used/advantages": used.numpy(), AFTER_UPDATE: after.numpy()}


def to_arrays(batch: Batch) -> Arrays:
    """The inverse of methods_helpers.to_batch."""
    arrays: Arrays = {}
    for name in (field.name for field in fields(batch)):
        value = getattr(batch, name)
        if isinstance(value, dict):
            arrays.update({f"{name}/{channel}": tensor.numpy() for channel, tensor in value.items()})
        elif isinstance(value, tuple):
            arrays[name] = np.array(value)
        else:
            arrays[name] = value.numpy() if isinstance(value, Tensor) else np.float64(value)
    return arrays


def load(layout: str, channels: str) -> Arrays:
    with np.load(DATA / f"{layout}_{channels}.npz") as recorded:
        return dict(recorded)


def main() -> None:
    torch.set_num_threads(1)
    DATA.mkdir(exist_ok=True)
    for layout in LAYOUTS:
        for channels in CHANNELS:
            np.savez_compressed(DATA / f"{layout}_{channels}.npz", **record(layout, channels))


if __name__ == "__main__":
    main()
