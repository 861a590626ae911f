"""Every value of verl's configuration that the harness decides, and where it comes from.

What is not listed here is verl's own default. `Setting.source` is a key of our configuration, or the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import RunConfig
from harness.training.verl.attention import attention
from harness.training.verl.sizes import Sizes

# What of the engine verl is to load, as names: nothing is imported here.
TRAINER_MODE = "harness"  # registered by harness.training.verl.trainer
AGENT_LOOP = "harness"  # registered by harness.training.verl.agent_loop
CPU_ROLLOUT = "hf_cpu"  # sampling with transformers, for runtime.device=cpu

NO_DUAL_CLIP = 1.0e9
HALF_ROWS = "verl.micro_batch x half the longest row"
HALF_SCORED = "verl.score_micro_batch x half the longest row"


@dataclass(frozen=True, slots=True)
class Setting:
    """key: in verl's configuration; source: key of ours, or why; new: a key that verl's files do not have (`+key`)."""

    key: str
    value: Any
    source: str
    new: bool = False


def default_backend(config: RunConfig) -> str:
    """Which of verl's rollout engines samples: vLLM on GPUs, transformers on a CPU."""
    return CPU_ROLLOUT if config.runtime.device.partition(":")[0] == "cpu" else "vllm"


def settings_of(config: RunConfig, run_dir: Path, backend: str, sizes: Sizes, planned: int) -> tuple[Setting, ...]:
    """The whole table, in the order of verl's file. planned: training steps of the run."""
    return (
        *_data(config, run_dir),
        *_model(config),
        *_actor(config, sizes),
        *_reference(config, sizes),
        *_rollout(config, backend, sizes),
        *_algorithm(config, backend),
        *_trainer(config, run_dir, sizes, planned),
        *_processes(config, sizes),
        *_ours(config, run_dir, sizes),
    )


def model_path(config: RunConfig) -> str:
    """Folder or hub id of the initial policy. An embedded one that is not made yet has no folder."""
    from harness import backbones

    if config.backbone.kind == "hub":
        path = Path(config.backbone.path or "").expanduser()
        return str(path.absolute()) if path.is_dir() else str(config.backbone.path)
    found = backbones.find(config.backbone, config.env)
    return str(found) if found is not None else f"made on first use: {config.backbone.name}, {config.env.name}"


# ------------------------------------------------------------------------------------------------------------ sections
def _data(config: RunConfig, run_dir: Path) -> Iterator[Setting]:
    training = config.training
    yield Setting("data.train_batch_size", training.tasks_per_step, "training.tasks_per_step")
    yield Setting("data.max_prompt_length", training.max_prompt_tokens, "training.max_prompt_tokens")
    if training.context == "growing":
        longest = training.max_prompt_tokens + training.max_response_tokens
        why = "training.context=growing: all turns after the first prompt are one response"
        yield Setting("data.max_response_length", longest, why)
    else:
        yield Setting("data.max_response_length", training.max_response_tokens, "training.max_response_tokens")
    yield Setting("data.truncation", "error", "prompts are fitted by the harness; a longer one is a mistake")
    yield Setting(
        "data.shuffle", False, "the order of tasks is the harness's own (harness.training.loop.tasks_of_step)"
    )
    yield Setting("data.validation_shuffle", False, "panels have an order")
    yield Setting("data.filter_overlong_prompts", False, "no task is left out silently")
    yield Setting("data.dataloader_num_workers", 0, "rows hold names of tasks only")
    yield Setting("data.seed", config.seed, "seed")
    yield Setting(
        "data.apply_chat_template_kwargs", {"enable_thinking": False}, "thinking off, as everywhere (Qwen3; papers)"
    )


def _model(config: RunConfig) -> Iterator[Setting]:
    model = "actor_rollout_ref.model"
    yield Setting(f"{model}.path", model_path(config), "backbone.path, or the embedded model's folder")
    yield Setting(
        f"{model}.override_config.attn_implementation", attention(config), "verl.attn_implementation", new=True
    )
    yield Setting(f"{model}.use_remove_padding", True, "rows differ in length; padding is not computed")
    yield Setting(
        f"{model}.enable_gradient_checkpointing", config.verl.gradient_checkpointing, "verl.gradient_checkpointing"
    )


def _actor(config: RunConfig, sizes: Sizes) -> Iterator[Setting]:
    training, verl, actor = config.training, config.verl, "actor_rollout_ref.actor"
    yield Setting(f"{actor}.strategy", "fsdp2", "the one that also runs on a CPU")
    tasks = max(1, training.tasks_per_step // training.mini_batches)
    yield Setting(
        f"{actor}.ppo_mini_batch_size",
        tasks,
        "training.tasks_per_step / training.mini_batches; the trainer splits whatever rows there are into "
        "training.mini_batches",
    )
    yield Setting(f"{actor}.use_dynamic_bsz", True, "micro-batches are filled by tokens")
    yield Setting(f"{actor}.ppo_max_token_len_per_gpu", sizes.update_tokens, HALF_ROWS)
    yield Setting(f"{actor}.clip_ratio", training.clip_low, "training.clip_low")
    yield Setting(f"{actor}.clip_ratio_low", training.clip_low, "training.clip_low")
    yield Setting(f"{actor}.clip_ratio_high", training.clip_high, "training.clip_high")
    dual = (NO_DUAL_CLIP, "training.dual_clip=null: a bound that nothing reaches")
    value, why = dual if training.dual_clip is None else (training.dual_clip, "training.dual_clip")
    yield Setting(f"{actor}.clip_ratio_c", value, why)
    yield Setting(
        f"{actor}.loss_agg_mode", "token-mean", "every response token weighs the same, as in the local engine"
    )
    yield Setting(f"{actor}.entropy_coeff", training.entropy_coef, "training.entropy_coef")
    yield Setting(f"{actor}.use_kl_loss", training.kl_coef > 0, "training.kl_coef")
    yield Setting(f"{actor}.kl_loss_coef", training.kl_coef, "training.kl_coef")
    yield Setting(f"{actor}.kl_loss_type", "low_var_kl", "k3, as in the local engine and the papers' scripts")
    yield Setting(f"{actor}.ppo_epochs", 1, "each row is used once, as in the local engine")
    yield Setting(f"{actor}.shuffle", True, "rows of one task are spread over mini-batches, as in the local engine")
    yield Setting(f"{actor}.data_loader_seed", config.seed, "seed")
    yield Setting(f"{actor}.use_torch_compile", sizes.on_gpu, "compiled kernels are for GPUs")
    yield Setting(f"{actor}.grad_clip", training.grad_clip, "training.grad_clip")
    yield Setting(f"{actor}.ulysses_sequence_parallel_size", sizes.sequence_parallel, "verl.sequence_parallel")
    yield Setting(f"{actor}.optim.lr", training.lr, "training.lr")
    yield Setting(f"{actor}.optim.betas", list(training.betas), "training.betas")
    yield Setting(f"{actor}.optim.weight_decay", training.weight_decay, "training.weight_decay")
    yield Setting(f"{actor}.optim.clip_grad", training.grad_clip, "training.grad_clip")
    yield Setting(f"{actor}.optim.lr_warmup_steps", training.warmup_steps, "training.warmup_steps")
    yield Setting(
        f"{actor}.optim.lr_scheduler_type", "constant", "linear warm-up, then constant: training.warmup_steps"
    )
    yield from _fsdp(config, f"{actor}.fsdp_config", sizes)
    yield Setting(f"{actor}.fsdp_config.param_offload", verl.param_offload, "verl.param_offload")
    yield Setting(f"{actor}.fsdp_config.optimizer_offload", verl.optimizer_offload, "verl.optimizer_offload")


def _fsdp(config: RunConfig, section: str, sizes: Sizes) -> Iterator[Setting]:
    """Weights are kept in float32; what they compute in is backbone.dtype."""
    yield Setting(f"{section}.model_dtype", "fp32", "weights and moments in float32 whatever they compute in")
    yield Setting(f"{section}.dtype", config.backbone.dtype, "backbone.dtype")
    yield Setting(f"{section}.seed", config.seed, "seed")
    yield Setting(f"{section}.use_torch_compile", sizes.on_gpu, "compiled kernels are for GPUs")
    short = {"bfloat16": "bf16", "float32": "fp32"}.get(config.backbone.dtype, config.backbone.dtype)
    reduced = {"param_dtype": short, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    yield Setting(f"{section}.mixed_precision", reduced, "backbone.dtype; sums over GPUs in float32", new=True)


def _reference(config: RunConfig, sizes: Sizes) -> Iterator[Setting]:
    reference = "actor_rollout_ref.ref"
    yield Setting(
        f"{reference}.log_prob_max_token_len_per_gpu",
        sizes.score_tokens,
        HALF_SCORED,
    )
    yield Setting(f"{reference}.log_prob_use_dynamic_bsz", True, "micro-batches are filled by tokens")
    yield from _fsdp(config, f"{reference}.fsdp_config", sizes)
    # verl's engine keeps weights that only score in main memory by itself (fsdp2: CPUOffloadPolicy where forward_only).


def _rollout(config: RunConfig, backend: str, sizes: Sizes) -> Iterator[Setting]:
    training, verl, rollout = config.training, config.verl, "actor_rollout_ref.rollout"
    greedy = config.evaluation.temperature == 0
    yield Setting(f"{rollout}.name", backend, "runtime.device: vllm on GPUs, transformers on a CPU")
    yield Setting(f"{rollout}.n", training.group_size, "training.group_size")
    yield Setting(f"{rollout}.temperature", training.temperature, "training.temperature")
    yield Setting(f"{rollout}.top_p", 1.0, "the whole distribution, as in the papers")
    yield Setting(f"{rollout}.top_k", -1, "the whole distribution, as in the papers")
    yield Setting(f"{rollout}.seed", config.seed, "seed")
    yield Setting(f"{rollout}.dtype", config.backbone.dtype, "backbone.dtype")
    yield Setting(f"{rollout}.tensor_model_parallel_size", sizes.tensor_parallel, "verl.tensor_parallel")
    yield Setting(f"{rollout}.data_parallel_size", 1, "copies of the model are separate servers")
    yield Setting(f"{rollout}.gpu_memory_utilization", verl.gpu_memory, "verl.gpu_memory")
    yield Setting(
        f"{rollout}.max_model_len", sizes.longest, "training.max_prompt_tokens + training.max_response_tokens"
    )
    batched = max(verl.batched_tokens, sizes.longest)
    yield Setting(f"{rollout}.max_num_batched_tokens", batched, "verl.batched_tokens; at least the longest row")
    yield Setting(f"{rollout}.max_num_seqs", verl.sequences, "verl.sequences")
    yield Setting(f"{rollout}.enforce_eager", verl.eager or not sizes.on_gpu, "verl.eager")
    yield Setting(f"{rollout}.calculate_log_probs", True, "to measure how far sampling and training differ")
    yield Setting(f"{rollout}.log_prob_max_token_len_per_gpu", sizes.score_tokens, HALF_SCORED)
    yield Setting(f"{rollout}.log_prob_use_dynamic_bsz", True, "micro-batches are filled by tokens")
    yield Setting(f"{rollout}.agent.num_workers", sizes.agent_workers, "verl.agent_workers")
    yield Setting(f"{rollout}.agent.default_agent_loop", AGENT_LOOP, "episodes of our environments")
    yield Setting(f"{rollout}.val_kwargs.temperature", config.evaluation.temperature, "evaluation.temperature")
    yield Setting(f"{rollout}.val_kwargs.do_sample", not greedy, "evaluation.temperature: 0 is greedy")
    yield Setting(f"{rollout}.val_kwargs.n", 1, "repeats are the harness's own (evaluation.repeats)")


def _algorithm(config: RunConfig, backend: str) -> Iterator[Setting]:
    yield Setting("algorithm.adv_estimator", "grpo", "no critic; the trainer asks our method for the advantages")
    yield Setting("algorithm.norm_adv_by_std_in_grpo", config.method.advantage.std, "method.advantage.std")
    yield Setting("algorithm.use_kl_in_reward", False, "the KL term is in the loss, as in the papers")
    yield Setting("reward.num_workers", 1, "episodes come with their return")
    yield Setting("reward.reward_model.enable", False, "environments give the rewards")
    yield Setting("reward.reward_model.rollout.name", backend, "verl wants a name although nothing uses it")


def _trainer(config: RunConfig, run_dir: Path, sizes: Sizes, planned: int) -> Iterator[Setting]:
    yield Setting("trainer.v1.trainer_mode", TRAINER_MODE, "our trainer: advantages and losses of our methods")
    yield Setting("trainer.nnodes", sizes.nodes, "backbone.resources.nodes")
    yield Setting("trainer.n_gpus_per_node", sizes.gpus_per_node, "backbone.resources.gpus_per_node; 1 on a CPU")
    yield Setting("trainer.device", "cuda" if sizes.on_gpu else "cpu", "runtime.device")
    yield Setting("trainer.total_training_steps", planned, "training.steps, fraction")
    yield Setting("trainer.total_epochs", max(1, planned), "more than enough; the number of steps decides")
    yield Setting("trainer.project_name", "harness", "a label")
    yield Setting("trainer.experiment_name", run_dir.name, "the run's fingerprint")
    yield Setting("trainer.logger", ["console"], "metrics go into the run's own records")
    yield Setting("trainer.val_before_train", False, "evaluation is the harness's own")
    yield Setting("trainer.test_freq", -1, "evaluation is the harness's own")
    yield Setting("trainer.save_freq", config.runtime.checkpoint_every, "runtime.checkpoint_every")
    yield Setting("trainer.max_actor_ckpt_to_keep", config.verl.keep_checkpoints, "verl.keep_checkpoints")
    yield Setting("trainer.default_local_dir", str(run_dir / "checkpoints" / "verl"), "in the run's folder")
    yield Setting("trainer.resume_mode", "auto", "a run goes on from its newest checkpoint")
    yield Setting("trainer.balance_batch", True, "workers get about the same number of tokens")


def _processes(config: RunConfig, sizes: Sizes) -> Iterator[Setting]:
    storage = "transfer_queue.backend.SimpleStorage"
    yield Setting(f"{storage}.num_data_storage_units", sizes.storage_units, "verl.storage_units")
    if sizes.nodes > 1:
        why = "several machines: Ray is there already (harness.training.verl.cluster), with its cores"
        yield Setting("ray_kwargs.ray_init.num_cpus", None, why)
        return
    yield Setting("ray_kwargs.ray_init.num_cpus", sizes.ray_cpus, "verl.ray_cpus, or what the actors ask for")
    yield Setting("ray_kwargs.ray_init.address", "local", "a Ray of its own, never one that runs already", new=True)
    yield Setting("ray_kwargs.ray_init.include_dashboard", False, "a port less", new=True)
    if not sizes.on_gpu:
        yield Setting("ray_kwargs.ray_init.num_gpus", sizes.gpus, "workers on a CPU count as GPUs", new=True)


def _ours(config: RunConfig, run_dir: Path, sizes: Sizes) -> Iterator[Setting]:
    """verl leaves sections that it does not know alone at the top level only."""
    yield Setting("harness.run_dir", str(run_dir), "where the run's configuration and records are", new=True)
    yield Setting("harness.mini_batches", sizes.mini_batches, "training.mini_batches", new=True)
    yield Setting("harness.seed", config.seed, "seed", new=True)
