"""The loss that verl's workers compute: the same terms by the same functions as the local engine.

Sent to the workers once per training step. Sums run over the response tokens of a mini-batch, whatever worker and
micro-batch they are in, and are divided by their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from harness.config import TrainingConfig
from harness.training.losses import k3, token_losses
from harness.training.verl.rows import SCORED, TEACHER
from methods.interface import Batch, Method, MethodConfig, MethodContext

SUMS = ("loss", "entropy", "kl", "clip_fraction", "kl_reference")  # over tokens; logged under PREFIX
PREFIX = "harness/"


def _absent(*given: Any) -> Any:
    raise RuntimeError("a method's aux_loss runs in verl's workers, which have neither analyzer nor skill library")


@dataclass
class MethodLoss:
    """A method's own loss term, made again in every worker: from its configuration and the state that a checkpoint
    would keep. So `aux_loss` may read its configuration, that state and the batch, and nothing else."""

    config: MethodConfig
    total_steps: int
    seed: int
    state: Mapping[str, Any]
    _method: Method | None = field(default=None, repr=False)

    @classmethod
    def of(cls, method: Method) -> MethodLoss | None:
        """None for a method without such a term."""
        if type(method).aux_loss is Method.aux_loss:
            return None
        return cls(method.config, method.context.total_steps, method.context.seed, method.state_dict())

    def method(self) -> Method:
        if self._method is None:
            from methods import registry

            context = MethodContext(self.total_steps, self.seed, analyze=_absent, library=_absent)
            self._method = registry.build(self.config, context)
            self._method.load_state_dict(self.state)
        return self._method

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_method": None}


@dataclass
class StepLoss:
    """Called by verl's engine once per micro-batch. frame: the step's batch without its rows, for aux_loss."""

    training: TrainingConfig
    step: int
    frame: Batch
    channels: Sequence[str]
    auxiliary: MethodLoss | None = None

    @property
    def needs_entropy(self) -> bool:
        """Whether the update must compute entropies: they cost memory of rows x tokens x vocabulary."""
        return self.training.entropy_coef != 0 or self.auxiliary is not None

    def __call__(self, model_output: Any, data: Any, dp_group: Any = None) -> tuple[Tensor, dict[str, Any]]:
        """(loss, sums for the records). data: a TensorDict of nested fields; see harness.training.verl.rows."""
        from verl.utils.metric import AggregationType, Metric
        from verl.workers.utils.padding import no_padding_2_padding

        logprobs = no_padding_2_padding(model_output["log_probs"], data).float()
        given = model_output.get("entropy", None)
        entropy = no_padding_2_padding(given, data).float() if given is not None else torch.zeros_like(logprobs)
        fields = {name: _dense(data[name], logprobs) for name in self._names(data)}
        summed, sums = self.terms(logprobs, entropy, fields)
        scale = data["dp_size"] / max(int(data["batch_num_tokens"]), 1)  # verl averages gradients over workers
        return summed * scale, {
            # verl adds up over micro-batches, and averages over workers
            f"{PREFIX}{name}": Metric(value=value * data["dp_size"], aggregation=AggregationType.SUM)
            for name, value in sums.items()
        }

    def _names(self, data: Any) -> list[str]:
        teacher = [f"{prefix}{channel}" for channel in self.channels for prefix in (TEACHER, SCORED)]
        names = ["response_mask", "old_log_probs", "advantages", "harness_step", *teacher]
        return [*names, *(["ref_log_prob"] if "ref_log_prob" in data else [])]

    def terms(self, logprobs: Tensor, entropy: Tensor, fields: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        """The sum of token losses, and sums over tokens for the records. All [rows, response tokens], padded with 0."""
        mask = fields["response_mask"].bool()
        reference = fields.get("ref_log_prob")
        old = fields["old_log_probs"][mask]
        losses, flat, divergence = token_losses(
            self.training,
            logprobs[mask],
            old,
            fields["advantages"][mask],
            entropy[mask],
            reference[mask] if reference is not None else None,
        )
        if self.auxiliary is not None:
            extra = self.auxiliary.method().aux_loss(
                self.step, self._batch(mask, fields), _only(logprobs, mask), _only(entropy, mask)
            )
            if extra is not None:
                losses = losses + extra[mask]
        with torch.no_grad():
            sums = {
                "loss": float(losses.sum()),
                "entropy": float(entropy[mask].sum()),
                "kl": float(k3(old, logprobs[mask]).sum()),
                "clip_fraction": float(flat.sum()),
                "kl_reference": float(divergence.sum()) if divergence is not None else 0.0,
            }
        # A micro-batch of padding alone has no token: its loss must still reach the parameters, as 0.
        return losses.sum() + 0.0 * logprobs.sum(), sums

    def _batch(self, mask: Tensor, fields: Mapping[str, Tensor]) -> Batch:
        """These rows as the method sees them; steps and trajectories are those of the whole step."""
        device, frame = mask.device, self.frame
        return Batch(
            response_mask=mask,
            old_logprobs=_only(fields["old_log_probs"], mask),
            token_step=torch.where(mask, fields["harness_step"].long(), -1),
            step_trajectory=frame.step_trajectory.to(device),
            step_number=frame.step_number.to(device),
            step_invalid=frame.step_invalid.to(device),
            group=frame.group.to(device),
            returns=frame.returns.to(device),
            invalid_penalty=frame.invalid_penalty,
            observations=frame.observations,
            step_reward=None if frame.step_reward is None else frame.step_reward.to(device),
            teacher={channel: fields[f"{TEACHER}{channel}"] for channel in self.channels},
            teacher_mask={channel: fields[f"{SCORED}{channel}"].bool() for channel in self.channels},
        )


def frame_of(batch: Batch) -> Batch:
    """The batch without its rows: what all micro-batches share."""
    from dataclasses import replace

    empty = batch.response_mask[:0, :0]
    return replace(
        batch,
        response_mask=empty,
        old_logprobs=batch.old_logprobs[:0, :0],
        token_step=batch.token_step[:0, :0],
        teacher={},
        teacher_mask={},
    )


def _only(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, torch.zeros_like(values))


def _dense(field: Any, like: Tensor) -> Tensor:
    """A nested field as [rows, response tokens] of `like`, padded with 0."""
    dense: Tensor = field.to_padded_tensor(0) if field.is_nested else field
    missing = like.shape[1] - dense.shape[1]
    return torch.nn.functional.pad(dense, (0, missing)) if missing > 0 else dense
