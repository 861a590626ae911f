"""Names and numbers of an episode as numbered entities, for small models with a closed vocabulary.

In compact prompts whatever is open-ended (titles, people, places, years) is `name 1`, `name 2`, ... in the order in
which it was first shown; a year is followed by its digits (1863: `name 4 century 18 year 63`), so that dates can be
compared. The policy acts in the same terms (`search name 1`, `answer name 4`); the environment knows what they stand
for. Around the names stand the common words of the corpus' short descriptions; rarer words are left out.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources

from envs.search_qa.em import normalise
from envs.search_qa.questions import base, plain

MOST_NAMES = 48  # entities that an episode can number
MOST_CENTURIES = 20
_SPAN = re.compile(
    r"[A-ZÀ-Þ][\w.’'-]*(?: (?:(?:of|the|and|de|del|van|von|der|di|da|la|le|al|ibn) )*[A-ZÀ-Þ0-9][\w.’'-]*)*|\d+"
)
_NAME = re.compile(r"\bname (\d{1,3})\b(?: century \d+ year \d+)?")
_WORD = re.compile(r"[a-z]+")
_YEAR = re.compile(r"\d{3,4}")


@cache
def common_words() -> frozenset[str]:
    """Words that compact prompts may use: facts about the corpus, shipped as a table."""
    text = (resources.files("envs.search_qa") / "data" / "words.json").read_text(encoding="utf-8")
    return frozenset(json.loads(text))


class Names:
    """The numbering of one episode."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}
        self._texts: list[str] = []

    def of(self, text: str) -> str:
        """`name k`, with the digits of a year. Names beyond the last number are `something`."""
        key = plain(normalise(text)) or text
        if key not in self._number:
            if len(self._texts) >= MOST_NAMES:
                return "something"
            self._texts.append(text)
            self._number[key] = len(self._texts)
        number = f"name {self._number[key]}"
        if _YEAR.fullmatch(text) and 1 <= int(text) // 100 <= MOST_CENTURIES:
            return f"{number} century {int(text) // 100} year {int(text) % 100 or 100}"
        return number

    def resolve(self, text: str) -> str:
        """The text with what each `name k` stands for; numbers that were never given stay as they are."""

        def named(match: re.Match[str]) -> str:
            number = int(match.group(1))
            return self._texts[number - 1] if 1 <= number <= len(self._texts) else match.group()

        return _NAME.sub(named, text)

    def passage(self, title: str, description: str) -> str:
        """A passage in a few words: `name 3 : capital of name 4`."""
        return f"{self.of(base(title))} : {self.sentence(description)}".rstrip(" :")

    def sentence(self, text: str) -> str:
        """Running text: capitalised spans (but for an ordinary first word) and numbers become names, rare words go."""
        first, _, rest = text.partition(" ")
        if first.lower() in common_words():
            text = f"{first.lower()} {rest}"
        parts: list[str] = []
        at = 0
        for match in _SPAN.finditer(text):
            parts += self._words(text[at : match.start()])
            parts.append(self.of(match.group().rstrip(".,")))
            at = match.end()
        parts += self._words(text[at:])
        return " ".join(parts)

    @staticmethod
    def _words(text: str) -> list[str]:
        return [word for word in _WORD.findall(text) if word in common_words()]
