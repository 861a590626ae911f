"""The process that takes the steps: `python -m harness.preflight.probe`, told what to do on its standard input.

In: {"probes": [{"configs": [YAML of a RunConfig, ...], "repeats": bool}, ...], "tasks": tasks per panel}. Out: a line
per probe, {"seconds": s, "digests": [...]} or {"error": why}. Everything else that is printed goes to standard error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from envs import registry
from envs.interface import EnvConfig, EnvSpec, Panel
from envs.panels import build_panel, permutation
from harness.config import RunConfig
from harness.preflight.steps import RANDOM
from harness.record import RunDirectory, parse_config
from harness.redaction import redact

_OWN = ("core", "envs", "harness", "methods")
_VARYING = ("time/", "memory")  # metrics that no two runs share
_HIDDEN, _HEADS = 16, 2  # of the random policy


def main() -> int:
    order = json.loads(sys.stdin.read())
    results = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no result
    setattr(registry, "get", _cut(registry.get, int(order["tasks"])))  # noqa: B010 - everybody asks the module
    with tempfile.TemporaryDirectory(prefix="preflight-") as folder:
        for number, probe in enumerate(order["probes"]):
            configs = [parse_config(text, "preflight") for text in probe["configs"]]
            print(json.dumps(_result(Path(folder), number, configs, bool(probe["repeats"]))), file=results)
    return 0


def _cut(get: Callable[[str], EnvSpec], tasks: int) -> Callable[[str], EnvSpec]:
    """Specs whose panels have a few tasks: the official ones have hundreds."""

    def cut(name: str) -> EnvSpec:
        spec = get(name)

        def load_panel(config: EnvConfig, panel: str) -> Panel:
            whole = spec.load_panel(config, panel)
            return build_panel(name, whole.data_version, panel, permutation(whole)[:tasks])

        return replace(spec, load_panel=load_panel)

    return cut


def _result(folder: Path, number: int, configs: list[RunConfig], repeats: bool) -> dict[str, Any]:
    try:
        started = time.monotonic()
        digests = [_execute(folder / f"{number}-first", configs)]
        seconds = time.monotonic() - started
        if repeats:
            digests.append(_execute(folder / f"{number}-again", configs))
            digests.append(_execute(folder / f"{number}-other", [replace(c, seed=c.seed + 1) for c in configs]))
    except Exception as error:  # what a step does wrong is what is asked for
        traceback.print_exc()
        return {"error": redact(f"{type(error).__name__}: {error}")[:600]}
    return {"seconds": seconds, "digests": digests, "files": _files()}


def _files() -> dict[str, str]:
    """Every file of code that this process has read, but for installed packages and Python's own -> its sha256."""
    installed = tuple({os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")})
    found: dict[str, str] = {}
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if name and name.endswith(".py") and Path(name).is_absolute() and Path(name).is_file():  # torch.ops is no file
            path = os.path.realpath(name)
            ours = module.__name__.partition(".")[0] in _OWN  # a wheel lies among the installed packages
            if ours or not path.startswith(installed):
                found[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return dict(sorted(found.items()))


def _execute(root: Path, configs: list[RunConfig]) -> str:
    """Runs, one after the other, to their ends; a digest of what the last one came to."""
    from harness.run import execute
    from harness.states import COMPLETE

    for position, config in enumerate(configs):
        run = RunDirectory.create(root, _with_policy(root.parent, config), str(position))
        with contextlib.closing(run.spool):
            execute(run, lambda: False)
        if run.stored_state().state != COMPLETE:
            raise RuntimeError(f"the run ended as {run.stored_state().state}: {run.stored_state().error}")
    return _digest(run)


def _digest(run: RunDirectory) -> str:
    """Over the metrics, the weights and the episodes, without times."""
    total = hashlib.sha256()
    for entry in run.spool.read():
        if entry["kind"] == "metrics":
            kept = {name: v for name, v in entry["values"].items() if not name.startswith(_VARYING)}
            total.update(json.dumps([entry["step"], kept], sort_keys=True).encode())
    for path in sorted(run.checkpoints_dir.glob("*/model.safetensors")):
        total.update(path.read_bytes())
    if run.episodes_path.exists():
        import pyarrow.parquet as parquet

        rows = parquet.read_table(run.episodes_path).to_pylist()
        total.update(json.dumps([{**row, "run": "", "seed": 0} for row in rows], sort_keys=True, default=str).encode())
    return total.hexdigest()


# ------------------------------------------------------------------------------------------------- the random policy
def _with_policy(folder: Path, config: RunConfig) -> RunConfig:
    if config.backbone.name != RANDOM:
        return config
    place = folder / "policy"
    if not place.is_dir():
        make_random(place, config.backbone.max_positions)
    return replace(config, backbone=replace(config.backbone, path=str(place)))


def make_random(folder: Path, positions: int) -> None:
    """A transformers folder: one layer, random weights from a fixed seed, a tokenizer of bytes that reads any text."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({text: i for i, text in enumerate([*special, *alphabet])}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    torch.manual_seed(0)
    shape = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=_HIDDEN,
        intermediate_size=2 * _HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=_HEADS,
        num_key_value_heads=_HEADS,
        head_dim=_HIDDEN // _HEADS,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForCausalLM(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    sys.exit(main())
