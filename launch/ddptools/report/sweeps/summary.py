"""The answer of each experiment, as the first thing on the page; and what a reader must be warned of."""

import itertools
import statistics
from collections.abc import Iterator

from ddptools.common.text import percent
from ddptools.page.blocks import Answer, Entry
from ddptools.pictures.charts import Picture
from ddptools.report.sweeps.answers import answers, limited
from ddptools.report.sweeps.experiment import Case, Experiment
from ddptools.report.sweeps.noise import ALPHA, welch_p
from ddptools.report.sweeps.tables import gpus_text
from ddptools.results.run import why_unusable

MOST_ANSWERS = 4  # of an experiment
MOST_WARNINGS = 6


def entry_of(experiment: Experiment, title: str, facts: str, picture: Picture | None) -> Entry:
    found = answers(experiment)
    more = [Answer("", f"{len(found) - MOST_ANSWERS} more are below")] if len(found) > MOST_ANSWERS else []
    return Entry(title, experiment.description, facts, found[:MOST_ANSWERS] + more, picture)


def measured_on(experiments: list[Experiment]) -> str:
    machines = list(dict.fromkeys(_machine(machine) for e in experiments for machine in e.machines))
    days = sorted({str(r.get("started"))[:10] for e in experiments for r in e.records if r.get("started")})
    date = [days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"] if days else []
    return ", ".join([*([" and ".join(machines[:2])] if len(machines) < 3 else [f"{len(machines)} machines"]), *date])


def _machine(machine: dict) -> str:
    gpus = gpus_text(machine)
    return str(machine.get("cpu") or "unknown processor") if gpus == "none" else gpus


def warnings_of(experiment: Experiment) -> list[str]:
    """Numbers that are wrong: of baselines that say too little, and efficiencies above 100% by more than the noise."""
    found = itertools.chain(_unusable_baselines(experiment), _efficiencies_above_all(experiment))
    return limited(found, MOST_WARNINGS)


def _unusable_baselines(experiment: Experiment) -> Iterator[str]:
    for case in experiment.measured:
        reasons = [why for run in case.runs if (why := why_unusable(run.summary))]
        if reasons:
            runs = f"{len(reasons)} of {len(case.runs)} runs of {experiment.label(case)}"
            yield (
                f"Efficiency and parts of a step are unusable in {runs}: {reasons[0]}. Repeat them on an idle machine, "
                "or with a longer --calibration-seconds."
            )


def _efficiencies_above_all(experiment: Experiment) -> Iterator[str]:
    why = "the run of one rank was slower than its machine is"
    compared = [case for case in experiment.measured if case.key in experiment.one_rank]
    for case in compared:
        value = statistics.median(experiment.efficiencies(case))
        if _above_all(value) and not _is_noise(case, experiment.one_rank[case.key]):
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


def _is_noise(case: Case, one: Case) -> bool:
    """Whether a rank of `case` may be no faster than that of `one`."""
    each = [rate / case.ranks for rate in case.rates]
    return min(len(each), len(one.rates)) > 1 and welch_p(each, one.rates) >= ALPHA


def _above_all(efficiency: float) -> bool:
    return efficiency > 1.0005  # printed as more than 100.0%
