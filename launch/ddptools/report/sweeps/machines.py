"""The rates of cases that several machines have, side by side."""

from ddptools.common.files import Record
from ddptools.common.table import Table, spread
from ddptools.report.sweeps.experiment import Case, Experiment
from ddptools.report.sweeps.noise import Effects
from ddptools.report.sweeps.tables import MOST_ROWS, with_rest
from ddptools.results.efficiency import DISTURBED
from ddptools.results.machine import different_machines, differences, long_name, parts_of, short_name

CAPTION = "Rates of the same cases, median (smallest to largest), and their ratios to the first machine."
FOOTNOTE = (
    "No difference means within the noise. If a machine has several results of a case, the first of them is shown. "
    "Cases that the first machine lacks have no ratio."
)

Measured = tuple[Experiment, Case]


def same_cases(experiments: list[Experiment]) -> Table:
    """A row per case with the same settings on two machines or more. Experiments of several machines are left out."""
    kinds = different_machines(machine for experiment in experiments for machine in experiment.kinds_of_machines)
    found: dict[tuple[str, ...], dict[int, Measured]] = {}  # by the case, then by the place of its machine in kinds
    for experiment in experiments:
        place = _place(experiment, kinds)
        for case in experiment.measured if place is not None else ():
            key = (experiment.sweep, experiment.product, experiment.unit, case.key, str(case.emulated))
            found.setdefault(key, {}).setdefault(place, (experiment, case))
    compared = [of_case for of_case in found.values() if len(of_case) > 1]
    places = list(dict.fromkeys(place for of_case in found.values() for place in of_case))  # in the order of the results
    places = [place for place in places if any(place in of_case for of_case in compared)]
    names = _names([kinds[place] for place in places])
    header = ["case", "unit", *names, *(f"ratio, {name}" for name in names[1:])]
    effects = {id(experiment): Effects(experiment) for of_case in compared for experiment, _ in of_case.values()}
    rows = [_row(of_case, places, effects) for of_case in compared[:MOST_ROWS]]
    return Table(with_rest(CAPTION, len(compared)), header, rows, FOOTNOTE)


def _place(experiment: Experiment, kinds: list[Record]) -> int | None:
    """None if its runs are of several machines, or of an unknown one."""
    machines = experiment.kinds_of_machines
    if len(machines) != 1:
        return None
    return next(i for i, kind in enumerate(kinds) if not differences(parts_of(machines[0]), parts_of(kind)))


def _names(machines: list[Record]) -> list[str]:
    names = [short_name(machine) for machine in machines]
    return names if len(set(names)) == len(names) else [long_name(machine) for machine in machines]


def _row(of_case: dict[int, Measured], places: list[int], effects: dict[int, Effects]) -> list[str]:
    experiment, case = next(iter(of_case.values()))
    rates = [_rate(of_case[place][1]) if place in of_case else "" for place in places]
    ratios = [_ratio(of_case, place, places[0], effects) for place in places[1:]]
    return [f"{experiment.title}, {experiment.label(case)}", experiment.unit, *rates, *ratios]


def _rate(case: Case) -> str:
    return f"{spread(case.rates)}, {DISTURBED}" if case.disturbed else spread(case.rates)


def _ratio(of_case: dict[int, Measured], place: int, first: int, effects: dict[int, Effects]) -> str:
    """With a mark if it is within the noise of either machine, or if a run was disturbed."""
    if place not in of_case or first not in of_case:
        return ""
    (experiment, case), (reference_experiment, reference) = of_case[place], of_case[first]
    tested = [effects[id(e)].between(case, reference, len(of_case) - 1) for e in (reference_experiment, experiment)]
    marks = list(dict.fromkeys(effect.text for effect in tested if not effect.is_difference))
    marks += [DISTURBED] if case.disturbed or reference.disturbed else []
    return ", ".join([f"{case.rate / reference.rate:.3f}", *marks])
