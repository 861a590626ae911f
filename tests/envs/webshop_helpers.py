"""A small shop made by hand, and players for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envs.interface import EnvConfig, Environment, StepResult, Task
from envs.webshop.catalogue import Product
from envs.webshop.environment import WebshopEnvironment
from envs.webshop.expert import Expert, Memory
from envs.webshop.goals import Goal
from envs.webshop.reading import read_instruction
from envs.webshop.shop import Visit


def config(cache: object, **changes: Any) -> EnvConfig:
    """A small generated shop: 150 products."""
    knobs = {"products": 150, **changes.pop("knobs", {})}
    settings: dict[str, Any] = {
        "name": "webshop",
        "engine": "native",
        "cache": str(cache),
        "train_per_type": 3,
        "eval_per_type": 2,
        "validation_per_type": 1,
        "max_steps": 15,
        "history": 2,
        "knobs": knobs,
    }
    return EnvConfig(**{**settings, **changes})


def product(asin: str = "B000000001", **changes: Any) -> Product:
    values: dict[str, Any] = {
        "asin": asin,
        "category": "fashion",
        "query": "shirts",
        "type_path": ("Clothing", "Men", "Shirts"),
        "title": "Plain Shirt",
        "description": "A shirt.",
        "bullets": ("Soft", "Warm"),
        "price": 20.0,
        "price_tag": "$20.0",
        "rating": "N.A.",
        "options": {"color": ("red", "blue"), "size": ("small", "large")},
        "attributes": ("machine wash",),
        "nouns": ("plain", "shirt"),
        "reviews": (),
    }
    return Product(**{**values, **changes})


def goal(**changes: Any) -> Goal:
    values: dict[str, Any] = {
        "id": "g",
        "asin": "B000000001",
        "category": "fashion",
        "query": "shirts",
        "type_path": ("Clothing", "Men", "Shirts"),
        "nouns": ("plain", "shirt"),
        "instruction": "i want a shirt",
        "attributes": ("machine wash",),
        "options": (("color", "red"), ("size", "large")),
        "price_upper": 30.0,
    }
    return Goal(**{**values, **changes})


def visit(products: Sequence[Product], found: Mapping[str, Sequence[int]] | None = None, **changes: Any) -> Visit:
    """A visit to a shop that finds `found[query]`, everything for any other query."""

    def find(query: str) -> tuple[int, ...]:
        return tuple((found or {}).get(query, range(len(products))))[:50]

    return Visit(lambda number: products[number], find, **changes)


def shop_expert(environment: Environment, task: Task, compact: bool = True) -> list[tuple[str, StepResult]]:
    """Plays the task with the scripted expert: (action, result) of each step."""
    observation = environment.reset(task)
    memory, expert = Memory(read_instruction(observation.task), compact), Expert()
    memory.look(observation.text)
    played: list[tuple[str, StepResult]] = []
    while not played or not played[-1][1].done:
        decision = expert.decide(memory)
        if decision is None:
            break
        result = environment.step(decision.command)
        played.append((decision.command, result))
        if result.admissible:
            memory.did(decision.command)
        if not result.done:
            memory.look(result.observation.text)
    return played


def succeeded(played: Sequence[tuple[str, StepResult]]) -> bool:
    return bool(played) and played[-1][1].success


def environment_of(environment: Environment) -> WebshopEnvironment:
    assert isinstance(environment, WebshopEnvironment)
    return environment
