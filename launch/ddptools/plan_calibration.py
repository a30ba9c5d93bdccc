"""Takes the planner's rates from measurements: results.jsonl of ddpsweep, a metrics file of ddptrain, or a result of
ddpbench allreduce or overlap; and sets what it then predicts beside what was measured."""

import dataclasses
import json
import pathlib
import statistics
from collections.abc import Iterable, Iterator
from typing import Any

from ddptools.compute_rates import ComputeRates, compute_rates, is_same_network
from ddptools.description import Description, parsed, positive
from ddptools import nccl_model
from ddptools.errors import UsageError
from ddptools.measurements import number_of, result_rows, table_of
from ddptools.plan import Case, NetworkFit, Prediction, mpi_traffic, predict

Table = dict[str, Any]

GPU_NAMES = ("NVIDIA", "Tesla")
OPEN = 1e-4  # weight of a relative difference from NCCL's latencies, beside 1 of a relative error


@dataclasses.dataclass(frozen=True)
class Measured:
    """A run of ddptrain with more than one rank, or with one."""

    case: Case  # with rates still to be filled in
    device: str  # cpu or cuda; empty where it is not told
    samples_per_second: float
    baseline_per_second: float  # samples/s of one rank
    communication_seconds: float | None
    step_seconds: float | None
    efficiency: float | None
    fused_sum_us: float | None  # what overlap leaves exposed where the last bucket's sum and update are one kernel


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
    runs: int
    all_reduces: int

    def network_of(self, case: Case) -> Case:
        """The case with what was measured of communication."""
        changes: Table = {"intra_fit": self.intra_fit, "inter_fit": self.inter_fit}
        if self.interference is not None:
            changes["interference"] = self.interference
        if case.nodes == 1 and self.fused_sum_us:
            changes["fused_sum_us"] = self._fused_sum_us(case.gpus)
        return dataclasses.replace(case, **changes)

    def applied_to(self, case: Case) -> Case:
        """With the compute rate too, where a run told one; NotMeasured where none is of this work and batch."""
        case = self.network_of(case)
        if not self.compute.points:
            return case
        return dataclasses.replace(case, tflops=self.compute.tflops(case.work, case.batch))

    def _fused_sum_us(self, ranks: int) -> float:
        """Between measured numbers of ranks on the line that joins them; beyond them that of the nearest."""
        import numpy  # slow to import, and only calibrations need it

        known = sorted(self.fused_sum_us)
        return float(numpy.interp(ranks, known, [self.fused_sum_us[number] for number in known]))

    def flags_of(self, work: Description) -> Table:
        """With which all runs of this network were made, as far as `work` is another in that: flags of ddptrain."""
        works = [known for known in self.works if is_same_network(known, work)]
        flags = {}
        for flag, name in (("device", "device"), ("precision", "precision"), ("comm-dtype", "gradient_dtype"),
                           ("hierarchical", "hierarchical")):  # fmt: skip
            values = {getattr(known, name) for known in works}
            if len(values) == 1 and (value := values.pop()) and value != getattr(work, name):
                flags[flag] = value
        return flags


@dataclasses.dataclass(frozen=True)
class Compared:
    """A prediction beside the measurement; error = predicted / measured - 1, of the throughput."""

    gpus: int
    nodes: int
    batch: float
    predicted: Prediction
    measured_per_second: float
    measured_efficiency: float | None
    error: float


def load_all(paths: Iterable[pathlib.Path]) -> list[Table]:
    return [record for path in paths for record in load_records(path)]


def load_records(path: pathlib.Path) -> list[Table]:
    """JSON lines, or one JSON document; a folder stands for its results.jsonl. Lines that are none are left out."""
    file = path / "results.jsonl" if path.is_dir() else path
    if file != path and not file.exists():
        raise UsageError(f"--calibrate {path}: no results.jsonl in this folder")
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"--calibrate {path}: cannot be read: {error.strerror}") from error
    whole = _json(text)
    if isinstance(whole, dict):
        return [whole]
    lines = (_json(line) for line in text.splitlines())
    return [record for record in lines if isinstance(record, dict)]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def calibrate(records: Iterable[Table]) -> Calibration:
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
        runs=len(runs),
        all_reduces=len(points),
    )


def compare(records: Iterable[Table], calibration: Calibration | None = None) -> list[Compared]:
    """For every run with more than one rank. Compute is that of the run's own one-rank baseline; the network is that of
    `calibration`, by default fitted to these same records."""
    kept = [record for record in records if _usable(record)]
    network = calibration or calibrate(kept)
    return [_compared(run, network) for run in measured_runs(kept) if run.case.gpus > 1]


def _compared(run: Measured, network: Calibration) -> Compared:
    tflops = run.case.work.flop * run.baseline_per_second / 1e12
    prediction = predict(dataclasses.replace(network.network_of(run.case), tflops=tflops))
    return Compared(
        gpus=run.case.gpus,
        nodes=run.case.nodes,
        batch=run.case.batch,
        predicted=prediction,
        measured_per_second=run.samples_per_second,
        measured_efficiency=run.efficiency,
        error=prediction.samples_per_second / run.samples_per_second - 1.0,
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
    found: dict[int, list[float]] = {}
    for run in runs:
        if run.case.gpus > 1 and run.case.overlap:
            if run.fused_sum_us is None:
                return {}
            found.setdefault(run.case.gpus, []).append(run.fused_sum_us)
    return {ranks: statistics.median(values) for ranks, values in found.items()}


def _usable(record: Table) -> bool:
    return record.get("emulated") is not True and record.get("status", "ok") == "ok"


def _bench_points(record: Table) -> Iterator[AllReduce]:
    bench = record if record.get("benchmark") == "allreduce" else table_of(record.get("bench"))
    ranks = positive(bench.get("ranks"))
    if bench.get("op", "all-reduce") != "all-reduce" or ranks is None or ranks < 2:
        return
    nodes = max(int(positive(bench.get("nodes")) or 1), 1)
    over_mpi = nodes > 1 and bench.get("library") == "MPI"
    traffic = mpi_traffic(max(int(ranks) // nodes, 1), nodes) if over_mpi else 1.0
    for row in result_rows(bench):
        bytes_each, time_us = positive(row.get("bytes")), positive(row.get("time_us"))
        if bytes_each and time_us:
            yield AllReduce(int(ranks), nodes, 1, traffic * bytes_each, 1e-6 * time_us, _bench_device(bench))


def _bench_device(bench: Table) -> str:
    """Of ddpbench, which tells the name of the GPU or of the processor. See Measured."""
    name, library = str(bench.get("device") or ""), str(bench.get("library") or "")
    if library.startswith("NCCL") or any(word in name for word in GPU_NAMES):
        return "cuda"
    return "cpu" if name else ""


def _interference(bench: Table) -> Iterator[float]:
    """What ddpbench overlap measured, of every bucket size."""
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


def measured_runs(records: Iterable[Table]) -> Iterator[Measured]:
    for record in records:
        summary = record if record.get("event") == "summary" else table_of(record.get("summary"))
        run = _run(summary, table_of(record.get("settings")))
        if run is not None:
            yield run


def _run(summary: Table, settings: Table) -> Measured | None:
    """None where the summary does not hold what a prediction takes, or the ranks did not train together."""
    ranks, batch = positive(summary.get("world_size")), positive(summary.get("batch_per_rank"))
    work = parsed(summary.get("description"))
    if ranks is None or batch is None or work is None or settings.get("overlap") == "none":
        return None
    rate = _rate(summary, "beside_baseline") or _rate(summary)
    baseline = positive(summary.get("baseline_per_second")) or (rate if ranks == 1 else None)
    if rate is None or baseline is None:
        return None
    nodes = max(int(positive(summary.get("nodes")) or 1), 1)
    if not work.hierarchical and table_of(summary.get("configuration")).get("hierarchical") == '"off"':
        work = dataclasses.replace(work, hierarchical="off")  # before descriptions told
    case = Case(
        work=work,
        batch=batch,
        tflops=1.0,
        gpus_per_node=max(int(ranks) // nodes, 1),
        nodes=nodes,
        grad_accum=_passes(summary, max(int(ranks), 1)),
        overlap=_overlaps(summary, settings, nodes),
    )
    return Measured(
        case=case,
        device=work.device or str(summary.get("device") or ""),
        samples_per_second=rate / work.units_per_sample,
        baseline_per_second=baseline / work.units_per_sample,
        communication_seconds=positive(summary.get("communication_seconds")),
        step_seconds=positive(summary.get("step_seconds")),
        efficiency=positive(summary.get("scaling_efficiency")),
        fused_sum_us=_fused_sum_us(summary),
    )


def _passes(summary: Table, ranks: int) -> int:
    """Forward and backward passes of a rank in a step: its virtual ranks take their micro-steps one after the other."""
    micro_steps = max(int(positive(summary.get("grad_accum")) or 1), 1)
    return micro_steps * max(int(positive(summary.get("virtual_ranks")) or ranks) // ranks, 1)


def _overlaps(summary: Table, settings: Table, nodes: int) -> bool:
    """Not on CPUs of one host, whose cores do the adding, nor where an update on CPUs needs more than its bucket's sum,
    nor where the CNN's backward leaves no multiprocessor to collectives."""
    if settings.get("overlap", "on") != "on":
        return False
    if summary.get("device") == "cpu":
        others = (summary.get("zero"), summary.get("virtual_ranks"), settings.get("clip-norm"))
        return nodes > 1 and not any(number_of(str(value)) for value in others)
    return summary.get("model") != "cnn" or settings.get("comm-ctas") not in (0, "0")


def _fused_sum_us(summary: Table) -> float | None:
    step_seconds = positive(summary.get("step_seconds"))
    silent_seconds = positive(summary.get("step_seconds_without_communication"))
    fused = summary.get("fused_sum") is True or summary.get("gradient_path") == "symmetric+fused"
    if not fused or step_seconds is None or silent_seconds is None:
        return None
    return max(1e6 * (step_seconds - silent_seconds), 0.0)


def _rate(summary: Table, suffix: str = "") -> float | None:
    ending = f"_{suffix}" if suffix else ""
    rates = (positive(summary.get(f"{unit}_per_second{ending}")) for unit in ("images", "tokens", "samples"))
    return next((rate for rate in rates if rate is not None), None)
