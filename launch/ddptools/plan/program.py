"""ddpplan: what a step will take, on how many GPUs, over which network."""

import argparse
import dataclasses
import difflib
import json
import math
import pathlib
import sys
from typing import Any

from ddptools.common.arguments import Parser, number, path, size, whole
from ddptools.common.errors import UsageError
from ddptools.common.files import unread_text, write_atomically
from ddptools.common.outputs import PLAN, Input, Output, check_outputs
from ddptools.common.programs import ROOT, flag_arguments, program_folder
from ddptools.common.table import to_text
from ddptools.plan import hardware
from ddptools.plan.calibration import Calibration, calibrate, check_one_machine, load_records
from ddptools.plan.groups import BYTES, Groups
from ddptools.plan.hardware import GPUS, LINKS_GBS, NETWORKS_GBIT
from ddptools.plan.mesh import Mesh, Meshes, meshes_of, predict_mesh
from ddptools.plan.measured import NotMeasured, warning_of
from ddptools.plan.out_of_sample import out_of_sample, out_of_sample_table
from ddptools.plan.prediction import Case, needed_gbs, predict
from ddptools.plan.text import (
    Answer,
    Memory,
    Planned,
    all_links,
    bytes_to_move,
    exchanges_of,
    gpu_text,
    leaves_out,
    limits_text,
    text_of,
)
from ddptools.results.description import Description, NotDescribed, complete, describe, language_model

DEFAULT_GPU = "h200"
ASSUMED_MFU = 0.5  # of the peak, where nothing better is known
MOST_GPUS = 1_000_000
SYNTHETIC_SIZE = 100_000  # images or tokens: enough for a sample, and quick to make
STANDARD_OUTPUT = pathlib.Path("-")
PROCESSORS = {"cpu": "CPU cores", "cuda": "GPUs"}
SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    if options.json != STANDARD_OUTPUT:
        read = [Input("--calibrate", file) for file in options.calibrate or []]
        read += [Input("--model", pathlib.Path(options.model))]
        check_outputs([Output("--json", options.json, PLAN)], read, options.force)
    found = [(file, record) for file in options.calibrate or [] for record in records_of(file)]
    check_one_machine(found)
    records = [record for _, record in found]
    complete(records, program_folder(options.bin) / "ddptrain")
    if warning := warning_of(records):
        print(f"ddpplan: {warning}", file=sys.stderr)
    if options.fit_ranks is not None:
        print(to_text(out_of_sample_table(out_of_sample(records, options.fit_ranks), options.fit_ranks)), end="")
        return 0
    if options.mesh is not None:
        meshes = plan_meshes(options, records)
        told = meshes.document() | {"leaves_out": leaves_out(meshes.cases)}
        gpu = "" if meshes.device == "cpu" else f"GPU: {gpu_text(options)}\n"
        show(options, told, gpu + to_text(meshes.table()) + limits_text(meshes.cases))
        return 0
    answer = make_answer(options, records)
    show(options, document(answer), text_of(answer))
    return 0


def records_of(file: pathlib.Path) -> list[dict[str, Any]]:
    """Says which lines of the file it leaves out."""
    bad_lines: list[int] = []
    records = load_records(file, bad_lines)
    if bad_lines and records:
        print(f"ddpplan: {file}: {unread_text(bad_lines)}", file=sys.stderr)
    return records


def show(options: argparse.Namespace, told: dict[str, Any], words: str) -> None:
    text = json.dumps(told, indent=1) + "\n"
    if options.json not in (None, STANDARD_OUTPUT):
        write_atomically(options.json, text)
    sys.stdout.write(text if options.json == STANDARD_OUTPUT else words)


# --- flags ----------------------------------------------------------------------------------------------------------


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="ddpplan",
        usage="ddpplan [flags] [-- flags of ddptrain]",
        description="Predicts step time and scaling efficiency of training.",
    )
    add_work(parser.add_argument_group("work"))
    add_machine(parser.add_argument_group("machine").add_argument)
    add_groups(parser.add_argument_group("groups that share a log (ddptrain --outer)").add_argument)
    add = parser.add_argument_group("output").add_argument
    add("--target", type=number(0.01, 0.999), metavar="E", help="also print the network that reaches this efficiency")
    add("--json", type=path, nargs="?", const=STANDARD_OUTPUT, metavar="FILE",
        help="write JSON to FILE, or print it instead of the text")  # fmt: skip
    add("--force", action="store_true", help="overwrite a FILE that no ddpplan wrote")
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:end])
    options.ddptrain_flags = arguments[end + 1 :]
    if options.fit_ranks is not None and not options.calibrate:
        raise UsageError("--fit-ranks: give the runs with --calibrate")
    if options.mesh is not None and (options.params is not None or options.global_batch is not None):
        raise UsageError("--mesh: it takes a --model of ddptrain, and its --batch")
    check_modes(options)
    options.groups = groups_of(options)
    options.is_gpu_given = options.gpu is not None
    options.gpu = options.gpu or DEFAULT_GPU
    if options.ddptrain_flags and options.params is not None:
        raise UsageError("--params: a model of which only the size is known takes no flags of ddptrain")
    return options


def check_modes(options: argparse.Namespace) -> None:
    """UsageError for a flag that a mode would ignore."""
    if options.outer_groups is not None and (options.fit_ranks is not None or options.mesh is not None):
        mode = "--mesh" if options.mesh is not None else "--fit-ranks"
        raise UsageError(f"--outer-groups: it is about data-parallel groups: leave it or {mode} out")
    others = {"--mesh": options.mesh, "--nodes": options.nodes, "--target": options.target, "--json": options.json}
    given = [flag for flag, value in others.items() if value is not None]
    if options.fit_ranks is not None and given:
        raise UsageError(f"--fit-ranks: it compares predictions with measured runs: leave {', '.join(given)} out")
    if options.mesh is not None and options.nodes is not None:
        raise UsageError(f"--nodes: --mesh {options.mesh} is the number of GPUs, on nodes of --gpus-per-node: leave --nodes out")
    if options.mesh is not None and options.target is not None:
        raise UsageError("--target: it asks for the network of a data-parallel run: leave it or --mesh out")


def recipes() -> list[str]:
    return sorted(path.stem for path in (ROOT / "configs").glob("*.toml") if not path.is_symlink())  # earlier names


def add_work(work: Any) -> None:
    add = work.add_mutually_exclusive_group().add_argument
    add("--model", default="gpt2-124m", metavar="NAME",
        help=f"recipe ({', '.join(recipes())}), file of a recipe, or model of ddptrain (gpt2-124m)")  # fmt: skip
    add("--params", type=parameters, metavar="N", help="number of parameters of a language model, such as 2B")
    work.add_argument("--seq", type=whole(10**9), metavar="N", help="tokens per sample (the model's; 1024)")
    add = work.add_mutually_exclusive_group().add_argument
    add("--batch", type=whole(10**9), metavar="N", help="samples per GPU and micro-step (the recipe's; 16)")
    add("--global-batch", type=whole(10**12), metavar="N", help="samples per micro-step on all GPUs")
    add = work.add_argument
    add("--grad-accum", type=whole(10**6), metavar="N", help="micro-steps per step (the recipe's; 1)")
    add("--gradients", choices=("bf16", "fp32"), help="format of gradients (the recipe's; bf16)")
    add("--recompute", action="store_true", help="repeat the forward pass during backward")
    add("--bucket-mb", type=size(2**20, 1e-6, 1e6), metavar="MIB",
        help="largest gradient bucket, or with a unit, such as 512K (25)")  # fmt: skip
    add("--last-bucket-kb", type=size(2**10, 0, 1e9), metavar="KIB",
        help="size of the last bucket, or with a unit, such as 1M (256)")  # fmt: skip
    add("--bin", type=path, metavar="DIR", help="folder of ddptrain (the folder of ddpplan, else build/bin)")
    add("--overlap", choices=("on", "off"), default="on", help="all-reduce during backward, or after it (on)")


def add_machine(add: Any) -> None:
    add("--gpu", choices=GPUS, help=f"GPU type ({DEFAULT_GPU})")
    add("--memory", type=size(1e9, 0.1, 1e6), metavar="GB",
        help="memory of a GPU, or with a unit, such as 80GB (the data sheet's)")  # fmt: skip
    add("--tflops", type=number(1e-6, 1e6), metavar="N",
        help=f"TFLOP/s that a GPU achieves ({100 * ASSUMED_MFU:.0f}%% of its peak)")  # fmt: skip
    add("--gpus-per-node", type=whole(1024), default=8, metavar="N", help="GPUs, or ranks on CPUs, per node (8)")
    add("--nodes", type=node_counts, metavar="N,...",
        help="numbers of nodes, with a row each (powers of two up to 4096)")  # fmt: skip
    add("--mesh", type=whole(4096), metavar="N",
        help="compare all meshes of N GPUs (data, --zero, --pp, --tp), and propose the fastest that fits the memory")  # fmt: skip
    add("--link", help=f"link within a node: {', '.join(LINKS_GBS)}, or GB/s one way (the GPU's; none for MPI)")
    add("--network", help=f"network per adapter (efa2: per node): {', '.join(NETWORKS_GBIT)}, or Gbit/s "
        "(ndr for h100, h200 and b200; hdr for a100; edr for v100; none for CPUs)")  # fmt: skip
    add("--nics", type=whole(1024), metavar="N",
        help="network adapters per node (one per GPU; v100: one per two GPUs; CPUs: one)")  # fmt: skip
    add("--achievable", type=number(0.01, 1), default=0.8, metavar="F",
        help="fraction of advertised rates that is achieved (0.8; 0.8 to 0.9 are usual)")  # fmt: skip
    add("--interference", type=number(0, 10), metavar="F",
        help="seconds that each second of communication adds to compute (0)")  # fmt: skip
    add("--calibrate", type=path, nargs="+", metavar="RESULTS",
        help="take rates from these results of ddpsweep, ddptrain --metrics or ddpbench --json")  # fmt: skip
    add("--fit-ranks", type=whole(MOST_GPUS, 2), metavar="N",
        help="with --calibrate: take rates from runs of up to N ranks, and predict the other runs")  # fmt: skip


def add_groups(add: Any) -> None:
    add("--outer-groups", type=whole(1024), metavar="N", help="also print what so many groups exchange, each of the GPUs above")
    add("--outer-steps", type=whole(10**9), metavar="N", help="steps between two exchanges (50)")
    add("--outer-delay", type=whole(10**9, 0), metavar="N", help="steps of training while a difference travels (0)")
    add("--outer-dtype", choices=tuple(BYTES), help="number format of differences (int8)")
    add("--wire", type=number(1e-6, 1e6), metavar="GBIT",
        help="Gbit/s of the connection of each group and of the server (1)")  # fmt: skip


def groups_of(options: argparse.Namespace) -> Groups | None:
    """UsageError for flags of groups without --outer-groups, and for a delay that ddptrain refuses."""
    values = {"--outer-steps": options.outer_steps, "--outer-delay": options.outer_delay,
              "--outer-dtype": options.outer_dtype, "--wire": options.wire}  # fmt: skip
    given = [flag for flag, value in values.items() if value is not None]
    if options.outer_groups is None:
        if given:
            raise UsageError(f"{given[0]}: it is about groups that share a log: add --outer-groups N")
        return None
    steps, delay = options.outer_steps or 50, options.outer_delay or 0
    if delay >= steps:
        raise UsageError(f"--outer-delay {delay}: give less than --outer-steps {steps}")
    return Groups(options.outer_groups, steps, delay, options.outer_dtype or "int8", options.wire or 1.0)


def parameters(text: str) -> float:
    factor = SUFFIXES.get(text[-1:].upper(), 1.0)
    try:
        value = float(text[:-1] if factor > 1.0 else text) * factor
    except ValueError:
        value = math.nan
    if not 1.0 <= value <= 1e15:
        raise argparse.ArgumentTypeError(f"{text}: give a number of parameters, such as 124M, 2B or 2e9")
    return value


def node_counts(text: str) -> list[int]:
    return [whole(MOST_GPUS)(part) for part in text.split(",")]


# --- what is predicted ----------------------------------------------------------------------------------------------


def make_answer(options: argparse.Namespace, records: list[dict[str, Any]]) -> Answer:
    calibration = calibrate(records) if options.calibrate else None
    answer = Answer(options, calibration, describe_work(options, calibration))
    check_devices(answer)
    for nodes in numbers_of_nodes(options):
        try:
            case = make_case(answer, nodes)
            check_rates(options, case)
            answer.planned.append(Planned(case, predict(case)))
        except NotMeasured as error:
            answer.left_out[nodes] = str(error)
    if not answer.planned:
        reason = next(iter(answer.left_out.values()))
        raise UsageError(f"{calibrate_flag(options)}: {reason}" if options.calibrate else reason)
    answer.memory = memory_of(answer)
    for planned in answer.planned if options.target is not None else []:
        planned.needed_gbs = needed_gbs(planned.case, options.target)
    return answer


def plan_meshes(options: argparse.Namespace, records: list[dict[str, Any]]) -> Meshes:
    """All meshes that ddptrain takes."""
    options.gpus_per_node = min(options.gpus_per_node, options.mesh)
    nodes, rest = divmod(options.mesh, options.gpus_per_node)
    if rest:
        raise UsageError(f"--mesh {options.mesh}: give a multiple of --gpus-per-node {options.gpus_per_node}")
    calibration = calibrate(records) if options.calibrate else None
    answer = Answer(options, calibration, describe_work(options, calibration))
    check_devices(answer)
    micro_steps, batch = options.grad_accum or answer.work.grad_accum, int(options.batch or answer.work.batch)
    there_gb = options.memory or (math.inf if answer.work.device == "cpu" else GPUS[options.gpu].memory_gb)
    found = Meshes(there_gb, device=answer.work.device)
    refused: dict[tuple[int, int], str] = {}  # reasons, by stages and tensor ranks
    for mesh in meshes_of(options.mesh):
        too_many_stages = refused.get((mesh.stages, 1), "").startswith("--pp")
        too_many_slices = refused.get((1, mesh.tensor), "").startswith("--tp")
        if too_many_stages or too_many_slices or (mesh.stages, mesh.tensor) in refused:
            continue
        flags = mesh.flags | {"ranks": options.mesh, "batch": batch, "grad-accum": micro_steps * mesh.ranks_per_replica}
        try:
            answer.work = describe_work(options, calibration, flags)
            case = make_case(answer, nodes)
            check_rates(options, case, mesh)
            found.cases.append(case)
            found.planned.append(predict_mesh(case, mesh))
        except NotDescribed as error:
            refused[mesh.stages, mesh.tensor] = str(error)
    if not found.planned:
        raise UsageError(f"--mesh {options.mesh}: {next(iter(refused.values()))}")
    return found


def calibrate_flag(options: argparse.Namespace) -> str:
    return " ".join(["--calibrate", *map(str, options.calibrate)])


def numbers_of_nodes(options: argparse.Namespace) -> list[int]:
    nodes = options.nodes or [2**i for i in range(13)]
    if max(nodes) * options.gpus_per_node > MOST_GPUS:
        raise UsageError(f"--nodes {max(nodes)}: more than {MOST_GPUS} ranks in all")
    if options.global_batch and options.nodes is None:
        nodes = [n for n in nodes if n * options.gpus_per_node <= options.global_batch] or nodes[:1]
    return nodes


def check_devices(answer: Answer) -> None:
    """UsageError where communication was measured on CPU cores and compute would be that of GPUs, or the other way
    round; and where nothing tells the rate of CPU cores."""
    options, calibration = answer.options, answer.calibration
    device = answer.work.device or ("" if options.tflops else "cuda")
    if calibration and {calibration.device, device} == {"cpu", "cuda"}:
        measured, other = (PROCESSORS[one] for one in (calibration.device, device))
        device_flag = "" if options.params is not None else f" -- --device {calibration.device}"
        raise UsageError(
            f"{calibrate_flag(options)}: communication was measured on {measured}, and compute would be that of "
            f"{other}: add runs of this model and batch on {measured} (ddptrain --metrics), or give "
            f"'--tflops N{device_flag}'"
        )
    if device == "cpu" and not options.tflops and not (calibration and calibration.runs):
        raise UsageError(
            "--device cpu: nothing tells how fast these cores compute: give --tflops, or their runs with --calibrate"
        )


def check_rates(options: argparse.Namespace, case: Case, mesh: Mesh | None = None) -> None:
    """UsageError if nothing tells the rate of a network that the case uses: NotMeasured, if it is that within a node."""
    if case.nodes > 1 and case.work.device == "cpu" and case.inter_fit is None and options.network is None:
        runs = "runs over several nodes"
        raise UsageError(f"--network: CPUs have no default: give the Gbit/s between nodes, or --calibrate with {runs}")
    uses_link = case.nodes == 1 or (mesh is not None and mesh.ranks_per_replica > 1)
    if case.uses_mpi and uses_link and case.gpus_per_node > 1 and case.intra_fit is None and options.link is None:
        runs = "runs of several ranks on a node"
        raise NotMeasured(f"MPI has no default rate within a node: give --link, or --calibrate with {runs}")


def make_case(answer: Answer, nodes: int) -> Case:
    """NotMeasured where the calibration has no run of this batch."""
    options, work, gpu = answer.options, answer.work, GPUS[answer.options.gpu]
    link = options.link or gpu.link
    usual_adapters = 1 if work.device == "cpu" else max(1, round(gpu.adapters_per_gpu * options.gpus_per_node))
    adapters = options.nics or usual_adapters
    case = Case(
        work=work,
        batch=batch_per_gpu(options, work, nodes * options.gpus_per_node),
        tflops=options.tflops or ASSUMED_MFU * gpu.peak_tflops,
        gpus_per_node=options.gpus_per_node,
        nodes=nodes,
        grad_accum=options.grad_accum or work.grad_accum,
        overlap=options.overlap == "on" and (work.device != "cpu" or nodes > 1),  # cores of one host do the adding
        intra_gbs=options.achievable * hardware.link_gbs(link),
        inter_gbs=options.achievable * hardware.network_gbs(options.network or gpu.network, adapters),
        generation=gpu.generation,
        link="pcie" if link.startswith("pcie") else "nvlink",
    )
    if answer.calibration:
        measured = answer.calibration
        case = measured.network_of(case) if options.tflops else measured.applied_to(case)
    return case if options.interference is None else dataclasses.replace(case, interference=options.interference)


def batch_per_gpu(options: argparse.Namespace, work: Description, gpus: int) -> float:
    if options.global_batch is None:
        return options.batch or work.batch
    if options.global_batch < gpus:
        raise UsageError(f"--global-batch {options.global_batch}: fewer samples than the {gpus} ranks")
    return options.global_batch / gpus


def describe_work(
    options: argparse.Namespace, calibration: Calibration | None, mesh: dict[str, int] | None = None
) -> Description:
    """What ddptrain says of the model that is asked for, on GPUs and as the runs of a calibration trained it, with the
    flags of a mesh; or one of the size of --params."""
    if options.params is not None:
        sizes = {"bucket_bytes": (options.bucket_mb, 2.0**20), "last_bucket_bytes": (options.last_bucket_kb, 2.0**10)}
        given = {name: value * unit for name, (value, unit) in sizes.items() if value is not None}
        if options.gradients:
            given["gradient_dtype"] = options.gradients
        work = language_model(options.params, options.seq or 1024, recompute=options.recompute, **given)
        on_cores = calibration is not None and calibration.device == "cpu" and options.tflops
        return dataclasses.replace(work, device="cpu") if on_cores else work
    flags, more = flags_of_work(options), [*options.ddptrain_flags, *flag_arguments(mesh or {})]
    program = program_folder(options.bin) / "ddptrain"
    try:
        work = describe(program, flags, more)
    except NotDescribed as error:
        if "there is no such model" not in str(error) or pathlib.Path(options.model).exists():
            raise
        near = difflib.get_close_matches(options.model, recipes(), 1)
        advice = f". Did you mean {near[0]}?" if near else ""
        raise NotDescribed(f"{error}; recipes: {', '.join(recipes())}{advice}") from error
    as_run = calibration.flags_of(work) if calibration else {}
    if options.gradients is not None:
        as_run.pop("comm-dtype", None)
    return describe(program, flags | as_run, more) if as_run else work


def flags_of_work(options: argparse.Namespace) -> dict[str, Any]:
    if (ROOT / "configs" / f"{options.model}.toml").exists():
        flags = {"config": f"configs/{options.model}.toml"}
    else:
        flags = {"config" if options.model.endswith(".toml") else "model": options.model}
    # --describe does not need all samples of a step.
    data = f"synthetic:{max(SYNTHETIC_SIZE, 32 * (options.seq or 1))}"
    flags |= {"device": "cuda", "data": data, "seq": options.seq, "comm-dtype": options.gradients}
    flags |= {"recompute": "block" if options.recompute else None}
    flags |= {"bucket-mb": options.bucket_mb, "last-bucket-kb": options.last_bucket_kb}
    return {name: value for name, value in flags.items() if value is not None}


def memory_of(answer: Answer) -> Memory | None:
    """Of a GPU, and the first case's batch. Data are those of the flags, or synthetic ones for a step of this batch."""
    options = answer.options
    if options.params is not None or answer.work.device == "cpu":
        return None
    batch = max(round(answer.planned[0].case.batch), 1)
    flags = flags_of_work(options) | {"grad-accum": 1, "batch": batch, "ranks": 1}
    try:
        work = describe(program_folder(options.bin) / "ddptrain", flags, options.ddptrain_flags)
    except NotDescribed:  # as where the data have fewer samples
        return None
    there_gb = options.memory or GPUS[options.gpu].memory_gb
    return Memory(1e-9 * work.memory_bytes, there_gb, 1e-9 * work.host_bytes) if work.memory_bytes else None


# --- files ----------------------------------------------------------------------------------------------------------


def document(answer: Answer) -> dict[str, Any]:
    first, target = answer.planned[0].case, answer.options.target
    moved = bytes_to_move(first)
    result: dict[str, Any] = {
        "case": dataclasses.asdict(first),
        "rule_of_thumb": {
            "bytes_to_move": moved,
            "exact_bytes_to_move": first.bytes_per_gpu,
            "tflop_per_gpu": first.step_flop / 1e12,
            "compute_seconds": first.alone_seconds,
        },
        "links": [
            {"link": name, "bandwidth_gbs": gbs, "seconds": moved / (1e9 * gbs)} for name, gbs in all_links().items()
        ],
        "predictions": [dataclasses.asdict(planned.prediction) for planned in answer.planned],
        "memory": dataclasses.asdict(answer.memory) | {"fits": answer.memory.fits} if answer.memory else None,
        "leaves_out": leaves_out([planned.case for planned in answer.planned]),
        "left_out": [{"nodes": nodes, "reason": reason} for nodes, reason in answer.left_out.items()],
    }
    if answer.options.groups is not None:
        result["groups"] = dataclasses.asdict(answer.options.groups) | {
            "exchanges": [dataclasses.asdict(each) for each in exchanges_of(answer)]
        }
    if target is not None:
        needed = [
            {"nodes": p.case.nodes, "gpus": p.case.gpus, "achieved_gbs": p.needed_gbs} for p in answer.planned
        ]
        result["target"] = {"efficiency": target, "needed_gbs": needed}
    if answer.calibration is not None:
        result["calibration"] = dataclasses.asdict(answer.calibration)
    return result
