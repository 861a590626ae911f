"""The command of figures: what is drawn, what is not and why, what is removed, and the same bytes twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from analysis import figures
from harness.errors import ConfigError

Sweep = Any  # of conftest.py
PLAIN = ("overall", "critical_steps")


def drawn(results: list[figures.Result]) -> dict[str, tuple[Path, ...]]:
    return {name: found for name, found in results if not isinstance(found, str)}


def reasons(results: list[figures.Result]) -> dict[str, str]:
    return {name: found for name, found in results if isinstance(found, str)}


def folder_of(sweep: Sweep) -> Path:
    return sweep.out / "results" / sweep.name / "figures"


def test_every_family_is_a_module_with_draw() -> None:
    import importlib

    for family in figures.FAMILIES:
        assert callable(importlib.import_module(f"analysis.figures.{family}").draw)


def test_unknown_family_names_the_nearest(sweep: Sweep) -> None:
    with pytest.raises(ConfigError, match=r"figures=overal: .*did you mean 'overall'"):
        figures.write(sweep.out, sweep.name, ["overal"])
    assert not folder_of(sweep).exists()


def test_no_family_is_an_error(sweep: Sweep) -> None:
    with pytest.raises(ConfigError, match="names no family"):
        figures.write(sweep.out, sweep.name, [])


def test_no_plan_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no .*plan\.json"):
        figures.write(tmp_path, "main_table")


def test_files_and_reasons_of_a_whole_sweep(sweep: Sweep) -> None:
    results = figures.write(sweep.out, sweep.name)
    paths = [path for files in drawn(results).values() for path in files]
    assert all(path.is_file() and path.parent == folder_of(sweep) for path in paths)
    assert {path.suffix for path in paths} == {".pdf", ".png"}
    assert {"overall-alfworld", "training_curves-alfworld", "seen_unseen-alfworld", "profile-seen"} <= set(
        drawn(results)
    )
    said = reasons(results)
    assert "more than one fraction" in said["sample_efficiency"]
    assert "names a base row" in said["ablation-alfworld"]
    assert "method/critical_steps" in said["critical_steps-alfworld"]
    assert "method/skill_abs" in said["advantages-alfworld"]
    assert "teacher" in said["retirement-alfworld"]
    assert "trajectories.jsonl.zst" in said["trajectories-rollouts"]


def test_one_family_by_name_leaves_no_date_no_program_and_no_setting(sweep: Sweep) -> None:
    before = dict(matplotlib.rcParams)
    results = figures.write(sweep.out, sweep.name, "overall")
    assert dict(matplotlib.rcParams) == before
    png, pdf = drawn(results)["overall-alfworld"]
    assert pdf.read_bytes().startswith(b"%PDF")
    assert not any(word in pdf.read_bytes() for word in (b"CreationDate", b"/Producer", b"/Creator"))
    assert not any(word in png.read_bytes() for word in (b"Software", b"tIME"))


def test_the_same_records_give_the_same_bytes_in_another_process(sweep: Sweep) -> None:
    """Whatever the hash seed, the backend and the user's own settings of matplotlib."""
    figures.write(sweep.out, sweep.name, PLAIN)
    first = {path.name: path.read_bytes() for path in folder_of(sweep).iterdir()}
    (sweep.out / "matplotlibrc").write_text("font.size: 20\naxes.facecolor: black\nsavefig.dpi: 30\n")
    code = (
        "from pathlib import Path; from analysis import figures\n"
        f"figures.write(Path({str(sweep.out)!r}), 'main_table', {PLAIN!r})"
    )
    environment = {
        **os.environ, "PYTHONHASHSEED": "7", "MPLBACKEND": "svg", "MATPLOTLIBRC": str(sweep.out / "matplotlibrc"),
        "PYTHONPATH": str(Path(figures.__file__).parents[2]),
    }  # fmt: skip
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    second = {path.name: path.read_bytes() for path in folder_of(sweep).iterdir()}
    assert sorted(first) == sorted(second)
    assert [name for name in first if first[name] != second[name]] == []


def test_a_figure_that_is_drawn_no_longer_is_removed_and_others_are_not(sweep: Sweep) -> None:
    figures.write(sweep.out, sweep.name, ["training_curves"])
    own = folder_of(sweep) / "training_curves-for_my_talk.png"
    own.write_bytes(b"mine")
    for cell in sweep.cells:
        (sweep.run_dir(cell["row"], cell["seed"]) / "spool.jsonl").unlink()
    results = figures.write(sweep.out, sweep.name, ["training_curves"])
    assert reasons(results) == {"training_curves-alfworld": "no run of this setting recorded a training step"}
    left = {path.name for path in folder_of(sweep).iterdir()}
    assert left == {own.name, "index.json"}
    assert json.loads((folder_of(sweep) / "index.json").read_text())["training_curves"] == []


@pytest.mark.parametrize("content", ["{", '{"retirement": 3}', '{"retirement": ["../plan.json", 3, ""]}'])
def test_an_index_that_cannot_be_trusted_removes_nothing(sweep: Sweep, content: str) -> None:
    folder_of(sweep).mkdir(parents=True)
    (folder_of(sweep) / "index.json").write_text(content)
    figures.write(sweep.out, sweep.name, "retirement")
    assert (sweep.out / "results" / sweep.name / "plan.json").is_file()
    assert json.loads((folder_of(sweep) / "index.json").read_text()) == {"retirement": []}


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys; import analysis.figures, analysis.figures.style\n"
        "heavy = {'matplotlib', 'seaborn', 'pandas', 'numpy', 'torch', 'transformers', 'mlflow'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(figures.__file__).parents[2])


def test_drawing_imports_no_model_library(sweep: Sweep) -> None:
    code = (
        "import sys; from pathlib import Path; from analysis import figures\n"
        f"figures.write(Path({str(sweep.out)!r}), 'main_table', ['trajectories', 'retirement'])\n"
        "heavy = {'torch', 'transformers', 'mlflow', 'textworld'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(figures.__file__).parents[2])


def test_records_are_not_read_again_for_figures_beside_tables(sweep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from analysis import outputs
    from analysis.figures import sources
    from analysis.tables import write_main_table

    alone = {
        path: path.read_bytes()
        for made in drawn(figures.write(sweep.out, sweep.name, "overall")).values()
        for path in made
    }
    written = write_main_table(sweep.out, sweep.name)

    def never(out: Path, name: str) -> None:
        raise AssertionError("the tables had collected them")

    monkeypatch.setattr(sources, "collect", never)
    monkeypatch.setattr(outputs, "collect", never)
    lines = outputs.write_extras(sweep.out, sweep.name, ["overall"], False, (written["tables"], written["page"]))
    assert "overall" in lines[0] and alone == {path: path.read_bytes() for path in alone}
