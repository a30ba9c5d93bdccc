"""Whether what a rank keeps finds room on a GPU, which need not be there: ddptrain --describe adds it up."""

import bisect
import dataclasses
from collections.abc import Callable

Kept = Callable[..., float]  # bytes that a rank keeps with these flags in place of others: batch, recompute


@dataclasses.dataclass(frozen=True)
class MemoryFit:
    kept_gb: float
    there_gb: float
    remedies: list[str]  # flags with which it would fit; each was tried

    @property
    def fits(self) -> bool:
        return self.kept_gb <= self.there_gb

    def text(self) -> str:
        """Libraries take some beside it, so what fits may still be too large."""
        kept = f"{self.kept_gb:.3g} GB"
        if self.fits:
            return f"{kept} of a GPU's {self.there_gb:g} GB, beside what libraries take"
        remedies = f"what fits: {'; or '.join(self.remedies)}" if self.remedies else "not even --batch 1 fits"
        return f"{kept} do not fit a GPU of {self.there_gb:g} GB: {remedies}"


def memory_fit(kept: Kept, batch: int, there_gb: float, can_recompute: bool) -> MemoryFit:
    def largest(**flags: object) -> int:
        """The largest batch below that of the run that fits; 0: none."""
        return bisect.bisect_left(range(1, batch), True, key=lambda b: kept(batch=b, **flags) > 1e9 * there_gb)

    of_run = 1e-9 * kept(batch=batch)
    remedies: list[str] = []
    if of_run > there_gb:
        fitting = largest()
        remedies += [f"--batch {fitting}"] if fitting else []
        if can_recompute and kept(batch=batch, recompute="block") <= 1e9 * there_gb:
            remedies.append("--recompute")
        elif can_recompute and not fitting and (fitting := largest(recompute="block")):
            remedies.append(f"--recompute and --batch {fitting}")
    return MemoryFit(of_run, there_gb, remedies)
