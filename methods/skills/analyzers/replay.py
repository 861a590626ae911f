"""analyzer=replay: answers that were recorded earlier. No model, no network; for tests and for repeating a run."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from methods.interface import Analysis, Trajectory
from methods.skills.analyzer import AnalyzerContext, Usage, finished
from methods.skills.analyzers.answer import AnswerError, Limits, check_answer
from methods.skills.analyzers.failures import Failed, Verdict, settle
from methods.skills.analyzers.prompt import trajectory_digest
from methods.skills.analyzers.recording import read_recording
from methods.skills.analyzers.settings import check_replay


class ReplayAnalyzer:
    """Looks trajectories up by content, then by task and sample; one that is in neither way recorded has failed."""

    def __init__(self, context: AnalyzerContext) -> None:
        check_replay(context.config)
        self._context = context
        self._path = Path(str(context.config.answers))
        self._recorded = read_recording(self._path)

    def analyze(self, trajectories: Sequence[Trajectory]) -> Future[list[Analysis | None]]:
        """Raises AnalyzerFailure, naming what is missing, if too many are."""
        verdicts = [self._one(trajectory) for trajectory in trajectories]
        return finished(settle(verdicts, self._context.max_failure_rate, "analyzer=replay"))

    def usage(self) -> Usage:
        return Usage()

    def close(self) -> None:
        pass

    def _one(self, trajectory: Trajectory) -> Verdict:
        digest = trajectory_digest(trajectory)
        recorded = self._recorded.get(digest)
        if recorded is None:
            recorded = self._recorded.get((trajectory.task_id, trajectory.sample))
        what = f"task {trajectory.task_id!r}, sample {trajectory.sample} (trajectory {digest[:12]}...)"
        if recorded is None:
            return Failed(f"{self._path} has no answer for {what}")
        if isinstance(recorded, str):
            return Failed(f"{recorded}: {what}")
        config = self._context.config
        limits = Limits(len(trajectory.turns), self._context.max_step_skills, config.skill_chars)
        try:
            return check_answer(recorded, limits).analysis
        except AnswerError as error:
            return Failed(f"the answer for {what} in {self._path} is unusable: {error}")
