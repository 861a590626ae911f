"""A document of tables as LaTeX: one table environment per block, for `\\input` into a paper.

Needs booktabs, graphicx (tables wider than the page are shrunk to it), threeparttable (captions and notes as wide as
the table), and a preamble that reads UTF-8. Everything that is no table stands in comments, but for warnings and
footnotes, which stand below the table that they belong to.
"""

from __future__ import annotations

import textwrap

from analysis.render import Block, Document, Text

WIDE = 9  # columns from which on a table is shrunk to the width of the line
_MEANING = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # What no font of pdfLaTeX has.
    "−": r"$-$",
    "→": r"$\to$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "≤": r"$\leq$",
    "▲": r"$\blacktriangle$",
    "▼": r"$\blacktriangledown$",
    "Δ": r"$\Delta$",
    "λ": r"$\lambda$",
    "†": r"\textdagger{}",
    "‡": r"\textdaggerdbl{}",
    "ᵉ": r"\textsuperscript{e}",
    "·": r"\textperiodcentered{}",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "“": "``",
    "”": "''",
}
HEAD = r"""% Written from the records; the same records give the same bytes. In the preamble:
% \usepackage[T1]{fontenc}
% \usepackage{amssymb,booktabs,graphicx,threeparttable}
"""


def escaped(text: str) -> str:
    """Text in which nothing has a meaning to LaTeX."""
    return "".join(_MEANING.get(character, character) for character in text.replace("\n", " "))


def _entry(entry: Text) -> str:
    text = escaped(entry.text)
    if text.startswith("["):  # after a line break LaTeX would read it as a length
        text = "{}" + text
    if entry.foreign and text:
        text = rf"\emph{{{text}}}"
    return rf"\textbf{{{text}}}" if entry.strong else text


def _comment(text: str) -> str:
    return "\n".join(f"% {line}" for line in textwrap.wrap(text, 110)) or "%"


def table(block: Block, label: str) -> str:
    """One block. Numbers of other people are emphasised; label: for `\\ref`."""
    head = " & ".join(escaped(h) for h in block.header)
    rows = [" & ".join(map(_entry, row)) + r" \\" for row in block.rows]
    lines = [
        rf"\begin{{tabular}}{{@{{}}{block.alignment}@{{}}}}",
        r"\toprule",
        head + r" \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    if len(block.header) >= WIDE:
        lines = [r"\resizebox{\linewidth}{!}{%", *lines[:-1], lines[-1] + "}"]
    notes = [r"\begin{tablenotes}", r"\footnotesize", rf"\item {escaped(block.caption)}", r"\end{tablenotes}"]
    return "\n".join(
        [
            r"\begin{table*}",
            r"\centering",
            r"\begin{threeparttable}",
            rf"\caption{{{escaped(block.title)}}}",
            rf"\label{{tab:{label}}}",
            *lines,
            *(notes if block.caption else []),
            r"\end{threeparttable}",
            r"\end{table*}",
        ]
    )


def latex(document: Document, name: str) -> str:
    """All tables, labelled `tab:<name>:<n>`; title, lead and notes as comments; footnotes and warnings as text."""
    parts = [HEAD + "\n".join(_comment(text) for text in (document.title, *document.lead))]
    parts += [table(block, f"{name}:{number}") for number, block in enumerate(document.blocks, 1)]
    for heading, texts in ((document.sections[2], document.footnotes), (document.sections[0], document.warnings)):
        if texts:
            items = "\n".join(rf"\item {{}}{escaped(text)}" for text in texts)
            shown = rf"\paragraph{{{escaped(heading)}}}"
            parts.append(f"{shown}\n\\begin{{itemize}}\n{items}\n\\end{{itemize}}")
    parts.append("\n".join(_comment(f"{n}. {note}") for n, note in enumerate(document.notes, 1)))
    return "\n\n".join(parts) + "\n"
