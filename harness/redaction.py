"""Keeps secrets out of records: they live in environment variables and must not reach configs, logs or trackers."""

from __future__ import annotations

import logging
import os
import re

HIDDEN = "***"
# Names of environment variables and of `key=value` arguments whose values are secret.
_SECRET_NAME = re.compile(r"(key|token|secret|password|passwd|passphrase|credential|auth)s?$", re.IGNORECASE)
_FIELD_WORD = re.compile(r"(?:^|[._-])(?:pad|eos|bos|stop|end|per)_token$")
_ASSIGNMENT = re.compile(r"^(?P<name>[-+~]*[\w.@/]+)=(?P<value>.+)$", re.DOTALL)
_URL_PASSWORD = re.compile(r"(?P<head>[a-zA-Z][\w+.-]*://[^\s/:@]*:)(?P<password>[^\s@/]+)@")
_MIN_LENGTH = 8  # shorter values ("1", "true", "none") would blot out ordinary text


def is_secret_name(name: str) -> bool:
    """Whether a variable or key of this name holds a secret: `OPENAI_API_KEY`, `analyzer.api_token`, `PGPASSWORD`."""
    lowered = name.lower()
    if lowered.endswith("tokens") or _FIELD_WORD.search(lowered):
        return False  # max_prompt_tokens, pad_token: words of the field, not credentials
    return _SECRET_NAME.search(lowered) is not None


def secret_values() -> list[str]:
    """Values of the environment variables with secret names, longest first."""
    values = {value for name, value in os.environ.items() if is_secret_name(name) and len(value) >= _MIN_LENGTH}
    return sorted(values, key=lambda value: (-len(value), value))


def redact(text: str) -> str:
    """`text` with secret values and passwords of URLs replaced by `***`."""
    for value in secret_values():
        text = text.replace(value, HIDDEN)
    return _URL_PASSWORD.sub(lambda match: f"{match['head']}{HIDDEN}@", text)


def redact_arguments(arguments: list[str]) -> list[str]:
    """A command line without secrets: `api_key=abc` becomes `api_key=***`, and so does the word after `--api-key`."""
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        assignment = _ASSIGNMENT.match(argument)
        if hide_next:
            shown.append(HIDDEN)
            hide_next = False
        elif assignment and is_secret_name(assignment["name"]):
            shown.append(f"{assignment['name']}={HIDDEN}")
        else:
            hide_next = argument.startswith("--") and "=" not in argument and is_secret_name(argument)
            shown.append(redact(argument))
    return shown


def find_secret(text: str) -> str | None:
    """Name of the environment variable whose secret value is in `text`, or `a password in a URL`, or None."""
    for name, value in sorted(os.environ.items()):
        if is_secret_name(name) and len(value) >= _MIN_LENGTH and value in text:
            return name
    match = _URL_PASSWORD.search(text)
    return "a password in a URL" if match and match["password"] != HIDDEN else None


class RedactingFormatter(logging.Formatter):
    """Log formatter whose output, tracebacks included, passes through `redact`."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))
