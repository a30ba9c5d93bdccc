"""Blocks as one HTML page or as Markdown."""

import dataclasses
import json
import pathlib
import re
from typing import Any

import jinja2
import markupsafe

from ddptools.common.table import Table
from ddptools.common.text import number
from ddptools.page.blocks import Block, Heading, pictures_of
from ddptools.pictures.charts import Bars, Curves

LONGEST_LINE = 24  # of a cell, in characters
NUMBER = re.compile(r"[-+]?\d[\d,.]*(e[-+]\d+)?%?( M)?( \(| \+- |$| us| [KMG]?i?B$| emulated$)")
MARKS = ("disturbed", "too noisy")  # of cells that are not bold in the row of the best case
MARKDOWN = re.compile(r"[\\`*_\[\]|~$]")  # characters that mean something within a line
SPREAD = re.compile(r"\([^()]+ to [^()]+\)")
DYGRAPHS = pathlib.Path("/usr/share/javascript/dygraphs/dygraph.min.js")  # the package libjs-dygraphs


def to_html(title: str, blocks: list[Block], refresh_seconds: int = 0) -> str:
    """Curves are drawn by dygraphs, which becomes a part of the page. Without it, their tables remain. With
    `refresh_seconds`, the browser reads the page again after this time."""
    sections = {block.text: i for i, block in enumerate(blocks, 1) if isinstance(block, Heading) and block.level == 2}
    charts = [picture.chart for picture in pictures_of(blocks)]
    has_curves = any(isinstance(chart, Curves) and not chart.is_single for chart in charts)
    library = DYGRAPHS.read_text(encoding="utf-8") if has_curves and DYGRAPHS.is_file() else ""
    html = _environment(autoescape=True).get_template("page.html.jinja")
    return html.render(
        title=title,
        blocks=_with_kinds(blocks),
        sections=sections,
        library=library,
        has_script=bool(library or refresh_seconds or any(map(_is_drawn_by_page, charts))),
        refresh_seconds=refresh_seconds,
    )


def _is_drawn_by_page(chart: Curves | Bars) -> bool:
    """Without dygraphs."""
    return isinstance(chart, Bars) or chart.is_single


def curves_data(chart: Curves) -> dict[str, Any]:
    """For page.js. A point is a list: its places on the axes, its value and, if they differ from it, its limits."""
    lines = [
        {
            "label": line.label,
            "color": line.color,
            "dashes": line.dashes,
            "has_dots": line.has_dots or len(line.points) == 1,
            "points": [
                [*map(_rounded, places), *map(_rounded, [value] if low == value == high else [value, low, high])]
                for places, value, low, high in line.points
            ],
        }
        for line in chart.lines
    ]
    return {
        "axes": [dataclasses.asdict(axis) for axis in chart.axes],
        "y_label": chart.y_label,
        "lines": lines,
        "is_logarithmic": chart.is_logarithmic,
        "from_zero": chart.from_zero,
        "at_most": chart.at_most,
        "marks": [[list(places), color] for places, color in chart.marks],
    }


def _rounded(value: float | None) -> float | int | None:
    """Nine digits: the places are counts of tokens, too."""
    if value is None:
        return None
    short = float(f"{value:.9g}")
    return int(short) if short.is_integer() else short


def to_markdown(title: str, blocks: list[Block]) -> str:
    """Without pictures."""
    return _environment(autoescape=False).get_template("page.md.jinja").render(title=title, blocks=_with_kinds(blocks))


def _with_kinds(blocks: list[Block]) -> list[tuple[str, Block]]:
    return [(type(block).__name__, block) for block in blocks]


def _environment(autoescape: bool) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "unbroken": _unbroken,
        "numeric_columns": _numeric_columns,
        "curves": lambda chart: json.dumps(curves_data(chart), allow_nan=False, separators=(",", ":")),
        "number": number,
        "plain": _plain,
        "literal": _literal,
        "cell": lambda text: _plain(text).replace("|", "\\|"),
    }
    environment.globals["cell_classes"] = _cell_classes
    environment.tests["bars"] = lambda chart: isinstance(chart, Bars)
    environment.tests["curves"] = lambda chart: isinstance(chart, Curves)
    return environment


def _numeric_columns(table: Table) -> list[bool]:
    return [_is_numeric([row[i] for row in table.rows]) for i in range(len(table.header))]


def _cell_classes(tag: str, text: str, is_numeric: bool) -> str:
    classes = {
        "text": not is_numeric,
        "long": tag == "td" and len(text) > LONGEST_LINE,
        "marked": tag == "td" and any(mark in text for mark in MARKS),
    }
    return " ".join(name for name, applies in classes.items() if applies)


def _unbroken(text: str) -> markupsafe.Markup:
    """A spread, which goes to the next line as a whole where a table is too wide."""
    return markupsafe.Markup(SPREAD.sub(lambda spread: spread[0].replace(" ", "&nbsp;"), str(markupsafe.escape(text))))


def _is_numeric(cells: list[str]) -> bool:
    """Whether most cells of a column that hold something hold a number, its spread or unit beside it."""
    filled = [cell for cell in cells if cell]
    numbers = [cell for cell in filled if NUMBER.match(cell)]
    return 2 * len(numbers) > len(filled)


def _plain(text: str) -> str:
    """On one line, and with nothing that Markdown would take for a tag."""
    return " ".join(text.split()).replace("<", "&lt;")


def _literal(text: str) -> str:
    """A text of any characters as a cell of Markdown shows it."""
    escaped = MARKDOWN.sub(r"\\\g<0>", text.replace("&", "&amp;").replace("<", "&lt;"))
    return escaped.replace("\n", "<br>").replace("\t", " ")
