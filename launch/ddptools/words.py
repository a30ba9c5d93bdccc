"""What an experiment shows, in sentences."""

import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Iterator

from ddptools.gradient_path import SYMMETRIC, sent_by
from ddptools.measurements import PLACEMENT, Case, Experiment, number_of, series_over, setting_text, table_of
from ddptools.noise import NO_DIFFERENCE, TOO_FEW, Effect, Effects

MOST_SENTENCES = 12
MOST_CONTEXTS = 200  # that are compared
MOST_LISTED = 3  # cases in one sentence
SATURATED = 0.95
SETS_RANKS = ("ranks", "global-batch")  # of ddpsweep; with these, too, training ends with other parameters
UNEXPLAINED = "ddpreport does not know why"


def number(value: float) -> str:
    """Four digits: 15.24 M, 349,600, 325.7; below 100, three."""
    magnitude = abs(value)
    if magnitude >= 999_950:
        return f"{value / 1e6:#.4g} M" if magnitude < 1e10 else f"{value:.4g}"
    if magnitude >= 1000:
        return f"{float(f'{value:.4g}'):,.0f}"
    return f"{value:.1f}" if magnitude >= 100 else f"{value:.3g}"


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}%"


def signed_percent(fraction: float) -> str:
    return f"{100 * fraction:+.1f}%"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:g} s" if seconds == round(seconds) else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"


def measured_text(case: Case, unit: str) -> str:
    """A rate with its spread, and "emulated" where it is."""
    rates = case.rates
    spread = f"{number(min(rates))} to {number(max(rates))} over {len(rates)} runs" if len(rates) > 1 else "one run"
    return f"{number(case.rate)} {unit} ({spread}{', emulated' if case.emulated else ''})"


@dataclasses.dataclass
class Answer:
    text: str  # empty: no more than a remark
    about: str = ""  # which cases, against what; or the remark
    size: float = 0.0  # of the largest difference

    @property
    def sentence(self) -> str:
        about = f" ({self.about})" if self.text and self.about else self.about
        return f"{self.text}{about}."


def answers(experiment: Experiment) -> list[Answer]:
    """The largest differences first."""
    if not experiment.measured:
        return [Answer("", "No run gave a number")]
    found = [*_ranks(experiment), *_effects(experiment)]
    remarks = itertools.chain(_ceilings(experiment), _same_gpus(experiment), _batch(experiment))
    found += [Answer("", text) for text in remarks]
    if found:
        return sorted(found, key=lambda answer: -answer.size)
    listed = [f"{experiment.label(c)}: {measured_text(c, experiment.unit)}" for c in experiment.measured[:MOST_LISTED]]
    return [Answer("; ".join(listed) + ("; ..." if len(experiment.measured) > MOST_LISTED else ""))]


def _effects(experiment: Experiment) -> Iterator[Answer]:
    """Of the settings that were tuned, and of each placement."""
    effects = Effects(experiment)
    for names in filter(None, [experiment.tuned, *([name] for name in PLACEMENT if name in experiment.varied)]):
        contexts = ((context, [case for case in cases if case.trains]) for context, cases in experiment.contexts(names))
        compared = (one for one in contexts if len(one[1]) > 1 and not _on_the_same_gpus(one[1], names))
        found = [_compared(experiment, effects, names, *one) for one in itertools.islice(compared, MOST_CONTEXTS)]
        shared: dict[str, list[Answer]] = {}
        for answer in found:
            shared.setdefault(answer.text, []).append(answer)
        for text, same in shared.items():
            if len(same) > 2:
                about = f"in {len(same)} of {len(found)} comparisons"
            else:
                about = "; ".join(answer.about for answer in same)
            yield Answer(text, about, same[0].size)


def _on_the_same_gpus(cases: list[Case], names: list[str]) -> bool:
    used = {case.gpus_used() for case in cases}
    return names == ["gpus"] and len(used) == 1 and "" not in used


def _compared(experiment: Experiment, effects: Effects, names: list[str], context: str, cases: list[Case]) -> Answer:
    """As "LOC: -32.8%; NVL, PIX, SYS: no difference"."""
    names = [n for n in names if len({case.settings.get(n, "") for case in cases}) > 1] or names
    reference = experiment.reference(cases)
    found = [(_short(experiment, c, reference, names), effects.between(c, reference, len(cases) - 1), c)
             for c in cases if c is not reference]  # fmt: skip
    found.sort(key=lambda one: -_size(one[1]))
    said = [f"{label}: {effect.text}{_other_path(effects, case, reference)}"
            for label, effect, case in found if effect.is_difference]  # fmt: skip
    if len(said) > MOST_LISTED:
        said = [*said[:MOST_LISTED], f"{len(said) - MOST_LISTED} more below"]
    for text in (NO_DIFFERENCE, TOO_FEW):
        alike = [label for label, effect, _ in found if effect.text == text]
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


def _other_path(effects: Effects, case: Case, reference: Case) -> str:
    """Empty where the gradients took the path of the reference."""
    other = effects.paths.other_path(case, reference)
    if other is None:
        return ""
    fair = "" if other.fair is None else f"; on the same path {effects.between(case, other.fair, 1).text}"
    return f" (gradient path {other.path}, not {other.reference_path}{fair})"


def _ceilings(experiment: Experiment) -> Iterator[str]:
    for context, cases in experiment.contexts(experiment.tuned) if experiment.tuned else ():
        best = max((case for case in cases if case.trains), key=lambda case: case.rate, default=None)
        for ceiling in [case for case in cases if not case.trains and best is not None]:
            yield (
                f"{_start(context)}Without any all-reduce (overlap=none, which trains nothing together) "
                f"{number(ceiling.rate)} {experiment.unit}; the best that communicates reaches "
                f"{percent(best.rate / ceiling.rate)} of that"
            )


def limited(sentences: Iterable[str]) -> list[str]:
    """The first ones; no more than those are made."""
    kept = list(itertools.islice(sentences, MOST_SENTENCES + 1))
    return kept if len(kept) <= MOST_SENTENCES else [*kept[:MOST_SENTENCES], "More of this kind is left out here."]


def _start(context: str) -> str:
    return f"{context}: " if context else ""


def _same_gpus(experiment: Experiment) -> Iterator[str]:
    """Names of selections that turned out to be the same GPUs: on some machines no pair is better than another."""
    names: dict[str, list[str]] = {}
    for case in experiment.measured if "gpus" in experiment.varied else ():
        used = case.gpus_used()
        if used:
            names.setdefault(used, []).append(case.settings.get("gpus", ""))
    for gpus, same in names.items():
        if len(set(same)) > 1:
            yield f"{' and '.join(dict.fromkeys(same))} are the same GPUs here: {gpus}"


def efficiencies(case: Case, one: Case) -> list[float]:
    """Of each run of `case`, against the median of the one-rank case."""
    return [rate / case.ranks / (one.rate / one.ranks) for rate in case.rates]


def _ranks(experiment: Experiment) -> Iterator[Answer]:
    series = series_over(experiment, "ranks", lambda case: case.ranks) if experiment.over_ranks else []
    for context, points in series:
        first, last = points[0][1], points[-1][1]
        if first.ranks != 1 or last.ranks <= 1 or not last.trains:
            continue
        own = last.medians("scaling_efficiency")
        about = [f"{number(last.rate)} {experiment.unit}", *([context] if context != experiment.product else [])]
        about += [f"efficiency in the job {percent(own)}"] if own is not None else []
        yield Answer(
            f"{last.ranks} ranks: {last.rate / first.rate:.2f} times one rank, efficiency "
            f"{percent(statistics.median(efficiencies(last, first)))}{' (emulated)' if last.emulated else ''}",
            "; ".join(about),
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
            f"{enough.settings.get('batch')} on it is within {percent(1 - SATURATED)} of that"
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
            yield (
                _start(context) + f"No effect on what NCCL chose: {experiment.label(case, names)}. It "
                f"took {algorithm}, {protocol}, {channels} channels, {transport}, as with "
                f"{experiment.label(reference, names)}."
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
    return UNEXPLAINED


def _why_parameters_differ(case: Case, reference: Case) -> str:
    """As far as the runs tell it."""
    if sent_by(case) != sent_by(reference):
        return f"gradients by another path, {sent_by(case) or 'not told'}, are summed in another order"
    if case.nccl() != reference.nccl() or case.choices() != reference.choices():
        return "NCCL chose otherwise, and sums in another order round differently"
    if case.buckets() != reference.buckets():
        return "other buckets: each is summed in parts of its own, and sums in another order round differently"
    same = ", and NCCL chose the same" if case.nccl() else ""
    return f"no flag that decides parameters differs{same}: {UNEXPLAINED}"


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
