"""A table, and how a terminal shows it."""

import dataclasses
import statistics
from collections.abc import Callable

from ddptools.common.text import number


@dataclasses.dataclass
class Table:
    caption: str
    header: list[str]
    rows: list[list[str]]
    footnote: str = ""
    winners: list[int] = dataclasses.field(default_factory=list)  # rows that stand out


def text_table(rows: list[list[str]], indent: int = 0, align: Callable[[str, int], str] = str.ljust) -> str:
    """The first column to the left, the others as `align` has it."""
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows)))]
    lines = ([row[0].ljust(widths[0]), *map(align, row[1:], widths[1:])] for row in rows)
    return "".join(f"{' ' * indent}{'  '.join(line).rstrip(' ')}\n" for line in lines)


def to_text(table: Table) -> str:
    """For a terminal."""
    text = f"{table.caption}\n{text_table([table.header, *table.rows], 2, str.rjust)}"
    return f"{text}{table.footnote}\n" if table.footnote else text


def spread(values: list[float], show=number) -> str:
    """Median, smallest and largest, if they differ as shown. Empty without values."""
    if not values:
        return ""
    text, smallest, largest = show(statistics.median(values)), show(min(values)), show(max(values))
    return f"{text} ({smallest} to {largest})" if smallest != largest else text
