"""Slurm's clients, played from files: what each says, what it was asked, and how it ends."""

from __future__ import annotations

import stat
from pathlib import Path

from harness.launch.listings import FIELDS
from harness.launch.scheduler import Slurm

# <client>.out, .err and .status say how it answers; `calls` gets one line per call, `environment` the variables of the
# last one.
_SCRIPT = """#!/bin/sh
here=$(dirname "$0")
echo "$*" >> "$here/calls"
env > "$here/environment"
client=$1
[ -e "$here/$client.hang" ] && exec sleep 600
case "$*" in *" -o "*) [ -e "$here/$client.-o.out" ] && client=$client.-o ;; esac
[ -e "$here/$client.out" ] && cat "$here/$client.out"
[ -e "$here/$client.err" ] && cat "$here/$client.err" >&2
[ -e "$here/$client.status" ] && exit "$(cat "$here/$client.status")"
exit 0
"""


class FakeSlurm:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        script = folder / "client"
        script.write_text(_SCRIPT)
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        self.prefix = (str(script),)
        self.says("sacct", error="Slurm accounting storage is disabled", status=1)

    def client(self, seconds: float = 30.0) -> Slurm:
        return Slurm(self.prefix, seconds)

    def says(self, client: str, text: str = "", error: str = "", status: int = 0) -> None:
        for suffix, content in (("out", text), ("err", error), ("status", str(status))):
            (self.folder / f"{client}.{suffix}").write_text(content)

    def queue(self, *rows: tuple[str, ...]) -> None:
        """squeue lists these: (job, word[, restarts[, exit code[, reason]]])."""
        self.says("squeue", "".join(squeue_line(*row) for row in rows))

    def accounts(self, *rows: tuple[str, ...]) -> None:
        """sacct lists these: (job, words[, exit code])."""
        self.says("sacct", "".join("|".join((*row, "0:0")[:3]) + "\n" for row in rows))

    def hangs(self, client: str) -> None:
        (self.folder / f"{client}.hang").touch()

    def calls(self, client: str = "") -> list[list[str]]:
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split() for line in lines if line.startswith(client)]

    def environment(self) -> dict[str, str]:
        lines = (self.folder / "environment").read_text().splitlines()
        return {name: value for name, _, value in (line.partition("=") for line in lines)}


def squeue_line(job: str, word: str, restarts: str = "0", exit_code: str = "0", reason: str = "None") -> str:
    fields = (job, word, restarts, exit_code, reason)
    return "".join(field.ljust(width) for field, (_, width) in zip(fields, FIELDS, strict=True)) + "\n"
