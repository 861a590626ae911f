"""What `do=plan` prints about jobs: shapes, GPU hours, and the scripts that would be submitted."""

from __future__ import annotations

from collections.abc import Sequence

from harness.launch.script import parameters, script_text
from harness.launch.shapes import Shape, gpu_hours, shape_of
from harness.plan import Plan
from harness.redaction import redact
from harness.stages import Cell

# In place of what is only known when jobs are submitted.
BATCH, DIGEST, TEACHER = "BATCH", "DIGEST", "JOB_OF_THE_TEACHER"


def jobs_text(plan: Plan, todo: Sequence[Cell]) -> str:
    """The jobs of cells that are to be run. Starts nothing and asks no scheduler. ConfigError."""
    if not todo:
        return "jobs: none, everything is complete"
    missing = {cell.fingerprint for cell in todo}
    shapes: dict[Shape, list[Cell]] = {}
    arrays = set()
    for cell in todo:
        shape = shape_of(cell.config)
        shapes.setdefault(shape, []).append(cell)
        arrays.add((shape, cell.config.runtime.threads, tuple(name for name in cell.requires if name in missing)))
    many = f"{len(arrays)} array{'' if len(arrays) == 1 else 's'}"
    least = ", more where the site allows fewer elements"
    lines = [f"jobs: {len(todo)} in {many}{least} (launcher=slurm)", "", *_table(shapes), "", _cost(plan, shapes)]
    for number, (shape, cells) in enumerate(shapes.items(), start=1):
        lines += ["", *_script(plan, number, shape, cells, missing)]
    known = f"{BATCH} and {DIGEST} (of the code) are known when it is submitted"
    return "\n".join([*lines, "", known])


def _table(shapes: dict[Shape, list[Cell]]) -> list[str]:
    rows = [("shape", "asks for", "jobs", "GPU hours at most")]
    for number, (shape, cells) in enumerate(shapes.items(), start=1):
        rows.append((str(number), str(shape), str(len(cells)), f"{_most(shape) * len(cells):.2f}"))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _most(shape: Shape) -> float:
    """GPU hours of one job that uses up its time limit once."""
    return gpu_hours(shape, shape.minutes * 60)


def _cost(plan: Plan, shapes: dict[Shape, list[Cell]]) -> str:
    most = sum(_most(shape) * len(cells) for shape, cells in shapes.items())
    paid = [(shape, cell.expected_seconds) for shape, cells in shapes.items() for cell in cells if shape.gpus]
    expected = sum(gpu_hours(shape, seconds) for shape, seconds in paid if seconds is not None)
    unknown = sum(seconds is None for _, seconds in paid)
    launcher = plan.command.launcher
    if not paid:
        return "GPU hours: none, no job asks for a GPU"
    told = f"GPU hours: at most {most:.2f} if every job uses its whole time limit once (each may come back "
    told += f"{launcher.requeues} times: launcher.requeues)"
    told += f"; expected {expected:.2f}" if unknown < len(paid) else "; expected: unknown"
    told += f" and unknown for {unknown} jobs" if 0 < unknown < len(paid) else ""
    if (budget := launcher.budget_gpu_hours) is not None:
        told += f"; budget {budget:g} (launcher.budget_gpu_hours){', exceeded' if most > budget else ''}"
    return told


def _script(plan: Plan, number: int, shape: Shape, cells: Sequence[Cell], missing: set[str]) -> list[str]:
    """The script of the largest array of a shape that waits for nobody, or of its largest one."""
    free = [cell for cell in cells if not missing.intersection(cell.requires)]
    launcher = plan.command.launcher
    chosen = free or cells
    size = min(len(chosen), launcher.max_array or len(chosen))
    settings = parameters(
        launcher, shape, name=plan.sweep.name, threads=chosen[0].config.runtime.threads,
        snapshot=plan.out / "snapshots" / DIGEST, size=size, after=() if free else (TEACHER,),
    )  # fmt: skip
    text = redact(script_text(plan.out / "slurm" / BATCH, launcher, settings, size))
    lines = [f"script of shape {number} ({shape})", *(f"    {line}".rstrip() for line in text.strip().splitlines())]
    if free and len(free) < len(cells):
        students = len(cells) - len(free)
        lines.append(
            f"    and for {students} that wait for their teachers: #SBATCH --dependency=afterok:{TEACHER}, "
            "#SBATCH --kill-on-invalid-dep=yes"
        )
    return lines
