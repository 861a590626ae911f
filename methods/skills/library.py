"""Which skills of a library a task gets, and how they read.

Routers (`method.skill.router` with `method.skill.source=library`):

    task_type    general skills, those of the category of the task's type, mistakes
    data_source  the same by the data set that the task is from
    keyword      the same for every category with a keyword in the task, of several that overlap the longest; none:
                 general skills and mistakes
    general      general skills and mistakes alone (style sections only)
    all          every category, the task's own first
    random       a control: as task_type, with another category, drawn by (seed, task id)
    embedding    the `top_k` skills, and as many mistakes, that are nearest to the task (see methods.skills.embedding)

The released code of SDAR (arXiv:2605.15155) has task_type, data_source and keyword, and general where its library has
no keywords; all and random are rows of its table 2; SkillRL (arXiv:2602.08234) retrieves by embedding.

Styles: `sections` is text with headings, for language models. `compact` is for small models with a closed vocabulary:
no prose but the environment's workflow line of the task; where a router finds another category than the task's own, the
line of a donor task of that category; where it finds none (keyword, embedding), the task's own line after all, since
general skills have no line.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from core.names import require_known, unknown_name
from core.skills import Mistake, Skill, SkillLibrary, is_blank
from methods.interface import SkillConfig
from methods.skills.embedding import Embedder, HashedNgrams, Ranking, SentenceEncoder
from methods.skills.injection import STYLES
from methods.validation import check_library_router

# Raised whenever the same task would get other skills, or the same skills would read otherwise.
SELECTION_VERSION = 1

_NEEDS_TEXT = ("keyword", "embedding")


class KnownTask(Protocol):
    """What a task must tell: a stable name and its type. Workflows may read more of it (envs.interface.Task)."""

    @property
    def id(self) -> str: ...
    @property
    def type(self) -> str: ...


@dataclass(frozen=True)
class Selection:
    """specific: (category, skills) in the order found; lines: workflow lines, instead of all else in style compact."""

    specific: tuple[tuple[str, tuple[Skill, ...]], ...] = ()
    general: tuple[Skill, ...] = ()
    mistakes: tuple[Mistake, ...] = ()
    lines: tuple[str, ...] = ()


def render(selection: Selection, style: str) -> str:
    """The selection as text, never blank. ValueError for an unknown style, and if there is nothing to say in it."""
    require_known("skill style", style, STYLES)
    text = "\n".join(selection.lines) if style == "compact" else _sections(selection)
    if is_blank(text):
        raise ValueError(f"a selection without {'lines' if style == 'compact' else 'skills'} has no text in {style}")
    return text


def _sections(selection: Selection) -> str:
    blocks = [_block("In every task", map(_skill, selection.general))] if selection.general else []
    blocks += [_block(f"In tasks of this kind: {name}", map(_skill, skills)) for name, skills in selection.specific]
    if selection.mistakes:
        blocks.append(
            _block("Mistakes to avoid", (f"- {m.description} {m.why} Instead: {m.avoid}" for m in selection.mistakes))
        )
    return "\n\n".join(blocks)


def _block(heading: str, lines: Iterable[str]) -> str:
    return "\n".join([f"### {heading}", *lines])


def _skill(skill: Skill) -> str:
    return f"- {skill.title}: {skill.principle} ({skill.when})"


def build(
    skill: SkillConfig,
    library: SkillLibrary | None,
    workflow: Callable[[Any], str] | None,
    style: str,
    seed: int,
    tasks: Iterable[KnownTask] = (),
) -> Selector:
    """The selector of a run: `EnvSpec.library(config)`, `EnvSpec.workflow(config)` and the tasks that it may be about.

    Raises ValueError for settings that contradict each other, and if the environment lacks what they need.
    """
    check_library_router(skill.router, skill.top_k, skill.encoder)
    embedder = SentenceEncoder(skill.encoder) if skill.encoder is not None else None
    return Selector(library, skill.router, skill.top_k, seed, workflow, style, tasks, embedder)


@dataclass(eq=False)
class Selector:
    """Chooses the skill text of a task. Texts are remembered, so that asking again at every step costs nothing.

    library: of the environment; only style compact with the routers task_type, data_source, all and random can do
        without
    top_k: at most so many skills (found categories before general ones), and so many mistakes; 0: all that is found.
        Style compact: at most so many lines
    seed: of the router random, and of the donors of style compact
    workflow: task -> its line; for style compact
    tasks: those that style compact knows: it may be asked about them, and they are its donors
    embedder: of the router embedding; None: HashedNgrams over the library
    """

    library: SkillLibrary | None
    router: str
    top_k: int
    seed: int
    workflow: Callable[[Any], str] | None = None
    style: str = "compact"
    tasks: Iterable[KnownTask] = ()
    embedder: Embedder | None = None
    _known: dict[str, KnownTask] = field(default_factory=dict, init=False, repr=False)
    _donors: dict[str, list[KnownTask]] = field(default_factory=dict, init=False, repr=False)
    _rankings: tuple[Ranking, Ranking] | None = field(default=None, init=False, repr=False)
    _texts: dict[tuple[str, str, str, str | None], str] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_library_router(self.router, self.top_k, None)
        require_known("skill style", self.style, STYLES)
        if self.library is None and (self.style != "compact" or self.router in _NEEDS_TEXT):
            raise ValueError(
                f"method.skill.router={self.router} in skill style {self.style} needs a skill library, but this "
                "environment has none (EnvSpec.library); choose another environment, or method.skill.source=none"
            )
        if self.style == "compact" and self.router == "general":
            raise ValueError(
                "method.skill.router=general has no workflow line to choose: those are of single kinds of tasks; set "
                "env.prompt=full, whose skills are sections of text, or another router"
            )
        if self.style == "compact" and self.workflow is None:
            raise ValueError(
                "skill style compact needs workflow lines, but this environment has none (EnvSpec.workflow); "
                "set env.prompt=full, or method.skill.source=none"
            )
        self.know(self.tasks)
        for task in sorted(self._known.values(), key=lambda known: known.id):
            self._donors.setdefault(self._category(task.type), []).append(task)

    def know(self, tasks: Iterable[KnownTask]) -> None:
        """More tasks to be asked about (style compact). They are no donors: what others get does not change."""
        self._known.update((task.id, task) for task in tasks)

    def choose(self, task_id: str, task_type: str, task_text: str = "", data_source: str | None = None) -> str:
        """The text for a task; never blank, and the same whenever it is asked.

        task_text: the instruction, for the routers keyword and embedding; data_source: for that router.
        Raises ValueError naming the task if it has no category, lacks what the router goes by, or is unknown to style
        compact.
        """
        key = (task_id, task_type, task_text, data_source)
        if key not in self._texts:
            try:
                self._texts[key] = render(self._select(*key), self.style)
            except (KeyError, ValueError) as error:
                reason = error.args[0] if error.args else type(error).__name__
                raise ValueError(f"no skill for the task {task_id} ({task_type}): {reason}") from error
        return self._texts[key]

    # ---------------------------------------------------------------------------------------------------- categories
    def _category(self, name: str) -> str:
        """Of a task type or data source. Without a library each is its own."""
        if self.library is None:
            return name
        if name not in self.library.categories:
            what = f"a task type or data source of the skill library {self.library.name!r}"
            raise ValueError(unknown_name(what, name, self.library.categories))
        return self.library.categories[name]

    def _select(self, task_id: str, task_type: str, task_text: str, data_source: str | None) -> Selection:
        if self.router in _NEEDS_TEXT and not task_text.strip():
            raise ValueError(f"method.skill.router={self.router} goes by the task's text, which is empty")
        if self.router == "data_source":
            if data_source is None:
                raise ValueError("method.skill.router=data_source needs the task's data source, which it does not say")
            task_type = data_source
        own = self._category(task_type)
        if self.router == "embedding":
            return self._nearest(task_id, own, task_text)
        if self.router == "random" and self.style == "compact":
            return Selection(lines=(self._line(self._donor(task_id, [c for c in sorted(self._donors) if c != own])),))
        found = self._found(task_id, own, task_text)
        if self.style == "compact":
            return Selection(lines=self._lines(task_id, own, found or [own]))
        assert self.library is not None
        specific = [(category, skill) for category in found for skill in self.library.specific[category]]
        return self._cut(specific, self.library.general, self.library.mistakes)

    def _found(self, task_id: str, own: str, task_text: str) -> list[str]:
        """Categories, in order."""
        known = list(self.library.specific) if self.library is not None else sorted(self._donors)
        others = [category for category in known if category != own]
        if self.router == "all":
            return [own, *(c for c in others if self.style != "compact" or self._donors.get(c))]
        if self.router == "random":
            if not others:
                raise ValueError("method.skill.router=random needs a second category, the library has one")
            return [self._draw(task_id).choice(others)]
        if self.router == "general":
            return []
        if self.router == "keyword":
            assert self.library is not None
            pointed = _pointed_to(task_text.lower(), self.library.keywords)
            return [category for category in known if category in pointed]
        return [own]

    def _nearest(self, task_id: str, own: str, task_text: str) -> Selection:
        library = self.library
        assert library is not None
        skills: list[tuple[str | None, Skill]] = [(None, skill) for skill in library.general]
        skills += [(category, skill) for category, group in library.specific.items() for skill in group]
        if self._rankings is None:
            texts = [f"{s.title}. {s.principle} {s.when} {category or ''}" for category, s in skills]
            cautions = [f"{m.description} {m.why} {m.avoid}" for m in library.mistakes]
            embedder = self.embedder or HashedNgrams([*texts, *cautions])
            self._rankings = Ranking(embedder, texts), Ranking(embedder, cautions)
        of_skills, of_mistakes = self._rankings
        chosen = [skills[i] for i in of_skills.nearest(task_text, self.top_k)]
        specific = [(category, skill) for category, skill in chosen if category is not None]
        if self.style == "compact":
            found = [c for c in dict.fromkeys(c for c, _ in specific) if c == own or self._donors.get(c)]
            return Selection(lines=self._lines(task_id, own, found or [own]))
        mistakes = [library.mistakes[i] for i in of_mistakes.nearest(task_text, self.top_k)]
        return self._cut(specific, [skill for category, skill in chosen if category is None], mistakes)

    def _cut(
        self, specific: list[tuple[str, Skill]], general: Iterable[Skill], mistakes: Iterable[Mistake]
    ) -> Selection:
        most = self.top_k or None
        kept = specific[:most]
        groups: dict[str, list[Skill]] = {}
        for category, skill in kept:
            groups.setdefault(category, []).append(skill)
        left = None if most is None else most - len(kept)
        return Selection(
            specific=tuple((category, tuple(skills)) for category, skills in groups.items()),
            general=tuple(general)[:left],
            mistakes=tuple(mistakes)[:most],
        )

    # -------------------------------------------------------------------------------------------------------- compact
    def _lines(self, task_id: str, own: str, categories: list[str]) -> tuple[str, ...]:
        lines = []
        for category in categories[: self.top_k or None]:
            task = self._known.get(task_id) if category == own else self._donor(task_id, [category])
            if task is None:
                raise ValueError("style compact does not know it; name it to Selector.know first")
            lines.append(self._line(task))
        return tuple(lines)

    def _line(self, task: KnownTask) -> str:
        assert self.workflow is not None
        line = self.workflow(task)
        if is_blank(line):
            raise ValueError(f"the workflow line of {task.id} is {line!r}, but it must say something")
        return line.strip()

    def _donor(self, task_id: str, categories: list[str]) -> KnownTask:
        """A task of one of the categories, drawn by (seed, task id) among those given at the start."""
        donors = [task for category in categories for task in self._donors.get(category, ())]
        if not donors:
            raise ValueError(
                "there is no task of another kind whose line it could get; the run needs tasks of several types"
            )
        return self._draw(task_id).choice(donors)

    def _draw(self, task_id: str) -> random.Random:
        return random.Random(f"library-skills/{self.seed}/{task_id}")


def _pointed_to(text: str, keywords: Mapping[str, Iterable[str]]) -> set[str]:
    """Categories with a keyword in the text. A keyword inside of a longer one that is found there does not count:
    `put a` points elsewhere than `put a clean`."""
    found = [
        (match.start(), match.end(), category)
        for category, words in keywords.items()
        for word in words
        for match in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", text)
    ]
    return {
        category
        for start, end, category in found
        if not any(first <= start and end <= last and end - start < last - first for first, last, _ in found)
    }
