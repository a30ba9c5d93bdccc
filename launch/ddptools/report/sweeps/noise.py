"""Whether two cases differ by more than their noise."""

import collections
import dataclasses

from ddptools.common.values import grouped
from ddptools.report.sweeps.experiment import Case, Experiment

ALPHA = 0.05
FEWEST_RUNS = 3  # of which the t-test can be expected to tell a difference
NO_DIFFERENCE, TOO_FEW = "no difference", "too few runs"
# They act by what they make NCCL choose, and by nothing else.
CHOOSING = {"NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_MIN_NCHANNELS",
            "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_NVLS_ENABLE"}  # fmt: skip


@dataclasses.dataclass
class Effect:
    change: float  # of the median, relative
    p: float | None  # of Welch's t-test, times the number of comparisons; None with one run on a side
    is_difference: bool | None  # None: the runs are too few to tell

    @property
    def text(self) -> str:
        if self.is_difference is None:
            return TOO_FEW
        return f"{100 * self.change:+.1f}%" if self.is_difference else NO_DIFFERENCE


class Effects:
    def __init__(self, experiment: Experiment) -> None:
        self.references = experiment.references()
        self.noise = noise_between_jobs(experiment)
        rivals = collections.Counter(reference.key for reference in self.references.values())
        self.comparisons = {key: rivals[reference.key] - 1 for key, reference in self.references.items()}

    def of(self, case: Case) -> Effect | None:
        """None for a reference, and for a case that nothing is compared with."""
        reference = self.references.get(case.key)
        if reference is None or reference is case:
            return None
        return self.between(case, reference, self.comparisons[case.key])

    def text(self, case: Case) -> str:
        """Against its reference; empty if nothing is compared with it."""
        effect = self.of(case)
        return effect.text if effect else "reference" if self.references.get(case.key) is case else ""

    def between(self, case: Case, reference: Case, comparisons: int) -> Effect:
        change = case.rate / reference.rate - 1
        fewest = min(len(case.rates), len(reference.rates))
        if fewest < 2:
            return Effect(change, None, None)
        p = min(1.0, comparisons * welch_p(case.rates, reference.rates))
        if p >= ALPHA:
            return Effect(change, p, None if fewest < FEWEST_RUNS else False)
        ratio = max(case.rate, reference.rate) / min(case.rate, reference.rate)
        is_noise = same_choice(case, reference) or (self.noise is not None and ratio - 1 <= self.noise)
        return Effect(change, p, not is_noise)


def welch_p(a: list[float], b: list[float]) -> float:
    """Two-sided p of Welch's t-test, for at least two values each."""
    if min(a) == max(a) and min(b) == max(b):  # no noise, of which the test could tell
        return 1.0 if a[0] == b[0] else 0.0
    from scipy import stats  # slow to import, and only comparisons need it

    return float(stats.ttest_ind(a, b, equal_var=False).pvalue)


def same_choice(case: Case, other: Case) -> bool:
    """Whether two different cases differ in such variables alone, and NCCL chose the same for both."""
    names = {*case.settings, *other.settings}
    varied = {name for name in names if case.settings.get(name, "") != other.settings.get(name, "")}
    if not varied or not varied <= CHOOSING or case.nccl() is None:
        return False
    return (case.nccl(), case.choices(), case.path) == (other.nccl(), other.choices(), other.path)


def noise_between_jobs(experiment: Experiment) -> float | None:
    """By how much the medians of cases with the same choices differ at most, relative; None without such cases."""
    contexts = experiment.contexts([name for name in experiment.tuned if name in CHOOSING])
    told = ((context, case) for context, cases in contexts for case in cases if case.nccl() is not None)
    alike = grouped((repr((context, case.nccl(), case.choices(), case.path)), case.rate) for context, case in told)
    return max((max(rates) / min(rates) - 1 for rates in alike.values() if len(rates) > 1), default=None)
