"""Command line of ALFWorld's data: `python -m envs.alfworld generate|verify|fetch --help`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from envs.interface import EnvConfig, EnvironmentFailure
from envs.panels import PanelError, assert_disjoint, build_panel, digest

OK, FAILED, USAGE = 0, 1, 2


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m envs.alfworld", description="Games of ALFWorld: make, check, download."
    )
    commands = top.add_subparsers(dest="command", required=True)
    defaults = EnvConfig()

    generate = commands.add_parser("generate", help="make games from a seed, in the official file layout")
    generate.add_argument("--seed", type=int, default=defaults.world_seed, help="world seed (default %(default)s)")
    generate.add_argument(
        "--train-per-type", type=int, default=defaults.train_per_type, help="train games of each of the six types"
    )
    generate.add_argument(
        "--eval-per-type", type=int, default=defaults.eval_per_type, help="seen and unseen games of each type"
    )
    generate.add_argument("--out", type=Path, help="new folder for the games; without it they go into the cache folder")
    generate.add_argument("--cache", help="cache folder (default $HARNESS_CACHE or ~/.cache/agentic-rl-harness)")

    verify = commands.add_parser("verify", help="read every game of a data folder and compare with what it must hold")
    verify.add_argument(
        "--data", type=Path, help="data folder, the one that contains json_2.1.1; default: generated games"
    )
    verify.add_argument("--seed", type=int, default=defaults.world_seed, help="of generated games")
    verify.add_argument("--train-per-type", type=int, default=defaults.train_per_type, help="of generated games")
    verify.add_argument("--eval-per-type", type=int, default=defaults.eval_per_type, help="of generated games")
    verify.add_argument("--cache", help="cache folder of generated games")
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

    translate = commands.add_parser("translate", help="translate a panel's games ahead of time (called by the harness)")
    translate.add_argument("--data", type=Path, required=True, help="folder of generated games")
    translate.add_argument("--panel", required=True, help="train, seen or unseen")
    translate.add_argument("--folder", type=Path, required=True, help="where translations are kept")
    translate.add_argument("--share", default="0/1", metavar="I/N", help="every N-th game beginning with number I")
    return top


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
        engine="native",  # the games are the same for every engine, and this one needs no translation
    )


def _generate(options: argparse.Namespace) -> int:
    from envs.alfworld import generated

    config = _config(options)
    if options.out is None:
        root, manifest = generated.ensure(config)
    else:
        root = options.out
        if root.exists() and any(root.iterdir()):
            raise ValueError(f"--out {root} is not empty; give a new folder")
        manifest = generated.write_games(config, root)
    print(f"{root}: " + ", ".join(f"{len(manifest.panels[p])} {p}" for p in sorted(manifest.panels)))
    return OK


def _verify(options: argparse.Namespace) -> int:
    from envs.alfworld import generated, official
    from envs.alfworld.manifest import NAME, SPLITS, Manifest, problems
    from envs.cache import cache_root

    config = _config(options)
    if options.data is None and options.write_manifest:
        raise ValueError("--write-manifest needs --data: generated games have their manifest already")
    root: Path = options.data if options.data is not None else generated.root_of(config)
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is not a folder; make generated games with `python -m envs.alfworld generate`")
    if options.write_manifest:
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
            return FAILED
    else:
        panels = {}
        for panel in SPLITS:
            name, entries = official.panel_entries(root, panel, cache_root(config))
            panels[panel] = tuple(entries)
        manifest = Manifest(name, panels)
    built = {
        p: build_panel("alfworld", manifest.version, p, [e.task() for e in manifest.panels[p]]) for p in manifest.panels
    }
    if "train" in built:
        assert_disjoint(built["train"], *(panel for name, panel in built.items() if name != "train"))
    for name in sorted(built):
        types = Counter(task.type for task in built[name].tasks)
        print(f"{name}: {len(built[name].tasks)} games, panel hash {built[name].hash[:16]}")
        for kind in sorted(types):
            print(f"  {kind}: {types[kind]}")
    return OK


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
    from envs.alfworld import generated

    share, _, shares = options.share.partition("/")
    if not (share.isdigit() and shares.isdigit() and int(share) < int(shares)):
        raise ValueError(f"--share {options.share!r} is not I/N with I < N")
    count = generated.translate_share(options.data, options.panel, options.folder, int(share), int(shares))
    print(f"translated {count} games")
    return OK


if __name__ == "__main__":
    sys.exit(main())
