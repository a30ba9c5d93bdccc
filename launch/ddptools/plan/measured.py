"""Runs of ddptrain as the planner sees them, and how fast one rank computed in them, by model and batch."""

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Sequence

from ddptools.common.errors import UsageError
from ddptools.common.files import Record
from ddptools.common.values import grouped, number_of, positive, table_of
from ddptools.plan.prediction import Case
from ddptools.results.description import Description, parsed
from ddptools.results.run import UNITS, why_unusable

SAME_FLOP = 0.01  # relative difference of the FLOP of a sample within which two descriptions are of the same work


class NotMeasured(UsageError):
    """No measurement answers for this model and batch."""


@dataclasses.dataclass(frozen=True)
class Measured:
    case: Case  # without the rates
    device: str  # cpu or cuda; empty if it is not known
    samples_per_second: float
    baseline_per_second: float  # samples/s of one rank
    communication_seconds: float | None
    fused_sum_us: float | None  # what overlap leaves exposed if one kernel sums the last bucket and updates its weights
    unusable: str  # why its baseline says too little; empty if it may be used


def is_same_network(a: Description, b: Description) -> bool:
    return (a.model, a.parameters) == (b.model, b.parameters)


def is_same_work(a: Description, b: Description) -> bool:
    """The same network on the same kind of device, in the same precision, with the same FLOP per sample."""
    alike = all(not x or not y or x == y for x, y in ((a.device, b.device), (a.precision, b.precision)))
    return is_same_network(a, b) and alike and abs(a.flop / b.flop - 1.0) < SAME_FLOP


def rates_of(work: Description, runs: Sequence[Measured]) -> dict[float, list[float]]:
    """Samples/s of one rank with this work, by batch in rising order."""
    alike = ((run.case.batch, run.baseline_per_second) for run in runs if is_same_work(run.case.work, work))
    return dict(sorted(grouped(alike).items()))


def tflops_of(work: Description, batch: float, runs: Sequence[Measured]) -> float:
    """Of one rank. The time of a micro-step between two measured batches is on the line that joins them. Raises
    NotMeasured for another work, and for a batch that is smaller or larger than all measured ones."""
    rates = rates_of(work, runs)
    if not rates:
        measured = ", ".join(dict.fromkeys(named(run.case.work) for run in runs))
        raise NotMeasured(f"its runs are of {measured}, not of {named(work)}: give --tflops")
    least, *_, most = [*rates, *rates]
    if not least <= batch <= most:
        known = f"batch {least:g}" if least == most else f"batches from {least:g} to {most:g}"
        raise NotMeasured(
            f"its runs of {named(work)} have {known} per rank, not {batch:g}: measure that batch, or give --tflops"
        )
    import numpy  # slow to import, and only calibrations need it

    seconds = numpy.interp(batch, list(rates), [size / statistics.median(each) for size, each in rates.items()])
    return work.flop * batch / float(seconds) / 1e12


def named(work: Description) -> str:
    how = " ".join(text for text in (work.precision, f"on {work.device}" if work.device else "") if text)
    return f"{work.model} ({work.parameters:,.0f} parameters, {work.flop:.3g} FLOP per sample{how and f', {how}'})"


def is_usable(record: Record) -> bool:
    return record.get("emulated") is not True and record.get("status", "ok") == "ok"


def warning_of(records: Iterable[Record]) -> str:
    """About runs on which predictions should not be built; empty without such runs."""
    runs = list(measured_runs(filter(is_usable, records)))
    reasons = [run.unusable for run in runs if run.unusable]
    if not reasons:
        return ""
    return (
        f"warning: predictions are unreliable, because {len(reasons)} of the {len(runs)} runs of --calibrate were "
        f"disturbed ({reasons[0]}): measure again on an idle machine"
    )


def summary_of(record: Record) -> Record:
    """Of ddptrain; empty without one."""
    return record if record.get("event") == "summary" else table_of(record.get("summary"))


def measured_runs(records: Iterable[Record]) -> Iterator[Measured]:
    """Without records that do not hold what a prediction takes, or whose ranks did not train together."""
    for record in records:
        summary = summary_of(record)
        settings, work = _settings_of(record, summary), parsed(summary.get("description"))
        ranks, batch = positive(summary.get("world_size")), positive(summary.get("batch_per_rank"))
        rate = _rate(summary, "_beside_baseline") or _rate(summary)
        baseline = positive(summary.get("baseline_per_second")) or (rate if ranks == 1 else None)
        if settings.get("overlap") == "none" or work is None or None in (ranks, batch, rate, baseline):
            continue
        yield Measured(
            case=_case(work, batch, max(int(ranks), 1), summary, settings),
            device=work.device or str(summary.get("device") or ""),
            samples_per_second=rate / work.units_per_sample,
            baseline_per_second=baseline / work.units_per_sample,
            communication_seconds=positive(summary.get("communication_seconds")),
            fused_sum_us=_fused_sum_us(summary),
            unusable=why_unusable(summary),
        )


def _settings_of(record: Record, summary: Record) -> Record:
    """Flags of the run: all of them from its summary, or of older versions those that a sweep set."""
    flags = {name: str(value).strip('"') for name, value in table_of(summary.get("configuration")).items()}
    return flags | table_of(record.get("settings"))


def _case(work: Description, batch: float, ranks: int, summary: Record, settings: Record) -> Case:
    nodes, micro_steps, virtual = (count_of(summary, name) for name in ("nodes", "grad_accum", "virtual_ranks"))
    return Case(
        work=work,
        batch=batch,
        tflops=1.0,
        gpus_per_node=max(ranks // nodes, 1),
        nodes=nodes,
        grad_accum=micro_steps * max(virtual // ranks, 1),  # the virtual ranks of a rank follow each other
        overlap=_overlaps(summary, settings, ranks, nodes),
    )


def count_of(table: Record, name: str) -> int:
    return max(int(positive(table.get(name)) or 1), 1)


def _overlaps(summary: Record, settings: Record, ranks: int, nodes: int) -> bool:
    """Not on CPUs of one host, whose cores do the adding, nor if an update on CPUs needs more than its bucket's sum, nor
    if the CNN's backward pass leaves no multiprocessor to collectives."""
    if settings.get("overlap", "on") != "on":
        return False
    if summary.get("device") == "cpu":
        others = (summary.get("zero"), summary.get("virtual_ranks") if ranks > 2 else 0, settings.get("clip-norm"))
        needs_all = settings.get("optimizer") in ("muon", "lamb") or settings.get("on-nonfinite") == "skip"
        return nodes > 1 and not needs_all and not any(number_of(str(value)) for value in others)
    return summary.get("model") != "cnn" or settings.get("comm-ctas") not in (0, "0")


def _fused_sum_us(summary: Record) -> float | None:
    step_seconds = positive(summary.get("step_seconds"))
    silent_seconds = positive(summary.get("step_seconds_without_communication"))
    fused = summary.get("fused_sum") is True or summary.get("gradient_path") == "symmetric+fused"
    if not fused or step_seconds is None or silent_seconds is None:
        return None
    return max(1e6 * (step_seconds - silent_seconds), 0.0)


def _rate(summary: Record, suffix: str = "") -> float | None:
    rates = (positive(summary.get(f"{unit}_per_second{suffix}")) for unit in UNITS)
    return next((rate for rate in rates if rate is not None), None)
