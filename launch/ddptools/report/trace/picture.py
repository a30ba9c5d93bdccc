"""A timeline as a picture, and the program behind `ddpreport --trace`."""

import pathlib
from collections.abc import Iterator

from matplotlib import pyplot as plt
from matplotlib.patches import Patch

from ddptools.common.errors import UsageError
from ddptools.common.files import write_atomically
from ddptools.common.table import to_text
from ddptools.common.values import grouped
from ddptools.pictures.figures import STYLE, image_of
from ddptools.report.trace.spans import (
    Interval,
    RankTrace,
    Span,
    covered,
    load_trace,
    part_table,
    rank_table,
    unit_of,
)

COLORS = {
    "step": "#d8dee4",
    "forward": "#8cb8e8",
    "backward": "#f0b37e",
    "other compute": "#cbb7e5",
    "waiting": "#f3dc7c",
    "update": "#a58a6f",
    "communication, hidden": "#8fce9b",
    "communication, exposed": "#e5737a",
}
WIDTH, ROW = 14.0, 0.2  # inches: of the picture, and the height of a row
LONGEST_NAME = 22  # of a rank, in characters
MOST_STEPS, MOST_RANKS, MOST_LEVELS = 4, 16, 8
NARROWEST = 1 / 2000  # of the width: shorter spans would not be seen


def report_trace(path: pathlib.Path, out: pathlib.Path | None, step: int | None) -> int:
    traces = load_trace(path)
    if out is not None and out.suffix not in (".svg", ".png"):
        raise UsageError(f"--out {out}: a timeline becomes a picture: give a name that ends in .svg or .png")
    shown = _window(traces, step)
    if out is not None:
        write_atomically(out, timeline(traces, shown, out.suffix[1:]))
    for table in (rank_table(traces), part_table(traces)):
        print(to_text(table))
    print("Hidden: share of communication that overlaps with forward or backward compute.")
    if out is not None:
        print(f"{out}: {min(len(traces), MOST_RANKS)} of {len(traces)} ranks")
    return 0


def _window(traces: list[RankTrace], step: int | None) -> Interval:
    """What is drawn: a step of all ranks, or the first few."""
    steps = min(len(trace.steps) for trace in traces)
    if step is not None and not 0 <= step < steps:
        raise UsageError(f"--step {step}: the trace has the steps 0 to {steps - 1}")
    chosen = [s for trace in traces for s in (trace.steps[:MOST_STEPS] if step is None else [trace.steps[step]])]
    begin = min(s.begin_us for s in chosen)
    return begin, max(*(s.end_us for s in chosen), begin + 1e-3)


def timeline(traces: list[RankTrace], shown: Interval, image: str) -> bytes:
    """`image`: png or svg."""
    rows = [row for trace in traces[:MOST_RANKS] for row in bars_of(trace)]
    begin, whole = shown[0], shown[1] - shown[0]
    unit, size = unit_of(whole)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH, 1 + ROW * len(rows)))
        for place, (_, bars) in enumerate(rows):
            for kind, intervals in bars.items():
                inside = [(max(b, begin), min(e, shown[1])) for b, e in intervals if b <= shown[1] and e >= begin]
                drawn = [((b - begin) / size, max(e - b, NARROWEST * whole) / size) for b, e in inside]
                style = {"facecolor": COLORS[kind], "edgecolor": "white", "linewidth": 0.2}
                axes.broken_barh(drawn, (place + 0.05, 0.9), **style)
        axes.set(xlim=(0, whole / size), ylim=(len(rows), 0), xlabel=unit)
        axes.set_yticks([place + 0.5 for place in range(len(rows))], [label for label, _ in rows], fontsize=7)
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
        used = {kind for _, bars in rows for kind in bars}
        handles = [Patch(facecolor=color, label=name) for name, color in COLORS.items() if name in used]
        place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "frameon": False}
        axes.legend(handles=handles, ncols=len(handles), fontsize=8, **place)
        return image_of(figure, image)


def bars_of(trace: RankTrace) -> Iterator[tuple[str, dict[str, list[Interval]]]]:
    """The rows of a rank, from top to bottom: what stands beside a row, and intervals by what their color says."""
    heading = trace.name if len(trace.name) <= LONGEST_NAME else f"{trace.name[: LONGEST_NAME - 3]}..."
    for name, spans in trace.rows.items():
        levels = max((span.level + 1 for span in spans), default=0)
        for level in range(min(levels, MOST_LEVELS)):
            drawn = (bar for span in spans if span.level == level for bar in _bars_of_span(trace, name, span))
            yield "" if level else f"{heading}  {name}".strip(), grouped(drawn)
        heading = "" if levels else heading


def _bars_of_span(trace: RankTrace, row: str, span: Span) -> list[tuple[str, Interval]]:
    """What is drawn later covers what is drawn before."""
    inside = (span.begin_us, span.end_us)
    if row != "communication":
        return [(kind_of(span) if row == "compute" else row, inside)]
    beside = covered(inside, trace.steps, trace.work, free_of=trace.waits)
    return [("communication, exposed", inside), *(("communication, hidden", part) for part in beside)]


def kind_of(span: Span) -> str:
    """Its own name tells, or that of the span around it."""
    if span.is_step:
        return "step"
    if span.is_wait:
        return "communication, exposed" if span.is_exchange else "waiting"
    for kind in ("forward", "backward"):
        if kind in span.name.split():
            return kind
    return kind_of(span.parent) if span.parent is not None and not span.parent.is_step else "other compute"
