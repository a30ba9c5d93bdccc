"""The pictures of an experiment."""

import statistics
from collections.abc import Iterator

from ddptools.common.text import measured, number, size_text
from ddptools.pictures.charts import COLORS, GRAY, Axis, Bar, Bars, Curves, Line, Picture
from ddptools.report.sweeps.experiment import Case, Experiment, Series
from ddptools.report.sweeps.lost_time import ONE_RANK, Loss, drawn_parts, time_unit
from ddptools.report.sweeps.noise import Effects
from ddptools.report.sweeps.tables import busbw_gbs_by_bytes, operation
from ddptools.results.run import PLACEMENT

NUMERIC = ("batch", "bucket-mb", "last-bucket-kb", "comm-ctas", "grad-accum", "seq")
MOST_LINEAR_RANKS = 16  # with more, axes of scaling are logarithmic
MOST_SERIES = 10
MOST_POINTS = 200  # of a series
MOST_BARS = 24


def pictures(experiment: Experiment) -> list[Picture]:
    return [*_scaling(experiment), *_numeric(experiment), *_cases(experiment), *_bus_bandwidth(experiment)]


def _lines(series: list[tuple[str, Series]], names: list[str]) -> Iterator[Line]:
    """A line for each series, over `names` of numbers; of each case the median with the smallest and the largest."""
    for (label, points), color in zip(series, COLORS):
        rows = [((float(names.index(f"{x:g}")),), *_middle(case.rates)) for x, case in points]
        mark = " (emulated)" if any(case.emulated for _, case in points) else ""
        yield Line(label + mark, rows, color)


def _names(series: list[tuple[str, Series]]) -> list[str]:
    return [f"{value:g}" for value in sorted({x for _, points in series for x, _ in points})]


def _middle(values: list[float]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)


def _caption(experiment: Experiment, text: str, left_out: int = 0) -> str:
    return _with_remarks(text, left_out, any(case.emulated for case in experiment.measured))


def _with_remarks(text: str, left_out: int, is_emulated: bool) -> str:
    left = f" {left_out} more are left out." if left_out > 0 else ""
    return f"{text}{left}{' Nodes are emulated where marked.' if is_emulated else ''}"


def _scaling(experiment: Experiment) -> list[Picture]:
    series = experiment.series("ranks")
    shown = [(name, points) for name, points in series if len(points) > 1][:MOST_SERIES]
    if not shown:
        return []
    names = _names_of_ranks(shown)
    is_logarithmic = not _is_linear(shown)
    lines = list(_lines(shown, names))
    from_one = [(line, points) for line, (_, points) in zip(lines, shown) if points[0][1].ranks == 1]
    ideal = [_ideal(line, points) for line, points in from_one]
    text = f"Throughput of all ranks, median with smallest and largest{'; dashed: ideal' if ideal else ''}."
    curves = Curves([Axis("ranks", names)], experiment.unit, lines + ideal, is_logarithmic, not is_logarithmic)
    made = [Picture(_caption(experiment, text, len(series) - MOST_SERIES), curves)]
    return made + _efficiency(experiment, [points for _, points in from_one], [line for line, _ in from_one], names)


def _is_linear(series: list[tuple[str, Series]]) -> bool:
    return max(ranks for _, points in series for ranks, _ in points) <= MOST_LINEAR_RANKS


def _names_of_ranks(series: list[tuple[str, Series]]) -> list[str]:
    """Of places that are the number of ranks, so that ideal scaling is a straight line, or of one place each."""
    measured = _names(series)
    if not _is_linear(series):
        return measured
    return [f"{ranks}" if f"{ranks}" in measured else "" for ranks in range(MOST_LINEAR_RANKS + 1)]


def _ideal(line: Line, points: Series) -> Line:
    one = points[0][1].rate
    rows = [(place, *3 * (one * ranks,)) for (place, *_), (ranks, _) in zip(line.points, points)]
    return Line(f"{line.label}, ideal", rows, line.color, (5, 4), has_dots=False)


def _efficiency(experiment: Experiment, series: list[Series], lines: list[Line], names: list[str]) -> list[Picture]:
    shown = []
    for points, line in zip(series, lines):
        rows = [((float(names.index(f"{ranks:g}")),), *_middle([100 * e for e in experiment.efficiencies(case)]))
                for ranks, case in points if case.key in experiment.one_rank]  # fmt: skip
        shown += [Line(line.label, rows, line.color)] if rows else []
    if not shown:
        return []
    known = [float(place) for place, name in enumerate(names) if name]
    ends = (min(known), max(known))
    shown.append(Line("ideal", [((x,), 100.0, 100.0, 100.0) for x in ends], GRAY, (5, 4), False))
    curves = Curves([Axis("ranks", names)], "scaling efficiency, %", shown, from_zero=True)
    caption = _caption(experiment, "Efficiency: (rate on W ranks / W) / rate of the run of one rank.")
    return [Picture(caption, curves)]


def _numeric(experiment: Experiment) -> list[Picture]:
    made = []
    for name in NUMERIC:
        series = experiment.series(name)
        shown = [(label, points[:: 1 + len(points) // MOST_POINTS]) for label, points in series if len(points) > 2]
        shown = shown[:MOST_SERIES]
        if not shown:
            continue
        names = _names(shown)
        curves = Curves([Axis(name, names)], experiment.unit, list(_lines(shown, names)), from_zero=True)
        text = f"Throughput against {name}, median with smallest and largest."
        caption = _caption(experiment, text, len(series) - MOST_SERIES)
        made.append(Picture(caption, curves))
    return made


def _cases(experiment: Experiment) -> list[Picture]:
    names = [n for n in experiment.varied if n in PLACEMENT or (n in experiment.tuned and n not in NUMERIC)]
    cases = experiment.measured[:MOST_BARS]
    if not names or len(cases) < 2:
        return []
    effects = Effects(experiment)
    bars, legend = [], {}
    for case in cases:
        kind, color = _kind(case)
        legend |= {kind: color}
        text = ", ".join(filter(None, [number(case.rate), effects.text(case)]))
        spread = (min(case.rates), max(case.rates)) if len(case.rates) > 1 else (0.0, 0.0)
        bars.append(Bar(experiment.label(case), text, [(case.rate, color)], *spread))
    text = f"Each case, {experiment.unit}, median with smallest and largest; against its reference."
    caption = _caption(experiment, text, len(experiment.measured) - len(cases))
    drawn = Bars(experiment.unit, bars, legend if len(legend) > 1 else {})
    return [Picture(caption, drawn)]


def _kind(case: Case) -> tuple[str, str]:
    if case.emulated:
        return "emulated nodes", COLORS[1]
    if not case.trains:
        return "without any all-reduce", GRAY
    return "measured", COLORS[0]


def _bus_bandwidth(experiment: Experiment) -> list[Picture]:
    cases = [case for case in experiment.measured if busbw_gbs_by_bytes(case)]
    if not cases:
        return []
    shown = cases[: len(COLORS)]
    sizes = sorted({size for case in shown for size, _ in busbw_gbs_by_bytes(case)})
    lines = []
    for case, color in zip(shown, COLORS):
        points = [((float(sizes.index(size)),), rate, rate, rate) for size, rate in busbw_gbs_by_bytes(case)]
        lines.append(Line(experiment.label(case), points, color))
    caption = _caption(experiment, f"Bus bandwidth of {operation(cases)} against size.", len(cases) - len(shown))
    curves = Curves([Axis("size", list(map(size_text, sizes)))], "bus bandwidth, GB/s", lines, is_logarithmic=True)
    return [Picture(caption, curves)]


def lost_time_pictures(found: list[Loss], is_emulated: bool = False) -> list[Picture]:
    """One, or none if no step has parts that can be drawn."""
    drawn = [(loss, parts) for loss in found if (parts := drawn_parts(loss)) is not None]
    shown = drawn[:MOST_BARS]
    if not shown:
        return []
    unit, factor = time_unit([loss for loss, _ in shown])
    names = list(dict.fromkeys(name for _, parts in shown for name in parts))
    legend = dict(zip(names, [GRAY, *COLORS]))
    bars = []
    for loss, parts in shown:
        shares = [(100 * seconds / loss.step_seconds, legend[name]) for name, seconds in parts.items()]
        bars.append(Bar(loss.marked_label, f"{measured(factor * loss.step_seconds)}\N{NO-BREAK SPACE}{unit}", shares))
    text = "Parts of a step as shares of its time. The number to the right of a bar is the time of the step."
    if any(loss.useful_seconds - parts[ONE_RANK] >= 5e-4 * loss.step_seconds for loss, parts in shown):
        text += " Parts below 0 are taken off the baseline."
    return [Picture(_with_remarks(text, len(found) - len(shown), is_emulated), Bars("share of a step, %", bars, legend))]
