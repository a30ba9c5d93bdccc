"""What a reader of a report must be warned of: numbers that cannot be what they are called, or that other programs
disturbed."""

import itertools
import statistics
from collections.abc import Iterator

from ddptools.common.text import counted, percent
from ddptools.report.sweeps.answers import ABOVE_ALL, limited
from ddptools.report.sweeps.experiment import Case, Experiment
from ddptools.report.sweeps.noise import ALPHA, welch_p
from ddptools.results.machine import long_name
from ddptools.results.run import seconds_to_measure

GAINS = "A rank gains by others only what they share: updates with --zero, matrices with --optimizer muon. Otherwise"
MOST_WARNINGS = 6
MOST_REASONS = 4  # of one case


def warnings_of(experiment: Experiment) -> list[str]:
    """Runs of several machines, and efficiencies above 100% by more than the noise."""
    return [*_machines(experiment), *limited(_efficiencies_above_all(experiment), MOST_WARNINGS)]


def _machines(experiment: Experiment) -> Iterator[str]:
    machines = experiment.kinds_of_machines
    if len(machines) > 1:
        told = "; ".join(map(long_name, machines))
        yield f"The runs are of {len(machines)} machines ({told}). Compare only runs of the same machine."


def disturbed_cases(experiment: Experiment) -> list[str]:
    """Cases whose numbers are not to be trusted."""
    return limited(_disturbed_cases(experiment), MOST_WARNINGS)


def _disturbed_cases(experiment: Experiment) -> Iterator[str]:
    for case in experiment.measured:
        reasons = [run.disturbed for run in case.runs if run.disturbed]
        if not reasons:
            continue
        runs = f"{len(reasons)} of {counted(len(case.runs), 'run')} of {experiment.label(case)}"
        different = list(dict.fromkeys(reasons))
        why = "; ".join(different[:MOST_REASONS]) + ("; ..." if len(different) > MOST_REASONS else "")
        if case.efficiency() is None:
            yield f"Do not trust the numbers of {runs}: {why}. Repeat them on an idle machine."
        else:
            yield (
                f"Do not trust the efficiency and the parts of a step in {runs}: {why}. Repeat them on an idle "
                f"machine, with --calibration-seconds {seconds_to_measure(case.summaries)}."
            )


def first_line(experiments: list[Experiment]) -> str:
    """Of a page with disturbed runs; empty without one."""
    cases = [case for experiment in experiments for case in experiment.measured]
    reasons = [run.disturbed for case in cases for run in case.runs if run.disturbed]
    if not reasons:
        return ""
    runs = sum(len(case.runs) for case in cases)
    others = f" ({reasons[0]})" if len(reasons) == 1 else f" (the first one: {reasons[0]})"
    has_efficiency = any(case.efficiency() is not None for case in cases if case.disturbed)
    numbers = "efficiency and the parts of their steps" if has_efficiency else "numbers"
    return f"Disturbed: {len(reasons)} of {counted(runs, 'run')}{others}. Do not trust their {numbers}."


def _efficiencies_above_all(experiment: Experiment) -> Iterator[str]:
    why = "the run of one rank was slower than its machine is"
    compared = [case for case in experiment.measured if case.key in experiment.one_rank]
    for case in compared:
        value = statistics.median(experiment.efficiencies(case))
        if above_all(value) and not _is_noise(case, experiment.one_rank[case.key]):
            label = experiment.label(case)
            yield f"An efficiency above 100%: {percent(value)} of {label}. {GAINS}, {why}."
    for case in experiment.measured:
        efficiency = case.efficiency()
        if efficiency is None or efficiency.reason:
            continue
        low, high = efficiency.limits or (efficiency.value, efficiency.value)
        if above_all(low):
            interval = f" (95% interval {percent(low)} to {percent(high)})" if low < high else ""
            yield (
                f"An efficiency in the job above 100%: {percent(efficiency.value)} of {experiment.label(case)}"
                f"{interval}. {GAINS}, its baseline is too slow."
            )


def _is_noise(case: Case, one: Case) -> bool:
    """Whether a rank of `case` may be no faster than that of `one`."""
    each = [rate / case.ranks for rate in case.rates]
    return min(len(each), len(one.rates)) > 1 and welch_p(each, one.rates) >= ALPHA


def above_all(efficiency: float) -> bool:
    return efficiency > ABOVE_ALL
