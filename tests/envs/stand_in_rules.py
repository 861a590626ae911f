"""Texts in the place of the alfworld package's, so that game files can be written and read without it."""

from envs.alfworld.facts import TASK_TYPES
from envs.alfworld.layout import Rules

# In the place of the package's texts: what the native engine reads of them, and something to change.
STAND_IN = Rules(
    domain="(define (domain stand-in)\n ; a comment\n (:predicates (put ?x)))\n",
    grammar="""
{ "intro": [ { "rhs": "You put things." } ] }
{ "task": [ { "rhs": "Your task is to: UNKNOWN GOAL." } ] }
{ "help.feedback": [ { "rhs": "\\nAsk nobody.\\n" } ] }
""",
    goals=dict.fromkeys(TASK_TYPES, "(:goal (and (wanted {obj} {recep} {toggle})))"),
)
