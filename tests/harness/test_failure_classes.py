"""Whoever says what a failure was says it in a word that launchers and records know; another becomes a crash."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.launch.endings import HELPED_BY_A_RETRY
from harness.states import FAILURE_CLASSES, classify
from harness.training.verl import outcome
from harness.training.verl.cluster import ClusterError
from harness.training.vllm_server import ServerError

ROOT = Path(__file__).parents[2]
PACKAGES = ("analysis", "core", "envs", "harness", "hydra_plugins", "methods")


def said(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, word) of every literal that is given to something named failure_class."""
    for node in ast.walk(tree):
        given: list[ast.expr | None] = []
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            named = [t.id if isinstance(t, ast.Name) else getattr(t, "attr", "") for t in targets]
            given = [node.value] if "failure_class" in named else []
        elif isinstance(node, ast.keyword) and node.arg == "failure_class":
            given = [node.value]
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            given = [v for k, v in pairs if isinstance(k, ast.Constant) and k.value == "failure_class"]
        for value in given:
            if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value:
                yield value.lineno, value.value


def test_every_word_in_the_code_is_a_failure_class() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}": word
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, word in said(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert len(found) > 10, "the search finds nothing any more"
    assert {place: word for place, word in found.items() if word not in FAILURE_CLASSES} == {}
    assert set(outcome._RAY_CLASSES.values()) <= set(FAILURE_CLASSES)


@pytest.mark.parametrize("text", ["failure_class = 'x'", "f(failure_class='x')", "d = {'failure_class': 'x'}"])
def test_the_search_sees_every_way_to_say_it(text: str) -> None:
    assert [word for _, word in said(ast.parse(text))] == ["x"]


@pytest.mark.parametrize("error", [ClusterError("Ray on n1 ended"), ServerError("no answer")])
def test_services_that_are_gone_are_tried_again(error: Exception) -> None:
    assert classify(error) in HELPED_BY_A_RETRY
    # as such an error comes out of another process of Ray's
    wrapped = type(f"RayTaskError({type(error).__name__})", (type(error),), {})
    assert outcome.failure_class(wrapped("it is gone")) in HELPED_BY_A_RETRY


def test_a_dead_engine_behind_a_living_server_is_tried_again() -> None:
    dead = type("EngineDeadError", (Exception,), {})
    wrapped = type("RayTaskError(EngineDeadError)", (RuntimeError, dead), {})
    assert outcome.failure_class(wrapped("EngineCore encountered an issue")) in HELPED_BY_A_RETRY
