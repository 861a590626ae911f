"""Runs of engine=verl on a random Qwen2 of a few thousand parameters, on a handful of generated games."""

from __future__ import annotations

import copy
import dataclasses
import functools
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from core.knobs import resolve_knobs
from envs import registry as environments
from envs.interface import EnvConfig
from harness.compose import composer
from harness.config import BackboneConfig, RunConfig
from harness.record import RunDirectory
from methods import registry as methods

SMALL = {
    "steps": 2,
    "tasks_per_step": 2,
    "group_size": 2,
    "mini_batches": 1,
    "max_response_tokens": 3,
    "max_prompt_tokens": 900,
    "lr": 1e-3,
}


SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@functools.cache
def tokenizer() -> Any:
    """Byte-level BPE of a thousand tokens, learnt from the words of the games: transformers gives every model of the
    Qwen2 family a tokenizer of this kind, whatever lies in its folder."""
    spec = environments.get("alfworld")
    assert spec.lexicon is not None
    lexicon = spec.lexicon(EnvConfig(name="alfworld"))
    texts = [*lexicon.phrases, *lexicon.words, *(f" {word}" for word in lexicon.words)] * 3
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1000, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(texts, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    made.chat_template = CHATML
    return made


def make_model(seed: int = 0) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer()),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=tokenizer().eos_token_id,
        pad_token_id=tokenizer().pad_token_id,
        initializer_range=0.1,
        dtype="float32",
    )
    return Qwen2ForCausalLM(config).float().eval()


def save_backbone(folder: Path, seed: int = 0) -> Path:
    make_model(seed).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@functools.cache
def _composed(method: str) -> RunConfig:
    command = composer().config([f"method={method}", "scale=test", "engine=verl"])[0]
    return RunConfig(**{item.name: getattr(command, item.name) for item in dataclasses.fields(RunConfig)})


def run_config(method: str, backbone: Path, context: str = "per_step", **training: Any) -> RunConfig:
    """Two steps of four episodes of at most four actions; then one panel of six games."""
    config = copy.deepcopy(_composed(method))
    config.method.knobs = resolve_knobs(methods.get(config.method.name).knobs, config.method.knobs, "method.knobs")
    config.backbone = BackboneConfig(name="random", kind="hub", path=str(backbone), heads=2)
    for key, value in {**SMALL, "context": context, **training}.items():
        setattr(config.training, key, value)
    config.env.max_steps, config.env.validation_per_type = 4, 1
    config.evaluation.panels = ["unseen"]
    config.runtime.checkpoint_every, config.runtime.keep_trajectories = 1, 4
    return config


def run_directory(root: Path, config: RunConfig, name: str = "0123456789abcdef") -> RunDirectory:
    return RunDirectory.create(root, config, name)


def metrics(run: RunDirectory) -> list[dict[str, float]]:
    return [entry["values"] for entry in run.spool.read() if entry["kind"] == "metrics"]


def events(run: RunDirectory, name: str) -> list[dict[str, Any]]:
    return [e["data"] for e in run.spool.read() if e["kind"] == "event" and e["name"] == name]


def analyzer(name: str, *overrides: str) -> Any:
    """The section `analyzer` as a command composes it."""
    return composer().config([f"analyzer={name}", *overrides])[0].analyzer
