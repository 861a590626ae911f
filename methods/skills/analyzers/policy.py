"""analyzer=policy: the policy model itself writes the analysis, with the request and checks of analyzer=openai.

It works on the caller's thread: the policy's weights are the engine's, and sampling with them cannot overlap scoring.
Small models do not write JSON; then every analysis fails and the run stops saying so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future

from methods.interface import Analysis, Trajectory
from methods.skills.analyzer import AnalyzerContext, Usage, finished
from methods.skills.analyzers.answer import Answer, AnswerError, Limits, read_answer
from methods.skills.analyzers.failures import NO_STEPS, Failed, Verdict, settle
from methods.skills.analyzers.ledger import Ledger
from methods.skills.analyzers.prompt import analysis_prompt, by_content, repair_prompt
from methods.skills.analyzers.recording import Recorder


class PolicyAnalyzer:
    """All requests of a batch are one call of `generate`, and all second requests another. Tokens are the engine's to
    count; `calls` counts messages."""

    def __init__(self, context: AnalyzerContext) -> None:
        if context.generate is None:
            raise ValueError(
                "analyzer=policy needs an engine that lets the policy answer messages (capability generate), this one "
                "does not; choose another analyzer or engine"
            )
        self._context, self._generate = context, context.generate
        self._ledger = Ledger()
        self._recorder = Recorder(context.record) if context.record is not None else None

    def analyze(self, trajectories: Sequence[Trajectory]) -> Future[list[Analysis | None]]:
        """Raises AnalyzerFailure if too many failed. Errors of the engine are not caught."""
        started = time.monotonic()
        groups = by_content(trajectories)
        answers = self._answers([trajectories[positions[0]] for positions in groups.values()])
        verdicts: dict[int, Verdict] = {}
        for positions, answer in zip(groups.values(), answers, strict=True):
            verdicts |= dict.fromkeys(positions, self._record(trajectories[positions[0]], answer))
            self._ledger.add(cached=0 if isinstance(answer, Failed) else len(positions) - 1)
        self._ledger.add(seconds=time.monotonic() - started)
        in_order = [verdicts[position] for position in range(len(trajectories))]
        return finished(settle(in_order, self._context.max_failure_rate, "analyzer=policy"))

    def usage(self) -> Usage:
        return self._ledger.take()

    def close(self) -> None:
        pass

    def _answers(self, trajectories: Sequence[Trajectory]) -> list[Answer | Failed]:
        config, most = self._context.config, self._context.max_step_skills
        answers: list[Answer | Failed] = [Failed(NO_STEPS)] * len(trajectories)
        prompts = {
            number: analysis_prompt(trajectory, most, config.observation_chars, config.skill_chars)
            for number, trajectory in enumerate(trajectories)
            if trajectory.turns
        }
        for repairing in (False, True):
            self._ledger.add(repairs=len(prompts) if repairing else 0)
            wrong: dict[int, str] = {}
            for number, text in zip(prompts, self._ask(list(prompts.values())), strict=True):
                limits = Limits(len(trajectories[number].turns), most, config.skill_chars)
                try:
                    answers[number] = read_answer(text, limits)
                except AnswerError as error:
                    answers[number] = Failed(f"the policy's second answer too is unusable: {error}")
                    wrong[number] = repair_prompt(prompts[number], str(error), text)
            prompts = wrong
        return answers

    def _ask(self, prompts: list[str]) -> list[str]:
        if not prompts:
            return []
        self._ledger.add(calls=len(prompts))
        texts = self._generate(prompts)
        if len(texts) != len(prompts):
            raise ValueError(f"the engine gave {len(texts)} responses to {len(prompts)} messages of the analyzer")
        return texts

    def _record(self, trajectory: Trajectory, answer: Answer | Failed) -> Verdict:
        if self._recorder is not None:
            self._recorder.add(trajectory, answer.reason if isinstance(answer, Failed) else answer.content)
        return answer if isinstance(answer, Failed) else answer.analysis
