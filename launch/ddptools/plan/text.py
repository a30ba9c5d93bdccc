"""What ddpplan prints."""

import argparse
import dataclasses
import math
import pathlib

from ddptools.common.table import Table, to_text
from ddptools.common.text import counted
from ddptools.plan.calibration import Calibration
from ddptools.plan.groups import Exchange, exchange_of, groups_table
from ddptools.plan.hardware import GBS_PER_GBIT, GPUS, LINKS_GBS, NETWORKS_GBIT
from ddptools.plan.measured import rates_of
from ddptools.plan.prediction import Case, NetworkFit, Prediction
from ddptools.results.description import Description


@dataclasses.dataclass
class Planned:
    case: Case
    prediction: Prediction
    needed_gbs: float | None = None  # with --target; None: no bandwidth is enough


@dataclasses.dataclass
class Memory:
    """Of a GPU: what a rank keeps, and what there is. Libraries take some beside it."""

    kept_gb: float
    there_gb: float
    host_gb: float = 0.0  # that a rank keeps on its host

    @property
    def fits(self) -> bool:
        return self.kept_gb <= self.there_gb

    def text(self) -> str:
        host = f", {self.host_gb:.3g} GB of the host per rank (their transfer is not predicted)" if self.host_gb else ""
        if self.fits:
            return f"{self.kept_gb:.3g} GB of a GPU's {self.there_gb:g} GB{host}"
        return f"{self.kept_gb:.3g} GB do not fit a GPU of {self.there_gb:g} GB{host}"


@dataclasses.dataclass
class Answer:
    options: argparse.Namespace
    calibration: Calibration | None
    work: Description
    planned: list[Planned] = dataclasses.field(default_factory=list)
    left_out: dict[int, str] = dataclasses.field(default_factory=dict)  # reasons, by numbers of nodes
    memory: Memory | None = None  # of the first case; none for --params


def text_of(answer: Answer) -> str:
    parts = [heading(answer), links_text(answer.planned[0].case), steps_text(answer)]
    if answer.options.target is not None:
        parts.append(target_text(answer))
    if answer.options.groups is not None:
        parts.append(to_text(groups_table(answer.options.groups, exchanges_of(answer), answer.work.worker)))
    return "\n".join(parts)


def exchanges_of(answer: Answer) -> list[Exchange]:
    return [exchange_of(answer.options.groups, planned.case, planned.prediction) for planned in answer.planned]


def three_digits(value: float) -> str:
    """Three significant ones (all of those before the point), never as a power of ten."""
    if value == 0.0 or not math.isfinite(value):
        return f"{value:.0f}"
    return f"{value:.{max(2 - math.floor(math.log10(abs(value))), 0)}f}"


def heading(answer: Answer) -> str:
    options, case, worker = answer.options, answer.planned[0].case, answer.work.worker
    name = answer.work.model if options.params is not None else pathlib.Path(options.model).stem
    gradients = three_digits(case.work.gradient_bytes / 1e9)
    work, seconds = three_digits(case.step_flop / 1e12), three_digits(case.alone_seconds)
    moved, exactly = three_digits(bytes_to_move(case) / 1e9), three_digits(case.bytes_per_gpu / 1e9)
    size = f"{case.work.parameters / 1e9:.4g} B parameters"
    lines = [
        ("Model", f"{name}: {size}, {case.work.gradient_dtype} gradients of {gradients} GB"),
        *((("GPU", gpu_text(options)),) if answer.work.device != "cpu" else ()),
        ("Compute", f"{work} TFLOP per {worker} and step, {seconds} s at {three_digits(case.tflops)} TFLOP/s"),
        ("", f"({case.gpus} {worker}s, {case.batch:g} samples each; {compute_source(answer)})"),
        ("To move", f"{moved} GB, twice the gradients (exactly 2 (W-1)/W: {exactly} GB)"),
        *((("Memory", answer.memory.text()),) if answer.memory else ()),
        *(("Network", text) for text in networks(answer)),
    ]
    return "".join(f"{name:<10}{text}\n" for name, text in lines)


def gpu_text(options: argparse.Namespace) -> str:
    """Of which a plan takes what was neither given nor measured."""
    default = "" if options.is_gpu_given else " (default)"
    return f"{options.gpu.upper()}{default}, peak {GPUS[options.gpu].peak_tflops:g} TFLOP/s"


def compute_source(answer: Answer) -> str:
    if answer.options.tflops:
        return "rate as given"
    rates = rates_of(answer.work, answer.calibration.runs) if answer.calibration else {}
    if not rates:
        return "rate assumed: half of the peak"
    if runs := len(rates.get(answer.planned[0].case.batch, [])):
        return f"measured at this batch, {counted(runs, 'run')}"
    return "between batches that were measured"


def networks(answer: Answer) -> list[str]:
    """Which one the steps within a node, and those of several nodes, were predicted with."""
    said = {}
    for case in (planned.case for planned in answer.planned):
        where = "within a node" if case.nodes == 1 else "between nodes"
        if case.gpus > 1:
            how = measured_network(case.fit, answer) if case.fit else assumed_network(case, answer)
            apart = case.work.hierarchical == "off"
            mpi = "each rank sends for itself (--hierarchical off)" if apart else "the ranks of a node add up first"
            said.setdefault(where, f"{where}: {how}{f'; {mpi}' if case.over_mpi else ''}")
        if case.interference:
            said["beside"] = f"a second beside compute makes compute {three_digits(case.interference)} s longer"
        if case.fused_sum_us is not None:
            us = three_digits(case.fused_sum_us)
            said.setdefault("fused", f"sum and update of the last bucket in one kernel: {us} us, measured")
    return list(said.values())


def measured_network(fit: NetworkFit, answer: Answer) -> str:
    latency = f"{three_digits(fit.base_us)} us + {three_digits(fit.per_rank_us)} us per rank"
    ranks = f"{fit.least_ranks}" if fit.least_ranks == fit.most_ranks else f"{fit.least_ranks} to {fit.most_ranks}"
    beyond = any(p.case.fit is fit and p.case.gpus > fit.most_ranks for p in answer.planned)
    points = f"{fit.points} all-reduce{'s' if fit.points > 1 else ''} of {ranks} ranks"
    points += "; more are extrapolated" if beyond else ""
    return f"measured, {latency}, busbw {three_digits(fit.busbw_gbs)} GB/s ({points})"


def assumed_network(case: Case, answer: Answer) -> str:
    not_measured = "not measured; " if answer.calibration else ""
    model = "MPI's bytes without latency" if case.uses_mpi else "NCCL's cost model"
    gbs, of = (case.intra_gbs, case.work.worker) if case.nodes == 1 else (case.inter_gbs, "node")
    achievable = f"{100 * answer.options.achievable:g}% of what is advertised"
    return f"{not_measured}{model}, {three_digits(gbs)} GB/s of a {of} ({achievable})"


def links_text(case: Case) -> str:
    rows = []
    for name, gbs in all_links().items():
        seconds = bytes_to_move(case) / (1e9 * gbs)
        achieved = f"{three_digits(seconds / 0.9)} to {three_digits(seconds / 0.8)}"
        bound = "communication" if seconds > case.alone_seconds else "compute"
        rows.append([name, f"{gbs:g}", three_digits(seconds), achieved, bound])
    header = ["link", "GB/s", "s at that rate", "s at 90 to 80% of it", "bound by"]
    return to_text(Table("Without latency and overlap, over one link:", header, rows))


def bytes_to_move(case: Case) -> float:
    """By the rule of thumb: each gradient there and back."""
    return 2.0 * case.work.gradient_bytes


def all_links() -> dict[str, float]:
    """GB/s, advertised."""
    return LINKS_GBS | {f"{name} ({gbit:g} Gbit/s)": gbit * GBS_PER_GBIT for name, gbit in NETWORKS_GBIT.items()}


def steps_text(answer: Answer) -> str:
    rows = []
    for p, batch in ((planned.prediction, planned.case.batch) for planned in answer.planned):
        seconds = (p.compute_seconds, p.communication_seconds, p.exposed_seconds, p.step_seconds)
        compute, communication, exposed, step = (three_digits(1e3 * value) for value in seconds)
        rows.append([str(p.nodes), str(p.gpus), f"{batch:g}", compute, communication,
                     f"{p.algorithm} {p.protocol}".strip(), exposed, step, three_digits(p.samples_per_second),
                     f"{100 * p.efficiency:.1f}%", p.bound])  # fmt: skip
    header = ["nodes", f"{answer.work.worker}s", "batch", "compute ms", "all-reduce ms", "by", "exposed ms", "step ms",
              "samples/s", "efficiency", "bound by"]  # fmt: skip
    text = to_text(Table("Steps:", header, rows))
    for reason in dict.fromkeys(answer.left_out.values()):
        nodes = ", ".join(str(n) for n, why in answer.left_out.items() if why == reason)
        text += f"Left out: {nodes} nodes, because {reason}\n"
    return text + limits_text([planned.case for planned in answer.planned])


def leaves_out(cases: list[Case]) -> list[str]:
    """What the predictions do not contain."""
    effects = [
        "ranks that compute at different speeds, or pause: every step waits for the slowest",
        "other traffic in the network, and switches with less bandwidth than their ports together",
        "reading data, evaluation, checkpoints, and restarts after a failure",
    ]
    over_mpi = [case.work for case in cases if case.uses_mpi and case.fit is None and case.gpus > 1]
    if over_mpi:
        effects.insert(0, "the latency of MPI's messages")
    if any(work.device != "cpu" for work in over_mpi):
        effects.insert(0, "copies of gradients between GPUs and host memory (--comm mpi)")
    if all(case.interference == 0.0 for case in cases):
        effects.insert(0, "compute that slows down while it overlaps with communication (--interference)")
    return effects


def limits_text(cases: list[Case]) -> str:
    """Below a table."""
    lines = "".join(f"  - {effect}\n" for effect in leaves_out(cases))
    return f"Upper limits: the prediction leaves out what often costs most on many ranks:\n{lines}"


def target_text(answer: Answer) -> str:
    rows, notes = [], ""
    for case, needed in ((p.case, p.needed_gbs) for p in answer.planned):
        within = case.nodes == 1
        unit, factor = ("GB/s", 1.0) if within else ("Gbit/s", 1.0 / GBS_PER_GBIT)
        cells = ["nothing to send", ""] if needed == 0.0 else ["none is enough", ""]
        if needed:
            rates = (needed, needed / answer.options.achievable)
            cells = [f"{three_digits(gbs * factor)} {unit}" for gbs in rates]
        rows.append([str(case.nodes), str(case.gpus), *cells])
        if needed is None:
            why = "latency" if within else "latency, or the links within a node"
            notes += f"{counted(case.nodes, 'node')}: no bandwidth is, because of {why}\n"
    caption = f"For {100 * answer.options.target:g}% (per {answer.work.worker} on one node, per node on several):"
    header = ["nodes", f"{answer.work.worker}s", "needed, achieved", "needed, advertised"]
    return to_text(Table(caption, header, rows)) + notes
