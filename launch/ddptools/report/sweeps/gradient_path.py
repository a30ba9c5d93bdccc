"""Whether two cases summed their gradients by the same path.

The summary of a run says its path: symmetric+fused, symmetric, peers, plain, mpi, tree, or none where it sends nothing."""

from ddptools.report.sweeps.experiment import Case
from ddptools.results.run import PATH_FLAGS

SYMMETRIC = ("symmetric", "symmetric+fused", "peers")


def paths(cases: list[Case]) -> list[str]:
    """Different ones on which these cases sent gradients, as far as they say."""
    return list(dict.fromkeys(path for case in cases if (path := sent_by(case))))


def sent_by(case: Case) -> str:
    """The path; empty where the case sends nothing or does not say."""
    path = case.told("gradient_path")
    return "" if path == "none" else path


def other_path(case: Case, reference: Case) -> str:
    """The path of the case, where its reference took another one, though no flag for the path differs; else empty."""
    path, reference_path = sent_by(case), sent_by(reference)
    is_varied = _apart(case) == _apart(reference)
    return path if path and reference_path and path != reference_path and not is_varied else ""


def _apart(case: Case) -> set[tuple[str, str]]:
    return {(name, value) for name, value in case.settings.items() if name not in PATH_FLAGS}
