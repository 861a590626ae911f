"""Command line of ALFWorld's data: `python -m envs.alfworld generate|verify|fetch --help`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from envs.cache import cache_root
from envs.interface import EnvConfig, EnvironmentFailure, Panel
from envs.panels import PanelError, assert_disjoint, build_panel, digest

OK, FAILED, USAGE = 0, 1, 2
SHOWN = 20  # games that are named before the rest is only counted


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m envs.alfworld", description="Games of ALFWorld: write, check, download."
    )
    commands = top.add_subparsers(dest="command", required=True)

    generate = commands.add_parser(
        "generate", help="write generated games as files in the official layout (needs the alfworld package)"
    )
    _sizes(generate)
    generate.add_argument("--out", type=Path, required=True, help="new folder for the games; later env.data=FOLDER")
    generate.add_argument("--cache", help="cache folder (default $HARNESS_CACHE or ~/.cache/agentic-rl-harness)")

    verify = commands.add_parser("verify", help="look at every game of a data folder, or at generated games")
    verify.add_argument(
        "--data", type=Path, help="data folder, the one that contains json_2.1.1; default: generated games"
    )
    _sizes(verify)
    verify.add_argument("--cache", help="cache folder, where indices of data folders are kept")
    verify.add_argument(
        "--write-manifest",
        action="store_true",
        help="declare the games found in --data to be the ones it must hold (for games of your own)",
    )

    fetch = commands.add_parser("fetch", help="download and unpack the official data (needs internet)")
    fetch.add_argument("--out", type=Path, required=True, help="folder to unpack into; later env.data=FOLDER")
    fetch.add_argument(
        "--url", action="append", metavar="URL", help="archive to take instead of the official three (may be repeated)"
    )
    fetch.add_argument("--list", action="store_true", help="print what would be downloaded, and stop")

    translate = commands.add_parser(
        "translate", help="translate the generated worlds whose locations stand on standard input, one a line"
    )
    translate.add_argument("--folder", type=Path, required=True, help="where translations are kept")
    return top


def _sizes(command: argparse.ArgumentParser) -> None:
    """Options that say which games are generated."""
    defaults = EnvConfig()
    command.add_argument("--seed", type=int, default=defaults.world_seed, help="world seed (default %(default)s)")
    command.add_argument(
        "--train-per-type", type=int, default=defaults.train_per_type, help="train games of each of the six types"
    )
    command.add_argument(
        "--eval-per-type", type=int, default=defaults.eval_per_type, help="seen and unseen games of each type"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 all well, 1 the data are not what they must be, 2 wrong use or something in the way."""
    options = parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    run = {"generate": _generate, "verify": _verify, "fetch": _fetch, "translate": _translate}[options.command]
    try:
        return run(options)
    except PanelError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except (ValueError, OSError, EnvironmentFailure) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED if options.command == "verify" and isinstance(error, FileNotFoundError) else USAGE


def _config(options: argparse.Namespace) -> EnvConfig:
    return EnvConfig(
        world_seed=options.seed,
        train_per_type=options.train_per_type,
        eval_per_type=options.eval_per_type,
        cache=options.cache,
    )


def _generate(options: argparse.Namespace) -> int:
    from envs.alfworld import generated

    root: Path = options.out
    if root.exists() and any(root.iterdir()):
        raise ValueError(f"--out {root} is not empty; give a new folder")
    manifest = generated.write_games(_config(options), root)
    print(f"{root}: " + ", ".join(f"{len(manifest.panels[p])} {p}" for p in sorted(manifest.panels)))
    return OK


def _verify(options: argparse.Namespace) -> int:
    config = _config(options)
    if options.data is not None:
        built = _panels_of_data(config, options.data, options.write_manifest)
    elif options.write_manifest:
        raise ValueError("--write-manifest needs --data: generated games have no files")
    else:
        built = _generated_panels(config)
    if built is None:
        return FAILED
    if "train" in built:
        assert_disjoint(built["train"], *(panel for name, panel in built.items() if name != "train"))
    for name in sorted(built):
        types = Counter(task.type for task in built[name].tasks)
        print(f"{name}: {len(built[name].tasks)} games, panel hash {built[name].hash[:16]}")
        for kind in sorted(types):
            print(f"  {kind}: {types[kind]}")
    if options.data is not None:
        _say_playable(options.data, built)
    return OK


def _say_playable(root: Path, built: Mapping[str, Panel]) -> None:
    """How many of the games the default engine can play; the others are named with the reason."""
    from envs.alfworld.native_engine import why_not

    tasks = [task for panel in built.values() for task in panel.tasks]
    reasons = list(filter(None, (why_not(root, task) for task in tasks)))
    print(f"env.engine=native can play {len(tasks) - len(reasons)} of {len(tasks)} games")
    for reason in reasons[:SHOWN]:
        print(f"  {reason}")
    if len(reasons) > SHOWN:
        print(f"  and {len(reasons) - SHOWN} more")


def _generated_panels(config: EnvConfig) -> dict[str, Panel]:
    """Drawn now; a game that cannot be won is a ValueError."""
    from envs.alfworld import spec

    return {name: spec.load_panel(config, name) for name in ("train", "seen", "unseen", "validation")}


def _panels_of_data(config: EnvConfig, root: Path, write_manifest: bool) -> dict[str, Panel] | None:
    """None if the games are not what the folder's manifest says; each difference is printed."""
    from envs.alfworld import official
    from envs.alfworld.manifest import NAME, SPLITS, Manifest, problems

    if not root.is_dir():
        raise FileNotFoundError(f"--data {root} is not a folder; write games with `python -m envs.alfworld generate`")
    if write_manifest:
        found = {panel: tuple(official.collect(root, panel).entries) for panel in SPLITS}
        hashes = [entry.content_hash for panel in sorted(found) for entry in found[panel]]
        if not hashes:
            raise ValueError(f"no playable game was found below {root}; it must contain json_2.1.1/train and so on")
        manifest = Manifest(f"own-{digest(*hashes)[:16]}", {p: e for p, e in found.items() if e})
        manifest.write(root / NAME)
        print(f"wrote {root / NAME}")
    if (root / NAME).exists():
        manifest = Manifest.read(root / NAME)
        wrong = problems(manifest, root)
        for line in wrong:
            print(line, file=sys.stderr)
        if wrong:
            print(f"error: {len(wrong)} games of {root} are not what {NAME} says", file=sys.stderr)
            return None
    else:
        loaded = {panel: official.panel_entries(root, panel, cache_root(config)) for panel in SPLITS}
        manifest = Manifest(loaded["train"][0], {panel: tuple(entries) for panel, (_, entries) in loaded.items()})
    return {
        name: build_panel("alfworld", manifest.version, name, [entry.task() for entry in entries])
        for name, entries in manifest.panels.items()
    }


def _fetch(options: argparse.Namespace) -> int:
    from envs.alfworld import fetch

    urls = options.url or list(fetch.RELEASE)
    if options.list:
        print("\n".join(urls))
        return OK
    for url in urls:
        size, checksum = fetch.download_and_unpack(url, options.out)
        print(f"{url}: {size} bytes, sha256 {checksum}")
    print(f"check it with: python -m envs.alfworld verify --data {options.out}")
    return OK


def _translate(options: argparse.Namespace) -> int:
    from envs.alfworld import ahead

    print(f"translated {ahead.translate(filter(None, map(str.strip, sys.stdin)), options.folder)} games")
    return OK


if __name__ == "__main__":
    sys.exit(main())
