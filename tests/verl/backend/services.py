"""verl's own workers in this process, without Ray and without a queue: what the parity test trains with.

Rows become the nested tensors that the queue would give, and verl's FSDP engine does the rest. Import it only where the
environment variables of `environment` were set before `import verl`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from verl.utils import tensordict_utils as tu
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.utils.padding import response_from_nested

from harness.training.verl.rows import PAD, Sample
from harness.training.verl.trainer import _fields, _numbers
from harness.training.verl.worker import HarnessWorker


def environment() -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_USE_EXTERNAL_MODULES": "harness.training.verl.cpu",
        "WORLD_SIZE": "1",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


@dataclass
class Stored:
    rows: list[dict[str, Any]]
    order: list[int]
    share: int
    output: Any = None


class InProcessServices:
    """As harness.training.verl.parts.Services; `gradients`: of the newest optimiser step, before clipping."""

    workers = 1
    global_steps = 0

    def __init__(self, config: Any, reference: Path) -> None:
        given = OmegaConf.create(OmegaConf.to_container(config.actor_rollout_ref, resolve=True))
        self.temperature = float(given.rollout.temperature)
        self.worker = HarnessWorker(config=given, role="actor")
        self.worker.init_model()
        other = OmegaConf.create(OmegaConf.to_container(given))
        other.model.path = str(reference)
        self.reference = HarnessWorker(config=other, role="ref")
        self.reference.init_model()
        self.eos = 0
        self.gradients: dict[str, torch.Tensor] = {}
        engine = self.worker.actor.engine
        step = engine.optimizer_step

        def noting() -> Any:
            self.gradients = {name: _full(p.grad).clone() for name, p in engine.module.named_parameters()}
            return step()

        engine.optimizer_step = noting

    def store(self, samples: Sequence[Sample], order: Sequence[int], partition: str, share: int = 1) -> Stored:
        padding = Sample([self.eos], [self.eos], [0], [0.0])
        return Stored([_fields(samples[i] if i != PAD else padding) for i in order], list(order), share)

    def clear(self, stored: Stored) -> None:
        stored.rows = []

    def score(self, stored: Stored, source: str, entropy: bool = False) -> list[torch.Tensor]:
        data = self._data(stored, calculate_entropy=entropy, compute_loss=False)
        if source == "teacher":
            stored.output = self.worker.compute_teacher_log_prob(data)
        elif source == "reference":
            stored.output = self.reference.compute_ref_log_prob(data)
        else:
            stored.output = self.worker.compute_log_prob(data)
        return self._read(stored, "log_probs")

    def entropies(self, stored: Stored) -> list[torch.Tensor]:
        return self._read(stored, "entropy")

    def score_samples(self, samples: Sequence[Sample], source: str, partition: str) -> list[torch.Tensor]:
        return self.score(self.store(samples, range(len(samples)), partition), source)

    def update(
        self,
        stored: Stored,
        fields: Sequence[Mapping[str, torch.Tensor]],
        padding: Mapping[str, torch.Tensor],
        loss: Any,
        lr: float,
    ) -> dict[str, list[float]]:
        for row, index in zip(stored.rows, stored.order, strict=True):
            row.update(fields[index] if index != PAD else padding)
        self.worker.set_loss_fn(loss)
        data = self._data(
            stored,
            calculate_entropy=loss.needs_entropy,
            mini_batch_size=stored.share,
            global_batch_size=stored.share,
            epochs=1,
            seed=0,
            dataloader_kwargs={"shuffle": False},
            harness_lr=lr,
        )
        output = self.worker.update_actor(data)
        return {name: _numbers(values) for name, values in tu.get(output, "metrics").items()}

    def load_teacher(self, folder: Path | None) -> None:
        self.worker.load_teacher(str(folder) if folder is not None else None)

    def release_teacher(self) -> None:
        self.worker.release_teacher()

    def follow(self, decay: float) -> None:
        self.worker.follow(decay)

    def export(self, folder: Path, dtype: str) -> None:
        self.worker.export(str(folder), dtype)

    def weights(self, teacher: bool = False) -> dict[str, torch.Tensor]:
        engine = (self.worker.teacher if teacher else self.worker.actor).engine
        return {name: _full(p).detach().clone() for name, p in engine.module.named_parameters()}

    def set_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """The initial weights again, and an optimiser that has seen nothing."""
        engine = self.worker.actor.engine
        with torch.no_grad():
            for name, parameter in engine.module.named_parameters():
                local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                local.copy_(weights[name])
        engine.optimizer.state.clear()

    def _data(self, stored: Stored, **about: Any) -> Any:
        data = list_of_dict_to_tensordict([dict(row) for row in stored.rows])
        for name, value in list(data.items()):
            if isinstance(value, torch.Tensor) and not value.is_nested:  # rows of equal length: nested all the same
                data[name] = torch.nested.as_nested_tensor(list(value.unbind()), layout=torch.jagged)
        lengths = [len(row["input_ids"]) for row in stored.rows]
        tu.assign_non_tensor(data, temperature=self.temperature, global_token_num=tu.NonTensorData(lengths), **about)
        return data

    def _read(self, stored: Stored, name: str) -> list[torch.Tensor]:
        mask = torch.nested.as_nested_tensor([row["response_mask"] for row in stored.rows], layout=torch.jagged)
        found = response_from_nested(stored.output[name], mask).unbind()
        by_index = {i: values for i, values in zip(stored.order, found, strict=True) if i != PAD}
        return [by_index[i].float() for i in range(len(by_index))]


def _full(tensor: Any) -> torch.Tensor:
    whole: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


assert os.environ.get("VERL_PLATFORM") == "cpu", "set the variables of `environment` before importing verl"
