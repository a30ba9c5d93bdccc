"""Whether two sets of runs differ by more than their noise."""

import dataclasses
import math
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
    difference = statistics.fmean(a) - statistics.fmean(b)
    va, vb = statistics.variance(a) / len(a), statistics.variance(b) / len(b)
    if va + vb == 0.0:
        return 1.0 if difference == 0.0 else 0.0
    degrees = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    return student_p(abs(difference) / math.sqrt(va + vb), degrees)


def student_p(t: float, degrees: float) -> float:
    """P(|T| >= t) of Student's distribution: with t = sqrt(degrees) tan(x) an integral of a power of the cosine."""
    degrees = min(degrees, 1000.0)  # beyond, it is the normal distribution
    start, steps = math.atan(t / math.sqrt(degrees)), 2000
    width = (math.pi / 2 - start) / steps
    values = [math.cos(start + i * width) ** (degrees - 1) for i in range(steps)]
    values.append(0.0 if degrees > 1 else 1.0)
    simpson = values[0] + values[-1] + 4 * sum(values[1:-1:2]) + 2 * sum(values[2:-1:2])
    factor = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(math.pi)
    return min(1.0, 2 * factor * simpson * width / 3)
