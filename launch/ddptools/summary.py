"""The answer of each experiment, as the first thing on the page; and what a reader must be warned of."""

import dataclasses
import itertools
import statistics
from collections.abc import Iterator

from ddptools.lost_time import Loss
from ddptools.measurements import PASSES, Case, Experiment, series_over
from ddptools.noise import compare
from ddptools.same_choice import same_choice
from ddptools.tables import gpus_text
from ddptools.words import change_text, contest, efficiencies, measured_text, noise_of_jobs_text, number, percent

MOST_ANSWERS = 4  # of an experiment
MOST_WARNINGS = 6
BEYOND, WITHIN, UNKNOWN = "beyond the noise", "within the noise", "too few runs to tell"
SAME = "noise of this machine: NCCL chose the same"
FEWEST_RUNS = 3


@dataclasses.dataclass
class Answer:
    text: str
    noise: str = ""  # one of the four above, or empty where nothing was compared


@dataclasses.dataclass
class Entry:
    """An experiment in the summary of the page."""

    title: str  # that of its heading, to which it links
    question: str
    answers: list[Answer]
    facts: str  # date, machine, versions


def entry_of(experiment: Experiment, title: str) -> Entry:
    answers = list(itertools.islice(_answers(experiment), MOST_ANSWERS + 1))
    answers = answers[:MOST_ANSWERS] + ([Answer("More of them are below.")] if len(answers) > MOST_ANSWERS else [])
    return Entry(title, experiment.description, answers, facts_of(experiment))


def facts_of(experiment: Experiment) -> str:
    days = sorted({str(record.get("started"))[:10] for record in experiment.records if record.get("started")})
    date = [days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"] if days else []
    machines = list(dict.fromkeys(_machine(machine) for machine in experiment.machines))
    versions = [", ".join(text.splitlines()) for text in experiment.versions]
    runs = len(experiment.runs)
    return "; ".join([*date, *machines, *versions, f"{runs} run{'' if runs == 1 else 's'}"])


def _machine(machine: dict) -> str:
    gpus = gpus_text(machine)
    return str(machine.get("cpu") or "unknown processor") if gpus == "none" else gpus


def _answers(experiment: Experiment) -> Iterator[Answer]:
    if not experiment.measured:
        yield Answer("No run gave a number.")
        return
    said = False
    for answer in itertools.chain(_of_tuned(experiment), _of_ranks(experiment), _of_placement(experiment)):
        said = True
        yield answer
    if not said:
        best = max(experiment.measured, key=lambda case: case.rate)
        yield Answer(f"{experiment.label(best)}: {measured_text(best, experiment.unit)}")


def _of_tuned(experiment: Experiment) -> Iterator[Answer]:
    for context, cases in experiment.contexts(experiment.tuned) if experiment.tuned else ():
        rivals = [case for case in cases if case.trains]
        if len(rivals) < 2:
            continue
        found = contest(experiment, rivals)
        default = " (the reference)" if found.best is found.reference else ""
        winner = f"{experiment.label(found.best, found.names)}{default}"
        yield _won(experiment, context, winner, found.best, found.other, found.names, found.comparisons)


def _of_placement(experiment: Experiment) -> Iterator[Answer]:
    for name in ("gpus", "cpus", "layout"):
        for context, cases in experiment.contexts([name]) if name in experiment.varied else ():
            if len(cases) > 1:
                best, worst = max(cases, key=lambda c: c.rate), min(cases, key=lambda c: c.rate)
                pairs = len(cases) * (len(cases) - 1) // 2
                yield _won(experiment, context, experiment.label(best, [name]), best, worst, [name], pairs)


def _won(
    experiment: Experiment, context: str, winner: str, best: Case, other: Case, names: list[str], comparisons: int
) -> Answer:
    comparison = compare(best.rates, other.rates)
    noise = {None: UNKNOWN, True: BEYOND, False: WITHIN}[comparison.beyond_noise(comparisons)]
    if noise == WITHIN and min(len(best.rates), len(other.rates)) < FEWEST_RUNS:
        noise = UNKNOWN
    if noise == BEYOND and noise_of_jobs_text(experiment, best, other):
        noise = WITHIN
    if same_choice(best, other):
        noise = SAME
    more = f"{change_text(comparison.ratio)} than {experiment.label(other, names)}"
    text = f"{number(best.rate)} {experiment.unit}, {more}"
    return Answer(f"{context}: {winner}: {text}" if context else f"{winner}: {text}", noise)


def _of_ranks(experiment: Experiment) -> Iterator[Answer]:
    series = series_over(experiment, "ranks", lambda case: case.ranks) if experiment.over_ranks else []
    for context, points in series:
        first, last = points[0][1], points[-1][1]
        if first.ranks != 1 or last.ranks <= 1 or not last.trains or experiment.unit == PASSES:
            continue
        where = f"{context}: " if context != experiment.product else ""
        efficiency = percent(statistics.median(efficiencies(last, first)))
        yield Answer(
            f"{where}{last.ranks} ranks: {number(last.rate)} {experiment.unit}, {last.rate / first.rate:.2f} times one "
            f"rank, an efficiency of {efficiency}"
        )


def warnings_of(experiment: Experiment, found: list[Loss]) -> list[str]:
    """Numbers that cannot be what they are called: efficiencies above 100%, parts below zero."""
    all_lines = itertools.chain(_efficiencies_above_all(experiment), _parts_below_zero(found))
    lines = list(itertools.islice(all_lines, MOST_WARNINGS + 1))
    return lines[:MOST_WARNINGS] + (["There are more of this kind."] if len(lines) > MOST_WARNINGS else [])


def _efficiencies_above_all(experiment: Experiment) -> Iterator[str]:
    why = "the run of one rank was slower than its machine is"
    for _, points in series_over(experiment, "ranks", lambda case: case.ranks) if experiment.over_ranks else []:
        one = points[0][1]
        for case in (case for _, case in points if one.ranks == 1 and case.ranks > 1 and case.trains):
            value = statistics.median(efficiencies(case, one))
            if _above_all(value):
                label = experiment.label(case)
                yield f"An efficiency above 100%: {percent(value)} of {label}. No rank gains by others: {why}."
    for case in experiment.measured:
        value = case.medians("scaling_efficiency") if case.ranks != 1 else None
        half_width = case.half_width("scaling_efficiency") or 0.0
        if value is not None and _above_all(value - half_width):
            interval = f" (95% interval {percent(value - half_width)} to {percent(value + half_width)})"
            yield (
                f"An efficiency in the job above 100%: {percent(value)} of {experiment.label(case)}"
                f"{interval if half_width else ''}. No rank gains by others: its baseline is too slow."
            )


def _above_all(efficiency: float) -> bool:
    return efficiency > 1.0005  # printed as more than 100.0%


def _parts_below_zero(found: list[Loss]) -> Iterator[str]:
    """Those that lie below zero with all of their interval, and those without one."""
    for loss in found:
        for name, seconds in loss.part_seconds.items():
            half_width = loss.half_width_seconds.get(name)
            share = (seconds + (half_width or 0.0)) / loss.step_seconds
            if share > -5e-4:  # printed as less than -0.0%
                continue
            why = "the two measurements that it is the difference of have more noise than that"
            if half_width is not None:
                why = "what disturbed the two measurements that it is the difference of lasted longer than their rounds"
            shown = f"{100 * seconds / loss.step_seconds:.1f}%"
            yield f"A part below zero: {name} of {loss.label}, {shown} of a step. A time is not negative: {why}."
