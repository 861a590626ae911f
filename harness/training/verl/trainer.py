"""verl's synchronous trainer as a set of services: play episodes, score rows, update, save, restore, export.

The course of a run is not here: `fit` hands this object to whoever conducts (harness.training.verl.session), which
calls our methods. What verl's own loop would do with data loaders, rewards, advantages and logging is left out.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
import torch
import transfer_queue as tq
from omegaconf import open_dict
from torch import Tensor
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer
from verl.utils import tensordict_utils as tu
from verl.utils.tensordict_utils import list_of_dict_to_tensordict
from verl.workers.utils.padding import response_from_nested

from harness.training.verl.loss import StepLoss
from harness.training.verl.requests import Wanted
from harness.training.verl.rows import PAD, Sample
from harness.training.verl.settings import TRAINER_MODE
from harness.training.verl.sizes import scoring_tokens
from harness.training.verl.worker import LEARNING_RATE, POLICY, TEACHER, HarnessWorker

REFERENCE = "reference"
POLL_SECONDS = 0.2
LOOK_SECONDS = 10.0  # between looks at whether the agent loops' processes live


@dataclass(frozen=True)
class Answer:
    """What an agent loop sent for one episode. text, about: see harness.training.verl.agent_loop."""

    samples: list[Sample]
    text: str
    about: Mapping[str, Any]


@dataclass
class Stored:
    """Rows in a partition of the queue, in the order in which they go to the workers. order: indices of the caller's
    rows, or PAD; share: rows of each worker's part of a mini-batch."""

    meta: Any
    order: list[int]
    share: int


@register_trainer(TRAINER_MODE)
class HarnessTrainer(PPOTrainerSync):  # type: ignore[misc]
    """conduct: what `fit` calls once everything stands."""

    def __init__(self, config: Any, conduct: Callable[[HarnessTrainer], None]) -> None:
        with open_dict(config):  # verl asks for this word where it means a synchronous trainer
            config.trainer.v1.trainer_mode = "sync"
        self._conduct = conduct
        self._serving: str | None = None  # whose weights the samplers hold; None: they sleep
        self.has_teacher = False
        super().__init__(config)

    # ------------------------------------------------------------------------------------------- what verl would do
    def _init_dataloader(self) -> None:
        """The tasks of a step are the conductor's business."""
        self.train_dataset = self.val_dataset = self.train_dataloader = self.val_dataloader = None
        self.steps_per_epoch = 1
        self.total_training_steps = int(self.config.trainer.total_training_steps)
        with open_dict(self.config):
            self.config.actor_rollout_ref.actor.optim.total_training_steps = max(1, self.total_training_steps)

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in self.role_worker_mapping:
            self.role_worker_mapping[role] = ray.remote(HarnessWorker)

    def _load_checkpoint(self) -> None:
        self.global_steps = 0

    def on_init_end(self) -> None:
        """Weights go to the samplers when they are first asked."""

    def fit(self, agent_loop_manager: Any) -> None:
        self.agent_loop_manager = agent_loop_manager
        self._conduct(self)

    @property
    def temperature(self) -> float:
        return float(self.config.actor_rollout_ref.rollout.temperature)

    @property
    def workers(self) -> int:
        """Data-parallel groups of workers."""
        group = self.actor_rollout_wg
        if "actor" not in group._dispatch_info:
            group._dispatch_info["actor"] = group._query_dispatch_info("actor")
        return int(max(group._dispatch_info["actor"])) + 1

    # ------------------------------------------------------------------------------------------------------- playing
    def serve(self, source: str) -> None:
        """Have the samplers hold the weights of POLICY or TEACHER, awake."""
        if self._serving == source:
            return
        self.rest()
        self.actor_rollout_wg.serve(source)
        self.checkpoint_manager.update_weights(self.global_steps)
        self._serving = source

    def rest(self) -> None:
        """Have the samplers sleep: their memory is the trainer's now, and their weights are forgotten."""
        if self._serving is not None:
            self.checkpoint_manager.sleep_replicas()
            self._serving = None

    def play(
        self, wanted: Sequence[Wanted], loop: str, source: str = POLICY, training: bool = True
    ) -> list[Answer | None]:
        """Episodes in order; None where a loop ended without an answer. loop: per_step | growing."""
        self.serve(source)
        partition = "train" if training else "val"
        uids = [uuid4().hex for _ in wanted]
        batch = tu.get_tensordict(
            {
                "uid": list(uids),
                "episode": [one.to_text() for one in wanted],
                "index": torch.arange(len(wanted)),
                "agent_name": [loop] * len(wanted),
                "__rollout_n__": [1] * len(wanted),
            }
        )
        tu.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        tu.assign_non_tensor_data(batch, "validate", not training)
        tags = [{"is_prompt": True, "status": "pending", "global_steps": self.global_steps} for _ in uids]
        tq.kv_batch_put(keys=uids, partition_id=partition, tags=tags)
        self.agent_loop_manager.generate_sequences(batch)
        self._wait(uids, partition)
        return self._collect(uids, partition)

    def _wait(self, uids: Sequence[str], partition: str) -> None:
        """Until every episode has ended. Raises what Ray says if a process of the agent loops is gone."""
        looked = time.monotonic()
        while True:
            tags = (tq.kv_list(partition) or {}).get(partition, {})
            if all(tags.get(uid, {}).get("status") in ("finished", "failure") for uid in uids):
                return
            time.sleep(POLL_SECONDS)
            if time.monotonic() - looked > LOOK_SECONDS:
                looked = time.monotonic()
                asked = [worker.__ray_ready__.remote() for worker in self.agent_loop_manager.agent_loop_workers]
                ready, _ = ray.wait(asked, num_returns=len(asked), timeout=LOOK_SECONDS)
                ray.get(ready)

    def _collect(self, uids: Sequence[str], partition: str) -> list[Answer | None]:
        tags = tq.kv_list(partition)[partition]
        keys_of: dict[str, list[str]] = {uid: [] for uid in uids}
        for key, tag in tags.items():
            if not tag.get("is_prompt", False):
                keys_of[key.split("_")[0]].append(key)
        for keys in keys_of.values():
            keys.sort(key=lambda key: int(key.rsplit("_", 1)[1]))
        flat = [key for uid in uids for key in keys_of[uid]]
        answers: list[Answer | None] = []
        if flat:
            fields = ["prompts", "responses", "response_mask", "rollout_log_probs", "extra_fields"]
            data = tq.kv_batch_get(keys=flat, partition_id=partition, select_fields=fields)
            rows = iter(zip(*(_rows(data[name]) for name in fields), strict=True))
            for uid in uids:
                answers.append(_answer([next(rows) for _ in keys_of[uid]]))
        else:
            answers = [None] * len(uids)
        tq.kv_clear(keys=[*uids, *flat], partition_id=partition)
        return answers

    # ------------------------------------------------------------------------------------------------ rows and scores
    def store(self, samples: Sequence[Sample], order: Sequence[int], partition: str, share: int = 1) -> Stored:
        """Put rows into the queue. order: indices of samples, or PAD for a row that nothing is learnt from."""
        self.rest()
        eos = int(self.tokenizer.eos_token_id)
        padding = Sample([eos], [eos], [0], [0.0])
        rows = [_fields(samples[index] if index != PAD else padding) for index in order]
        keys = [f"{uuid4().hex}_0_0" for _ in rows]
        tags = [{"seq_len": len(row["input_ids"]), "is_padding": i == PAD} for i, row in zip(order, rows, strict=True)]
        tq.kv_batch_put(keys=keys, partition_id=partition, fields=list_of_dict_to_tensordict(rows), tags=tags)
        return Stored(KVBatchMeta(partition_id=partition, keys=keys, tags=tags), list(order), share)

    def clear(self, stored: Stored) -> None:
        tq.kv_clear(keys=stored.meta.keys, partition_id=stored.meta.partition_id)

    def score(self, stored: Stored, source: str, entropy: bool = False) -> list[Tensor]:
        """Log-probs [response tokens] of the stored rows, by the caller's index. source: POLICY, REFERENCE, TEACHER;
        entropy: whether `entropies` can be asked for afterwards."""
        meta, configured = stored.meta, self.config.actor_rollout_ref
        budget = int(configured.rollout.log_prob_max_token_len_per_gpu)
        shared = int(configured.actor.ulysses_sequence_parallel_size)
        meta.extra_info = {
            "calculate_entropy": entropy,
            "compute_loss": False,
            "temperature": self.temperature,
            "max_token_len_per_gpu": scoring_tokens(budget, max(tag["seq_len"] for tag in meta.tags), shared),
        }
        if source == REFERENCE:
            self.ref_policy_wg.compute_ref_log_prob(meta)
        elif source == TEACHER:
            self.actor_rollout_wg.compute_teacher_log_prob(meta)
        else:
            self.actor_rollout_wg.compute_log_prob(meta)
        return self._read(stored, "log_probs")

    def entropies(self, stored: Stored) -> list[Tensor]:
        """Entropies [response tokens] in nats of the distributions that the last scoring saw."""
        return self._read(stored, "entropy")

    @staticmethod
    def _read(stored: Stored, name: str) -> list[Tensor]:
        meta = stored.meta
        data = tq.kv_batch_get(keys=meta.keys, partition_id=meta.partition_id, select_fields=[name, "response_mask"])
        found = response_from_nested(data[name], data["response_mask"]).unbind()
        by_index = {index: values for index, values in zip(stored.order, found, strict=True) if index != PAD}
        return [by_index[index].float().cpu() for index in range(len(by_index))]

    def score_samples(self, samples: Sequence[Sample], source: str, partition: str) -> list[Tensor]:
        """As `score`, of rows that are needed only once."""
        missing = -len(samples) % self.workers
        stored = self.store(samples, [*range(len(samples)), *[PAD] * missing], partition)
        try:
            return self.score(stored, source)
        finally:
            self.clear(stored)

    # ------------------------------------------------------------------------------------------------------- learning
    def update(
        self,
        stored: Stored,
        fields: Sequence[Mapping[str, Tensor]],
        padding: Mapping[str, Tensor],
        loss: StepLoss,
        lr: float,
    ) -> dict[str, list[float]]:
        """One pass over the stored rows in mini-batches. Returns what the loss and the optimiser say per mini-batch."""
        self.rest()
        meta = stored.meta
        rows = [dict(fields[index] if index != PAD else padding) for index in stored.order]
        tq.kv_batch_put(
            keys=meta.keys, partition_id=meta.partition_id, fields=list_of_dict_to_tensordict(rows), tags=meta.tags
        )
        self.actor_rollout_wg.set_loss_fn(loss)
        size = stored.share * self.workers
        meta.extra_info = {
            "calculate_entropy": loss.needs_entropy,
            "global_batch_size": size,
            "mini_batch_size": size,
            "epochs": 1,
            "seed": 0,
            "dataloader_kwargs": {"shuffle": False},
            "temperature": self.temperature,
            LEARNING_RATE: lr,
        }
        output = self.actor_rollout_wg.update_actor(meta)
        metrics: dict[str, Any] = output["metrics"]
        return {name: _numbers(values) for name, values in metrics.items()}

    # ----------------------------------------------------------------------------------------------- sets of weights
    def load_teacher(self, folder: Path | None) -> None:
        self.rest()
        self.actor_rollout_wg.load_teacher(str(folder) if folder is not None else None)
        self.has_teacher = True

    def release_teacher(self) -> None:
        if self.has_teacher:
            self.actor_rollout_wg.release_teacher()
            self.has_teacher = False

    def follow(self, decay: float) -> None:
        self.actor_rollout_wg.follow(decay)

    def save(self, folder: Path, with_teacher: bool) -> None:
        """Shards of weights, optimiser and random generators, as verl writes them."""
        self.rest()
        self.actor_rollout_wg.save_checkpoint(str(folder / "actor"), None, self.global_steps, max_ckpt_to_keep=None)
        if with_teacher:
            self.actor_rollout_wg.save_teacher(str(folder / "teacher"))

    def restore(self, folder: Path, with_teacher: bool) -> None:
        self.actor_rollout_wg.load_checkpoint(local_path=str(folder / "actor"), del_local_after_load=False)
        if with_teacher:
            self.actor_rollout_wg.restore_teacher(str(folder / "teacher"))

    def export(self, folder: Path, dtype: str) -> None:
        """A plain transformers folder, made in one step."""
        self.rest()
        scratch = folder.with_name(f".{folder.name}.{uuid4().hex}.tmp")
        self.actor_rollout_wg.export(str(scratch), dtype)
        shutil.rmtree(folder, ignore_errors=True)
        scratch.rename(folder)


# ------------------------------------------------------------------------------------------------------------- helpers
def _fields(sample: Sample) -> dict[str, Any]:
    """What verl's engine reads of a row."""
    prompts, responses = torch.tensor(sample.prompt), torch.tensor(sample.response)
    mask, ids = torch.tensor(sample.mask), torch.cat([prompts, responses])
    return {
        "prompts": prompts,
        "responses": responses,
        "response_mask": mask,
        "loss_mask": mask,
        "input_ids": ids,
        "position_ids": torch.arange(len(ids)),
        "multi_modal_inputs": {},
    }


def _rows(field: Any) -> list[Any]:
    """Rows of one field of the queue's answer, whatever it came in."""
    if isinstance(field, torch.Tensor):
        return list(field.unbind())
    return [getattr(row, "data", row) for row in field]


def _answer(rows: Sequence[tuple[Any, ...]]) -> Answer | None:
    if not rows:
        return None
    samples = [Sample(p.tolist(), r.tolist(), m.tolist(), s.tolist()) for p, r, m, s, _ in rows]
    extra = rows[0][4]
    return Answer(samples, extra["harness"], json.loads(extra["harness_about"]))


def _numbers(values: Any) -> list[float]:
    return [float(value) for value in (values if isinstance(values, (list, tuple)) else [values])]
