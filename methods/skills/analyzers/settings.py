"""Settings of the analyzers, and which of them fit together. Comments with unit and source: sweeps/analyzer/*.yaml."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from core.names import require_known

FORMATS = ("json_schema", "json_object", "none")
LIMIT_FIELDS = ("max_completion_tokens", "max_tokens")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")  # upper case: most keys of services are no such name
_RANDOM = re.compile(r"(?=[A-Z]*[0-9])(?=[0-9]*[A-Z])[A-Z0-9]{16,}")  # a long word with letters and digits: no name
_ADDRESS = re.compile(r"[A-Za-z]+://|[\w.-]+:\d+|[\w-]+(\.[\w-]+)+")  # what an address may begin with


class SettingsError(ValueError):
    """The analyzer cannot work with its settings, here and now."""

    failure_class = "config"


@dataclass
class AnalyzerConfig:
    """Hydra group `analyzer`. `rules` uses the name alone."""

    name: str = "rules"
    # what is asked of a model: part of a run's identity
    model: str | None = None
    temperature: float = 0.4
    max_output_tokens: int = 4096
    response_format: str = "json_schema"  # json_schema | json_object | none
    observation_chars: int = 4000
    skill_chars: int = 1200
    # how it is reached, what it costs, where answers lie
    base_url: str = "http://127.0.0.1:8000/v1"
    api_key_env: str | None = "OPENAI_API_KEY"
    limit_field: str = "max_completion_tokens"  # max_completion_tokens | max_tokens
    connect_timeout: float = 10.0
    read_timeout: float = 180.0
    retries: int = 4
    retry_delay: float = 1.0
    retry_delay_max: float = 30.0
    retry_after_max: float = 120.0
    concurrency: int = 16
    price_prompt: float = 0.0
    price_completion: float = 0.0
    cache: str | None = "cache/analyzer"
    record: str | None = None
    answers: str | None = None


def check_remote(config: AnalyzerConfig) -> None:
    """Raise ValueError for settings that no endpoint can be asked with. Never shows what might be a secret."""
    check_no_secret(config)
    if not config.model:
        raise ValueError(
            f"analyzer.model={config.model!r}: analyzer=openai needs the name of the model, as the endpoint knows it; "
            "add analyzer.model=NAME"
        )
    require_known("analyzer.response_format", config.response_format, FORMATS)
    require_known("analyzer.limit_field", config.limit_field, LIMIT_FIELDS)
    _check_url(config.base_url)


def check_no_secret(config: AnalyzerConfig) -> None:
    """Raise ValueError, without repeating it, for what may be a key in settings that records keep; for every analyzer,
    used or not."""
    name = config.api_key_env
    if name is not None and not (_VARIABLE.fullmatch(name) and not any(map(_RANDOM.fullmatch, name.split("_")))):
        raise ValueError(
            "analyzer.api_key_env must be the NAME of an environment variable (upper-case words, digits, underscores), "
            "such as OPENAI_API_KEY; what was given is none and is not repeated here, in case it is the key itself. "
            "Endpoints without keys take analyzer.api_key_env=null"
        )
    if "@" in config.base_url:
        raise ValueError(
            "analyzer.base_url must not hold a user name or password (it has an @): records keep it. Put the key into "
            "an environment variable and its name into analyzer.api_key_env"
        )
    if "?" in config.base_url or "#" in config.base_url:
        raise ValueError(
            "analyzer.base_url must end with its path: no ? or #, where a key could stand, and records keep it; "
            "/chat/completions is added. It is not repeated here"
        )


def check_replay(config: AnalyzerConfig) -> None:
    """Raise ValueError if there is no file of recorded answers."""
    if not config.answers:
        raise ValueError(
            "analyzer.answers=null: analyzer=replay needs the file of recorded answers; add analyzer.answers=FILE "
            "(analyzer.record=FILE of an earlier run writes one)"
        )
    if not Path(config.answers).is_file():
        raise ValueError(f"analyzer.answers={config.answers}: there is no such file; analyzer.record=FILE writes one")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, an unclosed bracket
        named = False
    if not named:
        shown = repr(url) if _ADDRESS.match(url) else "(not repeated here, in case it is a key)"
        raise ValueError(f"analyzer.base_url={shown} is no http(s) address; it looks like http://127.0.0.1:8000/v1")
