"""A timeline as a picture, and the program behind `ddpreport --trace`."""

import pathlib

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from ddptools.common.errors import UsageError
from ddptools.common.files import write_bytes_atomically
from ddptools.common.table import to_text
from ddptools.common.values import grouped
from ddptools.pictures.charts import Picture
from ddptools.pictures.figures import STYLE, finish
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
    "communication beside compute": "#8fce9b",
    "communication, exposed": "#e5737a",
}
WIDTH, LEFT, RIGHT = 14.0, 1.6, 0.15  # inches: of all, and free beside the drawing
ROW, GAP = 0.24, 0.16  # inches: the height of a level, between ranks
TEXT = 7.0  # points
CHARACTER = 0.58 * TEXT  # points
LONGEST_NAME = 22  # of a rank, in characters
MOST_STEPS, MOST_RANKS, MOST_LEVELS = 4, 16, 8
RESOLUTION = 1 / 4000  # of the width: what is shorter is drawn together with its neighbours


def report_trace(path: pathlib.Path, out: pathlib.Path | None, step: int | None) -> int:
    traces = load_trace(path)
    if out is not None and out.suffix not in (".svg", ".png"):
        raise UsageError(f"--out {out}: a timeline becomes a picture: give a name that ends in .svg or .png")
    shown = _window(traces, step)
    if out is not None:
        picture = timeline_picture(traces, shown)
        write_bytes_atomically(out, (picture.svg + "\n").encode() if out.suffix == ".svg" else picture.png)
    for table in (rank_table(traces), part_table(traces)):
        print(to_text(table))
    print("Beside compute: of the time in communication, what passes while forward or backward compute and do not wait.")
    if out is not None:
        print(f"{out}: {', '.join(_captions(traces, shown))}")
    return 0


def _window(traces: list[RankTrace], step: int | None) -> Interval:
    """What is drawn: a step of all ranks, or the first few."""
    steps = min(len(trace.steps) for trace in traces)
    if step is not None and not 0 <= step < steps:
        raise UsageError(f"--step {step}: the trace has the steps 0 to {steps - 1}")
    chosen = [s for trace in traces for s in (trace.steps[:MOST_STEPS] if step is None else [trace.steps[step]])]
    begin = min(s.begin_us for s in chosen)
    return begin, max(*(s.end_us for s in chosen), begin + 1e-3)


def _captions(traces: list[RankTrace], shown: Interval) -> list[str]:
    steps = sum(shown[0] <= s.begin_us and s.end_us <= shown[1] for s in traces[0].steps)
    ranks = f"{min(len(traces), MOST_RANKS)} of {len(traces)} ranks"
    return [ranks, f"{steps} of {len(traces[0].steps)} steps"]


def timeline_picture(traces: list[RankTrace], shown: Interval) -> Picture:
    drawn = traces[:MOST_RANKS]
    height = sum(_height(trace) for trace in drawn)
    free = 1.0  # inches for the axis and the legend
    with plt.rc_context(STYLE | {"figure.constrained_layout.use": False, "axes.spines.left": False}):
        figure, axes = plt.subplots(figsize=(WIDTH, height + free))
        total = height + free
        figure.subplots_adjust(LEFT / WIDTH, 0.5 / total, 1 - RIGHT / WIDTH, 1 - 0.5 / total)
        unit, size = unit_of(shown[1] - shown[0])
        axes.set(xlim=(0, (shown[1] - shown[0]) / size), ylim=(height, 0), xlabel=unit, yticks=[])
        axes.grid(False, axis="y")
        top = 0.0
        for trace in drawn:
            _draw_rank(Canvas(axes, shown, size), trace, top)
            top += _height(trace)
        _legend(axes, drawn)
        return finish(figure, "timeline", ", ".join(_captions(traces, shown)))


class Canvas:
    def __init__(self, axes: Axes, shown: Interval, size: float) -> None:
        self.axes, self.shown, self.size = axes, shown, size
        self.points_each = 72 * (WIDTH - LEFT - RIGHT) / (shown[1] - shown[0])  # of a microsecond

    def bars(self, intervals: list[Interval], top: float, color: str) -> None:
        """Such as lie in the window; what cannot be told apart becomes one."""
        smallest = RESOLUTION * (self.shown[1] - self.shown[0])
        joined: list[Interval] = []
        for begin, end in sorted(intervals):
            begin, end = max(begin, self.shown[0]), min(end, self.shown[1])
            if begin > end:
                continue
            if joined and begin - joined[-1][1] < smallest and end - joined[-1][0] < 8 * smallest:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((begin, end))
        parts = [((b - self.shown[0]) / self.size, max(e - b, smallest) / self.size) for b, e in joined]
        edge = {"edgecolor": "white", "linewidth": 0.4}
        self.axes.broken_barh(parts, (top + 0.02, ROW - 0.04), facecolor=COLORS[color], **edge)

    def name(self, span: Span, top: float) -> None:
        begin, end = max(span.begin_us, self.shown[0]), min(span.end_us, self.shown[1])
        short = span.name.rpartition(" ")[0]  # "h.3 forward", "bucket 0 gradients" without their last words
        names = [span.name, short] if short[-1:].isdigit() else [span.name]
        most = ((end - begin) * self.points_each - 4) / CHARACTER
        if text := next((name for name in names if len(name) <= most), ""):
            x = ((begin + end) / 2 - self.shown[0]) / self.size
            style = {"ha": "center", "va": "center", "fontsize": TEXT, "clip_on": True}
            self.axes.text(x, top + ROW / 2, text, **style)


def kind_of(span: Span) -> str:
    """Its own name tells, or that of the span around it."""
    if span.is_step:
        return "step"
    if span.is_wait:
        return "waiting"
    for kind in ("forward", "backward"):
        if kind in span.name.split():
            return kind
    return kind_of(span.parent) if span.parent is not None and not span.parent.is_step else "other compute"


def _levels(spans: list[Span]) -> int:
    return min(max((span.level + 1 for span in spans), default=0), MOST_LEVELS)


def _height(trace: RankTrace) -> float:
    return GAP + ROW * (_levels(trace.compute) + _levels(trace.updates) + max(_levels(trace.communication), 1))


def _draw_rank(canvas: Canvas, trace: RankTrace, top: float) -> None:
    canvas.axes.axhline(top, color="#8c959f", linewidth=0.6)
    name = trace.name if len(trace.name) <= LONGEST_NAME else f"{trace.name[: LONGEST_NAME - 3]}..."
    _label(canvas, name, top + GAP / 2 + ROW / 2, 0.1 - LEFT, ha="left", fontweight="bold")
    top += GAP / 2
    for label, spans in (("compute", trace.compute), ("update", trace.updates)):
        if spans:
            _label(canvas, label, top + ROW * (1.5 if label == "compute" else 0.5), -0.1)
            kinds = ((span, "update" if label == "update" else kind_of(span)) for span in spans)
            groups = grouped(((span.level, kind), (span.begin_us, span.end_us)) for span, kind in kinds)
            _bars_and_names(canvas, groups, spans, top)
        top += ROW * _levels(spans)
    _label(canvas, "communication", top + ROW / 2, -0.1)
    _communication(canvas, trace, top)


def _bars_and_names(
    canvas: Canvas, groups: dict[tuple[int, str], list[Interval]], spans: list[Span], top: float
) -> None:
    for (level, kind), intervals in groups.items():
        if level < MOST_LEVELS:
            canvas.bars(intervals, top + ROW * level, kind)
    for span in spans:
        if span.level < MOST_LEVELS:
            canvas.name(span, top + ROW * span.level)


def _communication(canvas: Canvas, trace: RankTrace, top: float) -> None:
    groups: dict[tuple[int, str], list[Interval]] = {}
    for span in trace.communication:
        inside = (span.begin_us, span.end_us)
        groups.setdefault((span.level, "communication, exposed"), []).append(inside)
        if beside := covered(inside, trace.steps, trace.work, free_of=trace.waits):
            groups.setdefault((span.level, "communication beside compute"), []).extend(beside)
    _bars_and_names(canvas, groups, trace.communication, top)


def _label(canvas: Canvas, text: str, y: float, inches: float, **style: str) -> None:
    """Beside the drawing; `inches` from its left edge."""
    x = inches / (WIDTH - LEFT - RIGHT)
    style = {"ha": "right", "va": "center"} | style
    where = canvas.axes.get_yaxis_transform()
    canvas.axes.text(x, y, text, transform=where, fontsize=TEXT, **style)


def _legend(axes: Axes, drawn: list[RankTrace]) -> None:
    used = {kind_of(span) for trace in drawn for span in trace.compute}
    used |= {"update"} if any(trace.updates for trace in drawn) else set()
    used |= {"communication beside compute", "communication, exposed"} if any(t.communication for t in drawn) else set()
    handles = [Patch(facecolor=color, label=name) for name, color in COLORS.items() if name in used]
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "frameon": False}
    axes.legend(handles=handles, ncols=max(len(handles), 1), fontsize=8, **place)
