"""engine=vllm: every declared evaluation of a policy that is there already, at vLLM's speed. It trains nothing.

Records are those of every engine; the policy is a folder of transformers (of the hub, or a checkpoint that a run
exported) with a chat template.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import cast

from harness import backbones
from harness.config import RunConfig
from harness.parts import Analysis, Parts, parts_with
from harness.record import RunDirectory, declared_evaluations, planned_steps
from harness.run import Session, check_weights
from harness.states import COMPLETE, RUNNING
from harness.training.chat import ChatFormat
from harness.training.episode import Director
from harness.training.loop import rollout_settings
from harness.training.network import Network
from harness.training.rollout import Player
from harness.training.teachers import Teacher
from harness.training.vllm_local import VllmLocal, make_llm
from harness.training.vllm_player import Completer, VllmPlayer
from harness.training.vllm_server import VllmServer

_log = logging.getLogger(__name__)


def execute(run: RunDirectory, should_stop: Callable[[], bool]) -> None:
    """As harness.run.execute."""
    config = run.load_config()
    run.write_state(state=RUNNING, planned_steps=planned_steps(config), declared=declared_evaluations(config))
    with _parts(config) as parts, completer_of(config) as completer:
        check_weights(run, config)
        if isinstance(completer, VllmServer) and not completer.verified:
            _log.warning("%s does not say where the weights of %s are from", completer.url, completer.model)
            run.spool.event("weights_not_verified", server=completer.url, model=completer.model)
        session = _Evaluation(run, config, parts, Analysis(), should_stop)
        session.completer = completer
        session.train()  # nothing: the method does not train
        session.evaluate()
    run.write_state(state=COMPLETE)


class _Evaluation(Session):
    completer: Completer

    def _player(self, teacher: Teacher | None = None, config: RunConfig | None = None) -> Player:
        parts = self.parts
        director = Director(parts.chat, parts.prompter, rollout_settings(config or self.config))
        return VllmPlayer(self.completer, director, parts.pool)


@contextlib.contextmanager
def completer_of(config: RunConfig) -> Iterator[Completer]:
    """The server that vllm.base_url names, or vLLM in this process."""
    source = str(backbones.ensure(config.backbone, config.env))
    made = VllmServer(config.vllm, source) if config.vllm.base_url is not None else VllmLocal(make_llm(config, source))
    with contextlib.closing(made):
        yield made


@contextlib.contextmanager
def _parts(config: RunConfig) -> Iterator[Parts]:
    """As harness.parts.parts_of, without the weights: vLLM has them."""
    from transformers import AutoTokenizer

    def policy() -> tuple[Network, ChatFormat]:
        source = str(backbones.ensure(config.backbone, config.env))
        tokenizer = AutoTokenizer.from_pretrained(source, revision=config.backbone.revision or "main")
        return cast(Network, None), ChatFormat(tokenizer)  # only what trains asks for the network

    with parts_with(config, policy, config.runtime.env_workers) as parts:
        yield parts
