"""Efficiency against the run of one rank, and efficiency in the job: what each compares, and whether they disagree."""

from ddptools.common.values import finite
from ddptools.report.sweeps.experiment import Case, Experiment
from ddptools.report.sweeps.noise import FEWEST_RUNS

COMPARED = (
    "Efficiency compares with the run of one rank, which is another job. Efficiency in the job compares with rank 0 "
    "alone, measured in the same job after training."
)
OTHER_BATCH = (
    "The run of one rank has more samples per step than a rank of the other runs. Efficiency includes what the smaller "
    "batches cost, efficiency in the job does not."
)
WHY = (
    "Usually the clocks of the run of one rank were different, other programs ran, or ranks share updates (--zero, Muon). "
    "Repeat the runs on an idle machine."
)


def words_of_both(experiment: Experiment, cases: list[Case]) -> str:
    """Empty if no case has both."""
    both = [case for case in cases if case.key in experiment.one_rank and case.efficiency() is not None]
    if not both:
        return ""
    sentences = [COMPARED]
    if any(has_smaller_batch(experiment, case) for case in both):
        sentences.append(OTHER_BATCH)
    different = [experiment.label(case) for case in both if disagree(experiment, case)]
    if different:
        sentences.append(f"The two disagree by more than their noise with {'; '.join(different)}. {WHY}")
    return " ".join(sentences)


def has_smaller_batch(experiment: Experiment, case: Case) -> bool:
    """Whether a rank has fewer samples per step than the run of one rank, as with strong scaling."""
    samples, of_one = _samples_per_rank(case), _samples_per_rank(experiment.one_rank[case.key])
    return samples is not None and of_one is not None and samples < of_one


def disagree(experiment: Experiment, case: Case) -> bool:
    """Whether the range of one efficiency over its runs and the interval of the other do not overlap. False if they
    should differ, or if too little is known."""
    one, own = experiment.one_rank.get(case.key), case.efficiency()
    if one is None or own is None or own.limits is None or experiment.is_doubtful(case):
        return False
    samples = _samples_per_rank(case)
    if samples is None or samples != _samples_per_rank(one) or min(len(case.runs), len(one.runs)) < FEWEST_RUNS:
        return False
    low, high = min(case.rates) / max(one.rates) / case.ranks, max(case.rates) / min(one.rates) / case.ranks
    return high < own.limits[0] or low > own.limits[1]


def _samples_per_rank(case: Case) -> float | None:
    """Of a step; None if its runs do not tell."""
    summary = case.runs[0].summary
    batch, micro_steps = finite(summary.get("batch_per_rank")), finite(summary.get("grad_accum"))
    if batch is None or micro_steps is None:
        return None
    return batch * micro_steps * (finite(summary.get("virtual_ranks")) or case.ranks) / case.ranks
