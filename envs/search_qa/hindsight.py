"""Skills about Search-QA: the workflow that a question asks for, and hindsight from a finished trajectory alone.

For compact prompts both are in the closed vocabulary of small models. For full prompts the rules know only what can be
read off the trajectory: which queries were made, whether the answer was right. A language model analyses better there.
"""

from __future__ import annotations

from collections.abc import Sequence

from envs.search_qa.expert import MAKERS, Reader, names_in, relation_of

Transcript = Sequence[tuple[str, str, bool]]  # (observation before the action, action, it had an effect)


def workflow(relation: str, names: Sequence[str]) -> str:
    """Steps in order, e.g. `search name 1, then search the author, then answer the year`."""
    maker, _, event = relation.partition("-")
    first = names[0] if names else "name 1"
    if relation.startswith("first-"):
        other = names[1] if len(names) > 1 else "name 2"
        return f"search {first}, then search {other}, then answer who was first"
    if relation == "place-capital":
        return f"search {first}, then search capital city of its country, then answer the capital"
    if maker in MAKERS and event:
        return f"search {first}, then search the {maker}, then answer the year"
    if relation == "capital":
        return f"search capital city of {first}, then answer the capital"
    return f"search {first}, then answer"


def compact_hindsight(task: str, steps: Transcript, success: bool, most: int) -> tuple[str, dict[int, str]]:
    """(episode skill, step skills) for compact prompts. A question of no derived kind gets the plain workflow."""
    relation = relation_of(task) or ""
    reader = Reader(task)
    missed: dict[int, str] = {}
    taken: dict[int, str] = {}
    for k, (_, action, effective) in enumerate(steps):
        words = spoken(action)
        best = reader.decide()
        if best is not None:
            (taken if words == best else missed)[k] = best
        if k + 1 < len(steps):
            reader.observe(words, steps[k + 1][0] if effective else "")
    chosen = sorted((sorted(missed) + sorted(taken))[:most])
    skill = workflow(relation, names_in(task))
    return skill if success else f"{skill} ; do not answer before", {k: {**missed, **taken}[k] for k in chosen}


def full_hindsight(task: str, steps: Transcript, success: bool, most: int) -> tuple[str, dict[int, str]]:
    """(episode skill, step skills) in ordinary words."""
    queries = [
        words.removeprefix("search ") for _, action, _ in steps if (words := spoken(action)).startswith("search ")
    ]
    skills: dict[int, str] = {}
    for k, (_, action, effective) in enumerate(steps):
        words = spoken(action)
        if not effective:
            skills[k] = "Give one search or one answer in the form that is asked for; anything else is lost."
        elif words.startswith("search ") and words.removeprefix("search ") in queries[: _searches(steps[:k])]:
            skills[k] = "This was searched before; ask for the next missing fact, by the name that a passage gave."
        elif words.startswith("answer ") and not success:
            skills[k] = "Before answering, search for the one fact that no passage has confirmed yet."
    if success and queries:
        found = " then ".join(f'"{query}"' for query in dict.fromkeys(queries))
        episode = (
            f"Searching for {found} gives what this question needs; answer with the shortest exact name or number."
        )
    elif success:
        episode = "The answer is known without searching; give it in its shortest exact form."
    else:
        episode = (
            "Name every person, place and work in the question, search for each by itself, follow the names that the "
            "passages give, and answer only with words that a passage confirms."
        )
    return episode, dict(sorted(skills.items())[:most])


def spoken(action: str) -> str:
    """`search[name 1]` -> `search name 1`; anything else as it is."""
    kind, bracket, rest = action.strip().partition("[")
    return f"{kind} {rest[:-1].strip()}" if bracket and rest.endswith("]") else action.strip()


def _searches(steps: Transcript) -> int:
    return sum(spoken(action).startswith("search ") for _, action, _ in steps)
