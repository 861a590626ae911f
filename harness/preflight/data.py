"""Is what runs read there, whole, and what it says it is: task panels and the weights that runs start from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envs.interface import Panel
from envs.panels import assert_disjoint
from harness import backbones, registry
from harness.backbones.content import file_sha256
from harness.backbones.snapshots import SnapshotError, snapshot, snapshot_problems, token_limit
from harness.config import RunConfig
from harness.panels import TRAIN, VALIDATION, used_panels
from harness.preflight.findings import OK, PROBLEM, WARNING, Finding, Scope, groups
from harness.stages import Cell

_FAILURES = (OSError, ValueError, ImportError, RuntimeError, KeyError)  # what loaders of data raise


# -------------------------------------------------------------------------------------------------------------- panels
def panels(scope: Scope) -> Iterator[Finding]:
    """Every panel that runs touch is loaded once and hashed; trained and judged tasks have nothing in common."""
    for first, cells in groups(scope, lambda cell: cell.config.env):
        names = list(dict.fromkeys(name for cell in cells for name in used_panels(cell.config)))
        yield from _of_environment(scope, first, names)


def _of_environment(scope: Scope, cell: Cell, names: list[str]) -> Iterator[Finding]:
    env = cell.config.env
    loaded: dict[str, Panel] = {}
    contents: dict[str, list[Any]] = {}
    for name in names:
        try:
            versions = {k: v for k, v in registry.env_spec(env.name).metadata.items() if isinstance(v, (str, int))}
            contents[name] = [repr(env), name, registry.panel_identity(env, name), versions]
            found = scope.cache.get("panel", contents[name])
            if found is None:
                scope.say(f"tasks: {env.name} {name}")
                loaded[name] = panel = registry.env_spec(env.name).load_panel(env, name)
                found = {"tasks": len(panel.tasks), "hash": panel.hash, "data": panel.data_version}
                scope.cache.put("panel", contents[name], found)
        except _FAILURES as error:
            contents.pop(name, None)
            fix = "see docs/environments.md for where the data come from; env.data=null plays generated tasks"
            said = f"panel {name} of {env.name} cannot be loaded: {type(error).__name__}: {error}"
            yield scope.finding(PROBLEM, cell, "env.data", env.data, said, fix)
            continue
        said = f"{env.name} {name}: {found['tasks']} tasks of {found['data']}, sha256 {str(found['hash'])[:16]}"
        yield scope.finding(OK, cell, "env.data", env.data, said)
    yield from _disjoint(scope, cell, contents, loaded)


def _disjoint(scope: Scope, cell: Cell, contents: dict[str, list[Any]], loaded: dict[str, Panel]) -> Iterator[Finding]:
    env = cell.config.env
    learnt = [name for name in (TRAIN, VALIDATION) if name in contents]
    judged = [name for name in contents if name not in learnt]
    if not learnt or len(contents) < 2 or scope.cache.get("disjoint", list(contents.values())) is not None:
        return
    try:
        for name in contents:
            loaded.setdefault(name, registry.env_spec(env.name).load_panel(env, name))
        for position, name in enumerate(learnt):
            others = [*learnt[position + 1 :], *judged]
            assert_disjoint(loaded[name], *(loaded[other] for other in others))
    except _FAILURES as error:
        fix = "choose other panels in evaluation.panels, or correct the data"
        yield scope.finding(PROBLEM, cell, "evaluation.panels", judged, str(error), fix)
        return
    scope.cache.put("disjoint", list(contents.values()), {"disjoint": True})


# ----------------------------------------------------------------------------------------------------------- backbones
def weights(scope: Scope, *, hashed: bool = True) -> Iterator[Finding]:
    """Embedded backbones as their recipes describe them, others as whole local snapshots. hashed: read the weights of
    embedded ones, which are small."""
    for cell, _ in groups(scope, lambda c: (c.config.backbone, c.config.env.name, c.config.env.cache)):
        embedded = cell.config.backbone.kind == "embedded"
        yield from _embedded(scope, cell, hashed) if embedded else _snapshot(scope, cell)


def _embedded(scope: Scope, cell: Cell, hashed: bool) -> Iterator[Finding]:
    backbone, env = cell.config.backbone, cell.config.env
    what = f"{backbone.name} for {env.name}"
    try:
        folder = backbones.find(backbone, env)
    except _FAILURES as error:
        yield scope.finding(
            PROBLEM, cell, "backbone.name", backbone.name, f"{what}: {error}", "choose another backbone"
        )
        return
    if folder is None:
        fix = f"nothing, or make it now: python -m harness.backbones build {backbone.name}"
        said = f"{what} is not made yet; the first command makes it (minutes to an hour on a CPU)"
        yield scope.finding(WARNING, cell, "backbone.name", backbone.name, said, fix)
        return
    if not hashed:
        yield scope.finding(OK, cell, "backbone.name", backbone.name, f"{what} is there")
        return
    wanted = str(json.loads((folder / backbones.RECIPE).read_text(encoding="utf-8"))[backbones.DIGEST])
    found = file_sha256(folder / backbones.MODEL)
    if wanted != found:
        fix = f"delete {folder} to have it made again, or restore it"
        said = f"{what} has weights {found[:16]}, its recipe describes {wanted[:16]}"
        yield scope.finding(PROBLEM, cell, "backbone.name", backbone.name, said, fix)
        return
    yield scope.finding(OK, cell, "backbone.name", backbone.name, f"{what}: weights sha256 {found[:16]}")


def _snapshot(scope: Scope, cell: Cell) -> Iterator[Finding]:
    backbone = cell.config.backbone
    key, value = "backbone.path", backbone.path
    try:
        folder = snapshot(backbone)
    except SnapshotError as error:
        yield scope.finding(PROBLEM, cell, key, value, str(error), error.fix)
        return
    if broken := snapshot_problems(folder):
        fix = "download the snapshot again, or name another folder"
        yield scope.finding(PROBLEM, cell, key, value, f"{folder} is no whole snapshot: {'; '.join(broken)}", fix)
        return
    longest = _longest(cell.config)
    most = token_limit(folder)
    if most is not None and longest > most:
        fix = "lower training.max_prompt_tokens, or choose a backbone that reads more"
        said = f"prompt and response make {longest} tokens, {backbone.name} reads {most}"
        yield scope.finding(PROBLEM, cell, "training.max_prompt_tokens", longest, said, fix)
    size = sum(path.stat().st_size for path in weight_files(folder))
    if Path(value or "").expanduser().is_dir():
        identity = backbones.identity(backbone, cell.config.env)
        said = f"{backbone.name}: {size / 1e9:.1f} GB of weights, {identity}"
        yield scope.finding(OK, cell, key, value, said)
    elif not backbone.revision:
        fix = f"pin it: backbone.revision={folder.name}"
        said = f"{backbone.name} is the hub's newest as of its download; a newer one would be another model"
        yield scope.finding(WARNING, cell, "backbone.revision", None, said, fix)
    else:
        said = f"{backbone.name}: {size / 1e9:.1f} GB of weights in the hub's cache, revision {folder.name[:12]}"
        yield scope.finding(OK, cell, key, value, said)


def weight_files(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.safetensors"))
    return found or sorted(folder.glob("pytorch_model*.bin"))


def _longest(config: RunConfig) -> int:
    return config.training.max_prompt_tokens + config.training.max_response_tokens
