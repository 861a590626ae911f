"""docs/methods.md is what the registry says."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from methods import registry
from methods.__main__ import knobs, render, table, teacher


def test_the_page_is_up_to_date():
    page = Path(__file__).parents[2] / "docs" / "methods.md"
    assert page.read_text(encoding="utf-8") == render(), "run: python -m methods > docs/methods.md"


def test_the_page_tells_each_method_with_its_knobs_and_deviations():
    page = render()
    for name in registry.names():
        spec = registry.get(name)
        part = page.split(f"## `{name}`\n")[1].split("\n## ")[0]
        assert teacher(spec) in part and f"version {spec.version};" in part
        for deviation in spec.deviations:
            assert deviation.ours.replace("|", "\\|") in part
        for knob in getattr(spec.knobs, "__dataclass_fields__", {}):
            assert f"`method.knobs.{knob}`" in part


def test_topics_of_deviations_are_told_once_each():
    for name in registry.names():
        topics = [d.topic for d in registry.get(name).deviations]
        assert len(topics) == len(set(topics)), name
        assert topics


def test_what_is_said_of_teachers():
    plain = registry.get("grpo")
    assert teacher(plain) == "no teacher"
    assert "is in the gradient" in teacher(replace(plain, uses_teacher=True))
    assert "cancels out" in teacher(replace(plain, teacher_cancels=True))


@dataclass(frozen=True)
class Knobs:
    """first: a number;  second: names"""

    needed: int
    first: float = 2.0
    second: list[str] = field(default_factory=list)


def test_knobs_and_tables():
    text = knobs(Knobs)
    assert text.startswith("Knobs: first: a number; second: names\n\n| knob | type | default |")
    assert "| `method.knobs.first` | `float` | `2.0` |" in text or "`<class 'float'>`" in text
    assert "`required`" in text and "`[]`" in text
    assert table(["a"], [["x|y"]]) == "| a |\n|---|\n| x\\|y |\n"
