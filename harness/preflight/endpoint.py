"""Does the analyzer answer? One short question to each endpoint that runs will ask."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace

from harness.preflight.findings import OK, PROBLEM, WARNING, Finding, Scope, groups
from harness.preflight.money import asks_analyzer
from methods.skills.analyzers.settings import AnalyzerConfig

KEEP_SECONDS = 600.0  # an endpoint that answered is not asked again for so long
_QUESTION = (
    'Reply with this JSON object and nothing else: {"episode_summary": "", "episode_skill": "ok", "step_skills": {}}'
)
_ANSWER_TOKENS = 64
_MOST_SECONDS = 30.0


def endpoints(scope: Scope) -> Iterator[Finding]:
    """Asks analyzers behind an endpoint (analyzer=openai) once each, with few tokens and no retries."""
    for first, _ in groups(scope, lambda c: c.config.analyzer if asks_analyzer(c.config) else None):
        analyzer = first.config.analyzer
        if not asks_analyzer(first.config) or analyzer.name != "openai":
            continue
        if analyzer.api_key_env and not os.environ.get(analyzer.api_key_env):
            continue  # said already
        content = [analyzer.base_url, analyzer.model, analyzer.response_format, analyzer.limit_field]
        key, value = "analyzer.base_url", analyzer.base_url
        if scope.cache.get("endpoint", content, KEEP_SECONDS) is not None:
            yield scope.finding(OK, first, key, value, f"{analyzer.model} answered a few minutes ago")
            continue
        scope.say(f"analyzer: {analyzer.base_url}")
        status, said = asyncio.run(_ask(analyzer))
        if status == OK:
            scope.cache.put("endpoint", content, {"answered": True})
        fix = "" if status == OK else "see docs/analyzers.md; analyzer=rules needs no endpoint"
        yield scope.finding(status, first, key, value, said, fix)


async def _ask(analyzer: AnalyzerConfig) -> tuple[str, str]:
    from methods.skills.analyzers.endpoint import Endpoint, EndpointError, UnusableResponseError
    from methods.skills.analyzers.ledger import Ledger

    short = replace(
        analyzer,
        retries=0,
        max_output_tokens=min(_ANSWER_TOKENS, analyzer.max_output_tokens),
        read_timeout=min(_MOST_SECONDS, analyzer.read_timeout),
        connect_timeout=min(_MOST_SECONDS, analyzer.connect_timeout),
    )
    endpoint = Endpoint(short, Ledger(analyzer.price_prompt, analyzer.price_completion))
    try:
        await endpoint.complete(_QUESTION)
    except UnusableResponseError as error:  # a model that thinks first may need more tokens than it was given here
        return WARNING, f"{analyzer.model} answered, but not with a completion: {error}"
    except (EndpointError, ValueError) as error:
        return PROBLEM, str(error)
    finally:
        await endpoint.close()
    return OK, f"{analyzer.model} answers"
