"""One question, answered with a search engine (the protocol of Search-R1, arXiv:2503.09516).

Actions are `search[query]` and `answer[text]`; each is one of at most `env.max_steps` turns. A search shows passages;
an answer ends the episode with reward 1 if it matches a golden answer exactly, else 0. Only the last action is scored,
never what passages say. An action of no known form, or without content, changes nothing and says so.

In compact prompts everything shown is in terms of numbered names (see `naming`), and actions may use them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from envs.interface import EnvConfig, Observation, StepResult, Task
from envs.search_qa.em import exact_match
from envs.search_qa.naming import Names
from envs.search_qa.questions import Question
from envs.search_qa.retrieval import Hit, RetrieverDown
from envs.search_qa.settings import knobs_of, retriever_of
from envs.search_qa.tasks import question_of

_ACTION = re.compile(r"\s*(search|answer)\s*\[(.*)\]\s*\Z", re.S)
MOST_QUERY = 2000  # characters of a query that are sent
# relation of a derived question -> how compact prompts ask it
COMPACT = {
    "director": "who directed {0}",
    "author": "who wrote {0}",
    "maker": "who made {0}",
    "composer": "who composed {0}",
    "performer": "who recorded {0}",
    "place": "country of {0}",
    "capital": "capital of {0}",
    "number": "atomic number of {0}",
    "birth": "year {0} was born",
    "death": "year {0} died",
    "place-capital": "capital of country of {0}",
    "first-birth": "who was born first {0} {1}",
    "first-death": "who died first {0} {1}",
    **{
        f"{maker}-{event}": f"year {maker} of {{0}} {said}"
        for maker in ("director", "author", "maker", "composer", "performer")
        for event, said in (("birth", "was born"), ("death", "died"))
    },
}


class SearchQa:
    """An `envs.interface.Environment`."""

    def __init__(self, config: EnvConfig) -> None:
        self.config = config
        self.knobs = knobs_of(config)
        self.compact = config.prompt == "compact"
        self._running = False
        self._fetched: dict[str, list[Hit] | RetrieverDown] = {}

    def reset(self, task: Task) -> Observation:
        """Raises EnvironmentFailure if the question is missing or has changed."""
        self._question: Question = question_of(self.config, task)
        self._names = Names()
        self._steps, self._running, self._fetched = 0, True, {}
        self._asked = self._compact_question() if self.compact else self._question.text
        return self._observation(self._asked)

    @classmethod
    def prepare(cls, environments: Sequence[SearchQa], actions: Sequence[str]) -> None:
        """Fetch for all environments at once what their next actions will search for: one call of the retriever.

        The pool calls this before it steps them. If the retriever is down, each of the steps says so, without asking
        it again: an outage costs the attempts of one search, not of one per episode.
        """
        wanted = [
            (environment, query)
            for environment, action in zip(environments, actions, strict=True)
            if (query := environment._query(action)) is not None
        ]
        if wanted:
            config, knobs = wanted[0][0].config, wanted[0][0].knobs
            queries = list(dict.fromkeys(query for _, query in wanted))
            found: dict[str, list[Hit] | RetrieverDown]
            try:
                found = dict(zip(queries, retriever_of(config).search(queries, knobs.topk), strict=True))
            except RetrieverDown as error:
                found = dict.fromkeys(queries, error)
            for environment, query in wanted:
                environment._fetched = {query: found[query]}

    def step(self, action: str) -> StepResult:
        """Raises EnvironmentFailure if the retriever is down, RuntimeError after the end of an episode."""
        if not self._running:
            raise RuntimeError("the episode is over or was never begun; call reset first")
        self._steps += 1
        kind, content = self._read(action)
        right = kind == "answer" and exact_match(content, self._question.answers)
        if query := self._query(action):
            text = self._shown(query)
        elif kind == "answer":
            text = "answered"
        else:
            text = "nothing happens" if self.compact else "Nothing happens: use search[query] or answer[text]."
        done = kind == "answer" or self._steps >= self.config.max_steps
        self._running = not done
        cut = done and kind != "answer"
        return StepResult(self._observation(text), float(right), done, right, float(right), bool(kind), truncated=cut)

    def close(self) -> None:
        self._running = False

    # ------------------------------------------------------------------------------------------------------- actions
    def _read(self, action: str) -> tuple[str, str]:
        """(search | answer, content); ("", "") for anything else, and without content."""
        match = _ACTION.match(action)
        if match is None:
            return "", ""
        content = match.group(2).strip()
        if self.compact:
            content = self._names.resolve(content)
        return (match.group(1), content) if content else ("", "")

    def _query(self, action: str) -> str | None:
        kind, content = self._read(action)
        return content[:MOST_QUERY] if self._running and kind == "search" else None

    # --------------------------------------------------------------------------------------------------------- texts
    def _observation(self, text: str) -> Observation:
        return Observation(text, self._asked, ("answer[<text>]", "search[<query>]"))

    def _compact_question(self) -> str:
        question = self._question
        if question.relation in COMPACT:
            return COMPACT[question.relation].format(*(self._names.of(name) for name in question.names))
        return self._names.sentence(question.text)

    def _shown(self, query: str) -> str:
        hits = self._fetched.pop(query, None)
        if isinstance(hits, RetrieverDown):
            raise RetrieverDown(str(hits)) from hits
        if hits is None:
            hits = retriever_of(self.config).search([query], self.knobs.topk)[0]
        if self.compact:
            parts = [self._names.passage(h.passage.title, h.passage.description) for h in hits]
            return "found " + " ; ".join(parts) if parts else "found nothing"
        if self.knobs.information == "json":
            return json.dumps({"result": "\n".join(f"Doc {k}: {h.passage.contents}" for k, h in enumerate(hits, 1))})
        return "\n".join(f"Doc {k}(Title: {h.passage.title}) {h.passage.text}" for k, h in enumerate(hits, 1))


def make(config: EnvConfig) -> SearchQa:
    return SearchQa(config)
