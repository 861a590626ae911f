"""A search that is planned from a small sweep, for tests in this folder and the processes that they start."""

from __future__ import annotations

from pathlib import Path

from harness.commandline import CommandLine, parse
from harness.compose import Composer
from harness.config import TuneConfig
from harness.plan import Plan, build_plan
from harness.tune.searches import Search, searches_of
from harness.tune.trials import Trials

HERE = Path(__file__).parent
ENTRY = "fake_trials:train"


MINI = """
rows: [{method: opid}, {method: gigpo}, {method: grpo_opd}, {method: vanilla}]
axes: {env: [alfworld], backbone: [tiny-s], fraction: [1.0], seed: [0]}
set: {evaluation.panels: [validation], evaluation.validate_every: 1, training.steps: 3}
tune:
  trials: 4
  startup: 1
  space: {training.lr: {low: 1.0e-4, high: 1.0e-3, log: true}}
  rows:
    opid: {method.coef: {low: 0.01, high: 1.0, log: true}}
    gigpo: {method.advantage.gamma: {choices: [0.9, 0.95]}}
"""


class Asking:
    """A command line of a search, planned."""

    def __init__(self, hydra: Composer, *arguments: str) -> None:
        self.composer = hydra
        self.command: CommandLine = parse(["sweep=mini", *arguments], hydra.groups())
        self.plan: Plan = build_plan(hydra, self.command)
        assert self.plan.command.sweep is not None and self.plan.command.sweep.tune is not None
        self.tune: TuneConfig = self.plan.command.sweep.tune
        self.trials = Trials(hydra, self.command, self.plan)

    def searches(self) -> tuple[Search, ...]:
        return searches_of(self.plan, self.tune, self.command, self.trials)
