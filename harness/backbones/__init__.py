"""Policies to start from: small embedded models that the project makes itself, or any causal LM of the hub.

`ensure` makes an embedded backbone once, whoever asks first, and returns its folder; `load` gives model and tokenizer.
A folder is an ordinary transformers folder (config, safetensors, tokenizer with chat template) plus `recipe.json`,
which also holds the digest of the weights: they are checked whenever they are loaded.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from envs import registry
from envs.cache import cache_root, file_lock
from envs.interface import EnvConfig, EnvSpec
from harness.backbones import kinds
from harness.backbones.content import WEIGHTS, combined, file_sha256, hashes
from harness.config import BackboneConfig

# Raised whenever the same recipe would give other weights.
WARMSTART_VERSION = 1
RECIPE = "recipe.json"
MODEL = "model.safetensors"
DIGEST = "weights_sha256"  # key of a recipe file
Progress = Callable[[str, int, int], None]  # what, done, total


class BackboneError(RuntimeError):
    """A backbone cannot be made or loaded; the message says which and how to go on."""

    failure_class = "config"


class MissingFolderError(BackboneError, FileNotFoundError):
    """backbone.path is written like a folder, but there is none."""


def recipe(backbone: BackboneConfig, env: EnvConfig) -> dict[str, Any]:
    """Everything that decides an embedded backbone's weights. Cheap: nothing is imported but the environment's spec."""
    spec = _embedded_spec(backbone, env)
    assert spec.lexicon is not None
    return {
        "warmstart_version": WARMSTART_VERSION,
        "env": spec.name,
        "demonstrations_version": spec.metadata["demonstrations_version"],
        "lexicon": hashlib.sha256(repr(spec.lexicon(env)).encode()).hexdigest()[:16],
        "hidden": backbone.hidden,
        "layers": backbone.layers,
        "heads": backbone.heads,
        "intermediate": backbone.intermediate,
        "max_positions": backbone.max_positions,
        "demos": backbone.demos,
        "clone_tokens": clone_tokens(backbone, spec),
        "clone_seed": backbone.clone_seed,
    }


def clone_tokens(backbone: BackboneConfig, spec: EnvSpec) -> int:
    """Training tokens of behaviour cloning: the backbone's, or fewer where the environment says that fewer are enough.

    More would only make the policy surer of itself, and leave reinforcement learning nothing to explore.
    """
    return min(backbone.clone_tokens, int(spec.metadata.get("clone_tokens", backbone.clone_tokens)))


def recipe_hash(backbone: BackboneConfig, env: EnvConfig) -> str:
    """16 hex digits over the recipe."""
    text = json.dumps(recipe(backbone, env), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def identity(backbone: BackboneConfig, env: EnvConfig) -> str:
    """What a fingerprint needs to know about the initial policy.

    Embedded: its recipe, and the weights where they are shipped. A local folder: its content. A hub id: id and
    revision, whatever the hub gives for them. A package's kind: what that says. Raises FileNotFoundError for a folder
    that is not there, ValueError for a kind that cannot be loaded.
    """
    if backbone.kind not in kinds.BUILTIN:
        return f"{backbone.kind}:{kinds.get(backbone.kind).identity(backbone, env)}"
    if backbone.kind == "embedded":
        key = recipe_hash(backbone, env)
        shipped = _shipped(backbone, env, key)
        return key if shipped is None else f"{key}:{_read_recipe(shipped)[DIGEST][:16]}"
    folder = _local(backbone)
    if folder is None:
        return f"hub:{backbone.path}@{backbone.revision}"
    return f"folder:{combined(hashes(folder, _kept(env)))[:16]}"


def weights_digest(backbone: BackboneConfig, env: EnvConfig) -> str | None:
    """sha256 of the initial weights (of several files: of their digests). None for a hub id.

    An embedded backbone must have been made. Raises BackboneError, OSError.
    """
    if backbone.kind == "embedded":
        return file_sha256(ensure(backbone, env) / MODEL)
    folder = _local(backbone) if backbone.kind == "hub" else ensure(backbone, env)
    if folder is None:
        return None
    return combined({n: digest for n, digest in hashes(folder, _kept(env)).items() if n.endswith(WEIGHTS)})


def _kept(env: EnvConfig) -> Path:
    return cache_root(env) / "backbones" / "digests"


def _local(backbone: BackboneConfig) -> Path | None:
    """The folder that backbone.path names, None if it is a hub id."""
    path = Path(backbone.path or "").expanduser()
    if backbone.path and path.is_dir():
        return path
    if path.is_absolute() or (backbone.path or "").startswith((".", "~")):
        raise MissingFolderError(
            f"backbone.path={backbone.path} (backbone {backbone.name!r}) is no folder. Download the snapshot first and "
            "set backbone.path to its folder"
        )
    return None


def _read_recipe(folder: Path) -> dict[str, Any]:
    """The recipe file of a folder. A file without a digest of the weights counts as none."""
    content = json.loads((folder / RECIPE).read_text(encoding="utf-8")) if (folder / RECIPE).is_file() else {}
    return content if DIGEST in content else {}


def shipped_folder(backbone: BackboneConfig, env: EnvConfig) -> Path:
    """Where the project's own weights of a backbone in an environment lie, if it has any."""
    return Path(str(resources.files("harness.backbones").joinpath("embedded", backbone.name, env.name)))


def _shipped(backbone: BackboneConfig, env: EnvConfig, key: str) -> Path | None:
    folder = shipped_folder(backbone, env)
    return folder if _read_recipe(folder).get("hash") == key else None


def find(backbone: BackboneConfig, env: EnvConfig) -> Path | None:
    """The folder of a backbone that is already there: shipped with the project, or made before."""
    key = recipe_hash(backbone, env)
    shipped = _shipped(backbone, env, key)
    if shipped is not None:
        return shipped
    made = cache_root(env) / "backbones" / f"{backbone.name}-{key}"
    return made if _read_recipe(made) else None


def ensure(backbone: BackboneConfig, env: EnvConfig, progress: Progress | None = None) -> Path:
    """Folder (or hub id as a Path) to load from; makes an embedded backbone if it is missing.

    Several processes may ask at once: one makes it, the others wait. Raises BackboneError.
    """
    if backbone.kind not in kinds.BUILTIN:
        return kinds.get(backbone.kind).ensure(backbone, env)
    if backbone.kind == "hub":
        if not backbone.path:
            raise BackboneError(f"backbone.path is not set, but backbone.kind=hub ({backbone.name}): give a folder")
        return _local(backbone) or Path(backbone.path)
    found = find(backbone, env)
    if found is not None:
        return found
    folder = cache_root(env) / "backbones"
    target = folder / f"{backbone.name}-{recipe_hash(backbone, env)}"
    with file_lock(folder / f".{target.name}.lock"):
        if not _read_recipe(target):
            folder.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=folder))
            try:
                build(backbone, env, scratch, progress)
                if target.exists():  # a folder without a recipe is nothing that `ensure` made
                    shutil.rmtree(target)
                scratch.rename(target)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return target


def build(
    backbone: BackboneConfig,
    env: EnvConfig,
    folder: Path,
    progress: Progress | None = None,
    stop_after: int | None = None,
) -> list[tuple[int, float]]:
    """Makes an embedded backbone in `folder`; returns the loss curve [(tokens seen, smoothed loss)].

    stop_after: end after so many tokens, on the same path as the whole run; no recipe is written then.
    """
    from harness.backbones.tokenizer import build_tokenizer
    from harness.backbones.warmstart import Demonstrations, build_model, clone

    spec = _embedded_spec(backbone, env)
    assert spec.lexicon is not None and spec.demonstrations is not None
    tokenizer = build_tokenizer(spec.lexicon(env))
    model = build_model(backbone, len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id)
    demonstrations = Demonstrations(spec.demonstrations(env), tokenizer, backbone.clone_seed, backbone.demos)
    curve: list[tuple[int, float]] = []

    def record(seen: int, loss: float) -> None:
        curve.append((seen, loss))
        if progress:
            progress(f"cloning {backbone.name}", min(seen, tokens), tokens)

    tokens = clone_tokens(backbone, spec)
    clone(model, tokenizer, demonstrations, tokens, backbone.clone_seed, record, stop_after)
    if stop_after is None:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        kept = [[seen, round(loss, 4)] for seen, loss in (curve[k] for k in _sampled(len(curve)))]
        content = {
            "hash": recipe_hash(backbone, env),
            DIGEST: file_sha256(folder / MODEL),
            "recipe": recipe(backbone, env),
            "loss_curve": kept,
        }
        (folder / RECIPE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return curve


def _sampled(steps: int) -> list[int]:
    """Steps of a loss curve worth keeping: powers of two, so that a short rebuild has something to compare with."""
    return [*dict.fromkeys([0, *(2**k for k in range(steps.bit_length()) if 2**k < steps), steps - 1])]


def load(backbone: BackboneConfig, env: EnvConfig) -> tuple[Any, Any]:
    """(model, tokenizer) of transformers, in float precision `backbone.dtype`, from `ensure`d files.

    Raises BackboneError, also for an embedded backbone whose weights are not those of its recipe file.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = ensure(backbone, env)
    if backbone.kind == "embedded":
        _verify(folder, backbone)
    source = str(folder)
    dtype = getattr(torch, backbone.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise BackboneError(f"backbone.dtype={backbone.dtype!r} is no torch dtype; use float32 or bfloat16")
    try:
        model = AutoModelForCausalLM.from_pretrained(source, revision=backbone.revision or "main", dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(source, revision=backbone.revision or "main")
    except OSError as error:
        raise BackboneError(
            f"backbone {backbone.name!r} cannot be loaded from {source!r}: {error}. Download the snapshot first and "
            "set backbone.path to its folder"
        ) from error
    return model, tokenizer


def _verify(folder: Path, backbone: BackboneConfig) -> None:
    wanted, found = _read_recipe(folder).get(DIGEST), file_sha256(folder / MODEL)
    if wanted != found:
        raise BackboneError(
            f"the weights of backbone {backbone.name!r} in {folder} are not those that its {RECIPE} describes (sha256 "
            f"{found[:16]}..., wanted {str(wanted)[:16]}...): delete the folder to have it made again, or restore it"
        )


def _embedded_spec(backbone: BackboneConfig, env: EnvConfig) -> EnvSpec:
    if backbone.kind != "embedded":
        raise BackboneError(f"backbone.kind={backbone.kind!r} is not embedded (backbone.name={backbone.name!r})")
    spec = registry.get(env.name)
    if spec.lexicon is None or spec.demonstrations is None:
        raise BackboneError(
            f"env.name={env.name!r} offers no lexicon and demonstrations, which an embedded backbone is made from; "
            "use a backbone with backbone.kind=hub"
        )
    return spec
