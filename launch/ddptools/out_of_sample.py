"""The planner asked about runs that it has not seen: fitted on few ranks, asked about more, beside the prediction that
nothing is lost."""

import dataclasses
import statistics
from collections.abc import Iterable
from typing import Any

from ddptools.compute_rates import NotMeasured, named
from ddptools.description import Description
from ddptools.errors import UsageError
from ddptools.measurements import PLACEMENT, WORKLOAD, setting_text, table_of
from ddptools.plan import Case, predict
from ddptools.plan_calibration import Measured, calibrate, measured_runs
from ddptools.tables import Table, to_text
from ddptools.words import signed_percent

NOT_COMPARED = WORKLOAD | {*PLACEMENT, "log-every"}  # settings that do not tell one kind of run from another


@dataclasses.dataclass(frozen=True)
class Asked:
    """Of runs that differ in nothing, medians; the rates are of the whole job."""

    work: Description
    settings: tuple[tuple[str, str], ...]  # that tell this kind of run from others
    ranks: int
    batch: float
    runs: int
    measured_per_second: float  # samples
    predicted_per_second: float
    lossless_per_second: float  # what as many ranks as one rank gives would

    @property
    def error(self) -> float:
        return self.predicted_per_second / self.measured_per_second - 1.0

    @property
    def lossless_error(self) -> float:
        return self.lossless_per_second / self.measured_per_second - 1.0


def out_of_sample(records: Iterable[dict[str, Any]], most_ranks: int) -> list[Asked]:
    """For each kind of run: rates from the runs of up to `most_ranks` ranks, predictions of those of more. Kinds of
    which one of the two lacks, and batches outside the fitted ones, are left out."""
    groups: dict[tuple, list[tuple[dict[str, Any], Measured]]] = {}
    for record in records:
        settings = table_of(record.get("settings"))
        kind = sorted((name, str(value)) for name, value in settings.items() if name not in NOT_COMPARED)
        for run in measured_runs([record]):
            groups.setdefault((named(run.case.work), tuple(kind)), []).append((record, run))
    found = [asked for (_, kind), runs in groups.items() for asked in _asked(kind, runs, most_ranks)]
    if not found:
        few = f"runs of 2 to {most_ranks} ranks of its kind"
        raise UsageError(f"--fit-ranks {most_ranks}: there is no run of more ranks beside {few}")
    return found


def _asked(settings: tuple, runs: list[tuple[dict[str, Any], Measured]], most_ranks: int) -> list[Asked]:
    few = [record for record, run in runs if run.case.gpus <= most_ranks]
    more = [run for _, run in runs if run.case.gpus > most_ranks]
    if not more or max((run.case.gpus for _, run in runs if run.case.gpus <= most_ranks), default=1) == 1:
        return []  # one rank tells nothing of the network
    fitted = calibrate(few)
    cases: dict[tuple[int, float, Case], list[float]] = {}
    for run in more:
        cases.setdefault((run.case.gpus, run.case.batch, run.case), []).append(run.samples_per_second)
    found = []
    for (ranks, batch, case), rates in sorted(cases.items(), key=lambda item: item[0][:2]):
        try:
            case = fitted.applied_to(case)
        except NotMeasured:
            continue
        alone = case.tflops * 1e12 / case.work.flop
        predicted = predict(case).samples_per_second
        work, measured = case.work, statistics.median(rates)
        found.append(Asked(work, settings, ranks, batch, len(rates), measured, predicted, ranks * alone))
    return found


def four_digits(value: float) -> str:
    """15.23 M, 2,043."""
    return f"{value / 1e6:.4g} M" if value >= 1e6 else f"{value:,.0f}"


def out_of_sample_table(asked: list[Asked], most_ranks: int) -> Table:
    values: dict[str, set[str]] = {}
    for name, value in (setting for one in asked for setting in one.settings):
        values.setdefault(name, set()).add(value)
    rows = []
    for one in asked:
        settings = (setting_text(name, value) for name, value in one.settings if len(values[name]) > 1)
        label = ", ".join((one.work.model, *settings))
        rates = [four_digits(one.measured_per_second), four_digits(one.predicted_per_second)]
        rows.append([label, str(one.ranks), f"{one.batch:g}", str(one.runs), *rates, signed_percent(one.error),
                     signed_percent(one.lossless_error)])  # fmt: skip
    header = ["run", "ranks", "batch", "runs", "measured", "predicted", "error", "error of no loss"]
    caption = f"Fitted on runs of up to {most_ranks} ranks, asked about more (samples/s, medians of the runs):"
    return Table(caption, header, rows, "; ".join(_how_far_off(asked)))


def _how_far_off(asked: list[Asked]) -> list[str]:
    texts = []
    for name, errors in (("ddpplan", [one.error for one in asked]),
                         ("no loss", [one.lossless_error for one in asked])):  # fmt: skip
        sizes = [abs(error) for error in errors]
        texts.append(f"{name}: off by {100 * statistics.median(sizes):.1f}% in the median, {100 * max(sizes):.1f}% at most")
    return texts


def out_of_sample_text(asked: list[Asked], most_ranks: int) -> str:
    return "\n".join([to_text(out_of_sample_table(asked, most_ranks)).rstrip("\n"), *_how_far_off(asked), ""])
