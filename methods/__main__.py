"""`python -m methods`: the registered methods with their needs and deviations, as Markdown (docs/methods.md)."""

from __future__ import annotations

import importlib

from methods import registry

HEAD = """# Methods

Written by `python -m methods > docs/methods.md`; a test compares. Where paper and released code differ, both are
told, and what is done here. The maths are in the modules' docstrings.
"""


def render() -> str:
    parts = [HEAD]
    for name in registry.names():
        spec = registry.get(name)
        module = importlib.import_module(spec.build.__module__)
        summary = (module.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")
        needs = ", ".join(f"`{n}`" for n in sorted(spec.needs)) or "nothing"
        teacher = "a teacher in the gradient (checked)" if spec.uses_teacher else "no teacher"
        parts.append(f"## `{name}`\n\n{summary}\n\nVersion {spec.version}; needs {needs}; {teacher}. {spec.paper}\n")
        if spec.deviations:
            rows = [f"| {d.topic} | {d.paper} | {d.code} | {d.ours} | {d.source} |" for d in spec.deviations]
            parts.append(
                "\n".join(["| topic | paper | released code | here | source |", "|---|---|---|---|---|", *rows]) + "\n"
            )
    return "\n".join(parts)


if __name__ == "__main__":
    print(render(), end="")
