"""verl's real trainer on a CPU, for tests and laptops: a platform, process groups over gloo, sampling by transformers.

verl imports this module in every process that the environment variables of `environment` reach; it must not import
anything of verl that is not loaded yet when `import verl` ends. Nothing here is fast: one prompt at a time is sampled.
"""

from __future__ import annotations

import contextlib
import os
import types
from collections.abc import Iterator
from typing import Any

import torch
import verl.utils.distributed as distributed
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

from harness.training.verl.settings import CPU_ROLLOUT

_NOTHING = (1 << 34, 1 << 34)  # bytes free and in all, of a device that has no memory of its own


def _device_module() -> types.ModuleType:
    """torch.cpu, with what verl calls on top of it."""
    module = types.ModuleType("harness_cpu_device")

    def nothing(*given: Any, **named: Any) -> None:
        return None

    for name in ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "set_device"):
        setattr(module, name, nothing)
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(module, name, lambda *given, **named: 0)
    own = {
        "mem_get_info": lambda *given: _NOTHING,
        "get_device_name": lambda *given: "CPU",
        "is_available": lambda: True,
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "get_rng_state": lambda *given: torch.get_rng_state(),
        "set_rng_state": lambda state, *given: torch.set_rng_state(state),
    }
    for name, value in own.items():
        setattr(module, name, value)
    module.__getattr__ = lambda name: getattr(torch.cpu, name)  # type: ignore[method-assign]
    return module


_DEVICE = _device_module()


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """A machine whose only device is its processor."""

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> types.ModuleType:
        return _DEVICE

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return os.environ.get("VERL_PLATFORM") == "cpu"

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"  # each worker on a CPU counts as one (ray_kwargs.ray_init.num_gpus)

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None


_original_group = distributed.initialize_global_process_group_ray


def _group(timeout_second: int | None = None, backend: str | None = None) -> Any:
    """verl would ask for `cpu:gloo,cpu:gloo`, which torch refuses: it names one device twice."""
    return _original_group(timeout_second=timeout_second, backend=backend or "cpu:gloo")


def _register_rollout() -> None:
    import verl.workers.rollout.base as base
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    def replica() -> Any:
        from harness.training.verl.cpu_rollout import CpuReplica

        return CpuReplica

    base._ROLLOUT_REGISTRY[(CPU_ROLLOUT, "async")] = "harness.training.verl.cpu_rollout.CpuAdapter"
    RolloutReplicaRegistry.register(CPU_ROLLOUT, replica)


def _no_pinned_memory() -> None:
    """verl offloads whatever only scores to pinned memory, which torch has only beside an accelerator."""
    from torch.distributed.fsdp import CPUOffloadPolicy

    original = CPUOffloadPolicy.__init__

    def plain(self: Any, *given: Any, **named: Any) -> None:
        original(self)
        object.__setattr__(self, "pin_memory", False)

    CPUOffloadPolicy.__init__ = plain  # type: ignore[method-assign]


if os.environ.get("VERL_PLATFORM") == "cpu":
    distributed.initialize_global_process_group_ray = _group
    _no_pinned_memory()
    _register_rollout()
