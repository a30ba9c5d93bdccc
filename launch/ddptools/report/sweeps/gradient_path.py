"""Whether two cases summed their gradients by the same path, and with what a case can be compared where they did not.

The summary of a run says its path: symmetric+fused, symmetric, peers, plain, mpi, tree, or none where it sends nothing."""

import dataclasses
import functools

from ddptools.report.sweeps.experiment import Case, Experiment
from ddptools.results.run import PATH_FLAGS

SYMMETRIC = ("symmetric", "symmetric+fused", "peers")


@dataclasses.dataclass(frozen=True)
class OtherPath:
    """Of a case, compared with a reference whose gradients took another path, though no flag for the path differs."""

    path: str
    reference_path: str
    reason: str  # why the case took its path; empty where it does not say
    fair: Case | None  # as the reference but for the flags that put it on the path of the case


def paths(cases: list[Case]) -> list[str]:
    """Different ones on which these cases sent gradients, as far as they say."""
    return list(dict.fromkeys(path for case in cases if (path := sent_by(case))))


def sent_by(case: Case) -> str:
    """The path; empty where the case sends nothing or does not say."""
    path = case.told("gradient_path")
    return "" if path == "none" else path


class PathComparison:
    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment

    def other_path(self, case: Case, reference: Case) -> OtherPath | None:
        """None where both took the same path, one of them does not say, or where the path is what was varied."""
        path, reference_path = sent_by(case), sent_by(reference)
        if not path or not reference_path or path == reference_path or _apart(case) == _apart(reference):
            return None
        fair = self._by_path.get((path, _apart(reference)))
        return OtherPath(path, reference_path, case.told("gradient_path_reason"), fair)

    @functools.cached_property
    def _by_path(self) -> dict[tuple[str, frozenset], Case]:
        """The first case for each path and all other settings."""
        return {(sent_by(case), _apart(case)): case for case in reversed(self.experiment.measured)}


def _apart(case: Case) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in case.settings.items() if name not in PATH_FLAGS)
