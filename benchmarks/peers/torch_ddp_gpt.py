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

import torch_ddp_text
from torch import nn
from torch.nn import functional as F


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


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    torch_ddp_text.add_arguments(parser, layers=12, width=768, heads=12, ff=3072, vocab=50257)
    parser.add_argument("--batch", type=int, default=64, help="windows per rank")
    return torch_ddp_text.parse(parser, argv)


if __name__ == "__main__":
    torch_ddp_text.run(parse_arguments(sys.argv[1:]), Gpt)
