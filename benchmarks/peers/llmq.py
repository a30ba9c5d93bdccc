#!/usr/bin/env python3
"""Trains a Qwen2.5 from random weights with llmq (https://github.com/IST-DASLab/llmq) on random tokens, for comparison.

Weights, moments and products in bf16, CUDA graphs, one GPU. PROGRAM is llmq's `train`. Prints one JSON line, as the
PyTorch programs do.

  llmq.py build/train --model Qwen2.5-0.5B --batch 32 --accumulate 4 --seconds 30
"""

import argparse
import array
import json
import pathlib
import random
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

SEQUENCE = 1024
VOCABULARY = 151936
WARM_UP = 3  # steps before the first that counts
TOKENS = 4_000_000


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="PROGRAM")
    parser.add_argument("--model", required=True, help="as llmq names it: Qwen2.5-0.5B")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--accumulate", type=int, default=1, help="batches per update")
    parser.add_argument("--precision", choices=("bf16", "e4m3"), default="bf16", help="of matrix products")
    parser.add_argument("--seconds", type=float, default=10, help="of the steps that count")
    return parser.parse_args(argv)


def write_tokens(file, count):
    """In llmq's format: a header of 1 KiB, then ids of 32 bits."""
    ids = array.array("i", random.Random(1).choices(range(VOCABULARY), k=count))
    header = b"BIN.TOK\n" + struct.pack("<5i", 2, 4, count, VOCABULARY, 0)
    file.write_bytes(header.ljust(1024, b"\0") + ids.tobytes())


def command_of(args, folder):
    return [args.program, "--from-scratch", f"--model={args.model}", f"--train-file={folder / 'train.bin'}",
            f"--eval-file={folder / 'eval.bin'}", f"--seq-len={SEQUENCE}", f"--batch-size={args.batch}",
            f"--grad-accumulation={args.accumulate}", "--model-dtype=bf16", "--opt-m-dtype=bf16", "--opt-v-dtype=bf16",
            f"--matmul-dtype={args.precision}", "--gpus=1", "--use-cuda-graphs", "--steps=1000000",
            "--eval-every-n-steps=0", "--eval-num-steps=1", "--ckpt-interval=0", f"--log-file={folder / 'log.json'}",
            f"--out-dir={folder / 'out'}", f"--checkpoint-dir={folder / 'checkpoints'}"]  # fmt: skip


def steps_in(log):
    """Of llmq's log: tokens and seconds of each step that counts."""
    found = []
    for line in log.read_text(errors="replace").splitlines() if log.exists() else []:
        try:
            entry = json.loads(line.strip().rstrip(","))
        except ValueError:  # a bracket of the list, or a line that is being written
            continue
        if isinstance(entry, dict) and entry.get("log") == "step":
            found.append((entry["step_tokens"], entry["duration_ms"] / 1000))
    return found[WARM_UP:]


def measure(args, folder):
    write_tokens(folder / "train.bin", TOKENS)
    write_tokens(folder / "eval.bin", 64 * args.batch * SEQUENCE)
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(command_of(args, folder), cwd=folder, stdout=said, stderr=said)
    measured_from = None
    while process.poll() is None and sum(seconds for _, seconds in steps_in(folder / "log.json")) < args.seconds:
        if measured_from is None and steps_in(folder / "log.json"):
            measured_from = time.time()
        time.sleep(0.05)
    until = time.time()
    if process.poll() is not None:
        last = ((folder / "said").read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
        sys.exit(f"LlmqError: it ended by itself with code {process.returncode}: {last}")
    process.send_signal(signal.SIGKILL)  # it has no other end before its last step
    process.wait()
    steps = steps_in(folder / "log.json")
    rates = [tokens / seconds for tokens, seconds in steps if seconds > 0]
    return {"peer": "llmq", "tokens_per_second": statistics.median(rates), "tokens_per_second_min": min(rates),
            "tokens_per_second_max": max(rates), "windows": len(rates), "measured_seconds": sum(s for _, s in steps),
            "measured_from": measured_from or until, "measured_until": until}  # fmt: skip


if __name__ == "__main__":
    arguments = parse_arguments(sys.argv[1:])
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(measure(arguments, pathlib.Path(name))), flush=True)
