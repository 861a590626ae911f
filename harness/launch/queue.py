"""Which runs have a job at the scheduler, and what it says of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from harness.files import RecordError
from harness.launch import tickets
from harness.launch.jobstates import GONE, QUEUED, REQUEUED, RUNNING, UNKNOWN, JobState, never_starts
from harness.launch.lookup import FRESH_SECONDS, Lookup
from harness.launch.scheduler import Slurm, user_name
from harness.launch.tickets import Ticket
from harness.record import RunDirectory


@dataclass(frozen=True, slots=True)
class Held:
    """A run's job. state: as the scheduler says. ticket: without a number where it cannot be read."""

    ticket: Ticket
    state: JobState

    @property
    def live(self) -> bool:
        """Whether the job may still work on the run, or will: nobody else may then."""
        return self.state.live

    def told(self, run: RunDirectory) -> str:
        """The same with the way on, for whoever wants to work on its run and cannot."""
        if self.state.kind == UNKNOWN:  # do=cancel leaves it alone
            return f"{self}; if you know that it is gone, delete {run.path / tickets.TICKET_NAME}"
        return f"{self}; do=cancel frees the run" if self.live else str(self)

    def __str__(self) -> str:
        if not self.ticket.job_id:
            return f"its job is not known: {self.state.reason}"
        job, state = f"job {self.ticket.job_id}", self.state
        if state.kind == UNKNOWN:
            return f"{job}: its state is not known ({state.reason or state.word or 'no answer'})"
        if state.kind == GONE:
            return f"{job} is no longer known to the scheduler"
        if state.kind == QUEUED:
            never = never_starts(state)
            why = f" ({never or state.reason})" if never or state.reason else ""
            return f"{job} waits{why}"
        if state.kind == REQUEUED:
            return f"{job} goes back to the queue ({state.word})"
        if state.kind == RUNNING:
            return f"{job} runs" if state.word == "RUNNING" else f"{job} runs ({state.word})"
        return f"{job} ended as {state.word}"


class Queue:
    """Looks up tickets, and asks the scheduler about their jobs together; does not ask where there is no ticket.

    seconds: how old an answer of `holds` may be; `look` asks anew. Only reads.
    """

    def __init__(self, scheduler: Slurm | None = None, seconds: float = FRESH_SECONDS) -> None:
        self._lookup = Lookup(scheduler or Slurm(), seconds)

    def look(self, runs: Iterable[RunDirectory]) -> dict[str, Held]:
        """Fingerprint -> its job, for the runs that have a ticket; of unknown state where that cannot be read."""
        found = {run.fingerprint: ticket for run in runs if (ticket := _ticket(run)) is not None}
        if asked := [ticket.job_id for ticket in found.values() if isinstance(ticket, Ticket)]:
            self._lookup.expect(asked)
        return {name: self._held(ticket) for name, ticket in found.items()}

    def holds(self, run: RunDirectory) -> Held | None:
        """The job that may still work on this run; None if there is none."""
        ticket = _ticket(run)
        held = None if ticket is None else self._held(ticket)
        return held if held is not None and held.live else None

    def _held(self, ticket: Ticket | RecordError) -> Held:
        if isinstance(ticket, RecordError):
            return Held(Ticket(job_id="", submitted=0.0), JobState("", "", UNKNOWN, str(ticket)))
        state = self._lookup(ticket.job_id, ticket.cluster)
        if state.kind == GONE and ticket.user not in ("", user_name()):
            state = replace(state, kind=UNKNOWN, reason=f"it is {ticket.user}'s, whose jobs may be hidden from others")
        return Held(ticket, state)


def _ticket(run: RunDirectory) -> Ticket | RecordError | None:
    try:
        return tickets.read(run.path)
    except RecordError as error:  # its job may be alive all the same, and the other runs have nothing to do with it
        return error
