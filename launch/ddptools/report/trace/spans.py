"""A timeline that `ddptrain --trace` has written (runtime/train/measure/trace.h), and what it tells of each rank."""

import collections
import dataclasses
import pathlib
import re
import statistics
from collections.abc import Iterable
from typing import Any

import numpy as np

from ddptools.common.errors import UsageError
from ddptools.common.files import from_json, no_pipe
from ddptools.common.table import Table
from ddptools.common.text import number, percent
from ddptools.common.values import finite, table_of

CLOCK_US = 0.5  # microseconds by which ends of spans may miss each other: the resolution of a GPU's events
LATEST_US = 1e15  # microseconds that a time may reach
MOST_PARTS = 12
MOST_THREADS = 1000  # of a rank: compute, and communication that overlaps

Interval = tuple[float, float]


@dataclasses.dataclass(eq=False)
class Span:
    name: str
    begin_us: float
    end_us: float
    level: int = 0  # depth within the spans around it; where spans only overlap, the first level that is free
    parent: "Span | None" = None
    within_us: float = 0.0  # of its time, in spans directly within it

    @property
    def duration_us(self) -> float:
        return self.end_us - self.begin_us

    @property
    def is_step(self) -> bool:
        return re.fullmatch(r"step \d+", self.name) is not None

    @property
    def is_update(self) -> bool:
        return re.fullmatch(r"bucket \d+ update|update of all buckets", self.name) is not None

    @property
    def is_exchange(self) -> bool:
        """With other stages or parts of a replica; in the row of compute, compute waits for it."""
        return self.name.startswith("exchange ")

    @property
    def is_wait(self) -> bool:
        return self.name.startswith("wait for ") or self.is_exchange


@dataclasses.dataclass
class RankTrace:
    """The spans of a rank by row, each in order of its begin: compute nested, updates, communication."""

    rank: int
    name: str
    compute: list[Span]
    updates: list[Span]
    communication: list[Span]

    @property
    def rows(self) -> dict[str, list[Span]]:
        return {"compute": self.compute, "update": self.updates, "communication": self.communication}

    @property
    def work(self) -> list[Span]:
        """Forward and backward, with the time for which they wait for buckets."""
        return [span for span in self.compute if not span.is_step]

    @property
    def waits(self) -> list[Span]:
        return [span for span in self.compute if span.is_wait]

    @property
    def sent(self) -> list[Span]:
        return [*self.communication, *(span for span in self.compute if span.is_exchange)]

    @property
    def steps(self) -> list[Span]:
        """If none is marked, all there is counts as one."""
        marked = [span for span in self.compute if span.is_step]
        spans = [span for row in self.rows.values() for span in row]
        return marked or [Span("all", min(s.begin_us for s in spans), max(s.end_us for s in spans))]


@dataclasses.dataclass
class RankTimes:
    """Means over the steps of a rank."""

    rank: int
    steps: int
    step_us: float
    communication_us: float  # while a bucket or an exchange is on its way
    hidden_us: float  # communication that overlaps with forward or backward compute


def load_trace(path: pathlib.Path) -> list[RankTrace]:
    """By rank. UsageError where the file is no such trace or damaged."""
    document = from_json(no_pipe(path).read_bytes())
    events = document if isinstance(document, list) else table_of(document).get("traceEvents")
    if not isinstance(events, list):
        raise UsageError(f"--trace {path}: no JSON with traceEvents, or cut off. Write it again by ddptrain --trace")
    lanes: dict[int, tuple[list[Span], list[Span]]] = {}  # by rank: compute, communication
    names: dict[int, str] = {}
    for place, event in enumerate(map(table_of, events)):
        rank = finite(event.get("pid"))
        if event.get("ph") == "M" and event.get("name") == "process_name" and rank is not None:
            names[int(rank)] = _shown(table_of(event.get("args")).get("name"))
        if event.get("ph") != "X":
            continue
        span, lane = _span(event), finite(event.get("tid"))
        if span is None or lane is None or lane not in range(MOST_THREADS) or rank is None or rank < 0:
            raise UsageError(f"--trace {path}: event {place} is none of ddptrain --trace: {event}"[:300])
        lanes.setdefault(int(rank), ([], []))[min(int(lane), 1)].append(span)
    if not lanes:
        raise UsageError(f"--trace {path}: no spans in it: write it again by ddptrain --trace")
    return [_rank_trace(rank, names.get(rank) or f"rank {rank}", *lanes[rank]) for rank in sorted(lanes)]


def _span(event: dict[str, Any]) -> Span | None:
    begin_us, duration_us = finite(event.get("ts")), finite(event.get("dur"))
    if begin_us is None or duration_us is None or abs(begin_us) > LATEST_US or not 0.0 <= duration_us <= LATEST_US:
        return None
    return Span(_shown(event.get("name")) or "(no name)", begin_us, begin_us + duration_us)


def _shown(name: Any) -> str:
    return "".join(c if c.isprintable() else "?" for c in name)[:60] if isinstance(name, str) else ""


def _rank_trace(rank: int, name: str, computed: list[Span], communication: list[Span]) -> RankTrace:
    compute = [span for span in computed if not span.is_update]
    updates = [span for span in computed if span.is_update]
    _end_backward_at_last_bucket(RankTrace(rank, name, compute, updates, communication))
    return RankTrace(rank, name, *map(nested, (compute, updates, communication)))


def _end_backward_at_last_bucket(trace: RankTrace) -> None:
    """Buckets start in order, each when it is complete, so nothing is left to compute when the last one of a step
    starts. The spans of backward may end later: on a GPU, that bucket is on the compute stream."""
    for step in trace.steps:
        buckets = (span for span in trace.communication if not span.is_exchange)
        begins = [span.begin_us for span in buckets if step.begin_us <= span.begin_us < step.end_us]
        for span in trace.compute if begins else []:
            if not span.is_step and span.begin_us < max(begins) < span.end_us:
                span.end_us = max(begins)


def nested(spans: list[Span]) -> list[Span]:
    """Sets level, parent and within_us; returns them in order of their begin, the outer before the inner."""
    ordered = sorted(spans, key=lambda span: (span.begin_us, -span.end_us))
    open_spans: list[Span] = []
    for span in ordered:
        open_spans = [other for other in open_spans if other.end_us > span.begin_us + CLOCK_US]
        around = [other for other in open_spans if other.end_us + CLOCK_US >= span.end_us]
        taken = {other.level for other in open_spans}
        span.parent = max(around, key=lambda other: other.level, default=None)
        span.level = 0 if span.parent is None else span.parent.level + 1
        while span.level in taken:
            span.level += 1
        if span.parent is not None:
            span.parent.within_us += span.duration_us
        open_spans.append(span)
    return ordered


def covered(inside: Interval, *rows: Iterable[Span], free_of: Iterable[Span] = ()) -> list[Interval]:
    """What each of the rows covers of an interval and `free_of` does not, as disjoint intervals in order."""
    *times, free = (
        np.array([(span.begin_us, span.end_us) for span in row]).reshape(-1, 2).clip(*inside) for row in (*rows, free_of)
    )
    edges = np.unique(np.concatenate([inside, free.ravel(), *(row.ravel() for row in times)]))

    def is_covered(row: np.ndarray) -> np.ndarray:
        """Between each two edges: whether more spans have begun than ended."""
        begun, ended = (np.searchsorted(np.sort(side), edges[:-1], "right") for side in row.T)
        return begun > ended

    kept = np.all([*map(is_covered, times), ~is_covered(free)], axis=0)
    changes = np.diff(kept.astype(int), prepend=0, append=0)
    return list(zip(edges[changes == 1], edges[changes == -1]))


def length_us(intervals: list[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


def rank_times(trace: RankTrace) -> RankTimes:
    inside = [(step.begin_us, step.end_us) for step in trace.steps]
    sent = (covered(step, trace.sent) for step in inside)
    beside = (covered(step, trace.sent, trace.work, free_of=trace.waits) for step in inside)
    return RankTimes(
        rank=trace.rank,
        steps=len(inside),
        step_us=statistics.fmean(end - begin for begin, end in inside),
        communication_us=statistics.fmean(map(length_us, sent)),
        hidden_us=statistics.fmean(map(length_us, beside)),
    )


def unit_of(microseconds: float) -> tuple[str, float]:
    """For times up to that; with its microseconds."""
    return ("us", 1.0) if microseconds < 10_000.0 else ("ms", 1000.0)


def rank_table(traces: list[RankTrace]) -> Table:
    times = [rank_times(trace) for trace in traces]
    unit, size = unit_of(max(t.step_us for t in times))
    header = ["rank", "steps", f"step {unit}", f"communication {unit}", "of the step", "hidden"]
    rows = []
    for t in times:
        shares = [_share(t.communication_us, t.step_us), _share(t.hidden_us, t.communication_us)]
        rows.append([str(t.rank), str(t.steps), number(t.step_us / size), number(t.communication_us / size), *shares])
    return Table("Mean of a rank's steps.", header, rows)


def _share(part: float, whole: float) -> str:
    return percent(part / whole) if whole > 0 else "n/a"


def part_table(traces: list[RankTrace]) -> Table:
    """The parts that take longest, per step, time in parts of theirs apart. A part: spans with the same name."""
    times_us: dict[tuple[str, str], dict[int, float]] = {}  # by name and row, then by rank
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    steps = {trace.rank: len(trace.steps) for trace in traces}
    for trace, row, span in ((t, row, span) for t in traces for row, spans in t.rows.items() for span in spans):
        part = (_part_name(span), "communication" if span.is_exchange else row)
        by_rank = times_us.setdefault(part, {})
        own_us = max(span.duration_us - span.within_us, 0.0) / steps[trace.rank]
        by_rank[trace.rank] = by_rank.get(trace.rank, 0.0) + own_us
        counts[part] += 1
    step_us = statistics.fmean(rank_times(trace).step_us for trace in traces)
    unit, size = unit_of(step_us)
    rows = []
    for (name, row), by_rank in sorted(times_us.items(), key=lambda part: -sum(part[1].values()))[:MOST_PARTS]:
        mean_us, slowest = sum(by_rank.values()) / len(traces), max(by_rank, key=by_rank.__getitem__)
        longest = f"{number(by_rank[slowest] / size)} (rank {slowest})"
        times = number(counts[name, row] / sum(steps.values()))
        rows.append([name, row, times, number(mean_us / size), _share(mean_us, step_us), longest])
    header = ["part", "row", "times", unit, "of the step", f"longest {unit}"]
    caption = "The longest parts of a step, mean of the ranks. Buckets that travel at once count each."
    return Table(caption, header, rows)


def _part_name(span: Span) -> str:
    """N stands for its numbers, so that the layers count together."""
    name = re.sub(r"\d+", "N", span.name)
    return f"{name}, outside its parts" if span.within_us > 0 else name
