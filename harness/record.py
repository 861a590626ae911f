"""The run directory: the truth about one run. Trackers, tables and figures are made from it.

config.yaml       resolved RunConfig                 provenance.json  code, packages, machine, command
state.json        see harness.states                 claim.json       who works on it, see harness.claim
spool.jsonl       metrics and events                 attempts/        one file per attempt
episodes.parquet  one row per evaluated episode      trajectories.jsonl.zst  sampled trajectories
checkpoints/      step_000010/, ...                  log.txt          what the worker said
"""

from __future__ import annotations

import errno
import functools
import math
import shutil
import uuid
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness import claim as claims
from harness.claim import Claim, ClaimStatus
from harness.config import RunConfig
from harness.errors import ConfigError, Problem
from harness.files import (
    RecordError,
    atomic_write,
    atomic_write_json,
    json_bytes,
    read_json_object,
    sync_folder,
    write_new,
    writing,
)
from harness.fingerprint import differences, identity
from harness.locks import file_lock
from harness.provenance import gather
from harness.redaction import find_secret
from harness.spool import Spool
from harness.states import (
    CLAIM_NAME,
    COMPLETE,
    STATE_NAME,
    RunState,
    derive_state,
    encode_state,
    judge_state,
    stored_state,
    updated_state,
)
from harness.yaml_text import to_yaml

CONFIG_NAME = "config.yaml"
PROVENANCE_NAME = "provenance.json"


def planned_steps(config: RunConfig) -> int:
    """Training steps of the whole run: 0 for a method that does not train; a fraction of steps is rounded up."""
    if not config.method.trains:
        return 0
    share = config.fraction if config.fraction_of == "steps" else 1.0
    # A fraction such as 0.1 is not exact in binary: 0.1 * 30 must be 3 steps, not ceil(3.0000000000000004) = 4.
    return math.ceil(round(config.training.steps * share, 9))


def declared_evaluations(config: RunConfig) -> tuple[str, ...]:
    """`<panel>/<skills>` of every evaluation that the run owes."""
    return tuple(
        f"{panel}/{skills}" for panel in config.evaluation.panels for skills in config.method.rollout_skills_eval
    )


def config_text(config: RunConfig) -> str:
    """The configuration as YAML. ConfigError if it holds a secret."""
    text = to_yaml(config)
    if (name := find_secret(text)) is not None:
        fix = (
            f"a secret ({name}) is written in the configuration; leave it in the environment, records must not hold it"
        )
        raise ConfigError(Problem(key="", value="", origin=CONFIG_NAME, fix=fix))
    return text


# Keys of earlier versions that decided no result, and are no more: records that hold them can still be read.
GONE = (("verl", "reference_offload"), ("verl", "max_failed_episodes"))


def parse_config(text: str, origin: str) -> RunConfig:
    """The RunConfig of `config_text`. RecordError naming `origin` if a key is unknown or a value has the wrong type."""
    try:
        given = OmegaConf.create(text)
        for section, key in GONE:
            if isinstance(given, DictConfig) and isinstance(given.get(section), DictConfig):
                given[section].pop(key, None)
        merged = OmegaConf.merge(OmegaConf.structured(RunConfig), given)
        config = OmegaConf.to_object(merged)
    except (OmegaConfBaseException, ValueError) as error:
        raise RecordError(f"{origin} does not fit this version of the harness: {error}") from error
    if not isinstance(config, RunConfig):
        raise RecordError(f"{origin} is not a run's configuration")
    return config


class RunDirectory:
    """One run directory. Holding one costs nothing; files are read when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path).absolute()

    def __repr__(self) -> str:
        return f"RunDirectory({str(self.path)!r})"

    # ------------------------------------------------------------------------------------------------ creation
    @classmethod
    def create(cls, root: Path, config: RunConfig, fingerprint: str, *, update: bool = True) -> RunDirectory:
        """The directory `root/<fingerprint>`, made in one step if missing. root: the `runs` folder.

        If it exists, its configuration must agree in every field that can change a result (RecordError naming the
        differences otherwise); fields that cannot, such as the log level, are brought up to date unless the run is
        complete or being worked on. update=False leaves them as they are: a job of the run that still waits reads them
        when it starts. Raises ConfigError for secrets in the configuration, RecordError (DiskFullError) if the folder
        cannot be written.
        """
        run = cls(Path(root) / fingerprint)
        text = config_text(config)
        if not run.path.is_dir():
            run._build(config, text)
        stored = run._config_text()
        if stored != text:
            run._reconcile(config, text, stored, update)
        return run

    def _build(self, config: RunConfig, text: str) -> None:
        scratch = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}.tmp")
        state = updated_state(
            RunState(), {"planned_steps": planned_steps(config), "declared": declared_evaluations(config)}
        )
        with writing(self.path):
            scratch.mkdir(parents=True)
            try:
                write_new(scratch / CONFIG_NAME, text.encode())
                write_new(scratch / PROVENANCE_NAME, json_bytes(gather(config.runtime.device, config.method.name)))
                write_new(scratch / STATE_NAME, json_bytes(encode_state(state)))
                sync_folder(scratch)
                try:
                    scratch.rename(self.path)
                except OSError as error:
                    if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                        raise  # otherwise somebody else made it first, which is as good
                sync_folder(self.path.parent)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)

    def _reconcile(self, config: RunConfig, text: str, stored: str, update: bool) -> None:
        other = parse_config(stored, str(self.path / CONFIG_NAME))
        if changed := differences(identity(other), identity(config)):
            listed = "; ".join(f"{key}: {before!r} there, {now!r} now" for key, (before, now) in changed.items())
            raise RecordError(
                f"{self.path} belongs to a run with another configuration ({listed}). Equal fingerprints, different "
                "contents mean a damaged or hand-edited config.yaml: move the directory away and run the command again"
            )
        if not update:
            return
        with file_lock(self.path / ".create.lock"):
            if self.state().state != COMPLETE and self.claim_status().status in (claims.FREE, claims.DEAD):
                atomic_write(self.path / CONFIG_NAME, text.encode())

    # ------------------------------------------------------------------------------------------------ contents
    def _config_text(self) -> str:
        try:
            return (self.path / CONFIG_NAME).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RecordError(f"cannot read {self.path / CONFIG_NAME}: {error}; is this a run directory?") from error

    def load_config(self) -> RunConfig:
        """The run's configuration. RecordError if it is missing or does not fit."""
        return parse_config(self._config_text(), str(self.path / CONFIG_NAME))

    def provenance(self) -> dict[str, Any]:
        """What provenance.json says; empty if it is missing."""
        return read_json_object(self.path / PROVENANCE_NAME) or {}

    @property
    def fingerprint(self) -> str:
        return self.path.name

    @property
    def checkpoints_dir(self) -> Path:
        return self.path / "checkpoints"

    @property
    def log_path(self) -> Path:
        return self.path / "log.txt"

    @property
    def episodes_path(self) -> Path:
        return self.path / "episodes.parquet"

    @property
    def trajectories_path(self) -> Path:
        return self.path / "trajectories.jsonl.zst"

    @property
    def claim_path(self) -> Path:
        return self.path / CLAIM_NAME

    @functools.cached_property
    def spool(self) -> Spool:
        return Spool(self.path / "spool.jsonl")

    # ------------------------------------------------------------------------------------------------ claim and state
    def claim(self) -> Claim | None:
        """Claim the run for this process (a context manager); None if somebody alive or unknown holds it."""
        return claims.acquire(self.claim_path)

    def claim_status(self) -> ClaimStatus:
        """Who holds the claim. Only reads."""
        return claims.inspect(self.claim_path)

    def state(self) -> RunState:
        """The true state, see `harness.states.derive_state`."""
        return derive_state(self.path)

    def stored_state(self) -> RunState:
        """What state.json says. RecordError if it cannot be understood."""
        return stored_state(self.path)

    def state_without_claim(self) -> RunState:
        """What `state` would be if nobody held the claim: for its holder, to whom every run would read as running."""
        return judge_state(self.stored_state(), claims.ClaimStatus(claims.FREE, None, "nobody works on it"))

    def write_state(self, **changes: Any) -> RunState:
        """Change fields of state.json durably, in one step; returns what was written. For the holder of the claim.

        `evaluations` replaces the whole mapping. Leaving failed or interrupted clears `error`. `complete` with steps or
        evaluations missing is refused (ValueError), as are unknown fields (TypeError).
        """
        new = updated_state(stored_state(self.path), changes)
        atomic_write_json(self.path / STATE_NAME, encode_state(new))
        return new
