from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_drawing_writes_nothing_into_the_home(tmp_path: Path) -> None:
    """matplotlib keeps a list of fonts; it lies with what else is kept between runs."""
    home, cache = tmp_path / "home", tmp_path / "cache"
    home.mkdir()
    code = "from analysis.figures.style import drawing\nwith drawing():\n    import matplotlib.font_manager\n"
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("MPL", "XDG_"))}
    env = {**kept, "HOME": str(home), "HARNESS_CACHE": str(cache)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert list(home.rglob("*")) == [] and (cache / "matplotlib").is_dir()
