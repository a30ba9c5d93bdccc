#!/usr/bin/env python3
"""Measures ddptrain and a PyTorch program side by side: on the same GPUs, in alternating runs.

  benchmarks/compare.py cnn --gpus 1 8 --batch 512 8192 --repeats 3
  benchmarks/compare.py gpt --config configs/gpt2-124m.toml --gpus 1 8 --batch 64

Writes benchmarks/results/<model>-<device>-<date>.json (every run) and .md (the table), and prints the table.
--device cpu measures two ranks on the CPU, in fp32 (cnn only); --skip-peer measures ddptrain alone.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
DDPTRAIN, PYTORCH = "ddptrain", "PyTorch DDP"
TIMEOUT = 900  # seconds for one run


class RunFailed(Exception):
    pass


class Cnn:
    unit = "images"
    peer = "benchmarks/peers/torch_ddp_cnn.py"
    peer_mode = "compile-graph"

    def __init__(self, args):
        self.args = args
        self.name = "cnn"

    def data(self, ranks, batch):
        """Enough samples for an epoch of 16 steps, at least 131,072."""
        return f"synthetic:{max(131072, 16 * batch * ranks)}"

    def ddptrain(self, ranks, batch):
        return ["--model", "cnn", "--data", self.data(ranks, batch)]

    def torch(self, ranks, batch):
        return ["--data", self.data(ranks, batch)]


class Gpt:
    unit = "tokens"
    peer = "benchmarks/peers/torch_ddp_gpt.py"
    peer_mode = "compile"
    shape_flags = ("layers", "width", "heads", "ff", "seq", "vocab")

    def __init__(self, args):
        if args.config is None:
            raise SystemExit("compare.py gpt needs --config, such as configs/gpt2-124m.toml")
        self.args = args
        self.name = pathlib.Path(args.config).stem
        self.config = tomllib.loads(pathlib.Path(ROOT, args.config).read_text())

    def ddptrain(self, ranks, batch):
        count = max(16 * batch * ranks, 1024) * (self.config["seq"] + 1)
        return ["--config", self.args.config, "--data", f"synthetic:{count}:{self.config['vocab']}",
                "--eval-samples", str(batch * ranks)]

    def torch(self, ranks, batch):
        return [word for flag in self.shape_flags for word in (f"--{flag}", str(self.config[flag]))]


def ddptrain_command(args, ranks, batch, metrics):
    device = ["--device", "cpu", "--precision", "fp32"] if args.device == "cpu" else ["--device", "cuda"]
    return ["mpirun", "-np", str(ranks), "--bind-to", "none", args.ddptrain, *args.work.ddptrain(ranks, batch), *device,
            "--batch", str(batch), "--steps", str(args.windows * args.steps), "--log-every", str(args.steps),
            "--baseline", "on", "--metrics", metrics, *shlex.split(args.ddptrain_args)]


def peer_command(args, ranks, batch):
    start = [sys.executable] if ranks == 1 else [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    device = ["--device", "cpu", "--precision", "fp32"] if args.device == "cpu" else []
    mode = "eager" if args.device == "cpu" else args.peer_mode or args.work.peer_mode
    return [*start, args.work.peer, "--mode", mode, *device, "--batch", str(batch), *args.work.torch(ranks, batch),
            "--windows", str(args.windows), "--steps", str(args.steps), *shlex.split(args.peer_args)]


def execute(command, environment):
    print("+", shlex.join(command), file=sys.stderr, flush=True)
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunFailed(str(error)) from error
    if done.returncode != 0:
        raise RunFailed(f"exit code {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def last_json(text):
    return json.loads([line for line in text.splitlines() if line.startswith("{")][-1])


def run_ddptrain(args, ranks, batch, environment):
    with tempfile.TemporaryDirectory() as folder:
        metrics = str(pathlib.Path(folder, "metrics.jsonl"))
        execute(ddptrain_command(args, ranks, batch, metrics), environment)
        summary = last_json(pathlib.Path(metrics).read_text())
    if summary.get("event") != "summary":
        raise RunFailed("the metrics file does not end in a summary")
    return summary


def run_peer(args, ranks, batch, environment):
    return last_json(execute(peer_command(args, ranks, batch), environment))


def first_line(command):
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def describe_machine(args):
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    gpus = first_line(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])
    return {
        "cpu": cpu.group(1) if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "gpus": gpus.splitlines() if gpus else [],
        "system": platform.freedesktop_os_release()["PRETTY_NAME"],
        "ddptrain": first_line([args.ddptrain, "--version"]),
        "commit": first_line(["git", "rev-parse", "HEAD"]),
        "nccl_environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith("NCCL_")},
    }


def measure(args, environment):
    """One record per run, in the order of the runs; a failed run keeps its message."""
    programs = {DDPTRAIN: run_ddptrain}
    if not args.skip_peer:
        programs[PYTORCH] = run_peer
    records = []
    for ranks in args.gpus:
        for batch in args.batch:
            for repeat in range(args.repeats):
                for program, run in programs.items():
                    record = {"program": program, "ranks": ranks, "batch": batch, "repeat": repeat}
                    try:
                        record["result"] = run(args, ranks, batch, environment)
                    except RunFailed as error:
                        record["error"] = str(error)
                        print(f"{program}, {ranks} x {batch}: {error}", file=sys.stderr)
                    records.append(record)
    return records


def rates(args, records, program, ranks, batch):
    return [r["result"][f"{args.work.unit}_per_second"] for r in records
            if "result" in r and (r["program"], r["ranks"], r["batch"]) == (program, ranks, batch)]


def spread(values):
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})" if values else "failed"


def efficiency(args, records, program, ranks, batch):
    """For ddptrain, the efficiency that a job measures itself; for the peer, against its run on one rank."""
    if ranks == 1:
        return ""
    if program == DDPTRAIN:
        own = [r["result"]["scaling_efficiency"] for r in records
               if "result" in r and (r["program"], r["ranks"], r["batch"]) == (program, ranks, batch)]
        own = [value for value in own if value is not None]
    else:
        alone, all_ranks = (rates(args, records, program, n, batch) for n in (1, ranks))
        own = [statistics.median(all_ranks) / ranks / statistics.median(alone)] if alone and all_ranks else []
    return f"{100 * statistics.median(own):.1f}%" if own else "n/a"


def table(args, records):
    unit = args.work.unit
    lines = [f"| ranks | batch per rank | ddptrain, {unit}/s | efficiency | PyTorch DDP, {unit}/s | efficiency | ratio |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for ranks in args.gpus:
        for batch in args.batch:
            ours, theirs = (rates(args, records, program, ranks, batch) for program in (DDPTRAIN, PYTORCH))
            ratio = f"{statistics.median(ours) / statistics.median(theirs):.2f}" if ours and theirs else ""
            lines.append("| " + " | ".join([
                str(ranks), str(batch), spread(ours), efficiency(args, records, DDPTRAIN, ranks, batch),
                "not run" if args.skip_peer else spread(theirs),
                "" if args.skip_peer else efficiency(args, records, PYTORCH, ranks, batch), ratio]) + " |")
    return "\n".join(lines)


def versions(machine, records):
    lines = (machine["ddptrain"] or "ddptrain: unknown").splitlines()
    peer = next((r["result"] for r in records if r["program"] == PYTORCH and "result" in r), None)
    if peer:
        lines.append(f"PyTorch {peer['torch']}, CUDA {peer['cuda']}, cuDNN {peer['cudnn']}, NCCL {peer['nccl']}, "
                     f"mode {peer['mode']}")
    return "; ".join(lines)


def page(args, machine, records, date):
    ranks, batch = args.gpus[-1], args.batch[-1]
    gpus = machine["gpus"]
    hardware = f"{len(gpus)} x {gpus[0]}" if gpus else "no GPU"
    commands = [shlex.join(ddptrain_command(args, ranks, batch, "metrics.jsonl"))]
    if not args.skip_peer:
        commands.append(shlex.join(peer_command(args, ranks, batch)).replace(sys.executable, "python3"))
    environment = " ".join(f"{k}={v}" for k, v in machine["nccl_environment"].items()) or "none"
    return "\n".join([
        f"# {args.work.name}: ddptrain and PyTorch DDP, {date}", "",
        f"Median of {args.repeats} runs (smallest to largest); the programs alternate. A run is the median of its "
        f"windows of {args.steps} steps after warm-up. Synthetic data, "
        f"{'fp32' if args.device == 'cpu' else 'bf16'}.", "",
        table(args, records), "",
        f"- Machine: {hardware}; {machine['cores']} x {machine['cpu']}; {machine['system']}",
        f"- Versions: {versions(machine, records)}; commit {machine['commit']}",
        f"- NCCL variables: {environment}",
        f"- Failed runs: {sum('error' in r for r in records)} of {len(records)}",
        f"- Command: `{shlex.join(['benchmarks/compare.py', *sys.argv[1:]])}`. Its last runs:", "",
        "```", *commands, "```", ""])


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=("cnn", "gpt"))
    parser.add_argument("--config", help="configuration of ddptrain, for gpt; the peer uses its shape")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--gpus", type=int, nargs="+", default=[1], help="numbers of ranks")
    parser.add_argument("--batch", type=int, nargs="+", default=[512, 8192], help="batch per rank")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--windows", type=int, default=7)
    parser.add_argument("--steps", type=int, default=200, help="steps per window")
    parser.add_argument("--ddptrain", default="build/bin/ddptrain")
    parser.add_argument("--ddptrain-args", default="", help="further arguments, in one string")
    parser.add_argument("--peer-mode", help="mode of the peer (the fastest one)")
    parser.add_argument("--peer-args", default="", help="further arguments, in one string")
    parser.add_argument("--skip-peer", action="store_true")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "benchmarks/results", help="result folder")
    args = parser.parse_args()
    args.work = {"cnn": Cnn, "gpt": Gpt}[args.model](args)
    return args


def main():
    args = parse_arguments()
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    machine = describe_machine(args)
    records = measure(args, environment)
    date = datetime.date.today().isoformat()
    device = "cpu" if args.device == "cpu" else re.sub(r"[^A-Za-z0-9]+", "-", machine["gpus"][0].split(",")[0]).lower()
    args.output.mkdir(parents=True, exist_ok=True)
    stem = args.output / f"{args.work.name}-{device}-{date}"
    document = {"date": date, "command": ["benchmarks/compare.py", *sys.argv[1:]], "machine": machine, "runs": records}
    stem.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    text = page(args, machine, records, date)
    stem.with_suffix(".md").write_text(text)
    print(text)
    return 1 if any("error" in record for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
