"""`python -m harness.backbones build|gate|where NAME [--env ENV]`: make, check or find an embedded backbone."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from envs.interface import EnvConfig
from harness import backbones
from harness.config import BackboneConfig
from harness.errors import ConfigError


def _configs(name: str, env: str = "alfworld") -> tuple[BackboneConfig, EnvConfig]:
    from harness.compose import composer

    config, _ = composer().config([f"backbone={name}", f"env={env}"])
    return config.backbone, config.env


def _build(backbone: BackboneConfig, env: EnvConfig, ship: bool) -> Path:
    from rich.progress import Progress

    with Progress(transient=True) as bar:
        task = bar.add_task(f"cloning {backbone.name}", total=None)

        def show(_: str, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        if not ship:
            return backbones.ensure(backbone, env, show)
        target = backbones.shipped_folder(backbone, env)
        with tempfile.TemporaryDirectory() as scratch:
            backbones.build(backbone, env, Path(scratch), show)
            target.mkdir(parents=True, exist_ok=True)
            for file in sorted(Path(scratch).iterdir()):
                shutil.copy(file, target / file.name)
    return target


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.backbones", description=__doc__)
    parser.add_argument("do", choices=["build", "gate", "where"], help="make it, measure whether it is fit, or find it")
    parser.add_argument("name", help="a backbone of sweeps/backbone, e.g. tiny-s")
    parser.add_argument("--env", default="alfworld", help="a file of sweeps/env (default: alfworld)")
    parser.add_argument("--ship", action="store_true", help="build: write into the package instead of the cache")
    options = parser.parse_args(arguments)
    import torch

    torch.set_num_threads(1)  # results must not depend on how many cores there are
    try:
        backbone, env = _configs(options.name, options.env)
        if options.do == "build":
            print(_build(backbone, env, options.ship))
            return 0
        if options.do == "where":
            found = backbones.find(backbone, env)
            print(found or f"not made yet: python -m harness.backbones build {options.name} --env {options.env}")
            return 0 if found else 3
        from harness.backbones.fitness import measure

        result = measure(backbone, env)
        print(result)
        return 3 if result.failed else 0
    except (ConfigError, ValueError, backbones.BackboneError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
