#!/usr/bin/env python3
"""Writes gpt_reference.json: what PyTorch makes of a tiny GPT-2, in double precision, for gpt_test.cpp to meet.

Weights follow from a formula, so the file holds only results: losses and gradients (norm and samples).
Needs PyTorch (CPU): python3 tests/models/gpt/gpt_reference.py > tests/models/gpt/gpt_reference.json
"""

import json
import math
import sys

import torch
from torch.nn import functional

SHAPE = {"layers": 3, "width": 24, "heads": 3, "feed_forward": 40, "sequence": 10, "vocabulary": 37}
BATCH = 4
SAMPLES = 5


def parameter_shapes() -> dict[str, list[int]]:
    width, hidden = SHAPE["width"], SHAPE["feed_forward"]
    shapes = {"wte.weight": [SHAPE["vocabulary"], width], "wpe.weight": [SHAPE["sequence"], width]}
    for layer in range(SHAPE["layers"]):
        block = {"ln_1.weight": [width], "ln_1.bias": [width],
                 "attn.c_attn.weight": [3 * width, width], "attn.c_attn.bias": [3 * width],
                 "attn.c_proj.weight": [width, width], "attn.c_proj.bias": [width],
                 "ln_2.weight": [width], "ln_2.bias": [width],
                 "mlp.c_fc.weight": [hidden, width], "mlp.c_fc.bias": [hidden],
                 "mlp.c_proj.weight": [width, hidden], "mlp.c_proj.bias": [width]}
        shapes |= {f"h.{layer}.{name}": shape for name, shape in block.items()}
    return shapes | {"ln_f.weight": [width], "ln_f.bias": [width]}


def make_weight(place: int, name: str, shape: list[int]) -> torch.Tensor:
    """0.3 sin(0.7 i + 1.3 place) for element i, and 1 more for the weights of norms."""
    elements = torch.arange(math.prod(shape), dtype=torch.float64)
    values = 0.3 * torch.sin(0.7 * elements + 1.3 * place)
    if ".ln_" in f".{name}" and name.endswith("weight"):
        values += 1.0
    return values.reshape(shape).requires_grad_()


def make_tokens() -> torch.Tensor:
    """Windows overlap by the one token that is the last target of one and the first input of the next."""
    sequence = SHAPE["sequence"]
    text = torch.tensor([(k * k + 3 * k) // 2 % SHAPE["vocabulary"] for k in range(BATCH * sequence + 1)])
    return torch.stack([text[b * sequence:(b + 1) * sequence + 1] for b in range(BATCH)])


def attention(qkv: torch.Tensor) -> torch.Tensor:
    batch, sequence, columns = qkv.shape
    width = columns // 3
    q, k, v = (part.reshape(batch, sequence, SHAPE["heads"], -1).transpose(1, 2) for part in qkv.split(width, dim=2))
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    hidden = torch.triu(torch.ones(sequence, sequence, dtype=torch.bool), diagonal=1)
    return (scores.masked_fill(hidden, -math.inf).softmax(-1) @ v).transpose(1, 2).reshape(batch, sequence, width)


def forward(weights: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.layer_norm(x, [SHAPE["width"]], weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-5)

    x = functional.embedding(tokens, weights["wte.weight"]) + weights["wpe.weight"]
    for layer in range(SHAPE["layers"]):
        block = f"h.{layer}"
        attended = attention(linear(norm(x, f"{block}.ln_1"), f"{block}.attn.c_attn"))
        x = x + linear(attended, f"{block}.attn.c_proj")
        expanded = functional.gelu(linear(norm(x, f"{block}.ln_2"), f"{block}.mlp.c_fc"), approximate="tanh")
        x = x + linear(expanded, f"{block}.mlp.c_proj")
    return norm(x, "ln_f") @ weights["wte.weight"].T


def samples(values: torch.Tensor) -> list[float]:
    """The elements 0, n / SAMPLES, 2 n / SAMPLES, ..."""
    flat = values.detach().flatten()
    return [flat[i * flat.numel() // SAMPLES].item() for i in range(SAMPLES)]


def main() -> None:
    weights = {name: make_weight(place, name, shape)
               for place, (name, shape) in enumerate(parameter_shapes().items())}
    tokens = make_tokens()
    logits = forward(weights, tokens[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
    (loss / tokens[:, 1:].numel()).backward()
    result = {"torch": torch.__version__, "shape": SHAPE, "batch": BATCH, "loss_sum": loss.item(),
              "hits": int((logits.argmax(-1) == tokens[:, 1:]).sum()),
              "gradients_of_mean_loss": [{"name": name, "norm": weight.grad.norm().item(),
                                          "samples": samples(weight.grad)} for name, weight in weights.items()]}
    json.dump(result, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
