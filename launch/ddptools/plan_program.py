"""ddpplan: what a step will take, on how many GPUs, over which network."""

import argparse
import dataclasses
import json
import math
import pathlib
import sys
from typing import Any

from ddptools import hardware, nccl_model
from ddptools.arguments import Parser
from ddptools.description import Description, complete, describe, language_model
from ddptools.errors import UsageError, run_program
from ddptools.hardware import GBIT, GPUS, LINKS, NETWORKS, OF_A_NODE
from ddptools.interpreter import use_one_with
from ddptools.plan import Case, Prediction, needed_bandwidth, predict, rule_of_thumb
from ddptools.plan_calibration import Calibration, Compared, calibrate, compare, load_records
from ddptools.picture_file import save_figure
from ddptools.programs import ROOT, program_folder
from ddptools.results import write_atomically

ASSUMED_MFU = 0.5  # of the peak, where nothing better is known
MOST_GPUS = 1_000_000
SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def plan_main() -> int:
    return run_program("ddpplan", run)


def run(arguments: list[str]) -> int:
    options = parse(arguments)
    use_one_with(*["matplotlib"] * bool(options.png or options.svg), *["scipy"] * bool(options.calibrate))
    records = load_records(pathlib.Path(options.calibrate)) if options.calibrate else []
    complete(records, program_folder(options.bin) / "ddptrain")
    calibration = calibrate(records) if options.calibrate else None
    cases = make_cases(options, calibration)
    predictions = [predict(case) for case in cases]
    compared = compare(records, calibration) if calibration else []
    if options.json:
        write_json(options, cases, predictions, calibration, compared)
    if options.json != "-":
        print(text_of(options, cases, predictions, calibration, compared), end="")
    for path in filter(None, (options.png, options.svg)):
        draw(path, options, cases)
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="ddpplan",
        usage="ddpplan [flags] [-- flags of ddptrain]",
        description="Predicts step time and scaling efficiency of data-parallel training.",
    )
    end = arguments.index("--") if "--" in arguments else len(arguments)
    add_work(parser)
    add_machine(parser)
    out = parser.add_argument_group("output")
    out.add_argument(
        "--target", type=number("--target", 0.01, 0.999), metavar="E", help="which network reaches this efficiency"
    )
    out.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="the same as JSON, in FILE or in place of the text"
    )
    out.add_argument("--png", metavar="FILE", help="a curve of efficiency over GPUs")
    out.add_argument("--svg", metavar="FILE", help="the same")
    options = parser.parse_args(arguments[:end])
    options.ddptrain_flags = arguments[end + 1 :]
    if options.ddptrain_flags and options.params is not None:
        raise UsageError("--params: a model of which only the size is known takes no flags of ddptrain")
    return options


def add_work(parser: argparse.ArgumentParser) -> None:
    work = parser.add_argument_group("work")
    which = work.add_mutually_exclusive_group()
    which.add_argument(
        "--model",
        default="gpt2-124m",
        metavar="NAME",
        help=f"a recipe ({', '.join(recipes())}, or its file) or a model of ddptrain, which describes it (gpt2-124m)",
    )
    which.add_argument("--params", type=parameters, metavar="N", help="a language model by its size, such as 2B")
    work.add_argument(
        "--seq", type=whole("--seq", 1_000_000_000), metavar="N", help="tokens of a sample (the model's; 1024)"
    )
    batch = work.add_mutually_exclusive_group()
    batch.add_argument(
        "--batch", type=whole("--batch", 10**9), metavar="N", help="samples per GPU and micro-step (the recipe's; 16)"
    )
    batch.add_argument(
        "--global-batch", type=whole("--global-batch", 10**12), metavar="N", help="samples per micro-step of all GPUs"
    )
    work.add_argument(
        "--grad-accum", type=whole("--grad-accum", 10**6), metavar="N", help="micro-steps per step (the recipe's; 1)"
    )
    work.add_argument("--gradients", choices=("bf16", "fp32"), help="what travels (the recipe's; bf16)")
    work.add_argument("--recompute", action="store_true", help="forward again during backward")
    work.add_argument("--bucket-mb", type=number("--bucket-mb", 1e-6, 1e6), metavar="MIB", help="(25)")
    work.add_argument("--last-bucket-kb", type=number("--last-bucket-kb", 0, 1e9), metavar="KIB", help="(256)")
    work.add_argument("--bin", metavar="DIR", help="folder of ddptrain (default: that of ddpplan, else build/bin)")
    work.add_argument("--overlap", choices=("on", "off"), default="on", help="all-reduce during backward, or after it")


def add_machine(parser: argparse.ArgumentParser) -> None:
    machine = parser.add_argument_group("machine")
    machine.add_argument("--gpu", choices=GPUS, default="h200", help="(h200)")
    machine.add_argument("--tflops", type=number("--tflops", 1e-6, 1e6), metavar="N",
                         help=f"that a GPU achieves (default: {100 * ASSUMED_MFU:.0f}%% of its peak)")  # fmt: skip
    machine.add_argument("--gpus-per-node", type=whole("--gpus-per-node", 1024), default=8, metavar="N", help="(8)")
    machine.add_argument("--nodes", type=node_counts, default=None, metavar="N,...",
                         help="a row each (default: powers of two up to 4096)")  # fmt: skip
    machine.add_argument("--link", help=f"within a node: {', '.join(LINKS)}, or GB/s one way (the GPU's)")
    machine.add_argument("--network", default="ndr",
                         help=f"of an adapter (efa2: of a node): {', '.join(NETWORKS)}, or Gbit/s (ndr)")  # fmt: skip
    machine.add_argument("--nics", type=whole("--nics", 1024), default=1, metavar="N", help="adapters per node (1)")
    machine.add_argument("--achievable", type=number("--achievable", 0.01, 1), default=0.8, metavar="F",
                         help="of advertised rates (0.8; 0.8 to 0.9 are usual)")  # fmt: skip
    machine.add_argument(
        "--channels", type=whole("--channels", 64), metavar="N", help="of NCCL (24 within a node, else 16)"
    )
    machine.add_argument("--algorithm", choices=nccl_model.ALGORITHMS, help="(what NCCL's cost model prefers)")
    machine.add_argument("--protocol", choices=nccl_model.PROTOCOLS, help="(what NCCL's cost model prefers)")
    machine.add_argument("--interference", type=number("--interference", 0, 10), metavar="F",
                         help="seconds by which a second of communication makes compute longer (0)")  # fmt: skip
    machine.add_argument("--calibrate", metavar="RESULTS",
                         help="take rates from files of ddpsweep, ddptrain --metrics, ddpbench --json")  # fmt: skip


def number(flag: str, least: float, most: float) -> Any:
    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise UsageError(f"{flag} {text}: give a number from {least:g} to {most:g}")
        return value

    return convert


def whole(flag: str, most: int) -> Any:
    def convert(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or len(text) > 15 or not 1 <= int(text) <= most:
            raise UsageError(f"{flag} {text}: give a whole number from 1 to {most}")
        return int(text)

    return convert


def parameters(text: str) -> float:
    factor = SUFFIXES.get(text[-1:].upper(), 1.0)
    digits = text[:-1] if factor > 1.0 else text
    try:
        value = float(digits) * factor
    except ValueError:
        value = math.nan
    if not 1.0 <= value <= 1e15:
        raise UsageError(f"--params {text}: give a number of parameters, such as 124M, 2B or 2e9")
    return value


def node_counts(text: str) -> list[int]:
    return [whole("--nodes", MOST_GPUS)(part) for part in text.split(",")]


def make_cases(options: argparse.Namespace, calibration: Calibration | None) -> list[Case]:
    nodes = options.nodes or [2**i for i in range(13)]
    if max(nodes) * options.gpus_per_node > MOST_GPUS:
        raise UsageError(f"--nodes {max(nodes)}: more than {MOST_GPUS} GPUs in all")
    if options.global_batch and options.nodes is None:
        nodes = [n for n in nodes if n * options.gpus_per_node <= options.global_batch] or nodes[:1]
    work = describe_work(options)
    return [make_case(options, work, n, calibration) for n in nodes]


def make_case(
    options: argparse.Namespace, work: Description, nodes: int, calibration: Calibration | None = None
) -> Case:
    gpu = GPUS[options.gpu]
    link = options.link or gpu.link
    case = Case(
        work=work,
        batch=batch_per_gpu(options, work, nodes * options.gpus_per_node),
        tflops=options.tflops or ASSUMED_MFU * gpu.peak_tflops,
        gpus_per_node=options.gpus_per_node,
        nodes=nodes,
        grad_accum=options.grad_accum or work.grad_accum,
        overlap=options.overlap == "on",
        intra_gbs=options.achievable * hardware.link_bandwidth(link),
        inter_gbs=options.achievable * hardware.network_bandwidth(options.network, options.nics),
        generation=gpu.generation,
        link="pcie" if link.startswith("pcie") else "nvlink",
        channels=options.channels or 0,
        algorithm=options.algorithm,
        protocol=options.protocol,
    )
    case = calibration.applied_to(case) if calibration else case
    given = {name: getattr(options, name) for name in ("tflops", "interference")}
    return dataclasses.replace(case, **{name: value for name, value in given.items() if value is not None})


def recipes() -> list[str]:
    """Without earlier names, which are links."""
    return sorted(path.stem for path in (ROOT / "configs").glob("*.toml") if not path.is_symlink())


def describe_work(options: argparse.Namespace) -> Description:
    """What ddptrain says of the model that is asked for, on GPUs; or one of the size of --params."""
    if options.params is not None:
        sizes = {"bucket_bytes": (options.bucket_mb, 2.0**20), "last_bucket_bytes": (options.last_bucket_kb, 2.0**10)}
        given = {name: value * unit for name, (value, unit) in sizes.items() if value is not None}
        if options.gradients:
            given["gradient_dtype"] = options.gradients
        return language_model(options.params, options.seq or 1024, recompute=options.recompute, **given)
    if (ROOT / "configs" / f"{options.model}.toml").exists():
        flags = {"config": f"configs/{options.model}.toml"}
    else:
        flags = {"config" if options.model.endswith(".toml") else "model": options.model}
    flags |= {"device": "cuda", "data": "synthetic"}
    for flag, value in (("seq", options.seq), ("comm-dtype", options.gradients),
                        ("recompute", "block" if options.recompute else None),
                        ("bucket-mb", options.bucket_mb), ("last-bucket-kb", options.last_bucket_kb)):  # fmt: skip
        flags |= {flag: value} if value is not None else {}
    return describe(program_folder(options.bin) / "ddptrain", flags, options.ddptrain_flags)


def name_of(options: argparse.Namespace, work: Description) -> str:
    return work.model if options.params is not None else pathlib.Path(options.model).stem


def batch_per_gpu(options: argparse.Namespace, work: Description, gpus: int) -> float:
    if options.global_batch is None:
        return options.batch or work.batch
    if options.global_batch < gpus:
        raise UsageError(f"--global-batch {options.global_batch}: fewer samples than the {gpus} GPUs")
    return options.global_batch / gpus


# --- text -----------------------------------------------------------------------------------------------------------


def text_of(
    options: argparse.Namespace,
    cases: list[Case],
    predictions: list[Prediction],
    calibration: Calibration | None,
    compared: list[Compared],
) -> str:
    parts = [heading(options, cases[0]), links_text(cases[0]), steps_text(cases, predictions)]
    if options.target is not None:
        parts.append(target_text(options, cases))
    if calibration is not None:
        parts.append(calibration_text(calibration, compared))
    return "\n".join(parts)


def three_digits(value: float) -> str:
    """Three significant ones (all of those before the point), never as a power of ten."""
    if value == 0.0 or not math.isfinite(value):
        return f"{value:.0f}"
    return f"{value:.{max(2 - math.floor(math.log10(abs(value))), 0)}f}"


def table(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + "\n" for row in rows)


def heading(options: argparse.Namespace, case: Case) -> str:
    rule = rule_of_thumb(case)
    gradients = three_digits(case.work.gradient_bytes / 1e9)
    work, seconds = three_digits(rule.tflop_per_gpu), three_digits(rule.compute_seconds)
    moved, exactly = three_digits(rule.bytes_to_move / 1e9), three_digits(rule.exact_bytes_to_move / 1e9)
    size = f"{case.work.parameters / 1e9:.4g} B parameters"
    lines = (
        ("Model", f"{name_of(options, case.work)}: {size}, {case.work.gradient_dtype} gradients of {gradients} GB"),
        ("Compute", f"{work} TFLOP per GPU and step, {seconds} s at {three_digits(case.tflops)} TFLOP/s"),
        ("", f"({case.gpus} GPUs, {case.batch:g} samples each)"),
        ("To move", f"{moved} GB, twice the gradients (exactly 2 (W-1)/W: {exactly} GB)"),
    )
    return "".join(f"{name:<10}{text}\n" for name, text in lines)


def links_text(case: Case) -> str:
    rows = [["link", "GB/s", "s at that rate", "s at 90 to 80% of it", "bound by"]]
    rule = rule_of_thumb(case)
    for name, gbs in all_links().items():
        seconds = rule.seconds_at(gbs)
        achieved = f"{three_digits(seconds / 0.9)} to {three_digits(seconds / 0.8)}"
        bound = "communication" if seconds > rule.compute_seconds else "compute"
        rows.append([name, f"{gbs:g}", three_digits(seconds), achieved, bound])
    return "Without latency and overlap, over one link:\n" + table(rows)


def all_links() -> dict[str, float]:
    """GB/s, advertised."""
    return LINKS | {f"{name} ({gbit:g} Gbit/s)": gbit * GBIT for name, gbit in NETWORKS.items()}


def milliseconds(seconds: float) -> str:
    return three_digits(1e3 * seconds)


def steps_text(cases: list[Case], predictions: list[Prediction]) -> str:
    rows = [["nodes", "GPUs", "batch", "compute ms", "all-reduce ms", "by", "exposed ms", "step ms", "samples/s",
             "efficiency", "bound by"]]  # fmt: skip
    for case, p in zip(cases, predictions, strict=True):
        rows.append([str(p.nodes), str(p.gpus), f"{case.batch:g}", milliseconds(p.compute_seconds),
                     milliseconds(p.communication_seconds), f"{p.algorithm} {p.protocol}".strip(),
                     milliseconds(p.exposed_seconds), milliseconds(p.step_seconds), three_digits(p.samples_per_second),
                     f"{100 * p.efficiency:.1f}%", p.bound])  # fmt: skip
    within, between = three_digits(cases[0].intra_gbs), three_digits(cases[0].inter_gbs)
    return f"Steps, at {within} GB/s of a GPU within a node and {between} GB/s of a node between them:\n" + table(rows)


def target_text(options: argparse.Namespace, cases: list[Case]) -> str:
    rows = [["nodes", "GPUs", "needed, achieved", "needed, advertised", "enough"]]
    for case in cases:
        needed = needed_bandwidth(case, options.target)
        unit, factor = ("GB/s", 1.0) if case.nodes == 1 else ("Gbit/s", 1.0 / GBIT)
        if needed == 0.0:
            rows.append([str(case.nodes), str(case.gpus), "nothing to send", "", ""])
            continue
        if needed is None:
            rows.append([str(case.nodes), str(case.gpus), "none is enough", "", why_not(case)])
            continue
        advertised = needed / options.achievable
        rows.append([str(case.nodes), str(case.gpus), f"{three_digits(needed * factor)} {unit}",
                     f"{three_digits(advertised * factor)} {unit}", enough(case.nodes, advertised)])  # fmt: skip
    return f"For {100 * options.target:g}% (per GPU on one node, per node on several):\n" + table(rows)


def why_not(case: Case) -> str:
    return "latency is too long" if case.nodes == 1 else "latency, or the links within a node"


def enough(nodes: int, advertised: float) -> str:
    """The least that has this rate."""
    if nodes == 1:
        fitting = [name for name, gbs in sorted(LINKS.items(), key=lambda item: item[1]) if gbs >= advertised]
        return fitting[0] if fitting else "no link known"
    one = {name: gbit * GBIT for name, gbit in NETWORKS.items() if name not in OF_A_NODE}
    fitting = [name for name, gbs in one.items() if gbs >= advertised]
    if fitting:
        return f"1 x {fitting[0]}"
    name, gbs = max(one.items(), key=lambda item: item[1])
    return f"{math.ceil(advertised / gbs)} x {name}"


def calibration_text(calibration: Calibration, compared: list[Compared]) -> str:
    lines = [f"Calibrated by runs: {calibration.runs}, all-reduces: {calibration.all_reduces}"]
    if calibration.tflops is not None:
        lines.append(f"  compute {three_digits(calibration.tflops)} TFLOP/s per rank")
    if calibration.interference is not None:
        lines.append(f"  a second of communication makes compute {three_digits(calibration.interference)} s longer")
    for name, fit in (("one node", calibration.intra_fit), ("several nodes", calibration.inter_fit)):
        if fit is not None:
            lines.append(f"  all-reduce on {name}: {three_digits(fit.per_rank_us)} us per rank beyond the first, "
                         f"busbw {three_digits(fit.busbw_gbs)} GB/s ({fit.points} points)")  # fmt: skip
    if not compared:
        return "\n".join(lines) + "\n"
    rows = [["ranks", "nodes", "batch", "predicted samples/s", "measured", "error", "efficiency", "measured"]]
    for c in sorted(compared, key=lambda c: (c.nodes, c.gpus, c.batch)):
        measured = f"{100 * c.measured_efficiency:.1f}%" if c.measured_efficiency else ""
        rows.append([str(c.gpus), str(c.nodes), f"{c.batch:g}", three_digits(c.predicted.samples_per_second),
                     three_digits(c.measured_per_second), f"{100 * c.error:+.1f}%",
                     f"{100 * c.predicted.efficiency:.1f}%", measured])  # fmt: skip
    return "\n".join(lines) + "\n\nPredicted and measured, each with its run's own one-rank baseline:\n" + table(rows)


# --- files ----------------------------------------------------------------------------------------------------------


def document(
    options: argparse.Namespace,
    cases: list[Case],
    predictions: list[Prediction],
    calibration: Calibration | None,
    compared: list[Compared],
) -> dict[str, Any]:
    rule = rule_of_thumb(cases[0])
    result: dict[str, Any] = {
        "case": dataclasses.asdict(cases[0]),
        "rule_of_thumb": dataclasses.asdict(rule),
        "links": [
            {"link": name, "bandwidth_gbs": gbs, "seconds": rule.seconds_at(gbs)} for name, gbs in all_links().items()
        ],
        "predictions": [dataclasses.asdict(p) for p in predictions],
    }
    if options.target is not None:
        result["target"] = {
            "efficiency": options.target,
            "needed_gbs": [
                {"nodes": c.nodes, "gpus": c.gpus, "achieved_gbs": needed_bandwidth(c, options.target)} for c in cases
            ],
        }
    if calibration is not None:
        result["calibration"] = dataclasses.asdict(calibration)
        result["compared"] = [dataclasses.asdict(c) for c in compared]
    return result


def write_json(options: argparse.Namespace, *rest: Any) -> None:
    text = json.dumps(document(options, *rest), indent=1) + "\n"
    if options.json == "-":
        sys.stdout.write(text)
        return
    try:
        write_atomically(pathlib.Path(options.json), text)
    except OSError as error:
        raise UsageError(f"--json {options.json}: cannot be written: {error.strerror}") from error


def other_network(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """What of a case another network changes; what was measured on this one does not hold there."""
    return {"inter_gbs": options.achievable * hardware.network_bandwidth(name, options.nics), "inter_fit": None}


def draw(path: str, options: argparse.Namespace, cases: list[Case]) -> None:
    """Efficiency over GPUs: this network, and the others by their names with as many adapters."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = sorted(cases, key=lambda case: case.gpus)
    name = name_of(options, cases[0].work)
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for network in dict.fromkeys((*NETWORKS, options.network)):
        chosen = network == options.network
        changes = {} if chosen else other_network(options, network)
        curve = [predict(dataclasses.replace(case, **changes)) for case in cases]
        adapters = f"{options.nics} x {network}{'' if network in NETWORKS else ' Gbit/s'}"
        label = network if network in OF_A_NODE else adapters
        axes.plot([p.gpus for p in curve], [100 * p.efficiency for p in curve], marker="o" if chosen else ".",
                  linewidth=2.5 if chosen else 1.0, label=label)  # fmt: skip
    if options.target is not None:
        axes.axhline(100 * options.target, color="gray", linestyle="--", linewidth=1.0)
    axes.set(xscale="log", ylim=(0, 105), xlabel="GPUs", ylabel="scaling efficiency, %",
             title=f"{name}, {options.gpus_per_node} x {options.gpu} per node (predicted)")  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.grid(alpha=0.3)
    axes.legend(title="network of a node", fontsize="small")
    try:
        save_figure(figure, pathlib.Path(path), "svg" if path == options.svg else "png")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        pyplot.close(figure)
