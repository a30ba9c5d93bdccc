"""The planner asked about runs that it has not seen: fitted on few ranks, asked about more, beside the prediction that
nothing is lost."""

import contextlib
import dataclasses
import statistics
from collections.abc import Iterable, Iterator

from ddptools.common.errors import UsageError
from ddptools.common.files import Record
from ddptools.common.table import Table, to_text
from ddptools.common.text import number, percent, setting_text, signed_percent
from ddptools.common.values import table_of
from ddptools.plan.calibration import Measured, calibrate, measured_runs
from ddptools.plan.compute_rates import NotMeasured, named
from ddptools.plan.prediction import Case, predict
from ddptools.results.run import PLACEMENT, WORKLOAD

NOT_COMPARED = WORKLOAD | {*PLACEMENT, "log-every"}  # settings that do not tell one kind of run from another


@dataclasses.dataclass(frozen=True)
class Asked:
    """Of runs that differ in nothing, medians; the rates are of the whole job."""

    model: str
    settings: dict[str, str]  # that tell this kind of run from others
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


def out_of_sample(records: Iterable[Record], most_ranks: int) -> list[Asked]:
    """For each kind of run: rates from the runs of up to `most_ranks` ranks, predictions of those of more. Kinds of
    which one of the two lacks, and batches outside the fitted ones, are left out."""
    groups: dict[tuple, list[tuple[Record, Measured]]] = {}
    for record in records:
        settings = table_of(record.get("settings"))
        kind = sorted((name, str(value)) for name, value in settings.items() if name not in NOT_COMPARED)
        for run in measured_runs([record]):
            groups.setdefault((named(run.case.work), tuple(kind)), []).append((record, run))
    found = [asked for (_, kind), runs in groups.items() for asked in _asked(dict(kind), runs, most_ranks)]
    if not found:
        few = f"runs of 2 to {most_ranks} ranks of its kind"
        raise UsageError(f"--fit-ranks {most_ranks}: there is no run of more ranks beside {few}")
    return found


def _asked(settings: dict[str, str], runs: list[tuple[Record, Measured]], most_ranks: int) -> Iterator[Asked]:
    few = [(record, run.case.gpus) for record, run in runs if run.case.gpus <= most_ranks]
    more: dict[Case, list[float]] = {}
    for run in (run for _, run in runs if run.case.gpus > most_ranks):
        more.setdefault(run.case, []).append(run.samples_per_second)
    if max((ranks for _, ranks in few), default=1) == 1 or not more:
        return  # one rank tells nothing of the network
    fitted = calibrate(record for record, _ in few)
    for case, rates in sorted(more.items(), key=lambda item: (item[0].gpus, item[0].batch)):
        with contextlib.suppress(NotMeasured):
            case = fitted.applied_to(case)
            one_rank, predicted = case.tflops * 1e12 / case.work.flop, predict(case).samples_per_second
            rates_of_job = (statistics.median(rates), predicted, case.gpus * one_rank)
            yield Asked(case.work.model, settings, case.gpus, case.batch, len(rates), *rates_of_job)


def out_of_sample_table(asked: list[Asked], most_ranks: int) -> Table:
    names = dict.fromkeys(name for one in asked for name in one.settings)
    varied = [name for name in names if len({one.settings[name] for one in asked if name in one.settings}) > 1]
    rows = []
    for one in asked:
        settings = (setting_text(name, one.settings[name]) for name in varied if name in one.settings)
        rates = [number(one.measured_per_second), number(one.predicted_per_second)]
        rows.append([", ".join((one.model, *settings)), str(one.ranks), f"{one.batch:g}", str(one.runs), *rates,
                     signed_percent(one.error), signed_percent(one.lossless_error)])  # fmt: skip
    header = ["run", "ranks", "batch", "runs", "measured", "predicted", "error", "error of no loss"]
    caption = f"Fitted on runs of up to {most_ranks} ranks, asked about more (samples/s, medians of the runs):"
    return Table(caption, header, rows, "; ".join(_how_far_off(asked)))


def _how_far_off(asked: list[Asked]) -> list[str]:
    def off(name: str, errors: list[float]) -> str:
        return f"{name}: off by {percent(statistics.median(errors))} in the median, {percent(max(errors))} at most"

    lossless = [abs(one.lossless_error) for one in asked]
    return [off("ddpplan", [abs(one.error) for one in asked]), off("no loss", lossless)]


def out_of_sample_text(asked: list[Asked], most_ranks: int) -> str:
    return "\n".join([to_text(out_of_sample_table(asked, most_ranks)).rstrip("\n"), *_how_far_off(asked), ""])
