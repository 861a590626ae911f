"""What squeue and sacct print, as states of single jobs."""

from __future__ import annotations

import contextlib
import pwd
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

from harness.launch.jobids import base_of, expand
from harness.launch.jobstates import ENDED, GONE, QUEUED, UNKNOWN, JobState, kind_of

# Fields of squeue -O, with widths: columns work with every version, separators came with 21.08.
FIELDS = (("JobArrayID", 64), ("State", 24), ("RestartCnt", 12), ("exit_code", 16), ("Reason", 256))
COLUMNS = ",".join(f"{name}:{width}" for name, width in FIELDS)
EXPRESSION = "%i|%T|%r"  # squeue -o: arrays as they are written, of any length
Row = tuple[str, JobState]


class Listing:
    """Jobs that rows of squeue or sacct name, and arrays of which the rows do not name every element."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.states: dict[str, JobState] = {}
        self._partial: set[str] = set()
        self._arrays: set[str] = set()
        self.add(rows)

    def add(self, rows: Iterable[Row]) -> None:
        """Take further rows in; what is known already stays."""
        for text, state in rows:
            expression = expand(text)
            if expression is None:  # a step of a job
                continue
            if expression.partial:
                self._partial.add(expression.base)
            for job in expression.ids:
                self.states.setdefault(job, replace(state, id=job))
            if expression.ids != (expression.base,):
                self._arrays.add(expression.base)
            if "+" in expression.base:  # a part of a job with several parts
                self._arrays.add(expression.base.partition("+")[0])

    def answers(self, asked: Iterable[str]) -> dict[str, JobState]:
        """What the rows say about the jobs asked for; jobs that they do not speak of are left out."""
        found: dict[str, JobState] = {}
        for job in asked:
            base = base_of(job)
            whole = self.states.get(base)
            if job in self.states:
                found[job] = self.states[job]
            elif base in self._partial:
                found[job] = JobState(job, "", UNKNOWN, f"the scheduler cut off its list of elements of {base}")
            elif job == base and base in self._arrays:
                found[job] = JobState(job, "", UNKNOWN, f"{base} is an array; ask for its elements")
            elif whole is not None:
                # For some seconds sacct names an array without its elements: those that never started have its state.
                unsure = f"the scheduler speaks of {base} as a whole: {whole}"
                found[job] = replace(whole, id=job) if whole.kind == ENDED else JobState(job, "", UNKNOWN, unsure)
        return found

    def of_unlisted(self, job: str) -> JobState:
        """The state of a job that squeue does not list and these rows of sacct do not name either.

        An element that is cancelled while it waits leaves no trace of its own, but its array does.
        """
        if base_of(job) in self._arrays:
            return JobState(job, "CANCELLED", ENDED, "cancelled before it started")
        return JobState(job, "", GONE, "the scheduler does not know it any more")

    def stepped(self) -> list[str]:
        """Arrays whose waiting elements are evenly spaced, other than one by one."""
        waiting: dict[str, list[int]] = {}
        for job, state in self.states.items():
            base, _, element = job.partition("_")
            if element and state.kind == QUEUED:
                waiting.setdefault(base, []).append(int(element))
        found: list[str] = []
        for base, elements in sorted(waiting.items()):
            ordered = sorted(elements)
            steps = {after - before for before, after in pairwise(ordered)}
            if len(steps) == 1 and steps != {1}:
                found.append(base)
        return found


def queue_rows(text: str) -> Iterator[Row]:
    """Of `squeue -O COLUMNS`."""
    for line in text.splitlines():
        fields: list[str] = []
        start = 0
        for _, width in FIELDS:
            fields.append(line[start : start + width].strip())
            start += width
        job, word, restarts, exit_code, reason = fields
        if job and word:  # not `CLUSTER: name`, where several clusters answer
            state = _waiting_or_running(job, word, reason)
            number = int(restarts) if restarts.isdigit() else None
            yield job, replace(state, exit_code=_exit_code(exit_code), restarts=number)


def expression_rows(text: str) -> Iterator[Row]:
    """Of `squeue -o EXPRESSION`."""
    for line in text.splitlines():
        job, _, rest = line.partition("|")
        word, bar, reason = rest.partition("|")
        if bar:
            yield job.strip(), _waiting_or_running(job.strip(), word.strip(), reason.strip())


def _waiting_or_running(job: str, word: str, reason: str) -> JobState:
    return JobState(job, word, kind_of(word, in_queue=True), "" if reason in ("None", "(null)") else reason)


def _exit_code(text: str) -> str | None:
    """`<status>:<signal>` of what squeue prints: that, or the bare number that wait(2) gave."""
    if not text.isdigit():
        return text if ":" in text else None
    number = int(text)
    return f"{number >> 8 & 0xFF}:{number & 0x7F}"


def accounting_rows(text: str) -> Iterator[Row]:
    """Of `sacct -X -n -P -o JobID,State,ExitCode`."""
    for line in text.splitlines():
        job, _, rest = line.partition("|")
        words, _, exit_code = rest.partition("|")
        word, _, more = words.strip().partition(" ")  # `CANCELLED by 1000`
        word = word.rstrip("+")  # sacct's sign for a word that it cut off
        kind = kind_of(word, in_queue=False)
        reason = f"cancelled {_named(more)}" if more else ""
        if kind == UNKNOWN:
            reason = f"the accounting says {word or 'nothing'}, but the controller does not know the job"
            if kind_of(word, in_queue=True) != UNKNOWN:  # the controller lost it; an administrator can end its record
                reason += ": `sacctmgr show runawayjobs` lists such jobs and ends their records"
        yield job, JobState(job, word, kind, reason, exit_code.strip() or None)


def _named(words: str) -> str:
    """`by 1000` with the user's name for the number, where there is one."""
    number = words.rpartition(" ")[2]
    with contextlib.suppress(KeyError, OverflowError):
        if number.isdigit():
            return f"by {pwd.getpwuid(int(number)).pw_name}"
    return words
