"""Whether two sets of runs differ by more than their noise."""

import dataclasses
import statistics

ALPHA = 0.05


@dataclasses.dataclass
class Comparison:
    ratio: float  # of the medians
    p: float | None  # of Welch's t-test, two-sided; None with fewer than two runs on a side

    def beyond_noise(self, comparisons: int = 1) -> bool | None:
        """None: it cannot be told. `comparisons`: how many were made to find this one (Bonferroni)."""
        return None if self.p is None else self.p * comparisons < ALPHA


def compare(a: list[float], b: list[float]) -> Comparison:
    ratio = statistics.median(a) / statistics.median(b)
    return Comparison(ratio, welch_p(a, b) if min(len(a), len(b)) >= 2 else None)


def welch_p(a: list[float], b: list[float]) -> float:
    """Two-sided p of Welch's t-test, for at least two values each."""
    if min(a) == max(a) and min(b) == max(b):  # no noise, of which the test could tell
        return 1.0 if a[0] == b[0] else 0.0
    from scipy import stats  # slow to import, and only comparisons need it

    return float(stats.ttest_ind(a, b, equal_var=False).pvalue)


def chance_text(p: float, comparisons: int) -> str:
    """How often chance alone would give a difference as large."""
    p = min(1.0, p * comparisons)
    if p >= ALPHA:
        often = f"in {100 * p:.0f} of 100 repetitions"
    elif p >= 1e-6:
        often = f"once in {float(f'{1 / p:.1e}'):,.0f} repetitions"
    else:
        often = "less than once in a million repetitions"
    return f"chance alone would give as much {often}"
