"""The job script of one shape: what of the configuration goes into it, and the text that Submitit makes of it.

Submitit is imported when a script is made, never with this module.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.config import LauncherConfig
from harness.errors import Problem
from harness.launch.snapshot import environment
from harness.redaction import find_secret, is_secret_name
from harness.worker import THREAD_VARIABLES

if TYPE_CHECKING:
    from harness.launch.shapes import Shape

# Options that this launcher or Submitit decides; another value breaks what they rely on.
OWN_OPTIONS = {
    "array": "launcher.parallel and launcher.max_array",
    "dependency": "the order of teachers and students",
    "error": "where logs lie",
    "output": "where logs lie",
    "open-mode": "that a job which comes back appends to its log",
    "signal": "launcher.signal_seconds",
    "requeue": "launcher.requeues",
    "no-requeue": "launcher.requeues (0: never)",
    "time": "backbone.resources.minutes or launcher.resources",
    "wrap": "what a job runs",
    "parsable": "how the job number is read",
}
_VARIABLE = re.compile(r"[A-Za-z_]\w*")
_OUTER_JOB = ("SLURM_", "SRUN_", "SUBMITIT_")
_KEPT_IN_JOB = ("SLURM_CONF", "SLURM_TIME_FORMAT")  # the user's, not the surrounding job's


def problems(launcher: LauncherConfig, out: Path) -> list[Problem]:
    """What of the launcher's settings cannot become a job script."""
    found: list[Problem] = []
    for option in launcher.sbatch:
        name = option.lstrip("-").replace("_", "-")
        if name in OWN_OPTIONS:
            found.append(Problem(f"launcher.sbatch.{option}", "", "", f"is decided by {OWN_OPTIONS[name]}; drop it"))
        elif option.startswith("-"):
            found.append(Problem(f"launcher.sbatch.{option}", "", "", f"is written without dashes: {name}"))
    for name in launcher.environment:
        key = f"launcher.environment.{name}"
        if not _VARIABLE.fullmatch(name):
            found.append(Problem(key, "", "", "is no name of a variable: letters, digits and _ only"))
        elif is_secret_name(name):
            fix = f"is a secret, and job scripts are kept: export {name} before this command; jobs get it from there"
            found.append(Problem(key, "", "", fix))
    texts: list[object] = [*launcher.setup, *launcher.modules, launcher.container, launcher.python]
    texts += [*launcher.environment.values(), *launcher.sbatch.values()]
    for text in texts:
        if (secret := find_secret(str(text))) is not None:
            fix = f"hold a secret ({secret}), and job scripts are kept; leave it in the environment of this command"
            found.append(Problem("launcher", "", "", f"setup, modules, container, python, environment or sbatch {fix}"))
    if "%" in str(out) or "\n" in str(out):
        fix = "has a character that Slurm reads as a pattern in names of logs; choose a folder without % and line ends"
        found.append(Problem("runtime.out", str(out), "", fix))
    return found


def setup_lines(launcher: LauncherConfig, threads: int, snapshot: Path) -> list[str]:
    """Lines of shell before the run. threads: per process; snapshot: folder of the code that jobs run."""
    lines: list[str] = []
    if launcher.modules:
        lines.append("command -v module > /dev/null || . /etc/profile")  # a batch script is no login shell
        lines += [f"module load {shlex.quote(name)} || exit 1" for name in launcher.modules]
    lines += launcher.setup
    # Before Python starts: thread pools read the environment once, and Submitit imports numpy first.
    variables = dict.fromkeys(THREAD_VARIABLES, str(threads))
    variables |= {"PYTHONHASHSEED": "0", "TOKENIZERS_PARALLELISM": "false"}
    if cache := os.environ.get("HARNESS_CACHE"):
        variables["HARNESS_CACHE"] = str(Path(cache).expanduser().absolute())
    variables |= {name: str(value) for name, value in launcher.environment.items()}
    variables |= {**environment(snapshot), "PYTHONUNBUFFERED": "1"}
    return lines + [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def parameters(
    launcher: LauncherConfig,
    shape: Shape,
    *,
    name: str,
    threads: int,
    snapshot: Path,
    size: int,
    after: Sequence[str] = (),
) -> dict[str, Any]:
    """What `submitit.AutoExecutor.update_parameters` gets. size: elements; after: jobs that must have succeeded."""
    # A signal earlier than the job starts would stop it at once.
    signal_seconds = min(launcher.signal_seconds, shape.minutes * 60 // 2)
    further = {"requeue": True, "signal": f"USR2@{signal_seconds}"}
    if after:
        further["kill-on-invalid-dep"] = "yes"  # or students of a failed teacher would wait for ever
    for option, value in launcher.sbatch.items():
        if value is not None and value is not False:
            text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value
            further[option.replace("-", "_")] = text
    srun = ["--cpus-per-task", str(shape.cpus_per_node)]  # since 22.05 srun does not take it from the job
    if shape.nodes > 1:
        srun.append("--kill-on-bad-exit=1")  # nobody waits for a leader that died
    return {
        "name": re.sub(r"[^\w.+-]+", "_", name)[:100],
        "nodes": shape.nodes,
        "tasks_per_node": 1,
        "cpus_per_task": shape.cpus_per_node,
        "gpus_per_node": shape.gpus_per_node or None,
        "mem_gb": float(shape.mem_gb),
        "timeout_min": shape.minutes,
        "slurm_partition": launcher.partition,
        "slurm_account": launcher.account,
        "slurm_qos": launcher.qos,
        "slurm_constraint": launcher.constraint,
        "slurm_dependency": f"afterok:{':'.join(after)}" if after else None,
        "slurm_array_parallelism": launcher.parallel or max(size, 1),
        "slurm_signal_delay_s": signal_seconds,
        "slurm_setup": setup_lines(launcher, threads, snapshot),
        "slurm_srun_args": srun,
        "slurm_additional_parameters": further,
    }


def python_command(launcher: LauncherConfig) -> str:
    """What starts Python in a job, as shell."""
    python = shlex.quote(launcher.python or sys.executable)
    return f"{launcher.container} {python}" if launcher.container else python


def executor(folder: Path, launcher: LauncherConfig, settings: Mapping[str, Any]) -> Any:
    """A `submitit.AutoExecutor` for one batch. folder: of its scripts, pickles and logs. RuntimeError without Slurm."""
    import submitit

    made = submitit.AutoExecutor(folder=folder, cluster="slurm", slurm_python=python_command(launcher))
    made.update_parameters(**settings)
    return made


def script_text(folder: Path, launcher: LauncherConfig, settings: Mapping[str, Any], size: int) -> str:
    """The text of the script that `executor` would submit for `size` elements. Needs no Slurm on this machine."""
    from submitit.slurm.slurm import SlurmExecutor

    class Paper(SlurmExecutor):
        @classmethod
        def affinity(cls) -> int:
            return 1

    paper = Paper(folder, python=python_command(launcher))
    shared = {key: value for key, value in settings.items() if not key.startswith("slurm_") and value is not None}
    own = {k.removeprefix("slurm_"): v for k, v in settings.items() if k.startswith("slurm_") and v is not None}
    paper.update_parameters(**paper._convert_parameters(shared), **own)
    if size > 1:
        paper.parameters["map_count"] = size
    text: str = paper._make_submission_file_text(paper._submitit_command_str, "")
    return text


@contextlib.contextmanager
def outside_of_jobs() -> Iterator[None]:
    """Hide the job that this command itself runs in, if it does: sbatch and srun would take its settings over."""
    hidden: dict[str, str] = {}
    if "SLURM_JOB_ID" in os.environ:
        names = [n for n in os.environ if n.startswith(_OUTER_JOB) and n not in _KEPT_IN_JOB]
        hidden = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(hidden)
