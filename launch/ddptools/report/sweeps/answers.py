"""What an experiment shows, in sentences."""

import itertools
import statistics
from collections.abc import Iterable, Iterator

from ddptools.common.text import number, percent
from ddptools.common.values import grouped
from ddptools.page.blocks import Answer
from ddptools.report.sweeps.experiment import Case, Experiment
from ddptools.report.sweeps.noise import NO_DIFFERENCE, TOO_FEW, Effect, Effects
from ddptools.report.sweeps.two_efficiencies import disagree, has_smaller_batch
from ddptools.results.efficiency import DISTURBED, Efficiency
from ddptools.results.run import PLACEMENT

MOST_SENTENCES = 12
MOST_CONTEXTS = 200  # that are compared
MOST_LISTED = 3  # cases in one sentence
SATURATED = 0.95
ABOVE_ALL = 1.0005  # of an efficiency: printed as more than 100.0%


def measured_text(case: Case, unit: str) -> str:
    rates = case.rates
    spread = f"{number(min(rates))} to {number(max(rates))} over {len(rates)} runs" if len(rates) > 1 else "one run"
    return f"{number(case.rate)} {unit} ({spread}{', emulated' if case.emulated else ''})"


def answers(experiment: Experiment) -> list[Answer]:
    """The largest differences first."""
    if not experiment.measured:
        return [Answer("", "No run gave a number")]
    found = [*_ranks(experiment), *_effects(experiment)]
    remarks = itertools.chain(_ceilings(experiment), _batch(experiment))
    found += [Answer("", text) for text in remarks]
    if found:
        return sorted(found, key=lambda answer: -answer.size)
    listed = [f"{experiment.label(c)}: {measured_text(c, experiment.unit)}" for c in experiment.measured[:MOST_LISTED]]
    return [Answer("; ".join(listed) + ("; ..." if len(experiment.measured) > MOST_LISTED else ""))]


def _effects(experiment: Experiment) -> Iterator[Answer]:
    effects = Effects(experiment)
    for names in filter(None, [experiment.tuned, *([name] for name in PLACEMENT if name in experiment.varied)]):
        contexts = ((context, [case for case in cases if case.trains]) for context, cases in experiment.contexts(names))
        compared = (one for one in contexts if len(one[1]) > 1)
        found = [_compared(experiment, effects, names, *one) for one in itertools.islice(compared, MOST_CONTEXTS)]
        for text, same in grouped((answer.text, answer) for answer in found).items():
            if len(same) > 2:
                about = f"in {len(same)} of {len(found)} comparisons"
            else:
                about = "; ".join(answer.about for answer in same)
            yield Answer(text, about, same[0].size)


def _compared(experiment: Experiment, effects: Effects, names: list[str], context: str, cases: list[Case]) -> Answer:
    """As "LOC: -32.8%; NVL, PIX, SYS: no difference"."""
    names = [n for n in names if len({case.settings.get(n, "") for case in cases}) > 1] or names
    reference = experiment.reference(cases)
    others = [case for case in cases if case is not reference]
    found = [(_short(experiment, case, reference, names), effects.between(case, reference, len(others))) for case in others]
    found.sort(key=lambda one: -_size(one[1]))
    different = [(label, effect) for label, effect in found if effect.is_difference]
    said = [f"{label}: {effect.text}" for label, effect in different]
    if len(said) > MOST_LISTED:
        said = [*said[:MOST_LISTED], f"{len(said) - MOST_LISTED} more below"]
    for text in (NO_DIFFERENCE, TOO_FEW):
        alike = [label for label, effect in found if effect.text == text]
        labels = ", ".join(alike) if len(alike) <= MOST_LISTED else f"{len(alike)} others"
        said += [f"{labels}: {text}"] if alike else []
    where = f"{context}: " if context else ""
    against = f"{where}against {experiment.label(reference, names)}, {number(reference.rate)} {experiment.unit}"
    return Answer("; ".join(said), against, _size(found[0][1]))


def _size(effect: Effect) -> float:
    return abs(effect.change) if effect.is_difference else 0.0


def _short(experiment: Experiment, case: Case, reference: Case, names: list[str]) -> str:
    """What differs from the reference; of a single setting, its value."""
    if len(names) > 1:
        differ = [name for name in names if case.settings.get(name, "") != reference.settings.get(name, "")]
        return " + ".join(experiment.label(case, [name]) for name in differ)
    return (case.settings.get(names[0], "") or "unset") + (" (emulated)" if case.emulated else "")


def _ceilings(experiment: Experiment) -> Iterator[str]:
    for context, cases in experiment.contexts(experiment.tuned) if experiment.tuned else ():
        best = max((case for case in cases if case.trains), key=lambda case: case.rate, default=None)
        for ceiling in [case for case in cases if not case.trains and best is not None]:
            yield (
                f"{begin_of(context)}Without any all-reduce (overlap=none, which trains nothing together) "
                f"{number(ceiling.rate)} {experiment.unit}; the best that communicates reaches "
                f"{percent(best.rate / ceiling.rate)} of that"
            )


def limited(sentences: Iterable[str], most: int = MOST_SENTENCES) -> list[str]:
    """The first ones; no more than those are made."""
    kept = list(itertools.islice(sentences, most + 1))
    return kept if len(kept) <= most else [*kept[:most], "More of this kind is left out here."]


def begin_of(context: str) -> str:
    return f"{context}: " if context else ""


def _ranks(experiment: Experiment) -> Iterator[Answer]:
    for context, points in experiment.series("ranks"):
        first, last = points[0][1], points[-1][1]
        efficiencies = experiment.efficiencies(last)
        if not efficiencies:
            continue
        own = last.efficiency()
        about = [f"{number(last.rate)} {experiment.unit}", *([context] if context != experiment.product else [])]
        if own is not None:
            about.append(_in_the_job(experiment, last, own))
        efficiency = statistics.median(efficiencies)
        yield Answer(
            f"{last.ranks} ranks: {last.rate / first.rate:.2f} times one rank, efficiency {percent(efficiency)}"
            f"{' (emulated)' if last.emulated else ''}",
            "; ".join(about),
            mark=DISTURBED if experiment.is_doubtful(last) else "above 100%" if efficiency > ABOVE_ALL else "",
        )


def _in_the_job(experiment: Experiment, case: Case, efficiency: Efficiency) -> str:
    about = ["without waits for other programs"] if efficiency.by_others and (case.medians("nodes") or 1) <= 1 else []
    about += ["against the same batch per rank"] if has_smaller_batch(experiment, case) else []
    words = f"efficiency in the job, {', '.join(about)}," if about else "efficiency in the job"
    return f"{words} {efficiency.text}{': the two disagree, repeat the runs' if disagree(experiment, case) else ''}"


def _batch(experiment: Experiment) -> Iterator[str]:
    for context, points in experiment.series("batch"):
        if len(points) < 3:
            continue
        best = max((case for _, case in points), key=lambda case: case.rate)
        if any(len(case.runs) < 2 for _, case in points):
            smallest, largest = points[0][1], points[-1][1]
            yield (
                begin_of(context if context != experiment.product else "") + "One run of each batch has no spread, so it tells "
                f"no best batch: {number(smallest.rate)} {experiment.unit} at batch {smallest.settings.get('batch')}, "
                f"{number(largest.rate)} at batch {largest.settings.get('batch')} (--repeats 3 repeats each run)"
            )
            continue
        enough = next(case for _, case in points if case.rate >= SATURATED * best.rate)
        yield (
            begin_of(context if context != experiment.product else "") + f"The highest rate is at batch "
            f"{best.settings.get('batch')}: {measured_text(best, experiment.unit)}; from batch "
            f"{enough.settings.get('batch')} on it is within {percent(1 - SATURATED)} of that"
        )
