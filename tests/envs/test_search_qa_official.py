"""Official questions: complete, each learnt question once and never judged, whatever the order of rows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from envs.interface import EnvConfig, EnvironmentFailure, Panel
from envs.panels import PanelError, assert_disjoint
from envs.search_qa import official
from envs.search_qa.__main__ import main
from envs.search_qa.spec import SPEC

pytest.importorskip("pyarrow")
Rows = list[dict[str, Any]]


def write(folder: Path, **rows: Rows) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(exist_ok=True)
    for name, content in rows.items():
        pq.write_table(pa.Table.from_pylist(content), folder / official.FILES[name])
    official.questions.cache_clear()
    official._learnt.cache_clear()
    return folder


def row(source: str, k: int, nested: bool = False, **changes: Any) -> dict[str, Any]:
    answers: dict[str, Any] = {"golden_answers": [f"answer {k}"], "reward_model": None}
    if nested:
        answers = {"golden_answers": None, "reward_model": {"ground_truth": {"target": [f"answer {k}"]}}}
    return {"data_source": source, "question": f"question {k} of {source}?", "extra": k, **answers, **changes}


def train_rows() -> Rows:
    return [row("nq" if k % 2 else "hotpotqa", k) for k in range(600)]


def judged_rows() -> Rows:
    return [row(source, 1000 + k, nested=source == "musique") for source in official.SOURCES for k in range(130)]


@pytest.fixture(autouse=True)
def counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if so few were published."""
    published = {"train": {"nq": 300, "hotpotqa": 300}, "test": dict.fromkeys(official.SOURCES, 130)}
    monkeypatch.setattr(official, "COUNTS", published)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "data", train=train_rows(), test=judged_rows())


def config(folder: Path) -> EnvConfig:
    return EnvConfig(name="search_qa", data=str(folder), max_steps=4, prompt="full")


def panels(folder: Path) -> dict[str, Panel]:
    return {name: SPEC.load_panel(config(folder), name) for name in official.PANELS}


def test_official_panels(data: Path) -> None:
    loaded = panels(data)
    sizes = {name: len(panel.tasks) for name, panel in loaded.items()}
    assert sizes == {"train": 600 - 256, "validation": 256, "test": 7 * 130, "test_small": 7 * 125}
    assert_disjoint(loaded["train"], loaded["validation"], loaded["test"])
    task = loaded["test"].tasks[0]
    environment = SPEC.make(config(data))
    answer = environment.reset(task).task.split()[1]
    assert environment.step(f"answer[answer {answer}]").success
    with pytest.raises(ValueError, match="no panel 'seen'"):
        SPEC.load_panel(config(data), "seen")


def test_the_order_of_rows_decides_nothing(data: Path, tmp_path: Path) -> None:
    """Neither panels, nor their hashes, nor the ids of tasks."""
    train, test = [*train_rows(), row("nq", 1)], judged_rows()
    test[3] = dict(test[2])  # a row that is there twice
    test[5] = {**test[4], "golden_answers": ["another answer"]}  # a text that is there twice
    train[7] = {**train[5], "question": "Question 5, of NQ", "golden_answers": ["another answer"]}
    train.pop(9)
    before = panels(write(data, train=train, test=test))
    random.Random(0).shuffle(train)
    random.Random(1).shuffle(test)
    after = panels(write(tmp_path / "shuffled", train=train, test=test))
    assert before == after
    assert [len(panel.tasks) for panel in before.values()] == [600 - 256 - 2, 256, 7 * 130, 7 * 125]
    assert sorted(task.id[-2:] for task in before["test"].tasks).count("-2") == 1


def test_a_row_more_or_less_moves_no_other_question(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = panels(data)
    monkeypatch.setitem(official.COUNTS["train"], "nq", 301)
    after = panels(write(data, train=[row("nq", 9999), *train_rows()]))
    moved = {t.id for t in before["validation"].tasks} ^ {t.id for t in after["validation"].tasks}
    assert len(moved) in (0, 2)  # none, or the new one for the last of the old
    assert before["test"] == after["test"] and before["test_small"] == after["test_small"]


def test_one_text_is_on_one_side_whatever_its_answers(data: Path) -> None:
    """Of 600 rows of train, 50 repeat others with other answers, and 20 stand in test."""
    train, test = train_rows(), judged_rows()
    for k in range(50):
        train[2 * k] = {
            **train[2 * k + 200],
            "question": train[2 * k + 200]["question"].upper(),
            "golden_answers": ["x"],
        }
    for k in range(20):
        train[2 * k + 1] = {**train[2 * k + 1], "question": f"the {test[k]['question']}", "golden_answers": ["y"]}
    loaded, left_out = official.sound_panels(write(data, train=train, test=test), config(data))
    assert left_out == 70 and len(loaded["train"].tasks) == 600 - 70 - 256 and len(loaded["validation"].tasks) == 256


def test_leaks_would_be_found(data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    train = train_rows()
    train[0]["question"] = "question 1000 of nq"
    write(data, train=train)
    assert official.sound_panels(data, config(data))[1] == 1
    monkeypatch.setattr(official, "_learnt", lambda folder: tuple(official.questions(folder, "train").values()))
    with pytest.raises(PanelError, match="shares 1 of"):
        official.sound_panels(data, config(data))
    assert main(["verify", str(data)]) == 1 and "shares 1 of" in capsys.readouterr().err


@pytest.mark.parametrize("panel", official.PANELS)
def test_a_panel_never_shrinks(panel: str, data: Path) -> None:
    write(data, train=train_rows()[1:], test=judged_rows()[1:])
    with pytest.raises(ValueError, match=r"parquet has \d+ questions of \w+, the published file has \d+"):
        SPEC.load_panel(config(data), panel)
    write(data, train=[*train_rows(), row("squad", 1)], test=[*judged_rows(), row("squad", 1)])
    with pytest.raises(ValueError, match="has 1 questions of squad, the published file has 0"):
        SPEC.load_panel(config(data), panel)


def test_published_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert {file: sum(per_set.values()) for file, per_set in official.COUNTS.items()} == {
        "train": 169615,
        "test": 51713,
    }


def test_problems_are_named(data: Path) -> None:
    assert official.problems(data) == []
    write(data, test=judged_rows()[5:])
    (wrong,) = official.problems(data)
    assert wrong == f"{data / 'test.parquet'} has 125 questions of nq, the published file has 130"
    (data / "train.parquet").unlink()
    assert "train.parquet is missing" in " ".join(official.problems(data))
    write(data, train=[{"data_source": "nq", "question": "q", "golden_answers": []}])
    with pytest.raises(ValueError, match="row 0: no question, or no golden answer"):
        official.read_file(data / "train.parquet")
    write(data, train=[{"question": "q"}])
    with pytest.raises(ValueError, match="no column data_source"):
        official.read_file(data / "train.parquet")
    write(data, train=train_rows(), test=judged_rows())
    with pytest.raises(EnvironmentFailure, match="is not in"):
        official.question(data, "test:nq/none")


# -------------------------------------------------------------------------------------------------------- command line
def test_commands(capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path) -> None:
    assert main(["verify"]) == 0 and "CC BY-SA" in capsys.readouterr().out
    assert main(["verify", str(data)]) == 0
    said = capsys.readouterr().out
    assert "validation: 256 questions" in said and "0 rows of train are in no panel" in said and "all is well" in said
    write(data, test=judged_rows()[1:])
    assert main(["verify", str(data)]) == 1 and "published" in capsys.readouterr().out
    assert main(["fetch", "there"]) == 0 and "env.data=there" in capsys.readouterr().out
    assert main(["questions"]) == 0 and "wikilead-bridge" in capsys.readouterr().out
    assert main(["serve", "--passages", str(tmp_path / "none")]) == 2
    assert "error" in capsys.readouterr().err
