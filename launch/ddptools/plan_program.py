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
from ddptools.compute_rates import NotMeasured
from ddptools.description import Description, NotDescribed, complete, describe, language_model
from ddptools.errors import UsageError, run_program
from ddptools.hardware import GPUS, LINKS_GBS, NETWORKS_GBIT, OF_A_NODE
from ddptools.interpreter import use_one_with
from ddptools.out_of_sample import out_of_sample, out_of_sample_text
from ddptools.picture_file import save_figure
from ddptools.plan import Case, needed_gbs, predict, rule_of_thumb
from ddptools.plan_calibration import calibrate, compare, load_all
from ddptools.plan_memory import MEMORY_GB, MemoryFit, memory_fit
from ddptools.plan_text import Answer, all_links, text_of
from ddptools.programs import ROOT, program_folder
from ddptools.results import write_atomically

ASSUMED_MFU = 0.5  # of the peak, where nothing better is known
OTHER_BUCKETS_MIB = (4.0, 100.0, 400.0)  # that are tried where no network is enough
MOST_GPUS = 1_000_000
PROCESSORS = {"cpu": "CPU cores", "cuda": "GPUs"}
SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def plan_main() -> int:
    return run_program("ddpplan", run)


def run(arguments: list[str]) -> int:
    options = parse(arguments)
    use_one_with(*["matplotlib"] * bool(options.png or options.svg), *["scipy"] * bool(options.calibrate))
    records = load_all(map(pathlib.Path, options.calibrate or []))
    complete(records, program_folder(options.bin) / "ddptrain")
    if options.fit_ranks is not None:
        print(out_of_sample_text(out_of_sample(records, options.fit_ranks), options.fit_ranks), end="")
        return 0
    answer = make_answer(options, records)
    if options.json:
        write_json(options, answer)
    if options.json != "-":
        print(text_of(answer), end="")
    for path in filter(None, (options.png, options.svg)):
        draw(path, options, answer.cases)
    return 0


def make_answer(options: argparse.Namespace, records: list[dict[str, Any]]) -> Answer:
    answer = Answer(options, calibrate(records) if options.calibrate else None)
    answer.work = describe_work(options, answer)
    check_devices(answer)
    add_cases(answer)
    answer.memory = memory_of(options, answer)
    answer.predictions = [predict(case) for case in answer.cases]
    answer.compared = compare(records, answer.calibration) if answer.calibration else []
    if options.target is not None:
        answer.needed_gbs = [needed_gbs(case, options.target) for case in answer.cases]
        for case, needed in zip(answer.cases, answer.needed_gbs, strict=True):
            answer.remedies.append([] if needed is not None else remedies(options, answer, case))
    return answer


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
        "--target", type=number("--target", 0.01, 0.999), metavar="E", help="also print the network that reaches this efficiency"
    )
    out.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="write JSON to FILE, or print it instead of the text"
    )
    out.add_argument("--png", metavar="FILE", help="draw efficiency over GPUs as PNG")
    out.add_argument("--svg", metavar="FILE", help="draw efficiency over GPUs as SVG")
    options = parser.parse_args(arguments[:end])
    options.ddptrain_flags = arguments[end + 1 :]
    if options.fit_ranks is not None and not options.calibrate:
        raise UsageError("--fit-ranks: give the runs with --calibrate")
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
        help=f"recipe ({', '.join(recipes())}), file of a recipe, or model of ddptrain (gpt2-124m)",
    )
    which.add_argument("--params", type=parameters, metavar="N", help="number of parameters of a language model, such as 2B")
    work.add_argument(
        "--seq", type=whole("--seq", 1_000_000_000), metavar="N", help="tokens per sample (the model's; 1024)"
    )
    batch = work.add_mutually_exclusive_group()
    batch.add_argument(
        "--batch", type=whole("--batch", 10**9), metavar="N", help="samples per GPU and micro-step (the recipe's; 16)"
    )
    batch.add_argument(
        "--global-batch", type=whole("--global-batch", 10**12), metavar="N", help="samples per micro-step on all GPUs"
    )
    work.add_argument(
        "--grad-accum", type=whole("--grad-accum", 10**6), metavar="N", help="micro-steps per step (the recipe's; 1)"
    )
    work.add_argument("--gradients", choices=("bf16", "fp32"), help="format of gradients (the recipe's; bf16)")
    work.add_argument("--recompute", action="store_true", help="repeat the forward pass during backward")
    work.add_argument("--bucket-mb", type=number("--bucket-mb", 1e-6, 1e6), metavar="MIB", help="largest gradient bucket (25)")
    work.add_argument("--last-bucket-kb", type=number("--last-bucket-kb", 0, 1e9), metavar="KIB", help="size of the last bucket (256)")
    work.add_argument("--bin", metavar="DIR", help="folder of ddptrain (the folder of ddpplan, else build/bin)")
    work.add_argument("--overlap", choices=("on", "off"), default="on", help="all-reduce during backward, or after it (on)")


def add_machine(parser: argparse.ArgumentParser) -> None:
    machine = parser.add_argument_group("machine")
    machine.add_argument("--gpu", choices=GPUS, default="h200", help="GPU type (h200)")
    machine.add_argument("--memory", type=number("--memory", 0.1, 1e6), metavar="GB", help="memory of a GPU (the data sheet's)")
    machine.add_argument("--tflops", type=number("--tflops", 1e-6, 1e6), metavar="N",
                         help=f"TFLOP/s that a GPU achieves ({100 * ASSUMED_MFU:.0f}%% of its peak)")  # fmt: skip
    machine.add_argument("--gpus-per-node", type=whole("--gpus-per-node", 1024), default=8, metavar="N", help="GPUs per node (8)")
    machine.add_argument("--nodes", type=node_counts, default=None, metavar="N,...",
                         help="numbers of nodes, with a row each (powers of two up to 4096)")  # fmt: skip
    machine.add_argument("--link", help=f"link within a node: {', '.join(LINKS_GBS)}, or GB/s one way (the GPU's)")
    machine.add_argument("--network", help=f"network per adapter (efa2: per node): {', '.join(NETWORKS_GBIT)}, or Gbit/s "
                         "(ndr for h100, h200 and b200; hdr for a100; edr for v100)")
    machine.add_argument("--nics", type=whole("--nics", 1024), metavar="N",
                         help="network adapters per node (one per GPU; v100: one per two GPUs)")  # fmt: skip
    machine.add_argument("--achievable", type=number("--achievable", 0.01, 1), default=0.8, metavar="F",
                         help="fraction of advertised rates that is achieved (0.8; 0.8 to 0.9 are usual)")  # fmt: skip
    machine.add_argument(
        "--channels", type=whole("--channels", 64), metavar="N", help="NCCL channels (24 within a node, else 16)"
    )
    machine.add_argument("--algorithm", choices=nccl_model.ALGORITHMS, help="NCCL algorithm (NCCL's cost model chooses)")
    machine.add_argument("--protocol", choices=nccl_model.PROTOCOLS, help="NCCL protocol (NCCL's cost model chooses)")
    machine.add_argument("--interference", type=number("--interference", 0, 10), metavar="F",
                         help="seconds that each second of communication adds to compute (0)")  # fmt: skip
    machine.add_argument("--calibrate", nargs="+", metavar="RESULTS",
                         help="take rates from these results of ddpsweep, ddptrain --metrics or ddpbench --json")  # fmt: skip
    machine.add_argument("--fit-ranks", type=whole("--fit-ranks", MOST_GPUS), metavar="N", help="with --calibrate: "
                         "take rates from runs of up to N ranks, and predict the other runs")


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


def add_cases(answer: Answer) -> None:
    """One for each number of nodes whose batch per GPU was measured; UsageError where there is none."""
    options = answer.options
    nodes = options.nodes or [2**i for i in range(13)]
    if max(nodes) * options.gpus_per_node > MOST_GPUS:
        raise UsageError(f"--nodes {max(nodes)}: more than {MOST_GPUS} GPUs in all")
    if options.global_batch and options.nodes is None:
        nodes = [n for n in nodes if n * options.gpus_per_node <= options.global_batch] or nodes[:1]
    for number_of_nodes in nodes:
        try:
            answer.cases.append(make_case(answer, answer.work, number_of_nodes))
        except NotMeasured as error:
            answer.left_out[number_of_nodes] = str(error)
    if not answer.cases:
        raise UsageError(f"--calibrate {' '.join(options.calibrate)}: {next(iter(answer.left_out.values()))}")


def check_devices(answer: Answer) -> None:
    """UsageError where communication was measured on CPU cores and compute would be that of GPUs, or the other way round;
    and where nothing tells the rate of CPU cores."""
    options, calibration = answer.options, answer.calibration
    device = answer.work.device or ("" if options.tflops else "cuda")
    if calibration and {calibration.device, device} == {"cpu", "cuda"}:
        measured, other = (PROCESSORS[one] for one in (calibration.device, device))
        device_flag = "" if options.params is not None else f" -- --device {calibration.device}"
        raise UsageError(
            f"--calibrate {' '.join(options.calibrate)}: communication was measured on {measured}, and compute would be "
            f"that of {other}: add runs of this model and batch on {measured} (ddptrain --metrics), or give "
            f"'--tflops N{device_flag}'"
        )
    if device == "cpu" and not options.tflops and not (calibration and calibration.compute.points):
        raise UsageError(
            "--device cpu: nothing tells how fast these cores compute: give --tflops, or their runs with --calibrate"
        )


def make_case(answer: Answer, work: Description, nodes: int) -> Case:
    options, gpu = answer.options, GPUS[answer.options.gpu]
    link = options.link or gpu.link
    case = Case(
        work=work,
        batch=batch_per_gpu(options, work, nodes * options.gpus_per_node),
        tflops=options.tflops or ASSUMED_MFU * gpu.peak_tflops,
        gpus_per_node=options.gpus_per_node,
        nodes=nodes,
        grad_accum=options.grad_accum or work.grad_accum,
        overlap=options.overlap == "on" and (work.device != "cpu" or nodes > 1),  # cores of one host do the adding
        intra_gbs=options.achievable * hardware.link_gbs(link),
        inter_gbs=options.achievable * hardware.network_gbs(network_of(options), adapters_of(options)),
        generation=gpu.generation,
        link="pcie" if link.startswith("pcie") else "nvlink",
        channels=options.channels or 0,
        algorithm=options.algorithm,
        protocol=options.protocol,
    )
    if answer.calibration:
        measured = answer.calibration
        case = measured.network_of(case) if options.tflops else measured.applied_to(case)
    return case if options.interference is None else dataclasses.replace(case, interference=options.interference)


def network_of(options: argparse.Namespace) -> str:
    return options.network or GPUS[options.gpu].network


def adapters_of(options: argparse.Namespace) -> int:
    return options.nics or max(1, round(GPUS[options.gpu].adapters_per_gpu * options.gpus_per_node))


def remedies(options: argparse.Namespace, answer: Answer, case: Case) -> list[str]:
    """What, each alone, would reach the target over the case's own network."""

    def smallest(name: str, most: int) -> str:
        for factor in (2**i for i in range(1, most)):
            value = getattr(case, name) * factor
            if predict(dataclasses.replace(case, **{name: value})).efficiency >= options.target:
                return f"{value:g}"
        return ""

    found = []
    if batch := smallest("batch", 13):
        found.append(f"batch {batch} per GPU (ZeRO, --zero 1, makes room for it)")
    if micro_steps := smallest("grad_accum", 13):
        found.append(f"{micro_steps} micro-steps per step (--grad-accum)")
    for mib in OTHER_BUCKETS_MIB:
        work = describe_work(argparse.Namespace(**vars(options) | {"bucket_mb": mib}), answer)
        if predict(dataclasses.replace(case, work=work)).efficiency >= options.target:
            found.append(f"buckets of {mib:g} MiB (--bucket-mb)")
            break
    return found


def recipes() -> list[str]:
    """Without earlier names, which are links."""
    return sorted(path.stem for path in (ROOT / "configs").glob("*.toml") if not path.is_symlink())


def describe_work(options: argparse.Namespace, answer: Answer) -> Description:
    """What ddptrain says of the model that is asked for, on GPUs and as the runs of a calibration trained it; or one of
    the size of --params."""
    if options.params is not None:
        sizes = {"bucket_bytes": (options.bucket_mb, 2.0**20), "last_bucket_bytes": (options.last_bucket_kb, 2.0**10)}
        given = {name: value * unit for name, (value, unit) in sizes.items() if value is not None}
        if options.gradients:
            given["gradient_dtype"] = options.gradients
        return language_model(options.params, options.seq or 1024, recompute=options.recompute, **given)
    flags = flags_of_work(options)
    program = program_folder(options.bin) / "ddptrain"
    work = describe(program, flags, options.ddptrain_flags)
    as_run = answer.calibration.flags_of(work) if answer.calibration else {}
    if options.gradients is not None:
        as_run.pop("comm-dtype", None)
    return describe(program, flags | as_run, options.ddptrain_flags) if as_run else work


def flags_of_work(options: argparse.Namespace) -> dict[str, Any]:
    if (ROOT / "configs" / f"{options.model}.toml").exists():
        flags = {"config": f"configs/{options.model}.toml"}
    else:
        flags = {"config" if options.model.endswith(".toml") else "model": options.model}
    flags |= {"device": "cuda", "data": "synthetic"}
    for flag, value in (("seq", options.seq), ("comm-dtype", options.gradients),
                        ("recompute", "block" if options.recompute else None),
                        ("bucket-mb", options.bucket_mb), ("last-bucket-kb", options.last_bucket_kb)):  # fmt: skip
        flags |= {flag: value} if value is not None else {}
    return flags


def memory_of(options: argparse.Namespace, answer: Answer) -> MemoryFit | None:
    """Of a GPU, and the first case's batch. Data are those of the flags, or synthetic ones for a step of this batch."""
    if options.params is not None or not answer.cases or answer.work.device == "cpu":
        return None
    batch = max(round(answer.cases[0].batch), 1)
    flags = flags_of_work(options)
    program = program_folder(options.bin) / "ddptrain"

    def kept(**others: Any) -> float:
        try:
            return describe(program, flags | {"grad-accum": 1} | others, options.ddptrain_flags).memory_bytes
        except NotDescribed:  # as where the data have fewer samples
            return math.inf

    fit = memory_fit(kept, batch, options.memory or MEMORY_GB[options.gpu], answer.work.units_per_sample > 1)
    return fit if 0.0 < fit.kept_gb < math.inf else None


def batch_per_gpu(options: argparse.Namespace, work: Description, gpus: int) -> float:
    if options.global_batch is None:
        return options.batch or work.batch
    if options.global_batch < gpus:
        raise UsageError(f"--global-batch {options.global_batch}: fewer samples than the {gpus} GPUs")
    return options.global_batch / gpus


# --- files ----------------------------------------------------------------------------------------------------------


def document(answer: Answer) -> dict[str, Any]:
    rule = rule_of_thumb(answer.cases[0])
    result: dict[str, Any] = {
        "case": dataclasses.asdict(answer.cases[0]),
        "rule_of_thumb": dataclasses.asdict(rule),
        "links": [
            {"link": name, "bandwidth_gbs": gbs, "seconds": rule.seconds_at(gbs)} for name, gbs in all_links().items()
        ],
        "predictions": [dataclasses.asdict(p) for p in answer.predictions],
        "memory": dataclasses.asdict(answer.memory) | {"fits": answer.memory.fits} if answer.memory else None,
        "left_out": [{"nodes": nodes, "reason": reason} for nodes, reason in answer.left_out.items()],
    }
    if answer.options.target is not None:
        rows = zip(answer.cases, answer.needed_gbs, answer.remedies, strict=True)
        result["target"] = {
            "efficiency": answer.options.target,
            "needed_gbs": [
                {"nodes": c.nodes, "gpus": c.gpus, "achieved_gbs": needed, "would_be_enough": would}
                for c, needed, would in rows
            ],
        }
    if answer.calibration is not None:
        result["calibration"] = dataclasses.asdict(answer.calibration)
        result["compared"] = [dataclasses.asdict(c) for c in answer.compared]
    return result


def write_json(options: argparse.Namespace, answer: Answer) -> None:
    text = json.dumps(document(answer), indent=1) + "\n"
    if options.json == "-":
        sys.stdout.write(text)
        return
    try:
        write_atomically(pathlib.Path(options.json), text)
    except OSError as error:
        raise UsageError(f"--json {options.json}: cannot be written: {error.strerror}") from error


def other_network(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """What of a case another network changes; what was measured on this one does not hold there."""
    return {"inter_gbs": options.achievable * hardware.network_gbs(name, adapters_of(options)), "inter_fit": None}


def draw(path: str, options: argparse.Namespace, cases: list[Case]) -> None:
    """Efficiency over GPUs: this network, and the others by their names with as many adapters."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["text.parse_math"] = False  # of names of models
    from matplotlib import pyplot

    cases = sorted(cases, key=lambda case: case.gpus)
    name = cases[0].work.model if options.params is not None else pathlib.Path(options.model).stem
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for network in dict.fromkeys((*NETWORKS_GBIT, network_of(options))):
        chosen = network == network_of(options)
        changes = {} if chosen else other_network(options, network)
        curve = [predict(dataclasses.replace(case, **changes)) for case in cases]
        adapters = f"{adapters_of(options)} x {network}{'' if network in NETWORKS_GBIT else ' Gbit/s'}"
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
