"""analyzer=openai: a language model behind any OpenAI-compatible endpoint writes the analyses, in the background.

Each trajectory is one question: from the cache if it was answered before, else from the endpoint. An unusable answer is
asked for once more, with what was wrong with it; then the analysis has failed. Trajectories of the same content within
a batch share one answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from methods.interface import Analysis, Trajectory
from methods.skills.analyzer import ANSWERS_VERSION, AnalyzerContext, AnalyzerFailure, Usage
from methods.skills.analyzers.answer import Answer, AnswerError, Limits, check_answer, read_answer
from methods.skills.analyzers.background import Background
from methods.skills.analyzers.cache import AnswerCache, cache_key
from methods.skills.analyzers.endpoint import Completion, Endpoint, EndpointError, UnusableResponseError
from methods.skills.analyzers.failures import NO_STEPS, Failed, Verdict, exceeds, settle, too_many
from methods.skills.analyzers.ledger import Ledger
from methods.skills.analyzers.prompt import PROMPT_VERSION, analysis_prompt, by_content, repair_prompt
from methods.skills.analyzers.recording import Recorder

_log = logging.getLogger(__name__)


class RemoteAnalyzer:
    """Raises ValueError for settings that cannot work. `analyze` may be called again while a batch is running."""

    def __init__(self, context: AnalyzerContext) -> None:
        config = context.config
        self._context = context
        self._ledger = Ledger(config.price_prompt, config.price_completion)
        self._endpoint = Endpoint(config, self._ledger)
        self._cache = AnswerCache(context.cache) if context.cache is not None else None
        self._recorder = Recorder(context.record) if context.record is not None else None
        self._background = Background("analyzer=openai", self._endpoint.close)
        self._who = f"analyzer=openai ({config.model} at {config.base_url})"

    def analyze(self, trajectories: Sequence[Trajectory]) -> Future[list[Analysis | None]]:
        """Returns at once. The future raises AnalyzerFailure if too many failed, and after `close`."""
        return self._background.submit(self._batch(list(trajectories)))

    def usage(self) -> Usage:
        return self._ledger.take()

    def close(self) -> None:
        self._background.close()

    # ------------------------------------------------------------------------------------------------ in the background
    async def _batch(self, trajectories: list[Trajectory]) -> list[Analysis | None]:
        started = time.monotonic()
        groups = by_content(trajectories)
        tasks = {asyncio.create_task(self._one(trajectories[g[0]], digest)): g for digest, g in groups.items()}
        verdicts: dict[int, Verdict] = {}
        reasons: list[str] = []
        try:
            # In the order of their ends, so that an outage stops the batch as soon as too many have failed.
            pending = set(tasks)
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    verdict = task.result()
                    verdicts |= dict.fromkeys(tasks[task], verdict)
                    if isinstance(verdict, Failed):
                        reasons += [verdict.reason] * len(tasks[task])
                    else:
                        self._ledger.add(cached=len(tasks[task]) - 1)
                if exceeds(len(reasons), len(trajectories), self._context.max_failure_rate):
                    raise too_many(reasons, len(trajectories), self._context.max_failure_rate, self._who)
            in_order = [verdicts[position] for position in range(len(trajectories))]
            return settle(in_order, self._context.max_failure_rate, self._who)
        except asyncio.CancelledError:
            raise AnalyzerFailure(f"{self._who}: closed before its analyses were done") from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._ledger.add(seconds=time.monotonic() - started)

    async def _one(self, trajectory: Trajectory, digest: str) -> Verdict:
        config, most = self._context.config, self._context.max_step_skills
        limits = Limits(len(trajectory.turns), most, config.skill_chars)
        if not trajectory.turns:
            return Failed(NO_STEPS)
        prompt = analysis_prompt(trajectory, most, config.observation_chars, config.skill_chars)
        key = cache_key(
            model=config.model,
            prompt=prompt,
            prompt_version=PROMPT_VERSION,
            answers_version=ANSWERS_VERSION,
            temperature=float(config.temperature),
            max_output_tokens=config.max_output_tokens,
            response_format=config.response_format,
            trajectory=digest,
        )
        answer: Answer | Failed | None = self._cached(key, limits)
        if answer is None:
            answer = await self._ask(prompt, limits)
            if isinstance(answer, Answer) and self._cache is not None:
                answer = check_answer(self._cache.put(key, answer.content, partial(_passes, limits)), limits)
        if self._recorder is not None:
            self._recorder.add(trajectory, answer.reason if isinstance(answer, Failed) else answer.content)
        return answer if isinstance(answer, Failed) else answer.analysis

    def _cached(self, key: str, limits: Limits) -> Answer | None:
        if self._cache is None:
            return None
        before = self._cache.corrupt
        content = self._cache.get(key)
        found = None if content is None else self._usable(content, limits)
        self._ledger.add(cached=int(found is not None), corrupt=self._cache.corrupt - before)
        return found

    def _usable(self, content: Mapping[str, Any], limits: Limits) -> Answer | None:
        """What is stored is judged again: files can be edited."""
        try:
            return check_answer(content, limits)
        except AnswerError as error:
            _log.warning("a cached answer is left aside: %s", error)
            self._ledger.add(corrupt=1)
            return None

    async def _ask(self, prompt: str, limits: Limits) -> Answer | Failed:
        """At most two questions: the second one says what was wrong with the answer to the first."""
        text: str | None = None
        try:
            try:
                completion = await self._endpoint.complete(prompt)
                text = completion.text
                return _read(completion, limits)
            except (AnswerError, UnusableResponseError) as error:
                self._ledger.add(repairs=1)
                # Without a text of the model's there is nothing that it could correct: the same question again.
                second = prompt if text is None else repair_prompt(prompt, str(error), text)
            return _read(await self._endpoint.complete(second), limits)
        except (AnswerError, UnusableResponseError) as error:
            return Failed(f"the second answer too is unusable: {error}")
        except EndpointError as error:
            return Failed(str(error))


def _passes(limits: Limits, content: Mapping[str, Any]) -> bool:
    try:
        check_answer(content, limits)
    except AnswerError:
        return False
    return True


def _read(completion: Completion, limits: Limits) -> Answer:
    try:
        return read_answer(completion.text, limits)
    except AnswerError as error:
        if completion.cut_off:
            raise AnswerError(f"{error}; it reached the limit of output tokens (analyzer.max_output_tokens)") from None
        raise
