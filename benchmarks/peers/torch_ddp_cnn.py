#!/usr/bin/env python3
"""Trains the CNN of `ddptrain --model cnn` with PyTorch DDP, for comparison.

The network, the optimizer (Adam 1e-3), the loss and the data are the same. The uint8 data set is on the GPU, and a
shuffled index gathers the batches. bf16 autocast with FP32 parameters; channels_last. Prints one JSON line.

  python3 torch_ddp_cnn.py --mode default+graph --batch 512
  torchrun --nproc-per-node 8 torch_ddp_cnn.py --mode default+graph --batch 512 --gradients bf16
"""

import argparse
import gzip
import pathlib
import sys
import time

import torch
import torch_ddp
from torch import nn
from torch.nn import functional as F

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


class Batches:
    """Which samples a step takes: a shuffled index on the device, of which an epoch's rows are used in turn."""

    def __init__(self, samples, args, job):
        self.samples, self.args, self.job = samples, args, job
        self.steps_per_epoch = samples // (args.batch * job.world_size)
        if self.steps_per_epoch == 0:
            raise SystemExit(f"{samples} samples are fewer than one step of {job.world_size} x {args.batch}")
        self.rows = torch.zeros(self.steps_per_epoch, args.batch, dtype=torch.int64, device=job.device)
        self.step = torch.zeros(1, dtype=torch.int64, device=job.device)
        self.epoch = 0
        self.new_epoch()

    def new_epoch(self):
        random = torch.Generator(self.job.device).manual_seed(self.args.seed + self.epoch)
        order = torch.randperm(self.samples, generator=random, device=self.job.device)
        used = order[: self.steps_per_epoch * self.job.world_size * self.args.batch]
        self.rows.copy_(used.view(self.steps_per_epoch, self.job.world_size, self.args.batch)[:, self.job.rank])
        self.step.zero_()
        self.done = 0
        self.epoch += 1

    def new_step(self):
        if self.done == self.steps_per_epoch:
            self.new_epoch()
        self.done += 1


def make_peer(args, job, data, batches):
    images, labels = data[:2]
    torch.manual_seed(args.seed)  # the same parameters on all ranks, before dropout is seeded by rank
    net = Cnn().to(job.device).to(memory_format=torch.channels_last)
    module = Loss(net, lambda: torch_ddp.autocast(args))
    torch.manual_seed(args.seed + 1 + job.rank)

    def loss(module):
        value = module(images, labels, batches.rows, batches.step)
        batches.step.add_(1)
        return value

    def optimizer(capturable):
        return torch.optim.Adam(net.parameters(), lr=args.lr, fused=job.on_gpu, capturable=capturable)

    return torch_ddp.Peer(module, loss, optimizer, batches.new_step, args.batch, compile_inside=True)


@torch.no_grad()
def accuracy(module, images, labels):
    """Each rank evaluates the whole test set."""
    module.eval()
    hits = sum((module.logits(some).argmax(1) == right).sum()
               for some, right in zip(images.split(1000), labels.split(1000)))  # fmt: skip
    module.train()
    return hits.item() / len(images)


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    torch_ddp.add_arguments(parser, mode="default+graph")
    parser.add_argument("--batch", type=int, default=512, help="batch per rank")
    parser.add_argument("--data", default="", help="folder of Fashion-MNIST, or synthetic[:COUNT]")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=0, help="train so many epochs and report the test accuracy (0: off)")
    args = parser.parse_args(argv)
    torch_ddp.check_arguments(parser, args)
    return args


def main(argv):
    began = time.perf_counter()
    args = parse_arguments(argv)
    with torch_ddp.job(args) as job:
        data = load_data(args.data, job.device)
        batches = Batches(len(data[0]), args, job)
        peer = make_peer(args, job, data, batches)
        trainer = torch_ddp.Trainer(peer, args, job)
        result = torch_ddp.describe(args, job) | {
            "batch_per_rank": args.batch, "data": args.data or "fashion-mnist",
            "parameters": sum(p.numel() for p in peer.module.parameters()),
            "startup_seconds": time.perf_counter() - began,
        }  # fmt: skip
        if args.epochs > 0:
            with trainer.on_stream():
                batches.new_epoch()
            trainer.seconds_of(args.epochs * batches.steps_per_epoch)
            with trainer.on_stream():
                result |= {"epochs": args.epochs, "accuracy": accuracy(peer.module, *data[2:])}
        else:
            measured = torch_ddp.measure(trainer, args)
            result |= {f"images_{name}" if name.startswith("per_second") else name: value
                       for name, value in measured.items()}  # fmt: skip
        result["loss"] = float(trainer.loss)
        result["total_seconds"] = time.perf_counter() - began
        torch_ddp.print_result(job, result)
        trainer.graph = None  # before the communicator that it uses


if __name__ == "__main__":
    main(sys.argv[1:])
