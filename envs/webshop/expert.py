"""A scripted shopper who knows what the policy was shown, and nothing else.

It searches with the words of the instruction, opens results in the order of the search that are within the price, makes
sure that the option values wanted are there and that nothing wanted is missing from title and features, chooses, buys.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from envs.webshop.environment import short_name
from envs.webshop.reading import Page, Result, Wish, read_page
from envs.webshop.shop import END, ITEM, RESULTS, SEARCH, SUB, read_action

_MOST_PAGES = 5


@dataclass
class Memory:
    """What was seen so far: feed it every observation and every action.

    compact: name results as `item 3`, as compact prompts do; texts: asin -> what was read about it (title, features,
    description); rejected: asins that lack something; chosen: values clicked on the open item;
    values: words of option values, seen or guessed; offered: option values seen
    """

    wish: Wish
    compact: bool = True
    page: Page = field(default_factory=lambda: Page(SEARCH))
    searched: list[str] = field(default_factory=list)
    results: Page = field(default_factory=lambda: Page(RESULTS))
    item: str = ""
    chosen: set[str] = field(default_factory=set)
    texts: dict[str, list[str]] = field(default_factory=dict)
    read: dict[str, set[str]] = field(default_factory=dict)
    rejected: set[str] = field(default_factory=set)
    values: set[str] = field(default_factory=set)
    offered: set[str] = field(default_factory=set)
    _sub: str = ""

    def look(self, text: str) -> None:
        """The page that is shown now."""
        self.page = read_page(text)
        if self.page.kind == RESULTS:
            self.results = self.page
            self.item = ""
            self.chosen.clear()
        elif self.page.kind == SEARCH:
            self.item = ""
            self.chosen.clear()
        elif self.page.kind == ITEM:
            self._note(self.page.title)
            self.chosen |= set(self.page.chosen)
            self.offered |= set(self.page.values())
            self.values |= {word for value in self.page.values() for word in short_name(value).split()}
        elif self.page.kind == SUB:
            self.read.setdefault(self.item, set()).add(self._sub)
            self._note(" ".join(self.page.texts))

    def _note(self, text: str) -> None:
        known = self.texts.setdefault(self.item, [])
        if text not in known:
            known.append(text)

    def did(self, action: str) -> None:
        """The action taken on the current page, if it had an effect."""
        name, argument = read_action(action)
        if name == "search":
            self.searched.append(argument)
        elif self.page.kind == RESULTS:
            for k, result in enumerate(self.page.results):
                if argument in (result.asin.lower(), f"item {k + 1}"):
                    self.item = result.asin
        elif self.page.kind == ITEM:
            values = {short_name(value): value for value in self.page.values()}
            if short_name(argument) in values:
                self._choose(values[short_name(argument)])
            self._sub = short_name(argument)

    def _choose(self, value: str) -> None:
        """Another value of the same option is no longer chosen."""
        for name, values in self.page.options.items():
            if name and value in values:
                self.chosen -= set(values)
        self.chosen.add(value)

    # ------------------------------------------------------------------------------------------------------- questions
    def wanted(self) -> dict[str, str | None]:
        """Option name -> value wanted on the open item; None where the instruction names the option but the item has no
        such value. In the form `text` the values stand under their own names."""
        found: dict[str, str | None] = {}
        options = self.page.options
        if "" in options and len(options) == 1:  # names and values are not told apart
            values = options[""]
            found.update({name: v if v in values else None for name, v in self.wish.options.items()})
            if not self.wish.options:
                said = f" {short_name(self.wish.body)} "
                found.update({v: v for v in values if short_name(v) and f" {short_name(v)} " in said})
            return found
        for name, values in options.items():
            value = self.wish.choice(name, values)
            if value is not None or name in self.wish.options:
                found[name] = value
        found.update({name: None for name in self.wish.options if name not in options})
        return found

    def missing(self) -> list[str]:
        """Words of the wish that neither the texts read about the open item nor its option values have."""
        return self.wish.open_words(*self.texts.get(self.item, ()), *self.page.values())


@dataclass(frozen=True)
class Decision:
    """command: what to do next; acceptable: every command that is as good, this one included."""

    command: str
    acceptable: frozenset[str]


class Expert:
    """Decides from a Memory. forgets: how many of the options wanted it does not choose."""

    def __init__(self, forgets: int = 0) -> None:
        self.forgets = forgets

    def decide(self, memory: Memory) -> Decision | None:
        """The next command; None when the shop is left or nothing is left to try."""
        page = memory.page
        if page.kind == END:
            return None
        if page.kind == SEARCH:
            return self._search(memory)
        if page.kind == RESULTS:
            return self._pick(memory)
        if page.kind == SUB:
            return _one(_click(memory, "< prev"))
        return self._inspect(memory)

    def _search(self, memory: Memory) -> Decision | None:
        """With all words and option values; when that led nowhere, with fewer of them."""
        words, values = memory.wish.words, memory.wish.options.values()
        queries = [" ".join([*words, *values]), " ".join(words), " ".join(words[-2:])]
        fresh = [query for query in dict.fromkeys(queries) if query and query not in memory.searched]
        return _one(f"search[{fresh[0]}]") if fresh else None

    def _pick(self, memory: Memory) -> Decision | None:
        page = memory.page
        good = [k for k, result in enumerate(page.results) if self._worth(memory, result)]
        if good:
            names = [f"item {k + 1}" if memory.compact else page.results[k].asin.lower() for k in good]
            return Decision(f"click[{names[0]}]", frozenset(f"click[{name}]" for name in names))
        if page.number * 10 < page.total and page.number < _MOST_PAGES:
            return _one(_click(memory, "next >"))
        return _one(_click(memory, "back to search")) if self._search(memory) else None

    @staticmethod
    def _worth(memory: Memory, result: Result) -> bool:
        """Within the price, and not looked at in vain."""
        return memory.wish.affordable(result.high) and result.asin not in memory.rejected

    def _inspect(self, memory: Memory) -> Decision | None:
        page = memory.page
        wanted = memory.wanted()
        unread = "features" not in memory.read.get(memory.item, set())
        lacking = memory.missing()
        dear = not memory.wish.affordable(page.low)
        # no text of the item will have a word that other items offer as an option value, or that an option without a
        # wanted value should have offered
        open_option = not memory.wish.options and any(name and name not in wanted for name in page.options)
        hopeless = not unread or open_option or any(word in memory.values for word in lacking)
        if dear or None in wanted.values() or (lacking and hopeless):
            memory.rejected.add(memory.item)
            if (
                not memory.wish.options and not unread
            ):  # then what the features do not explain is most likely an option value
                memory.values.update(lacking)
            return _one(_click(memory, "< prev"))
        if lacking:
            return _one("click[features]")
        known = list(wanted.values())[: max(len(wanted) - self.forgets, 0)]
        todo = [value for value in known if value is not None and value not in memory.chosen]
        if todo:
            names = [_click(memory, value) for value in todo]
            return Decision(names[0], frozenset(names))
        return _one("click[buy now]")


def _click(memory: Memory, name: str) -> str:
    return f"click[{short_name(name) if memory.compact else name}]"


def _one(command: str) -> Decision:
    return Decision(command, frozenset({command}))
