"""A document of tables, and what becomes of it: Markdown, and plain text for a terminal. HTML is in page.py."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

LEFT, RIGHT = "l", "r"


@dataclass(frozen=True, slots=True)
class Text:
    """One table entry. strong: bold; foreign: a number of other people, never in the type of ours; hint: tooltip."""

    text: str
    strong: bool = False
    foreign: bool = False
    hint: str = ""


@dataclass(frozen=True)
class Block:
    """One table. align: one of l, r per column; caption: what the numbers are."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Text, ...], ...]
    caption: str = ""
    align: str = ""

    def __post_init__(self) -> None:
        wrong = [len(row) for row in self.rows if len(row) != len(self.header)]
        if wrong or (self.align and len(self.align) != len(self.header)):
            raise ValueError(f"table {self.title!r}: {len(self.header)} columns, but rows or alignment of {wrong}")

    @property
    def alignment(self) -> str:
        return self.align or LEFT + RIGHT * (len(self.header) - 1)


@dataclass(frozen=True)
class Document:
    """title, what must be read first, tables, what is wrong with the records, definitions, and remarks on rows."""

    title: str
    lead: tuple[str, ...]
    blocks: tuple[Block, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    footnotes: tuple[str, ...] = ()
    no_warnings: str = "None: every check of the records passed."
    sections: tuple[str, str, str] = field(default=("Warnings", "Notes", "Footnotes"))


# ---------------------------------------------------------------------------------------------- Markdown
def _escaped(text: str) -> str:
    """Markdown has no meaning in a label or a message."""
    for character in "\\`*_|<>":
        text = text.replace(character, "\\" + character)
    return text.replace("\n", " ")


def _markdown_text(entry: Text) -> str:
    text = _escaped(entry.text)
    if not text:
        return ""
    if entry.foreign:
        text = f"*{text}*"
    return f"**{text}**" if entry.strong else text


def markdown_block(block: Block) -> list[str]:
    """Title, caption and table of one block, as paragraphs."""
    rule = ["---:" if a == RIGHT else ":---" for a in block.alignment]
    rows = [[_escaped(h) for h in block.header], rule, *([_markdown_text(t) for t in row] for row in block.rows)]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return [f"## {_escaped(block.title)}", *([_escaped(block.caption)] if block.caption else []), table]


def markdown(document: Document) -> str:
    """GitHub-flavoured Markdown. Numbers of other people are in italics."""
    parts = [f"# {_escaped(document.title)}", *(f"> {_escaped(line)}" for line in document.lead)]
    for block in document.blocks:
        parts += markdown_block(block)
    parts.append(f"## {document.sections[0]}")
    parts.append("\n".join(f"- {_escaped(w)}" for w in document.warnings) or document.no_warnings)
    if document.footnotes:
        parts.append(f"## {document.sections[2]}")
        parts.append("\n".join(f"- {_escaped(text)}" for text in document.footnotes))
    parts.append(f"## {document.sections[1]}")
    parts.append("\n".join(f"{number}. {_escaped(note)}" for number, note in enumerate(document.notes, 1)))
    return "\n\n".join(parts) + "\n"


# ---------------------------------------------------------------------------------------------- plain text
def plain(document: Document, width: int = 118, warnings: int = 12) -> str:
    """Text for a terminal of `width` columns; at most so many warnings, the rest counted."""
    lines = [*_wrapped(document.title, width), ""]
    for paragraph in document.lead:
        lines += _wrapped(paragraph, width)
    for block in document.blocks:
        lines += ["", *_wrapped(block.title, width), *_table(block, width)]
        lines += _wrapped(block.caption, width) if block.caption else []
    lines.append("")
    shown = document.warnings[:warnings]
    if shown:
        lines.append(f"{document.sections[0]}:")
        for warning in shown:
            lines += _wrapped(warning, width, "  ! ")
        if len(document.warnings) > warnings:
            lines.append(f"  ! and {len(document.warnings) - warnings} more, in the files")
    else:
        lines.append(f"{document.sections[0]}: {document.no_warnings[0].lower()}{document.no_warnings[1:]}")
    for note in (*document.footnotes, *document.notes):
        lines += _wrapped(note, width)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _wrapped(text: str, width: int, first: str = "") -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=" " * len(first)) or [""]


def _table(block: Block, width: int) -> list[str]:
    """Aligned columns two spaces apart. In a table that is too wide headings wrap and columns of words give way."""
    rows = [tuple(entry.text for entry in row) for row in block.rows]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(len(block.header))]
    natural = [max(w, len(h)) for w, h in zip(widths, block.header, strict=True)]
    if sum(natural) + 2 * (len(natural) - 1) <= width:
        widths = natural
    else:
        widths = [max(w, min(len(h), 9), *map(len, h.split())) for w, h in zip(widths, block.header, strict=True)]
    for kind in (LEFT, RIGHT):  # numbers are cut only when there is no other way
        columns = [i for i, a in enumerate(block.alignment) if a == kind]
        while columns and sum(widths) + 2 * (len(widths) - 1) > width:
            widest = max(columns, key=lambda i: widths[i])
            if widths[widest] <= 8:
                break
            widths[widest] -= 1
    wrapped = [textwrap.wrap(h, w) or [""] for h, w in zip(block.header, widths, strict=True)]
    height = max(map(len, wrapped))
    head = [[""] * (height - len(w)) + w for w in wrapped]
    lines = [_line([column[i] for column in head], widths, block.alignment) for i in range(height)]
    return [*lines, "─" * max(map(len, lines)), *(_line(row, widths, block.alignment) for row in rows)]


def _line(row: Sequence[str], widths: Sequence[int], alignment: str) -> str:
    texts = [text if len(text) <= w else text[: w - 1] + "…" for text, w in zip(row, widths, strict=True)]
    return "  ".join(
        text.rjust(w) if a == RIGHT else text.ljust(w) for text, w, a in zip(texts, widths, alignment, strict=True)
    )
