"""Panels of Search-QA: questions derived from the embedded corpus, or the official files in Search-R1's layout.

Embedded: each kind's questions in one fixed random order, apart for each side of the division of articles. `test` is
taken from the articles kept for evaluation; `validation` takes the first questions of the training side and `train`
those that follow. Every search is over all passages, so what `test` reads can be found in training too; but no question
crosses: what is asked on one side is answered by articles that no question of the other side is about. Official data
(`env.data`): see `official`.
"""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path

from envs.interface import EnvConfig, EnvironmentFailure, Panel, Task
from envs.panels import build_panel, digest
from envs.search_qa import corpus
from envs.search_qa.questions import KINDS, QUESTIONS_VERSION, Question, embedded_questions

NAME = "search_qa"
PANELS = ("train", "validation", "test")
SPLIT_VERSION = 1  # raised whenever the same questions would be split otherwise


def data_version(config: EnvConfig) -> str:
    """Names the embedded panels by everything that determines them."""
    sizes = (config.world_seed, config.train_per_type, config.eval_per_type, config.validation_per_type)
    parts = (corpus.embedded_version(), QUESTIONS_VERSION, SPLIT_VERSION, *sizes)
    return f"wikilead-{digest(repr(parts))[:16]}"


def content_hash(question: Question) -> str:
    """Over what defines the task: the question as a reader compares it, and its answers."""
    return digest(" ".join(question.text.lower().split()), *sorted(question.answers))


def task_of(question: Question) -> Task:
    slots = {"relation": question.relation, "names": " | ".join(question.names)}
    return Task(question.id, question.kind, content_hash(question), slots, question.id)


def load_panel(config: EnvConfig, name: str) -> Panel:
    """Raises ValueError for an unknown panel, FileNotFoundError for missing data, and for too few questions."""
    if config.data:
        from envs.search_qa import official

        return official.load_panel(Path(config.data).expanduser(), config, name)
    if name not in PANELS:
        raise ValueError(f"{NAME} has no panel {name!r} without env.data; it has {', '.join(PANELS)}")
    if name == "validation" and config.validation_per_type < 1:
        raise ValueError(
            f"env.validation_per_type={config.validation_per_type} makes an empty panel {name!r}; give at least 1"
        )
    sizes = (config.world_seed, config.train_per_type, config.eval_per_type, config.validation_per_type)
    chosen = _split(*sizes)[name]
    return build_panel(NAME, data_version(config), name, [task_of(question) for question in chosen])


def panel_identity(config: EnvConfig, name: str) -> str:
    """What determines the panel, without making it (embedded), or the hash of the user's questions."""
    if config.data:
        return load_panel(config, name).hash
    return f"{NAME}/{data_version(config)}/{name}"


@lru_cache(maxsize=8)
def _split(seed: int, train: int, evaluation: int, validation: int) -> dict[str, tuple[Question, ...]]:
    panels: dict[str, list[Question]] = {name: [] for name in PANELS}
    for kind in KINDS:
        pool = {
            side: [q for q in embedded_questions() if q.kind == kind and q.held_out == side] for side in (False, True)
        }
        for side, questions in pool.items():
            random.Random(f"split|{SPLIT_VERSION}|{seed}|{kind}|{side}").shuffle(questions)
        _check(kind, "env.eval_per_type", evaluation, len(pool[True]))
        _check(kind, "env.train_per_type + env.validation_per_type", train + validation, len(pool[False]))
        panels["test"] += pool[True][:evaluation]
        panels["validation"] += pool[False][:validation]
        panels["train"] += pool[False][validation : validation + train]
    return {name: tuple(sorted(questions, key=lambda q: q.id)) for name, questions in panels.items()}


def _check(kind: str, key: str, wanted: int, there: int) -> None:
    if wanted > there:
        raise ValueError(f"{key}={wanted} asks for more questions of kind {kind} than there are ({there}); lower it")


def question_of(config: EnvConfig, task: Task) -> Question:
    """The task's question. EnvironmentFailure if there is none, or if it has changed."""
    if config.data:
        from envs.search_qa import official

        question = official.question(Path(config.data).expanduser(), task.location)
    else:
        found = _by_id().get(task.location)
        if found is None:
            raise EnvironmentFailure(f"the embedded corpus poses no question {task.location!r}; was it replaced?")
        question = found
    if content_hash(question) != task.content_hash:
        raise EnvironmentFailure(f"question {task.id} has changed since the panel was made")
    return question


@lru_cache(maxsize=1)
def _by_id() -> dict[str, Question]:
    return {question.id: question for question in embedded_questions()}
