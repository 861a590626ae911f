"""Many environments stepped in lock-step, in this process or in worker processes, with the same results either way.

A slot is a running episode. Slots that play the same task go to the same worker, where they share what the environment
keeps per task. What breaks in one environment is reported for that slot only; a worker that dies takes its own slots
with it, and is replaced.
"""

from __future__ import annotations

import logging
import signal
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, TypeVar, cast

from envs.interface import EnvConfig, Environment, EnvironmentFailure, Observation, StepResult, Task

log = logging.getLogger(__name__)

ANSWER_SECONDS = 600.0  # a worker that is silent for longer is taken for hung; what environments wait for must be less

Make = Callable[[EnvConfig], Environment]
T = TypeVar("T")


class _Bench:
    """Environments living in one process. Idle ones are reused, so memory does not grow with the number of resets."""

    def __init__(self, make: Make, config: EnvConfig) -> None:
        self._make, self._config = make, config
        self._running: dict[int, tuple[Environment, str]] = {}  # slot -> environment, content hash of its task
        self._idle: list[tuple[Environment, str]] = []

    def reset(self, tasks: Mapping[int, Task]) -> dict[int, Observation | EnvironmentFailure]:
        self.release(list(tasks))
        answers: dict[int, Observation | EnvironmentFailure] = {}
        for slot, task in tasks.items():
            try:
                self._running[slot] = (self._take(task), task.content_hash)
                answers[slot] = self._running[slot][0].reset(task)
            except Exception as error:
                answers[slot] = self._drop(slot, error)
        return answers

    def step(self, actions: Mapping[int, str]) -> dict[int, StepResult | EnvironmentFailure]:
        answers: dict[int, StepResult | EnvironmentFailure] = {}
        self._prepare(actions)
        for slot, action in actions.items():
            try:
                answers[slot] = self._running[slot][0].step(action)
            except Exception as error:
                answers[slot] = self._drop(slot, error)
        return answers

    def _prepare(self, actions: Mapping[int, str]) -> None:
        """Let environments that fetch things (a search engine's passages) fetch for all slots at once."""
        present = [(self._running[slot][0], action) for slot, action in actions.items() if slot in self._running]
        prepare = getattr(type(present[0][0]), "prepare", None) if present else None
        if prepare is None:
            return
        try:
            prepare([environment for environment, _ in present], [action for _, action in present])
        except Exception as error:  # whoever needs it fetches for itself, and fails for itself
            log.warning("fetching for %d slots at once failed: %s: %s", len(present), type(error).__name__, error)

    def release(self, slots: Sequence[int]) -> None:
        """The slots' environments may serve others."""
        self._idle += [self._running.pop(slot) for slot in slots if slot in self._running]

    def close(self) -> None:
        self.release(list(self._running))
        for environment, _ in self._idle:
            _close(environment)
        self._idle.clear()

    def _take(self, task: Task) -> Environment:
        """An idle environment, by preference one that played the task last."""
        for index in range(len(self._idle) - 1, -1, -1):
            if self._idle[index][1] == task.content_hash:
                return self._idle.pop(index)[0]
        return self._idle.pop()[0] if self._idle else self._make(self._config)

    def _drop(self, slot: int, error: Exception) -> EnvironmentFailure:
        """Nobody knows in what state a failed environment is: it is not used again."""
        log.warning("environment of slot %d failed", slot, exc_info=error)
        if slot in self._running:
            _close(self._running.pop(slot)[0])
        if isinstance(error, EnvironmentFailure):
            return error
        return EnvironmentFailure(f"slot {slot}: {type(error).__name__}: {error}")


def _close(environment: Environment) -> None:
    try:
        environment.close()
    except Exception as error:
        log.warning("an environment did not close: %s: %s", type(error).__name__, error)


def _serve(connection: Connection, make: Make, config: EnvConfig) -> None:
    """A worker's life: answer requests until told to stop or until the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides what to do
    bench = _Bench(make, config)
    while True:
        try:
            request, payload = connection.recv()
        except (EOFError, OSError):
            break
        if request == "stop":
            break
        if request == "release":
            bench.release(payload)
            continue
        answers: dict[int, Any] = bench.reset(payload) if request == "reset" else dict(bench.step(payload))
        for slot, answer in answers.items():
            if isinstance(answer, EnvironmentFailure):
                answers[slot] = str(answer)  # a cause may not survive pickling; the message does
        try:
            connection.send(answers)
        except BrokenPipeError:
            break
    bench.close()


class _Worker:
    """A child process and the pipe to it; started when first needed, and again after it died."""

    def __init__(self, index: int, make: Make, config: EnvConfig) -> None:
        self.index, self._make, self._config = index, make, config
        self.slots: set[int] = set()
        self.process: BaseProcess | None = None
        self.connection: Connection | None = None

    def send(self, request: str, payload: Any) -> bool:
        """False if the worker is dead."""
        if self.process is None:
            self._start()
        assert self.connection is not None
        try:
            self.connection.send((request, payload))
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def _start(self) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        process = context.Process(
            target=_serve, args=(theirs, self._make, self._config), name=f"env-worker-{self.index}", daemon=True
        )
        self.process = process
        process.start()
        theirs.close()

    def drop(self) -> str:
        """Forget the process, killing it if need be; returns how it ended. The next `send` starts another."""
        how = "was not running"
        if self.connection is not None:
            self.connection.close()
        if self.process is not None:
            if self.process.is_alive():
                self.process.join(timeout=1.0)
            if self.process.is_alive():
                self.process.kill()
            self.process.join()
            code = self.process.exitcode
            how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with status {code}"
            self.process.close()
        self.process = self.connection = None
        return how

    def stop(self) -> None:
        if self.process is not None:
            self.send("stop", None)
            self.process.join(timeout=5.0)
        self.drop()


class EnvPool:
    """Environments in numbered slots.

    make, config: `make(config)` gives an environment; with workers it is called in them, so it must be importable there
    workers: 0 keeps everything in this process; k starts k processes (spawned, so threads and tensors here are safe)
    timeout: seconds after which a worker that does not answer is taken for hung and replaced

    Results do not depend on `workers`. Close the pool, or use it as a context manager.
    """

    def __init__(self, make: Make, config: EnvConfig, workers: int = 0, timeout: float = ANSWER_SECONDS) -> None:
        if workers < 0:
            raise ValueError(
                f"runtime.env_workers={workers} is negative; 0 keeps environments in the run's own process"
            )
        self._bench = _Bench(make, config) if workers == 0 else None
        self._workers = [_Worker(i, make, config) for i in range(workers)]
        self._timeout = timeout
        self._where: dict[int, _Worker] = {}
        self._broken: dict[int, str] = {}  # slots without a running episode, and why
        self._known: set[int] = set()
        self._closed = False

    def reset(self, tasks: Mapping[int, Task]) -> dict[int, Observation | EnvironmentFailure]:
        """Start task `tasks[slot]` in each slot. Other slots go on. Answers are in the order of `tasks`."""
        self._check_open()
        for slot in tasks:
            self._broken.pop(slot, None)
        self._known.update(tasks)
        if self._bench is not None:
            answers = self._bench.reset(tasks)
        else:
            shares = self._assign(tasks)
            answers = self._ask("reset", {w: {s: tasks[s] for s in slots} for w, slots in shares.items()})
        return self._settle(tasks, answers)

    def step(self, actions: Mapping[int, str]) -> dict[int, StepResult | EnvironmentFailure]:
        """Send `actions[slot]` to each slot. A slot whose episode was lost answers with the reason until it is reset.

        Raises ValueError for a slot that was never reset.
        """
        self._check_open()
        for slot in actions:
            if slot not in self._known:
                raise ValueError(f"slot {slot} was never reset; it has no episode to step")
        running = {slot: action for slot, action in actions.items() if slot not in self._broken}
        answers: dict[int, StepResult | EnvironmentFailure]
        if self._bench is not None:
            answers = self._bench.step(running)
        else:
            shares: dict[_Worker, dict[int, str]] = defaultdict(dict)
            for slot, action in running.items():
                shares[self._where[slot]][slot] = action
            answers = self._ask("step", shares)
        answers |= {slot: EnvironmentFailure(self._broken[slot]) for slot in actions if slot in self._broken}
        return self._settle(actions, answers)

    def close(self) -> None:
        """Stop the workers and close every environment. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._bench is not None:
            self._bench.close()
        for worker in self._workers:
            worker.stop()

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers that are running."""
        return tuple(w.process.pid for w in self._workers if w.process is not None and w.process.pid is not None)

    # ------------------------------------------------------------------------------------------------------- workers
    def _assign(self, tasks: Mapping[int, Task]) -> dict[_Worker, list[int]]:
        """Slots of one task to one worker, the largest groups first, each to the worker with the fewest slots."""
        groups: dict[str, list[int]] = defaultdict(list)
        for slot, task in tasks.items():
            groups[task.content_hash].append(slot)
            before = self._where.pop(slot, None)
            if before is not None:
                before.slots.discard(slot)
                if before.process is not None:
                    before.send("release", [slot])
        shares: dict[_Worker, list[int]] = defaultdict(list)
        for content, slots in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
            # of equally loaded workers, the one that the content points at: a game tends to come back to its worker
            preferred = int(content[:8] or "0", 16) % len(self._workers) if _is_hex(content[:8]) else 0
            worker = min(
                self._workers,
                key=lambda w: (len(w.slots), (w.index - preferred) % len(self._workers)),
            )
            worker.slots.update(slots)
            shares[worker] += slots
            self._where.update(dict.fromkeys(slots, worker))
        return shares

    def _ask(self, request: str, shares: Mapping[_Worker, Mapping[int, Any]]) -> dict[int, Any]:
        """Send every worker its share, then collect; the workers work at the same time."""
        answers: dict[int, Any] = {}
        waiting: dict[Connection, _Worker] = {}
        for worker, payload in shares.items():
            if worker.send(request, dict(payload)) and worker.connection is not None:
                waiting[worker.connection] = worker
            else:
                answers |= self._lost(worker, f"died before the {request}", payload)
        while waiting:
            ready = wait(list(waiting), timeout=self._timeout)
            if not ready:
                for connection in list(waiting):
                    worker = waiting.pop(connection)
                    if worker.process is not None:
                        worker.process.kill()
                    answers |= self._lost(worker, f"did not answer a {request} in {self._timeout:g} s", shares[worker])
            for item in ready:
                connection = cast(Connection, item)
                worker = waiting.pop(connection)
                try:
                    received = connection.recv()
                except (EOFError, ConnectionResetError):
                    answers |= self._lost(worker, f"died during a {request}", shares[worker])
                    continue
                for slot, answer in received.items():
                    answers[slot] = EnvironmentFailure(answer) if isinstance(answer, str) else answer
        return answers

    def _lost(self, worker: _Worker, what: str, asked: Mapping[int, Any]) -> dict[int, EnvironmentFailure]:
        """The worker is gone: every episode it held is lost, also those that were not asked for just now."""
        reason = f"worker {worker.index} {what} ({worker.drop()})"
        log.warning("environment %s; it held slots %s and will be replaced", reason, sorted(worker.slots))
        for slot in worker.slots:
            self._broken[slot] = reason
            self._where.pop(slot, None)
        worker.slots.clear()
        return {slot: EnvironmentFailure(reason) for slot in asked}

    def _settle(self, asked: Mapping[int, object], answers: Mapping[int, T]) -> dict[int, T]:
        """Remember which slots failed, and answer in the caller's order."""
        for slot, answer in answers.items():
            if isinstance(answer, EnvironmentFailure):
                self._broken.setdefault(slot, str(answer))
                worker = self._where.pop(slot, None)
                if worker is not None:
                    worker.slots.discard(slot)
        return {slot: answers[slot] for slot in asked}

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the pool is closed")


class OrderedPool:
    """The same pool for callers that number their slots 0, 1, 2, ...: lists in, lists out."""

    def __init__(self, pool: EnvPool) -> None:
        self.pool = pool

    def reset(self, tasks: Sequence[Task]) -> list[Observation | EnvironmentFailure]:
        """Start tasks[i] in slot i."""
        return list(self.pool.reset(dict(enumerate(tasks))).values())

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[StepResult | EnvironmentFailure]:
        """Send actions[k] to slots[k]. The slots must be distinct."""
        if len(set(slots)) != len(slots):
            raise ValueError(f"a slot is named twice in one step: {list(slots)}")
        return list(self.pool.step(dict(zip(slots, actions, strict=True))).values())

    def close(self) -> None:
        self.pool.close()


def _is_hex(text: str) -> bool:
    return bool(text) and all(c in "0123456789abcdefABCDEF" for c in text)
