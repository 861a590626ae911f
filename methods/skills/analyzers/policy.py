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
from methods.skills.analyzers.failures import Failed, Verdict, settle
from methods.skills.analyzers.ledger import Ledger
from methods.skills.analyzers.prompt import analysis_prompt, by_content, repair_prompt
from methods.skills.analyzers.recording import Recorded, Recorder


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
        limits = [Limits(len(trajectory.turns), most, config.skill_chars) for trajectory in trajectories]
        prompts = [analysis_prompt(t, most, config.observation_chars, config.skill_chars) for t in trajectories]
        texts = self._ask(prompts)
        answers = [_read(text, limit) for text, limit in zip(texts, limits, strict=True)]
        wrong = {i: answer.reason for i, answer in enumerate(answers) if isinstance(answer, Failed)}
        self._ledger.add(repairs=len(wrong))
        second = self._ask([repair_prompt(prompts[i], reason, texts[i]) for i, reason in wrong.items()])
        for i, text in zip(wrong, second, strict=True):
            answers[i] = _read(text, limits[i])
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
        if isinstance(answer, Failed):
            reason = f"the policy's second answer too is unusable: {answer.reason}"
            recorded: Recorded = reason
            verdict: Verdict = Failed(reason)
        else:
            verdict, recorded = answer.analysis, answer.content
        if self._recorder is not None:
            self._recorder.add(trajectory, recorded)
        return verdict


def _read(text: str, limits: Limits) -> Answer | Failed:
    if limits.steps < 1:
        return Failed("a trajectory without steps cannot be analysed")
    try:
        return read_answer(text, limits)
    except AnswerError as error:
        return Failed(str(error))
