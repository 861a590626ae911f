"""verl's own process: `python -m harness.training.verl.driver RUN_DIR`, started by harness.training.verl.engine.

Starts Ray, verl's trainer and its agent loops, conducts the run, and writes how it ended. SIGTERM asks it to stop at a
step boundary; if the process that started it is gone, it ends at once: somebody else may work on the run by then.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness.config import RunConfig
from harness.record import RunDirectory
from harness.redaction import redact
from harness.states import COMPLETE, Interrupted
from harness.training.verl.attention import memory_note, refuse_spread_rows
from harness.training.verl.engine import AGENTS, FOLDER, OUTCOME, SCRATCH
from harness.training.verl.outcome import Outcome, outcome_of
from harness.worker import StopRequest, limit_threads, start_logging

ORPHAN = 70  # exit status of a process whose parent is gone

_log = logging.getLogger("harness.training.verl")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 whenever the outcome is written."""
    (path,) = sys.argv[1:] if arguments is None else arguments
    run = RunDirectory(Path(path))
    _die_with_parent()
    stop = StopRequest()
    stop.install()
    config = run.load_config()
    limit_threads(config.runtime.threads)
    with start_logging(run.log_path, config.runtime.log_level):
        try:
            _conduct(run, config, stop)
            outcome = Outcome(COMPLETE)
        except BaseException as error:  # also SystemExit of a library: the run must know
            if not isinstance(error, (Interrupted, KeyboardInterrupt)):
                _log.exception("the run failed in verl's process")
            outcome = outcome_of(error)
            outcome = Outcome(outcome.outcome, redact(outcome.error or ""), outcome.failure_class)
        run.spool.close()
        outcome.write(run.path / FOLDER / OUTCOME)
        logging.shutdown()
    os._exit(0)  # Ray's own ending takes seconds, and its processes are ended by whoever started this one


def _die_with_parent() -> None:
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(ORPHAN)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _conduct(run: RunDirectory, config: RunConfig, stop: StopRequest) -> None:
    refuse_spread_rows(config)
    if note := memory_note(config):
        _log.warning("%s", note)
    given = verl_config(run, config)
    _start_ray(given, stop)
    if stop():
        raise Interrupted(f"stopped before it began: {stop.reason}")

    import transfer_queue as tq
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ

    from harness.training.verl.trainer import HarnessTrainer

    trainer = HarnessTrainer(given, lambda trainer: _session(run, config, trainer, stop))
    with ThreadPoolExecutor(1) as side:
        queue = side.submit(tq.init, given.transfer_queue)  # its processes start while the workers do
        trainer.init()
        queue.result()
    manager = AgentLoopManagerTQ.create(
        config=given, llm_client=trainer.get_llm_client(), teacher_client=None, reward_loop_worker_handles=None
    )
    _log.info("verl stands: %d data-parallel workers", trainer.workers)
    trainer.fit(manager)


def _session(run: RunDirectory, config: RunConfig, trainer: Any, stop: StopRequest) -> None:
    import transformers

    from harness.parts import analysis_of
    from harness.run import check_weights
    from harness.training.verl.session import VerlSession, verl_parts

    model = transformers.AutoConfig.from_pretrained(trainer.config.actor_rollout_ref.model.path).get_text_config()
    # What a teacher reads must not depend on how scoring is spread over forwards (verl.score_micro_batch).
    positions = int(model.max_position_embeddings)
    with verl_parts(config, trainer.tokenizer, positions) as parts, analysis_of(config, parts, run.path) as analysis:
        check_weights(run, config)
        session = VerlSession(run, config, parts, analysis, stop, trainer)
        session.train()
        session.evaluate()


def verl_config(run: RunDirectory, config: RunConfig) -> Any:
    """verl's whole configuration of this attempt, resolved. Raises ConfigError."""
    from omegaconf import OmegaConf, open_dict

    from harness.training.verl.agent_loop import LOOPS, loops_file
    from harness.training.verl.config import compose

    given = compose(config, run.path)
    loops = loops_file(run.path / FOLDER / AGENTS)
    with open_dict(given):
        rollout = given.actor_rollout_ref.rollout
        rollout.agent.agent_loop_config_path = str(loops)
        rollout.agent.default_agent_loop = LOOPS[config.training.context].context
        given.reward.num_workers = 0  # episodes come with their outcome
        given.transfer_queue.enable = True
        given.harness = {**given.get("harness", {}), "run_dir": str(run.path)}
    OmegaConf.resolve(given)
    return given


def verl_variables(given: Any) -> dict[str, str]:
    """Environment variables that verl's own program gives to Ray's processes (verl.trainer.main_ppo.run_ppo): without
    them vLLM reads compiled code from a cache that several processes write, and determinism that was asked for ends
    where the workers begin."""
    from verl.trainer.constants_ppo import PPO_RAY_RUNTIME_ENV, get_ppo_ray_runtime_env

    rollout = given.actor_rollout_ref.rollout
    if rollout.full_determinism:
        strict = {"VERL_FULL_DETERMINISM": "1", "VLLM_BATCH_INVARIANT": "1", "PYTHONHASHSEED": str(rollout.seed)}
        os.environ.update(strict)
    missing = get_ppo_ray_runtime_env(given)["env_vars"]  # without those that are set here already
    kept = {name: os.environ[name] for name in PPO_RAY_RUNTIME_ENV["env_vars"] if name in os.environ}
    return {**kept, **{name: str(value) for name, value in missing.items()}}


def _start_ray(given: Any, stop: StopRequest) -> None:
    """A Ray of this run's own, on one machine; on several the one that is there already (RAY_ADDRESS)."""
    import ray

    options: dict[str, Any] = dict(given.ray_kwargs.get("ray_init", {}) or {})
    options.pop("runtime_env", None)
    wanted = verl_variables(given)
    os.environ.update(wanted)  # which Ray's processes on this machine inherit
    if given.trainer.nnodes == 1:
        scratch = os.environ.get(SCRATCH)
        options |= {"address": "local", "include_dashboard": False, "log_to_driver": True}
        options["_node_ip_address"] = "127.0.0.1"  # nobody else has business with it
        options["_system_config"] = {"prestart_worker_first_driver": False}  # a core's worth of idle processes
        if scratch:
            options["_temp_dir"] = scratch
    else:
        names = [name for name in os.environ if name.startswith(("VERL_", "HF_", "VLLM_", "NCCL_"))]
        names += ["PYTHONPATH", "TRANSFER_QUEUE_ENABLE", "TOKENIZERS_PARALLELISM", *wanted]
        options["runtime_env"] = {"env_vars": {name: os.environ[name] for name in sorted(names) if name in os.environ}}
        options |= {"address": os.environ.get("RAY_ADDRESS", "auto"), "num_cpus": None}
    ray.init(**{name: value for name, value in options.items() if value is not None})
    stop.install()  # Ray puts a handler of its own over SIGTERM


if __name__ == "__main__":
    sys.exit(main())
