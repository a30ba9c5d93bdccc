"""The planner asked about runs that it has not seen: fitted on few ranks, asked about more, beside the prediction that
nothing is lost."""

import contextlib
import dataclasses
import statistics
from collections.abc import Iterable, Iterator

from ddptools.common.errors import UsageError
from ddptools.common.files import Record
from ddptools.common.table import Table
from ddptools.common.text import number, percent, setting_text, signed_percent
from ddptools.common.values import grouped, table_of
from ddptools.plan.calibration import calibrate
from ddptools.plan.measured import Measured, NotMeasured, measured_runs, named
from ddptools.plan.prediction import predict
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

    def kind(record: Record, run: Measured) -> tuple:
        settings = table_of(record.get("settings")).items()
        return named(run.case.work), tuple(sorted((k, str(v)) for k, v in settings if k not in NOT_COMPARED))

    measured = ((record, run) for record in records for run in measured_runs([record]))
    groups = grouped((kind(*pair), pair) for pair in measured)
    found = [asked for (_, kind), runs in groups.items() for asked in _asked(dict(kind), runs, most_ranks)]
    if not found:
        few = f"runs of {'' if most_ranks == 2 else '2 to '}{most_ranks} ranks of its kind"
        raise UsageError(f"--fit-ranks {most_ranks}: there is no run of more ranks beside {few}")
    return found


def _asked(settings: dict[str, str], runs: list[tuple[Record, Measured]], most_ranks: int) -> Iterator[Asked]:
    few = [(record, run.case.gpus) for record, run in runs if run.case.gpus <= most_ranks]
    more = grouped((run.case, run.samples_per_second) for _, run in runs if run.case.gpus > most_ranks)
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
    errors = {"ddpplan": [abs(one.error) for one in asked], "no loss": [abs(one.lossless_error) for one in asked]}
    off = (
        f"{name}: off by {percent(statistics.median(values))} in the median, {percent(max(values))} at most"
        for name, values in errors.items()
    )
    return Table(caption, header, rows, "\n".join(off))
