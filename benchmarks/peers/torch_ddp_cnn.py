#!/usr/bin/env python3
"""Trains the CNN of `ddptrain --model cnn` with PyTorch DDP, for comparison.

The network, the optimizer (Adam 1e-3), the loss and the data are the same. The uint8 data set is on the GPU, and a
shuffled index gathers the batches. bf16 autocast with FP32 parameters; channels_last. Prints one JSON line.

  python3 torch_ddp_cnn.py --mode compile-graph --batch 512
  torchrun --nproc-per-node 8 torch_ddp_cnn.py --mode compile-graph --batch 512

Modes: eager; graph (the whole step, from gather to optimizer, in one CUDA graph); compile (torch.compile);
compile-graph (both; the fastest mode). A single process runs without DDP.
"""

import argparse
import contextlib
import gzip
import json
import os
import pathlib
import statistics
import time

# The watchdog must not query events while a stream is captured.
os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

DDP_WARM_UP = 11  # iterations before DDP's buckets are final and may be captured
FOLDERS = ("data/downloads/fashion-mnist", "/usr/share/datasets/fashion-mnist")


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.dropout(x, 0.25, self.training).flatten(1)
        x = F.dropout(F.relu(self.fc1(x)), 0.5, self.training)
        return self.fc2(x)


class Loss(nn.Module):
    """From the resident data set to the loss: step `step` of the epoch takes the samples rows[step]."""

    def __init__(self, net, autocast):
        super().__init__()
        self.net = net
        self.autocast = autocast

    def logits(self, pixels):
        with self.autocast():
            return self.net((pixels.unsqueeze(1).float() / 255).contiguous(memory_format=torch.channels_last))

    def forward(self, images, labels, rows, step):
        index = rows.index_select(0, step).view(-1)
        return F.cross_entropy(self.logits(images[index]).float(), labels[index])


def read_idx(folder, name):
    path = pathlib.Path(folder, name)
    raw = path.read_bytes() if path.exists() else gzip.open(f"{path}.gz").read()
    dims = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(raw[3])]
    return torch.frombuffer(bytearray(raw[4 + 4 * raw[3] :]), dtype=torch.uint8).view(dims)


def load_data(source, device):
    """(train images, train labels, test images, test labels) on the device."""
    if source.startswith("synthetic"):
        count = int(source.partition(":")[2] or 131072)
        random = torch.Generator(device).manual_seed(0)
        draw = lambda high, *shape: torch.randint(high, shape, generator=random, device=device, dtype=torch.uint8)
        sizes = (count, max(10, count // 10))
        parts = [part for n in sizes for part in (draw(256, n, 28, 28), draw(10, n).long())]
        return parts
    folder = source or next((f for f in FOLDERS if pathlib.Path(f).is_dir()), None)
    if folder is None:
        raise SystemExit(f"Fashion-MNIST is in none of {FOLDERS}: run launch/fetch-data fashion-mnist, or use --data")
    return [
        read_idx(folder, f"{part}-{kind}-ubyte").to(device).to(torch.uint8 if kind == "images-idx3" else torch.int64)
        for part in ("train", "t10k")
        for kind in ("images-idx3", "labels-idx1")
    ]


class Trainer:
    """One training step as a callable, eager or as a replayed CUDA graph."""

    def __init__(self, args, rank, world_size, device):
        self.args, self.rank, self.world_size, self.device = args, rank, world_size, device
        self.images, self.labels, self.test_images, self.test_labels = load_data(args.data, device)
        self.steps_per_epoch = len(self.images) // (args.batch * world_size)
        if self.steps_per_epoch == 0:
            raise SystemExit(f"{len(self.images)} samples are fewer than one step of {world_size} x {args.batch}")
        self.rows = torch.zeros(self.steps_per_epoch, args.batch, dtype=torch.int64, device=device)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.done = self.epoch = 0
        self.graph = None
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        with self.on_stream():
            self._build()

    def on_stream(self):
        return torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext()

    def _build(self):
        args = self.args
        torch.manual_seed(args.seed)  # the same parameters on all ranks, before dropout is seeded by rank
        dtype = {"bf16": torch.bfloat16, "fp32": None}[args.precision]
        autocast = lambda: torch.autocast(self.device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None)
        self.net = Cnn().to(self.device).to(memory_format=torch.channels_last)
        self.loss = Loss(self.net, autocast)
        torch.manual_seed(args.seed + 1 + self.rank)
        module = self.loss
        if "compile" in args.mode:
            torch._dynamo.config.optimize_ddp = False
            module = torch.compile(module, mode=args.compile_mode)
        if self.world_size > 1:
            ids = [self.device] if self.device.type == "cuda" else None
            module = nn.parallel.DistributedDataParallel(
                module, device_ids=ids, gradient_as_bucket_view=True, broadcast_buffers=False,
                bucket_cap_mb=args.bucket_mb)
        self.module = module
        cuda = {"fused": True, "capturable": True} if self.device.type == "cuda" else {}
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=args.lr, **cuda)
        self.new_epoch()
        if "graph" in args.mode:
            for _ in range(DDP_WARM_UP + 4):
                self.train_step()
            self._capture()

    def _work(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.module(self.images, self.labels, self.rows, self.step)
        loss.backward()
        self.optimizer.step()
        self.step.add_(1)
        return loss

    def _capture(self):
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            self._work()
        self.graph = graph

    def new_epoch(self):
        random = torch.Generator(self.device).manual_seed(self.args.seed + self.epoch)
        order = torch.randperm(len(self.images), generator=random, device=self.device)
        used = order[: self.steps_per_epoch * self.world_size * self.args.batch]
        self.rows.copy_(used.view(self.steps_per_epoch, self.world_size, self.args.batch)[:, self.rank])
        self.step.zero_()
        self.done = 0
        self.epoch += 1

    def train_step(self):
        if self.done == self.steps_per_epoch:
            self.new_epoch()
        if self.graph:
            self.graph.replay()
        else:
            self._work()
        self.done += 1

    @torch.no_grad()
    def accuracy(self):
        """Each rank evaluates the whole test set."""
        with self.on_stream():
            self.net.eval()
            hits = sum((self.loss.logits(images).argmax(1) == labels).sum()
                       for images, labels in zip(self.test_images.split(1000), self.test_labels.split(1000)))
            self.net.train()
            return hits.item() / len(self.test_images)


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(trainer, steps, windows):
    """Images/s of the whole job in each window of `steps` steps; the slowest rank's time counts."""
    rates = []
    for _ in range(windows):
        if trainer.world_size > 1:
            dist.barrier()
        synchronize(trainer.device)
        with trainer.on_stream():
            if trainer.stream:
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
            start = time.perf_counter()
            for _ in range(steps):
                trainer.train_step()
            if trainer.stream:
                end.record()
        synchronize(trainer.device)
        seconds = begin.elapsed_time(end) / 1e3 if trainer.stream else time.perf_counter() - start
        if trainer.world_size > 1:
            slowest = torch.tensor([seconds], device=trainer.device)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            seconds = slowest.item()
        rates.append(steps * trainer.args.batch * trainer.world_size / seconds)
    return rates


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("eager", "graph", "compile", "compile-graph"), default="compile-graph")
    parser.add_argument("--compile-mode", default="default", help="mode of torch.compile, e.g. max-autotune-no-cudagraphs")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--batch", type=int, default=512, help="batch per rank")
    parser.add_argument("--data", default="", help="folder of Fashion-MNIST, or synthetic[:COUNT]")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bucket-mb", type=float, default=25)
    parser.add_argument("--warmup", type=int, default=50, help="steps before the first window")
    parser.add_argument("--steps", type=int, default=200, help="steps per window")
    parser.add_argument("--windows", type=int, default=7, help="number of windows (0: no measurement)")
    parser.add_argument("--epochs", type=int, default=0, help="train so many epochs and report the test accuracy (0: off)")
    args = parser.parse_args()
    if args.device == "cpu" and "graph" in args.mode:
        parser.error("CUDA graphs need --device cuda")
    return args


def start_ranks(args):
    world_size, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    device = torch.device("cpu")
    if args.device == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    if world_size > 1:
        dist.init_process_group("nccl" if args.device == "cuda" else "gloo",
                                **({"device_id": device} if args.device == "cuda" else {}))
    return rank, world_size, device


def main():
    began = time.perf_counter()
    args = parse_arguments()
    rank, world_size, device = start_ranks(args)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    trainer = Trainer(args, rank, world_size, device)
    result = {
        "peer": "pytorch-ddp", "mode": args.mode, "compile_mode": args.compile_mode, "world_size": world_size,
        "batch_per_rank": args.batch, "precision": args.precision, "data": args.data or "fashion-mnist",
        "parameters": sum(p.numel() for p in trainer.net.parameters()),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if device.type == "cuda" else None,
        "startup_seconds": time.perf_counter() - began,
    }
    if args.epochs > 0:
        with trainer.on_stream():
            trainer.new_epoch()
            for _ in range(args.epochs * trainer.steps_per_epoch):
                trainer.train_step()
        result |= {"epochs": args.epochs, "accuracy": trainer.accuracy()}
    elif args.windows > 0:
        with trainer.on_stream():
            for _ in range(args.warmup):
                trainer.train_step()
        rates = measure(trainer, args.steps, args.windows)
        result |= {"images_per_second": statistics.median(rates), "images_per_second_min": min(rates),
                   "images_per_second_max": max(rates), "windows": args.windows, "steps_per_window": args.steps}
    result["total_seconds"] = time.perf_counter() - began
    if rank == 0:
        print(json.dumps(result), flush=True)
    if world_size > 1:
        trainer.graph = None  # before the communicator that it uses
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
