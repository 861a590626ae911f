"""One question to an OpenAI-compatible endpoint: POST <base_url>/chat/completions.

Tried again, with exponential waits and jitter, and never sooner than a Retry-After asks for: connections that fail or
break, time-outs, 429 and 5xx. Not tried again: other statuses, and answers that arrived but cannot be used. Everything
the endpoint says is data of unknown origin: bounded in size, and without the key before it reaches a message or a file.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import Any

import httpx

from methods.skills.analyzers.ledger import Ledger
from methods.skills.analyzers.prompt import answer_schema
from methods.skills.analyzers.settings import AnalyzerConfig, SettingsError, check_remote

MAX_RESPONSE_BYTES = 1_000_000  # an analysis has a few thousand; what goes beyond is not read
_QUOTED_CHARS = 300  # of what an endpoint says, in a message
_MAX_TOKENS = 10**9  # a count beyond is no count
_HIDDEN = "***"


class EndpointError(RuntimeError):
    """The endpoint cannot be used, or not now; the message names it and is safe to log."""


class UnusableResponseError(RuntimeError):
    """The endpoint answered, but not with a completion; the message says what came."""


class _UncountedError(UnusableResponseError):
    """Nor can be read what it cost."""


class _Again(Exception):  # noqa: N818  (a signal, not an error that anybody sees)
    """Try again, not before `wait` seconds have passed."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


@dataclass(frozen=True, slots=True)
class Completion:
    """text: the model's; cut_off: it reached the limit of output tokens."""

    text: str
    cut_off: bool


class Endpoint:
    """Asks one endpoint. Belongs to one event loop.

    Raises ValueError for settings that cannot work, among them a key variable that is not set.
    """

    def __init__(self, config: AnalyzerConfig, ledger: Ledger) -> None:
        check_remote(config)
        self._config, self._ledger = config, ledger
        self.url = config.base_url.rstrip("/") + "/chat/completions"
        try:
            self._loopback = _is_loopback(httpx.URL(self.url).host)
        except httpx.InvalidURL as error:
            raise ValueError(f"analyzer.base_url={config.base_url!r} is no address: {error}") from None
        self._key = _key(config.api_key_env)
        # They log a line per request, and what an endpoint sends back in headers: a key that is repeated there too.
        for name in ("httpx", "httpcore"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self._slots = asyncio.Semaphore(config.concurrency)
        self._random = random.Random()  # of its own: jitter must not move the run's generators
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def complete(self, prompt: str) -> Completion:
        """The answer to one user message. Raises EndpointError and UnusableResponseError."""
        config = self._config
        async with self._slots:
            for attempt in range(config.retries + 1):
                self._ledger.add(calls=1, retries=int(attempt > 0))
                try:
                    return await self._once(prompt)
                except _Again as error:
                    reason, wait = str(error), error.wait
                if attempt == config.retries:
                    break
                if wait > config.retry_after_max:
                    raise EndpointError(
                        f"{self.url} {reason} and asks to wait {wait:.0f} s, longer than analyzer.retry_after_max="
                        f"{config.retry_after_max:g}"
                    )
                await asyncio.sleep(max(self._delay(attempt), wait))
        raise EndpointError(f"{self.url} {reason} (tried {config.retries + 1} times, see analyzer.retries)")

    def _delay(self, attempt: int) -> float:
        """Seconds: doubling, capped, and shortened by up to half at random, so that waiting requests spread out."""
        longest = min(self._config.retry_delay * 2.0 ** min(attempt, 60), self._config.retry_delay_max)
        return longest * self._random.uniform(0.5, 1.0)

    # --------------------------------------------------------------------------------------------------- one request
    async def _once(self, prompt: str) -> Completion:
        config = self._config
        # The client's time limits are for each read; a server that sends a byte now and then would never meet them.
        try:
            async with asyncio.timeout(config.connect_timeout + config.read_timeout):
                status, headers, body = await self._post(prompt)
        except (TimeoutError, httpx.TimeoutException) as error:
            within = config.connect_timeout if isinstance(error, httpx.ConnectTimeout) else config.read_timeout
            what = "accept a connection" if isinstance(error, httpx.ConnectTimeout) else "answer"
            raise _Again(f"did not {what} within {within:g} s") from None
        except httpx.ConnectError as error:
            raise _Again(f"cannot be reached ({self._safe(str(error) or type(error).__name__)})") from None
        except httpx.TransportError as error:
            raise _Again(f"broke the connection ({self._safe(str(error) or type(error).__name__)})") from None
        if status == 429 or status >= 500:
            raise _Again(f"answered with status {status}{self._quoted(body)}", _retry_after(headers))
        if status != 200:
            # What an endpoint says of a key that it does not accept may be the key, in whatever spelling.
            quoted = "" if status in (401, 403) else self._quoted(body)
            raise EndpointError(f"{self.url} answered with status {status}{_HINTS.get(status, '')}{quoted}")
        try:
            return self._completion(body, headers)
        except _UncountedError as error:
            self._ledger.add(unmetered=1)  # it may have been billed
            raise UnusableResponseError(str(error)) from None

    async def _post(self, prompt: str) -> tuple[int, httpx.Headers, bytes | str]:
        """Status, headers, and the body or why it was not read (to its end)."""
        if self._client is None:
            self._client = self._new_client()
        content = json.dumps(self._payload(prompt), ensure_ascii=True).encode()
        async with self._client.stream("POST", self.url, content=content) as response:
            if response.headers.get("content-encoding", "identity").lower() not in ("identity", ""):
                # None was asked for; unpacking could make any size of it.
                return response.status_code, response.headers, "it is compressed, though that was not asked for"
            body = bytearray()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > MAX_RESPONSE_BYTES:
                    why = f"it is larger than {MAX_RESPONSE_BYTES} bytes and was not read to its end"
                    return response.status_code, response.headers, why
            return response.status_code, response.headers, bytes(body)

    def _new_client(self) -> httpx.AsyncClient:
        config = self._config
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        return httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(config.read_timeout, connect=config.connect_timeout, pool=None),
            limits=httpx.Limits(max_connections=config.concurrency, max_keepalive_connections=config.concurrency),
            follow_redirects=False,  # the key goes where the configuration says and nowhere else
            trust_env=not self._loopback,  # proxies of the environment are not for this machine's servers
        )

    def _payload(self, prompt: str) -> dict[str, Any]:
        config = self._config
        payload: dict[str, Any] = {
            "model": config.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": config.temperature,
            config.limit_field: config.max_output_tokens,
            "stream": False,
        }
        if config.response_format == "json_schema":
            # Not strict: strict schemas know no objects with free keys, which step numbers are.
            schema = {"name": "analysis", "strict": False, "schema": answer_schema()}
            payload["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif config.response_format == "json_object":
            payload["response_format"] = {"type": "json_object"}
        return payload

    # ----------------------------------------------------------------------------------------------------- its answer
    def _completion(self, body: bytes | str, headers: httpx.Headers) -> Completion:
        if isinstance(body, str):
            raise _UncountedError(body)
        kind = self._safe(headers.get("content-type", "no content type"))
        try:
            reply = json.loads(body.decode("utf-8"))
        except UnicodeDecodeError:
            raise _UncountedError(f"it is not UTF-8 ({kind})") from None
        except (ValueError, RecursionError):
            raise _UncountedError(
                f"it is no JSON ({kind}): is {self._config.base_url} the address of an OpenAI-compatible service?"
            ) from None
        self._account(reply)
        choices = reply.get("choices") if isinstance(reply, dict) else None
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(message, dict):
            raise UnusableResponseError("it has no choices[0].message")
        text = message.get("content")
        if not isinstance(text, str):
            refused = "; the model refused" if isinstance(message.get("refusal"), str) else ""
            raise UnusableResponseError(f"its message has no text{refused}")
        return Completion(self._without_key(text), choice.get("finish_reason") == "length")

    def _account(self, reply: Any) -> None:
        given = reply.get("usage") if isinstance(reply, dict) else None
        usage = given if isinstance(given, dict) else {}
        counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
        numbers = [c for c in counts if isinstance(c, int) and not isinstance(c, bool) and 0 <= c <= _MAX_TOKENS]
        if len(numbers) == len(counts):
            self._ledger.tokens(*numbers)
        else:
            self._ledger.add(unmetered=1)

    def _quoted(self, body: bytes | str) -> str:
        text = "" if isinstance(body, str) else self._safe(body.decode("utf-8", "replace"))
        return f": {text}" if text else ""

    def _safe(self, text: str) -> str:
        """One bounded line of printable text without the key. The key goes first, from the whole of the text: cutting
        could leave a part of it."""
        line = "".join(sign if sign.isprintable() else " " for sign in self._without_key(text))
        return " ".join(line.split())[:_QUOTED_CHARS]

    def _without_key(self, text: str) -> str:
        """Nor with some of its characters spelt as JSON escapes. Escapes are left as they are in texts without it."""
        if self._key is None or self._key not in (plain := _ESCAPE.sub(_unescaped, text)):
            return text
        return plain.replace(self._key, _HIDDEN)


_HINTS: Mapping[int, str] = {
    400: " (does it know analyzer.response_format, analyzer.limit_field and analyzer.temperature?)",
    401: " (is the variable that analyzer.api_key_env names the right one?)",
    403: " (may this key use analyzer.model?)",
    404: " (are analyzer.base_url and analyzer.model right?)",
}


# Escapes of what a key may consist of: ASCII that needs none, so that JSON stays JSON without them.
_ESCAPE = re.compile(r"\\(?:u00([2-7][0-9a-fA-F])|(/))")


def _unescaped(match: re.Match[str]) -> str:
    sign = match[2] or chr(int(match[1], 16))
    return match[0] if sign in '"\\\x7f' else sign


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise SettingsError(
            f"analyzer.api_key_env={variable}: this environment variable is not set here; set it, or use "
            "analyzer.api_key_env=null for an endpoint without keys"
        )
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise SettingsError(
            f"analyzer.api_key_env={variable}: the value of this environment variable is no key (it holds blanks or "
            "other characters that a header cannot carry)"
        )
    return key


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _retry_after(headers: httpx.Headers) -> float:
    """Seconds that the endpoint asks to wait: a number or a date; 0 if it asks nothing that can be understood."""
    given = headers.get("retry-after", "").strip()
    if given.isascii() and given.isdigit():
        return float(given[:9])
    try:
        return max(parsedate_to_datetime(given).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0.0
