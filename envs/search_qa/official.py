"""The user's questions in the layout that Search-R1 prepares: train.parquet and test.parquet in one folder.

Columns read: `data_source` (nq, triviaqa, ...), `question`, and the golden answers, which stand either in
`golden_answers` or in `reward_model.ground_truth.target`. Train is NQ and HotpotQA; test has seven sets, each of which
is a task type. `test_small` is a fixed stratified sample of test; `validation` is carved from train, and train is
without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from envs.interface import EnvConfig, EnvironmentFailure, Panel
from envs.panels import build_panel, digest
from envs.search_qa.questions import Question

FILES = {"train": "train.parquet", "test": "test.parquet"}
PANELS = ("train", "validation", "test", "test_small")
SOURCES = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
# Rows of the published test file; they add up to 51,713.
TEST_COUNTS = {
    "nq": 3610,
    "triviaqa": 11313,
    "popqa": 14267,
    "hotpotqa": 7405,
    "2wikimultihopqa": 12576,
    "musique": 2417,
    "bamboogle": 125,
}
SMALL_PER_SOURCE = 125  # questions of each set in test_small: as many as the smallest set has
VALIDATION = 256  # questions taken from train


def read_file(path: Path) -> tuple[Question, ...]:
    """Questions in the order of the file. FileNotFoundError, or ValueError naming the row that cannot be used."""
    import pyarrow.parquet as pq

    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; `python -m envs.search_qa fetch` says where it comes from")
    table = pq.read_table(path)
    missing = {"data_source", "question"} - set(table.column_names)
    if missing:
        raise ValueError(f"{path} has no column {', '.join(sorted(missing))}; it has {', '.join(table.column_names)}")
    return tuple(_question(path, number, row) for number, row in enumerate(table.to_pylist()))


def _question(path: Path, number: int, row: Mapping[str, Any]) -> Question:
    answers = row.get("golden_answers")
    if answers is None:
        model = row.get("reward_model") or {}
        truth = model.get("ground_truth") if isinstance(model, Mapping) else None
        answers = truth.get("target") if isinstance(truth, Mapping) else None
    listed = [answers] if isinstance(answers, str) else list(answers if answers is not None else [])
    text = str(row["question"] or "").strip()
    if not text or not any(str(answer).strip() for answer in listed):
        raise ValueError(f"{path}, row {number}: no question, or no golden answer")
    source = str(row["data_source"]).removeprefix("searchR1_").lower()
    answers_of = tuple(str(answer) for answer in listed if str(answer).strip())
    return Question(f"{source}/{path.stem}-{number:06d}", source, text, answers_of, "", (), ())


@lru_cache(maxsize=4)
def questions(folder: Path, file: str) -> dict[str, Question]:
    """By id, of one of the two files."""
    return {question.id: question for question in read_file(folder / FILES[file])}


def question(folder: Path, location: str) -> Question:
    """The question at a task's location, `file/id`. EnvironmentFailure if it is not there."""
    file, _, number = location.partition(":")
    try:
        return questions(folder, file)[number]
    except (KeyError, OSError, ValueError) as error:
        raise EnvironmentFailure(f"question {location!r} is not in {folder}: {error}") from error


def load_panel(folder: Path, config: EnvConfig, name: str) -> Panel:
    """ValueError for an unknown panel, FileNotFoundError for a missing file."""
    from envs.search_qa.tasks import NAME, content_hash, task_of

    if name not in PANELS:
        raise ValueError(f"{NAME} has no panel {name!r} with env.data; it has {', '.join(PANELS)}")
    chosen = list(questions(folder, "train" if name in ("train", "validation") else "test").values())
    if name in ("train", "validation"):
        # by content, so that neither the order of the file nor its length moves a question from one to the other alone
        ordered = sorted(chosen, key=lambda q: digest("validation", content_hash(q), q.id))
        chosen = ordered[:VALIDATION] if name == "validation" else ordered[VALIDATION:]
        chosen = _once(chosen)
    if name == "test_small":
        chosen = [q for source in SOURCES for q in _sample(chosen, source)]
    file = "train" if name in ("train", "validation") else "test"
    tasks = [_located(task_of(q), file) for q in chosen]
    return build_panel(NAME, f"official-{digest(*sorted(content_hash(q) for q in chosen))[:16]}", name, tasks)


def _located(task: Any, file: str) -> Any:
    from dataclasses import replace

    return replace(task, location=f"{file}:{task.id}")


def _once(given: Iterable[Question]) -> list[Question]:
    """Each question text once: HotpotQA and NQ repeat a few."""
    seen: set[str] = set()
    kept = []
    for one in given:
        key = " ".join(one.text.lower().split())
        if key not in seen:
            seen.add(key)
            kept.append(one)
    return kept


def _sample(given: Iterable[Question], source: str) -> list[Question]:
    mine = sorted((q for q in given if q.kind == source), key=lambda q: digest("small", q.text, q.id))
    return mine[:SMALL_PER_SOURCE]


def problems(folder: Path) -> list[str]:
    """What is wrong with the folder's files: missing, unreadable, or with other counts than published."""
    found = []
    for name in sorted(FILES):
        try:
            counts: dict[str, int] = {}
            for one in read_file(folder / FILES[name]):
                counts[one.kind] = counts.get(one.kind, 0) + 1
        except (OSError, ValueError) as error:
            found.append(str(error))
            continue
        if name == "test":
            found += [
                f"{FILES[name]}: {counts.get(source, 0)} questions of {source}, published are {wanted}"
                for source, wanted in TEST_COUNTS.items()
                if counts.get(source, 0) != wanted
            ]
    return found
