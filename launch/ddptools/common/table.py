"""A table, and how a terminal shows it."""

import dataclasses
import statistics

from ddptools.common.text import number


@dataclasses.dataclass
class Table:
    caption: str
    header: list[str]
    rows: list[list[str]]
    footnote: str = ""
    winners: list[int] = dataclasses.field(default_factory=list)  # rows that stand out


def to_text(table: Table) -> str:
    """For a terminal: the first column to the left, the others to the right."""
    lines = [table.header, *table.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.header))]
    text = f"{table.caption}\n"
    for line in lines:
        cells = [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))]
        text += f"  {'  '.join(cells)}\n"
    return f"{text}{table.footnote}\n" if table.footnote else text


def spread(values: list[float], show=number) -> str:
    if not values:
        return ""
    text = show(statistics.median(values))
    return f"{text} ({show(min(values))} to {show(max(values))})" if len(values) > 1 else text
