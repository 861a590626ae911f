"""One training step of each method of the plan, on a shrunken copy of its cells; the same seed twice, another once.

The steps run in a process of their own (harness.preflight.probe), on the CPU and the local engine, with the plan's own
environment cut down to a few short tasks. The policy is the embedded model where it is there and reads such prompts,
else a tiny one with random weights that reads any text. What went well is remembered by the content of everything it
depends on, so that a second look costs nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from harness import backbones
from harness.config import BackboneConfig, LauncherConfig, RunConfig, TrackingConfig, VerlConfig
from harness.launch.snapshot import environment as import_paths
from harness.preflight.findings import OK, PROBLEM, WARNING, Finding, ProbeCache, Scope
from harness.provenance import package_versions
from harness.redaction import redact
from harness.stages import Cell
from harness.worker import THREAD_VARIABLES
from methods.skills.analyzers.settings import AnalyzerConfig

RANDOM = "random"  # name of the backbone that the probe makes
TASKS = 4  # of each panel
SILENT_SECONDS = 600.0  # a step that takes longer than this is given up
_RANDOM_POSITIONS = 32768  # its tokens are bytes


@dataclass(frozen=True)
class Probe:
    """configs: the runs of one cell, shrunken, those whose weights it needs first. repeats: run it again with its seed,
    and with another."""

    name: str
    cell: Cell
    configs: tuple[RunConfig, ...]
    repeats: bool

    @property
    def order(self) -> dict[str, Any]:
        return {"configs": [OmegaConf.to_yaml(OmegaConf.structured(c)) for c in self.configs], "repeats": self.repeats}


def steps(scope: Scope) -> Iterator[Finding]:
    """A finding for each method in each engine context, one for the seeds of each environment."""
    probes = list(plan_probes(scope))
    known = {probe.name: remembered(scope.cache, probe) for probe in probes}
    todo = [probe for probe in probes if known[probe.name] is None]
    for name, result in _run(todo, scope.say) if todo else ():
        known[name] = result
        probe = next(p for p in todo if p.name == name)
        if result.get("error") is None:
            scope.cache.put("step", content(probe), result)
    for probe in probes:
        yield from _judge(scope, probe, known[probe.name] or {"error": "the check ended before its turn"})


def _judge(scope: Scope, probe: Probe, result: dict[str, Any]) -> Iterator[Finding]:
    cell, config = probe.cell, probe.cell.config
    what = f"{config.method.id} on {config.env.name}"
    error = result.get("error")
    if error is not None:
        fix = "the same cell at scale=test shows where: runtime.log_level=DEBUG, then its log.txt"
        said = f"{what}: a step failed: {error}"
        yield scope.finding(PROBLEM, cell, "method.name", config.method.name, said, fix)
        return
    kind = "a step and its evaluation" if config.method.trains else "an evaluation"
    engine = "" if config.engine == "local" else f" (on the local engine; the plan's is {config.engine})"
    said = f"{what}: {kind} in {float(result['seconds']):.1f} s{engine}"
    yield scope.finding(OK, cell, "method.name", config.method.name, said)
    if not probe.repeats:
        return
    same, other = result["digests"][0] == result["digests"][1], result["digests"][0] != result["digests"][2]
    if not same:
        fix = "something draws outside the run's own streams of random numbers; results could not be repeated"
        yield scope.finding(PROBLEM, cell, "seed", config.seed, f"{what}: one seed gave two results", fix)
    elif not other:
        fix = "seeds are the replicates of every table; look for a value that does not depend on the seed"
        yield scope.finding(WARNING, cell, "seed", config.seed, f"{what}: two seeds gave one result", fix)
    else:
        yield scope.finding(OK, cell, "seed", config.seed, f"{what}: one seed repeats, two seeds differ")


# ------------------------------------------------------------------------------------------------- what is looked at
def plan_probes(scope: Scope) -> Iterator[Probe]:
    """Each method setting once per environment that it meets first, and each environment's seeds with its first method
    that trains."""
    seen: set[tuple[str, str]] = set()
    seeded: set[str] = set()
    for cell in scope.todo:
        config = cell.config
        key = (repr(replace(config.method, id="", label="")), config.training.context)
        place = (config.method.name, config.env.name)
        if key in seen and (config.env.name in seeded or not config.method.trains):
            continue
        seen.add(key)
        repeats = config.method.trains and config.env.name not in seeded
        seeded |= {config.env.name} if repeats else set()
        yield Probe("/".join((cell.row.id, *place)), cell, shrunken(scope, cell), repeats)


def shrunken(scope: Scope, cell: Cell) -> tuple[RunConfig, ...]:
    """The cell's run and those that it needs, at a size of seconds; teachers are named `0`, `1`, ... in their order."""
    chain = [cell]
    while chain[0].requires:
        chain.insert(0, scope.plan.cell(chain[0].requires[0]))
    found: list[RunConfig] = []
    for position, member in enumerate(chain):
        config = shrink(member.config)
        if position:
            source = replace(config.method.teacher, source=str(position - 1))
            config = replace(config, method=replace(config.method, teacher=source))
        found.append(config)
    return tuple(found)


def shrink(config: RunConfig) -> RunConfig:
    """Two tasks, two rollouts, one step, short episodes; nothing that costs money, needs a GPU or the network."""
    env, training = config.env, config.training
    backbone = _policy(config)
    random = backbone.name == RANDOM
    if env.data is None:
        env = replace(env, train_per_type=1, eval_per_type=1, validation_per_type=1)
    env = replace(env, max_steps=min(env.max_steps, 2 if random else 4))
    limit = backbone.max_positions
    response = 8
    training = replace(
        training,
        steps=1,
        tasks_per_step=2,
        group_size=2,
        mini_batches=min(training.mini_batches, 2),
        max_response_tokens=response,
        max_prompt_tokens=(limit if random else min(limit, training.max_prompt_tokens + training.max_response_tokens))
        - response,
        warmup_steps=0,
    )
    analyzer = AnalyzerConfig(name="rules")
    runtime = replace(config.runtime, device="cpu", env_workers=0, threads=1, out=".", keep_trajectories=1)
    return replace(
        config,
        env=env,
        training=training,
        backbone=backbone,
        analyzer=analyzer,
        runtime=runtime,
        evaluation=replace(config.evaluation, repeats=1, validate_every=0),
        tracking=TrackingConfig(enabled=False),
        launcher=LauncherConfig(),
        verl=VerlConfig(),
        engine="local",
        fraction=1.0,
        seed=0,  # whichever seeds are missing: it is the same look
    )


def _policy(config: RunConfig) -> BackboneConfig:
    """The embedded backbone as a plain folder, or the name of the one that the probe makes."""
    if config.env.prompt == "compact":  # its vocabulary is that of such prompts
        for backbone in (config.backbone, BackboneConfig()):
            try:
                folder = backbones.find(backbone, config.env) if backbone.kind == "embedded" else None
            except (ValueError, OSError, RuntimeError):
                folder = None
            if folder is not None:
                return BackboneConfig("embedded", "hub", str(folder), max_positions=backbone.max_positions)
    return BackboneConfig(RANDOM, "hub", RANDOM, max_positions=_RANDOM_POSITIONS)


def content(probe: Probe) -> list[Any]:
    """What the outcome of a probe depends on, besides the code that it runs through."""
    return [probe.order, TASKS, package_versions()]


def remembered(cache: ProbeCache, probe: Probe) -> dict[str, Any] | None:
    """What a probe came to before, if every file of code that it used then is still the same."""
    found = cache.get("step", content(probe))
    if found is None or not found.get("files"):
        return None
    same = all(_file_digest(name) == digest for name, digest in found["files"].items())
    return found if same else None


@lru_cache(maxsize=4096)
def _file_digest(name: str) -> str | None:
    try:
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    except OSError:
        return None


# ---------------------------------------------------------------------------------------------------- the process apart
def _run(probes: Sequence[Probe], say: Callable[[str], None]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, result) of each probe, in order. A process that dies or hangs fails the probe that it was at, and the rest
    goes to a new one."""
    rest = list(probes)
    while rest:
        done = 0
        complaint = ""
        say(f"steps: {len(rest)} to take (a process with torch is started)")
        for result in _process([probe.order for probe in rest]):
            if "stopped" in result:
                complaint = str(result["stopped"])
                break
            yield rest[done].name, result
            done += 1
            said = "failed" if result.get("error") else f"{float(result['seconds']):.1f} s"
            say(f"steps: {rest[done - 1].name}: {said} ({len(probes) - len(rest) + done} of {len(probes)})")
        rest = rest[done:]
        if rest and complaint:
            yield rest[0].name, {"error": complaint}
            rest = rest[1:]


def _process(orders: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Results of the child as they come; {"stopped": why} if it ends before its work does."""
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1"), "CUDA_VISIBLE_DEVICES": ""}
    environment |= {"HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0", "TOKENIZERS_PARALLELISM": "false"}
    environment |= import_paths()
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.preflight.probe"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    lines: queue.Queue[str | None] = queue.Queue()
    last_words: list[str] = []
    readers = [
        threading.Thread(target=_pump, args=(process.stdout, lines.put), daemon=True),
        threading.Thread(target=_pump, args=(process.stderr, lambda line: last_words.append(line or "")), daemon=True),
    ]
    try:
        for reader in readers:
            reader.start()
        assert process.stdin is not None
        process.stdin.write(json.dumps({"probes": orders, "tasks": TASKS}))
        process.stdin.close()
        left = len(orders)
        while left:
            try:
                line = lines.get(timeout=SILENT_SECONDS)
            except queue.Empty:
                yield {"stopped": f"it took longer than {SILENT_SECONDS:g} s and was given up"}
                return
            if line is None:
                code = process.wait()
                readers[1].join(5)
                tail = redact(" | ".join(text.strip() for text in last_words[-4:] if text.strip()))
                yield {"stopped": f"its process ended with status {code}: {tail or 'nothing was said'}"}
                return
            left -= 1
            yield json.loads(line)
    except BrokenPipeError:
        yield {"stopped": "its process could not be started"}
    finally:
        _end(process)


def _pump(source: Any, put: Callable[[str | None], None]) -> None:
    for line in source:
        put(line)
    put(None)


def _end(process: subprocess.Popen[str]) -> None:
    """Ask the child and its own children to leave; insist after a moment."""
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 30.0)):
        if process.poll() is not None:
            return
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + patience
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
