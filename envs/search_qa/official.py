"""The user's questions in the layout that Search-R1 prepares: train.parquet and test.parquet in one folder.

Columns read: `data_source` (nq, triviaqa, ...), `question`, and the golden answers, which stand either in
`golden_answers` or in `reward_model.ground_truth.target`. Train is NQ and HotpotQA; test has seven sets, each of which
is a task type, and is taken row by row as it is published. `test_small` is a fixed stratified sample of it.

`validation` is carved from train. Both have each question text once, compared as answers are (case, punctuation and
articles do not count), and neither has one that stands in test: what is judged keeps its questions, training gives way.
Ids and orders come from contents, so that the order of rows in a file decides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from envs.interface import EnvConfig, EnvironmentFailure, Panel, Task
from envs.panels import assert_disjoint, build_panel, digest
from envs.search_qa.em import normalise
from envs.search_qa.questions import Question

FILES = {"train": "train.parquet", "test": "test.parquet"}
PANELS = ("train", "validation", "test", "test_small")
SOURCES = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
# Rows of the published files, per set: 169,615 and 51,713 (PeterGriffinJin/Search-R1, issue 123).
COUNTS: dict[str, dict[str, int]] = {
    "train": {"nq": 79168, "hotpotqa": 90447},
    "test": {
        "nq": 3610,
        "triviaqa": 11313,
        "popqa": 14267,
        "hotpotqa": 7405,
        "2wikimultihopqa": 12576,
        "musique": 2417,
        "bamboogle": 125,
    },
}
COLUMNS = ("data_source", "question", "golden_answers", "reward_model")
SMALL_PER_SOURCE = 125  # questions of each set in test_small: as many as the smallest set has
VALIDATION = 256  # questions taken from train


def read_file(path: Path) -> tuple[Question, ...]:
    """Questions in the order of their ids. FileNotFoundError, or ValueError naming the row that cannot be used."""
    import pyarrow.parquet as pq

    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; `python -m envs.search_qa fetch` says where it comes from")
    columns = pq.read_schema(path).names
    missing = {"data_source", "question"} - set(columns)
    if missing:
        raise ValueError(f"{path} has no column {', '.join(sorted(missing))}; it has {', '.join(columns)}")
    table = pq.read_table(path, columns=[name for name in COLUMNS if name in columns])
    return _named(_question(path, number, row) for number, row in enumerate(table.to_pylist()))


def _question(path: Path, number: int, row: Mapping[str, Any]) -> Question:
    """Without an id."""
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
    return Question("", source, text, answers_of, "", (), ())


def _named(questions: Iterable[Question]) -> tuple[Question, ...]:
    """With ids that their contents give them, in the order of these; a repeated row is counted on."""
    from envs.search_qa.tasks import content_hash

    seen: Counter[str] = Counter()
    found = []
    for question in sorted(questions, key=lambda q: (q.kind, content_hash(q), q.text, q.answers)):
        name = f"{question.kind}/{content_hash(question)[:16]}"
        seen[name] += 1
        found.append(replace(question, id=name if seen[name] == 1 else f"{name}-{seen[name]}"))
    return tuple(sorted(found, key=lambda q: q.id))


@lru_cache(maxsize=4)
def questions(folder: Path, file: str) -> dict[str, Question]:
    """By id, of one of the two files. ValueError if it has other counts than the published one."""
    found = read_file(folder / FILES[file])
    if wrong := differences(folder, file, found):
        raise ValueError("; ".join(wrong))
    return {question.id: question for question in found}


def differences(folder: Path, file: str, found: Iterable[Question]) -> list[str]:
    """How the counts of a file differ from the published ones."""
    counts = Counter(question.kind for question in found)
    return [
        f"{folder / FILES[file]} has {counts[source]} questions of {source}, the published file has {wanted}"
        for source in sorted({*counts, *COUNTS[file]})
        if counts[source] != (wanted := COUNTS[file].get(source, 0))
    ]


def question(folder: Path, location: str) -> Question:
    """The question at a task's location, `file:id`. EnvironmentFailure if it is not there."""
    file, _, name = location.partition(":")
    try:
        return questions(folder, file)[name]
    except (KeyError, OSError, ValueError) as error:
        raise EnvironmentFailure(f"question {location!r} is not in {folder}: {error}") from error


def load_panel(folder: Path, config: EnvConfig, name: str) -> Panel:
    """ValueError for an unknown panel and for files that are not the published ones, FileNotFoundError for a missing
    file."""
    from envs.search_qa.tasks import NAME, content_hash

    if name not in PANELS:
        raise ValueError(f"{NAME} has no panel {name!r} with env.data; it has {', '.join(PANELS)}")
    file = "train" if name in ("train", "validation") else "test"
    if file == "train":
        learnt = _learnt(folder)
        chosen = learnt[:VALIDATION] if name == "validation" else learnt[VALIDATION:]
    else:
        chosen = tuple(questions(folder, "test").values())
        if name == "test_small":
            chosen = tuple(q for source in SOURCES for q in _sample(chosen, source))
    version = f"official-{digest(*sorted(content_hash(q) for q in chosen))[:16]}"
    return build_panel(NAME, version, name, [_task(q, file) for q in chosen])


def _task(given: Question, file: str) -> Task:
    from envs.search_qa.tasks import task_of

    return replace(task_of(given), location=f"{file}:{given.id}")


@lru_cache(maxsize=2)
def _learnt(folder: Path) -> tuple[Question, ...]:
    """Questions to train and validate on, in the order in which validation takes its share."""
    judged = {key(q) for q in questions(folder, "test").values()}
    once: dict[str, Question] = {}
    for one in questions(folder, "train").values():  # in the order of ids, so the same one is kept whatever the file's
        once.setdefault(key(one), one)
    return tuple(once[text] for text in sorted(once, key=lambda t: digest("validation", t)) if text not in judged)


def key(given: Question) -> str:
    """The text as it is compared: two questions of one key are one question."""
    return normalise(given.text) or given.text


def _sample(given: Iterable[Question], source: str) -> list[Question]:
    mine = sorted((q for q in given if q.kind == source), key=lambda q: (digest("small", key(q)), q.id))
    return mine[:SMALL_PER_SOURCE]


def problems(folder: Path) -> list[str]:
    """What is wrong with the folder's files: missing, unreadable, or with other counts than published."""
    found = []
    for name in sorted(FILES):
        try:
            found += differences(folder, name, read_file(folder / FILES[name]))
        except (OSError, ValueError) as error:
            found.append(str(error))
    return found


def sound_panels(folder: Path, config: EnvConfig) -> tuple[dict[str, Panel], int]:
    """(all panels, how many rows of train are in none). Raises PanelError if what is learnt is judged, or validated on.

    By texts, which is stricter than by contents: the same question with other answers counts as the same.
    """
    panels = {name: load_panel(folder, config, name) for name in PANELS}
    by_text = {name: _by_text(folder, panel) for name, panel in panels.items()}
    assert_disjoint(by_text["train"], by_text["validation"], by_text["test"], by_text["test_small"])
    assert_disjoint(by_text["validation"], by_text["test"], by_text["test_small"])
    return panels, len(questions(folder, "train")) - len(panels["train"].tasks) - len(panels["validation"].tasks)


def _by_text(folder: Path, panel: Panel) -> Panel:
    return replace(
        panel, tasks=tuple(replace(t, content_hash=digest(key(question(folder, t.location)))) for t in panel.tasks)
    )
