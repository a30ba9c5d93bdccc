"""How fast one rank computes, by model and batch, as runs measured it."""

import dataclasses
import statistics
from collections.abc import Iterable

from ddptools.common.errors import UsageError
from ddptools.results.description import Description

SAME_FLOP = 0.01  # relative difference of the FLOP of a sample within which two descriptions are of the same work


class NotMeasured(UsageError):
    """No measurement answers for this model and batch."""


@dataclasses.dataclass(frozen=True)
class ComputePoint:
    """One rank alone at one batch: the median of `runs` runs."""

    work: Description
    batch: float  # samples per micro-step
    samples_per_second: float
    runs: int


def is_same_network(a: Description, b: Description) -> bool:
    return (a.model, a.parameters) == (b.model, b.parameters)


def is_same_work(a: Description, b: Description) -> bool:
    """The same network on the same kind of device, in the same precision, with the same FLOP per sample."""
    alike = all(not x or not y or x == y for x, y in ((a.device, b.device), (a.precision, b.precision)))
    return is_same_network(a, b) and alike and abs(a.flop / b.flop - 1.0) < SAME_FLOP


@dataclasses.dataclass(frozen=True)
class ComputeRates:
    points: tuple[ComputePoint, ...] = ()

    def alike(self, work: Description) -> list[ComputePoint]:
        """In order of their batches."""
        return sorted((p for p in self.points if is_same_work(p.work, work)), key=lambda point: point.batch)

    def tflops(self, work: Description, batch: float) -> float:
        """Of one rank. The time of a micro-step between two measured batches is on the line that joins them. Raises
        NotMeasured for another work, and for a batch that is smaller or larger than all measured ones."""
        points = self.alike(work)
        if not points:
            measured = ", ".join(dict.fromkeys(named(point.work) for point in self.points))
            raise NotMeasured(f"its runs are of {measured}, not of {named(work)}: give --tflops")
        least, most = points[0].batch, points[-1].batch
        if not least <= batch <= most:
            known = f"batch {least:g}" if least == most else f"batches from {least:g} to {most:g}"
            raise NotMeasured(
                f"its runs of {named(work)} have {known} per rank, not {batch:g}: measure that batch, or give --tflops"
            )
        import numpy  # slow to import, and only calibrations need it

        seconds = numpy.interp(batch, [p.batch for p in points], [p.batch / p.samples_per_second for p in points])
        return work.flop * batch / float(seconds) / 1e12


def named(work: Description) -> str:
    how = " ".join(text for text in (work.precision, f"on {work.device}" if work.device else "") if text)
    return f"{work.model} ({work.parameters:,.0f} parameters, {work.flop:.3g} FLOP per sample{how and f', {how}'})"


def compute_rates(measured: Iterable[tuple[Description, float, float]]) -> ComputeRates:
    groups: list[tuple[Description, float, list[float]]] = []
    for work, batch, rate in measured:
        known = next((group for group in groups if group[1] == batch and is_same_work(group[0], work)), None)
        if known:
            known[2].append(rate)
        else:
            groups.append((work, batch, [rate]))
    return ComputeRates(tuple(ComputePoint(w, b, statistics.median(rates), len(rates)) for w, b, rates in groups))
