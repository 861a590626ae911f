"""Episodes of one event loop share a pool."""

from __future__ import annotations

import asyncio

import pytest

from envs.interface import EnvironmentFailure
from harness.training.verl.gateway import Gateway


class Pool:
    """Answers with what it was asked, and notes how many came together."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []
        self.broken = False

    def reset(self, tasks):
        self.calls.append(("reset", sorted(tasks)))
        return {slot: f"started {task}" for slot, task in tasks.items()}

    def step(self, actions):
        self.calls.append(("step", sorted(actions)))
        if self.broken:
            raise RuntimeError("the pool is closed")
        return {s: EnvironmentFailure("broke") if a == "break" else f"did {a}" for s, a in actions.items()}

    def close(self):
        self.calls.append(("close", []))


def test_requests_that_come_together_are_answered_together():
    pool = Pool()

    async def play():
        gateway = Gateway(pool)
        slots = [gateway.take() for _ in range(3)]
        assert sorted(slots) == [0, 1, 2]
        started = await asyncio.gather(*(gateway.reset(slot, f"task {slot}") for slot in slots))
        done = await asyncio.gather(*(gateway.step(slot, "break" if slot == 1 else "go") for slot in slots))
        gateway.release(1)
        assert gateway.take() == 1  # environments of idle slots are used again
        return started, done

    started, done = asyncio.run(play())
    assert started == ["started task 0", "started task 1", "started task 2"]
    assert isinstance(done[1], EnvironmentFailure) and done[0] == done[2] == "did go"
    assert pool.calls == [("reset", [0, 1, 2]), ("step", [0, 1, 2])]


def test_a_broken_pool_is_everybodys_error():
    pool = Pool()
    pool.broken = True

    async def play():
        gateway = Gateway(pool)
        return await asyncio.gather(gateway.step(0, "go"), gateway.step(1, "go"), return_exceptions=True)

    assert [str(error) for error in asyncio.run(play())] == ["the pool is closed"] * 2


def test_it_goes_on_after_an_error():
    pool = Pool()

    async def play():
        gateway = Gateway(pool)
        pool.broken = True
        with pytest.raises(RuntimeError):
            await gateway.step(0, "go")
        pool.broken = False
        return await gateway.step(0, "go")

    assert asyncio.run(play()) == "did go"
