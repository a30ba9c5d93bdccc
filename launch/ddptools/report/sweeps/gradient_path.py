"""Whether two cases summed their gradients by the same path.

The summary of a run says its path: symmetric+fused, symmetric, peers, plain, mpi, tree, or none where it sends nothing."""

import dataclasses

from ddptools.report.sweeps.experiment import Case
from ddptools.results.run import PATH_FLAGS

SYMMETRIC = ("symmetric", "symmetric+fused", "peers")


@dataclasses.dataclass(frozen=True)
class OtherPath:
    """Of a case, compared with a reference whose gradients took another path, though no flag for the path differs."""

    path: str
    reference_path: str
    reason: str  # why the case took its path; empty where it does not say


def paths(cases: list[Case]) -> list[str]:
    """Different ones on which these cases sent gradients, as far as they say."""
    return list(dict.fromkeys(path for case in cases if (path := sent_by(case))))


def sent_by(case: Case) -> str:
    """The path; empty where the case sends nothing or does not say."""
    path = case.told("gradient_path")
    return "" if path == "none" else path


def other_path(case: Case, reference: Case) -> OtherPath | None:
    """None where both took the same path, one of them does not say, or where the path is what was varied."""
    path, reference_path = sent_by(case), sent_by(reference)
    if not path or not reference_path or path == reference_path or _apart(case) == _apart(reference):
        return None
    return OtherPath(path, reference_path, case.told("gradient_path_reason"))


def _apart(case: Case) -> set[tuple[str, str]]:
    return {(name, value) for name, value in case.settings.items() if name not in PATH_FLAGS}
