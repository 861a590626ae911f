"""Slurm's clients as shell scripts on PATH: jobs are accepted and listed, and only run when a test plays them."""

from __future__ import annotations

import pickle
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import squeue_line

from harness.launch.job import Job
from harness.launch.listings import FIELDS

CLIENTS = ("sbatch", "srun", "squeue", "sacct", "scancel", "scontrol", "sinfo", "sacctmgr")
_FORMAT = "".join(f"%-{width}s" for _, width in FIELDS)
# Everything lies in $here: calls (one line each), queue (what squeue says), <client>.err (what it says when it fails).
_SCRIPT = f"""#!/bin/sh
here=$(dirname "$0")/..
client=$(basename "$0")
echo "$client $*" >> "$here/calls"
[ -e "$here/$client.hook" ] && . "$here/$client.hook"
if [ -e "$here/$client.err" ]; then cat "$here/$client.err" >&2; exit 1; fi
case $client in
sbatch)
    number=$(($(cat "$here/last") + 1))
    echo $number > "$here/last"
    cp "$1" "$here/jobs/$number.sh"
    reason=None
    grep -q '^#SBATCH --dependency' "$1" && reason=Dependency
    top=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\)%.*/\\1/p' "$1")
    jobs=$number
    [ -n "$top" ] && jobs=$(seq -f "${{number}}_%g" 0 "$top")
    for job in $jobs; do printf '{_FORMAT}\\n' $job PENDING 0 0:0 $reason; done >> "$here/queue"
    echo "Submitted batch job $number" ;;
squeue) cat "$here/queue" ;;
scancel)
    for job; do
        awk -v job="$job" '$1 == job {{ sub(/PENDING  |RUNNING  /, "CANCELLED") }} {{ print }}' < "$here/queue" \\
            > "$here/new"
        mv "$here/new" "$here/queue"
    done ;;
scontrol) [ "$1" = show ] && cat "$here/config"; exit 0 ;;
sinfo) echo "main*|up|infinite|4|16|200000|gpu:h200:8" ;;
esac
exit 0
"""


class FakeCluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        (folder / "jobs").mkdir()
        (folder / "last").write_text("99")
        (folder / "queue").touch()
        self.configure()
        self.fails("sacct", "Slurm accounting storage is disabled")
        for name in CLIENTS:
            script = folder / "bin" / name
            script.write_text(_SCRIPT)
            script.chmod(script.stat().st_mode | stat.S_IXUSR)

    # ------------------------------------------------------------------------------------------------ how it answers
    def configure(self, **settings: object) -> None:
        values = {"ClusterName": "fake", "MaxArraySize": 1001, "MaxJobCount": 10000, **settings}
        (self.folder / "config").write_text("".join(f"{name} = {value}\n" for name, value in values.items()))

    def fails(self, client: str, complaint: str | None) -> None:
        """The client says this and fails; None: it works again."""
        path = self.folder / f"{client}.err"
        path.unlink(missing_ok=True) if complaint is None else path.write_text(complaint)

    def hook(self, client: str, shell: str | None) -> None:
        """Shell that the client runs first."""
        path = self.folder / f"{client}.hook"
        path.unlink(missing_ok=True) if shell is None else path.write_text(shell)

    def set(self, job: str, word: str | None, reason: str = "None", exit_code: str = "0:0") -> None:
        """The state of a job from now on; None: it is forgotten."""
        path = self.folder / "queue"
        kept = [line for line in path.read_text().splitlines(keepends=True) if line.split()[0] != job]
        new = [] if word is None else [squeue_line(job, word, "0", exit_code, reason)]
        path.write_text("".join([*kept, *new]))

    # ------------------------------------------------------------------------------------------------ what it was asked
    def calls(self, client: str) -> list[str]:
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.partition(" ")[2] for line in lines if line.startswith(f"{client} ")]

    def scripts(self) -> dict[int, str]:
        """Number -> text, of every script that sbatch took."""
        return {int(path.stem): path.read_text() for path in sorted((self.folder / "jobs").iterdir())}

    def waiting(self) -> list[str]:
        return [line.split()[0] for line in (self.folder / "queue").read_text().splitlines() if "PENDING" in line]


def option(script: str, name: str) -> str | None:
    """The value of an option in a job script."""
    found = re.search(rf"^#SBATCH --{name}(?:=(.*))?$", script, re.MULTILINE)
    return None if found is None else (found[1] or "")


def pickled(ticket: Any) -> Job:
    """The job that Submitit would load."""
    path = Path(ticket.script).parent / f"{ticket.job_id}_submitted.pkl"
    function = pickle.loads(path.read_bytes()).function
    assert isinstance(function, Job)
    return function


def variables(job: str, restarts: int = 0, rank: int = 0, **more: str) -> dict[str, str]:
    """What Slurm gives a job in its environment."""
    base, _, element = job.partition("_")
    given = {"SLURM_JOB_ID": base, "SLURM_PROCID": str(rank), "SLURM_CLUSTER_NAME": "fake", **more}
    if restarts:
        given["SLURM_RESTART_COUNT"] = str(restarts)
    if element:
        given |= {"SLURM_ARRAY_JOB_ID": base, "SLURM_ARRAY_TASK_ID": element}
    return given


@contextmanager
def inside(job: str, **more: str) -> Iterator[None]:
    """This process as a part of the job."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables(job, **more).items():
            patch.setenv(name, value)
        yield


def settings_of(script: str) -> Mapping[str, str]:
    """Variables that a job script sets."""
    return dict(re.findall(r"^export (\w+)=(.*)$", script, re.MULTILINE))
