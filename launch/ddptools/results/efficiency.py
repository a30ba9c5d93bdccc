"""The scaling efficiency that a run measured itself: its interval, and whether it is to be trusted."""

import dataclasses
import statistics
from collections.abc import Sequence

from ddptools.common.files import Record
from ddptools.common.text import percent
from ddptools.common.values import finite
from ddptools.results.run import is_by_others, is_too_noisy, why_unusable

DISTURBED, TOO_NOISY = "disturbed", "too noisy"  # marks


@dataclasses.dataclass(frozen=True)
class Efficiency:
    value: float
    low: float | None = None  # of the 95% interval, like high; None after one round
    high: float | None = None
    half_width: float | None = None  # of older files, which have neither low nor high
    reason: str = ""  # why it is not to be trusted; empty: nothing is known against it
    by_others: bool = False  # other programs disturbed a run

    @property
    def marks(self) -> list[str]:
        """One of the two or both; empty if nothing is known against it."""
        if self.low is None and is_too_noisy(self.half_width):
            return [TOO_NOISY]  # of older files, whose reason is the interval
        low, high = self.limits or (self.value, self.value)
        is_wide = is_too_noisy((high - low) / 2)
        return ([TOO_NOISY] if is_wide else []) + ([DISTURBED] if self.reason else [])

    @property
    def mark(self) -> str:
        return ", ".join(self.marks)

    @property
    def interval(self) -> str:
        """In percent; empty where it is not known."""
        if self.low is not None and self.high is not None:
            return f"{100 * max(self.low, 0.0):.1f} to {100 * self.high:.1f}"
        return "" if self.half_width is None else f"+- {100 * self.half_width:.1f}"

    @property
    def limits(self) -> tuple[float, float] | None:
        """Of the 95% interval; None where it is not known."""
        if self.low is not None and self.high is not None:
            return max(self.low, 0.0), self.high
        if self.half_width is None:
            return None
        return max(self.value - self.half_width, 0.0), self.value + self.half_width

    @property
    def text(self) -> str:
        """For a cell of a table, with its mark."""
        marks = self.marks
        if TOO_NOISY in marks:
            comma = "," if self.low is not None else ""
            text = f"{TOO_NOISY} ({percent(self.value)}{comma} {self.interval})"
        else:
            interval = f"({self.interval})" if self.low is not None else self.interval
            text = f"{percent(self.value)} {interval}".rstrip()
        return ", ".join([text, *(mark for mark in marks if mark != TOO_NOISY)])


def efficiency_of(summaries: Sequence[Record]) -> Efficiency | None:
    """Of runs of the same settings: the median, the smallest and the largest limit. None where no run measured it."""
    values = [value for summary in summaries if (value := finite(summary.get("scaling_efficiency"))) is not None]
    if not values:
        return None

    def known(field: str) -> list[float]:
        """Empty unless every run has it."""
        found = [value for summary in summaries if (value := finite(summary.get(field))) is not None]
        return found if len(found) == len(summaries) else []

    return Efficiency(
        value=statistics.median(values),
        low=min(known("scaling_efficiency_low"), default=None),
        high=max(known("scaling_efficiency_high"), default=None),
        half_width=max(known("scaling_efficiency_half_width"), default=None),
        reason=why_disturbed(summaries),
        by_others=any(map(is_by_others, summaries)),
    )


def why_disturbed(summaries: Sequence[Record]) -> str:
    """Of the first run that was; empty if none was."""
    return next(filter(None, map(why_unusable, summaries)), "")
