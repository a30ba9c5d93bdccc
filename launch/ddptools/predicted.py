"""What ddpplan would have predicted, beside what was measured."""

import dataclasses
import statistics
from collections.abc import Iterator

from ddptools.errors import UsageError
from ddptools.gradient_path import sent_by
from ddptools.measurements import Case, Experiment
from ddptools.out_of_sample import out_of_sample, out_of_sample_table
from ddptools.plan_calibration import Compared, calibrate, compare
from ddptools.tables import MOST_ROWS, Table, spread
from ddptools.words import percent, signed_percent

FIT_RANKS = 2  # to which the planner is fitted before it is asked about more


@dataclasses.dataclass
class Predicted:
    case: Case
    runs: list[Compared]

    @property
    def error(self) -> float:
        return statistics.median(run.error for run in self.runs)


def predictions(experiment: Experiment) -> list[Predicted]:
    """Of the cases whose runs tell enough. The network is fitted to all runs of the experiment with the same variables
    (they choose transport, algorithm and protocol), device and gradient path, compute to each run's own one-rank
    baseline. Without such a fit nothing is predicted, nor for emulated nodes."""
    cases = [case for case in experiment.measured if case.trains]
    alike: dict[tuple[str, ...], list[Case]] = {}
    for case in cases:
        variables = (case.settings.get(name, "") for name in sorted(experiment.variables))
        alike.setdefault((case.told("device"), sent_by(case), *variables), []).append(case)
    found = {id(case): one for group in alike.values() for case, one in _predicted(group)}
    return [found[id(case)] for case in cases if id(case) in found]


def _predicted(cases: list[Case]) -> Iterator[tuple[Case, Predicted]]:
    try:
        network = calibrate(run.record for case in cases for run in case.runs)
    except UsageError:
        return
    for case in cases:
        compared = compare([run.record for run in case.runs], network)
        fitted = [run for run in compared if run.predicted.algorithm == "measured"]
        if fitted:
            yield case, Predicted(case, fitted)


def predicted_table(experiment: Experiment, found: list[Predicted]) -> Table:
    rows = []
    for one in found[:MOST_ROWS]:
        runs = one.runs
        efficiencies = [run.measured_efficiency for run in runs if run.measured_efficiency is not None]
        rows.append(
            [
                experiment.label(one.case),
                spread([run.predicted.samples_per_second for run in runs]),
                spread([run.measured_per_second for run in runs]),
                spread([run.error for run in runs], signed_percent),
                spread([run.predicted.efficiency for run in runs], percent),
                spread(efficiencies, percent),
                spread([1.0 / value - 1.0 for value in efficiencies if value > 0], signed_percent),
            ]
        )
    left = f" {len(found) - MOST_ROWS} more cases are left out." if len(found) > MOST_ROWS else ""
    header = ["case", "predicted samples/s", "measured samples/s", "error"]
    header += ["predicted efficiency", "measured efficiency", "error of no loss"]
    caption = "What ddpplan gives for the runs to which it was fitted, beside W times their own baseline (no loss)"
    return Table(f"{caption}, median of the runs (smallest to largest).{left}", header, rows)


def predicted_words(experiment: Experiment, found: list[Predicted]) -> str:
    errors = [abs(run.error) for one in found for run in one.runs]
    farthest = max(found, key=lambda one: abs(one.error))
    runs = f"{len(errors)} runs" if len(errors) > 1 else "one run"
    return (
        f"The throughput computed for {runs} is off by {percent(statistics.median(errors))} in the median, by "
        f"{percent(max(errors))} at most; the case farthest off is {experiment.label(farthest.case)} "
        f"({signed_percent(farthest.error)}). A prediction takes compute from the run's own one-rank baseline and the "
        "network from a fit to the runs with the same environment variables and gradient path, itself among them: what is off "
        "is the model of overlap or the fit, and another machine may be farther off."
    )


def unseen_tables(experiment: Experiment) -> list[Table]:
    """Of the runs that a fit to few ranks has not seen; none where there are no runs of few ranks or of more."""
    try:
        asked = out_of_sample([run.record for run in experiment.runs], FIT_RANKS)
    except UsageError:
        return []
    return [out_of_sample_table(asked[:MOST_ROWS], FIT_RANKS)]
