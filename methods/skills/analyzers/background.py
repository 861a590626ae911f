"""An event loop in a thread of its own, whose work can be given up at any moment.

Threads that wait for a socket cannot be interrupted, and Python waits for the threads of an executor when it exits; a
task of an event loop can be cancelled wherever it waits. So one thread serves any number of requests, and closing is
prompt even while every one of them hangs.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
JOIN_SECONDS = 5.0  # longest wait for the loop's thread in `close`; it is a daemon, so it never keeps the process


class Background:
    """cleanup: awaited in the loop after everything was cancelled. The thread starts with the first `submit`."""

    def __init__(self, name: str, cleanup: Callable[[], Awaitable[None]]) -> None:
        self._name, self._cleanup = name, cleanup
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop. Raises RuntimeError after `close`."""
        with self._lock:
            if self._closed:
                work.close()
                raise RuntimeError(f"{self._name} was closed; nothing can be asked any more")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._serve, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
                atexit.register(self.close)
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancel what is running and end the thread. May be called twice."""
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        atexit.unregister(self.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(JOIN_SECONDS)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            running = asyncio.all_tasks(loop)
            for task in running:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*running, return_exceptions=True))
            loop.run_until_complete(self._cleanup())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
