"""What a plan costs before it is paid for: GPU hours against the budget, questions to an analyzer, room on the disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from harness import backbones
from harness.backbones.snapshots import SnapshotError, parameters, snapshot
from harness.config import RunConfig
from harness.errors import ConfigError
from harness.launch.shapes import gpu_hours, gpu_hours_words, shape_of
from harness.plan import Plan
from harness.preflight.findings import OK, PROBLEM, WARNING, Finding, Scope, groups
from harness.record import RunDirectory, planned_steps
from harness.stages import Cell

_TOKEN_CHARS = 4  # characters of English per token, about; what tokenizers of such models average
_REQUEST_CHARS = 2500  # of the request around the record of an episode (methods.skills.analyzers.prompt)
_STEP_CHARS = 120  # of an action and its frame in that record
_RECORDS_BYTES = 20e6  # spool, episodes, sampled trajectories, log: 0.3 MB at laptop scale (measured), text grows
_KEPT = 2  # checkpoints of a run (harness.training.checkpoint.KEEP, which imports torch)


# ------------------------------------------------------------------------------------------------------------ GPU hours
def budget(scope: Scope) -> Iterator[Finding]:
    """A plan whose jobs may take more GPU hours, by their time limits, than launcher.budget_gpu_hours is refused."""
    launcher = scope.plan.command.launcher
    allowed = launcher.budget_gpu_hours
    key = "launcher.budget_gpu_hours"
    try:
        hours = gpu_hours(shape_of(cell.config) for cell in scope.todo)
    except ConfigError as error:
        for wrong in error.problems:
            yield Finding(PROBLEM, wrong.key, wrong.value, wrong.origin, wrong.fix, "correct launcher.resources")
        return
    said = f"{len(scope.todo)} cells take {gpu_hours_words(hours, launcher.requeues)}"
    if allowed is None:
        if hours:
            yield scope.finding(OK, None, key, None, f"{said}; no budget is set")
    elif hours > allowed:
        fix = "raise the budget, select fewer cells, or lower the time limits (launcher.resources: minutes)"
        yield scope.finding(PROBLEM, None, key, f"{allowed:g}", said, fix)
    else:
        yield scope.finding(OK, None, key, f"{allowed:g}", said)


# ------------------------------------------------------------------------------------------------------------ analyzers
def asks_analyzer(config: RunConfig) -> bool:
    return config.method.trains and config.method.skill.source == "own_trajectory"


def analyzer_calls(plan: Plan, cell: Cell) -> int:
    """Episodes that are still to be analysed: one question each; a repair or a retry comes on top."""
    path = plan.runs / cell.fingerprint
    done = RunDirectory(path).state().last_step if path.is_dir() else 0
    training = cell.config.training
    return max(0, planned_steps(cell.config) - done) * training.tasks_per_step * training.group_size


def priced(config: RunConfig) -> bool:
    """Whether each question of this run costs money."""
    return asks_analyzer(config) and (config.analyzer.price_prompt > 0 or config.analyzer.price_completion > 0)


def analyzer_cost(scope: Scope) -> Iterator[Finding]:
    """Questions, tokens and money at most, for each analyzer that runs ask; and whether its key is there."""
    for first, cells in groups(scope, lambda c: c.config.analyzer if asks_analyzer(c.config) else None):
        analyzer = first.config.analyzer
        if not asks_analyzer(first.config):
            continue
        calls = sum(analyzer_calls(scope.plan, cell) for cell in cells)
        if analyzer.name != "openai":
            said = f"{calls} episodes to analyse by analyzer={analyzer.name}, which costs nothing"
            yield scope.finding(OK, first, "analyzer.name", analyzer.name, said)
            continue
        if analyzer.api_key_env and not os.environ.get(analyzer.api_key_env):
            fix = f"export {analyzer.api_key_env}=..., or analyzer.api_key_env=null for an endpoint without keys"
            said = f"the variable {analyzer.api_key_env} is not set, so that runs have no key for {analyzer.base_url}"
            yield scope.finding(PROBLEM, first, "analyzer.api_key_env", analyzer.api_key_env, said, fix)
        prompt, answer = tokens_at_most(first.config)
        money = calls * (prompt * analyzer.price_prompt + answer * analyzer.price_completion) / 1e6
        said = (
            f"{calls} questions to {analyzer.model} at {analyzer.base_url}, each of at most {prompt} tokens and an "
            f"answer of at most {answer}"
        )
        if analyzer.price_prompt or analyzer.price_completion:
            told = f"{said}: at most {money:.2f} in the currency of the prices, without repairs"
            yield scope.finding(OK, first, "analyzer.price_completion", f"{analyzer.price_completion:g}", told)
        else:
            fix = "set analyzer.price_prompt and analyzer.price_completion if the endpoint is paid for"
            status = OK if _own_machine(analyzer.base_url) else WARNING
            told = f"{said}; no price is set"
            yield scope.finding(status, first, "analyzer.price_completion", "0", told, "" if status == OK else fix)


def tokens_at_most(config: RunConfig) -> tuple[int, int]:
    """Tokens of one question and of its answer, at most (the question's from its length in characters)."""
    chars = _REQUEST_CHARS + config.env.max_steps * (config.analyzer.observation_chars + _STEP_CHARS)
    return chars // _TOKEN_CHARS, config.analyzer.max_output_tokens


def _own_machine(url: str) -> bool:
    return any(f"://{host}" in url for host in ("127.", "localhost", "[::1]"))


# ----------------------------------------------------------------------------------------------------------------- disk
def disk(scope: Scope) -> Iterator[Finding]:
    """Room for what the missing runs leave behind, checkpoints above all."""
    place = scope.out
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    sizes = _sizes(scope)
    unknown = sorted({cell.config.backbone.name for cell, size in zip(scope.todo, sizes, strict=True) if size is None})
    wanted = sum(size or _RECORDS_BYTES for size in sizes)
    kept = scope.plan.command.runtime.min_free_gb * 1e9
    said = f"{len(scope.todo)} runs take up to {wanted / 1e9:.2f} GB, {free / 1e9:.1f} GB are free in {place}"
    if unknown:
        said += f" (checkpoints of {', '.join(unknown)} not counted: their size is not known here)"
    key, value = "runtime.out", scope.plan.command.runtime.out
    if wanted + kept > free:
        fix = "free some space, choose another runtime.out, or select fewer cells"
        yield scope.finding(PROBLEM, None, key, value, said, fix)
    elif unknown or wanted + kept > 0.8 * free:
        fix = "" if wanted + kept <= 0.8 * free else "that is tight: others may write there, too"
        yield scope.finding(WARNING, None, key, value, said, fix)
    else:
        yield scope.finding(OK, None, key, value, said)


def _sizes(scope: Scope) -> list[float | None]:
    """`run_bytes` of each missing run, looked up once for those that differ in nothing it depends on."""
    known: dict[str, float | None] = {}
    for cell in scope.todo:
        if (key := _size_key(cell.config)) not in known:
            known[key] = run_bytes(cell.config)
    return [known[_size_key(cell.config)] for cell in scope.todo]


def _size_key(config: RunConfig) -> str:
    method, kept = config.method, config.verl.keep_checkpoints
    return repr((config.backbone, config.env, config.engine, method.teacher.weights, planned_steps(config), kept))


def run_bytes(config: RunConfig) -> float | None:
    """Most bytes that a run takes at a time: the checkpoints that are kept, the one that is written before the oldest
    of them goes, and records. A checkpoint: weights, two moments of AdamW, and a teacher that follows. None if the
    number of parameters cannot be told."""
    if planned_steps(config) == 0:
        return _RECORDS_BYTES
    count = _parameters(config)
    if count is None:
        return None
    copies = 3 + (config.method.teacher.weights == "ema")
    if config.engine == "local":
        kept, width = _KEPT, 4 if config.backbone.dtype == "float32" else 2
    else:  # shards are in float32; exported weights take less than the checkpoint that is not being written then
        kept, width = config.verl.keep_checkpoints, 4
    return (kept + 1) * count * width * copies + _RECORDS_BYTES


def _parameters(config: RunConfig) -> int | None:
    try:
        if config.backbone.kind == "embedded":
            folder = backbones.find(config.backbone, config.env)
            return None if folder is None else (folder / backbones.MODEL).stat().st_size // 4
        return parameters(snapshot(config.backbone))
    except (SnapshotError, OSError, ValueError, RuntimeError):
        return None
