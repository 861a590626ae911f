"""Texts in the place of the alfworld package's, so that game files can be written and read without it."""

from envs.alfworld.facts import TASK_TYPES
from envs.alfworld.layout import Rules

# What wins, in the predicates of the package and in other words.
_PLACE = (
    "(exists (?x#object ?y#receptacle) (and (objectType ?x {obj}Type) (inReceptacle ?x ?y) %s "
    "(receptacleType ?y {recep}Type)))"
)
_PUT = {
    "pick_clean_then_place_in_recep": _PLACE % "(isClean ?x)",
    "pick_heat_then_place_in_recep": _PLACE % "(heatable ?x) (isHot ?x)",
    "pick_cool_then_place_in_recep": _PLACE % "(isCool ?x)",
    "pick_two_obj_and_place": _PLACE
    % "(exists (?z#object) (and (not (= ?x ?z)) (objectType ?z {obj}Type) (inReceptacle ?z ?y)))",
}
_PLACE = _PLACE % ""
_LIT = (
    "(exists (?w#agent ?x#object) (and (objectType ?x {obj}Type) (holds ?w ?x))) (exists (?z#object ?y#receptacle) "
    "(and (objectType ?z {toggle}Type) (isToggled ?z) (inReceptacle ?z ?y)))"
)
# In the place of the package's texts: what the native engine reads of them, and something to change.
STAND_IN = Rules(
    domain="(define (domain stand-in)\n ; a comment\n (:predicates (put ?x)))\n",
    grammar="""
{ "intro": [ { "rhs": "You put things." } ] }
{ "task": [ { "rhs": "Your task is to: UNKNOWN GOAL." } ] }
{ "help.feedback": [ { "rhs": "\\nAsk nobody.\\n" } ] }
""",
    goals={
        kind: "(:goal (and " + (_LIT if kind == "look_at_obj_in_light" else _PUT.get(kind, _PLACE)) + "))"
        for kind in TASK_TYPES
    },
)
