"""What environments cost beside the plain way: `python benchmarks/envs.py [--games 6] [--only alfworld search_qa]`.

Every environment plays the same commands in this project's engine and in the plain way, in one run: ALFWorld in the
packages' own engine as it comes (and in `env.engine=textworld`, which caches it), WebShop with pages rendered as HTML
and read back, Search-QA with a BM25 that looks at every document. Each engine runs in a process of its own. Columns:
CPU milliseconds of a step, of beginning a task that the process has not played before (new), and one that it has
(again); steps a second and core; the resident memory that one more environment takes in the same process, and that of
a process with one environment, which is what each costs where it is an actor of its own. Compare the ratios: absolute
figures depend on the machine.
"""

from __future__ import annotations

import argparse
import importlib
import math
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# This folder comes first in the search for modules, and there this file would stand for the package `envs`.
if __name__ != "envs":
    sys.path[:] = [str(Path(__file__).resolve().parents[1]), *(p for p in sys.path if Path(p) != Path(__file__).parent)]
else:  # another benchmark asked for the package and found this file
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    del sys.modules["envs"]
    importlib.import_module("envs")

Script = list[str]  # actions of one episode, none of which ends it before the last


@dataclass(frozen=True)
class Case:
    """One way to play an environment.

    make: -> a new environment (`reset(task)`, `step(action)`), built in the process that measures
    tasks: how many of the tasks it plays; environments: how many are opened to weigh one
    """

    env: str
    name: str
    make: Callable[..., Any]
    arguments: tuple[Any, ...]
    tasks: int
    environments: int
    plain: bool = False


@dataclass(frozen=True)
class Cost:
    """step, new, again: CPU ms; extra: bytes of one more environment; process: bytes of a process with one."""

    step: float
    new: float
    again: float
    extra: float
    process: float


Play = tuple[Any, Script]  # task and actions


def begun(case: Case, play: Play) -> Any:
    """A new environment in the middle of an episode."""
    environment = case.make(*case.arguments)
    environment.reset(play[0])
    environment.step(play[1][0])
    return environment


def clock(case: Case, plays: Sequence[Play]) -> tuple[float, float, float]:
    """CPU milliseconds of a step, a new task, the same task again; measured in a process of its own."""
    environment = begun(case, plays[0])  # what is made once per process: imports, tables, indices
    new = again = stepping = 0.0
    for task, actions in plays[1:]:
        marks = [time.process_time()]
        environment.reset(task)
        marks.append(time.process_time())
        for action in actions:
            environment.step(action)
        marks.append(time.process_time())
        environment.reset(task)
        marks.append(time.process_time())
        new, stepping, again = new + marks[1] - marks[0], stepping + marks[2] - marks[1], again + marks[3] - marks[2]
    episodes, steps = len(plays) - 1, sum(len(actions) for _, actions in plays[1:])
    return 1e3 * stepping / steps, 1e3 * new / episodes, 1e3 * again / episodes


def weigh(case: Case, plays: Sequence[Play]) -> tuple[float, float]:
    """Resident bytes of one more environment, each on a task of its own, and of a process with one environment."""
    import psutil

    this = psutil.Process()
    opened = [begun(case, plays[0])]
    process = this.memory_info().rss
    opened += [begun(case, plays[(k + 1) % len(plays)]) for k in range(case.environments)]
    return (this.memory_info().rss - process) / case.environments, process


def measure(case: Case, plays: Sequence[Play]) -> Cost:
    played = plays[: case.tasks]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return Cost(*pool.apply(clock, (case, played)), *pool.apply(weigh, (case, played)))


# ----------------------------------------------------------------------------------------------------------- ALFWorld
class Stock:
    """The packages' own engine with the wrappers that the alfworld package puts around it."""

    def __init__(self, root: str) -> None:
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
        from textworld.envs import PddlEnv

        self.root = root
        request = textworld.EnvInfos(admissible_commands=True, won=True, extras=["gamefile"])
        self.env = AlfredInfos(AlfredDemangler(PddlEnv(request)))

    def reset(self, task: Any) -> None:
        self.env.load(str(Path(self.root) / task.id / "game.tw-pddl"))
        self.state = self.env.reset()

    def step(self, command: str) -> None:
        self.state, _, _ = self.env.step(command)


def native(limit: int) -> Any:
    from envs.alfworld.native_engine import NativeAlfworld

    return NativeAlfworld(None, limit)


def textworld(limit: int, cache: str) -> Any:
    from envs.alfworld.textworld_engine import TextworldAlfworld

    return TextworldAlfworld(None, limit, Path(cache))


def alfworld(folder: Path, games: int, steps: int) -> tuple[list[Case], list[Play]]:
    """Commands at random, none of which can win."""
    from envs.alfworld import ahead, generated, layout, worlds
    from envs.alfworld.expert import walkthrough
    from envs.interface import EnvConfig

    drawn = worlds.draw("train", 21, seed=23)
    drawn = [drawn[i] for i in sorted(range(len(drawn)), key=lambda i: (i % 21, i))]  # types in turn
    plays = []
    engine = native(steps + 1)
    for world in drawn:
        task = generated.task_of(world, "train")
        rng, seen, commands = random.Random(task.id), engine.reset(task), Script()
        for _ in range(steps):
            commands.append(rng.choice([c for c in seen.admissible if not c.startswith(("move ", "use "))]))
            seen = engine.step(commands[-1]).observation
        plays.append((task, commands))
    ours = Case("alfworld", "engine=native", native, (steps + 1,), len(plays), 200)
    try:
        rules = layout.package_rules()
    except ValueError as error:
        print(f"alfworld without the plain way: {error}")
        return [ours], plays
    for world in drawn[: games + 1]:
        layout.write(world, folder / "train", walkthrough(world), rules)
    ahead.ensure_translations(EnvConfig(cache=str(folder)), [task for task, _ in plays[: 3 * games + 1]])
    return [
        Case("alfworld", "packages' engine", Stock, (str(folder),), games + 1, 4, plain=True),
        Case("alfworld", "engine=textworld", textworld, (steps + 1, str(folder)), 3 * games + 1, 16),
        ours,
    ], plays


# ---------------------------------------------------------------------------------------------------------- Search-QA
class Scan:
    """A retriever that scores every passage anew for every query."""

    def __init__(self) -> None:
        from envs.search import bm25
        from envs.search_qa.corpus import embedded

        self.analyze = bm25.analyze
        self.passages = embedded()
        texts = [self.analyze(passage.contents) for passage in self.passages]
        self.documents = [Counter(text) for text in texts]
        self.lengths = [len(text) for text in texts]
        self.mean = sum(self.lengths) / len(texts)
        self.frequency = Counter(term for document in self.documents for term in document)

    def search(self, queries: Sequence[str], k: int) -> list[Any]:
        from envs.search_qa.retrieval import Hit

        found = []
        for query in queries:
            scores = []
            for number, document in enumerate(self.documents):
                total = 0.0
                for term in self.analyze(query):
                    df, tf = self.frequency.get(term, 0), document.get(term, 0)
                    idf = math.log(1 + (len(self.documents) - df + 0.5) / (df + 0.5))
                    total += idf * tf / (tf + 0.9 * (0.6 + 0.4 * self.lengths[number] / self.mean))
                scores.append((-total, number))
            found.append([Hit(self.passages[number], -score) for score, number in sorted(scores)[:k]])
        return found


def search(config: Any) -> Any:
    from envs.search_qa import spec

    return spec.make(config)


def scanning_search(config: Any) -> Any:
    from envs.search_qa import episode

    if not isinstance(episode.retriever_of, Scanning):
        episode.retriever_of = Scanning()  # type: ignore[assignment]
    return search(config)


class Scanning:
    """In the place of `retriever_of`: one retriever per process."""

    def __init__(self) -> None:
        self.retriever = Scan()

    def __call__(self, config: Any) -> Scan:
        return self.retriever


def search_qa(folder: Path, games: int, steps: int) -> tuple[list[Case], list[Play]]:
    """Searches for the names of the question, then an answer."""
    from envs.interface import EnvConfig
    from envs.search_qa import spec

    config = EnvConfig(name="search_qa", cache=str(folder), prompt="full", max_steps=4, train_per_type=40)
    plays = []
    for task in spec.load_panel(config, "train").tasks:
        names = task.slots["names"].split(" | ")
        plays.append((task, [*(f"search[{name}]" for name in names[:3]), "answer[nothing]"]))
    return [
        Case("search_qa", "BM25 by scanning", scanning_search, (config,), 4 * games + 1, 200, plain=True),
        Case("search_qa", "this engine", search, (config,), len(plays), 200),
    ], plays


# ------------------------------------------------------------------------------------------------------------ WebShop
def shop(config: Any) -> Any:
    from envs.webshop import spec

    return spec.make(config)


def rendered_shop(config: Any) -> Any:
    from benchmarks.envs_webshop import RenderedShop

    return RenderedShop(shop(config))


def webshop(folder: Path, games: int, steps: int) -> tuple[list[Case], list[Play]]:
    """The expert's actions."""
    from envs.interface import EnvConfig
    from envs.webshop import spec

    knobs = {"products": 1000, "text": "text"}
    config = EnvConfig(name="webshop", cache=str(folder), prompt="full", max_steps=30, train_per_type=12, knobs=knobs)
    plays = [(task, spec.walkthrough(config, task)) for task in spec.load_panel(config, "train").tasks]
    return [
        Case("webshop", "pages as HTML", rendered_shop, (config,), 4 * games + 1, 4, plain=True),
        Case("webshop", "this engine", shop, (config,), len(plays), 200),
    ], plays


ENVIRONMENTS: Mapping[str, Callable[[Path, int, int], tuple[list[Case], list[Play]]]] = {
    "alfworld": alfworld,
    "webshop": webshop,
    "search_qa": search_qa,
}


def table(found: Sequence[tuple[Case, Cost]]) -> str:
    plain = {case.env: cost for case, cost in found if case.plain}
    lines = [
        f"{'environment':12}{'engine':19}{'step ms':>9}{'faster':>8}{'steps/s':>9}{'new ms':>9}{'faster':>8}"
        f"{'again ms':>9}{'one more MiB':>14}{'process MiB':>13}"
    ]
    for case, cost in found:
        base = plain.get(case.env)
        step, new = ("-", "-") if base is None else (f"{base.step / cost.step:.0f}x", f"{base.new / cost.new:.0f}x")
        lines.append(
            f"{case.env:12}{case.name:19}{cost.step:9.3f}{step:>8}{1e3 / cost.step:9.0f}{cost.new:9.2f}{new:>8}"
            f"{cost.again:9.2f}{cost.extra / 2**20:14.3f}{cost.process / 2**20:13.0f}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--games", type=int, default=6, help="new games in ALFWorld's own engine (default %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="commands in each ALFWorld game (default %(default)s)")
    parser.add_argument("--only", nargs="*", default=list(ENVIRONMENTS), choices=list(ENVIRONMENTS))
    options = parser.parse_args(arguments)
    found: list[tuple[Case, Cost]] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ALFWORLD_DATA"] = folder  # importing the package makes a folder there
        for name in options.only:
            cases, plays = ENVIRONMENTS[name](Path(folder), options.games, options.steps)
            for case in cases:
                found.append((case, measure(case, plays)))
    print(table(found))


if __name__ == "__main__":
    main()
