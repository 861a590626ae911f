"""What `do=plan` prints about jobs: shapes, GPU hours, and the scripts that would be submitted."""

from __future__ import annotations

from collections.abc import Sequence

from harness.launch.script import parameters, script_text
from harness.launch.shapes import Shape, gpu_hours, gpu_hours_words, shape_of
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
        rows.append((str(number), str(shape), str(len(cells)), f"{gpu_hours([shape] * len(cells)):.2f}"))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _cost(plan: Plan, shapes: dict[Shape, list[Cell]]) -> str:
    most = gpu_hours(shape for shape, cells in shapes.items() for _ in cells)
    launcher = plan.command.launcher
    if not most:
        return "GPU hours: none, no job asks for a GPU"
    told = gpu_hours_words(most, launcher.requeues)
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
