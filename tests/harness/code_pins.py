"""Digests of the files behind each version constant that a run's fingerprint holds, kept in code_pins.json.

    python tests/harness/code_pins.py      # accept the code as it is now

Comments, docstrings, formatting and the texts of deviations are left out of a digest: they change no number. Whoever
changes anything else decides whether a run could get another result by it. If so, raise the constant (earlier runs are
then other runs); if not, only accept the code as it is.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PINS = Path(__file__).with_suffix(".json")
REFRESH = "python tests/harness/code_pins.py"
_NOT_CODE = ("DEVIATIONS", "__all__")


@dataclass(frozen=True)
class Pinned:
    """constant: `module:attribute` of the version. files: what stands behind it, relative to the repository."""

    constant: str
    files: tuple[str, ...]

    def version(self) -> Any:
        module, _, attribute = self.constant.partition(":")
        return attrgetter(attribute)(importlib.import_module(module))


def _in(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" if "." in name else f"{folder}/{name}.py" for name in names.split())


_WORLDS = _in("envs/alfworld", "worlds facts data/facts.json")
_RULES = _in("envs/alfworld", "hindsight library tracker expert")
_BASE = _in("methods", "grpo gigpo signal")
_TEACHER = (*_BASE, *_in("methods", "teacher schedule"))
_AUXILIARY = (*_TEACHER, *_in("methods", "auxiliary"))

PINNED = (
    Pinned(
        "harness.training:ENGINE_VERSION",
        (
            *_in("harness/training", "batch chat forward generation loop losses network rollout scoring streams"),
            *_in("harness/training", "episode packing teachers truncation update"),
            *_in("harness", "run evaluation"),
            *_in("envs", "panels pool"),
        ),
    ),
    Pinned(
        "harness.training.verl:VERL_VERSION",
        (
            *_in("harness/training/verl", "agent_loop cpu_server loss parts requests rows session"),
            *_in("harness/training/verl", "attention settings sizes trainer worker"),
        ),
    ),
    Pinned("harness.training:VLLM_VERSION", _in("harness/training", "vllm_player vllm_server vllm_local")),
    Pinned("harness.backbones:WARMSTART_VERSION", _in("harness/backbones", "warmstart tokenizer")),
    Pinned("harness.backbones.fitness:GATE_VERSION", _in("harness/backbones", "gate")),
    Pinned("envs.alfworld.worlds:GENERATOR_VERSION", _WORLDS),
    Pinned("envs.alfworld.generated:CONTENT_VERSION", _in("envs/alfworld", "generated manifest validation knobs")),
    Pinned(
        "envs.alfworld.demos:DEMONSTRATIONS_VERSION",
        (*_in("envs/alfworld", "demos native prompts lexicon"), *_RULES, *_WORLDS),
    ),
    Pinned(
        "envs.alfworld.spec:PLAY_VERSION",
        _in("envs/alfworld", "native native_engine problem textworld_engine episode grammar translation layout"),
    ),
    Pinned("envs.alfworld.spec:PROMPTS_VERSION", _in("envs/alfworld", "prompts")),
    Pinned("envs.alfworld.spec:RULES_VERSION", (*_RULES, "envs/alfworld/facts.py", "envs/alfworld/data/facts.json")),
    Pinned("envs.webshop.versions:PLAY_VERSION", _in("envs/webshop", "shop pages environment reward fuzzy")),
    Pinned("envs.webshop.versions:PROMPTS_VERSION", _in("envs/webshop", "prompts reading")),
    Pinned("envs.webshop.versions:RULES_VERSION", _in("envs/webshop", "hindsight library expert reading")),
    Pinned("envs.webshop.versions:GENERATOR_VERSION", _in("envs/webshop", "generator words data/words.json")),
    Pinned("envs.webshop.versions:CATALOGUE_VERSION", _in("envs/webshop", "catalogue goals data jsonfiles")),
    Pinned("envs.search:INDEX_VERSION", _in("envs/search", "bm25 porter")),
    Pinned("envs.search:RANKERS_VERSION", _in("envs/search", "rankers tantivy_index pyserini_index")),
    Pinned("envs.webshop.versions:STORE_VERSION", _in("envs/webshop", "store")),
    Pinned(
        "envs.webshop.versions:DEMONSTRATIONS_VERSION",
        _in(
            "envs/webshop",
            "demos lexicon hindsight library expert reading prompts shop pages environment generator words",
        ),
    ),
    Pinned("envs.search_qa.questions:QUESTIONS_VERSION", _in("envs/search_qa", "questions corpus")),
    Pinned("envs.search_qa.tasks:SPLIT_VERSION", _in("envs/search_qa", "tasks")),
    Pinned(
        "envs.search_qa.spec:PLAY_VERSION", _in("envs/search_qa", "episode em naming data/words.json retrieval dense")
    ),
    Pinned("envs.search_qa.spec:PROMPTS_VERSION", _in("envs/search_qa", "prompts")),
    Pinned("envs.search_qa.spec:RULES_VERSION", _in("envs/search_qa", "hindsight expert")),
    Pinned(
        "envs.search_qa.demos:DEMONSTRATIONS_VERSION",
        _in("envs/search_qa", "demos expert hindsight episode naming data/words.json lexicon prompts"),
    ),
    Pinned("methods.skills.injection:INJECTION_VERSION", (*_in("methods/skills", "injection"), "core/skills.py")),
    Pinned("methods.skills.library:SELECTION_VERSION", _in("methods/skills", "library embedding")),
    Pinned("methods.skills.analyzer:RULES_ANALYZER_VERSION", _in("methods/skills", "analyzer")),
    Pinned("methods.skills.analyzer:ANSWERS_VERSION", _in("methods/skills/analyzers", "answer")),
    Pinned("methods.skills.analyzers.prompt:PROMPT_VERSION", _in("methods/skills/analyzers", "prompt")),
    Pinned("methods.vanilla:SPEC.version", _in("methods", "vanilla")),
    Pinned("methods.grpo:SPEC.version", _BASE),
    Pinned("methods.gigpo:SPEC.version", _BASE),
    Pinned("methods.skill_grpo:SPEC.version", (*_BASE, *_in("methods", "skill_grpo"))),
    Pinned("methods.rlsd:SPEC.version", (*_TEACHER, *_in("methods", "rlsd"))),
    Pinned("methods.opid:SPEC.version", (*_BASE, *_in("methods", "opid schedule skills/routing"))),
    Pinned("methods.opsd:SPEC.version", (*_AUXILIARY, *_in("methods", "opsd"))),
    Pinned("methods.opsd:SPEC_RELEASED.version", (*_AUXILIARY, *_in("methods", "opsd"))),
    Pinned("methods.grpo_opsd:SPEC.version", (*_AUXILIARY, *_in("methods", "grpo_opsd"))),
    Pinned("methods.grpo_opsd:SPEC_RELEASED.version", (*_AUXILIARY, *_in("methods", "grpo_opsd"))),
    Pinned("methods.skill_sd:SPEC.version", (*_AUXILIARY, *_in("methods", "skill_sd"))),
    Pinned("methods.sdar:SPEC.version", (*_AUXILIARY, *_in("methods", "sdar"))),
    Pinned("methods.sdar:SPEC_ENTROPY.version", (*_AUXILIARY, *_in("methods", "sdar"))),
    Pinned("methods.opd:SPEC.version", (*_AUXILIARY, *_in("methods", "opd"))),
    Pinned("methods.opd:SPEC_GRPO.version", (*_AUXILIARY, *_in("methods", "opd"))),
    Pinned("methods.retire_opd:SPEC.version", (*_AUXILIARY, *_in("methods", "opd retire_opd"))),
)

# Files of the same folders that no number depends on.
FREE = (
    *_in("harness/training", "__init__ checkpoint metrics notes trajectories"),  # versions; records (tests of resuming)
    *_in("harness/training", "broken clocks"),  # refuses; what time is told in
    *_in("harness/training", "vllm_engine vllm_settings"),  # which server, and when; the player has a version
    *_in("harness/training/verl", "__init__ cluster config cost driver engine outcome planning store"),  # how it is run
    *_in("harness/training/verl", "validation"),  # refuses
    *_in("harness/training/verl", "cpu cpu_rollout gateway"),  # verl on a CPU; who asks the pool with whom
    *_in(
        "harness/backbones", "__init__ __main__ content fitness kinds snapshots"
    ),  # where weights lie; the weights have digests
    *_in("envs/alfworld", "__init__ __main__ spec"),  # commands, registration
    *_in("envs/alfworld", "skills"),  # the library's texts have a digest of their own
    *_in("envs/alfworld", "ahead"),  # translations are made earlier, not otherwise
    *_in("envs/alfworld", "official fetch"),  # panels of the user's data are hashed by content
    *_in("envs/webshop", "__init__ __main__ spec skills knobs versions sources"),  # commands, registration, settings
    *_in("envs/webshop", "fetch nouns oracle"),  # data of the user's; solutions for tests
    *_in("envs/search_qa", "__init__ __main__ spec skills"),  # commands, registration, texts with a digest
    *_in("envs/search_qa", "official server settings sources"),  # user's data are hashed; where passages come from
    *_in("methods", "__init__ __main__ interface registry validation faithful skills/__init__"),  # what may be run
    *_in(
        "methods/skills/analyzers",
        "__init__ background cache endpoint failures ledger policy recording remote replay settings",
    ),  # how an answer is come by; its words and what is read in them have versions
)
FOLDERS = ("harness/training", "harness/backbones", "envs/alfworld", "envs/webshop", "envs/search_qa", "methods")


def digest(file: str) -> str:
    """16 hex digits over what a file says to the interpreter; of a file that is no Python, over its bytes."""
    data = (ROOT / file).read_bytes()
    if file.endswith(".py"):
        data = "".join(_normal(ast.parse(data))).encode()
    return hashlib.sha256(data).hexdigest()[:16]


def _normal(value: object) -> Iterator[str]:
    """A spelling of a syntax tree that does not depend on the version of Python."""
    if isinstance(value, ast.AST):
        yield f"({type(value).__name__}"
        for name, child in ast.iter_fields(value):
            if child not in (None, []) and name not in ("kind", "type_comment"):
                yield f" {name}="
                yield from _normal(_without_prose(child) if name == "body" else child)
        yield ")"
    elif isinstance(value, list):
        for item in value:
            yield from _normal(item)
            yield ","
    else:
        yield repr(value)


def _without_prose(body: object) -> object:
    if not isinstance(body, list):  # of a lambda or a conditional expression
        return body
    return [node for node in body if not _is_prose(node)]


def _is_prose(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return any(isinstance(target, ast.Name) and target.id in _NOT_CODE for target in targets)


def current() -> dict[str, dict[str, Any]]:
    return {p.constant: {"version": p.version(), "files": {f: digest(f) for f in p.files}} for p in PINNED}


def recorded() -> dict[str, dict[str, Any]]:
    content: dict[str, dict[str, Any]] = json.loads(PINS.read_text(encoding="utf-8"))
    return content


def complaints(now: dict[str, dict[str, Any]], pinned: dict[str, dict[str, Any]]) -> list[str]:
    """What to decide, one sentence per constant."""
    found = []
    for constant, state in now.items():
        before = pinned.get(constant, {"version": None, "files": {}})
        names = sorted({*state["files"], *before["files"]})
        changed = [f for f in names if state["files"].get(f) != before["files"].get(f)]
        if changed and state["version"] == before["version"]:
            found.append(
                f"{', '.join(changed)} changed under {constant} = {state['version']}: if a run could get another "
                f"result by it, raise {constant}; then, or if it could not, `{REFRESH}`"
            )
        elif changed or state["version"] != before["version"]:
            found.append(f"{constant} is {state['version']}, pinned was {before['version']}: `{REFRESH}`")
    found += [f"{constant} is pinned but no longer exists: `{REFRESH}`" for constant in pinned if constant not in now]
    return found


if __name__ == "__main__":
    for complaint in complaints(current(), recorded() if PINS.exists() else {}):
        print(complaint.partition(": ")[0])
    PINS.write_text(json.dumps(current(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
