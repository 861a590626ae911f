"""What Slurm allows, against what the plan will ask of it. Asks the scheduler, submits nothing."""

from __future__ import annotations

import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from harness.config import LauncherConfig
from harness.errors import ConfigError, suggest
from harness.launch.scheduler import Limits, SchedulerError, Slurm
from harness.launch.shapes import Shape, misfit, shape_of
from harness.preflight.findings import OK, PROBLEM, WARNING, Finding, Scope
from harness.redaction import redact
from harness.stages import Cell
from harness.training.verl.cost import cost_of
from harness.training.verl.sizes import sizes_of

_CLIENT_SECONDS = 60.0


def slurm(scope: Scope, *, rehearse: bool = True, scheduler: Slurm | None = None) -> Iterator[Finding]:
    """Partition, time limit, GPUs, cores, memory, numbers of jobs; account and quality of service as sbatch sees them.

    rehearse: have `sbatch --test-only` judge each shape, which knows every rule of the site.
    """
    launcher = scope.plan.command.launcher
    if launcher.name != "slurm":
        return
    scope.say("Slurm: what the site allows")
    try:
        limits = (scheduler or Slurm()).limits(launcher.account, launcher.qos)
    except SchedulerError as error:
        fix = "run this on a machine with Slurm's clients, or launcher=local"
        yield scope.finding(PROBLEM, None, "launcher.name", launcher.name, str(error), fix)
        return
    try:
        shapes = {cell.fingerprint: shape_of(cell.config) for cell in scope.todo}
    except ConfigError:  # the budget says what is wrong
        return
    yield from _partition(scope, limits, launcher)
    name = launcher.partition or limits.default_partition
    if name in limits.partitions:
        yield from _shapes(scope, limits, shapes)
        yield from _numbers(scope, limits, launcher, Counter(shapes.values()))
        if rehearse:
            yield from _rehearsal(scope, launcher, shapes)


def _partition(scope: Scope, limits: Limits, launcher: LauncherConfig) -> Iterator[Finding]:
    key, name = "launcher.partition", launcher.partition or limits.default_partition
    if name is None:
        fix = f"set launcher.partition to one of {', '.join(sorted(limits.partitions))}"
        yield scope.finding(PROBLEM, None, key, None, "the site has no default partition", fix)
    elif name not in limits.partitions:
        fix = suggest(name, limits.partitions, "partitions")
        yield scope.finding(PROBLEM, None, key, name, f"cluster {limits.cluster} has no such partition", fix)
    else:
        found = limits.partitions[name]
        longest = "no time limit" if found.max_minutes is None else f"{found.max_minutes} minutes at most"
        said = (
            f"cluster {limits.cluster}, partition {name} is {found.state}: {found.nodes} nodes, up to "
            f"{found.gpus_per_node} GPUs, {found.cpus_per_node} cores, {found.mem_mb / 1024:.0f} GB each; {longest}"
        )
        up = found.state == "up"
        fix = "" if up else "jobs wait until it is up again; choose another partition if that is not expected"
        yield scope.finding(OK if up else WARNING, None, key, launcher.partition, said, fix)


def _first(scope: Scope, shapes: dict[str, Shape]) -> dict[Shape, Cell]:
    found: dict[Shape, Cell] = {}
    for cell in scope.todo:
        found.setdefault(shapes[cell.fingerprint], cell)
    return found


def _shapes(scope: Scope, limits: Limits, shapes: dict[str, Shape]) -> Iterator[Finding]:
    launcher = scope.plan.command.launcher
    for shape, cell in _first(scope, shapes).items():
        why = misfit(shape, limits, launcher.partition)
        backbone = cell.config.backbone.name
        key, value = "backbone.resources", backbone
        if why is not None:
            fix = f"choose another launcher.partition, or ask for less: launcher.resources={{{backbone}: {{...}}}}"
            yield scope.finding(PROBLEM, cell, key, value, why, fix)
        elif shape.minutes * 60 <= 2 * launcher.signal_seconds:
            fix = "lower launcher.signal_seconds or ask for more minutes"
            said = f"{shape}: half of the time is the {launcher.signal_seconds} s between the signal and the limit"
            yield scope.finding(WARNING, cell, "launcher.signal_seconds", launcher.signal_seconds, said, fix)
        elif (needed := _until_a_boundary(cell)) > launcher.signal_seconds:
            fix = f"at least {needed:.0f}: what was not saved when the time is over is computed again by the next job"
            said = f"{shape}: an iteration is expected to take {needed / 2:.0f} s, and a checkpoint follows it"
            yield scope.finding(WARNING, cell, "launcher.signal_seconds", launcher.signal_seconds, said, fix)
        else:
            yield scope.finding(OK, cell, key, value, f"{shape} fit")


def _until_a_boundary(cell: Cell) -> float:
    """Seconds from the signal until a run of engine=verl has saved what it has: an iteration may just have begun, and
    the expectation may be off by a factor of two (docs/paper_scale.md). 0 where nothing is expected."""
    config = cell.config
    expected = config.engine == "verl" and sizes_of(config).on_gpu
    return 2 * cost_of(config).iteration_s if expected else 0.0


def _numbers(scope: Scope, limits: Limits, launcher: LauncherConfig, counts: Counter[Shape]) -> Iterator[Finding]:
    largest = max(counts.values(), default=0)
    if launcher.max_array > limits.max_array_size:
        fix = f"at most {limits.max_array_size}, or 0 for what the scheduler allows"
        said = f"the scheduler takes arrays of {limits.max_array_size} elements at most (MaxArraySize)"
        yield scope.finding(PROBLEM, None, "launcher.max_array", launcher.max_array, said, fix)
    per_array = min(launcher.max_array or limits.max_array_size, limits.max_array_size)
    allowed = [n for n in (launcher.max_submitted, limits.max_submit_jobs, limits.max_job_count) if n]
    at_once = min(allowed, default=len(scope.todo))
    waves = -(-len(scope.todo) // max(at_once, 1))
    said = (
        f"{len(scope.todo)} jobs of {len(counts)} shapes, arrays of up to {min(per_array, largest)} elements, at most "
        f"{at_once} in the queue at a time"
    )
    if limits.max_submit_jobs is not None and launcher.max_submitted > limits.max_submit_jobs:
        fix = f"at most {limits.max_submit_jobs}, or 0 for what the scheduler allows"
        told = f"you may have {limits.max_submit_jobs} jobs in the queue (MaxSubmitJobs)"
        yield scope.finding(PROBLEM, None, "launcher.max_submitted", launcher.max_submitted, told, fix)
    elif waves > 1:
        fix = "stay with wait=true, or give the same command again, until all are submitted"
        told = f"{said}: about {waves} waves"
        yield scope.finding(WARNING, None, "launcher.max_submitted", launcher.max_submitted, told, fix)
    else:
        yield scope.finding(OK, None, "launcher.max_submitted", launcher.max_submitted, said)


def _rehearsal(scope: Scope, launcher: LauncherConfig, shapes: dict[str, Shape]) -> Iterator[Finding]:
    from harness.launch import script

    for shape, cell in _first(scope, shapes).items():
        scope.say(f"Slurm: would it take {shape}?")
        with tempfile.TemporaryDirectory(prefix="preflight-") as folder:
            settings = script.parameters(
                launcher, shape, name="preflight", threads=cell.config.runtime.threads, snapshot=Path(folder), size=1
            )
            text = script.script_text(Path(folder), launcher, settings, 1)
            path = Path(folder) / "preflight.sh"
            path.write_text(text, encoding="utf-8")
            with script.outside_of_jobs():
                status, words = _ask(["sbatch", "--test-only", str(path)])
        key, value = _blamed(launcher, words)
        if status != 0:
            fix = f"correct {key}; `sbatch --test-only` with the script of docs/slurm.md says the same"
            yield scope.finding(PROBLEM, cell, key, value, f"sbatch would refuse {shape}: {words}", fix)
        else:
            said = f"sbatch would take {shape} under account {launcher.account or '(default)'}"
            yield scope.finding(OK, cell, "launcher.account", launcher.account, f"{said}: {words}")


def _ask(command: list[str]) -> tuple[int, str]:
    """Exit status and what was said; a client that does not answer has status 1."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_CLIENT_SECONDS,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return 1, f"no answer within {_CLIENT_SECONDS:g} s"
    except OSError as error:
        return 1, f"sbatch cannot be run ({error.strerror})"
    lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    return done.returncode, redact("; ".join(lines[:3])) or f"status {done.returncode}"


def _blamed(launcher: LauncherConfig, words: str) -> tuple[str, object]:
    """The setting that sbatch's words are most likely about."""
    lowered = words.lower()
    for word, key, value in (
        ("account", "launcher.account", launcher.account),
        ("qos", "launcher.qos", launcher.qos),
        ("partition", "launcher.partition", launcher.partition),
        ("feature", "launcher.constraint", launcher.constraint),
        ("constraint", "launcher.constraint", launcher.constraint),
    ):
        if word in lowered:
            return key, value
    return "launcher.sbatch", launcher.sbatch or None
