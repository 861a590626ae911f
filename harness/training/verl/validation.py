"""verl's own checks of composed configurations, in one process of its own for all of them, and remembered.

Importing verl takes ten seconds and half a gigabyte, so planning leaves that to a child; what it said of a text is kept
in the cache folder under the text's digest and verl's version.

As a program: `python -m harness.training.verl.validation ASKED ANSWERS`, two JSON files.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.files import atomic_write_json

CHECKS_VERSION = 3  # of what is checked below; raised when that changes
TIMEOUT_SECONDS = 600
SOUND = ""
# Sections that verl turns into dataclasses; `model` is left out because that reads the model's files, and `reward`
# because verl never does it with the whole of it (nor could it).
SECTIONS = ("actor_rollout_ref.actor", "actor_rollout_ref.rollout", "algorithm")
REFERENCE = "actor_rollout_ref.ref"
# verl's worker gives these of `ref` the names that they have in `actor` before it makes a dataclass of them.
RENAMED = {
    "log_prob_micro_batch_size": "ppo_micro_batch_size",
    "log_prob_micro_batch_size_per_gpu": "ppo_micro_batch_size_per_gpu",
    "log_prob_use_dynamic_bsz": "use_dynamic_bsz",
    "log_prob_max_token_len_per_gpu": "ppo_max_token_len_per_gpu",
}


class ValidationError(RuntimeError):
    """verl could not be asked."""


def digest(text: str, version: str) -> str:
    """Name of a text's answer in the cache."""
    return hashlib.sha256(f"{CHECKS_VERSION}\n{version}\n{text}".encode()).hexdigest()[:24]


def validate(texts: Mapping[str, str], version: str, cache: Path) -> dict[str, str]:
    """Name -> what verl objects to in that configuration (YAML), SOUND if to nothing.

    Only texts that were never asked about start a child. Raises ValidationError if it dies, or takes too long.
    """
    names = {name: digest(text, version) for name, text in texts.items()}
    known = {key: answer for key in names.values() if (answer := _read(cache / f"{key}.json")) is not None}
    unknown = {names[name]: text for name, text in texts.items() if names[name] not in known}
    if unknown:
        answers = _ask(unknown)
        cache.mkdir(parents=True, exist_ok=True)
        for key, answer in sorted(answers.items()):
            atomic_write_json(cache / f"{key}.json", {"answer": answer})
        known |= answers
    return {name: known[key] for name, key in names.items()}


def _read(path: Path) -> str | None:
    """A kept answer; None if there is none, or none that can be read."""
    try:
        answer = json.loads(path.read_text(encoding="utf-8"))["answer"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return answer if isinstance(answer, str) else None


def _ask(texts: Mapping[str, str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="verl-checks-") as folder:
        asked, answered = Path(folder, "asked.json"), Path(folder, "answers.json")
        asked.write_text(json.dumps(dict(texts)), encoding="utf-8")
        command = [sys.executable, "-m", __spec__.name, str(asked), str(answered)]
        environment = {
            **os.environ,
            "VERL_USE_EXTERNAL_PLUGINS": "none",
            "CUDA_VISIBLE_DEVICES": "",  # looks at configurations, needs no GPU, and must not hold memory of one
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        environment.pop("VERL_USE_EXTERNAL_MODULES", None)
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise ValidationError(f"verl did not check the configurations within {TIMEOUT_SECONDS} s") from error
        if done.returncode != 0 or not answered.is_file():
            said = "; ".join(line for line in done.stderr.strip().splitlines()[-3:])
            raise ValidationError(f"verl could not be asked (exit status {done.returncode}): {said}")
        answers: dict[str, str] = json.loads(answered.read_text(encoding="utf-8"))
        return answers


def _main(asked: Path, answered: Path) -> None:
    """In the child: answer every text."""
    texts = json.loads(asked.read_text(encoding="utf-8"))
    answered.write_text(json.dumps({key: _objection(text) for key, text in sorted(texts.items())}), encoding="utf-8")


def _objection(text: str) -> str:
    """What verl raises for a configuration, or SOUND."""
    from omegaconf import OmegaConf
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    node = OmegaConf.create(text)
    try:
        OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
        reference, critic = need_reference_policy(node), need_critic(node)
        validate_config(config=node, use_reference_policy=reference, use_critic=critic)
        for section in SECTIONS:
            omega_conf_to_dataclass(OmegaConf.select(node, section))
        given: Any = OmegaConf.to_container(OmegaConf.select(node, REFERENCE), resolve=True)
        omega_conf_to_dataclass(OmegaConf.create({RENAMED.get(str(key), key): given[key] for key in given}))
    except Exception as error:  # whatever verl raises is its objection
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return SOUND


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]))
