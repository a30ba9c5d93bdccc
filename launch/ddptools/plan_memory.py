"""Whether what a rank keeps finds room on a GPU, which need not be there: ddptrain --describe adds it up."""

import dataclasses
from collections.abc import Callable

MEMORY_GB = {"v100": 32.0, "a100": 80.0, "h100": 80.0, "h200": 141.0, "b200": 180.0}  # as they are sold today

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
    def fits(**flags: object) -> bool:
        return kept(**flags) <= 1e9 * there_gb

    of_run = 1e-9 * kept(batch=batch)
    remedies: list[str] = []
    if of_run > there_gb:
        largest = _largest(lambda b: fits(batch=b), batch)
        remedies += [f"--batch {largest}"] if largest else []
        if can_recompute and fits(batch=batch, recompute="block"):
            remedies.append("--recompute")
        elif can_recompute and not largest:
            largest = _largest(lambda b: fits(batch=b, recompute="block"), batch)
            remedies += [f"--recompute and --batch {largest}"] if largest else []
    return MemoryFit(of_run, there_gb, remedies)


def _largest(fits: Callable[[int], bool], beyond: int) -> int:
    """The largest batch below `beyond` that fits; 0: none."""
    fitting = 0
    while beyond - fitting > 1:
        middle = (fitting + beyond) // 2
        if fits(middle):
            fitting = middle
        else:
            beyond = middle
    return fitting
