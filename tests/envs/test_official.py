"""The user's data: complete, or an error that names what is missing. Command line, download, cache."""

from __future__ import annotations

import json
import logging
import os
import random
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
from stand_in_rules import STAND_IN

from envs.alfworld import fetch, layout, official, spec
from envs.alfworld.__main__ import main
from envs.alfworld.episode import content_hash, read_checked, read_game
from envs.alfworld.facts import TASK_TYPES
from envs.alfworld.manifest import LAYOUT, NAME, SPLITS, Manifest
from envs.cache import cache_root, file_lock, write_atomically
from envs.interface import EnvConfig, EnvironmentFailure
from envs.panels import panel_identity

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


# -------------------------------------------------------------------------------------------------------- written games
def test_a_lost_or_cut_game_of_a_manifest_is_named(world: World, tmp_path: Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(world[0], root)
    copy = EnvConfig(data=str(root))
    entry = world[1].panels["unseen"][2]
    path = root / entry.location
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    with pytest.raises(FileNotFoundError, match="1 of another size"):
        spec.load_panel(copy, "unseen")
    path.unlink()
    with pytest.raises(FileNotFoundError, match="1 missing") as error:
        spec.load_panel(copy, "unseen")
    assert entry.location in str(error.value)
    path.write_bytes(whole.replace(b"pickupable", b"pickupabla", 1))
    assert main(["verify", "--data", str(root)]) == 1
    path.write_bytes(whole)
    assert main(["verify", "--data", str(root)]) == 0


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


def test_the_files_play_as_the_worlds_that_they_were_written_from(config: EnvConfig, world: World) -> None:
    """The same panel from files and from locations: equal ids, types and slots, and equal games but for `help`."""
    data = replace(config, data=str(world[0]))
    for panel in SPLITS:
        drawn, written = spec.load_panel(config, panel), spec.load_panel(replace(data, validation_per_type=0), panel)
        assert [(t.id, t.type, t.slots) for t in drawn.tasks] == [(t.id, t.type, t.slots) for t in written.tasks]
        for one, other in zip(drawn.tasks, written.tasks, strict=True):
            mine, theirs = spec.make(config), spec.make(data)
            assert mine.reset(one) == theirs.reset(other)
            for command in spec.walkthrough(config, one):
                assert mine.step(command) == theirs.step(command)
            assert spec.walkthrough(config, one) == spec.walkthrough(data, other)


@pytest.mark.parametrize("break_it", ["missing", "changed", "garbage", "no game"])
def test_a_game_file_that_is_not_what_the_panel_promised(break_it: str, world: World, tmp_path: Path) -> None:
    task = world[1].panels["unseen"][0].task()
    path = tmp_path / task.location
    path.parent.mkdir(parents=True)
    game = read_game(world[0] / task.location)
    if break_it == "changed":
        path.write_text(
            json.dumps({**game, "pddl_problem": game["pddl_problem"].replace("(pickupable", "(openable", 1)})
        )
    elif break_it == "garbage":
        path.write_text("{")
    elif break_it == "no game":
        path.write_text("[]")
    with pytest.raises(EnvironmentFailure, match=r"missing|changed since|cannot be read|no game file"):
        spec.make(EnvConfig(data=str(tmp_path))).reset(task)
    with pytest.raises(EnvironmentFailure, match=r"game\.tw-pddl"):
        read_checked(tmp_path, task)


def test_content_hash_ignores_names_order_and_space_but_nothing_else(world: World) -> None:
    game = read_game(world[0] / world[1].panels["unseen"][0].location)
    known = content_hash(game)
    head, goal = game["pddl_problem"].split("(:goal")
    lines = head.split("\n")
    middle = lines[5:-3]
    random.Random(0).shuffle(middle)
    renamed = "\n".join(
        [lines[0].replace("plan_", "another_"), *lines[1:5], *(f"  {x} \r" for x in middle), *lines[-3:]]
    )
    same = {**game, "pddl_problem": f"; a comment\n{renamed}\n(:goal {goal}", "walkthrough": None}
    assert content_hash(same) == known
    assert content_hash({**game, "pddl_problem": f"{head}(:goal{goal.replace('and', 'or')}"}) != known
    assert content_hash({**game, "grammar": game["grammar"].replace("Your task", "The task")}) != known
    assert content_hash({**game, "pddl_domain": game["pddl_domain"] + "x"}) != known


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
@pytest.mark.engine
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
    assert panel.hash[:16] in printed and panel.data_version.startswith("generated-files-")
    assert main(["generate", *sizes, "--out", str(out)]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_generate_without_the_package_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> str:
        raise layout.PackageNotFoundError(name)

    monkeypatch.setattr(layout, "version", absent)
    assert main(["generate", "--out", str(tmp_path / "games"), "--cache", str(tmp_path)]) == 2
    assert "install agentic-rl-harness[alfworld]" in capsys.readouterr().err
    assert not (tmp_path / "games").exists()


def test_a_package_with_other_rules_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "installed_rules", lambda: STAND_IN)
    monkeypatch.setattr(layout, "require_package", lambda: "0.9")
    layout.package_rules.cache_clear()
    with pytest.raises(ValueError, match=r"alfworld 0\.9 has other rules .* than the ones that env\.engine=native"):
        layout.package_rules()


def test_the_digest_of_rules_ignores_space_and_comments_only() -> None:
    spaced = replace(STAND_IN, domain=STAND_IN.domain.replace("\n", "  \r\n\n; more\n"))
    assert spaced.digest == STAND_IN.digest
    for field in ("domain", "grammar"):
        other = replace(STAND_IN, **{field: getattr(STAND_IN, field).replace("put", "place")})
        assert other.digest != STAND_IN.digest
    assert replace(STAND_IN, goals={**STAND_IN.goals, TASK_TYPES[0]: "(:goal)"}).digest != STAND_IN.digest


def test_verify_of_generated_games(capsys: pytest.CaptureFixture[str], config: EnvConfig) -> None:
    assert main(["verify", "--train-per-type", "1", "--eval-per-type", "1"]) == 0
    printed = capsys.readouterr().out
    for panel in SPLITS:
        assert f"{panel}: 6 games, panel hash {spec.load_panel(config, panel).hash[:16]}" in printed


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["verify", "--write-manifest"], 2, "needs --data"),
        (["verify", "--data", "/nowhere"], 1, "/nowhere is not a folder"),
        (["verify", "--train-per-type", "0"], 2, "env.train_per_type=0 makes an empty panel"),
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
