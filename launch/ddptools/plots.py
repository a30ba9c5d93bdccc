"""The pictures of a report."""

import functools
import io
import re
import textwrap
from typing import Any

import matplotlib

matplotlib.use("Agg")

import numpy as np  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator  # noqa: E402

from ddptools.gradient_path import PathComparison  # noqa: E402
from ddptools.lost_time import Loss, digits, part_names, time_unit  # noqa: E402
from ddptools.measurements import PLACEMENT, Case, Experiment, Series, number_of, series_over, size_text  # noqa: E402
from ddptools.picture_file import Picture  # noqa: E402
from ddptools.tables import busbw_gbs_by_bytes, operation  # noqa: E402
from ddptools.words import efficiencies, number  # noqa: E402

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
NUMERIC = ("batch", "bucket-mb", "last-bucket-kb", "comm-ctas", "grad-accum", "seq")
MOST_SERIES = 10
MOST_CURVES = 16  # of bus bandwidth
LINES = ("-", "--", ":", "-.")
MOST_POINTS = 200  # of a series
MOST_BARS = 24
MOST_HEAT_MAPS = 4
MOST_CELLS = 16  # along one side of a heat map
BAR_EDGE = {"edgecolor": "white", "linewidth": 0.5}


def pictures(experiment: Experiment) -> list[Picture]:
    with plt.rc_context(STYLE):
        made = [*_scaling(experiment), *_numeric(experiment), *_bars(experiment), *_heat_maps(experiment)]
        return [*made, *_bus_bandwidth(experiment)]


def lost_time_picture(experiment: Experiment, found: list[Loss]) -> Picture:
    with plt.rc_context(STYLE):
        return _lost_time(experiment, found[:MOST_BARS])


def finish(figure: Figure, name: str, caption: str) -> Picture:
    svg, png = io.StringIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    plt.close(figure)
    text = svg.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    return Picture(file_name(name), caption, _own_ids(text, file_name(name)), png.getvalue())


def _own_ids(svg: str, prefix: str) -> str:
    """Ids that are the picture's own, as many pictures share a page."""
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', svg)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", svg)


def file_name(title: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", title).strip("-").lower()


def _error_bars(cases: list[Case]) -> list[list[float]] | None:
    """None where one run shows no spread."""
    if all(len(case.rates) == 1 for case in cases):
        return None
    middles = [case.rate if len(case.rates) > 1 else np.nan for case in cases]
    return [[m - min(c.rates) for m, c in zip(middles, cases)], [max(c.rates) - m for m, c in zip(middles, cases)]]


def _wrapped(label: str) -> str:
    """On several lines, where it would leave the picture too little room."""
    return "\n".join(textwrap.wrap(label, 52, max_lines=4))


def _lines(labels: list[str]) -> int:
    """That all of them need where each has the room of the tallest."""
    return len(labels) * max(1 + label.count("\n") for label in labels)


def _from_zero(axes: Axes) -> None:
    """The vertical axis, with numbers as 5 M and room above the highest point."""
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    axes.yaxis.set_major_formatter(EngFormatter())


def _log_rates(axes: Axes) -> None:
    """For what is a straight line on two logarithmic axes; with numbers as 5 M."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(EngFormatter())
    axes.yaxis.set_minor_locator(NullLocator())
    low, high = axes.get_ylim()
    axes.set_ylim(low / 1.15, 1.15 * high)


def _scaling(experiment: Experiment) -> list[Picture]:
    if not experiment.over_ranks:
        return []
    series = series_over(experiment, "ranks", lambda case: case.ranks)
    shown = [(name, points) for name, points in series if len(points) > 1][:MOST_SERIES]
    if not shown:
        return []
    efficiency = any(points[0][1].ranks == 1 for _, points in shown)
    figure, panels = plt.subplots(1, 1 + efficiency, figsize=(9 if efficiency else 6, 3.6), squeeze=False)
    left, right = panels[0][0], panels[0][-1]
    for color, (name, points) in enumerate(shown):
        _scaling_series(left, right, f"C{color}", name, [case for _, case in points])
    ranks = sorted({case.ranks for _, points in shown for _, case in points})
    for axes in panels[0]:
        axes.set_xscale("log", base=2)
        axes.set_xticks(ranks, list(map(str, ranks)))
        axes.minorticks_off()
        axes.set_xlabel("ranks")
    left.set_ylabel(experiment.unit)
    _log_rates(left)
    left.legend(fontsize=8)
    if efficiency:
        right.axhline(100, color="gray", linestyle="--", linewidth=1)
        right.set_ylabel("scaling efficiency, %")
        right.set_ylim(0, max(105, right.get_ylim()[1]))
    shows = "Throughput of all ranks and efficiency" if efficiency else "Throughput of all ranks"
    ideal = "; dashed: ideal" if efficiency else ""
    caption = f"{shows}, median with smallest and largest{ideal}."
    return [finish(figure, f"{experiment.title} ranks", _caption(experiment, caption, len(series)))]


def _scaling_series(left: Axes, right: Axes, color: str, name: str, cases: list[Case]) -> None:
    ranks = [case.ranks for case in cases]
    mark = " (emulated)" if any(case.emulated for case in cases) else ""
    left.errorbar(
        ranks, [c.rate for c in cases], _error_bars(cases), color=color, marker="o", capsize=3, label=name + mark
    )
    one = cases[0]
    if one.ranks != 1:
        return
    left.plot(ranks, [one.rate * r for r in ranks], color=color, linestyle="--", linewidth=1)
    several = [case for case in cases[1:] if case.trains]
    values = [[100 * e for e in efficiencies(case, one)] for case in several]
    middles = [float(np.median(v)) for v in values]
    errors = [[m - min(v) for m, v in zip(middles, values)], [max(v) - m for m, v in zip(middles, values)]]
    right.errorbar([c.ranks for c in several], middles, errors, color=color, marker="o", capsize=3)


def _caption(experiment: Experiment, text: str, series: int = 0) -> str:
    left = f" {series - MOST_SERIES} more are left out." if series > MOST_SERIES else ""
    emulated = " Nodes are emulated where marked." if any(case.emulated for case in experiment.measured) else ""
    return f"{text}{left}{emulated}"


def _numeric(experiment: Experiment) -> list[Picture]:
    made = []
    for name in [name for name in NUMERIC if name in experiment.varied]:
        series = series_over(experiment, name, lambda case, n=name: number_of(case.settings.get(n, "")))
        shown = [(label, _thinned(points)) for label, points in series if len(points) > 2][:MOST_SERIES]
        if not shown:
            continue
        figure, axes = plt.subplots(figsize=(6, 3.6))
        for color, (label, points) in enumerate(shown):
            cases = [case for _, case in points]
            axes.errorbar(
                [x for x, _ in points],
                [c.rate for c in cases],
                _error_bars(cases),
                color=f"C{color}",
                marker="o",
                capsize=3,
                label=label,
            )
        values = sorted({x for _, points in shown for x, _ in points})
        axes.set_xscale("log", base=2) if values[0] > 0 else axes.set_xscale("symlog", base=2)
        axes.set_xticks(values[:: 1 + len(values) // 12], [f"{v:g}" for v in values[:: 1 + len(values) // 12]])
        axes.minorticks_off()
        axes.set(xlabel=name, ylabel=experiment.unit)
        _from_zero(axes)
        if len(shown) > 1:
            axes.legend(fontsize=8)
        caption = _caption(experiment, f"Throughput against {name}, median with smallest and largest.", len(series))
        made.append(finish(figure, f"{experiment.title} {name}", caption))
    return made


def _thinned(points: Series) -> Series:
    """Every so many of them, where there are more than can be seen."""
    return points[:: 1 + len(points) // MOST_POINTS]


def _bars(experiment: Experiment) -> list[Picture]:
    """A bar per case, where no axis is numeric."""
    names = [n for n in experiment.varied if n in PLACEMENT or (n in experiment.tuned and n not in NUMERIC)]
    cases = experiment.measured[:MOST_BARS]
    if not names or len(cases) < 2:
        return []
    labels = [_wrapped(experiment.label(case)) for case in cases]
    figure, axes = plt.subplots(figsize=(8, 0.8 + 0.28 * _lines(labels)))
    rows = np.arange(len(cases))
    others = PathComparison(experiment).against_references()
    colors = [_bar_color(case, case.key in others) for case in cases]
    axes.barh(rows, [c.rate for c in cases], xerr=_error_bars(cases), color=colors, capsize=2, **BAR_EDGE)
    axes.set_yticks(rows, labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(experiment.unit)
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.grid(False, axis="y")
    left = len(experiment.measured) - len(cases)
    rest = f" {left} more cases are left out." if left else ""
    gray = "" if all(case.trains for case in cases) else " Gray: without any all-reduce."
    purple = " Purple: gradients by another path than the reference's." if "C4" in colors else ""
    caption = _caption(experiment, f"Each case, median with smallest and largest.{gray}{purple}{rest}")
    return [finish(figure, f"{experiment.title} cases", caption)]


def _bar_color(case: Case, is_on_other_path: bool) -> str:
    if case.emulated:
        return "C1"
    if not case.trains:
        return "C7"
    return "C4" if is_on_other_path else "C0"


def _heat_maps(experiment: Experiment) -> list[Picture]:
    names = [n for n in experiment.varied if n in experiment.tuned or n in PLACEMENT]
    made = []
    for i, rows_name in enumerate(names):
        for columns_name in names[i + 1 :]:
            for context, cases in experiment.contexts([rows_name, columns_name]):
                if len(made) == MOST_HEAT_MAPS:
                    return made
                picture = _heat_map(experiment, rows_name, columns_name, context, cases)
                made += [picture] if picture else []
    return made


def _heat_map(experiment: Experiment, rows: str, columns: str, context: str, cases: list[Case]) -> Picture | None:
    def values(name: str) -> list[str]:
        return list(dict.fromkeys(c.settings.get(name, "") for c in experiment.cases))[:MOST_CELLS]

    row_values, column_values = values(rows), values(columns)
    cells = {(c.settings.get(rows, ""), c.settings.get(columns, "")): c for c in cases}
    grid = np.full((len(row_values), len(column_values)), np.nan)
    for i, row in enumerate(row_values):
        for j, column in enumerate(column_values):
            if (row, column) in cells:
                grid[i, j] = cells[row, column].rate
    if min(grid.shape) < 2 or np.isfinite(grid).sum() < 3:
        return None
    figure, axes = plt.subplots(figsize=(2.5 + 1.1 * len(column_values), 1.2 + 0.5 * len(row_values)))
    image = axes.imshow(grid, cmap="viridis", aspect="auto")
    middle = (np.nanmin(grid) + np.nanmax(grid)) / 2
    others = PathComparison(experiment).against_references()
    for (i, j), value in np.ndenumerate(grid):
        case = cells.get((row_values[i], column_values[j]))
        marks = [] if case is None else ["\nemulated"] * case.emulated + ["\nother path"] * (case.key in others)
        text = "no result" if case is None else "".join([number(value), *marks])
        axes.text(j, i, text, ha="center", va="center", fontsize=8, color="white" if value < middle else "black")
    axes.set_xticks(range(len(column_values)), [v or "unset" for v in column_values], fontsize=8)
    axes.set_yticks(range(len(row_values)), [v or "unset" for v in row_values], fontsize=8)
    axes.set(xlabel=columns, ylabel=rows)
    axes.grid(False)
    figure.colorbar(image, label=experiment.unit, format=EngFormatter())
    where = f" ({context})" if context else ""
    caption = _caption(experiment, f"{rows} x {columns}{where}, median {experiment.unit}.")
    return finish(figure, f"{experiment.title} {rows} {columns} {context}", caption)


def _bus_bandwidth(experiment: Experiment) -> list[Picture]:
    cases = [case for case in experiment.measured if busbw_gbs_by_bytes(case)]
    if not cases:
        return []
    shown = cases[:MOST_CURVES]
    *others, last = experiment.varied or [""]
    colors = list(dict.fromkeys(case.settings.get(last, "") for case in shown))
    lines = list(dict.fromkeys(tuple(case.settings.get(name, "") for name in others) for case in shown))
    figure, axes = plt.subplots(figsize=(8, 4))
    for case in shown:
        points = busbw_gbs_by_bytes(case)
        color = f"C{colors.index(case.settings.get(last, ''))}"
        line = LINES[lines.index(tuple(case.settings.get(name, "") for name in others)) % len(LINES)]
        label = experiment.label(case)
        axes.plot([s for s, _ in points], [b for _, b in points], line, color=color, marker=".", label=label)
    sizes = sorted({size for case in shown for size, _ in busbw_gbs_by_bytes(case)})
    ticks = sizes[:: 1 + len(sizes) // 10]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [size_text(size) for size in ticks], rotation=30, ha="right")
    axes.minorticks_off()
    axes.set(xlabel="size", ylabel="bus bandwidth, GB/s")
    _log_rates(axes)
    axes.legend(fontsize=8)
    left = f" {len(cases) - len(shown)} more are left out." if len(cases) > len(shown) else ""
    caption = _caption(experiment, f"Bus bandwidth of {operation(cases)} against size.{left}")
    return [finish(figure, f"{experiment.title} bus bandwidth", caption)]


def _lost_time(experiment: Experiment, found: list[Loss]) -> Picture:
    unit, factor = time_unit(found)
    labels = [_wrapped(f"{loss.label}: {digits(factor * loss.step_seconds)}\N{NO-BREAK SPACE}{unit}") for loss in found]
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.32 * _lines(labels)))
    rows = np.arange(len(found))
    left = np.array([max(0.0, 100 * loss.useful_seconds / loss.step_seconds) for loss in found])
    baselines = " or ".join(dict.fromkeys(loss.baseline for loss in found))
    axes.barh(rows, left, label=baselines, color="C7", **BAR_EDGE)
    for i, name in enumerate(part_names(found)):
        widths = np.array([max(0.0, 100 * loss.part_seconds.get(name, 0.0) / loss.step_seconds) for loss in found])
        axes.barh(rows, widths, left=left, label=name, color=f"C{i}", **BAR_EDGE)
        left += widths
    axes.set_yticks(rows, labels, fontsize=8)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set(xlabel="share of a step, %", xlim=(0, max(100.0, float(left.max()))))
    columns = 3 if max(map(len, [baselines, *part_names(found)])) < 25 else 2
    axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, frameon=False)
    return finish(figure, f"{experiment.title} lost time", _caption(experiment, "Where the time of a step went."))


def drawings(topology: dict[str, Any], name: str) -> list[Picture]:
    """The machine, its rings and trees, as ddptopo describes them; none where its drawing module is not there."""
    try:
        from ddptools import drawing
    except ImportError:
        return []
    hosts = topology.get("hosts") if isinstance(topology.get("hosts"), list) else []
    nccl = topology.get("nccl") if isinstance(topology.get("nccl"), dict) else {}
    wanted = [(drawing.draw_machine, hosts[0] if hosts else None, "the machine")]
    for name_of, draw_channels in (("rings", drawing.draw_rings), ("trees", drawing.draw_trees)):
        wanted.append((functools.partial(draw_channels, nccl=nccl), nccl.get(name_of), name_of))
    made = []
    with plt.rc_context(STYLE | {"axes.grid": False}):
        for draw, value, caption in wanted:
            if not value:
                continue
            try:
                height = 4.5 if draw is drawing.draw_machine else drawing.panels_height(value, 9.0)
                figure, axes = plt.subplots(figsize=(9.0, height))
                draw(axes, value)
                made.append(finish(figure, f"{name} {caption}", f"{name}: {caption}."))
            except (AttributeError, KeyError, TypeError, ValueError, IndexError):  # of another version
                plt.close("all")
    return made
