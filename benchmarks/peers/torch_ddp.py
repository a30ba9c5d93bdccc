"""What the PyTorch DDP peers share: ways to run a step, gradients in fp32 or bf16, and the measurement.

A peer hands over a `Peer`; this module compiles it, wraps it with DistributedDataParallel (a single process runs
without it), captures a CUDA graph of the whole step where the mode asks for one, and measures.

Modes: eager; default, reduce-overhead, max-autotune and max-autotune-no-cudagraphs are those of torch.compile; "+graph"
captures the whole step, from the batch to the optimizer, in one CUDA graph of this program's.

With several ranks torch.compile is applied outside DDP, so that its buckets overlap backward, but inside where the peer
asks for it (networks of one bucket) and for reduce-overhead and max-autotune, which fail outside (pytorch/pytorch issue
140395).
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

# The watchdog must not query events while a stream is captured.
os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")

import torch
import torch.distributed as dist
from rows import MODES
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

GRAPH = "+graph"
OWN_GRAPHS = ("reduce-overhead", "max-autotune")  # of torch.compile, not of this program
DDP_WARM_UP = 11  # iterations before DDP's buckets are final and may be captured
WINDOW_SECONDS = 1.0
FEWEST_WINDOWS = 3


@dataclasses.dataclass
class Job:
    rank: int
    world_size: int
    device: torch.device

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def largest(self, value: float) -> float:
        """Of all ranks."""
        if self.world_size == 1:
            return value
        values = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return values.item()

    def synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()


@dataclasses.dataclass
class Peer:
    """A network and its data, on the device. `loss(module)` is the forward pass of the next batch through the module that
    it is given, which computes what `module` does; `new_step()` prepares the next batch outside of a graph."""

    module: nn.Module
    loss: Callable[[nn.Module], torch.Tensor]
    optimizer: Callable[[bool], torch.optim.Optimizer]  # its argument: whether it must be capturable
    new_step: Callable[[], None]
    samples_per_step: int  # of one rank, images or tokens
    units: tuple[nn.Module, ...] = ()  # that --shard gathers one by one
    clip_norm: float = 0.0  # largest norm of the gradient; 0: as it is
    compile_inside: bool = False  # of DDP


def add_arguments(parser: argparse.ArgumentParser, mode: str) -> None:
    parser.add_argument("--mode", choices=MODES, default=mode)
    parser.add_argument("--gradients", choices=("fp32", "bf16"), default="fp32",
                        help="type in which DDP sends them: bf16 by bf16_compress_hook")  # fmt: skip
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16", help="bf16: autocast, fp32 parameters")
    parser.add_argument("--shard", choices=("off", "gradients", "weights"), default="off",
                        help="FSDP (fully_shard) in place of DDP: what is kept in shards besides the optimizer; weights: "
                        "gradients, too")  # fmt: skip
    parser.add_argument("--bucket-mb", type=float, default=25)
    parser.add_argument("--warmup", type=int, default=50, help="steps before the first window")
    parser.add_argument("--seconds", type=float, default=10, help="for which the windows last together, at least")


def check_arguments(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    if args.device == "cpu" and (args.mode.endswith(GRAPH) or args.mode in OWN_GRAPHS):
        parser.error(f"--mode {args.mode} uses CUDA graphs, which need --device cuda")
    if args.shard != "off" and (args.mode.endswith(GRAPH) or args.mode in OWN_GRAPHS or args.gradients != "bf16"):
        parser.error("--shard needs --gradients bf16 and a --mode without CUDA graphs")
    if args.shard != "off" and (args.precision != "bf16" or int(os.environ.get("WORLD_SIZE", 1)) == 1):
        parser.error("--shard needs --precision bf16 and several ranks (torchrun)")
    if args.seconds < 0:
        parser.error("--seconds must not be negative")


@contextlib.contextmanager
def job(args: argparse.Namespace) -> Iterator[Job]:
    world_size, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    device = torch.device("cpu")
    if args.device == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    if world_size > 1:
        dist.init_process_group("nccl" if args.device == "cuda" else "gloo",
                                **({"device_id": device} if args.device == "cuda" else {}))  # fmt: skip
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    yield Job(rank, world_size, device)
    if world_size > 1:
        dist.destroy_process_group()


def autocast(args: argparse.Namespace) -> torch.autocast:
    return torch.autocast(args.device, dtype=torch.bfloat16, enabled=args.precision == "bf16")


class Trainer:
    """One training step as a callable, eager or as a replayed CUDA graph."""

    def __init__(self, peer: Peer, args: argparse.Namespace, job: Job) -> None:
        self.peer, self.args, self.job = peer, args, job
        self.captures = args.mode.endswith(GRAPH)
        self.inside = peer.compile_inside or args.mode in OWN_GRAPHS
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream(job.device) if job.on_gpu else None
        with self.on_stream():
            self.module = self._prepare_module()
            self.optimizer = peer.optimizer(self.captures)
            if self.captures:
                for _ in range(DDP_WARM_UP + 4):
                    self.step()
                self._capture()

    def on_stream(self) -> contextlib.AbstractContextManager[Any]:
        return torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext()

    def _prepare_module(self) -> nn.Module:
        how = self.args.mode.removesuffix(GRAPH)
        compiles = how != "eager"
        module = self.peer.module
        if self.args.shard != "off":
            return self._shard(how)
        if compiles and self.inside:
            module = torch.compile(module, mode=how)
        if self.job.world_size > 1:
            module = nn.parallel.DistributedDataParallel(
                module, device_ids=[self.job.device.index] if self.job.on_gpu else None, gradient_as_bucket_view=True,
                bucket_cap_mb=self.args.bucket_mb, static_graph=self.captures and not self.inside)  # fmt: skip
            if self.args.gradients == "bf16":
                module.register_comm_hook(None, default_hooks.bf16_compress_hook)
        return torch.compile(module, mode=how) if compiles and not self.inside else module

    def _shard(self, how: str) -> nn.Module:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        sharded = functools.partial(fully_shard, mp_policy=policy, reshard_after_forward=self.args.shard == "weights")
        for unit in self.peer.units:
            if how != "eager":
                unit.compile(mode=how)
            sharded(unit)
        sharded(self.peer.module)
        return self.peer.module

    def _work(self) -> torch.Tensor:
        if self.args.mode in OWN_GRAPHS:
            torch.compiler.cudagraph_mark_step_begin()
        self.optimizer.zero_grad(set_to_none=self.inside or not self.captures)
        loss = self.peer.loss(self.module)
        loss.backward()
        if self.peer.clip_norm > 0:
            nn.utils.clip_grad_norm_(self.peer.module.parameters(), self.peer.clip_norm, foreach=True)
        self.optimizer.step()
        return loss.detach()

    def _capture(self) -> None:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            self.loss = self._work()
        self.graph = graph

    def step(self) -> None:
        self.peer.new_step()
        if self.graph:
            self.graph.replay()
        else:
            self.loss = self._work()

    def seconds_of(self, steps: int) -> float:
        """Of the slowest rank, from one moment at which all have waited to the next."""
        if self.job.world_size > 1:
            dist.barrier()
        self.job.synchronize()
        start = time.perf_counter()
        with self.on_stream():
            for _ in range(steps):
                self.step()
        self.job.synchronize()
        return self.job.largest(time.perf_counter() - start)


def measure(trainer: Trainer, args: argparse.Namespace) -> dict[str, Any]:
    """Windows of a second or more, as ddptrain --min-seconds makes them."""
    trainer.seconds_of(args.warmup)
    step_seconds = trainer.seconds_of(10) / 10
    steps = max(1, math.ceil(min(WINDOW_SECONDS, max(args.seconds, 1e-3) / FEWEST_WINDOWS) / step_seconds))
    trainer.seconds_of(steps)  # brings the device to the clock of this work
    windows: list[float] = []
    measured_from = time.time()
    while len(windows) < FEWEST_WINDOWS or sum(windows) < args.seconds:
        windows.append(trainer.seconds_of(steps))  # the same number on every rank, hence the same end
    samples = steps * trainer.peer.samples_per_step * trainer.job.world_size
    rates = [samples / seconds for seconds in windows]
    return {"per_second": statistics.median(rates), "per_second_min": min(rates), "per_second_max": max(rates),
            "windows": len(rates), "steps_per_window": steps, "measured_seconds": sum(windows),
            "measured_from": measured_from, "measured_until": time.time()}  # fmt: skip


def describe(args: argparse.Namespace, job: Job) -> dict[str, Any]:
    version = ".".join(map(str, torch.cuda.nccl.version())) if job.on_gpu else None
    return {
        "peer": "pytorch-ddp", "mode": args.mode, "shard": args.shard, "gradients": args.gradients,
        "precision": args.precision, "world_size": job.world_size,
        "device": torch.cuda.get_device_name() if job.on_gpu else "cpu", "torch": torch.__version__,
        "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "nccl": version,
    }  # fmt: skip


def print_result(job: Job, result: dict[str, Any]) -> None:
    if job.rank == 0:
        print(json.dumps(result), flush=True)
