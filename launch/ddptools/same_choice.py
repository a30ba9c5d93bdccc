"""Cases for which NCCL made the same choices: what they differ by is the noise of the machine between jobs."""

from ddptools.gradient_path import sent_by
from ddptools.measurements import Case, Experiment

# They act by what they make NCCL choose, and by nothing else.
CHOOSING = {"NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_MIN_NCHANNELS",
            "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_NVLS_ENABLE"}  # fmt: skip


def same_choice(case: Case, other: Case) -> bool:
    """Whether two different cases differ in such variables alone, and NCCL chose the same for both."""
    names = {*case.settings, *other.settings}
    varied = {name for name in names if case.settings.get(name, "") != other.settings.get(name, "")}
    if not varied or not varied <= CHOOSING or case.nccl() is None:
        return False
    return (case.nccl(), case.choices(), sent_by(case)) == (other.nccl(), other.choices(), sent_by(other))


def noise_between_jobs(experiment: Experiment) -> float | None:
    """By how much the medians of cases with the same choices differ at most, relative; None without such cases."""
    alike: dict[str, list[float]] = {}
    for context, cases in experiment.contexts([name for name in experiment.tuned if name in CHOOSING]):
        for case in cases:
            if case.nccl() is not None:
                alike.setdefault(repr((context, case.nccl(), case.choices(), sent_by(case))), []).append(case.rate)
    return max((max(rates) / min(rates) - 1 for rates in alike.values() if len(rates) > 1), default=None)
