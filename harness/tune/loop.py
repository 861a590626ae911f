"""The loop of a search: asks for trials, starts their runs, stops those that the pruner gives up, tells the end.

Looks at the panel `validation` are told to the pruner seed by seed, in the order of the seeds, so that the n-th number
of every trial means the same: the mean of the final successes of the seeds before and of the look at this one.

A trial fails by what its settings did. Where a machine, a disk, an endpoint or a teacher that trials share is in the
way, the search ends instead, with its trials left as they are: the next one would meet the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from harness.actions_common import PreparationError
from harness.errors import ConfigError
from harness.files import RecordError
from harness.launch.job import BUDGET_USED
from harness.record import RunDirectory
from harness.stages import Cell
from harness.states import COMPLETE, FAILED, INTERRUPTED, PENDING
from harness.tune.objectives import SUCCESS, Measured, looks, measured
from harness.tune.study import ENDING, FINGERPRINTS, SEEDS, Asked, Study
from harness.tune.trials import Made, Trials

if TYPE_CHECKING:  # the pool brings the launcher with it
    from harness.tune.pool import Pool

IDLE_SECONDS = 1.0  # between two looks at a study that had no trial for us
RESTARTS = 3  # of a run that somebody else stopped
MACHINES = ("infra", "disk")  # classes of failures that no setting is to blame for


class NobodysFaultError(PreparationError):
    """Something that trials share is in the way: no trial's fault, and no trial is told as failed for it."""


@dataclass
class _Live:
    """A trial under way. ending: (state, reason) once it was decided that it does not go on."""

    study: Study
    asked: Asked
    made: Made
    ending: tuple[str, str] | None = None
    finished: dict[str, Measured] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)  # of spools, as far as they were read
    restarts: dict[str, int] = field(default_factory=dict)  # of runs that somebody else stopped
    steps: dict[str, tuple[int, int]] = field(default_factory=dict)  # how far runs were when they were last started

    def cell(self, name: str) -> Cell:
        return next(cell for cell in self.made.all if cell.fingerprint == name)


class Loop:
    """Sees every study through. runs: the folder of run directories; parallel: trials at a time of this command."""

    def __init__(
        self,
        studies: Sequence[Study],
        trials: Trials,
        pool: Pool,
        runs: Path,
        parallel: int,
        say: Callable[[str], None],
    ) -> None:
        self._studies, self._trials, self._pool = tuple(studies), trials, pool
        self._runs, self._parallel, self._say = runs, parallel, say
        self._live: list[_Live] = []
        self._next_ask = 0.0
        self._waits = False

    def run(self) -> bool:
        """Until every study has its trials, those of other commands included; False if the user stopped it first.

        Raises RecordError, ConfigError, PreparationError: what is under way is then left to the next command.
        """
        try:
            while True:
                busy = self._pool.tick()
                for live in list(self._live):
                    self._look(live)
                if self._pool.stopping:
                    if not busy:
                        return False
                elif self._fill() == 0 and not self._live:
                    return True
                time.sleep(self._pool.pause)
        finally:
            for live in self._live:
                live.asked.leave()

    # ------------------------------------------------------------------------------------------------- beginning
    def _fill(self) -> int:
        """Begin trials while there is room; returns how many are still to do, by us or by others."""
        if time.monotonic() < self._next_ask:
            return 1
        to_do = 0
        for study in self._studies:
            while len(self._live) < self._parallel and (asked := study.ask()) is not None:
                self._begin(study, asked)
            to_do += study.to_do()
        if len(self._live) < self._parallel:
            self._next_ask = time.monotonic() + IDLE_SECONDS
        if to_do and not self._live and not self._waits:
            self._waits = True
            holders = "; ".join(line for study in self._studies for line in study.held())
            self._say(f"another command works on the last {to_do} trial(s); waiting for it ({holders or 'it begins'})")
        return to_do

    def _begin(self, study: Study, asked: Asked) -> None:
        search = study.search
        try:
            made = self._trials.make(search.row, search.points, asked.params, f"trial {asked.number}")
        except ConfigError as error:
            asked.end("FAIL", f"its settings are refused: {error}")
            return
        asked.note(**{FINGERPRINTS: [cell.fingerprint for cell in made.cells]})
        live = _Live(study, asked, made, ending=asked.ending)
        self._live.append(live)
        for cell in made.all:
            self._start(live, cell.fingerprint)
        if live.ending is not None:  # the command that decided it did not see the runs end
            self._stop(live)

    def _start(self, live: _Live, fingerprint: str) -> None:
        cell = live.cell(fingerprint)
        run = RunDirectory.create(self._runs, cell.config, fingerprint, update=False)
        live.steps[fingerprint] = self._far(fingerprint)
        self._pool.add(run, cell, live.made.labels[fingerprint])

    def _far(self, fingerprint: str) -> tuple[int, int]:
        """Training steps and evaluations that a run has done."""
        state = RunDirectory(self._runs / fingerprint).state()
        return state.last_step, len(state.evaluations)

    # ------------------------------------------------------------------------------------------------- on the way
    def _look(self, live: _Live) -> None:
        every = {c.fingerprint: self._pool.outcome(c.fingerprint) for c in live.made.all}
        ends = {c.fingerprint: every[c.fingerprint] for c in live.made.cells}
        self._measure(live, [name for name, (state, _) in ends.items() if state == COMPLETE])
        if live.ending is None:
            self._judge(live, every)
        if live.ending is None:
            self._report(live)
        if any(state is None for state, _ in ends.values()):
            return
        if self._pool.stopping and any(state != COMPLETE for state, _ in ends.values()):
            return  # the next command goes on with it
        left = {name: why for name, (state, why) in every.items() if state in (INTERRUPTED, PENDING)}
        if live.ending is None and left:
            self._again(live, left)
            return
        self._end(live)

    def _judge(self, live: _Live, ends: Mapping[str, tuple[str | None, str]]) -> None:
        """Whether a run's failure is that of its trial. Raises NobodysFaultError where it is not."""
        teachers = {cell.fingerprint for cell in live.made.teachers}
        for name, (state, why) in ends.items():
            if state != FAILED:
                continue
            kind = RunDirectory(self._runs / name).state().failure_class or "infra"  # it could not be recorded
            shared = name in teachers and not self._trains_teachers(live)
            who = f"the teacher {live.made.labels[name]}, run {name}" if name in teachers else f"run {name}"
            if shared or kind in MACHINES or self._asks_in_vain(live, name, kind):
                self._nobodys(live, kind, f"{who} failed ({kind}): {why}")
            self._give_up(live, "FAIL", f"{who}: {state}: {why}")
            return
        stuck = [(name, why) for name, (state, why) in ends.items() if state == PENDING]
        if stuck and all(ends[name][0] == COMPLETE for name in teachers):
            self._nobodys(live, "", f"run {stuck[0][0]} cannot start: {stuck[0][1]}")

    def _trains_teachers(self, live: _Live) -> bool:
        """Whether teachers are trained with the trial's settings: all but those of `method` are theirs as well."""
        return any(not d.key.startswith("method.") for d in live.study.search.dimensions)

    def _asks_in_vain(self, live: _Live, name: str, kind: str) -> bool:
        """Whether a run failed for want of answers of an endpoint that no searched key is about."""
        searched = any(d.key.startswith("analyzer.") for d in live.study.search.dimensions)
        return kind == "analyzer" and live.cell(name).config.analyzer.name == "openai" and not searched

    def _nobodys(self, live: _Live, kind: str, what: str) -> NoReturn:
        again = "the same command" if self._pool.tries_again(kind) else "do=retry"
        raise NobodysFaultError(
            f"{live.study.search.place}, trial {live.asked.number}: {what}. No setting is to blame for that, so the "
            f"search ends and its trials stay as they are: put it right, then {again} goes on with them"
        )

    def _measure(self, live: _Live, complete: Sequence[str]) -> None:
        """Read what newly completed runs gave."""
        search = live.study.search
        names = list(dict.fromkeys([*(o.name for o in search.objectives), SUCCESS]))
        for name in complete:
            if name in live.finished:
                continue
            try:
                live.finished[name] = measured(self._runs / name, search.skills, names)
            except OSError as error:
                raise RecordError(f"what run {name} gave cannot be read: {error}") from error
            except ValueError as error:
                self._give_up(live, "FAIL", f"run {name}: {error}")
                return

    def _report(self, live: _Live) -> None:
        """Tell the study what is new, where looks are what it searches by; it says whether to go on."""
        search = live.study.search
        if [o.name for o in search.objectives] != [SUCCESS]:
            return
        finals: list[float] = []
        for index, cell in enumerate(live.made.cells):
            name = cell.fingerprint
            told = self._looks(live, name)
            if name in live.finished and index + 1 < len(live.made.cells):
                told = [*told, (search.steps, live.finished[name].values[SUCCESS])]
            for step, success in told:
                number = index * search.steps + step
                if live.asked.report(number, (sum(finals) + success) / (len(finals) + 1)):
                    self._give_up(live, "PRUNED", f"the pruner gave it up after step {step} of seed {cell.point.seed}")
                    return
            if name not in live.finished:
                return
            finals.append(live.finished[name].values[SUCCESS])

    def _looks(self, live: _Live, name: str) -> list[tuple[int, float]]:
        """Looks at a run, if its spool has grown; those told before are told again, which the study knows."""
        spool = self._runs / name / "spool.jsonl"
        size = spool.stat().st_size if spool.exists() else 0
        if size == live.sizes.get(name, 0):
            return []
        live.sizes[name] = size
        return looks(self._runs / name)

    def _give_up(self, live: _Live, state: str, reason: str) -> None:
        live.ending = (state, reason)
        live.asked.note(**{ENDING: [state, reason]})
        self._stop(live)

    def _stop(self, live: _Live) -> None:
        """Have what is still under way of a trial that does not go on end."""
        assert live.ending is not None
        state, reason = live.ending
        word = "pruned" if state == "PRUNED" else "its trial failed"
        told = f"{word}: trial {live.asked.number} of {live.study.search.name}: {reason}"
        for cell in live.made.cells:
            if self._pool.outcome(cell.fingerprint)[0] is None:
                self._pool.stop(cell.fingerprint, told)

    def _again(self, live: _Live, left: Mapping[str, str]) -> None:
        """Runs that were stopped go on from their checkpoints: a few times where somebody else stopped them, and as
        long as they get on where their jobs used up how often they may come back."""
        for name, why in left.items():
            if BUDGET_USED not in why or self._far(name) <= live.steps[name]:
                live.restarts[name] = live.restarts.get(name, 0) + 1
            if live.restarts.get(name, 0) > RESTARTS:
                live.ending = ("FAIL", f"run {name} was stopped {RESTARTS} times by somebody else: {why}")
                self._end(live)
                return
        for name in left:
            self._start(live, name)

    # ------------------------------------------------------------------------------------------------- the end
    def _end(self, live: _Live) -> None:
        """Every run has ended: tell how. What was to be pruned but completed first is complete."""
        search, asked = live.study.search, live.asked
        self._live.remove(live)
        self._next_ask = 0.0
        results = [live.finished.get(cell.fingerprint) for cell in live.made.cells]
        asked.note(
            **{
                SEEDS: [
                    {"seed": cell.point.seed, "episodes": result.episodes, "values": dict(result.values)}
                    for cell, result in zip(live.made.cells, results, strict=True)
                    if result is not None
                ]
            }
        )
        complete = [result for result in results if result is not None]
        if len(complete) == len(results) and (live.ending is None or live.ending[0] == "PRUNED"):
            means = [sum(r.values[o.name] for r in complete) / len(complete) for o in search.objectives]
            asked.complete(means)
            told = ", ".join(f"{o.name} {mean:.4g}" for o, mean in zip(search.objectives, means, strict=True))
            self._say(f"{search.place}, trial {asked.number}: {told}")
            return
        if live.ending is None:
            raise RecordError(f"trial {asked.number} of {search.name} ended without an outcome; its runs: {results}")
        asked.end(*live.ending)
        self._say(f"{search.place}, trial {asked.number}: {live.ending[0].lower()}: {live.ending[1]}")
