#!/usr/bin/env python3
"""Trains the GPT-2 of `ddptrain --model gpt` with PyTorch DDP, for comparison.

The shapes, the loss and the optimizer (AdamW, gradient norm clipped to 1.0) are the same. Random tokens stay on the
GPU; the vocabulary is padded to a multiple of 128. bf16 autocast with FP32 parameters, fused AdamW, gradient_as_bucket_view,
scaled_dot_product_attention. Prints one JSON line.

  python3 torch_ddp_gpt.py --mode compile --batch 64
  torchrun --nproc-per-node 8 torch_ddp_gpt.py --mode compile --batch 64

Modes: eager; compile (torch.compile); compile-graph (torch.compile, and the whole step in one CUDA graph). A single
process runs without DDP.
"""

import argparse
import contextlib
import json
import os
import statistics
import time

# The watchdog must not query events while a stream is captured.
os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

DDP_WARM_UP = 11  # iterations before DDP's buckets are final and may be captured


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.heads = args.heads
        self.ln_1 = nn.LayerNorm(args.width)
        self.c_attn = nn.Linear(args.width, 3 * args.width)
        self.attn_proj = nn.Linear(args.width, args.width)
        self.ln_2 = nn.LayerNorm(args.width)
        self.c_fc = nn.Linear(args.width, args.ff)
        self.mlp_proj = nn.Linear(args.ff, args.width)

    def attention(self, x):
        batch, sequence, width = x.shape
        split = lambda t: t.view(batch, sequence, self.heads, width // self.heads).transpose(1, 2)
        q, k, v = map(split, self.c_attn(x).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.attn_proj(y.transpose(1, 2).reshape(batch, sequence, width))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """From tokens [batch, sequence + 1] to the loss."""

    def __init__(self, args):
        super().__init__()
        padded = (args.vocab + 127) // 128 * 128
        self.wte = nn.Embedding(padded, args.width)
        self.wpe = nn.Embedding(args.seq, args.width)
        self.blocks = nn.ModuleList(Block(args) for _ in range(args.layers))
        self.ln_f = nn.LayerNorm(args.width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        x = self.wte(inputs) + self.wpe.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Trainer:
    """One training step as a callable, eager or as a replayed CUDA graph."""

    def __init__(self, args, rank, world_size, device):
        self.args, self.world_size, self.device = args, world_size, device
        self.graph = None
        self.stream = torch.cuda.Stream(device)
        torch.manual_seed(1)
        random = torch.Generator(device).manual_seed(rank)
        shape = (16, args.batch, args.seq + 1)
        self.tokens = torch.randint(args.vocab, shape, generator=random, device=device)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        with torch.cuda.stream(self.stream):
            self._build()
        self.stream.synchronize()

    def _build(self):
        args = self.args
        graph = args.mode == "compile-graph"
        self.net = Gpt(args).to(self.device)
        self.model = self.net
        if self.world_size > 1:
            self.model = nn.parallel.DistributedDataParallel(
                self.net, device_ids=[self.device.index], gradient_as_bucket_view=True, static_graph=graph
            )
        if args.mode != "eager":
            self.model = torch.compile(self.model)
        decayed = [p for p in self.net.parameters() if p.dim() > 1]
        others = [p for p in self.net.parameters() if p.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": args.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=True, capturable=graph)

    def _train_step(self):
        tokens = self.tokens.index_select(0, self.step % len(self.tokens)).squeeze(0)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = self.model(tokens)
        loss.backward()
        if self.args.clip > 0:
            nn.utils.clip_grad_norm_(self.net.parameters(), self.args.clip, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.args.mode != "compile-graph")
        self.step += 1
        return loss.detach()

    def prepare(self):
        with torch.cuda.stream(self.stream):
            for _ in range(DDP_WARM_UP + 2):
                self.loss = self._train_step()
            self.stream.synchronize()
            if self.args.mode == "compile-graph":
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph, stream=self.stream):
                    self.loss = self._train_step()

    def run(self, steps):
        with torch.cuda.stream(self.stream):
            for _ in range(steps):
                if self.graph:
                    self.graph.replay()
                else:
                    self.loss = self._train_step()
        self.stream.synchronize()


def measure(trainer, args, world_size):
    """Tokens per second of all ranks in each window."""
    rates = []
    for _ in range(args.windows):
        if world_size > 1:
            dist.barrier()
        start = time.perf_counter()
        trainer.run(args.steps)
        seconds = torch.tensor([time.perf_counter() - start], device=trainer.device)
        if world_size > 1:
            dist.all_reduce(seconds, dist.ReduceOp.MAX)
        rates.append(args.steps * args.batch * args.seq * world_size / seconds.item())
    return rates


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("eager", "compile", "compile-graph"), default="compile")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--ff", type=int, default=3072)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--batch", type=int, default=64, help="windows per rank")
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=1.0, help="largest gradient norm; 0: no clipping")
    parser.add_argument("--steps", type=int, default=20, help="steps per window")
    parser.add_argument("--windows", type=int, default=5)
    return parser.parse_args()


@contextlib.contextmanager
def process_group(world_size, device):
    if world_size > 1:
        dist.init_process_group("nccl", device_id=device)
    yield
    if world_size > 1:
        dist.destroy_process_group()


def main():
    args = parse_arguments()
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high")
    with process_group(world_size, device):
        trainer = Trainer(args, rank, world_size, device)
        trainer.prepare()
        trainer.run(args.steps)
        rates = measure(trainer, args, world_size)
        if rank == 0:
            result = {
                "program": "torch_ddp_gpt.py",
                "device": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "cuda": torch.version.cuda,
                "cudnn": torch.backends.cudnn.version(),
                "nccl": ".".join(map(str, torch.cuda.nccl.version())),
                "mode": args.mode,
                "world_size": world_size,
                "batch_per_rank": args.batch,
                "sequence": args.seq,
                "layers": args.layers,
                "width": args.width,
                "tokens_per_second": statistics.median(rates),
                "tokens_per_second_min": min(rates),
                "tokens_per_second_max": max(rates),
                "samples_per_second": statistics.median(rates) / args.seq,
                "memory_gib": torch.cuda.max_memory_allocated() / 2**30,
                "loss": float(trainer.loss),
            }
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
