"""`python -m methods`: the registered methods, their needs, knobs and deviations, as Markdown (docs/methods.md)."""

from __future__ import annotations

import dataclasses
import importlib
import json

from methods import registry
from methods.interface import MethodSpec

HEAD = """# Methods

Written by `python -m methods > docs/methods.md`; a test compares. Where paper and released code differ, both are
told, and what is done here. The maths are in the modules' docstrings; the rows that use a method, each value with its
source, are files in `sweeps/method/`. Whether a teacher is in the gradient is checked by a synthetic batch before
anything trains. A method of your own: [adding_a_method.md](adding_a_method.md).
"""


def render() -> str:
    parts = [HEAD]
    for name in registry.names():
        spec = registry.get(name)
        module = importlib.import_module(spec.build.__module__)
        summary = (module.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
        needs = ", ".join(f"`{n}`" for n in sorted(spec.needs)) or "nothing"
        parts.append(f"## `{name}`\n\n{summary}\n")
        parts.append(
            f"Module `{module.__name__}`, version {spec.version}; needs {needs}; {teacher(spec)}. {spec.paper}\n"
        )
        if spec.knobs is not None:
            parts.append(knobs(spec.knobs))
        if spec.deviations:
            rows = [[d.topic, d.paper, d.code, d.ours, d.source] for d in spec.deviations]
            parts.append(table(["topic", "paper", "released code", "here", "source"], rows))
    return "\n".join(parts)


def teacher(spec: MethodSpec) -> str:
    """What the gradient has of a teacher."""
    if spec.teacher_cancels:
        return "a teacher is scored but cancels out of the gradient (checked)"
    return "a teacher is in the gradient (checked)" if spec.uses_teacher else "no teacher"


def knobs(declared: type) -> str:
    """The method's own settings: meaning from the dataclass's docstring, then name, type and default."""
    meaning = " ".join((declared.__doc__ or "").split())
    rows = [[f"`method.knobs.{f.name}`", f"`{f.type}`", f"`{_default(f)}`"] for f in dataclasses.fields(declared)]
    return f"Knobs: {meaning}\n\n" + table(["knob", "type", "default"], rows)


def _default(item: dataclasses.Field[object]) -> str:
    if item.default is not dataclasses.MISSING:
        return json.dumps(item.default)
    if item.default_factory is not dataclasses.MISSING:
        return json.dumps(item.default_factory())
    return "required"


def table(head: list[str], rows: list[list[str]]) -> str:
    cells = [[cell.replace("|", "\\|") for cell in line] for line in (head, *rows)]
    lines = [f"| {' | '.join(line)} |" for line in cells]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]]) + "\n"


if __name__ == "__main__":
    print(render(), end="")
