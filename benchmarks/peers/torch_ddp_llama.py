#!/usr/bin/env python3
"""Trains the Llama or Qwen of `ddptrain --model llama` with PyTorch DDP or FSDP, for comparison.

The shapes, the loss and the optimizer (AdamW, gradient norm clipped to 1.0) are the same. Random tokens stay on the
device. bf16 autocast with FP32 parameters, fused AdamW, gradient_as_bucket_view, scaled_dot_product_attention with the
backend of --attention. The default shape is Qwen2.5-0.5B's. Prints one JSON line.

  python3 torch_ddp_llama.py --mode default --batch 16 --attention cudnn
  python3 torch_ddp_llama.py --layers 28 --width 1536 --heads 12 --ff 8960 --batch 8      # Qwen2.5-1.5B
  torchrun --nproc-per-node 8 torch_ddp_llama.py --mode default --batch 16 --gradients bf16
"""

import argparse
import sys

import torch
import torch_ddp_text
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"flash": [SDPBackend.FLASH_ATTENTION], "cudnn": [SDPBackend.CUDNN_ATTENTION], "any": list(SDPBackend.__members__.values())}


def rotate(x, cosines, sines):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.heads, self.key_heads, self.head_size = args.heads, args.key_heads, args.width // args.heads
        self.backends = BACKENDS[args.attention]
        columns = (args.heads + 2 * args.key_heads) * self.head_size
        self.attention_norm = nn.RMSNorm(args.width, eps=1e-6)
        self.qkv = nn.Linear(args.width, columns, bias=args.qkv_bias)
        self.attention_out = nn.Linear(args.width, args.width, bias=False)
        self.mlp_norm = nn.RMSNorm(args.width, eps=1e-6)
        self.gate_up = nn.Linear(args.width, 2 * args.ff, bias=False)
        self.down = nn.Linear(args.ff, args.width, bias=False)

    def attention(self, x, cosines, sines):
        batch, sequence, width = x.shape
        qkv = self.qkv(x).view(batch, sequence, -1, self.head_size).transpose(1, 2)
        q, k, v = qkv.split((self.heads, self.key_heads, self.key_heads), dim=1)
        q, k = rotate(q, cosines, sines), rotate(k, cosines, sines)
        with sdpa_kernel(self.backends):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.key_heads)
        return self.attention_out(y.transpose(1, 2).reshape(batch, sequence, width))

    def forward(self, x, cosines, sines):
        x = x + self.attention(self.attention_norm(x), cosines, sines)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    """From tokens [batch, sequence + 1] to the loss. The head is tied to the embedding."""

    def __init__(self, args):
        super().__init__()
        self.embedding = nn.Embedding(args.vocab, args.width)
        self.blocks = nn.ModuleList(Block(args) for _ in range(args.layers))
        self.norm = nn.RMSNorm(args.width, eps=1e-6)
        half = args.width // args.heads // 2
        angles = torch.outer(torch.arange(args.seq), args.rope_base ** (-torch.arange(half) / half))
        self.register_buffer("cosines", angles.cos().to(torch.bfloat16 if args.precision == "bf16" else torch.float32))
        self.register_buffer("sines", angles.sin().to(self.cosines.dtype))
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        x = self.embedding(tokens[:, :-1])
        if self.cosines.dtype == torch.bfloat16:
            x = x.bfloat16()
        for block in self.blocks:
            x = block(x, self.cosines, self.sines)
        logits = F.linear(self.norm(x), self.embedding.weight)
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    torch_ddp_text.add_arguments(parser, layers=24, width=896, heads=14, key_heads=2, ff=4864, vocab=151936)
    parser.add_argument("--batch", type=int, default=16, help="windows per rank")
    parser.add_argument("--rope-base", type=float, default=1e6)
    parser.add_argument("--qkv-bias", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--attention", choices=sorted(BACKENDS), default="any", help="backend; any: PyTorch's choice")
    return torch_ddp_text.parse(parser, argv)


if __name__ == "__main__":
    torch_ddp_text.run(parse_arguments(sys.argv[1:]), Llama)
