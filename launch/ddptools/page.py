"""A report as blocks, written as one HTML page or as Markdown."""

import base64
import dataclasses
import os
import pathlib
import re

import jinja2
import markupsafe

from ddptools.plots import Picture
from ddptools.tables import Table

LONGEST_LINE = 24  # of a cell, in characters
LARGEST_SVG = 500_000  # characters of a picture; larger ones become PNG
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
    kinds = {Heading: "heading", Notes: "notes", Table: "table", Picture: "picture", str: "text"}
    return _template().render(title=title, blocks=[(kinds[type(block)], block) for block in blocks])


def _template() -> jinja2.Template:
    folder = pathlib.Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "unbroken": _unbroken,
        "base64": lambda data: base64.b64encode(data).decode(),
        "numeric_columns": _numeric_columns,
    }
    environment.globals |= {"largest_svg": LARGEST_SVG, "cell_classes": _cell_classes}
    return environment.get_template("page.html.jinja")


def _numeric_columns(table: Table) -> list[bool]:
    return [_is_numeric([row[i] for row in table.rows]) for i in range(len(table.header))]


def _cell_classes(tag: str, text: str, is_numeric: bool) -> str:
    return " ".join(["text"] * (not is_numeric) + ["long"] * (tag == "td" and len(text) > LONGEST_LINE))


def _unbroken(text: str) -> markupsafe.Markup:
    """A spread, which goes to the next line as a whole where a table is too wide."""
    escaped = str(markupsafe.escape(text))
    return markupsafe.Markup(re.sub(r"(\([^ ()]+) to ([^ ()]+\))", r"\1&nbsp;to&nbsp;\2", escaped))


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
