"""The packages' text grammar, evaluated without re-parsing.

The grammar itself (rules, conditions, templates) is parsed by the `textworld` package; conditions are answered by its
`State`. What is done here is the derivation: the package's own copies whole symbol trees and parses the same template
at every step, which is nearly all of its time. Texts are the same, and a test holds them against the package's.

Expressions inside a template (`{r.name or r.id}`) are read as names, attributes, strings, `+` and `or`; anything else
is refused, so that a game file cannot run code.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from textworld.envs.pddl import textgen
from textworld.logic import Rule

from envs.interface import EnvironmentFailure

Evaluate = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Context:
    """state: the facts; variables: name -> entity; mapping: placeholder -> variable; entities: id -> entity."""

    state: Any
    variables: Mapping[str, Any]
    mapping: Mapping[Any, Any]
    entities: Mapping[str, Any]


@lru_cache(maxsize=4096)
def parse_template(text: str) -> tuple[Any, ...]:
    """Symbols of a template. They are shared: nothing may change them."""
    return tuple(textgen._parse_and_convert(text, rule_name="symbols"))


@lru_cache(maxsize=1024)
def parse_query(condition: str) -> Any:
    return Rule.parse_conjunctive_query(condition)


@lru_cache(maxsize=1024)
def compile_expression(text: str) -> Evaluate:
    """A function of the variables. Raises EnvironmentFailure for anything but names, attributes, strings, + and or."""
    try:
        return _compile(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError) as error:
        raise EnvironmentFailure(f"the game's text grammar has the expression {text!r}: {error}") from error


def _compile(node: ast.expr) -> Evaluate:
    match node:
        case ast.Name(id=name):
            return lambda variables: variables[name]
        case ast.Constant(value=str(value)):
            return lambda variables: value
        case ast.Attribute(value=inner, attr=attribute) if not attribute.startswith("_"):
            of = _compile(inner)
            return lambda variables: getattr(of(variables), attribute)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            one, other = _compile(left), _compile(right)
            return lambda variables: one(variables) + other(variables)
        case ast.BoolOp(op=ast.Or(), values=values):
            options = [_compile(value) for value in values]

            def first_true(variables: Mapping[str, Any]) -> Any:
                found: Any = None
                for option in options:
                    found = option(variables)
                    if found:
                        break
                return found

            return first_true
    raise ValueError(f"{type(node).__name__} is not allowed there")


class Grammar:
    """rules: symbol -> production rules, as the package parsed them."""

    def __init__(self, rules: Mapping[str, Sequence[Any]]) -> None:
        self._rules = dict(rules)

    def derive(self, text: str, context: Context) -> str:
        """The text that a template stands for in this context. Raises EnvironmentFailure for an unknown symbol."""
        out: list[str] = []
        self._expand(parse_template(text), context, out)
        return "".join(out)

    def depends_on(self, text: str, fluents: frozenset[str]) -> frozenset[str] | None:
        """The variables that a template's text depends on; None if it may depend on the state or on anything else."""
        names: set[str] = set()
        for symbol in parse_template(text):
            found = _names(symbol, fluents)
            if found is None:
                return None
            names |= found
        return frozenset(names)

    def _expand(self, symbols: Sequence[Any], context: Context, out: list[str]) -> None:
        for symbol in symbols:
            if isinstance(symbol, textgen.TerminalSymbol):
                out.append(str(symbol))
            elif isinstance(symbol, textgen.NonterminalSymbol):
                self._expand(self._rule(str(symbol), context), context, out)
            elif isinstance(symbol, textgen.ListSymbol):
                self._expand_list(symbol, context, out)
            else:
                for inner, where in self._alternatives(symbol, context):
                    if inner is None:
                        out.append(str(compile_expression(symbol.expression)(where.variables)))
                    else:
                        self._expand((inner,), where, out)

    def _alternatives(self, symbol: Any, context: Context) -> list[tuple[Any, Context]]:
        """One (symbol, context) per match of a condition; (None, context) for an expression that is a text itself."""
        if isinstance(symbol, textgen.EvalSymbol):
            return [(None, context)]
        if isinstance(symbol, textgen.ConditionalSymbol):
            if not symbol.given:
                return [(symbol.expression, context)]
            return [(symbol.expression, where) for where in self._matches(symbol.given, context)]
        raise EnvironmentFailure(f"the game's text grammar has a symbol of unknown kind {type(symbol).__name__}")

    def _expand_list(self, symbol: Any, context: Context, out: list[str]) -> None:
        items = []
        for inner, where in self._alternatives(symbol.symbol, context):
            text: list[str] = []
            if inner is None:
                text.append(str(compile_expression(symbol.symbol.expression)(where.variables)))
            else:
                self._expand((inner,), where, text)
            items.append("".join(text))
        if len(items) < 2:
            if items:
                out.append(items[0])
            else:
                self._expand(self._rule("list_empty", context), context, out)
            return
        separator, last = (self._text(name, context) for name in ("list_separator", "list_last_separator"))
        out.append(separator.join(items[:-1]) + last + items[-1])

    def _text(self, name: str, context: Context) -> str:
        out: list[str] = []
        self._expand(self._rule(name, context), context, out)
        return "".join(out)

    def _rule(self, name: str, context: Context) -> Sequence[Any]:
        """Right-hand side of the first rule whose condition holds."""
        rules = self._rules.get(name)
        if not rules:
            raise EnvironmentFailure(f"the game's text grammar has no rule for #{name}#")
        for rule in rules:
            if not rule.condition or self._holds(rule.condition, context):
                right: Sequence[Any] = rule.rhs
                return right
        raise EnvironmentFailure(f"no rule for #{name}# of the game's text grammar applies in this state")

    def _holds(self, condition: str, context: Context) -> bool:
        found = context.state.all_assignments(parse_query(condition), context.mapping)
        return next(iter(found), None) is not None

    def _matches(self, condition: str, context: Context) -> list[Context]:
        out = []
        for mapping in context.state.all_assignments(parse_query(condition), context.mapping):
            named = {placeholder.name: context.entities[variable.name] for placeholder, variable in mapping.items()}
            out.append(
                Context(context.state, {**context.variables, **named}, {**context.mapping, **mapping}, context.entities)
            )
        return out


def _names(symbol: Any, fluents: frozenset[str]) -> set[str] | None:
    if isinstance(symbol, textgen.TerminalSymbol):
        return set()
    if isinstance(symbol, textgen.EvalSymbol):
        return {n.id for n in ast.walk(ast.parse(symbol.expression.strip(), mode="eval")) if isinstance(n, ast.Name)}
    if isinstance(symbol, textgen.ListSymbol):
        return _names(symbol.symbol, fluents)
    if isinstance(symbol, textgen.ConditionalSymbol):
        inner = _names(symbol.expression, fluents)
        if inner is None or not symbol.given:
            return inner
        for predicate in parse_query(symbol.given).preconditions:
            if predicate.name.removeprefix("not_") in fluents:
                return None
            inner |= {placeholder.name for placeholder in predicate.parameters}
        return inner
    return None
