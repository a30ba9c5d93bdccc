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
    from scipy import stats  # slow to import, and only comparisons need it

    means, deviations = (statistics.fmean(a), statistics.fmean(b)), (statistics.stdev(a), statistics.stdev(b))
    if deviations == (0.0, 0.0):
        return 1.0 if means[0] == means[1] else 0.0
    sides = (means[0], deviations[0], len(a), means[1], deviations[1], len(b))
    return float(stats.ttest_ind_from_stats(*sides, equal_var=False).pvalue)
