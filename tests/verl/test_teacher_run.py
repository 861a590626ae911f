"""A run of engine=verl as a frozen teacher: the folder that it exported."""

from __future__ import annotations

from pathlib import Path

import pytest
import verl_helpers as helpers

from harness.teacher_run import FinishedRun, TeacherError
from harness.training.verl import store


@pytest.fixture
def student(tmp_path):
    config = helpers.run_config("retire_opd", Path("nowhere"))
    run = helpers.run_directory(tmp_path, helpers.run_config("skill_grpo", Path("nowhere")), "teacher000000000")
    config.method.teacher.source = run.fingerprint
    return config, run


def export(run):
    folder = run.path / store.EXPORT
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    store.seal_export(folder)
    return folder


def test_its_weights_are_the_exported_folder(student, tmp_path):
    config, run = student
    folder = export(run)
    found = FinishedRun.of(config, tmp_path)
    assert found.weights == folder and found.digest is not None
    assert found.config.method.name == "skill_grpo"


def test_without_a_sealed_export_it_is_not_finished(student, tmp_path):
    config, _ = student
    with pytest.raises(TeacherError, match=r"is not finished.*has no export/"):
        FinishedRun.of(config, tmp_path)


def test_damaged_weights_are_refused(student, tmp_path):
    config, run = student
    (export(run) / "model.safetensors").write_bytes(b"Weights")
    with pytest.raises(TeacherError, match="damaged final weights"):
        FinishedRun.of(config, tmp_path)


def test_other_weights_than_at_the_start_are_refused(student, tmp_path):
    config, run = student
    folder = export(run)
    pupil = helpers.run_directory(tmp_path, config, "student000000000")
    FinishedRun.of(config, tmp_path).must_stay(pupil)
    (folder / "model.safetensors").write_bytes(b"others!")
    (folder / "MANIFEST.json").unlink()
    store.seal_export(folder)
    with pytest.raises(TeacherError, match="now has other final weights"):
        FinishedRun.of(config, tmp_path).must_stay(pupil)
