"""LaTeX of every table: whole, harmless, and the same twice."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from analysis.collect import collect
from analysis.latex import _MEANING, MOST, TALL, breakable, escaped, latex, parts, table
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
    pieces = sum(len(parts(block)) for block in made.blocks)
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == text.count(r"\midrule") == pieces
    for number, block in enumerate(made.blocks, 1):
        assert rf"\label{{tab:retirement:{number}}}" in text and escaped(block.title) in text
        assert sorted({k for columns in parts(block) for k in columns}) == list(range(len(block.header)))
        for piece, columns in zip(table(block, "x").split("\n\n"), parts(block), strict=True):
            for line in piece.splitlines():
                if line.endswith(r" \\"):
                    assert len(re.findall(r"(?<!\\)&", line)) == len(columns) - 1
    assert r"\item {}[a] grpo" in text and r"Skill-GRPO*" in text


def test_a_sweep_with_warnings_and_published_numbers_is_whole_too(sweep: Any) -> None:
    sweep.write_state("opid", 1, state="failed", error="50 % of $HOME_x & {more} #1 ~^\\")
    text = checked(latex(page(sweep), "main_table"))
    assert r"50 \% of \$HOME\_x \& \{more\} \#1 \textasciitilde{}\textasciicircum{}\textbackslash{}" in text
    assert r"\emph{75.0}" in text and r"$\approx$85.9\textdaggerdbl{}" in text


def test_bold_and_foreign_numbers_look_so() -> None:
    block = Block("T", ("a", "b", "c"), ((Text("x"), Text("1", strong=True), Text("2", foreign=True)),))
    text = table(block, "t")
    assert r"x & \textbf{1} & \emph{2} \\" in text and "part" not in text and "parbox" not in text
    assert r"\begin{tabular}{@{}lrr@{}}" in text


def test_an_entry_that_begins_with_a_bracket_is_no_length() -> None:
    assert r"{}[1, 2] & {}[3] \\" in table(Block("T", ("a", "b"), ((Text("[1, 2]"), Text("[3]")),)), "t")


def test_wide_tables_are_cut_and_name_their_rows_in_every_part() -> None:
    header = ("row", "env", *(f"column {n}" for n in range(20)))
    row = (Text("grpo"), Text("alfworld"), *(Text("12.3 [10.1, 14.5]") for _ in range(20)))
    wide = Block("T", header, (row,), "What these are.", "ll" + "r" * 20)
    pieces = checked(table(wide, "t")).split("\n\n")
    assert len(pieces) == MOST and all(r"grpo & alfworld & " in piece for piece in pieces)
    assert [f"(part {n} of 3)" in piece for n, piece in enumerate(pieces, 1)] == [True] * 3
    assert [r"\label{tab:t}" in piece for piece in pieces] == [True, False, False]
    assert ["What these are." in piece for piece in pieces] == [False, False, True]
    assert "\n".join(pieces).count("column ") == 20


def test_tall_tables_are_shrunk_to_the_page() -> None:
    rows = tuple((Text(str(n)), Text("1")) for n in range(TALL))
    assert r"\totalheight" in checked(table(Block("T", ("a", "b"), rows), "t"))
    assert r"\totalheight" not in table(Block("T", ("a", "b"), rows[1:]), "t")


def test_names_in_prose_may_be_broken() -> None:
    assert breakable("see a/b_c.py, x == 1.") == (r"see a/\allowbreak{}b\_\allowbreak{}c.\allowbreak{}py, x == 1.")


def _table_of_everything() -> Document:
    """Every character that is replaced, in every place, wide and tall."""
    every = " ".join(sorted(_MEANING))
    wide = tuple(Text(f"[{every[:9]}", strong=k % 2 == 0, foreign=k % 3 == 0) for k in range(12))
    blocks = (
        Block(every, tuple(f"{every[k]} {k}" for k in range(12)), (wide,) * 60, every),
        *(Block(f"Small {n}", ("a", "b"), ((Text("x"), Text("1")),)) for n in range(60)),
    )
    return Document("T", (every,), blocks, (every,), (every,), (every, "a/long/path/" * 30))


@pytest.mark.slow
def test_pdflatex_sets_the_tables(teachers: Any, tmp_path: Path) -> None:
    """By pdfLaTeX where there is one; elsewhere the same texts must be whole and hold nothing it cannot set."""
    texts = {"real": latex(page(teachers), "real"), "everything": latex(_table_of_everything(), "everything")}
    compiler = shutil.which("pdflatex")
    for name, text in texts.items():
        checked(text)
        if compiler is None:
            continue
        (tmp_path / f"{name}_tables.tex").write_text(text, encoding="utf-8")
        (tmp_path / f"{name}.tex").write_text(
            "\\documentclass{article}\n\\usepackage{amssymb,booktabs,graphicx}\n\\begin{document}\n"
            f"\\input{{{name}_tables}}\n\\end{{document}}\n",
            encoding="utf-8",
        )
        command = [compiler, "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", f"{name}.tex"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=300)
        assert done.returncode == 0, done.stdout[-2000:]
        assert "too large" not in done.stdout and "Overfull" not in done.stdout, done.stdout[-4000:]
        assert (tmp_path / f"{name}.pdf").stat().st_size > 10_000


@pytest.mark.parametrize("character", sorted(_MEANING))
def test_every_character_with_a_meaning_is_replaced(character: str) -> None:
    assert checked(escaped(f"a{character}b")) and escaped(character) != character


def test_the_file_is_written_and_the_same_twice(teachers: Any) -> None:
    first = write_main_table(teachers.out, "retirement")["tex"].read_bytes()
    assert write_main_table(teachers.out, "retirement")["tex"].read_bytes() == first
    assert first.decode() == latex(page(teachers), "retirement")
    assert str(teachers.out).encode() not in first
