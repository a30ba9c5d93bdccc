"""Takes the planner's rates from measurements: results.jsonl of ddpsweep, a metrics file of ddptrain, or a result of
ddpbench allreduce or overlap."""

import dataclasses
import itertools
import pathlib
import statistics
from collections.abc import Iterable, Iterator
from typing import Any

from ddptools.common.errors import UsageError
from ddptools.common.files import Record, from_json, no_pipe, read_records
from ddptools.common.values import grouped, positive, table_of
from ddptools.plan import nccl_model
from ddptools.plan.measured import Measured, count_of, is_same_network, is_usable, measured_runs, summary_of, tflops_of
from ddptools.plan.prediction import Case, NetworkFit, mpi_traffic
from ddptools.results.description import Description
from ddptools.results.machine import Parts, differences, parts_of
from ddptools.results.run import result_rows

GPU_NAMES = ("NVIDIA", "Tesla")
OPEN = 1e-4  # weight of a relative difference from NCCL's latencies; a relative error has the weight 1


@dataclasses.dataclass(frozen=True)
class AllReduce:
    """An all-reduce, or several of the same size, one after the other."""

    ranks: int
    nodes: int
    calls: int
    bytes: float  # of one call; over MPI, of the ring with as much traffic
    seconds: float  # of all calls
    device: str  # see Measured


@dataclasses.dataclass(frozen=True)
class Calibration:
    device: str  # on which all of it was measured, see Measured
    runs: tuple[Measured, ...]
    intra_fit: NetworkFit | None
    inter_fit: NetworkFit | None
    interference: float | None  # see Case
    fused_sum_us: dict[int, float]  # by ranks, see Case; empty if a run of several ranks overlapped without that kernel

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
        """With the compute rate too, if a run told one; NotMeasured if none is of this work and batch."""
        tflops = tflops_of(case.work, case.batch, self.runs) if self.runs else case.tflops
        return dataclasses.replace(self.network_of(case), tflops=tflops)

    def flags_of(self, work: Description) -> dict[str, Any]:
        """Flags of ddptrain that all runs of this network were made with, and that `work` has otherwise."""
        works = [run.case.work for run in self.runs if is_same_network(run.case.work, work)]
        flags = {}
        for name in ("device", "precision", "gradient_dtype", "hierarchical"):
            values = {getattr(known, name) for known in works}
            if len(values) == 1 and (value := values.pop()) and value != getattr(work, name):
                flags["comm-dtype" if name == "gradient_dtype" else name] = value
        return flags


def load_records(path: pathlib.Path, bad_lines: list[int] | None = None) -> list[Record]:
    """JSON lines, or one JSON document; a folder stands for its results.jsonl. Other lines are left out, and their numbers
    added to `bad_lines`."""
    file = path / "results.jsonl" if path.is_dir() else path
    whole = from_json(no_pipe(file).read_bytes())
    return [whole] if isinstance(whole, dict) else list(read_records(file, bad_lines))


def check_one_machine(records: Iterable[tuple[pathlib.Path, Record]]) -> None:
    """UsageError if runs are of two machines; it names a file of each."""
    files: dict[tuple[tuple[str, str], ...], pathlib.Path] = {}  # by the parts of a machine
    for file, record in records:
        if is_usable(record):
            files.setdefault(tuple(_machine_of(record).items()), file)
    for machines in itertools.combinations(files, 2):
        if differences(*map(dict, machines)):
            told = (f"{files[parts]} ({', '.join(map(' '.join, parts))})" for parts in machines)
            raise UsageError(
                f"--calibrate: runs of two machines: {' and '.join(told)}. A prediction is of one machine: give the "
                "results of one of them"
            )


def calibrate(records: Iterable[Record]) -> Calibration:
    """UsageError if the records hold neither a run of ddptrain nor a result of ddpbench allreduce or overlap, or are
    partly of CPUs, partly of GPUs."""
    kept = [record for record in records if is_usable(record)]
    benches = list(map(_bench_of, kept))
    overlaps = [bench for bench in benches if bench.get("benchmark") == "overlap"]
    runs = tuple(measured_runs(kept))
    points = [point for bench in benches for point in _bench_points(bench)]
    points += [point for run in runs for point in _run_points(run)]
    interference = [value for bench in overlaps for value in _interference(bench)]
    if not runs and not points and not interference:
        raise UsageError("--calibrate: no summary of ddptrain and no result of ddpbench allreduce or overlap in there")
    devices = {measured.device for measured in (*runs, *points)} | set(map(_bench_device, overlaps))
    if {"cpu", "cuda"} <= devices:
        raise UsageError("--calibrate: measured partly on CPU cores, partly on GPUs: give the files of one of them")
    return Calibration(
        device="cpu" if "cpu" in devices else "cuda" if "cuda" in devices else "",
        runs=runs,
        intra_fit=fit_network([p for p in points if p.nodes == 1], "nvlink"),
        inter_fit=fit_network([p for p in points if p.nodes > 1], "net"),
        interference=statistics.median(interference) if interference else None,
        fused_sum_us=_fused_sums(runs),
    )


def fit_network(points: list[AllReduce], link: str) -> NetworkFit | None:
    """Least squares of the relative error over latency and bus bandwidth, none of them negative. What the points leave
    open, for example if all have one size, is as NCCL's cost model has it for Ring LL over this `link`."""
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


def _fused_sums(runs: Iterable[Measured]) -> dict[int, float]:
    """Medians by ranks; none if a run that overlaps did without."""
    found = grouped((run.case.gpus, run.fused_sum_us) for run in runs if run.case.gpus > 1 and run.case.overlap)
    if any(None in values for values in found.values()):
        return {}
    return {ranks: statistics.median(values) for ranks, values in found.items()}


def _bench_of(record: Record) -> Record:
    """The result of ddpbench; empty without one."""
    return record if "benchmark" in record else table_of(record.get("bench"))


def _machine_of(record: Record) -> Parts:
    """What the rates depend on: on GPUs their kind and the processor, on CPU cores the processor and its cores. A run may
    use a part of the GPUs. Where ddpsweep started a job on other hosts, it does not know their processor and cores."""
    summary, bench, machine = summary_of(record), _bench_of(record), table_of(record.get("machine"))
    here = {} if machine.get("hosts") else parts_of(machine)
    name = summary.get("device_name") or bench.get("device")
    on_cores = (summary.get("device") or _bench_device(bench)) == "cpu"
    parts = {"processor": name, "cores": here.get("cores")} if on_cores else {"GPU": name, "processor": here.get("processor")}
    return {part: str(text) for part, text in parts.items() if text}


def _bench_points(bench: Record) -> Iterator[AllReduce]:
    ranks = positive(bench.get("ranks"))
    if bench.get("op", "all-reduce") != "all-reduce" or ranks is None or ranks < 2:
        return
    nodes = count_of(bench, "nodes")
    over_mpi = nodes > 1 and bench.get("library") == "MPI"
    traffic = mpi_traffic(max(int(ranks) // nodes, 1), nodes) if over_mpi else 1.0
    for row in result_rows(bench):
        bytes_each, time_us = positive(row.get("bytes")), positive(row.get("time_us"))
        if bytes_each and time_us:
            yield AllReduce(int(ranks), nodes, 1, traffic * bytes_each, 1e-6 * time_us, _bench_device(bench))


def _bench_device(bench: Record) -> str:
    """Of ddpbench, which tells the name of the GPU or of the processor, and the library: MPI without a GPU is that of
    CPU cores. See Measured."""
    name, library = str(bench.get("device") or ""), str(bench.get("library") or "")
    if library.startswith("NCCL") or any(word in name for word in GPU_NAMES):
        return "cuda"
    return "cpu" if name or library else ""


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
