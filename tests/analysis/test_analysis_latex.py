"""LaTeX of every table: whole, harmless, and the same twice."""

from __future__ import annotations

import re
from typing import Any

import pytest

from analysis.collect import collect
from analysis.latex import _MEANING, escaped, latex, table
from analysis.render import Block, Document, Text
from analysis.tables import document, make_tables, write_main_table


def page(sweep: Any) -> Document:
    return document(make_tables(collect(sweep.out, sweep.name)))


def checked(text: str) -> str:
    """Braces and environments are balanced, and nothing is left that pdfLaTeX cannot set. Returns it sans comments."""
    text = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", text.replace("\\\\", "")):
        depth += 1 if brace == "{" else -1
        assert depth >= 0
    assert depth == 0
    opened: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+\*?)\}", text):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert opened == []
    assert {c for c in text if ord(c) > 255} == set()
    return text


def test_every_table_is_there_and_whole(teachers: Any) -> None:
    made = page(teachers)
    text = checked(latex(made, "retirement"))
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == text.count(r"\midrule") == len(made.blocks)
    for number, block in enumerate(made.blocks, 1):
        assert rf"\label{{tab:retirement:{number}}}" in text and escaped(block.title) in text
        for line in table(block, "x").splitlines():
            if line.endswith(r" \\"):
                assert len(re.findall(r"(?<!\\)&", line)) == len(block.header) - 1
    assert r"\item {}[a] grpo" in text and r"Skill-GRPO*" in text


def test_a_sweep_with_warnings_and_published_numbers_is_whole_too(sweep: Any) -> None:
    sweep.write_state("opid", 1, state="failed", error="50 % of $HOME_x & {more} #1 ~^\\")
    text = checked(latex(page(sweep), "main_table"))
    assert r"50 \% of \$HOME\_x \& \{more\} \#1 \textasciitilde{}\textasciicircum{}\textbackslash{}" in text
    assert r"\emph{75.0}" in text and r"$\approx$85.9\textdaggerdbl{}" in text


def test_bold_and_foreign_numbers_look_so() -> None:
    block = Block("T", ("a", "b", "c"), ((Text("x"), Text("1", strong=True), Text("2", foreign=True)),))
    text = table(block, "t")
    assert r"x & \textbf{1} & \emph{2} \\" in text and "resizebox" not in text and "tablenotes" not in text
    assert r"\begin{tabular}{@{}lrr@{}}" in text


def test_an_entry_that_begins_with_a_bracket_is_no_length() -> None:
    assert r"{}[1, 2] & {}[3] \\" in table(Block("T", ("a", "b"), ((Text("[1, 2]"), Text("[3]")),)), "t")


def test_wide_tables_are_shrunk_to_the_line() -> None:
    wide = Block("T", tuple("abcdefghi"), (tuple(Text(c) for c in "123456789"),))
    assert r"\resizebox{\linewidth}" in checked(table(wide, "t"))


@pytest.mark.parametrize("character", sorted(_MEANING))
def test_every_character_with_a_meaning_is_replaced(character: str) -> None:
    assert checked(escaped(f"a{character}b")) and escaped(character) != character


def test_the_file_is_written_and_the_same_twice(teachers: Any) -> None:
    first = write_main_table(teachers.out, "retirement")["tex"].read_bytes()
    assert write_main_table(teachers.out, "retirement")["tex"].read_bytes() == first
    assert first.decode() == latex(page(teachers), "retirement")
    assert str(teachers.out).encode() not in first
