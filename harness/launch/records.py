"""What a launcher writes down for a worker that could not do so itself."""

from __future__ import annotations

from harness import attempts
from harness.record import RunDirectory
from harness.states import COMPLETE, FAILED


def record_end(run: RunDirectory, outcome: str, error: str, failure_class: str | None = None) -> bool:
    """Record how the work on a run ended: its state, its open attempt if there is one, an event in its spool.

    outcome: failed (with a class of harness.states.FAILURE_CLASSES) or interrupted. False if nothing was written: the
    run is complete, or somebody works on it (again). Raises RecordError if the files cannot be written.
    """
    claim = run.claim()
    if claim is None:
        return False
    with claim:
        if run.state_without_claim().state == COMPLETE:
            return False
        failure_class = failure_class if outcome == FAILED else None
        state = run.write_state(state=outcome, error=error, failure_class=failure_class)
        opened = [a for a in attempts.all_attempts(run.path)[-1:] if a.content.get("outcome") is None]
        name = "attempt_finished" if opened else "job_ended"
        run.spool.event(name, outcome=outcome, error=error, failure_class=failure_class)
        run.spool.close()
        for attempt in opened:
            attempt.finish(outcome, state.last_step, error, failure_class)
    return True
