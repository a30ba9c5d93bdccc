#!/usr/bin/env python3
"""Trains the GPT-2 of `ddptrain --model gpt` with PyTorch DDP or FSDP, for comparison.

The shapes, the loss and the optimizer (AdamW, gradient norm clipped to 1.0) are the same. Random tokens stay on the
device; the vocabulary is padded to a multiple of 128. bf16 autocast with FP32 parameters, fused AdamW,
gradient_as_bucket_view, scaled_dot_product_attention. Prints one JSON line.

  python3 torch_ddp_gpt.py --mode default --batch 64
  torchrun --nproc-per-node 8 torch_ddp_gpt.py --mode default --batch 64 --gradients bf16
  torchrun --nproc-per-node 8 torch_ddp_gpt.py --mode default --batch 64 --gradients bf16 --shard weights
"""

import argparse
import sys
import time

import torch
import torch_ddp
from torch import nn
from torch.nn import functional as F

BATCHES = 16  # of random tokens


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


def make_peer(args, job):
    torch.manual_seed(1)
    random = torch.Generator(job.device).manual_seed(job.rank)
    tokens = torch.randint(args.vocab, (BATCHES, args.batch, args.seq + 1), generator=random, device=job.device)
    step = torch.zeros(1, dtype=torch.int64, device=job.device)
    net = Gpt(args).to(job.device)

    def loss(module):
        batch = tokens.index_select(0, step % BATCHES).squeeze(0)
        step.add_(1)
        with torch_ddp.autocast(args):
            return module(batch)

    def optimizer(capturable):
        decayed = [p for p in net.parameters() if p.dim() > 1]
        others = [p for p in net.parameters() if p.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": args.weight_decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=job.on_gpu, capturable=capturable)

    return torch_ddp.Peer(net, loss, optimizer, lambda: None, args.batch * args.seq, tuple(net.blocks), args.clip)


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    torch_ddp.add_arguments(parser, mode="default")
    parser.set_defaults(warmup=15)
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
    args = parser.parse_args(argv)
    torch_ddp.check_arguments(parser, args)
    return args


def main(argv):
    began = time.perf_counter()
    args = parse_arguments(argv)
    with torch_ddp.job(args) as job:
        trainer = torch_ddp.Trainer(make_peer(args, job), args, job)
        result = torch_ddp.describe(args, job) | {
            "batch_per_rank": args.batch, "sequence": args.seq, "layers": args.layers, "width": args.width,
            "startup_seconds": time.perf_counter() - began,
        }  # fmt: skip
        measured = torch_ddp.measure(trainer, args)
        result |= {f"tokens_{name}" if name.startswith("per_second") else name: value for name, value in measured.items()}
        result["memory_gib"] = torch.cuda.max_memory_allocated() / 2**30 if job.on_gpu else None
        result["loss"] = float(trainer.loss)
        torch_ddp.print_result(job, result)
        trainer.graph = None  # before the communicator that it uses


if __name__ == "__main__":
    main(sys.argv[1:])
