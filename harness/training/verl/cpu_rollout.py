"""verl's two ends of the CPU server: the replica that starts it, and what pushes weights to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import ray
import torch
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica

from harness.training.verl.cpu_server import CpuServer

_NAME = "harness_cpu_server"


class CpuReplica(RolloutReplica):  # type: ignore[misc]
    """One server per training worker; it asks Ray for no core of its own."""

    async def launch_servers(self) -> None:
        model = omega_conf_to_dataclass(self.model_config)
        name = f"{_NAME}_{self.replica_rank}{self.name_suffix}"
        actor = ray.remote(CpuServer).options(name=name, num_cpus=0, max_concurrency=1000)
        self.servers = [actor.remote(model.local_path, model.tokenizer.eos_token_id)]
        self._server_handle, self._server_address = self.servers[0], name
        await self.servers[0].set_global_steps.remote(None)


class CpuAdapter(BaseRollout):  # type: ignore[misc]
    """Lives in the training worker. Weights travel by value through Ray's object store."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        size = self.config.tensor_model_parallel_size * self.config.data_parallel_size
        rank = int(os.environ["RANK"])
        self.replica_rank = rank // size if replica_rank < 0 else replica_rank
        self.leads = rank % size == 0
        self._handle: Any = None

    async def resume(self, tags: list[str]) -> None:
        pass

    async def release(self) -> None:
        pass

    async def update_weights(
        self, weights: Iterator[tuple[str, torch.Tensor]], global_steps: int | None = None, **named: Any
    ) -> None:
        copies = {name: tensor.detach().float().cpu().clone() for name, tensor in weights}  # collective: on every rank
        if not self.leads:
            return
        if self._handle is None:
            self._handle = ray.get_actor(f"{_NAME}_{self.replica_rank}")
        await self._handle.load_weights.remote(copies)
        if global_steps is not None:
            await self._handle.set_global_steps.remote(global_steps)
