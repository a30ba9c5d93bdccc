"""Figures of matplotlib, and the pictures that are made of them."""

import io
import re
import textwrap

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.patches import Patch  # noqa: E402
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator  # noqa: E402

from ddptools.common.text import duration  # noqa: E402
from ddptools.pictures.charts import Bars, Curves, Picture  # noqa: E402

STYLE = {
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # of names of cases, runs and files
    "svg.hashsalt": "ddpreport",
    "font.size": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.use": True,
}
MOST_TICKS = 12


def image_of(figure: Figure, kind: str) -> bytes:
    """`kind`: png or svg."""
    data = io.BytesIO()
    figure.savefig(data, format=kind, dpi=150, metadata={"Software" if kind == "png" else "Date": None})
    plt.close(figure)
    return data.getvalue()


def finish(figure: Figure, name: str, caption: str, chart: Curves | Bars | None = None) -> Picture:
    return Picture(file_name(name), caption, image_of(figure, "png"), chart)


def file_name(title: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", title).strip("-").lower()


def short(value: float) -> str:
    """At an axis: 5 M, 200 k."""
    for factor, unit in ((1e6, " M"), (1e3, " k")):
        if abs(value) >= 10 * factor or factor == 1e6 and abs(value) >= factor:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"


@plt.rc_context(STYLE)
def draw_curves(curves: Curves, name: str, caption: str) -> Picture:
    figure, axes = plt.subplots(figsize=(6, 3.6))
    for line in curves.lines:
        x, values, low, high = (list(column) for column in zip(*line.points))
        style = {"color": line.color, "label": line.label, "linewidth": 1.2}
        style |= {"marker": "o", "markersize": 3} if line.has_dots else {}
        style |= {"linestyle": "-" if line.dashes is None else (0, line.dashes)}
        axes.plot(x, values, **style)
        if low != high:
            axes.fill_between(x, low, high, color=line.color, alpha=0.15, linewidth=0)
    for x, color in curves.marks:
        axes.axvline(x, color=color, linestyle="--", linewidth=0.8)
    axes.set(xlabel=curves.x_label, ylabel=curves.y_label)
    _set_ticks(axes, curves)
    if len(curves.lines) > 1:
        axes.legend(fontsize=8)
    return finish(figure, name, caption, curves)


def _set_ticks(axes: Axes, curves: Curves) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    if curves.is_logarithmic:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1e4 * low else (1.0,)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        axes.yaxis.set_minor_locator(NullLocator())
    elif curves.from_zero:
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    if curves.x_names:
        places = range(0, len(curves.x_names), 1 + len(curves.x_names) // MOST_TICKS)
        axes.set_xticks(places, [curves.x_names[place] for place in places])
        return
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=not curves.is_time))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: duration(x) if curves.is_time else short(x)))


@plt.rc_context(STYLE)
def draw_bars(bars: Bars, name: str, caption: str) -> Picture:
    labels = ["\n".join(textwrap.wrap(bar.label, 52, max_lines=4)) for bar in bars.bars]
    lines = len(labels) * max(1 + label.count("\n") for label in labels)  # each has the room of the tallest
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.3 * lines))
    for row, bar in enumerate(bars.bars):
        left = 0.0
        for length, color in bar.parts:
            axes.barh(row, length, left=left, color=color, edgecolor="white", linewidth=0.5)
            left += length
        if bar.largest:
            axes.plot([bar.smallest, bar.largest], [row, row], color="black", linewidth=1)
        axes.text(max(left, bar.largest), row, f" {bar.text}", va="center", fontsize=8, in_layout=False)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set(xlabel=bars.x_label, xlim=(0, 1.4 * bars.longest))
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    if bars.legend:
        handles = [Patch(facecolor=color, label=label) for label, color in bars.legend.items()]
        columns = 3 if max(map(len, bars.legend)) < 25 else 2
        place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": columns}
        axes.legend(handles=handles, fontsize=8, frameon=False, **place)
    return finish(figure, name, caption, bars)
