"""What `do=plan` shows of engine=verl: each distinct configuration once, checked by verl, written and explained."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.config import RunConfig
from harness.errors import ConfigError, Problem
from harness.plan import Plan
from harness.stages import Cell
from harness.training.verl.attention import memory_note
from harness.training.verl.config import VerlMissingError, compose, table_of, verl_version
from harness.training.verl.cost import Cost, cost_of
from harness.training.verl.settings import Setting
from harness.training.verl.sizes import Sizes, sizes_of
from harness.training.verl.validation import SOUND, ValidationError, validate

RUN_DIR = Path("RUN_DIR")  # stands for the run's folder, which differs from cell to cell
FOLDER, PREFIX = "plan", "verl-"
ENGINE = "verl"


@dataclass(frozen=True)
class Variant:
    """One configuration of verl, shared by cells that differ in seed and folder, or in what verl does not see.

    name: of its file; cells: those that it is for; text: YAML, None without verl
    """

    name: str
    cells: tuple[Cell, ...]
    table: tuple[Setting, ...]
    sizes: Sizes
    cost: Cost
    text: str | None

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.row.id for cell in self.cells))


@dataclass(frozen=True)
class Checked:
    """All variants of a plan. version: of verl, None if it is not installed."""

    variants: tuple[Variant, ...]
    version: str | None


def check(plan: Plan, cells: Iterable[Cell] | None = None) -> Checked:
    """Compose and validate what the cells need of verl. cells: None for those selected, with their teachers.

    Raises ConfigError with everything that verl objects to. Without verl nothing is validated, and `version` is None.
    """
    wanted = [cell for cell in (_selected(plan) if cells is None else cells) if cell.config.engine == ENGINE]
    if not wanted:
        return Checked((), None)
    try:
        version: str | None = verl_version()
    except VerlMissingError:
        version = None
    groups: dict[str, list[Cell]] = {}
    tables: dict[str, tuple[Setting, ...]] = {}
    for cell in wanted:
        table = table_of(_common(cell.config), RUN_DIR)
        key = hashlib.sha256(repr(table).encode()).hexdigest()
        tables.setdefault(key, table)
        groups.setdefault(key, []).append(cell)
    names = _names(groups)
    variants = tuple(_variant(names[key], groups[key], tables[key], version) for key in groups)
    if version is not None:
        _require_sound(variants, version)
    return Checked(variants, version)


def _selected(plan: Plan) -> list[Cell]:
    """The selected cells and those whose weights they need, in the plan's order."""
    wanted, todo = set[str](), [cell.fingerprint for cell in plan.selected]
    known = {cell.fingerprint: cell for cell in plan.cells}
    while todo:
        name = todo.pop()
        if name not in wanted:
            wanted.add(name)
            todo += known[name].requires
    return [cell for cell in plan.cells if cell.fingerprint in wanted]


def _common(config: RunConfig) -> RunConfig:
    """A cell's configuration without its seed, which verl gets too but which changes nothing else."""
    return replace(config, seed=0)


def _names(groups: Mapping[str, Sequence[Cell]]) -> dict[str, str]:
    """A file's name for each group: environment and backbone, and the first row where that is not enough."""
    stems = {key: f"{cells[0].config.env.name}-{cells[0].config.backbone.name}" for key, cells in groups.items()}
    shared = Counter(stems.values())
    found: dict[str, str] = {}
    for key, stem in stems.items():
        name = stem if shared[stem] == 1 else f"{stem}-{groups[key][0].row.id.replace('/', '-')}"
        alike = sum(other == name or other.startswith(f"{name}~") for other in found.values())
        found[key] = f"{name}~{alike + 1}" if alike else name
    return found


def _variant(name: str, cells: Sequence[Cell], table: tuple[Setting, ...], version: str | None) -> Variant:
    from omegaconf import OmegaConf

    config = _common(cells[0].config)
    text = None if version is None else OmegaConf.to_yaml(compose(config, RUN_DIR))
    return Variant(name, tuple(cells), table, sizes_of(config), cost_of(config), text)


def _require_sound(variants: Sequence[Variant], version: str) -> None:
    from envs.cache import cache_root

    texts = {variant.name: variant.text for variant in variants if variant.text is not None}
    folder = cache_root(variants[0].cells[0].config.env) / "verl"
    try:
        answers = validate(texts, version, folder)
    except (ValidationError, OSError) as error:
        raise ConfigError(Problem("engine", ENGINE, "", str(error))) from error
    refused: dict[str, list[str]] = {}
    for name, answer in answers.items():
        if answer != SOUND:
            refused.setdefault(answer, []).append(name)
    found = [
        Problem("engine", ENGINE, "", f"verl {version} refuses the configuration of {', '.join(names)}: {answer}")
        for answer, names in refused.items()
    ]
    if found:
        raise ConfigError(found)


# ---------------------------------------------------------------------------------------------------------- reporting
def notes(plan: Plan, cells: Iterable[Cell]) -> list[str]:
    """What a command that starts these cells must say of them. Raises ConfigError for what verl refuses."""
    checked = check(plan, cells)
    found = [f"warning: {variant.name}: {note}" for variant in checked.variants for note in _memory(variant)]
    if checked.variants and checked.version is None:
        many = len(checked.variants)
        found.append(f"warning: verl is not installed here, so that {many} configurations were NOT VALIDATED")
    return found


def section(plan: Plan) -> list[str]:
    """Lines for people, and the files that they name. Empty without cells of engine=verl. Raises ConfigError."""
    checked = check(plan)
    if not checked.variants:
        return []
    folder = plan.results / FOLDER
    write(checked, folder)
    many = f"{len(checked.variants)} configuration{'s' if len(checked.variants) > 1 else ''}"
    if checked.version is None:
        head = (
            f"verl is not installed here: {many} NOT VALIDATED, and only what the harness sets is written "
            "(pip install -e '.[verl]' in the clone validates them)"
        )
    else:
        head = f"verl {checked.version}: {many}, each validated by verl"
    lines = ["", head]
    for variant in checked.variants:
        seeds = len(variant.cells)
        lines.append(f"  {folder / f'{PREFIX}{variant.name}.yaml'}: {seeds} cells ({', '.join(variant.rows)})")
        lines.append(f"    {variant.sizes.text()}")
        lines += [f"    warning: {note}" for note in _memory(variant)]
        lines += [f"    {line}" for line in _costs(variant)]
    return [*lines, *_total(checked.variants)]


def _memory(variant: Variant) -> list[str]:
    """What may not fit. Rows that only evaluate share a configuration with rows that train."""
    return list(dict.fromkeys(note for cell in variant.cells if (note := memory_note(cell.config)) is not None))


def _costs(variant: Variant) -> list[str]:
    """What a run costs, one line for all rows that cost the same."""
    found: dict[str, dict[str, None]] = {}
    for cell in variant.cells:
        if variant.sizes.on_gpu:
            found.setdefault(cost_of(cell.config).text(), {})[cell.row.id] = None
    return [f"{text} each: {', '.join(rows)}" for text, rows in found.items()]


def _total(variants: Sequence[Variant]) -> list[str]:
    costs = [cost_of(cell.config) for variant in variants if variant.sizes.on_gpu for cell in variant.cells]
    if not costs:
        return []
    hours, calls = sum(c.gpu_hours for c in costs), sum(c.analyzer_calls for c in costs)
    return [
        f"expected in all: about {hours:,.0f} GPU hours and {calls:,} analyzer calls; computed, never measured "
        "(docs/paper_scale.md has the formula)"
    ]


def write(checked: Checked, folder: Path) -> None:
    """One file per variant: where each value comes from, then the whole configuration. Files of earlier plans go."""
    from harness.files import atomic_write

    folder.mkdir(parents=True, exist_ok=True)
    names = {f"{PREFIX}{variant.name}.yaml" for variant in checked.variants}
    for old in sorted(folder.glob(f"{PREFIX}*.yaml")):
        if old.name not in names:
            old.unlink()
    for variant in checked.variants:
        atomic_write(folder / f"{PREFIX}{variant.name}.yaml", _file_text(variant, checked.version).encode())


def _file_text(variant: Variant, version: str | None) -> str:
    from omegaconf import OmegaConf

    told = (
        f"verl {version}, validated" if version else "verl is not installed: not validated, only what the harness sets"
    )
    lines = [
        f"# {variant.name}: {told}",
        f"# rows: {', '.join(variant.rows)}",
        f"# {variant.sizes.text()}",
        f"# seed 0 and {RUN_DIR} stand for those of each cell. What the harness sets, and from where:",
        *(f"#   {s.key} = {s.value}  <- {s.source}" for s in variant.table),
    ]
    if variant.text is not None:
        return "\n".join([*lines, "", variant.text])
    node = OmegaConf.create()
    for setting in variant.table:
        OmegaConf.update(node, setting.key, setting.value, merge=True, force_add=True)
    return "\n".join([*lines, "", OmegaConf.to_yaml(node)])
