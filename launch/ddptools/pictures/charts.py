"""Pictures of a page."""

import dataclasses
from typing import Any

# 3:1 at least against a white page and a dark one; red is kept for what is wrong.
COLORS = ("#3b7dd8", "#d9660f", "#2f9e44", "#8f63d6", "#1795a3", "#a0705a", "#c957a8", "#8a8a1f", "#5c73b8", "#7a828c")
GRAY = COLORS[-1]


@dataclasses.dataclass
class Axis:
    """Below curves. Pictures with several axes have a switch."""

    label: str
    names: list[str] = dataclasses.field(default_factory=list)  # of the places 0, 1, ..., "": no tick; empty: places are numbers
    is_time: bool = False  # places are seconds


Places = tuple[float | None, ...]  # on each axis; None: not known


@dataclasses.dataclass
class Line:
    label: str
    points: list[tuple[Places, float, float, float]]  # places, value, smallest and largest
    color: str
    dashes: tuple[int, int] | None = None  # pixels drawn and left out
    has_dots: bool = True


@dataclasses.dataclass
class Curves:
    axes: list[Axis]
    y_label: str
    lines: list[Line]
    is_logarithmic: bool = False
    from_zero: bool = False
    at_most: float | None = None  # the largest value that the axis has a label for
    marks: list[tuple[Places, str]] = dataclasses.field(default_factory=list)  # vertical lines: places and color

    @property
    def is_single(self) -> bool:
        """Whether no line has two points: numbers say more than a picture."""
        return all(len(line.points) < 2 for line in self.lines)


@dataclasses.dataclass
class Bar:
    label: str
    text: str  # behind the bar
    parts: list[tuple[float, str]]  # length and color
    smallest: float = 0.0
    largest: float = 0.0  # 0: one run, of which no spread is known

    @property
    def length(self) -> float:
        return sum(length for length, _ in self.parts)


@dataclasses.dataclass
class Bars:
    x_label: str
    bars: list[Bar]
    legend: dict[str, str] = dataclasses.field(default_factory=dict)  # names and colors of parts

    @property
    def longest(self) -> float:
        return max(max(bar.length, bar.largest) for bar in self.bars)


@dataclasses.dataclass
class Picture:
    caption: str
    chart: Curves | Bars
