"""A document as one HTML file: no script, no network, readable on a phone, in light and dark, and with the keyboard."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from analysis.render import RIGHT, Block, Document, Text

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --soft: #f3f5f8; --line: #c9d1da; --other: #5f6b78;
  --alarm: #8a4b00; --alarm-paper: #fff4e2; --focus: #0b62d6; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e8ee; --paper: #14181d; --soft: #1d232a; --line: #3b4652; --other: #9aa7b5; --alarm: #ffc57a;
    --alarm-paper: #33260f; --focus: #7db4ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 110rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
p, li { max-width: 62rem; } p.caption { color: var(--other); margin: .2rem 0 .6rem; font-size: .9rem; }
.lead { border-left: .3rem solid var(--alarm); background: var(--alarm-paper); padding: .6rem .9rem;
  margin: 0 0 .6rem; }
.lead p { margin: .2rem 0; } .warnings { color: var(--alarm); }
.feet { list-style: none; padding-left: 0; }
.frame { overflow-x: auto; border: 1px solid var(--line); border-radius: .3rem; }
.frame:focus-visible { outline: .2rem solid var(--focus); outline-offset: .1rem; }
table { border-collapse: separate; border-spacing: 0; font-size: .9rem; font-variant-numeric: tabular-nums;
  min-width: 100%; }
th, td { padding: .35rem .6rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line); }
tr:last-child > * { border-bottom: 0; } thead th { background: var(--soft); vertical-align: bottom; }
.r { text-align: right; } tbody th { font-weight: 400; }
th:first-child { position: sticky; left: 0; background: var(--paper); border-right: 1px solid var(--line); z-index: 1; }
thead th:first-child { background: var(--soft); }
.other { font-style: italic; color: var(--other); } abbr { text-decoration: underline dotted; cursor: help; }
@media (max-width: 40rem) { body { padding: .6rem; } th, td { padding: .3rem .4rem; }
  th:first-child { max-width: 42vw; white-space: normal; } }
@media print { .frame { overflow: visible; border: 0; } body { max-width: none; font-size: 8pt; } }
"""


def _entry(entry: Text) -> str:
    text = escape(entry.text)
    if entry.strong:
        text = f"<strong>{text}</strong>"
    if entry.foreign and text:
        text = f'<em class="other">{text}</em>'
    return f'<abbr title="{escape(entry.hint)}">{text}</abbr>' if entry.hint and text else text


def block_html(name: str, block: Block, level: int = 2) -> str:
    """One table with its heading and caption. name: id of the heading, free of markup."""
    classes = [' class="r"' if a == RIGHT else "" for a in block.alignment]
    head = "".join(f'<th scope="col"{c}>{escape(h)}</th>' for h, c in zip(block.header, classes, strict=True))
    body = []
    for row in block.rows:
        first, *rest = (_entry(entry) for entry in row)
        cells = "".join(f"<td{c}>{text}</td>" for text, c in zip(rest, classes[1:], strict=True))
        body.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    caption = f'<p class="caption">{escape(block.caption)}</p>\n' if block.caption else ""
    return (
        f'<h{level} id="{name}">{escape(block.title)}</h{level}>\n{caption}'
        f'<div class="frame" tabindex="0" role="region" aria-labelledby="{name}"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(body) + "\n</tbody></table></div>\n"
    )


def list_html(kind: str, texts: Sequence[str], style: str = "") -> str:
    """A list. kind: ul or ol; style: its class."""
    items = "".join(f"<li>{escape(text)}</li>\n" for text in texts)
    named = f' class="{style}"' if style else ""
    return f"<{kind}{named}>\n{items}</{kind}>\n"


def html(document: Document) -> str:
    """The whole page. Numbers of other people are grey and in italics."""
    lead = "".join(f"<p>{escape(line)}</p>" for line in document.lead)
    blocks = "".join(block_html(f"t{number}", block) for number, block in enumerate(document.blocks, 1))
    clean = f"<p>{escape(document.no_warnings)}</p>\n"
    told = list_html("ul", document.warnings, "warnings") if document.warnings else clean
    remarks = list_html("ul", document.footnotes, "feet")
    footed = f"<h2>{escape(document.sections[2])}</h2>\n{remarks}" if document.footnotes else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(document.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{escape(document.title)}</h1>\n<div class="lead">{lead}</div>\n{blocks}'
        f"<h2>{escape(document.sections[0])}</h2>\n{told}{footed}"
        f"<h2>{escape(document.sections[1])}</h2>\n{list_html('ol', document.notes)}</main>\n</body>\n</html>\n"
    )
