"""Environments behind the agent loops of one process: every episode asks for itself, the pool is stepped for all.

The pool (envs.pool) is not made for several callers at once, and it is fastest when it steps many environments
together. So requests that come while it is busy wait, and go to it together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from envs.interface import EnvironmentFailure, Observation, StepResult, Task
from envs.pool import EnvPool


class Gateway:
    """One pool for all episodes of an event loop."""

    def __init__(self, pool: EnvPool) -> None:
        self._pool = pool
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="environments")
        self._waiting: dict[str, dict[int, tuple[Any, asyncio.Future[Any]]]] = {"reset": {}, "step": {}}
        self._busy: asyncio.Task[None] | None = None
        self._free: list[int] = []
        self._slots = 0

    def take(self) -> int:
        """A slot for one episode; give it back with `release`."""
        if self._free:
            return self._free.pop()
        self._slots += 1
        return self._slots - 1

    def release(self, slot: int) -> None:
        self._free.append(slot)

    async def reset(self, slot: int, task: Task) -> Observation | EnvironmentFailure:
        answer: Observation | EnvironmentFailure = await self._ask("reset", slot, task)
        return answer

    async def step(self, slot: int, action: str) -> StepResult | EnvironmentFailure:
        answer: StepResult | EnvironmentFailure = await self._ask("step", slot, action)
        return answer

    async def _ask(self, kind: str, slot: int, payload: Any) -> Any:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._waiting[kind][slot] = (payload, answer)
        if self._busy is None or self._busy.done():
            self._busy = loop.create_task(self._serve())
        return await answer

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)  # whoever is ready now comes along
        calls: Mapping[str, Callable[[Any], Mapping[int, Any]]] = {"reset": self._pool.reset, "step": self._pool.step}
        while any(self._waiting.values()):
            for kind, call in calls.items():
                asked, self._waiting[kind] = self._waiting[kind], {}
                if not asked:
                    continue
                try:
                    payload = {slot: given for slot, (given, _) in asked.items()}
                    answers = await loop.run_in_executor(self._thread, call, payload)
                except Exception as error:  # the pool itself broke: every episode that waits must hear of it
                    for _, answer in asked.values():
                        if not answer.done():
                            answer.set_exception(error)
                    continue
                for slot, (_, answer) in asked.items():
                    if not answer.done():
                        answer.set_result(answers[slot])

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        self._pool.close()
