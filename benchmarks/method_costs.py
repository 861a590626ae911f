"""What a training step of each method costs: `python benchmarks/method_costs.py [--steps 3] [--methods grpo opid ...]`.

All methods train side by side in one process, step by step in turn, from the same initial policy on the same tasks
(scale=local, ALFWorld in the native engine), so that whatever else the machine does hits all alike. Columns, per
step: sequences scored under a teacher, response tokens scored, thousands of tokens in rollouts, for the teacher and in
the update, CPU seconds of each part, and the step's CPU seconds relative to GRPO's. A frozen teacher has the initial
weights here: another set of weights costs the same. The first step warms up and is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from harness.cells import run_config
from harness.compose import composer, package_files
from harness.config import RunConfig
from harness.parts import analysis_of, parts_of, trainer_of
from harness.training.loop import Trainer
from harness.training.network import Network
from methods.interface import Validation

BASE = "grpo"
TIMES = ("rollout", "env", "analyzer", "reference", "teacher", "update")
Metrics = dict[str, float]


def configs(names: Sequence[str], overrides: Sequence[str]) -> dict[str, RunConfig]:
    """Method file -> configuration, of those that train."""
    compose = composer()
    found = {name: compose.config([f"method={name}", "env.engine=native", *overrides])[0] for name in names}
    return {name: run_config(command) for name, command in found.items() if command.method.trains}


def made(config: RunConfig, stack: contextlib.ExitStack, folder: Path) -> Trainer:
    parts = stack.enter_context(parts_of(config))
    # Steps run to the end with a teacher, whatever its success.
    parts = replace(parts, validation=None)
    analysis = stack.enter_context(analysis_of(config, parts, folder))
    initial = copy.deepcopy(parts.network.model)

    def load() -> Network:
        return Network(copy.deepcopy(initial), config.runtime.device)

    trainer = trainer_of(config, parts, analysis, load, lambda: Validation(0.0, 1))
    if trainer.method.measures_teacher:
        trainer.method.teacher_measured(Validation(1.0, 1))
    return trainer


def mean(steps: Sequence[Metrics]) -> Metrics:
    return {name: sum(step.get(name, 0.0) for step in steps) / len(steps) for name in steps[0]}


def seconds(metrics: Mapping[str, float]) -> float:
    return sum(metrics[f"time/{name}_s"] for name in TIMES)


def table(measured: Mapping[str, Metrics]) -> str:
    base = measured[BASE]
    lines = [
        f"{'method':<26}{'rows':>6}{'scored':>8}{'kT roll':>9}{'kT teach':>9}{'kT upd':>8}"
        + "".join(f"{name[:7]:>9}" for name in TIMES)
        + f"{'CPU s':>9}{'/ ' + BASE:>8}"
    ]
    for name, metrics in measured.items():
        tokens = [metrics[f"tokens/{part}"] / 1000 for part in ("rollout", "teacher", "update")]
        lines.append(
            f"{name:<26}{metrics['cost/teacher_rows']:>6.0f}{metrics['cost/teacher_tokens_rescored']:>8.0f}"
            f"{tokens[0]:>9.1f}{tokens[1]:>9.1f}{tokens[2]:>8.1f}"
            + "".join(f"{metrics[f'time/{part}_s']:>9.3f}" for part in TIMES)
            + f"{seconds(metrics):>9.3f}{seconds(metrics) / seconds(base):>8.2f}"
        )
    return "\n".join(lines)


def measure(names: Sequence[str], steps: int, overrides: Sequence[str]) -> dict[str, Metrics]:
    """Method file -> mean metrics of `steps` training steps after the first. Holds BASE whether it was named or not."""
    torch.set_num_threads(1)
    chosen = configs([BASE, *(name for name in names if name != BASE)], [f"training.steps={steps + 1}", *overrides])
    found: dict[str, list[Metrics]] = {name: [] for name in chosen}
    with TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        trainers = {name: made(config, stack, Path(folder)) for name, config in chosen.items()}
        for step in range(1, steps + 2):
            turn = step % len(trainers)  # whoever is first reads the step's games for all
            for name in [*list(trainers)[turn:], *list(trainers)[:turn]]:
                found[name].append(trainers[name].step(step)[0])
    return {name: mean(steps_of[1:]) for name, steps_of in found.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3, help="counted training steps (default %(default)s)")
    parser.add_argument("--methods", nargs="*", default=list(package_files()["method"]), help="files in sweeps/method/")
    parser.add_argument("overrides", nargs="*", help="of the configuration, e.g. training.context=per_step (after --)")
    options = parser.parse_args(arguments)
    print(table(measure(options.methods, options.steps, options.overrides)))


if __name__ == "__main__":
    sys.exit(main())
