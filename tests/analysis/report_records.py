"""Sampled trajectories as runs record them, for tests of the report."""

from __future__ import annotations

import json
from typing import Any

import zstandard

from analysis.report import sampled

HOSTILE = "</script><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)> \u2028 & ' \""


def turn(action: str = "go to shelf 1", **changes: Any) -> dict[str, Any]:
    common = {"observation": "You see a shelf.", "response": action, "action": action, "valid": True}
    return {**common, "invalid_reason": None, "admissible": True, "reward": 0.0, **changes}


def trajectory(phase: str = "train", turns: int | list[Any] = 2, **changes: Any) -> dict[str, Any]:
    steps = turns if isinstance(turns, list) else [turn(f"look {n}") for n in range(turns)]
    about = {"phase": phase, **({"step": 3} if phase == "train" else {"panel": "seen", "skills": "off"})}
    told = {"task_id": "t-1", "task_type": "pick", "task": "put a mug on a shelf", "group": 0, "sample": 0}
    ended = {"success": True, "score": 1.0, "termination": "success", "failure": None, "skill": None}
    return {**about, **told, **ended, "turns": steps, **changes}


def keep(sweep: Any, row: str, seed: int, *items: Any) -> None:
    lines = "".join(json.dumps(item) + "\n" for item in items)
    path = sweep.run_dir(row, seed) / sampled.NAME
    path.write_bytes(zstandard.ZstdCompressor().compress(lines.encode()))
