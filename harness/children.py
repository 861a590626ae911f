"""Child processes that do not outlive their parent, and leave when asked."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, linux/prctl.h
_LAST_SECONDS = 30.0  # after the signal that cannot be put off


def die_with_parent(number: int) -> Callable[[], None] | None:
    """For `preexec_fn`: the child gets this signal when the thread that started it ends. None where that is unknown.

    The library is looked up here: between fork and exec nothing may be imported.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def ask() -> None:
        prctl(_SET_DEATH_SIGNAL, int(number), 0, 0, 0)

    return ask


def leave(
    process: subprocess.Popen[Any], number: int, patience: float, last: int = signal.SIGKILL, *, group: bool
) -> None:
    """Signal a child, wait `patience` seconds, then insist with `last`. group: its whole process group, which must be
    its own; what of that outlives the child is killed."""

    def send(what: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(process.pid, what)

    if process.poll() is None:
        send(number)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            send(last)
            process.wait(_LAST_SECONDS)
    if group:
        send(signal.SIGKILL)
