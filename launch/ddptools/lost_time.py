"""Where the time of a step went, from what each job measured about itself."""

import dataclasses

from ddptools.measurements import Case, Experiment, finite, median_of, table_of
from ddptools.tables import MOST_ROWS, Table
from ddptools.words import percent

EXPOSED = "exposed communication"
SLOWER = "slower compute and stragglers"


@dataclasses.dataclass
class Loss:
    case: Case
    step: float  # seconds
    useful: float  # seconds of the same step on one rank alone
    parts: dict[str, float]  # seconds of what was lost


def losses(experiment: Experiment) -> list[Loss]:
    """For the cases with a calibration, in order of their ranks."""
    found = [loss for case in experiment.measured if (loss := loss_of(case)) is not None]
    return sorted(found, key=lambda loss: loss.case.ranks)


def loss_of(case: Case) -> Loss | None:
    """step - step without communication is exposed; step without communication - one rank's step is what the ranks cost
    each other otherwise. A summary's own `lost_time` (seconds by name) takes the place of both."""
    step, efficiency = case.medians("step_seconds"), case.medians("scaling_efficiency")
    silent = case.medians("step_seconds_without_communication")
    if not step or step <= 0 or not efficiency or efficiency <= 0 or not silent or case.ranks < 2:
        return None
    alone = step * efficiency
    own = _own_parts(case)
    if own:
        return Loss(case, step, step - sum(own.values()), own)
    return Loss(case, step, alone, {EXPOSED: step - silent, SLOWER: silent - alone})


def _own_parts(case: Case) -> dict[str, float]:
    tables = [table_of(run.summary.get("lost_time")) for run in case.runs]
    names = dict.fromkeys(name for table in tables for name in table)
    medians = {name: median_of(finite(table.get(name)) for table in tables) for name in names}
    return {name: value for name, value in medians.items() if value is not None}


def lost_time_table(experiment: Experiment) -> Table | None:
    found = losses(experiment)
    if not found:
        return None
    parts = list(dict.fromkeys(name for loss in found for name in loss.parts))
    header = ["case", "step ms", "one rank alone ms", *(f"{part} ms" for part in parts), "efficiency in the job"]
    rows = []
    for loss in found[:MOST_ROWS]:
        milliseconds = [loss.step, loss.useful, *(loss.parts.get(part, 0.0) for part in parts)]
        row = [experiment.label(loss.case), *(f"{1e3 * value:.4g}" for value in milliseconds)]
        rows.append([*row, percent(loss.useful / loss.step)])
    caption = "The time of a step and its parts. A part below zero is a difference within the noise."
    return Table(caption, header, rows)
