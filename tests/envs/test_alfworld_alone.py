"""ALFWorld on generated games needs no package: panels, play, and a whole run, where neither can be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from envs.alfworld import spec
from envs.interface import EnvConfig
from envs.panels import panel_identity

# Python imports this module at its start, in every process that finds it on its path.
BLOCKER = """
import importlib.metadata, sys
ABSENT = ("alfworld", "textworld", "fast_downward", "fast_downward_textworld", "jericho")
sys.modules.update(dict.fromkeys(ABSENT))  # importing one is an ImportError
real = importlib.metadata.version
def version(name):
    if name in ABSENT:
        raise importlib.metadata.PackageNotFoundError(name)
    return real(name)
importlib.metadata.version = version
"""

PLAY = """
import importlib.metadata
try:
    import textworld
    print("not blocked")
except ImportError:
    pass
from envs.alfworld import spec
from envs.alfworld.demos import demonstration
from envs.interface import EnvConfig
from envs.panels import panel_identity
from envs.pool import EnvPool

config = EnvConfig(train_per_type=3, eval_per_type=2, validation_per_type=1)
for name in ("train", "seen", "unseen", "validation"):
    print(panel_identity(config, name), spec.load_panel(config, name).hash)
tasks = spec.load_panel(config, "unseen").tasks
with EnvPool(spec.make, config, workers=0) as pool:
    pool.reset(dict(enumerate(tasks)))
    plans = {slot: spec.walkthrough(config, task) for slot, task in enumerate(tasks)}
    won = set()
    for k in range(config.max_steps):
        answers = pool.step({s: plan[k] for s, plan in plans.items() if k < len(plan)})
        won |= {slot for slot, answer in answers.items() if answer.success}
print("won", len(won), "of", len(tasks))
print("demonstrated", len(demonstration(0, 0).turns) > 0)
reference = EnvConfig(engine="textworld")
for needs in (lambda: spec.make(reference), lambda: spec.load_panel(reference, "seen")):
    try:
        needs()
    except ValueError as error:
        print("refused", "agentic-rl-harness[alfworld]" in str(error))
"""


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    """Variables of a process that can import neither package, with a home and a cache of its own."""
    (tmp_path / "blocker").mkdir()
    (tmp_path / "blocker" / "sitecustomize.py").write_text(BLOCKER)
    (tmp_path / "home").mkdir()
    kept = {name: value for name, value in os.environ.items() if name != "ALFWORLD_DATA"}
    path = os.pathsep.join([str(tmp_path / "blocker"), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"HOME": str(tmp_path / "home"), "HARNESS_CACHE": str(tmp_path / "cache"), "PYTHONPATH": path}
    return {**kept, **own}


def test_panels_and_play(alone: dict[str, str], tmp_path: Path) -> None:
    """The same panels as in this process, games that are won, no file written."""
    said = subprocess.run(
        [sys.executable, "-c", PLAY], env=alone, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    config = EnvConfig(train_per_type=3, eval_per_type=2, validation_per_type=1)
    names = ("train", "seen", "unseen", "validation")
    panels = [f"{panel_identity(config, name)} {spec.load_panel(config, name).hash}" for name in names]
    assert said == [*panels, "won 12 of 12", "demonstrated True", "refused True", "refused True"]
    assert list((tmp_path / "home").iterdir()) == [] and not (tmp_path / "cache").exists()


@pytest.mark.slow
def test_a_whole_run(alone: dict[str, str], tmp_path: Path) -> None:
    """Prepared, trained and evaluated from the command line."""
    command = [sys.executable, "-m", "harness", "method=grpo", "env=alfworld", "backbone=tiny-s", "scale=test"]
    done = subprocess.run(
        [*command, "runtime.out=out"], cwd=tmp_path, env=alone, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (episodes,) = (tmp_path / "out" / "runs").glob("*/episodes.parquet")
    rows = pq.read_table(episodes).to_pylist()
    assert len(rows) == 12 and all(row["failure"] is None for row in rows)
    config = EnvConfig(train_per_type=1, eval_per_type=1)
    assert {row["panel_hash"] for row in rows} == {spec.load_panel(config, p).hash for p in ("seen", "unseen")}


BENCHMARK = """
from benchmarks import envs as benchmark
import envs.registry
plain = benchmark.Case("shop", "plain", list, (), 1, 1, plain=True)
ours = benchmark.Case("shop", "ours", list, (), 1, 1)
alone = benchmark.Case("kitchen", "ours", list, (), 1, 1)
cost = benchmark.Cost(0.1, 2, 1, 2**20, 2**25)
print(benchmark.table([(plain, benchmark.Cost(10, 4, 1, 2**21, 2**26)), (ours, cost), (alone, cost)]))
"""


def test_the_benchmark_stands_in_nobodys_way(alone: dict[str, str], tmp_path: Path) -> None:
    """benchmarks/envs.py bears the name of the package; it and the scripts beside it import the package still."""
    root = Path(__file__).parents[2]
    if not (root / "benchmarks").is_dir():
        pytest.skip("not a checkout")

    def said(*arguments: str, folder: Path = tmp_path) -> str:
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=alone, check=True, capture_output=True, text=True, cwd=folder).stdout

    beside = f"import sys; sys.path.insert(0, {str(root / 'benchmarks')!r})\nimport envs.registry\nprint(envs.__file__)"
    assert said("-c", beside).strip() == str(root / "envs" / "__init__.py")
    assert "--only" in said(str(root / "benchmarks" / "envs.py"), "--help")
    table = said("-c", BENCHMARK, folder=root).splitlines()
    assert table[2].split() == ["shop", "ours", "0.100", "100x", "10000", "2.00", "2x", "1.00", "1.000", "32"]
    assert table[3].split() == ["kitchen", "ours", "0.100", "-", "10000", "2.00", "-", "1.00", "1.000", "32"]
