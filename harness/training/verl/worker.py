"""verl's training worker with what our methods need on top: a second set of weights that teaches, and an export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf, open_dict
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import MtpConfig, TrainingWorkerConfig
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

POLICY, TEACHER = "policy", "teacher"
LEARNING_RATE = "harness_lr"
EXPORT_INFO = "export.json"


class HarnessWorker(ActorRolloutRefWorker):  # type: ignore[misc]
    """One rank. `teacher`: a forward-only engine, sharded like the policy; None until `load_teacher`."""

    actor: Any
    teacher: Any = None
    source = POLICY

    # --------------------------------------------------------------------------------------------------- the policy
    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))  # type: ignore[untyped-decorator]
    def update_actor(self, data: Any) -> Any:
        """As verl's, at the learning rate that comes with the data."""
        rate = tu.pop(data, key=LEARNING_RATE, default=None)
        if rate is not None:
            for group in self.actor.engine.optimizer.param_groups:
                group["lr"] = float(rate)
        return super().update_actor(data)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def export(self, folder: str, dtype: str) -> None:
        """The policy as a plain transformers folder; every rank takes part, the first one writes."""
        parameters, _ = self.actor.engine.get_per_tensor_param()
        weights: dict[str, torch.Tensor] = {}
        first = torch.distributed.get_rank() == 0
        for name, tensor in parameters:  # gathers: on every rank
            if first:
                weights[name] = tensor.detach().to("cpu", getattr(torch, dtype)).contiguous()
        if first:
            model = omega_conf_to_dataclass(self.config.model)
            _write_folder(Path(folder), weights, model)
        torch.distributed.barrier()

    # -------------------------------------------------------------------------------------------------- the teacher
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def load_teacher(self, folder: str | None) -> None:
        """Load weights that only score. folder: None for the policy's initial ones."""
        model: Any = OmegaConf.create(OmegaConf.to_container(self.config.model, resolve=True))
        if folder is not None:
            model.path = folder
            for key in ("hf_config_path", "tokenizer_path"):
                if key in model:
                    model[key] = folder
        self.teacher = TrainingWorker(config=self._scoring_config(omega_conf_to_dataclass(model)))
        self.teacher.reset()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def release_teacher(self) -> None:
        self.teacher = None
        torch.cuda.empty_cache()

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))  # type: ignore[untyped-decorator]
    def compute_teacher_log_prob(self, data: Any) -> Any:
        output = self.teacher.infer_batch(data=data)
        return output.cpu() if output is not None else None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def follow(self, decay: float) -> None:
        """Move the teacher towards the policy: decay * teacher + (1 - decay) * policy, shard by shard."""
        pairs = zip(self.teacher.engine.module.parameters(), self.actor.engine.module.parameters(), strict=True)
        for mean, current in pairs:
            own, other = _local(mean), _local(current)
            own.lerp_(other.to(own.device, own.dtype), 1 - decay)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def save_teacher(self, folder: str) -> None:
        self.teacher.save_checkpoint(folder)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def restore_teacher(self, folder: str) -> None:
        self.teacher.load_checkpoint(folder)

    # ------------------------------------------------------------------------------------------------- who samples
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def serve(self, source: str) -> None:
        """Whose weights `update_weights` pushes to the samplers from now on: policy or teacher."""
        self.source = source

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)  # type: ignore[untyped-decorator]
    async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> Any:
        policy = self.actor
        if self.source == TEACHER:
            self.actor = self.teacher
        try:
            return await super().update_weights(global_steps=global_steps, mode=mode)
        finally:
            self.actor = policy

    # ------------------------------------------------------------------------------------------------------- helpers
    def _scoring_config(self, model: Any) -> Any:
        """As verl configures its reference policy."""
        given: Any = OmegaConf.create(OmegaConf.to_container(self.config.ref, resolve=True))
        with open_dict(given):
            given.ppo_mini_batch_size = self.config.actor.ppo_mini_batch_size
            for key, scoring in (
                ("ppo_micro_batch_size", "log_prob_micro_batch_size"),
                ("ppo_micro_batch_size_per_gpu", "log_prob_micro_batch_size_per_gpu"),
                ("use_dynamic_bsz", "log_prob_use_dynamic_bsz"),
                ("ppo_max_token_len_per_gpu", "log_prob_max_token_len_per_gpu"),
            ):
                if scoring in given:  # verl itself renames them where it has a reference policy
                    given[key] = given.pop(scoring)
        scoring = omega_conf_to_dataclass(given)
        model.mtp = MtpConfig(enable=False)
        made = TrainingWorkerConfig(
            model_type=model.get("model_type", "language_model"),
            model_config=model,
            engine_config=scoring.engine,
            optimizer_config=scoring.optim,
            checkpoint_config=type(scoring.checkpoint)(save_contents=["model"], load_contents=["model"]),
        )
        made.engine_config.use_dynamic_bsz = given.use_dynamic_bsz
        made.engine_config.infer_max_token_len_per_gpu = given.ppo_max_token_len_per_gpu
        made.engine_config.infer_micro_batch_size_per_gpu = given.ppo_micro_batch_size_per_gpu
        made.engine_config.use_remove_padding = model.get("use_remove_padding", False)
        return made


def _local(parameter: torch.Tensor) -> torch.Tensor:
    """This rank's part of a parameter."""
    local: torch.Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return local


def _write_folder(folder: Path, weights: dict[str, torch.Tensor], model: Any) -> None:
    from huggingface_hub import save_torch_state_dict

    folder.mkdir(parents=True, exist_ok=True)
    if getattr(model.hf_config, "tie_word_embeddings", False):
        weights.pop("lm_head.weight", None)  # one matrix under two names
    save_torch_state_dict(weights, str(folder))
    model.hf_config.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    (folder / EXPORT_INFO).write_text(json.dumps({"parameters": sum(t.numel() for t in weights.values())}))
