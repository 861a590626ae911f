"""The user's data and the generated data: complete or an error that names what is missing; made once, whoever asks."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from envs.alfworld import fetch, generated, official, spec
from envs.alfworld.__main__ import main
from envs.alfworld.facts import TASK_TYPES, UNSEEN_ROOMS
from envs.alfworld.manifest import LAYOUT, NAME, SPLITS, Manifest
from envs.cache import cache_root, file_lock, write_atomically
from envs.interface import EnvConfig
from envs.panels import assert_disjoint, panel_identity

World = tuple[Path, Manifest]


@pytest.fixture
def data(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EnvConfig:
    """A data folder as released: no manifest, all counts right. Six games a split instead of thousands."""
    root = tmp_path / "data"
    shutil.copytree(world[0], root, ignore=shutil.ignore_patterns(NAME))
    for panel in SPLITS:
        monkeypatch.setitem(official.COUNTS, panel, 6)  # type: ignore[arg-type]
    spec._user_panel_hash.cache_clear()
    return EnvConfig(data=str(root), cache=str(tmp_path / "cache"))


def root_of(config: EnvConfig) -> Path:
    return Path(config.data or "")


def first_trial(config: EnvConfig, split: str = "valid_seen") -> Path:
    return official.trial_folders(root_of(config) / LAYOUT / split)[0]


# -------------------------------------------------------------------------------------------------------- official data
def test_the_released_counts() -> None:
    assert dict(official.COUNTS) == {"train": 3553, "seen": 140, "unseen": 134}


def test_panels_of_a_complete_folder(data: EnvConfig, world: World) -> None:
    for panel, split in SPLITS.items():
        loaded = spec.load_panel(data, panel)
        assert loaded.data_version == "official-json_2.1.1"
        assert [t.id for t in loaded.tasks] == sorted(t.id for t in loaded.tasks)
        assert {t.type for t in loaded.tasks} == set(TASK_TYPES)
        for task in loaded.tasks:
            assert task.id.startswith(f"{split}/") and (root_of(data) / task.location).is_file()
            assert set(task.slots) == ({"object", "lamp"} if task.type.startswith("look") else {"object", "target"})
            assert all(value == value.lower() for value in task.slots.values())
        assert [t.content_hash for t in loaded.tasks] == [e.content_hash for e in world[1].panels[panel]]
        assert panel_identity(data, panel) == loaded.hash


def test_a_missing_game_is_an_error_that_names_it(data: EnvConfig) -> None:
    folder = first_trial(data)
    (folder / "game.tw-pddl").unlink()
    with pytest.raises(FileNotFoundError, match=r"has 6 games.*has 5.*\(1 missing\): 1 without game\.tw-pddl") as error:
        spec.load_panel(data, "seen")
    assert folder.name in str(error.value)
    assert len(spec.load_panel(data, "unseen").tasks) == 6


@pytest.mark.parametrize("mark", [False, None, "absent"])
def test_an_unsolvable_game_is_named_not_dropped(data: EnvConfig, mark: object) -> None:
    path = first_trial(data) / "game.tw-pddl"
    game = json.loads(path.read_text())
    if mark == "absent":
        del game["solvable"]
    else:
        game["solvable"] = mark
    path.write_text(json.dumps(game))
    with pytest.raises(FileNotFoundError, match="1 not marked solvable: valid_seen/") as error:
        spec.load_panel(data, "seen")
    assert path.parent.name in str(error.value)


def test_a_missing_trial_and_a_broken_file(data: EnvConfig) -> None:
    one, other = official.trial_folders(root_of(data) / LAYOUT / "valid_seen")[:2]
    shutil.rmtree(one)
    with pytest.raises(FileNotFoundError, match=r"\(1 missing\): no trial without a usable game was found"):
        spec.load_panel(data, "seen")
    (other / "traj_data.json").write_text("{")
    with pytest.raises(FileNotFoundError, match=r"\(2 missing\): 1 unreadable: valid_seen/"):
        spec.load_panel(data, "seen")


def test_what_the_release_skips_is_skipped(data: EnvConfig) -> None:
    folder = first_trial(data)
    split = root_of(data) / LAYOUT / "valid_seen"
    for name in (
        "pick_and_place_with_movable_recep-Cup-Plate-Shelf-3",
        "pick_and_place_simple-AppleSliced-None-Fridge-3",
    ):
        shutil.copytree(folder, split / name.replace("movable_recep", "movable") / "trial_T1")
    other = split / "other-Cup-None-Shelf-3" / "trial_T2"
    shutil.copytree(folder, other)
    trajectory = json.loads((other / "traj_data.json").read_text())
    (other / "traj_data.json").write_text(json.dumps({**trajectory, "task_type": "pick_and_place_with_movable_recep"}))
    assert len(spec.load_panel(data, "seen").tasks) == 6


def test_a_data_root_called_movable_is_fine(data: EnvConfig, tmp_path: Path) -> None:
    moved = tmp_path / "movable Sliced"
    root_of(data).rename(moved)
    assert len(spec.load_panel(replace(data, data=str(moved)), "seen").tasks) == 6


def test_too_many_games_are_refused_until_declared(data: EnvConfig, capsys: pytest.CaptureFixture[str]) -> None:
    extra = first_trial(data).parent / "trial_Textra"
    shutil.copytree(first_trial(data), extra)
    with pytest.raises(ValueError, match=r"has 7 games and the official data has 6; .*--write-manifest"):
        spec.load_panel(data, "seen")
    assert main(["verify", "--data", str(root_of(data)), "--write-manifest"]) == 0
    panel = spec.load_panel(data, "seen")
    assert len(panel.tasks) == 7 and panel.data_version.startswith("own-")
    (extra / "game.tw-pddl").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 missing: .*trial_Textra/game\.tw-pddl"):
        spec.load_panel(data, "seen")


def test_a_wrong_folder_says_which_one_is_meant(data: EnvConfig) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"has no folder json_2\.1\.1/valid_seen; give the folder that contains"
    ):
        spec.load_panel(replace(data, data=str(root_of(data) / LAYOUT)), "seen")
    with pytest.raises(FileNotFoundError, match="no folder"):
        spec.load_panel(replace(data, data="/nowhere"), "train")


def test_the_index_is_used_and_noticed_when_stale(
    data: EnvConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = spec.load_panel(data, "seen")
    monkeypatch.setattr(official, "collect", lambda root, panel: pytest.fail("read again without need"))
    assert spec.load_panel(data, "seen") == before
    monkeypatch.undo()
    for panel in SPLITS:
        monkeypatch.setitem(official.COUNTS, panel, 6)  # type: ignore[arg-type]
    path = first_trial(data) / "game.tw-pddl"
    game = json.loads(path.read_text())
    path.write_text(json.dumps({**game, "grammar": game["grammar"].replace("put", "place")}, indent=1))
    assert spec.load_panel(data, "seen").hash != before.hash
    (index,) = (cache_root(data) / "official").glob("*-seen.json")
    index.write_text("{}")
    with caplog.at_level(logging.WARNING):
        assert len(spec.load_panel(data, "seen").tasks) == 6
    assert "unreadable" in caplog.text


def test_leaked_content_is_found_by_verify(data: EnvConfig, capsys: pytest.CaptureFixture[str]) -> None:
    train = official.trial_folders(root_of(data) / LAYOUT / "train")[0]
    seen = first_trial(data)
    shutil.copy(train / "game.tw-pddl", seen / "game.tw-pddl")
    assert main(["verify", "--data", str(root_of(data)), "--cache", str(cache_root(data))]) == 1
    assert "shares 1 of 6 tasks with panel 'train'" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------- generated data
def test_generated_panels(config: EnvConfig, world: World) -> None:
    panels = {name: spec.load_panel(config, name) for name in SPLITS}
    assert_disjoint(panels["train"], panels["seen"], panels["unseen"])
    for panel in panels.values():
        assert {t.type for t in panel.tasks} == set(TASK_TYPES) and panel.data_version == world[1].version
    rooms = {name: {int(t.id.split("/")[1].rsplit("-", 1)[1]) for t in p.tasks} for name, p in panels.items()}
    assert rooms["unseen"] <= set(UNSEEN_ROOMS)
    assert not (rooms["train"] | rooms["seen"]) & set(UNSEEN_ROOMS)
    assert len({p.hash for p in panels.values()}) == 3


def test_what_determines_generated_games_determines_their_name(config: EnvConfig) -> None:
    names = {
        panel_identity(c, "train")
        for c in (
            config,
            replace(config, world_seed=1),
            replace(config, train_per_type=2),
            replace(config, eval_per_type=2),
        )
    }
    assert len(names) == 4
    assert panel_identity(replace(config, max_steps=3, engine="textworld", prompt="full"), "train") in names
    assert panel_identity(config, "train") != panel_identity(config, "seen")
    with pytest.raises(ValueError, match=r"env\.eval_per_type=0"):
        panel_identity(replace(config, eval_per_type=0), "train")


def test_unknown_panels_and_engines(config: EnvConfig) -> None:
    with pytest.raises(ValueError, match="no panel 'valid'; it has train, seen, unseen"):
        spec.load_panel(config, "valid")
    with pytest.raises(ValueError, match=r"env\.engine='thor' is not one of textworld, native"):
        spec.make(replace(config, engine="thor"))


def test_a_lost_or_cut_generated_game_is_named(config: EnvConfig, world: World, tmp_path: Path) -> None:
    copy = replace(config, cache=str(tmp_path))
    shutil.copytree(world[0], generated.root_of(copy))
    entry = world[1].panels["unseen"][2]
    path = generated.root_of(copy) / entry.location
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    with pytest.raises(FileNotFoundError, match="1 of another size"):
        spec.load_panel(copy, "unseen")
    path.unlink()
    with pytest.raises(FileNotFoundError, match="1 missing") as error:
        spec.load_panel(copy, "unseen")
    assert entry.location in str(error.value)
    path.write_bytes(whole.replace(b"pickupable", b"pickupabla", 1))
    arguments = ["--cache", str(tmp_path), "--train-per-type", "1", "--eval-per-type", "1"]
    assert main(["verify", *arguments]) == 1
    path.write_bytes(whole)
    assert main(["verify", *arguments]) == 0


def test_a_manifest_that_was_edited_is_refused(world: World, tmp_path: Path) -> None:
    path = tmp_path / NAME
    world[1].write(path)
    assert Manifest.read(path) == world[1]
    path.write_text(path.read_text().replace("pick_two_obj_and_place", "pick_and_place_simple", 1))
    with pytest.raises(ValueError, match="was changed after it was written"):
        Manifest.read(path)
    path.write_text("[]")
    with pytest.raises(ValueError, match="not a usable manifest"):
        Manifest.read(path)
    with pytest.raises(FileNotFoundError):
        Manifest.read(tmp_path / "none.json")


_ENSURE = """
import sys
from envs.alfworld import generated
from envs.interface import EnvConfig
made = []
real = generated.write_games
generated.write_games = lambda config, root: made.append(1) or real(config, root)
root, manifest = generated.ensure(EnvConfig(engine="native", cache=sys.argv[1], train_per_type=1, eval_per_type=1))
print(len(made), manifest.panels["train"][0].content_hash)
"""


@pytest.mark.slow
def test_processes_that_ask_at_once_make_the_games_once(world: World, tmp_path: Path) -> None:
    left = generated.root_of(EnvConfig(cache=str(tmp_path), train_per_type=1, eval_per_type=1))
    (left.parent / f".{left.name}.99999").mkdir(parents=True)  # of a maker that was killed
    racing = [
        subprocess.Popen([sys.executable, "-c", _ENSURE, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [process.communicate()[0].split() for process in racing]
    assert sorted(made for made, _ in said) == ["0", "0", "1"]
    assert {content for _, content in said} == {world[1].panels["train"][0].content_hash}
    assert sorted(p.name for p in left.parent.iterdir()) == sorted([left.name, f"{left.name}.lock"])


def test_a_maker_that_fails_leaves_nothing(config: EnvConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(config: EnvConfig, root: Path) -> Manifest:
        root.mkdir()
        (root / "half").write_text("")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(generated, "write_games", breaks)
    fresh = replace(config, cache=str(tmp_path))
    with pytest.raises(OSError, match="No space"):
        generated.ensure(fresh)
    assert [p.name for p in (tmp_path / "worlds").iterdir()] == [f"{generated.root_of(fresh).name}.lock"]


@pytest.mark.engine
@pytest.mark.slow
def test_loading_a_panel_translates_it_once(
    config: EnvConfig, world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("textworld")
    fresh = replace(config, cache=str(tmp_path), engine="textworld")
    shutil.copytree(world[0], generated.root_of(fresh))
    spec.load_panel(fresh, "seen")
    kept = list((tmp_path / "translations").glob("*/*.sas.zz"))
    assert len(kept) == 6
    monkeypatch.setattr(generated, "_translate_all", lambda *a: pytest.fail("translated again"))
    spec.load_panel(fresh, "seen")


def test_a_failing_translator_only_costs_time(
    config: EnvConfig, world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(generated.sys, "executable", shutil.which("false"))
    fresh = replace(config, cache=str(tmp_path))
    generated.ensure_translations(fresh, world[0], "v", "seen", world[1].panels["seen"], workers=1)
    assert "translating ahead failed with status 1" in caplog.text
    assert not list((tmp_path / "translations").glob("*.done"))


# --------------------------------------------------------------------------------------------------------------- cache
def test_where_the_cache_is(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_root(EnvConfig()) == home / ".cache" / "agentic-rl-harness"
    monkeypatch.setenv("HARNESS_CACHE", str(home / "there"))
    assert cache_root(EnvConfig()) == cache_root() == home / "there"
    assert cache_root(EnvConfig(cache="~/mine")) == home / "mine"


def test_a_lock_keeps_others_out_and_dies_with_its_holder(tmp_path: Path) -> None:
    holding = "import sys, time; from pathlib import Path; from envs.cache import file_lock\n"
    holding += "with file_lock(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    path = tmp_path / "a" / "lock"
    holder = subprocess.Popen([sys.executable, "-c", holding, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    entered = threading.Event()

    def enter() -> None:
        with file_lock(path):
            entered.set()

    waiting = threading.Thread(target=enter)
    waiting.start()
    time.sleep(0.2)
    assert not entered.is_set()
    holder.kill()
    holder.wait()
    waiting.join(timeout=30)
    assert entered.is_set()


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["file"]


# -------------------------------------------------------------------------------------------------------- command line
def test_generate_into_a_folder_that_then_serves_as_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("alfworld")
    out = tmp_path / "games"
    sizes = ["--train-per-type", "1", "--eval-per-type", "1", "--seed", "3", "--cache", str(tmp_path / "cache")]
    assert main(["generate", *sizes, "--out", str(out)]) == 0
    assert "6 seen, 6 train, 6 unseen" in capsys.readouterr().out
    assert main(["verify", "--data", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "train: 6 games, panel hash" in printed and "pick_two_obj_and_place: 1" in printed
    panel = spec.load_panel(EnvConfig(data=str(out)), "unseen")
    assert panel.hash[:16] in printed and panel.data_version.startswith("generated-")
    assert main(["generate", *sizes, "--out", str(out)]) == 2
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["verify", "--write-manifest"], 2, "needs --data"),
        (["verify", "--data", "/nowhere"], 1, "/nowhere is not a folder"),
        (["translate", "--data", ".", "--panel", "seen", "--folder", ".", "--share", "2/2"], 2, "not I/N"),
        (["generate", "--train-per-type", "0"], 2, "makes an empty panel"),
        (["fetch", "--out", "x", "--url", "file:///etc/passwd"], 2, "neither http nor https"),
    ],
)
def test_wrong_use(arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == status
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["generate"], ["verify"], ["fetch"]])
def test_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0 and "usage: python -m envs.alfworld" in capsys.readouterr().out


# --------------------------------------------------------------------------------------------------------------- fetch
class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path.startswith("/short"):
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"only this")
            return
        super().do_GET()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """(address, folder that it serves)."""
    folder = tmp_path / "served"
    folder.mkdir()
    running = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}", folder
    running.shutdown()
    running.server_close()


def archive(path: Path, *members: tuple[str, str]) -> None:
    with zipfile.ZipFile(path, "w") as zipped:
        for name, text in members:
            zipped.writestr(name, text)


def test_fetch_downloads_and_unpacks(
    server: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address, folder = server
    archive(folder / "a.zip", ("json_2.1.1/train/x/traj_data.json", "{}"))
    archive(folder / "b.zip", ("json_2.1.1/train/x/game.tw-pddl", "{}"))
    out = tmp_path / "out"
    assert main(["fetch", "--out", str(out), "--url", f"{address}/a.zip", "--url", f"{address}/b.zip"]) == 0
    assert sorted(p.name for p in out.rglob("*") if p.is_file()) == ["game.tw-pddl", "traj_data.json"]
    assert "sha256" in capsys.readouterr().out


def test_fetch_refuses_what_is_broken_or_reaches_outside(server: tuple[str, Path], tmp_path: Path) -> None:
    address, folder = server
    archive(folder / "evil.zip", ("fine.txt", ""), ("../evil.txt", ""))
    (folder / "no.zip").write_text("hello")
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=r"'\.\./evil\.txt', which reaches outside"):
        fetch.download_and_unpack(f"{address}/evil.zip", out)
    with pytest.raises(ValueError, match="is no zip archive"):
        fetch.download_and_unpack(f"{address}/no.zip", out)
    with pytest.raises(OSError, match=r"cannot download .*|broke off after 9 of 1000 bytes"):
        fetch.download_and_unpack(f"{address}/short.zip", out)
    with pytest.raises(OSError, match=r"cannot download .*without internet"):
        fetch.download_and_unpack(f"{address}/absent.zip", out)
    assert list(out.iterdir()) == [] and not (tmp_path / "evil.txt").exists()


def test_fetch_offline_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "--out", str(tmp_path), "--url", "http://127.0.0.1:9/games.zip"]) == 2
    assert "download the archives elsewhere" in capsys.readouterr().err


def test_fetch_lists_the_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "--out", str(tmp_path / "none"), "--list"]) == 0
    assert [line.rsplit("/", 1)[1] for line in capsys.readouterr().out.split()] == [
        "json_2.1.1_json.zip",
        "json_2.1.1_pddl.zip",
        "json_2.1.2_tw-pddl.zip",
    ]
    assert not (tmp_path / "none").exists()
