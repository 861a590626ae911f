"""Optuna's side of a search: a study in a journal file that any number of commands may share.

Trials are asked for under a lock, so that two commands never make more of them than were wanted, and each belongs to
the process that holds its claim file (harness.claim). A trial whose process died is taken over by the next command,
with the parameters and the runs that it has. A failed trial that is to be done once more (do=retry) gets a successor
with the same parameters, which counts in its place.

Optuna is imported when a study is opened, never with this module.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import claim as claims
from harness.claim import Claim
from harness.config import TuneConfig
from harness.locks import file_lock
from harness.tune.searches import Search
from harness.tune.space import Value

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

FINGERPRINTS, REASON, SEEDS, ENDING = "fingerprints", "reason", "seeds", "ending"
RETRIES = "retries"  # number of the failed trial in whose place a trial is
ENDED = ("COMPLETE", "PRUNED", "FAIL")


@dataclass(frozen=True)
class Entry:
    """A trial as it stands in the journal.

    state: WAITING | RUNNING | COMPLETE | PRUNED | FAIL; values: objective -> number, if complete; looks: step of the
    search -> success on the way; fingerprints: of its runs, one per seed; reason: why it failed or was stopped;
    seeds: one {seed, episodes, values} per finished run; seconds: from asking to telling; retried: it failed, and
    another trial is in its place
    """

    number: int
    state: str
    params: Mapping[str, Value]
    values: Mapping[str, float]
    looks: Mapping[int, float]
    fingerprints: tuple[str, ...]
    reason: str
    seeds: tuple[Mapping[str, Any], ...]
    seconds: float | None
    retried: bool = False


class Asked:
    """A trial that this process works on."""

    def __init__(self, study: Study, handle: optuna.Trial, params: Mapping[str, Value], claim: Claim) -> None:
        self._study, self._handle, self._claim = study, handle, claim
        self.number: int = handle.number
        self.params = params
        self.reported = dict(study.frozen(self.number).intermediate_values)

    @property
    def ending(self) -> tuple[str, str] | None:
        """(state, reason) if it was decided that the trial does not go on, perhaps by a command that did not see its
        runs end."""
        noted = self._study.frozen(self.number).user_attrs.get(ENDING)
        return None if noted is None else (str(noted[0]), str(noted[1]))

    def note(self, **attributes: Any) -> None:
        """Keep something with the trial; the last word counts. Not after `end`."""
        for name, content in attributes.items():
            self._handle.set_user_attr(name, content)

    def report(self, step: int, success: float) -> bool:
        """Tell the pruner of a look on the way; whether it would stop the trial here. A step is told once."""
        if step in self.reported:
            return False
        self.reported[step] = success
        self._handle.report(success, step)
        return bool(self._handle.should_prune())

    def complete(self, values: Sequence[float]) -> None:
        self._study.tell(self.number, values=list(values))
        self._claim.release()

    def end(self, state: str, reason: str) -> None:
        """state: FAIL | PRUNED."""
        self.note(**{REASON: reason})
        self._study.tell(self.number, state=state)
        self._claim.release()

    def leave(self) -> None:
        """Give the trial back as it is: the next command takes it over."""
        self._claim.release()


class Study:
    """One search's study. folder: where its journal lies; made by the first who opens it for writing."""

    def __init__(self, search: Search, tune: TuneConfig, folder: Path) -> None:
        self.search, self.tune = search, tune
        self.journal = folder / f"{search.name}.journal"
        self._opened: optuna.Study | None = None

    # ------------------------------------------------------------------------------------------------- the journal
    def exists(self) -> bool:
        return self.journal.exists() and self.journal.stat().st_size > 0

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        with file_lock(self.journal.with_suffix(".lock")):
            yield

    def open(self) -> optuna.Study:
        """The study, made if missing. Raises RecordError if the folder cannot be written."""
        if self._opened is None:
            import optuna
            from optuna.storages import JournalStorage

            from harness.tune.journal import Journal

            optuna.logging.set_verbosity(optuna.logging.WARNING)
            with self._lock():
                storage = JournalStorage(Journal(self.journal))
                self._opened = optuna.create_study(
                    study_name=self.search.name,
                    storage=storage,
                    directions=_directions(self.search),
                    sampler=_sampler(self.tune, 0),
                    pruner=_pruner(self.tune),
                    load_if_exists=True,
                )
                if not self._opened.get_trials(deepcopy=False) and self.search.start is not None:
                    # The settings as they are come first: what is found is then never worse than those.
                    self._opened.enqueue_trial(dict(self.search.start))
        return self._opened

    # ------------------------------------------------------------------------------------------------- asking, telling
    def ask(self) -> Asked | None:
        """A trial to work on: one that nobody works on any more, else a new one; None if there is none to be had."""
        study = self.open()
        with self._lock():
            trials = study.get_trials(deepcopy=False)
            for frozen in trials:
                if frozen.state.name == "RUNNING" and (claim := claims.acquire(self._claim_path(frozen.number))):
                    import optuna

                    return self._asked(optuna.Trial(study, frozen._trial_id), claim)
            gone = _retried(trials)
            if sum(t.state.name != "WAITING" and t.number not in gone for t in trials) >= self.tune.trials:
                return None
            study.sampler = _sampler(self.tune, len(trials))
            handle = study.ask()
            claim = claims.acquire(self._claim_path(handle.number))
            assert claim is not None  # a number is given once, and we hold the lock
            return self._asked(handle, claim)

    def retry(self) -> int:
        """Have every failed trial done once more, with its parameters; returns how many."""
        study = self.open()
        with self._lock():
            trials = study.get_trials(deepcopy=False)
            gone = _retried(trials)
            failed = [t for t in trials if t.state.name == "FAIL" and t.number not in gone]
            for frozen in failed:
                study.enqueue_trial(dict(frozen.params), user_attrs={RETRIES: frozen.number})
        return len(failed)

    def held(self) -> list[str]:
        """Who works on the trials that are under way, with the way on where nobody can tell."""
        under_way = (t for t in self.open().get_trials(deepcopy=False) if t.state.name == "RUNNING")
        looks = ((t.number, self._claim_path(t.number)) for t in under_way)
        return [f"trial {number}: {claims.told(path, claims.inspect(path))}" for number, path in looks]

    def _asked(self, handle: optuna.Trial, claim: Claim) -> Asked:
        params = {d.key: d.suggest(handle) for d in self.search.dimensions}
        return Asked(self, handle, params, claim)

    def _claim_path(self, number: int) -> Path:
        return self.journal.with_suffix(f".trial-{number}.claim")

    def tell(self, number: int, values: list[float] | None = None, state: str | None = None) -> None:
        from optuna.trial import TrialState

        self.open().tell(number, values=values, state=None if state is None else TrialState[state])

    # ------------------------------------------------------------------------------------------------- reading
    def frozen(self, number: int) -> FrozenTrial:
        return self.open().get_trials(deepcopy=False)[number]

    def to_do(self) -> int:
        """Trials that have not ended yet, those of others included."""
        trials = self.open().get_trials(deepcopy=False)
        gone = _retried(trials)
        ended = sum(t.state.is_finished() and t.number not in gone for t in trials)
        return max(0, self.tune.trials - ended)

    def entries(self) -> list[Entry]:
        """Every trial that was begun, by number; none if nobody opened the study yet. Only reads if so."""
        if self._opened is None and not self.exists():
            return []
        names = [o.name for o in self.search.objectives]
        trials = self.open().get_trials(deepcopy=False)
        gone = _retried(trials)
        return [
            Entry(
                number=t.number,
                state=t.state.name,
                params={d.key: t.params[d.key] for d in self.search.dimensions if d.key in t.params},
                values=dict(zip(names, t.values, strict=True)) if t.state.name == "COMPLETE" else {},
                looks=dict(t.intermediate_values),
                fingerprints=tuple(t.user_attrs.get(FINGERPRINTS, ())),
                reason=t.user_attrs.get(REASON, ""),
                seeds=tuple(t.user_attrs.get(SEEDS, ())),
                seconds=t.duration.total_seconds() if t.duration is not None else None,
                retried=t.number in gone,
            )
            for t in trials
            if t.state.name != "WAITING"
        ]

    def best(self) -> list[int]:
        """Numbers of the best trials: one, or those that no other beats in every objective."""
        if not any(entry.state == "COMPLETE" for entry in self.entries()):
            return []
        return sorted(t.number for t in self.open().best_trials[: None if len(self.search.objectives) > 1 else 1])

    def importances(self) -> dict[str, float] | str:
        """Share of each key in what the first objective varies by (PED-ANOVA), or why there is no such number."""
        complete = [e for e in self.entries() if e.state == "COMPLETE"]
        if len(complete) < 4 or len({tuple(e.values.values()) for e in complete}) < 2:
            return f"not computed: it takes four complete trials that differ, there are {len(complete)}"
        import optuna

        names = [o.name for o in self.search.objectives]

        def first(trial: FrozenTrial) -> float:
            return float(trial.values[0])

        try:
            found = optuna.importance.get_param_importances(self.open(), target=first if len(names) > 1 else None)
        except (ValueError, RuntimeError) as error:
            return f"not computed: {error}"
        return {key: float(share) for key, share in found.items()}


def _retried(trials: Sequence[FrozenTrial]) -> set[int]:
    """Numbers of the trials in whose place another one is."""
    return {int(t.user_attrs[RETRIES]) for t in trials if RETRIES in t.user_attrs}


def _directions(search: Search) -> Any:
    return [o.optuna for o in search.objectives]


def _sampler(tune: TuneConfig, asked: int) -> Any:
    """The sampler for the next trial. Its seed depends on how many were asked for, so that commands which share a study
    do not draw the same, and one command alone draws the same every time."""
    import numpy as np
    from optuna import samplers
    from optuna.exceptions import ExperimentalWarning

    seed = int(np.random.SeedSequence([tune.sampler_seed, asked]).generate_state(1)[0])
    if tune.sampler == "random":
        return samplers.RandomSampler(seed=seed)
    if tune.sampler == "qmc":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # our range of versions is narrow
            return samplers.QMCSampler(seed=tune.sampler_seed, scramble=True, warn_independent_sampling=False)
    if tune.sampler == "nsgaii":
        return samplers.NSGAIISampler(seed=seed)
    return samplers.TPESampler(seed=seed, n_startup_trials=tune.startup, constant_liar=True)


def _pruner(tune: TuneConfig) -> Any:
    from optuna import pruners

    if tune.pruner == "median":
        return pruners.MedianPruner(n_startup_trials=tune.startup, n_warmup_steps=0)
    if tune.pruner == "halving":
        return pruners.SuccessiveHalvingPruner()
    return pruners.NopPruner()
