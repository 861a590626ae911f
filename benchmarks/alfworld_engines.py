"""What ALFWorld costs: `python benchmarks/alfworld_engines.py [--games 6] [--steps 40]`.

Plays the same commands in the packages' own engine as it comes, in the cached one (`env.engine=textworld`) and in the
native one (`env.engine=native`), one after the other, and prints CPU milliseconds and ratios. Compare the ratios:
absolute figures depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from envs.alfworld import worlds
from envs.alfworld.episode import AlfworldEpisode, content_hash
from envs.alfworld.expert import walkthrough
from envs.alfworld.translation import home_for_packages
from envs.interface import Task


class Stock:
    """The packages' own engine with the wrappers that the alfworld package puts around it."""

    def __init__(self, root: Path) -> None:
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
        from textworld.envs import PddlEnv

        self.root = root
        request = textworld.EnvInfos(admissible_commands=True, won=True, extras=["gamefile"])
        self.env = AlfredInfos(AlfredDemangler(PddlEnv(request)))

    def reset(self, task: Task) -> None:
        self.env.load(str(self.root / task.location))
        self.state = self.env.reset()

    def step(self, command: str) -> None:
        self.state, _, _ = self.env.step(command)


def make_games(root: Path, games: int) -> list[Task]:
    tasks = []
    for world in worlds.draw("train", -(-games // 6), seed=23)[:games]:
        path = worlds.write(world, root, walkthrough(world))
        game = json.loads(path.read_text())
        location = str(path.relative_to(root))
        tasks.append(Task(world.folder, world.spec.task_type, content_hash(game), location=location))
    return tasks


def scripts(engine: AlfworldEpisode, tasks: list[Task], steps: int) -> dict[str, list[str]]:
    """The commands that every engine gets: admissible ones at random, none that wins the game."""
    chosen = {}
    for task in tasks:
        rng, commands = random.Random(task.id), []
        seen = engine.reset(task)
        for _ in range(steps):
            command = rng.choice([c for c in seen.admissible if not c.startswith(("move ", "use "))])
            result = engine.step(command)
            commands.append(command)
            if result.done:
                break
            seen = result.observation
        chosen[task.id] = commands
    return chosen


CASES = ("stock", "textworld, first time", "textworld, translated", "native")


def engine_of(case: str, root: Path, limit: int) -> Any:
    if case == "stock":
        return Stock(root)
    if case == "native":
        from envs.alfworld.native_engine import NativeAlfworld

        return NativeAlfworld(root, limit)
    from envs.alfworld.textworld_engine import TextworldAlfworld

    return TextworldAlfworld(root, limit, root / "translations")


def measure(
    case: str, root: Path, limit: int, tasks: list[Task], commands: dict[str, list[str]]
) -> tuple[float, float, float]:
    """CPU milliseconds of the first reset of a game, of its second reset, and of a step."""
    home_for_packages(root / "package")
    engine = engine_of(case, root, limit)
    first = second = stepping = 0.0
    count = 0
    for task in tasks:
        begin = time.process_time()
        engine.reset(task)
        first += time.process_time() - begin
        begin = time.process_time()
        for command in commands[task.id]:
            engine.step(command)
        stepping += time.process_time() - begin
        count += len(commands[task.id])
        begin = time.process_time()
        engine.reset(task)
        second += time.process_time() - begin
    return 1e3 * first / len(tasks), 1e3 * second / len(tasks), 1e3 * stepping / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=6)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        os.environ.pop("ALFWORLD_DATA", None)
        home_for_packages(root / "package")
        tasks = make_games(root, options.games)
        limit = options.steps + 1
        commands = scripts(engine_of("native", root, limit), tasks, options.steps)
        found = {}
        for case in CASES:  # each in a process of its own: what one keeps in memory must not help another
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                found[case] = pool.apply(measure, (case, root, limit, tasks, commands))
    base = found["stock"]
    print(f"{options.games} games, {options.steps} steps each; CPU milliseconds (times faster than stock)")
    print(f"{'engine':24}{'new game':>20}{'same game again':>20}{'step':>20}")
    for name, values in found.items():
        cells = "".join(f"{v:9.2f} ({b / v:7.1f})" for v, b in zip(values, base, strict=True))
        print(f"{name:24}  {cells}")


if __name__ == "__main__":
    main()
