"""What ddpplan prints."""

import argparse
import dataclasses
import math
import pathlib

from ddptools.compute_rates import ComputePoint
from ddptools.description import Description
from ddptools.hardware import GBS_PER_GBIT, LINKS_GBS, NETWORKS_GBIT, OF_A_NODE
from ddptools.plan import Case, NetworkFit, Prediction, rule_of_thumb
from ddptools.plan_calibration import Calibration, Compared
from ddptools.plan_memory import MemoryFit
from ddptools.tables import Table, to_text


@dataclasses.dataclass
class Answer:
    """What was asked for, and what came of it; of lists with an entry per case, in their order."""

    options: argparse.Namespace
    calibration: Calibration | None
    work: Description | None = None
    cases: list[Case] = dataclasses.field(default_factory=list)
    left_out: dict[int, str] = dataclasses.field(default_factory=dict)  # reasons, by numbers of nodes
    predictions: list[Prediction] = dataclasses.field(default_factory=list)  # of each case
    needed_gbs: list[float | None] = dataclasses.field(default_factory=list)  # of each case, with --target
    remedies: list[list[str]] = dataclasses.field(default_factory=list)  # of each case, with --target
    memory: MemoryFit | None = None  # of the first case; none for --params
    compared: list[Compared] = dataclasses.field(default_factory=list)

    @property
    def name(self) -> str:
        return self.work.model if self.options.params is not None else pathlib.Path(self.options.model).stem


def text_of(answer: Answer) -> str:
    parts = [heading(answer), links_text(answer.cases[0]), steps_text(answer)]
    if answer.options.target is not None:
        parts.append(target_text(answer))
    if answer.compared:
        parts.append(compared_text(answer.compared))
    return "\n".join(parts)


def three_digits(value: float) -> str:
    """Three significant ones (all of those before the point), never as a power of ten."""
    if value == 0.0 or not math.isfinite(value):
        return f"{value:.0f}"
    return f"{value:.{max(2 - math.floor(math.log10(abs(value))), 0)}f}"


def heading(answer: Answer) -> str:
    case = answer.cases[0]
    rule = rule_of_thumb(case)
    gradients = three_digits(case.work.gradient_bytes / 1e9)
    work, seconds = three_digits(rule.tflop_per_gpu), three_digits(rule.compute_seconds)
    moved, exactly = three_digits(rule.bytes_to_move / 1e9), three_digits(rule.exact_bytes_to_move / 1e9)
    size = f"{case.work.parameters / 1e9:.4g} B parameters"
    lines = [
        ("Model", f"{answer.name}: {size}, {case.work.gradient_dtype} gradients of {gradients} GB"),
        ("Compute", f"{work} TFLOP per GPU and step, {seconds} s at {three_digits(case.tflops)} TFLOP/s"),
        ("", f"({case.gpus} GPUs, {case.batch:g} samples each; {compute_source(answer)})"),
        ("To move", f"{moved} GB, twice the gradients (exactly 2 (W-1)/W: {exactly} GB)"),
        *((("Memory", answer.memory.text()),) if answer.memory else ()),
        *(("Network", text) for text in networks(answer)),
    ]
    return "".join(f"{name:<10}{text}\n" for name, text in lines)


def compute_source(answer: Answer) -> str:
    """Where the compute rate comes from."""
    if answer.options.tflops:
        return "rate as given"
    points = answer.calibration.compute.alike(answer.work) if answer.calibration else []
    if not points:
        return "rate assumed: half of the peak"
    case = answer.cases[0]
    near = next((point for point in points if point.batch == case.batch), None)
    if near:
        return f"measured at this batch, {runs_text(near)}"
    below = [point for point in points if point.batch < case.batch][-1]
    above = next(point for point in points if point.batch > case.batch)
    return f"between batch {below.batch:g} ({runs_text(below)}) and {above.batch:g} ({runs_text(above)})"


def runs_text(point: ComputePoint) -> str:
    return f"{point.runs} run{'s' if point.runs > 1 else ''}"


def networks(answer: Answer) -> list[str]:
    """Which one the steps within a node, and those of several nodes, were predicted with."""
    said = {}
    for case in answer.cases:
        where = "within a node" if case.nodes == 1 else "between nodes"
        fit = case.intra_fit if case.nodes == 1 else case.inter_fit
        if case.gpus > 1:
            how = measured_network(fit, answer) if fit else assumed_network(case, answer)
            said.setdefault(where, f"{where}: {how}{how_mpi_sums(case)}")
        if case.interference:
            said["beside"] = f"a second beside compute makes compute {three_digits(case.interference)} s longer"
        if case.fused_sum_us is not None:
            us = three_digits(case.fused_sum_us)
            said.setdefault("fused", f"sum and update of the last bucket in one kernel: {us} us, measured")
    return list(said.values())


def how_mpi_sums(case: Case) -> str:
    if not case.over_mpi:
        return ""
    if case.work.hierarchical == "off":
        return "; each rank sends for itself (--hierarchical off)"
    return "; the ranks of a node add up first"


def measured_network(fit: NetworkFit, answer: Answer) -> str:
    latency = f"{three_digits(fit.base_us)} us + {three_digits(fit.per_rank_us)} us per rank"
    ranks = f"{fit.least_ranks}" if fit.least_ranks == fit.most_ranks else f"{fit.least_ranks} to {fit.most_ranks}"
    used = [case for case in answer.cases if fit is (case.intra_fit if case.nodes == 1 else case.inter_fit)]
    beyond = any(case.gpus > fit.most_ranks for case in used)
    extrapolated = "; more are extrapolated" if beyond else ""
    points = f"{fit.points} all-reduce{'s' if fit.points > 1 else ''} of {ranks} ranks{extrapolated}"
    return f"measured, {latency}, busbw {three_digits(fit.busbw_gbs)} GB/s ({points})"


def assumed_network(case: Case, answer: Answer) -> str:
    not_measured = "not measured; " if answer.calibration else ""
    gbs = f"{three_digits(case.intra_gbs)} GB/s of a GPU"
    if case.nodes > 1:
        gbs = f"{three_digits(case.inter_gbs)} GB/s of a node"
    return f"{not_measured}NCCL's cost model, {gbs} ({100 * answer.options.achievable:g}% of what is advertised)"


def links_text(case: Case) -> str:
    rows = []
    rule = rule_of_thumb(case)
    for name, gbs in all_links().items():
        seconds = rule.seconds_at(gbs)
        achieved = f"{three_digits(seconds / 0.9)} to {three_digits(seconds / 0.8)}"
        bound = "communication" if seconds > rule.compute_seconds else "compute"
        rows.append([name, f"{gbs:g}", three_digits(seconds), achieved, bound])
    header = ["link", "GB/s", "s at that rate", "s at 90 to 80% of it", "bound by"]
    return to_text(Table("Without latency and overlap, over one link:", header, rows))


def all_links() -> dict[str, float]:
    """GB/s, advertised."""
    return LINKS_GBS | {f"{name} ({gbit:g} Gbit/s)": gbit * GBS_PER_GBIT for name, gbit in NETWORKS_GBIT.items()}


def milliseconds(seconds: float) -> str:
    return three_digits(1e3 * seconds)


def steps_text(answer: Answer) -> str:
    rows = []
    for case, p in zip(answer.cases, answer.predictions, strict=True):
        rows.append([str(p.nodes), str(p.gpus), f"{case.batch:g}", milliseconds(p.compute_seconds),
                     milliseconds(p.communication_seconds), f"{p.algorithm} {p.protocol}".strip(),
                     milliseconds(p.exposed_seconds), milliseconds(p.step_seconds), three_digits(p.samples_per_second),
                     f"{100 * p.efficiency:.1f}%", p.bound])  # fmt: skip
    header = ["nodes", "GPUs", "batch", "compute ms", "all-reduce ms", "by", "exposed ms", "step ms", "samples/s",
              "efficiency", "bound by"]  # fmt: skip
    text = to_text(Table("Steps:", header, rows))
    for reason in dict.fromkeys(answer.left_out.values()):
        nodes = ", ".join(str(n) for n, why in answer.left_out.items() if why == reason)
        text += f"Left out: {nodes} nodes, because {reason}\n"
    return text


def target_text(answer: Answer) -> str:
    options, rows, notes = answer.options, [], []
    for case, needed, would in zip(answer.cases, answer.needed_gbs, answer.remedies, strict=True):
        unit, factor = ("GB/s", 1.0) if case.nodes == 1 else ("Gbit/s", 1.0 / GBS_PER_GBIT)
        start = [str(case.nodes), str(case.gpus)]
        if needed == 0.0:
            rows.append([*start, "nothing to send", "", ""])
        elif needed is None:
            rows.append([*start, "none is enough", "", ""])
            enough = f"enough would be: {'; or '.join(would)}" if would else "nor a larger batch or other buckets"
            nodes = f"{case.nodes} node{'s' * (case.nodes > 1)}"
            notes.append(f"{nodes}: no bandwidth is, because of {why_not(case)}; {enough}\n")
        else:
            advertised = needed / options.achievable
            rates = [f"{three_digits(gbs * factor)} {unit}" for gbs in (needed, advertised)]
            rows.append([*start, *rates, enough_link(case, advertised)])
    caption = f"For {100 * options.target:g}% (per GPU on one node, per node on several):"
    header = ["nodes", "GPUs", "needed, achieved", "needed, advertised", "enough"]
    return to_text(Table(caption, header, rows)) + "".join(notes)


def why_not(case: Case) -> str:
    return "latency" if case.nodes == 1 else "latency, or the links within a node"


def enough_link(case: Case, advertised_gbs: float) -> str:
    """The least of its kind that has this rate: within a node the GPUs' NVLink or PCIe, between nodes adapters."""
    if case.nodes == 1:
        kind = {name: gbs for name, gbs in LINKS_GBS.items() if name.startswith(case.link)}
        fitting = [name for name, gbs in sorted(kind.items(), key=lambda item: item[1]) if gbs >= advertised_gbs]
        return fitting[0] if fitting else f"no {case.link} known"
    one = {name: gbit * GBS_PER_GBIT for name, gbit in NETWORKS_GBIT.items() if name not in OF_A_NODE}
    fitting = [name for name, gbs in one.items() if gbs >= advertised_gbs]
    if fitting:
        return f"1 x {fitting[0]}"
    name, gbs = max(one.items(), key=lambda item: item[1])
    return f"{math.ceil(advertised_gbs / gbs)} x {name}"


def compared_text(compared: list[Compared]) -> str:
    rows = []
    for c in sorted(compared, key=lambda c: (c.nodes, c.gpus, c.batch)):
        measured = f"{100 * c.measured_efficiency:.1f}%" if c.measured_efficiency else ""
        rows.append([str(c.gpus), str(c.nodes), f"{c.batch:g}", three_digits(c.predicted.samples_per_second),
                     three_digits(c.measured_per_second), f"{100 * c.error:+.1f}%",
                     f"{100 * c.predicted.efficiency:.1f}%", measured])  # fmt: skip
    caption = "The runs of the calibration, predicted with their own one-rank baselines, and measured:"
    header = ["ranks", "nodes", "batch", "predicted samples/s", "measured", "error", "efficiency", "measured"]
    return to_text(Table(caption, header, rows))
