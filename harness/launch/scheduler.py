"""Slurm as its own clients show it: squeue, sacct, scancel, scontrol, sinfo, sacctmgr, each with a time limit.

squeue is asked first (it never lags, and works without accounting), sacct for what the controller has forgotten.
Nothing is guessed: without an answer a job is UNKNOWN, and nobody acts on that.
"""

from __future__ import annotations

import os
import pwd
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.launch.jobids import base_of, bases, chunks
from harness.launch.jobstates import (
    ENDED,
    GONE,
    LIVE_KINDS,
    QUEUED,
    REQUEUED,
    RUNNING,
    UNKNOWN,
    Failure,
    JobState,
    failure_of,
    never_starts,
)
from harness.launch.limits import Limits, Partition, least_submit, limits_from, parse_config
from harness.launch.listings import COLUMNS, EXPRESSION, Listing, accounting_rows, expression_rows, queue_rows
from harness.redaction import redact

CLIENT_SECONDS = 60.0  # without a controller a client gives up by itself after 10 to 40 s (measured, 22.05)
IDS_PER_CALL = 500  # keeps command lines below any system's limit
# Settings of the user's that would hide jobs or change what is printed.
_FILTERS = ("SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SCONTROL_")
_NO_SUCH_JOB = "invalid job id"
_NO_ACCOUNTING = "accounting storage is disabled"
_WAITS_ALREADY = "job is pending execution"


class SchedulerError(RuntimeError):
    """The scheduler did not answer. Says which command, what it said, and what to do."""

    failure_class = "infra"


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a client said: its exit status, standard output and standard error."""

    command: str
    status: int
    text: str
    complaint: str

    def error(self, fix: str = "") -> SchedulerError:
        said = redact(self.complaint.strip() or self.text.strip()) or "nothing"
        return SchedulerError(f"`{self.command}` failed with status {self.status}: {said}{f'; {fix}' if fix else ''}")


class Slurm:
    """A Slurm cluster. Keeps nothing between calls.

    prefix: what stands before every client's name, e.g. `("ssh", "login")`; empty: the clients on PATH.
    seconds: how long to wait for one client.
    """

    def __init__(self, prefix: Sequence[str] = (), seconds: float = CLIENT_SECONDS) -> None:
        self._prefix = tuple(prefix)
        self._seconds = seconds

    # ------------------------------------------------------------------------------------------------ jobs
    def states(self, ids: Iterable[str]) -> dict[str, JobState]:
        """The state of each job or array element (`123`, `123_4`). Never raises for want of an answer: UNKNOWN then.

        Without accounting a job that the controller does not know is GONE: the controller keeps what waits, runs or
        ended less than MinJobAge (slurm.conf) ago. Raises ValueError for what is no job id.
        """
        asked = sorted(set(ids))
        found: dict[str, JobState] = {}
        for wanted in chunks(bases(asked), IDS_PER_CALL):
            some = set(wanted)
            found.update(self._states_of(wanted, [job for job in asked if base_of(job) in some]))
        return found

    def _states_of(self, wanted: Sequence[str], asked: Sequence[str]) -> dict[str, JobState]:
        try:
            listed = self._queue("-j", ",".join(wanted))
        except SchedulerError as error:
            return {job: JobState(job, "", UNKNOWN, str(error)) for job in asked}
        found = listed.answers(asked)
        rest = [job for job in asked if job not in found]
        if not rest:
            return found
        try:
            known = self._accounting(bases(rest))
        except SchedulerError as error:
            return {**found, **{job: JobState(job, "", UNKNOWN, str(error)) for job in rest}}
        found.update(known.answers(rest))
        for job in rest:
            found.setdefault(job, known.of_unlisted(job))
        return found

    def my_jobs(self) -> dict[str, JobState]:
        """Every job of this user that the controller knows, ended ones included. Raises SchedulerError."""
        return self._queue("-u", user_name()).states

    def queued(self) -> int:
        """Own jobs and array elements that wait or run: what the limits on submission count. Raises SchedulerError."""
        return sum(state.kind in (QUEUED, RUNNING, REQUEUED, UNKNOWN) for state in self.my_jobs().values())

    def _queue(self, *which: str) -> Listing:
        listed = Listing(queue_rows(self._listed("-r", "-O", COLUMNS, *which)))
        # squeue -r forgets the last element of an array written with a step, `5_[1-298:3]` (22.05): ask without -r.
        if stepped := listed.stepped():
            listed.add(expression_rows(self._listed("-o", EXPRESSION, "-j", ",".join(stepped))))
        return listed

    def _listed(self, *options: str) -> str:
        answer = self._ask("squeue", "-h", "-t", "all", *options)
        if answer.status == 0:
            return answer.text
        if _NO_SUCH_JOB in answer.complaint.lower():  # said when one id is asked for and nobody knows it
            return ""
        raise answer.error("is the controller up (`scontrol ping`), and does SLURM_CONF name this cluster?")

    def _accounting(self, wanted: Sequence[str]) -> Listing:
        answer = self._ask("sacct", "-X", "-n", "-P", "-o", "JobID,State,ExitCode", "-j", ",".join(wanted))
        if answer.status != 0:
            if _NO_ACCOUNTING in answer.complaint.lower():
                return Listing(())  # the controller alone knows, and it has answered
            raise answer.error("the controller does not know the job; the accounting service must say how it ended")
        return Listing(accounting_rows(answer.text))

    # ------------------------------------------------------------------------------------------------ orders
    def cancel(self, ids: Iterable[str]) -> None:
        """Cancel jobs, waiting or running. Those that ended already are no error. Raises SchedulerError."""
        for some in chunks(sorted(set(ids)), IDS_PER_CALL):
            answer = self._ask("scancel", *some)
            complaints = [line for line in answer.complaint.splitlines() if line.strip()]
            harmless = (_NO_SUCH_JOB, "already completing or completed", "already finished")
            if answer.status != 0 and not (
                complaints and all(any(h in line.lower() for h in harmless) for line in complaints)
            ):
                raise answer.error("the jobs may still run; repeat the command")

    def requeue(self, job_id: str) -> bool:
        """Put a running job back into the queue. False if it waits there already (Slurm was faster: a preemption).

        Raises SchedulerError.
        """
        answer = self._ask("scontrol", "requeue", job_id)
        if answer.status == 0:
            return True
        if _WAITS_ALREADY in answer.complaint.lower():
            return False
        raise answer.error("does the site allow requeueing (sbatch --requeue, JobRequeue in slurm.conf)?")

    # ------------------------------------------------------------------------------------------------ the site
    def cluster(self) -> str:
        """ClusterName of the cluster that answers. Raises SchedulerError."""
        return self._config().get("ClusterName", "")

    def limits(self, account: str | None = None, qos: str | None = None) -> Limits:
        """What the site allows. account, qos: those that jobs will be submitted under; None: the user's default ones.

        Raises SchedulerError. A site without accounting limits no submissions.
        """
        config = self._config()
        sinfo = self._answered("sinfo", "-h", "-e", "-o", "%P|%a|%l|%D|%c|%m|%G")
        submit: int | None = None
        if "limits" in config.get("AccountingStorageEnforce", "").lower().replace("safe", "limits"):
            associations = self._answered(
                "sacctmgr", "-n", "-P", "show", "user", "where", f"name={user_name()}",
                f"cluster={config.get('ClusterName', '')}", "withassoc",
                "format=DefaultAccount,Account,MaxSubmitJobs,GrpSubmitJobs,QOS,DefaultQOS",
            )  # fmt: skip
            classes = self._answered(
                "sacctmgr", "-n", "-P", "show", "qos", "format=Name,MaxSubmitJobsPU,MaxSubmitJobsPA,GrpSubmitJobs"
            )
            submit = least_submit(associations, classes, account, qos)
        return limits_from(config, sinfo, submit)

    def _config(self) -> dict[str, str]:
        return parse_config(self._answered("scontrol", "show", "config"))

    # ------------------------------------------------------------------------------------------------ asking
    def _answered(self, *command: str) -> str:
        answer = self._ask(*command)
        if answer.status != 0:
            raise answer.error("is the controller up (`scontrol ping`), and does SLURM_CONF name this cluster?")
        return answer.text

    def _ask(self, *command: str) -> _Answer:
        full = [*self._prefix, *command]
        shown = shlex.join(full if len(full) < 12 else [*full[:12], "..."])
        shown = shown if len(shown) < 300 else f"{shown[:300]}..."
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_FILTERS)}
        # The C locale keeps messages readable for us; 0: lists of array elements are not cut off.
        environment.update(LC_ALL="C", SLURM_TIME_FORMAT="standard", SLURM_BITSTR_LEN="0")
        try:
            finished = subprocess.run(
                full,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._seconds,
                env=environment,
                check=False,
                encoding="utf-8",
                errors="replace",
            )
        except subprocess.TimeoutExpired as error:
            raise SchedulerError(
                f"`{shown}` did not answer within {self._seconds:g} s; is the controller up (`scontrol ping`)?"
            ) from error
        except OSError as error:
            raise SchedulerError(
                f"`{shown}` cannot be run ({error.strerror}); is this a machine with Slurm's clients on PATH?"
            ) from error
        return _Answer(shown, finished.returncode, finished.stdout, finished.stderr)


def user_name() -> str:
    """The user whose jobs are ours; the number where it has no name (a container)."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


__all__ = [
    "ENDED",
    "GONE",
    "LIVE_KINDS",
    "QUEUED",
    "REQUEUED",
    "RUNNING",
    "UNKNOWN",
    "Failure",
    "JobState",
    "Limits",
    "Partition",
    "SchedulerError",
    "Slurm",
    "failure_of",
    "never_starts",
    "user_name",
]
