"""A document of tables as LaTeX: one table environment per block, for `\\input` into a paper.

Needs booktabs, graphicx (a table that is larger than the page is shrunk to it), amssymb, and a preamble that reads
UTF-8: what every installation of LaTeX has. Everything that is no table stands in comments, but for warnings and
footnotes, which stand below the tables.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from analysis.render import Block, Document, Text

ROOM = 100  # characters beside each other on a line of footnote size; a wider table is cut into parts
MOST = 3  # parts; what is wider still is shrunk
FLOATS = 12  # tables that may wait for a page; LaTeX keeps a few dozen
TALL = 40  # rows from which on a table is shrunk to the height of the page too, if need be
# Shrunk to the line, or to most of the page, only where it is larger.
_TO_THE_LINE = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
_TO_THE_PAGE = r"\resizebox*{!}{\ifdim\totalheight>.8\textheight.8\textheight\else\totalheight\fi}{%"
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
% \usepackage{amssymb,booktabs,graphicx}
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


def breakable(text: str) -> str:
    """Escaped text whose names and paths may be broken after their signs: a line of prose has no room for them."""
    parts = re.split(r"(?<=[/_@=.])(?=[^\s/_@=.])", text)
    return r"\allowbreak{}".join(map(escaped, parts))


def _comment(text: str) -> str:
    return "\n".join(f"% {line}" for line in textwrap.wrap(text, 110)) or "%"


def parts(block: Block) -> list[tuple[int, ...]]:
    """Columns of each part of a table that is too wide: the leading ones of words, which name a row, stand in all."""
    widths = [max(map(len, (h, *(row[k].text for row in block.rows)))) + 2 for k, h in enumerate(block.header)]
    names = max(1, len(block.alignment) - len(block.alignment.lstrip("l")))
    while names > 1 and sum(widths[:names]) > ROOM // 2:
        names -= 1
    room = max(ROOM, sum(widths[:names]) + sum(widths[names:]) // MOST)
    named, found = tuple(range(names)), [list(range(names))]
    for column in range(names, len(block.header)):
        if len(found[-1]) > names and sum(widths[k] for k in (*found[-1], column)) > room and len(found) < MOST:
            found.append(list(named))
        found[-1].append(column)
    return [tuple(part) for part in found]


def table(block: Block, label: str) -> str:
    """One block. Numbers of other people are emphasised; label: for `\\ref`. Parts of a wide one are tables of their
    own, of which the first has the label and the last the notes."""
    groups = parts(block)
    made = []
    for number, columns in enumerate(groups, 1):
        title = block.title if len(groups) == 1 else f"{block.title} (part {number} of {len(groups)})"
        caption = block.caption if number == len(groups) else ""
        made.append(_float(block, columns, title, rf"\label{{tab:{label}}}" if number == 1 else "", caption))
    return "\n\n".join(made)


def _float(block: Block, columns: Sequence[int], title: str, label: str, caption: str) -> str:
    lines = [
        rf"\begin{{tabular}}{{@{{}}{''.join(block.alignment[k] for k in columns)}@{{}}}}",
        r"\toprule",
        " & ".join(escaped(block.header[k]) for k in columns) + r" \\",
        r"\midrule",
        *(" & ".join(_entry(row[k]) for k in columns) + r" \\" for row in block.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    for shrink in (_TO_THE_LINE, *([_TO_THE_PAGE] if len(block.rows) >= TALL else [])):
        lines = [shrink, *lines[:-1], lines[-1] + "}"]
    notes = [r"\par\smallskip", rf"\parbox{{\linewidth}}{{\footnotesize {escaped(caption)}}}"] if caption else []
    head = [r"\begin{table*}", r"\centering", r"\footnotesize", rf"\caption{{{escaped(title)}}}"]
    return "\n".join([*head, *([label] if label else []), *lines, *notes, r"\end{table*}"])


def latex(document: Document, name: str) -> str:
    """All tables, labelled `tab:<name>:<n>`; title, lead and notes as comments; footnotes and warnings as text."""
    written = [HEAD + "\n".join(_comment(text) for text in (document.title, *document.lead))]
    waiting = 0
    for number, block in enumerate(document.blocks, 1):
        written.append(table(block, f"{name}:{number}"))
        waiting += len(parts(block))
        if waiting >= FLOATS:
            written.append(r"\clearpage")
            waiting = 0
    for heading, texts in ((document.sections[2], document.footnotes), (document.sections[0], document.warnings)):
        if texts:
            items = "\n".join(rf"\item {{}}{breakable(text)}" for text in texts)
            shown = rf"\paragraph{{{escaped(heading)}}}"
            written.append(f"{shown}\n\\begin{{itemize}}\n\\sloppy\n{items}\n\\end{{itemize}}")
    written.append("\n".join(_comment(f"{n}. {note}") for n, note in enumerate(document.notes, 1)))
    return "\n\n".join(written) + "\n"
