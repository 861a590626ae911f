"""What is made once and kept: it appears whole, others can read it, and what is broken says what to do."""

from __future__ import annotations

import json
import logging
import stat
from pathlib import Path

import pytest

from envs import cache
from envs.cache import file_sha256, kept_sha256, made_once
from envs.interface import EnvConfig, EnvironmentFailure
from envs.search_qa import settings
from envs.webshop import store


def test_a_folder_is_made_once_and_for_everybody(tmp_path: Path) -> None:
    made: list[Path] = []

    def fill(new: Path) -> None:
        made.append(new)
        (new / "mark").write_text("whole")

    folder = tmp_path / "below" / "index-1"
    assert made_once(folder, "mark", fill) == made_once(folder, "mark", fill) == folder and len(made) == 1
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    (folder / "mark").unlink()  # half of it is gone
    assert made_once(folder, "mark", fill) == folder and (folder / "mark").exists()


def test_what_killed_makers_left_is_removed_and_nobody_elses(tmp_path: Path) -> None:
    folder = tmp_path / "index-1"
    # an engine's index has a name, and a lock, of its own: its maker may be at work
    for name in (".index-1.k3_x", ".index-1.4711", ".index-1.tantivy-0.25.0-1.abc", ".index-12.abc", "index-1.x"):
        (tmp_path / name).mkdir()
    made_once(folder, "mark", lambda new: (new / "mark").touch())
    left = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert left == [".index-1.tantivy-0.25.0-1.abc", ".index-12.abc", "index-1", "index-1.x"]


@pytest.fixture
def passages(tmp_path: Path) -> EnvConfig:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"id": "1", "contents": '"Title"\nword'}) + "\n")
    return EnvConfig(name="search_qa", cache=str(tmp_path / "cache"), knobs={"passages": str(path)})


@pytest.mark.parametrize("content", [b"", b"nonsense"])
def test_a_broken_index_says_what_to_delete(passages: EnvConfig, content: bytes) -> None:
    settings.retriever_of(passages)
    (index,) = (path for path in Path(passages.cache or "", "search_qa").iterdir() if path.is_dir())
    assert stat.S_IMODE(index.stat().st_mode) == 0o755
    (index / "idf.npy").write_bytes(content)
    settings._lexical.cache_clear()
    with pytest.raises(EnvironmentFailure, match=rf"{index.name} cannot be opened \(.*delete the folder"):
        settings.retriever_of(passages)


def test_a_store_with_an_empty_array_says_what_to_delete(tmp_path: Path) -> None:
    (tmp_path / store.MANIFEST).write_text("{}")
    (tmp_path / "products.npy").write_bytes(b"")
    with pytest.raises(store.StoreError, match=r"cannot be opened .*delete the folder"):
        store.Store(tmp_path)


# ------------------------------------------------------------------------------------------------------------- digests
@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.json"
    path.write_text("content")
    cache._noted.cache_clear()
    return path


def note_of(notes: Path) -> Path:
    (note,) = notes.iterdir()
    cache._noted.cache_clear()
    return note


def test_a_digest_is_remembered_until_the_file_changes(file: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    assert kept_sha256(file, notes) == file_sha256(file)
    note = note_of(notes)
    note.write_text(note.read_text().replace(file_sha256(file), "remembered"))
    assert kept_sha256(file, notes) == "remembered"
    file.write_text("other content")  # in its place, and in the same process
    assert kept_sha256(file, notes) == file_sha256(file)


@pytest.mark.parametrize("content", ["", "[]", "{}", "{", "\udcff"])
def test_an_unreadable_note_counts_as_none(
    content: str, file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept_sha256(file, tmp_path / "notes")
    note = note_of(tmp_path / "notes")
    note.write_bytes(content.encode(errors="surrogateescape"))
    with caplog.at_level(logging.WARNING):
        assert kept_sha256(file, tmp_path / "notes") == file_sha256(file)
    assert "cannot be read" in caplog.text and json.loads(note.read_text())["sha256"] == file_sha256(file)


def test_a_note_that_cannot_be_written_is_a_warning(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "notes").write_text("a file in the way")
    with caplog.at_level(logging.WARNING):
        assert kept_sha256(file, tmp_path / "notes") == file_sha256(file)
    assert "cannot be kept" in caplog.text
