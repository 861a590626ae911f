"""The copy of the code that jobs run: made once, whole, imported before anything else, honest about what it is."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import harness
from harness import provenance
from harness.files import DiskFullError, RecordError
from harness.launch import snapshot as snapshots
from harness.launch.snapshot import environment, snapshot
from harness.provenance import SNAPSHOT_PACKAGES, this_code

FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the real code; left as it is by every test."""
    return snapshot(tmp_path_factory.mktemp("an output folder"))


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small packages in place of the real ones."""
    root = tmp_path / "site-packages"
    for name in SNAPSHOT_PACKAGES:
        (root / name / "inner" / "__pycache__").mkdir(parents=True)
        (root / name / "__init__.py").write_text(f"# {name}\n")
        (root / name / "inner" / "data.json").write_text("{}")
        (root / name / "inner" / "__pycache__" / "old.pyc").write_text("x")
    monkeypatch.setattr(snapshots, "_package_folder", lambda name: root / name)
    return root


def run(code: str, copy: Path, workdir: Path, **variables: str) -> str:
    """What a process with the copy's environment prints, started in `workdir`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    finished = subprocess.run(
        [sys.executable, "-c", code],
        cwd=workdir,
        env={**clean, **variables, **environment(copy, workdir, variables.get("PYTHONPATH", ""))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


# ---------------------------------------------------------------------------------------------------- what it holds
def test_it_holds_every_package_with_its_data(copy: Path) -> None:
    for name in ("harness/worker.py", "sweeps/config.yaml", "core/names.py", "methods/grpo.py", "analysis/__init__.py"):
        assert (copy / name).is_file(), name
    assert not list(copy.rglob("*.pyc"))
    assert json.loads((copy / "snapshot.json").read_text())["code"] == this_code()


def test_every_package_that_the_project_installs_is_in_it() -> None:
    root = Path(provenance.__file__).resolve().parents[1]
    found = {path.parent.name for path in root.glob("*/__init__.py")} - {"tests", "benchmarks", "docs"}
    assert found <= set(SNAPSHOT_PACKAGES)


def test_the_same_code_is_copied_once(packages: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = snapshot(out)
    before = (first / "snapshot.json").read_bytes()
    assert snapshot(out) == first
    assert (first / "snapshot.json").read_bytes() == before
    assert [path.name for path in (out / "snapshots").iterdir()] == [first.name]


@pytest.mark.parametrize("change", ["content", "new file", "name", "commit"])
def test_other_code_is_another_copy(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    first = snapshot(tmp_path / "out")
    kept = (first / "core" / "__init__.py").read_text()
    if change == "content":
        (packages / "core" / "__init__.py").write_text("# edited\n")
    elif change == "new file":
        (packages / "core" / "new.py").write_text("")
    elif change == "name":
        (packages / "core" / "inner" / "data.json").rename(packages / "core" / "inner" / "date.json")
    else:
        monkeypatch.setattr(snapshots, "this_code", lambda: {"commit": "f" * 40, "dirty": False, "diff_sha256": None})
    assert snapshot(tmp_path / "out") != first
    assert (first / "core" / "__init__.py").read_text() == kept


def test_caches_are_no_code(packages: Path, tmp_path: Path) -> None:
    first = snapshot(tmp_path / "out")
    (packages / "core" / "__pycache__").mkdir()
    (packages / "core" / "__pycache__" / "x.cpython-311.pyc").write_text("y")
    assert snapshot(tmp_path / "out") == first


def test_a_read_only_install_gives_a_copy_that_can_be_deleted(packages: Path, tmp_path: Path) -> None:
    for path in packages.rglob("*"):
        path.chmod(stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))
    made = snapshot(tmp_path / "out")
    assert (made / "core" / "__init__.py").stat().st_mode & stat.S_IWUSR
    shutil.rmtree(made)
    for path in [packages, *packages.rglob("*")]:
        path.chmod(0o755)


def test_a_package_that_is_no_folder_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_PACKAGES", ("no_such_package_anywhere",))
    with pytest.raises(RecordError, match="no_such_package_anywhere is not a folder"):
        snapshot(tmp_path)


# ---------------------------------------------------------------------------------------------------- making it
def _make(out: Path, start: object, results: object) -> None:
    start.wait()  # type: ignore[attr-defined]
    results.put(snapshot(out))  # type: ignore[attr-defined]


def test_many_at_once_make_one(packages: Path, tmp_path: Path) -> None:
    start, results = FORK.Event(), FORK.Queue()
    processes = [FORK.Process(target=_make, args=(tmp_path / "out", start, results)) for _ in range(8)]
    for process in processes:
        process.start()
    start.set()
    made = {results.get(timeout=60) for _ in processes}
    for process in processes:
        process.join(60)
    assert len(made) == 1
    assert [path.name for path in (tmp_path / "out" / "snapshots").iterdir()] == [made.pop().name]


def test_a_full_disk_leaves_nothing(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(DiskFullError):
        snapshot(tmp_path / "out")
    assert list((tmp_path / "out" / "snapshots").iterdir()) == []


def test_a_copy_that_was_edited_is_not_used_again(packages: Path, tmp_path: Path) -> None:
    made = snapshot(tmp_path / "out")
    (made / "core" / "__init__.py").write_text("# edited in place\n")
    with pytest.raises(RecordError, match="was changed since it was made"):
        snapshot(tmp_path / "out")


# ---------------------------------------------------------------------------------------------------- running it
def decoy(folder: Path) -> None:
    """Sources in the folder where a job starts, as in a checkout."""
    (folder / "harness").mkdir(parents=True)
    (folder / "harness" / "__init__.py").write_text("raise SystemExit('the sources were imported')\n")


def test_jobs_import_the_copy_and_not_the_folder_they_start_in(copy: Path, tmp_path: Path) -> None:
    decoy(tmp_path)
    decoy(tmp_path / "other")
    code = "import harness.worker; print(harness.worker.__file__)"
    assert run(code, copy, tmp_path, PYTHONPATH=str(tmp_path / "other")) == str(copy / "harness" / "worker.py")


def test_a_module_run_by_name_comes_from_the_copy(copy: Path, tmp_path: Path) -> None:
    decoy(tmp_path)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    finished = subprocess.run(
        [sys.executable, "-m", "harness.worker", "--help"],
        cwd=tmp_path,
        env={**clean, **environment(copy, tmp_path, "")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert "run_dir" in finished.stdout


def test_modules_of_the_user_stay_importable(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("SPEC = 'my method'\n")
    assert run("import mine; print(mine.SPEC)", copy, tmp_path) == "my method"


def test_the_order_of_paths() -> None:
    found = environment(Path("/copy"), Path("/work"), "/a:/b::/work")
    assert found == {"PYTHONPATH": "/copy:/a:/b:/work", "PYTHONSAFEPATH": "1"}
    installed = str(Path(harness.__file__).parents[1])
    found = environment(workdir=Path("/work"), inherited="/a")  # for processes of this command
    assert found == {"PYTHONPATH": f"{installed}:/a:/work", "PYTHONSAFEPATH": "1"}


WHICH = "import json; from harness.provenance import this_code, equals_commit; c = this_code(); print(json.dumps([c, equals_commit(c['commit'] or '')]))"  # noqa: E501


def test_a_copy_says_what_it_is_a_copy_of(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean = {"commit": "a" * 40, "dirty": False, "diff_sha256": None}
    monkeypatch.setattr(snapshots, "this_code", lambda: clean)
    made = snapshot(tmp_path / "out")
    assert json.loads(run(WHICH, made, tmp_path)) == [clean, True]
    (made / "methods" / "grpo.py").open("a").write("# edited\n")
    code, equals = json.loads(run(WHICH, made, tmp_path))
    assert (code["commit"], code["dirty"], equals) == ("a" * 40, True, False)
    assert len(code["diff_sha256"]) == 64


def test_a_copy_of_changed_code_says_so(packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dirty = {"commit": "a" * 40, "dirty": True, "diff_sha256": "b" * 64}
    monkeypatch.setattr(snapshots, "this_code", lambda: dirty)
    made = snapshot(tmp_path / "out")
    assert provenance._copied_code(made) == dirty
    provenance.equals_commit.cache_clear()
    assert not provenance.equals_commit("a" * 40, made)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"code": {}, "digest": "x"}'])
def test_a_folder_with_another_snapshot_json_is_no_copy(tmp_path: Path, text: str) -> None:
    (tmp_path / "snapshot.json").write_text(text)
    assert provenance._copied_code(tmp_path) is None
