"""Figures of a sweep from its records alone, as PDF and PNG: same records, same pixels and same bytes.

One module per family; each has `draw(sources)`, which yields what it made, or says why there is nothing to show.
matplotlib and seaborn are imported inside functions only.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import ConfigError, Problem, suggest

if TYPE_CHECKING:
    from analysis.figures.sources import Sources
    from analysis.tableset import Tables

# Family -> what it shows; the order is that of a report.
FAMILIES = {
    "overall": "success of every row on every panel, with interval and seeds",
    "training_curves": "success, episode length and invalid actions while training, by steps and by time",
    "sample_efficiency": "success against the fraction of the training tasks or steps",
    "seen_unseen": "one checkpoint on seen tasks and on unseen ones or held-out types, paired per seed",
    "ablation": "every row minus its base row, paired",
    "critical_steps": "steps per trajectory that got a skill of their own",
    "advantages": "magnitude of the outcome's and the skill's part of the advantage",
    "retirement": "when a teacher was retired, and what was known then",
    "profile": "performance profile and interquartile mean over task types and seeds",
    "trajectories": "two trajectories of one task, step by step",
}
ALL = "all"
INDEX = "index.json"
Result = tuple[str, tuple[Path, ...] | str]  # name of a figure or family, and its files or why there is none


def write(out: Path, sweep: str, which: Sequence[str] | str = ALL, tables: Tables | None = None) -> list[Result]:
    """Draw families of figures into <out>/results/<sweep>/figures/.

    which: names of FAMILIES, or "all". tables: of this sweep, if they were made already
    Returns every figure with its files, and every figure or family that was not drawn with the reason. Figures that an
    earlier call made and this one no longer has reason to draw are removed: they would show other records.
    Raises ConfigError for an unknown family or if there is no usable plan, and harness.files.RecordError if a file
    cannot be written.
    """
    names = tuple(FAMILIES) if which == ALL else ((which,) if isinstance(which, str) else tuple(which))
    problems = [
        Problem("figures", name, "", f"there is no such family; {suggest(name, (*FAMILIES, ALL))}")
        for name in names
        if name not in FAMILIES
    ]
    if problems or not names:
        raise ConfigError(problems or Problem("figures", "", "", f"names no family; known: {', '.join(FAMILIES)}"))
    from analysis.figures.sources import Sources
    from analysis.figures.style import drawing

    sources = Sources.read(out, sweep, tables)
    folder = out / "results" / sweep / "figures"
    results: list[Result] = []
    index = _read_index(folder)
    with drawing():
        for family in (name for name in FAMILIES if name in names):
            made = list(_family(sources, family, folder))
            kept = {path.name for _, paths in made if not isinstance(paths, str) for path in paths}
            _remove(folder, set(index.get(family, ())) - kept)
            index[family] = sorted(kept)
            results += made
    _write_index(folder, index)
    return results


def _family(sources: Sources, family: str, folder: Path) -> Iterator[Result]:
    from analysis.figures.style import save

    drawn = importlib.import_module(f"analysis.figures.{family}").draw(sources)
    for name, figure, reason in drawn:
        yield (name, save(figure, folder, name) if figure is not None else reason)


def _read_index(folder: Path) -> dict[str, list[str]]:
    """Family -> names of the files that the last call left. An index that cannot be read names none."""
    from harness.files import RecordError, read_json_object

    try:
        content: dict[str, Any] = read_json_object(folder / INDEX) or {}
    except RecordError:
        return {}
    return {
        family: [name for name in content.get(family, ()) if isinstance(name, str) and name and Path(name).name == name]
        for family in FAMILIES
        if isinstance(content.get(family, ()), list)
    }


def _write_index(folder: Path, index: dict[str, list[str]]) -> None:
    from harness.files import atomic_write_json

    folder.mkdir(parents=True, exist_ok=True)
    atomic_write_json(folder / INDEX, {family: index[family] for family in FAMILIES if family in index})


def _remove(folder: Path, names: set[str]) -> None:
    from harness.files import writing

    for name in sorted(names):
        with writing(folder / name):
            (folder / name).unlink(missing_ok=True)
