"""What an experiment shows, in sentences."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator

from ddptools.gradient_path import SYMMETRIC, PathComparison, sent_by
from ddptools.measurements import PLACEMENT, Case, Experiment, number_of, series_over, setting_text, table_of
from ddptools.noise import chance_text, compare
from ddptools.same_choice import noise_between_jobs, same_choice

MOST_SENTENCES = 12
MOST_LISTED = 4  # cases in one sentence
FEWEST_RUNS = 3  # of which the t-test can be expected to tell a difference
SATURATED = 0.95
SETS_RANKS = ("ranks", "global-batch")  # of ddpsweep; with these, too, training ends with other parameters


def number(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if magnitude >= 100 else f"{value:.3g}"


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}%"


def signed_percent(fraction: float) -> str:
    return f"{100 * fraction:+.1f}%"


def measured_text(case: Case, unit: str) -> str:
    """A rate with its spread, and "emulated" where it is."""
    rates = case.rates
    spread = f"{number(min(rates))} to {number(max(rates))} over {len(rates)} runs" if len(rates) > 1 else "one run"
    return f"{number(case.rate)} {unit} ({spread}{', emulated' if case.emulated else ''})"


def explain(experiment: Experiment) -> list[str]:
    if not experiment.measured:
        return ["No run gave a number: nothing can be compared."]
    parts = (_tuned(experiment), _placement(experiment), _ranks(experiment), _batch(experiment))
    sentences = limited(itertools.chain(*parts))
    if not sentences:
        listed = [f"{experiment.label(c)}: {measured_text(c, experiment.unit)}" for c in experiment.measured]
        sentences = [f"Measured: {'; '.join(listed[:MOST_LISTED])}{'; ...' if len(listed) > MOST_LISTED else '.'}"]
    return sentences


def limited(sentences: Iterable[str]) -> list[str]:
    """The first ones; no more than those are made."""
    kept = list(itertools.islice(sentences, MOST_SENTENCES + 1))
    return kept if len(kept) <= MOST_SENTENCES else [*kept[:MOST_SENTENCES], "More of this kind is left out here."]


def _tuned(experiment: Experiment) -> Iterator[str]:
    for context, cases in experiment.contexts(experiment.tuned) if experiment.tuned else ():
        yield from _winner(experiment, context, cases)


def _winner(experiment: Experiment, context: str, cases: list[Case]) -> Iterator[str]:
    rivals = [case for case in cases if case.trains]
    if len(rivals) > 1:
        yield _start(context) + _compare_to_reference(experiment, rivals)
    for ceiling in [case for case in cases if not case.trains] if rivals else []:
        best = max(rivals, key=lambda case: case.rate)
        yield (
            _start(context) + f"Without any all-reduce (overlap=none, which trains nothing together) it is "
            f"{measured_text(ceiling, experiment.unit)}; the best that communicates reaches "
            f"{percent(best.rate / ceiling.rate)} of that."
        )


def _start(context: str) -> str:
    return f"{context}: " if context else ""


@dataclasses.dataclass
class Contest:
    """The best of several cases, and the one that it is compared with."""

    best: Case
    reference: Case
    second: Case  # the best of the others
    comparisons: int
    names: list[str]  # of the settings that differ

    @property
    def other(self) -> Case:
        return self.second if self.best is self.reference else self.reference


def contest(experiment: Experiment, rivals: list[Case]) -> Contest:
    names = [n for n in experiment.tuned if len({c.settings.get(n, "") for c in rivals}) > 1] or experiment.tuned
    best = max(rivals, key=lambda case: case.rate)
    second = max((case for case in rivals if case is not best), key=lambda case: case.rate)
    return Contest(best, experiment.reference(rivals), second, len(rivals) - 1, names)


def _compare_to_reference(experiment: Experiment, rivals: list[Case]) -> str:
    found = contest(experiment, rivals)
    best, reference, second, names = found.best, found.reference, found.second, found.names
    comparisons, unit = found.comparisons, experiment.unit
    if best is reference:
        text = f"Highest is {experiment.label(best, names)}, which the others are compared with: "
        text += f"{measured_text(best, unit)}. "
        text += f"Next is {experiment.label(second, names)} with {measured_text(second, unit)}: "
        text += _compared(experiment, second, best, comparisons)
    else:
        text = f"Highest is {experiment.label(best, names)}: {measured_text(best, unit)}. "
        text += f"Against {experiment.label(reference, names)} with {measured_text(reference, unit)}: "
        text += _compared(experiment, best, reference, comparisons)
    worst = min(rivals, key=lambda case: case.rate)
    if len(rivals) > 2 and worst is not reference:
        text += f" Lowest is {experiment.label(worst, names)} with {measured_text(worst, unit)}, against the same: "
        text += _compared(experiment, worst, reference, comparisons)
    return text


def _compared(experiment: Experiment, case: Case, reference: Case, comparisons: int) -> str:
    """The difference; where the gradients took another path, that too, and the difference on the same path."""
    text = _difference(experiment, case, reference, comparisons)
    other = PathComparison(experiment).other_path(case, reference)
    if other is None:
        return text
    reason = f" ({other.reason})" if other.reason else ""
    text += f" A part of that is the path of its gradients: {other.path}, and not {other.reference_path}{reason}."
    if other.fair is not None:
        fair = f"{experiment.label(other.fair)} with {measured_text(other.fair, experiment.unit)}"
        text += f" On the same path, against {fair}: {_difference(experiment, case, other.fair, comparisons)}"
    return text


def change_text(ratio: float) -> str:
    return f"{percent(abs(ratio - 1))} {'more' if ratio >= 1 else 'less'}"


def _difference(experiment: Experiment, case: Case, other: Case, comparisons: int = 1) -> str:
    """How `case` differs from `other`, and whether that is more than the noise."""
    comparison = compare(case.rates, other.rates)
    amount = change_text(comparison.ratio)
    beyond = comparison.beyond_noise(comparisons)
    if beyond is None:
        return f"{amount}; with one run on a side, whether that is more than the noise cannot be told."
    of = f" times {comparisons} comparisons" if comparisons > 1 else ""
    p = f"{chance_text(comparison.p, comparisons)}; Welch's t-test, p = {comparison.p:.2g}{of}"
    if beyond:
        return f"{amount}, {noise_of_jobs_text(experiment, case, other) or 'more than the noise'} ({p})."
    fewest = min(len(case.rates), len(other.rates))
    if fewest < FEWEST_RUNS:
        return f"{amount}; {fewest} runs on a side are too few to tell that from the noise ({p})."
    return f"no difference beyond the noise ({amount} in the medians; {p})."


def noise_of_jobs_text(experiment: Experiment, case: Case, other: Case) -> str:
    """Of a difference that is more than the noise of the runs: why it is none all the same; empty where it is one."""
    if same_choice(case, other):
        return "though NCCL chose the same for both: that is the noise of this machine between jobs"
    noise = noise_between_jobs(experiment)
    if noise is None or max(case.rate, other.rate) / min(case.rate, other.rate) - 1 > noise:
        return ""
    return f"no more than jobs differ for which NCCL chose the same on this machine, {percent(noise)}"


def _placement(experiment: Experiment) -> Iterator[str]:
    yield from _same_gpus(experiment)
    for name in PLACEMENT:
        for context, cases in experiment.contexts([name]) if name in experiment.varied else ():
            if len(cases) < 2 or (name == "gpus" and _on_the_same_gpus(cases)):
                continue
            best, worst = max(cases, key=lambda c: c.rate), min(cases, key=lambda c: c.rate)
            yield (
                _start(context) + f"Highest with {experiment.label(best, [name])}: "
                f"{measured_text(best, experiment.unit)}; lowest with {experiment.label(worst, [name])}: "
                f"{measured_text(worst, experiment.unit)}: "
                f"{_compared(experiment, worst, best, math.comb(len(cases), 2))}"
            )


def _on_the_same_gpus(cases: list[Case]) -> bool:
    used = {case.gpus_used() for case in cases}
    return len(used) == 1 and "" not in used


def _same_gpus(experiment: Experiment) -> Iterator[str]:
    """Names of selections that turned out to be the same GPUs: on some machines no pair is better than another."""
    names: dict[str, list[str]] = {}
    for case in experiment.measured if "gpus" in experiment.varied else ():
        used = case.gpus_used()
        if used:
            names.setdefault(used, []).append(case.settings.get("gpus", ""))
    for gpus, same in names.items():
        if len(set(same)) > 1:
            yield f"{' and '.join(dict.fromkeys(same))} are the same GPUs here: {gpus}."


def efficiencies(case: Case, one: Case) -> list[float]:
    """Of each run of `case`, against the median of the one-rank case."""
    return [rate / case.ranks / (one.rate / one.ranks) for rate in case.rates]


def _ranks(experiment: Experiment) -> Iterator[str]:
    series = series_over(experiment, "ranks", lambda case: case.ranks) if experiment.over_ranks else []
    for context, points in series:
        first, last = points[0][1], points[-1][1]
        if first.ranks != 1 or last.ranks <= 1 or not last.trains:
            continue
        values = efficiencies(last, first)
        spread = f" ({percent(min(values))} to {percent(max(values))})" if len(values) > 1 else ""
        own = last.medians("scaling_efficiency")
        beside = "" if own is None else f"; measured within the job, against its own one-rank baseline, {percent(own)}"
        if own is not None and "global-batch" in last.settings:
            beside += " (at the small batch of a rank)"
        mark = ", emulated" if last.emulated else ""
        yield (
            _start(context if context != experiment.product else "") + f"From 1 to {last.ranks} ranks the rate grows "
            f"{last.rate / first.rate:.2f} times, an efficiency of {percent(statistics.median(values))}{spread} "
            f"against the run of one rank{beside}{mark}."
        )


def _batch(experiment: Experiment) -> Iterator[str]:
    def batch(case: Case) -> float:
        return number_of(case.settings.get("batch", ""))

    for context, points in series_over(experiment, "batch", batch) if "batch" in experiment.varied else []:
        if len(points) < 3:
            continue
        best = max((case for _, case in points), key=lambda case: case.rate)
        enough = next(case for _, case in points if case.rate >= SATURATED * best.rate)
        yield (
            _start(context if context != experiment.product else "") + f"The highest rate is at batch "
            f"{best.settings.get('batch')}: {measured_text(best, experiment.unit)}; from batch "
            f"{enough.settings.get('batch')} on it is within {percent(1 - SATURATED)} of that."
        )


def choices(experiment: Experiment) -> list[str]:
    """Which settings changed nothing that NCCL chose."""
    if not any(name.startswith("NCCL_") and name in experiment.variables for name in experiment.tuned):
        return []
    if not any(case.nccl() or sent_by(case) == "mpi" for case in experiment.measured):
        return ["The runs do not say what NCCL chose."]
    sentences = limited(_without_effect(experiment))
    return sentences or ["Every NCCL_* setting changed what NCCL chose (algorithm, protocol, channels or transport)."]


def _without_effect(experiment: Experiment) -> Iterator[str]:
    names = [name for name in experiment.tuned if name in experiment.variables]
    for context, cases in experiment.contexts(names):
        reference = experiment.reference(cases)
        for case in cases:
            same = (case.nccl(), case.choices()) == (reference.nccl(), reference.choices())
            ignored = _ignored_on_its_path(case, names)
            if ignored and case is not reference:
                yield f"{_start(context)}No effect: {ignored}."
            if ignored or case is reference or case.nccl() is None or not same:
                continue
            algorithm, protocol, channels, transport = case.nccl()
            differs = ""
            if same_choice(case, reference) and case.rate != reference.rate:
                change = change_text(case.rate / reference.rate)
                differs = f" Its rate is {change} all the same: that is the noise of this machine between jobs."
            yield (
                _start(context) + f"No effect on what NCCL chose: {experiment.label(case, names)}. It "
                f"took {algorithm}, {protocol}, {channels} channels, {transport}, as with "
                f"{experiment.label(reference, names)}.{differs}"
            )


def _ignored_on_its_path(case: Case, names: list[str]) -> str:
    """Variables that the path of the gradients does not follow, and why; empty where there are none."""
    given = [name for name in names if name.startswith("NCCL_") and case.settings.get(name)]
    why = "the gradients went over MPI"
    if sent_by(case) in SYMMETRIC:
        given = [name for name in given if name in ("NCCL_ALGO", "NCCL_PROTO")]
        why = "NCCL's symmetric kernels, which the gradients used, do not follow it (symmetric=off avoids them)"
    elif sent_by(case) != "mpi":
        return ""
    settings = ", ".join(setting_text(name, case.settings[name]) for name in given)
    return f"{settings}, because {why}" if given else ""


def numerics(experiment: Experiment) -> list[str]:
    """Whether a setting changes the parameters that training ends with."""
    return limited(_numerics(experiment))


def _numerics(experiment: Experiment) -> Iterator[str]:
    yield from _deciding_flags(experiment)
    names = [name for name in experiment.varied if not _decides_parameters(experiment, name)]
    for context, cases in experiment.contexts(names):
        cases = [case for case in cases if case.hashes() and case.trains]
        for case in cases:
            if len(case.hashes()) > 1:
                yield (
                    f"{len(case.runs)} runs of {experiment.label(case)} ended with {len(case.hashes())} different "
                    f"sets of parameters: it is not reproducible bit by bit ({_why_runs_differ(case)})."
                )
        different = {frozenset(case.hashes()) for case in cases}
        if len(different) > 1:
            yield _start(context) + _changed_numerics(experiment, cases, names)
        elif len(cases) > 1:
            yield _start(context) + f"All {len(cases)} settings end with the same parameters, bit by bit."


def _decides_parameters(experiment: Experiment, name: str) -> bool:
    """Whether other parameters are what the setting is there for. Of a flag, the runs say it; else it may be so."""
    if name in experiment.variables or name in PLACEMENT:
        return False
    told = _told_deciding(experiment)
    return not told or name in SETS_RANKS or name in told


def _told_deciding(experiment: Experiment) -> set[str]:
    """Flags of which the runs say that they decide the parameters."""
    descriptions = [table_of(run.summary.get("description")) for case in experiment.measured for run in case.runs]
    lists = [table.get("decides_parameters") for table in descriptions]
    return {str(flag) for flags in lists if isinstance(flags, list) for flag in flags}


def _deciding_flags(experiment: Experiment) -> Iterator[str]:
    """Names the settings with which training is meant to end with other parameters, where it does."""
    told = _told_deciding(experiment)
    for name in [name for name in experiment.varied if name in told or name in SETS_RANKS]:
        groups = [[case for case in cases if case.hashes()] for _, cases in experiment.contexts([name])]
        if any(len({frozenset(case.hashes()) for case in cases}) > 1 for cases in groups):
            yield f"{name} decides the parameters at the end: with another value they differ, as they should."


def _why_runs_differ(case: Case) -> str:
    """Of one case, as far as they tell it."""
    if any(table_of(run.summary.get("configuration")).get("tune") == "on" for run in case.runs):
        return "--tune on chooses matrix products by timing, and other products round differently"
    return "ddpreport does not know why"


def _why_parameters_differ(case: Case, reference: Case) -> str:
    """As far as the runs tell it."""
    if sent_by(case) != sent_by(reference):
        return f"gradients by another path, {sent_by(case) or 'not told'}, are summed in another order"
    if case.nccl() != reference.nccl() or case.choices() != reference.choices():
        return "NCCL chose otherwise, and sums in another order round differently"
    if case.buckets() != reference.buckets():
        return "other buckets: each is summed in parts of its own, and sums in another order round differently"
    same = ", and NCCL chose the same" if case.nccl() else ""
    return f"no flag that decides parameters differs{same}: ddpreport does not know why"


def _changed_numerics(experiment: Experiment, cases: list[Case], names: list[str]) -> str:
    reference = experiment.reference(cases)
    changed = [case for case in cases if case.hashes() != reference.hashes()]
    labels = "; ".join(experiment.label(case, names) for case in changed[:8])
    more = f" and {len(changed) - 8} more" if len(changed) > 8 else ""
    reasons = "; ".join(dict.fromkeys(_why_parameters_differ(case, reference) for case in changed))
    return (
        f"The parameters at the end differ from those of {experiment.label(reference, names)} with: {labels}{more} "
        f"({reasons})."
    )
