"""Takes the planner's rates from measurements: results.jsonl of ddpsweep, a metrics file of ddptrain, or a result of
ddpbench allreduce or overlap."""

import dataclasses
import pathlib
import statistics
from collections.abc import Iterable, Iterator
from typing import Any

from ddptools.common.errors import UsageError
from ddptools.common.files import Record, from_json, read_records
from ddptools.common.values import grouped, number_of, positive, table_of
from ddptools.plan import nccl_model
from ddptools.plan.compute_rates import ComputeRates, compute_rates, is_same_network
from ddptools.plan.prediction import Case, NetworkFit, mpi_traffic
from ddptools.results.description import Description, parsed
from ddptools.results.run import UNITS, result_rows, why_unusable

GPU_NAMES = ("NVIDIA", "Tesla")
OPEN = 1e-4  # weight of a relative difference from NCCL's latencies, beside 1 of a relative error


@dataclasses.dataclass(frozen=True)
class Measured:
    case: Case  # with rates still to be filled in
    device: str  # cpu or cuda; empty where it is not told
    samples_per_second: float
    baseline_per_second: float  # samples/s of one rank
    communication_seconds: float | None
    fused_sum_us: float | None  # what overlap leaves exposed where the last bucket's sum and update are one kernel
    unusable: str  # why its baseline says too little; empty where it may be used


@dataclasses.dataclass(frozen=True)
class AllReduce:
    """An all-reduce, or several of the same size one behind the other."""

    ranks: int
    nodes: int
    calls: int
    bytes: float  # of one, or of the ring with as much traffic as one
    seconds: float  # of all
    device: str  # see Measured


@dataclasses.dataclass(frozen=True)
class Calibration:
    device: str  # on which all of it was measured, see Measured
    compute: ComputeRates  # without points where no run told
    works: tuple[Description, ...]  # different ones, of the runs
    intra_fit: NetworkFit | None
    inter_fit: NetworkFit | None
    interference: float | None  # see Case
    fused_sum_us: dict[int, float]  # by ranks, see Case; empty where a run of several ranks that overlaps did without

    def network_of(self, case: Case) -> Case:
        """The case with what was measured of communication."""
        changes: dict[str, Any] = {"intra_fit": self.intra_fit, "inter_fit": self.inter_fit}
        if self.interference is not None:
            changes["interference"] = self.interference
        if case.nodes == 1 and self.fused_sum_us:
            import numpy  # slow to import, and only calibrations need it

            # Between measured numbers of ranks on the line that joins them; beyond them that of the nearest.
            changes["fused_sum_us"] = float(numpy.interp(case.gpus, *zip(*sorted(self.fused_sum_us.items()))))
        return dataclasses.replace(case, **changes)

    def applied_to(self, case: Case) -> Case:
        """With the compute rate too, where a run told one; NotMeasured where none is of this work and batch."""
        tflops = self.compute.tflops(case.work, case.batch) if self.compute.points else case.tflops
        return dataclasses.replace(self.network_of(case), tflops=tflops)

    def flags_of(self, work: Description) -> dict[str, Any]:
        """With which all runs of this network were made, as far as `work` is another in that: flags of ddptrain."""
        works = [known for known in self.works if is_same_network(known, work)]
        flags = {}
        for name in ("device", "precision", "gradient_dtype", "hierarchical"):
            values = {getattr(known, name) for known in works}
            if len(values) == 1 and (value := values.pop()) and value != getattr(work, name):
                flags["comm-dtype" if name == "gradient_dtype" else name] = value
        return flags


def warning_of(records: Iterable[Record]) -> str:
    """Of runs on which predictions should not be built; empty without such runs."""
    runs = list(measured_runs(filter(_usable, records)))
    reasons = [run.unusable for run in runs if run.unusable]
    if not reasons:
        return ""
    return (
        f"warning: predictions are unreliable, because {len(reasons)} of the {len(runs)} runs of --calibrate were "
        f"disturbed ({reasons[0]}): measure again on an idle machine"
    )


def load_records(path: pathlib.Path) -> list[Record]:
    """JSON lines, or one JSON document; a folder stands for its results.jsonl. Lines that are none are left out."""
    file = path / "results.jsonl" if path.is_dir() else path
    whole = from_json(file.read_bytes())
    return [whole] if isinstance(whole, dict) else list(read_records(file))


def calibrate(records: Iterable[Record]) -> Calibration:
    """UsageError where the records hold neither a run of ddptrain nor a result of ddpbench allreduce or overlap, or are
    partly of CPUs, partly of GPUs."""
    kept = [record for record in records if _usable(record)]
    runs = list(measured_runs(kept))
    points = [point for record in kept for point in _bench_points(record)]
    points += [point for run in runs for point in _run_points(run)]
    overlaps = [bench for record in kept for bench in (record, table_of(record.get("bench")))
                if bench.get("benchmark") == "overlap"]  # fmt: skip
    interference = [value for bench in overlaps for value in _interference(bench)]
    if not runs and not points and not interference:
        raise UsageError("--calibrate: no summary of ddptrain and no result of ddpbench allreduce or overlap in there")
    devices = {measured.device for measured in (*runs, *points)} | set(map(_bench_device, overlaps))
    if {"cpu", "cuda"} <= devices:
        raise UsageError("--calibrate: measured partly on CPU cores, partly on GPUs: give the files of one of them")
    return Calibration(
        device="cpu" if "cpu" in devices else "cuda" if "cuda" in devices else "",
        compute=compute_rates((run.case.work, run.case.batch, run.baseline_per_second) for run in runs),
        works=tuple(dict.fromkeys(run.case.work for run in runs)),
        intra_fit=fit_network([p for p in points if p.nodes == 1], "nvlink"),
        inter_fit=fit_network([p for p in points if p.nodes > 1], "net"),
        interference=statistics.median(interference) if interference else None,
        fused_sum_us=_fused_sums(runs),
    )


def fit_network(points: list[AllReduce], link: str) -> NetworkFit | None:
    """Least squares of the relative error over latency and bus bandwidth, none of them negative. What the points leave
    open, as where all have one size, is as NCCL's cost model has it for Ring LL over this `link`."""
    if not points:
        return None
    from scipy import optimize  # slow to import, and only calibrations need it

    prior_us = (nccl_model.BASE_LATENCY_US["Ring"][0], 2.0 * nccl_model.LINK_LATENCY_US[link]["Ring"][0])
    rows = [(OPEN / prior_us[0], 0.0, 0.0), (0.0, OPEN / prior_us[1], 0.0)]
    for p in points:  # how latency (us), latency per rank (us) and inverse bandwidth (us per kB) make up its time
        moved_bytes = p.calls * p.bytes * 2.0 * (p.ranks - 1) / p.ranks
        latency = p.calls / (1e6 * p.seconds)
        rows.append((latency, latency * (p.ranks - 1), moved_bytes / (1e9 * p.seconds)))
    (base, per_rank, inverse), _ = optimize.nnls(rows, [OPEN] * 2 + [1.0] * len(points))
    if inverse == 0.0:  # the bandwidth is finite
        base, per_rank, inverse = 0.0, 0.0, optimize.nnls([row[2:] for row in rows[2:]], [1.0] * len(points))[0][0]
    ranks = [point.ranks for point in points]
    return NetworkFit(float(per_rank), float(1.0 / inverse), float(base), len(points), min(ranks), max(ranks))


def _fused_sums(runs: list[Measured]) -> dict[int, float]:
    """Medians by ranks; none where a run that overlaps did without."""
    found = grouped((run.case.gpus, run.fused_sum_us) for run in runs if run.case.gpus > 1 and run.case.overlap)
    if any(None in values for values in found.values()):
        return {}
    return {ranks: statistics.median(values) for ranks, values in found.items()}


def _usable(record: Record) -> bool:
    return record.get("emulated") is not True and record.get("status", "ok") == "ok"


def _bench_points(record: Record) -> Iterator[AllReduce]:
    bench = record if record.get("benchmark") == "allreduce" else table_of(record.get("bench"))
    ranks = positive(bench.get("ranks"))
    if bench.get("op", "all-reduce") != "all-reduce" or ranks is None or ranks < 2:
        return
    nodes = _count(bench, "nodes")
    over_mpi = nodes > 1 and bench.get("library") == "MPI"
    traffic = mpi_traffic(max(int(ranks) // nodes, 1), nodes) if over_mpi else 1.0
    for row in result_rows(bench):
        bytes_each, time_us = positive(row.get("bytes")), positive(row.get("time_us"))
        if bytes_each and time_us:
            yield AllReduce(int(ranks), nodes, 1, traffic * bytes_each, 1e-6 * time_us, _bench_device(bench))


def _bench_device(bench: Record) -> str:
    """Of ddpbench, which tells the name of the GPU or of the processor. See Measured."""
    name, library = str(bench.get("device") or ""), str(bench.get("library") or "")
    if library.startswith("NCCL") or any(word in name for word in GPU_NAMES):
        return "cuda"
    return "cpu" if name else ""


def _interference(bench: Record) -> Iterator[float]:
    for row in result_rows(bench):
        alone_us, beside_us = positive(row.get("compute_alone_us")), positive(row.get("compute_beside_us"))
        communication_us = positive(row.get("communication_alone_us"))
        if alone_us and beside_us and communication_us:
            yield max(beside_us - alone_us, 0.0) / min(communication_us, alone_us)


def _run_points(run: Measured) -> Iterator[AllReduce]:
    case = run.case
    if run.communication_seconds and case.gpus > 1:
        calls = sum(group.count for group in case.work.buckets)
        size_bytes = case.traffic * case.work.gradient_bytes / calls
        yield AllReduce(case.gpus, case.nodes, calls, size_bytes, run.communication_seconds, run.device)


def measured_runs(records: Iterable[Record]) -> Iterator[Measured]:
    for record in records:
        summary = record if record.get("event") == "summary" else table_of(record.get("summary"))
        run = _run(summary, table_of(record.get("settings")))
        if run is not None:
            yield run


def _run(summary: Record, settings: Record) -> Measured | None:
    """None where the summary does not hold what a prediction takes, or the ranks did not train together."""
    ranks, batch = positive(summary.get("world_size")), positive(summary.get("batch_per_rank"))
    work = parsed(summary.get("description"))
    if ranks is None or batch is None or work is None or settings.get("overlap") == "none":
        return None
    rate = _rate(summary, "_beside_baseline") or _rate(summary)
    baseline = positive(summary.get("baseline_per_second")) or (rate if ranks == 1 else None)
    if rate is None or baseline is None:
        return None
    ranks = max(int(ranks), 1)
    nodes, micro_steps, virtual = (_count(summary, name) for name in ("nodes", "grad_accum", "virtual_ranks"))
    case = Case(
        work=work,
        batch=batch,
        tflops=1.0,
        gpus_per_node=max(ranks // nodes, 1),
        nodes=nodes,
        grad_accum=micro_steps * max(virtual // ranks, 1),  # the virtual ranks of a rank follow each other
        overlap=_overlaps(summary, settings, nodes),
    )
    return Measured(
        case=case,
        device=work.device or str(summary.get("device") or ""),
        samples_per_second=rate / work.units_per_sample,
        baseline_per_second=baseline / work.units_per_sample,
        communication_seconds=positive(summary.get("communication_seconds")),
        fused_sum_us=_fused_sum_us(summary),
        unusable=why_unusable(summary),
    )


def _count(table: Record, name: str) -> int:
    return max(int(positive(table.get(name)) or 1), 1)


def _overlaps(summary: Record, settings: Record, nodes: int) -> bool:
    """Not on CPUs of one host, whose cores do the adding, nor where an update on CPUs needs more than its bucket's sum,
    nor where the CNN's backward leaves no multiprocessor to collectives."""
    if settings.get("overlap", "on") != "on":
        return False
    if summary.get("device") == "cpu":
        others = (summary.get("zero"), summary.get("virtual_ranks"), settings.get("clip-norm"))
        return nodes > 1 and not any(number_of(str(value)) for value in others)
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
