"""Task panels: ordered, hashed, complete, and disjoint from what is trained on.

Nothing here depends on the order in which a file system lists folders, on worker counts or on random state: every order
comes from sorted ids or from content hashes.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import cast

from envs.interface import EnvConfig, Panel, Task

_SHOWN = 20  # tasks named in an error before the rest is only counted


class PanelError(ValueError):
    """A panel, or what was done with it, breaks the rules of fair evaluation."""


def digest(*texts: str) -> str:
    """sha256 (hex) over the texts in order. ("ab", "c") and ("a", "bc") differ."""
    total = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8")
        total.update(f"{len(data)}:".encode())
        total.update(data)
    return total.hexdigest()


def panel_hash(env: str, data_version: str, split: str, tasks: Iterable[Task]) -> str:
    """Over (env, data version, split, every content hash in order)."""
    return digest(env, data_version, split, *(task.content_hash for task in tasks))


def build_panel(env: str, data_version: str, name: str, tasks: Iterable[Task]) -> Panel:
    """The panel of these tasks, sorted by id. Raises PanelError for an empty panel or an id that occurs twice."""
    ordered = tuple(sorted(tasks, key=lambda task: task.id))
    if not ordered:
        raise PanelError(f"panel {name!r} of {env} ({data_version}) has no tasks")
    twice = sorted(i for i, count in Counter(task.id for task in ordered).items() if count > 1)
    if twice:
        raise PanelError(f"panel {name!r} of {env} ({data_version}) has ids that occur more than once: {_some(twice)}")
    return Panel(name, data_version, ordered, panel_hash(env, data_version, name, ordered))


def assert_disjoint(train: Panel, *others: Panel) -> None:
    """Raises PanelError naming each task of `others` whose content is trained on, whatever its id."""
    trained: dict[str, str] = {task.content_hash: task.id for task in train.tasks}
    for other in others:
        shared = [
            f"{task.id} (trained as {trained[task.content_hash]})"
            for task in other.tasks
            if task.content_hash in trained
        ]
        if shared:
            raise PanelError(
                f"panel {other.name!r} shares {len(shared)} of {len(other.tasks)} tasks with panel {train.name!r}, "
                f"so its scores would be training scores: {_some(shared)}"
            )


def permutation(panel: Panel) -> tuple[Task, ...]:
    """The one fixed order from which data fractions are taken.

    Within a type tasks are ordered by a hash of their content; the types are then interleaved in proportion to their
    size, so that every prefix has about the panel's own mixture of types.
    """
    by_type: dict[str, list[tuple[str, Task]]] = defaultdict(list)
    for task in panel.tasks:
        by_type[task.type].append((digest("order", task.content_hash, task.id), task))
    placed = []
    for tasks in by_type.values():
        for rank, (order, task) in enumerate(sorted(tasks, key=lambda pair: pair[0])):
            placed.append(((rank + 0.5) / len(tasks), order, task))
    return tuple(task for _, _, task in sorted(placed, key=lambda entry: entry[:2]))


def subset(env: str, panel: Panel, fraction: float) -> Panel:
    """The first ceil(fraction * N) tasks of the fixed permutation, as a panel sorted by id.

    Nested: a smaller fraction is inside every larger one. fraction 1 is the panel itself. Raises PanelError outside
    (0, 1].
    """
    if not 0.0 < fraction <= 1.0:
        raise PanelError(f"fraction={fraction!r} of panel {panel.name!r} is outside (0, 1]")
    if fraction == 1.0:
        return panel
    # 0.1 * 30 is a little more than 3 in binary: rounded off first, so that ceil does not add a task
    count = math.ceil(round(fraction * len(panel.tasks), 9))
    return build_panel(env, panel.data_version, panel.name, permutation(panel)[:count])


def assert_each_once(
    panel: Panel, graded: Iterable[str], excluded: Mapping[str, str] | Iterable[str] = (), repeats: int = 1
) -> None:
    """Every task was evaluated exactly `repeats` times: requested = graded + excluded.

    graded: task ids of graded episodes, one per episode; excluded: ids of episodes left out for an infrastructure
    failure (a mapping gives the reason). Raises PanelError naming the tasks that are missing, repeated or foreign.
    """
    counts = Counter(graded)
    counts.update(list(excluded))
    wanted = {task.id for task in panel.tasks}
    foreign = sorted(set(counts) - wanted)
    few = sorted(i for i in wanted if counts[i] < repeats)
    many = sorted(i for i in wanted if counts[i] > repeats)
    if not (foreign or few or many):
        return
    problems = []
    if few:
        problems.append(f"{len(few)} played fewer than {repeats} times: {_some(few)}")
    if many:
        problems.append(f"{len(many)} played more than {repeats} times: {_some(many)}")
    if foreign:
        problems.append(f"{len(foreign)} not in the panel: {_some(foreign)}")
    raise PanelError(f"panel {panel.name!r} ({len(wanted)} tasks) was not evaluated as a panel; " + "; ".join(problems))


def panel_identity(config: EnvConfig, panel: str) -> str:
    """What determines the tasks of a panel, without making them.

    An environment that can tell says so in `metadata["panel_identity"]`, a function (config, panel) -> str; otherwise
    the panel is loaded and its hash is the answer. Raises ValueError for an unknown panel, FileNotFoundError for
    missing data.
    """
    from envs import registry

    spec = registry.get(config.name)
    if panel not in spec.panels:
        raise ValueError(f"{config.name} has no panel {panel!r}; it has {', '.join(spec.panels)}")
    tell = cast("Callable[[EnvConfig, str], str] | None", spec.metadata.get("panel_identity"))
    if tell is not None:
        return tell(config, panel)
    return spec.load_panel(config, panel).hash


def _some(names: list[str]) -> str:
    """The names, or the first of them and how many there are besides."""
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
