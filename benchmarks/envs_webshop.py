"""What WebShop costs: `python benchmarks/envs_webshop.py [--episodes 60] [--products 1000]`.

Plays the same expert episodes twice in one run: on this project's engine, and on a stand-in for the usual way, which
renders every page as HTML from a template, parses it three times a step to get text and buttons back (as the original
text environment does), and searches by scoring every document. Prints CPU milliseconds a step and ratios, the time of a
new episode, and the memory of one more environment: as an object of the same process, and as a process of its own.
Compare the ratios: absolute figures depend on the machine.
"""

from __future__ import annotations

import argparse
import html.parser
import math
import multiprocessing
import os
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import psutil

from envs.interface import EnvConfig, Task
from envs.search import bm25
from envs.webshop import pages, spec
from envs.webshop.data import store_of
from envs.webshop.environment import WebshopEnvironment
from envs.webshop.shop import MOST_RESULTS

_TEMPLATE = """<!DOCTYPE html><html><head><title>shop</title><style>h4 { padding: 2px }</style></head><body>
<div class="container"><div class="row">
{% for part in parts %}{% if part.kind == 'plain' %}<h4 class="text">{{ part.text }}</h4>
{% elif part.kind == 'button' %}<form method="post" action="{{ base }}/{{ part.text|urlencode }}"><button class="btn">
{{ part.text }}</button></form>
{% elif part.kind == 'option' %}<input type="radio" id="radio_{{ loop.index }}" value="{{ part.text }}"
 data-url="{{ base }}/{{ part.text|urlencode }}"><label for="radio_{{ loop.index }}">{{ part.text }}</label>
{% else %}<a class="product-link" href="{{ base }}/{{ part.text|urlencode }}">{{ part.text }}</a>{% endif %}{% endfor %}
</div></div></body></html>"""


class _Page(html.parser.HTMLParser):
    """The tree of a page: visible texts and what can be clicked."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.clickable: dict[str, dict[str, str | None]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append((tag, dict(attrs)))
        if tag == "input":
            self.clickable[str(dict(attrs).get("value"))] = self.open.pop()[1]

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if data.strip() and self.open and self.open[-1][0] not in ("style", "title"):
            self.texts.append(data.strip())
            tag, attributes = self.open[-1]
            if tag in ("button", "a"):
                self.clickable[data.strip().lower()] = attributes


class RenderedShop:
    """The same shop with pages as HTML and a search that looks at every document."""

    def __init__(self, inner: WebshopEnvironment) -> None:
        import jinja2

        self.inner = inner
        self.template = jinja2.Environment(autoescape=True).from_string(_TEMPLATE)
        texts = [bm25.analyze(inner.store.product(i).document()) for i in range(len(inner.store))]
        self.documents = [Counter(text) for text in texts]
        self.lengths = [len(text) for text in texts]
        self.mean = sum(self.lengths) / len(texts)
        self.frequency = Counter(term for document in self.documents for term in document)
        inner._find = self.find  # type: ignore[method-assign]

    def find(self, query: str) -> tuple[int, ...]:
        scores = []
        terms = bm25.analyze(query)
        for number, document in enumerate(self.documents):
            total = 0.0
            for term in terms:
                tf = document.get(term, 0)
                df = self.frequency.get(term, 0)
                idf = math.log(1 + (len(self.documents) - df + 0.5) / (df + 0.5))
                total += idf * tf / (tf + 0.9 * (0.6 + 0.4 * self.lengths[number] / self.mean))
            if total > 0:
                scores.append((-total, number))
        return tuple(number for _, number in sorted(scores)[:MOST_RESULTS])

    def _show(self) -> _Page:
        source = self.template.render(parts=pages.parts(self.inner.visit, self.inner.goal.instruction), base="/session")
        for _ in range(3):
            page = _Page()
            page.feed(source)
        return page

    def reset(self, task: Task) -> Any:
        self.inner.reset(task)
        return self._show()

    def step(self, action: str) -> Any:
        result = self.inner.step(action)
        " [SEP] ".join(self._show().texts)
        return result


@dataclass(frozen=True)
class Cost:
    """CPU milliseconds: of a step and of a new episode."""

    step: float
    reset: float


def cost(environment: Any, scripts: dict[str, list[str]], tasks: list[Task], rounds: int = 1) -> Cost:
    resets = steps = 0.0
    count = 0
    for _ in range(rounds):
        for task in tasks:
            started = time.process_time()
            environment.reset(task)
            resets += time.process_time() - started
            started = time.process_time()
            for action in scripts[task.id]:
                environment.step(action)
            steps += time.process_time() - started
            count += len(scripts[task.id])
    return Cost(steps / count * 1e3, resets / (rounds * len(tasks)) * 1e3)


def memory_of_an_object(make: Callable[[], WebshopEnvironment], task: Task, action: str) -> float:
    """Bytes of one more environment in the middle of an episode."""
    tracemalloc.start()
    many = [make() for _ in range(200)]
    for environment in many:
        environment.reset(task)
        environment.step(action)
    found = tracemalloc.get_traced_memory()[0] / len(many)
    tracemalloc.stop()
    return found


def _process(config: EnvConfig, task: Task, action: str, answer: Any) -> None:
    environment = spec.make(config)
    environment.reset(task)
    environment.step(action)
    answer.send(psutil.Process(os.getpid()).memory_info().rss)


def memory_of_a_process(config: EnvConfig, task: Task, action: str) -> int:
    """Resident bytes of a process with one environment."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    worker = multiprocessing.get_context("spawn").Process(target=_process, args=(config, task, action, there))
    worker.start()
    found: int = here.recv()
    worker.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=60, help="expert episodes (default %(default)s)")
    parser.add_argument("--products", type=int, default=1000, help="of the generated shop (default %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        config = EnvConfig(
            name="webshop",
            cache=cache,
            max_steps=30,
            prompt="full",
            train_per_type=-(-options.episodes // 5),
            knobs={"products": options.products, "text": "text"},
        )
        tasks = list(spec.load_panel(config, "train").tasks[: options.episodes])
        scripts = {task.id: spec.walkthrough(config, task) for task in tasks}
        plain = RenderedShop(WebshopEnvironment(store_of(config), 30))
        ours = spec.make(config)
        first = cost(spec.make(config), scripts, tasks)  # no query was asked before
        kept = cost(ours, scripts, tasks, rounds=5)  # every query was asked before
        rendered = cost(plain, scripts, tasks)
        rich = cost(spec.make(replace(config, knobs={**config.knobs, "text": "text_rich"})), scripts, tasks, rounds=5)
        action = scripts[tasks[0].id][0]
        weight = memory_of_an_object(lambda: WebshopEnvironment(store_of(config), 30), tasks[0], action)
        process = memory_of_a_process(config, tasks[0], action)
    steps = sum(map(len, scripts.values()))
    print(f"{len(tasks)} episodes, {steps} steps, {options.products} products; CPU ms")
    print(f"{'':34}{'step':>8}{'reset':>8}{'steps/s':>9}{'faster':>8}")
    for name, found in (
        ("pages as HTML, search by scanning", rendered),
        ("this engine, new queries", first),
        ("this engine, queries repeated", kept),
        ("this engine, text_rich", rich),
    ):
        print(f"{name:34}{found.step:8.3f}{found.reset:8.3f}{1e3 / found.step:9.0f}{rendered.step / found.step:7.1f}x")
    print(f"one more environment: {weight / 1024:.1f} KiB here, {process / 2**20:.0f} MiB as a process of its own")


if __name__ == "__main__":
    main()
