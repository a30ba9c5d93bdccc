"""A report as blocks, written as one HTML page or as Markdown."""

import base64
import dataclasses
import html
import os
import pathlib
import re

from ddptools.plots import Picture
from ddptools.tables import Table

STYLE = """
body { font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; color: #1b1f24; background: #fff; margin: 0 auto;
  max-width: 62rem; padding: 1.5rem; }
@media (min-width: 75rem) { .wide { width: max-content; max-width: calc(50vw + 29.5rem); } }
h1 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-bottom: 1px solid #d0d7de; } h3 { margin-top: 1.8rem; }
nav ul { columns: 2; padding-left: 1.2rem; } a { color: #0550ae; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; margin: .5rem 0 1.2rem; }
caption { text-align: left; padding: .3rem 0; color: #57606a; }
th, td { border: 1px solid #d0d7de; padding: .25rem .6rem; text-align: right; vertical-align: top; }
th { background: #f6f8fa; } td { white-space: nowrap; }
td.long { white-space: normal; overflow-wrap: break-word; }
td:first-child, th:first-child, .text { text-align: left; }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; }
figcaption, .footnote { color: #57606a; font-size: .85rem; }
.notes { background: #fff8c5; border: 1px solid #d4a72c; padding: .5rem 1rem; }
@media (prefers-color-scheme: dark) { body { filter: invert(.92) hue-rotate(180deg); background: #fff; } }
"""


LONGEST_LINE = 24  # of a cell, in characters
NUMBER = re.compile(r"[-+]?\d[\d,.]*(e[-+]\d+)?%?( \(|$| [KMG]?i?B$| emulated$)")


@dataclasses.dataclass
class Heading:
    level: int
    text: str


@dataclasses.dataclass
class Notes:
    """What the reader should know before the numbers."""

    lines: list[str]


Block = Heading | Notes | str | Table | Picture


def to_html(title: str, blocks: list[Block]) -> str:
    body, contents = [], []
    for block in blocks:
        if isinstance(block, Heading):
            anchor = f"section-{len(contents) + 1}"
            contents.append((block, anchor))
            body.append(f'<h{block.level} id="{anchor}">{html.escape(block.text)}</h{block.level}>')
        else:
            body.append(_html_block(block))
    items = [f'<li><a href="#{anchor}">{html.escape(h.text)}</a></li>' for h, anchor in contents if h.level == 2]
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{STYLE}</style>\n</head>\n'
        f"<body>\n<h1>{html.escape(title)}</h1>\n<nav><ul>\n" + "\n".join(items) + "\n</ul></nav>\n" + "\n".join(body)
    ) + "\n</body>\n</html>\n"


def _html_block(block: Block) -> str:
    if isinstance(block, Notes):
        return '<div class="notes">' + "".join(f"<p>{html.escape(line)}</p>" for line in block.lines) + "</div>"
    if isinstance(block, Table):
        return _html_table(block)
    if isinstance(block, Picture):
        picture = block.svg if len(block.svg) < 500_000 else _inline_png(block)
        return f"<figure>{picture}<figcaption>{html.escape(block.caption)}</figcaption></figure>"
    return f"<p>{html.escape(block)}</p>"


def _inline_png(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode()
    return f'<img alt="{html.escape(picture.caption)}" src="data:image/png;base64,{data}" style="max-width:100%">'


def _html_table(table: Table) -> str:
    numeric = [_is_numeric([row[i] for row in table.rows]) for i in range(len(table.header))]

    def line(tag: str, cells: list[str]) -> str:
        made = ""
        for number, text in zip(numeric, cells):
            names = ["text"] * (not number) + ["long"] * (tag == "td" and len(text) > LONGEST_LINE)
            kind = f' class="{" ".join(names)}"' if names else ""
            made += f"<{tag}{kind}>{_unbroken(html.escape(text))}</{tag}>"
        return made

    header = line("th", table.header) if any(table.header) else ""
    rows = "\n".join(f"<tr>{line('td', row)}</tr>" for row in table.rows)
    return (
        f'<div class="wide"><table><caption>{html.escape(table.caption)}</caption>\n'
        f"<thead><tr>{header}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    ) + (f'<p class="footnote">{html.escape(table.footnote)}</p>' if table.footnote else "")


def _unbroken(text: str) -> str:
    """A spread, which goes to the next line as a whole where a table is too wide."""
    return re.sub(r"(\([^ ()]+) to ([^ ()]+\))", r"\1&nbsp;to&nbsp;\2", text)


def _is_numeric(cells: list[str]) -> bool:
    """Whether most cells of a column that hold something hold a number, its spread or unit beside it."""
    filled = [cell for cell in cells if cell]
    numbers = [cell for cell in filled if NUMBER.match(cell)]
    return 2 * len(numbers) > len(filled)


def to_markdown(title: str, blocks: list[Block], file: pathlib.Path, pictures: pathlib.Path | None) -> str:
    """`pictures`: the folder where they are, as PNG; without it they are left out."""
    lines = [f"# {_plain(title)}"]
    for block in blocks:
        if isinstance(block, Heading):
            lines.append(f"{'#' * block.level} {_plain(block.text)}")
        elif isinstance(block, Notes):
            lines.append("\n".join(f"> {_plain(line)}" for line in block.lines))
        elif isinstance(block, Table):
            lines.append(_markdown_table(block))
        elif isinstance(block, Picture):
            if pictures is not None:
                path = os.path.relpath(pictures / f"{block.name}.png", file.parent)
                lines.append(f"![{_plain(block.caption)}]({path})")
        else:
            lines.append(_plain(block))
    return "\n\n".join(lines) + "\n"


def _markdown_table(table: Table) -> str:
    def row(cells: list[str]) -> str:
        return "| " + " | ".join(_plain(cell).replace("|", "\\|") for cell in cells) + " |"

    lines = [_plain(table.caption), "", row(table.header), "|" + " --- |" * len(table.header)]
    footnote = ["", _plain(table.footnote)] if table.footnote else []
    return "\n".join([*lines, *map(row, table.rows), *footnote])


def _plain(text: str) -> str:
    """On one line, and with nothing that Markdown would take for a tag."""
    return " ".join(text.split()).replace("<", "&lt;")
