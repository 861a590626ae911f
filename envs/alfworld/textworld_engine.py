"""ALFWorld on its own engine (the packages alfworld, textworld and Fast Downward), made a hundred times faster
(benchmarks/envs.py).

The rules are the packages' PDDL domain, executed by their native state machine; texts come from their grammar. What
repeats is computed once: the translation of a problem (kept on disk), the parse of templates and conditions, and the
command of each operator. Nothing in the packages is patched, so a stock engine can run beside this one; a test plays
both and compares every text, command list and outcome.

Facts behind the design: a native library holds one game at a time, takes 33 MB of disk to load and is never unloaded,
so libraries are kept and handed on rather than loaded per game.
"""

from __future__ import annotations

import bisect
import contextlib
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import fast_downward
from textworld.envs.pddl import logic as pddl_logic
from textworld.envs.pddl import textgen
from textworld.generator.game import EntityInfo
from textworld.logic import Placeholder, Proposition, State, Type, Variable

from envs.alfworld import generated
from envs.alfworld.episode import AlfworldEpisode, View, read_checked
from envs.alfworld.grammar import Context, Grammar, parse_template
from envs.alfworld.layout import game_of, package_rules
from envs.alfworld.translation import Translation, Translations, home_for_packages
from envs.alfworld.worlds import is_location
from envs.interface import EnvironmentFailure, Task

NOTHING = "Nothing happens."
_KEPT_GAMES = 160  # parsed games kept per process, about 1.5 MB each


class _Facts(State):  # type: ignore[misc]
    """The facts of one state, answering the package's queries.

    Facts of one signature are a sorted list, shared with the initial state until one of them changes.
    """

    def __init__(self, logic: Any, initial: Mapping[Any, list[Any]]) -> None:
        self._logic = logic
        self._facts = dict(initial)
        self._own: set[Any] = set()

    def fresh(self) -> _Facts:
        """The same state, to be changed apart from this one."""
        return _Facts(self._logic, self._facts)

    def facts_with_signature(self, sig: Any) -> list[Any]:
        group: list[Any] = self._facts.get(sig, _NONE)
        return group

    def add(self, fact: Any) -> None:
        """The fact holds from now on, and its negation does not."""
        name: str = fact.name
        opposite = name.removeprefix(_NOT) if name.startswith(_NOT) else _NOT + name
        self._set(_fact(opposite, fact.arguments), False)
        self._set(fact, True)

    def _set(self, fact: Any, wanted: bool) -> None:
        group = self._facts.get(fact.signature, _NONE)
        place = bisect.bisect_left(group, fact)
        if (place < len(group) and group[place] == fact) == wanted:
            return
        if fact.signature not in self._own:
            self._own.add(fact.signature)
            group = self._facts[fact.signature] = list(group)
        if wanted:
            group.insert(place, fact)
        else:
            del group[place]


def _fact(name: str, arguments: Sequence[Any]) -> Any:
    """A proposition outside the package's memo, which is never emptied and would keep the facts of every game."""
    fact = Proposition.__new__(Proposition)
    fact.__init__(name, arguments)
    return fact


_NOT = "not_"
_NONE: list[Any] = []


@dataclass
class Game:
    """A parsed game. Shared by every episode of it in this process; what is found out while playing is kept here."""

    translation: Translation
    actions: Mapping[str, Any]
    grammar: Grammar
    kinds: Mapping[str, str]  # id -> PDDL type
    initial: Any = None  # _Facts of the first state
    entities: dict[str, Any] = field(default_factory=dict)
    intro: str | None = None
    commands: dict[bytes, str] = field(default_factory=dict)  # operator -> command
    texts: dict[tuple[str, ...], str] = field(default_factory=dict)  # what the command depends on -> command
    propositions: dict[bytes, Any] = field(default_factory=dict)
    _used: dict[str, tuple[int, ...] | None] = field(default_factory=dict)

    def proposition(self, name: bytes) -> Any:
        """The fact that an engine atom such as `NegatedAtom opened(fridge)` states."""
        found = self.propositions.get(name)
        if found is None:
            kind, rest = name.decode("cp1252").split(" ", 1)
            predicate, arguments = rest[:-1].split("(", 1)
            variables = [
                Variable(a.upper() if a in ("i", "p") else a, self.kinds[a]) for a in arguments.split(", ") if a
            ]
            predicate = f"{_NOT}{predicate}" if kind == "NegatedAtom" else predicate
            found = self.propositions[name] = _fact(predicate, variables)
        return found

    def context(self, name: bytes, state: _Facts) -> Context:
        """What a template of the operator's action sees."""
        verb, *arguments = name.decode("cp1252").split()
        mapping = {
            Placeholder(parameter, kind): Variable(argument, kind)
            for (parameter, kind), argument in zip(self.translation.parameters[verb], arguments, strict=False)
        }
        variables = {placeholder.name: self.entities[variable.name] for placeholder, variable in mapping.items()}
        return Context(state, variables, mapping, self.entities)

    def command(self, name: bytes, state: _Facts) -> str:
        """The command of an operator, e.g. `take mug 1 from desk 2`."""
        found = self.commands.get(name)
        if found is not None:
            return found
        verb, *arguments = name.decode("cp1252").split()
        used = self._positions(verb)
        key = None if used is None else (verb, *(arguments[i] for i in used))
        text = self.texts.get(key) if key is not None else None
        if text is None:
            text = self.grammar.derive(self.actions[verb].template, self.context(name, state))
            if "{" in text:
                text = text.format(**{ident: entity.name for ident, entity in self.entities.items()})
        if key is not None:
            self.texts[key] = self.commands[name] = text
        return text

    def _positions(self, verb: str) -> tuple[int, ...] | None:
        """Which arguments of an action its command depends on; None if it depends on more than its arguments."""
        if verb not in self._used:
            names = self.grammar.depends_on(self.actions[verb].template, self.translation.fluents)
            parameters = [parameter for parameter, _ in self.translation.parameters[verb]]
            if names is None or not names <= set(parameters):
                self._used[verb] = None
            else:
                self._used[verb] = tuple(i for i, parameter in enumerate(parameters) if parameter in names)
        return self._used[verb]


@lru_cache(maxsize=8)
def _logic(domain: str, grammar: str, types: tuple[tuple[str, tuple[str, ...]], ...]) -> Any:
    """The package's parse of a grammar. Shared between games: it must not be changed."""
    logic = pddl_logic.GameLogic(domain=domain, grammar=grammar)
    for name, supertypes in types:
        with contextlib.suppress(ValueError):  # the package knows some types already
            logic.types.add(Type(name, supertypes))
    return logic


def _rules(logic: Any, instruction: str | None) -> dict[str, Any]:
    """The grammar's rules with the game's own instruction in the place of the stand-in."""
    rules = dict(logic.grammar._rules)
    if instruction is None:
        return rules
    for name, options in rules.items():
        if any(_STAND_IN in str(symbol) for rule in options for symbol in rule.rhs):
            rules[name] = [
                textgen.ProductionRule(
                    rule.lhs,
                    [s for symbol in rule.rhs for s in parse_template(str(symbol).replace(_STAND_IN, instruction))],
                    rule.weight,
                    rule.condition,
                )
                for rule in options
            ]
    return rules


def _split_instruction(grammar: str) -> tuple[str, str | None]:
    """A grammar differs from game to game in its instruction only: taken out, its parse serves every game.

    (grammar, None) if the instruction is not found or is more than plain words.
    """
    found = _INSTRUCTION.findall(grammar)
    if len(found) != 1 or _STAND_IN in grammar:
        return grammar, None
    return _INSTRUCTION.sub(lambda m: m.group(0).replace(m.group(1), _STAND_IN), grammar), found[0]


_STAND_IN = "INSTRUCTION OF THE GAME"
_INSTRUCTION = re.compile(r'"rhs":\s*"Your task is to: ([A-Za-z0-9 ,\'-]+)\."')


def parse_game(game: Mapping[str, Any], translations: Translations) -> Game:
    """Everything about a game that does not change while it is played."""
    from alfworld.agents.utils.misc import Demangler

    translation = translations.get(game["pddl_domain"], game["pddl_problem"])
    grammar, instruction = _split_instruction(game["grammar"])
    logic = _logic(game["pddl_domain"], grammar, tuple((n, tuple(s)) for n, s in translation.types))
    rules = _rules(logic, instruction)
    parsed = Game(translation, logic.actions, Grammar(rules), dict(translation.objects))
    facts: dict[Any, set[Any]] = {}
    for predicate, arguments in translation.init:
        fact = _fact(predicate, [Variable(a, parsed.kinds[a]) for a in arguments])
        facts.setdefault(fact.signature, set()).add(fact)
    engine = _take_library()
    try:
        engine.load_sas(translation.sas.encode("utf-8"))
        atoms = (fast_downward.Atom * engine.get_state_size())()
        engine.get_state(atoms)
        for atom in atoms:
            if not atom._name.startswith(b"NegatedAtom"):
                fact = parsed.proposition(atom._name)
                facts.setdefault(fact.signature, set()).add(fact)
    finally:
        _free_libraries.append(engine)
    parsed.initial = _Facts(logic, {signature: sorted(group) for signature, group in facts.items()})
    found = {v.name: v.type for group in facts.values() for fact in group for v in fact.arguments}
    for ident in sorted(found):
        entity = EntityInfo(ident, found[ident])
        entity.definite, entity.indefinite = "the", "a"
        parsed.entities[ident] = entity
    names = Demangler(game_infos=parsed.entities)
    for entity in parsed.entities.values():
        entity.name = names.demangle_alfred_name(entity.id)
    return parsed


_free_libraries: list[Any] = []
_games: OrderedDict[str, Game] = OrderedDict()
_guard = threading.Lock()


def _take_library() -> Any:
    return _free_libraries.pop() if _free_libraries else fast_downward.load_lib()


def read(root: Path | None, task: Task) -> dict[str, Any]:
    """The task's game: of its file, or what the file of a generated world would hold."""
    if is_location(task.location):
        return game_of(generated.scene_at(task.location, task.content_hash)[0], package_rules())
    return read_checked(root, task)


def load_game(root: Path | None, task: Task, translations: Translations) -> Game:
    """The parsed game of a task, from this process's memory if it is there."""
    with _guard:
        found = _games.get(task.content_hash)
        if found is not None:
            _games.move_to_end(task.content_hash)
            return found
    parsed = parse_game(read(root, task), translations)
    with _guard:
        _games[task.content_hash] = parsed
        while len(_games) > _KEPT_GAMES:
            _games.popitem(last=False)
    return parsed


class TextworldAlfworld(AlfworldEpisode):
    """One slot. root: folder of game files, None for generated worlds only; cache: where translations are kept."""

    def __init__(self, root: Path | None, max_steps: int, cache: Path) -> None:
        super().__init__(root, max_steps)
        home_for_packages(cache / "alfworld-package")
        self._translations = Translations(cache / "translations")
        self._library: Any = None
        self._buffer: Any = None
        self._game: Game | None = None
        self._state: _Facts | None = None
        self._operators: dict[str, tuple[int, int, bytes]] = {}  # command -> operator id, number of effects, name

    def close(self) -> None:
        """The native library is kept for the next environment of this process."""
        if self._library is not None:
            _free_libraries.append(self._library)
        self._library = self._game = self._state = None

    def _begin(self, task: Task) -> View:
        game = load_game(self.root, task, self._translations)
        if self._library is None:
            self._library = _take_library()
        self._library.load_sas(game.translation.sas.encode("utf-8"))
        self._game, self._state = game, game.initial.fresh()
        if game.intro is None:
            game.intro = game.grammar.derive("#intro#", Context(self._state, {}, {}, game.entities))
        return self._look_around(game.intro)

    def _act(self, command: str) -> View:
        game, state = self._game, self._state
        if game is None or state is None:
            raise EnvironmentFailure("no game is loaded")
        found = self._operators.get(command)
        if found is None:
            return View(NOTHING, self._view.commands, self._view.won)
        operator, effects, name = found
        atoms = (fast_downward.Atom * effects)()
        self._library.apply_operator(operator, atoms)
        for atom in atoms:
            state.add(game.proposition(atom._name))
        feedback = game.actions[name.split(b" ", 1)[0].decode("cp1252")].feedback_rule
        return self._look_around(game.grammar.derive(feedback, game.context(name, state)))

    def _look_around(self, text: str) -> View:
        """The view after a change: asks the native engine what can be done now and whether the goal holds."""
        game, state, library = self._game, self._state, self._library
        assert game is not None and state is not None
        count = library.get_applicable_operators_count()
        if self._buffer is None or len(self._buffer) < count:
            self._buffer = (fast_downward.Operator * max(256, 2 * count))()
        library.get_applicable_operators(self._buffer)
        operators: dict[str, tuple[int, int, bytes]] = {}
        seen: set[bytes] = set()
        for index in range(count):
            operator = self._buffer[index]
            name = operator._name
            if name in seen:
                continue
            seen.add(name)
            # several operators may have one command: the first is the one that the command means
            operators.setdefault(game.command(name, state), (operator.id, operator.nb_effect_atoms, name))
        self._operators = operators
        return View(text, tuple(sorted(operators)), bool(library.check_goal()))
