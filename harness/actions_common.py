"""What actions of the command line share: messages, checks before anything starts, preparation, tables."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.cli import INCOMPLETE, OK
from harness.config import RunConfig
from harness.errors import ConfigError, Problem
from harness.files import RecordError
from harness.folders import check_writable
from harness.plan import Plan, missing
from harness.record import RunDirectory
from harness.report import cell_label
from harness.stages import Cell, used_panels


class PreparationError(RuntimeError):
    """What runs share could not be made; no run was started."""


def say(text: str) -> None:
    """A message about the work; results go to standard output, messages do not."""
    print(text, file=sys.stderr, flush=True)


# ----------------------------------------------------------------------------------------------------- before the start
def check_folder(plan: Plan) -> None:
    """ConfigError unless the output folder can take what runs write."""
    runtime = plan.command.runtime
    check_writable(plan.out, "runtime.out", plan.out_origin, runtime.min_free_gb)


def check_caches(cells: Sequence[Cell]) -> None:
    """The folders of what runs share, like the output folder: before anything starts."""
    from harness.prepare import check_cache

    for config in {cell.config.env.cache: cell.config for cell in cells}.values():
        check_cache(config)


def check_before_submitting(plan: Plan, cells: Sequence[Cell], gpus: bool) -> None:
    """PreparationError if something that can be looked at beforehand will go wrong: at everything, with a step of each
    method, where the runs are paid for (gpus: their jobs ask for some), else at what takes a second."""
    from harness.actions_preflight import findings_text, gate
    from harness.preflight import PROBLEM, check
    from harness.preflight.money import priced

    if gpus or any(priced(cell.config) for cell in cells):
        if not gate(plan, say):
            raise PreparationError("preflight found a problem")
    elif found := [finding for finding in check(plan) if finding.status == PROBLEM]:
        raise PreparationError(f"nothing was submitted:\n{findings_text(found)}")


def labels_of(plan: Plan) -> dict[str, str]:
    """Fingerprint -> how messages call the cell."""
    return {cell.fingerprint: cell_label(plan, cell) for cell in plan.cells}


def create_run(plan: Plan, cell: Cell, *, update: bool = True) -> RunDirectory:
    """The cell's run directory, made now if there is none. update: see RunDirectory.create. ConfigError if that cannot
    be."""
    try:
        return RunDirectory.create(plan.runs, cell.config, cell.fingerprint, update=update)
    except RecordError as error:
        raise ConfigError(Problem("runtime.out", str(plan.out), "", str(error))) from error


def prepare_cells(cells: Sequence[Cell]) -> None:
    """Make what several runs share (games, the embedded model) once, before any of them starts."""
    from harness.prepare import prepare, uses_skills

    groups: dict[str, RunConfig] = {}
    for cell in cells:
        config = cell.config
        shared = repr((config.env, config.backbone, used_panels(config)))
        # A run that uses skills asks for more than one that does not: it speaks for all of its group.
        if shared not in groups or (uses_skills(config) and not uses_skills(groups[shared])):
            groups[shared] = config
    for config in groups.values():
        try:
            prepare(config, say)
        except (OSError, ImportError, ValueError, RuntimeError) as error:
            if config.runtime.log_level == "DEBUG":
                raise
            what = f"env={config.env.name} and backbone={config.backbone.name}"
            raise PreparationError(
                f"cannot prepare {what}: {type(error).__name__}: {error} (runtime.log_level=DEBUG shows where)"
            ) from error


# ---------------------------------------------------------------------------------------------------------- reporting
def print_table(plan: Plan) -> None:
    from analysis.tables import write_main_table

    written = write_main_table(plan.out, plan.sweep.name)
    print(written["text"])
    paths = ", ".join(shown(written[kind]) for kind in ("md", "html", "csv"))
    print(f"wrote {paths}{elsewhere(plan)}", flush=True)


def print_extras(plan: Plan) -> None:
    """Draw the figures and write the report; say which figure was not drawn, and why."""
    from analysis.outputs import write_extras

    say(f"{plan.title}: drawing figures, writing the report")
    for line in write_extras(plan.out, plan.sweep.name):
        print(line, flush=True)


def elsewhere(plan: Plan) -> str:
    """Where the results of changed settings are, since they have a folder of their own."""
    if not plan.sweep.changes:
        return ""
    place = "" if plan.out == Path.cwd() else f" out={shlex.quote(str(plan.out))}"
    name = plan.sweep.name
    return f"\nresults of these settings are called {name}: python -m analysis sweep={name}{place}"


def exit_status(plan: Plan, state_of: Mapping[str, str]) -> int:
    lacking = missing(plan, state_of)
    if not lacking:
        return OK
    counts = Counter(state_of[cell.fingerprint] for cell in lacking)
    told = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
    say(f"{len(lacking)} of {len(plan.selected)} cells are not complete ({told}); do=status says which and why")
    return INCOMPLETE


def shown(path: Path) -> str:
    """Relative to the current folder where that is shorter to read."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
