#!/usr/bin/env python3
"""Writes gpt_reference.json: what PyTorch makes of a tiny GPT-2, in double precision, for gpt_test.cpp to meet.

Weights follow from a formula, so the file holds only results: losses and gradients (norm and samples).
Needs PyTorch and transformers: python3 tests/models/gpt2/gpt_reference.py > tests/models/gpt2/gpt_reference.json
"""

import json
import math
import sys

import torch
import transformers

SHAPE = {"layers": 3, "width": 24, "heads": 3, "feed_forward": 40, "sequence": 10, "vocabulary": 37}
BATCH = 4
SAMPLES = 5


def make_weight(place: int, name: str, shape: list[int]) -> torch.Tensor:
    """0.3 sin(0.7 i + 1.3 place) for element i, and 1 more for the weights of norms."""
    elements = torch.arange(math.prod(shape), dtype=torch.float64)
    values = 0.3 * torch.sin(0.7 * elements + 1.3 * place)
    if ".ln_" in f".{name}" and name.endswith("weight"):
        values += 1.0
    return values.reshape(shape)


def make_tokens() -> torch.Tensor:
    """Windows overlap by the one token that is the last target of one and the first input of the next."""
    sequence = SHAPE["sequence"]
    text = torch.tensor([(k * k + 3 * k) // 2 % SHAPE["vocabulary"] for k in range(BATCH * sequence + 1)])
    return torch.stack([text[b * sequence:(b + 1) * sequence + 1] for b in range(BATCH)])


def as_ours(name: str, values: torch.Tensor) -> torch.Tensor:
    """Matrices are [out, in] in ddptrain, and [in, out] in transformers."""
    return values.T if ".c_" in name and values.dim() == 2 else values


def make_model() -> transformers.GPT2LMHeadModel:
    config = transformers.GPT2Config(
        vocab_size=SHAPE["vocabulary"], n_positions=SHAPE["sequence"], n_embd=SHAPE["width"], n_layer=SHAPE["layers"],
        n_head=SHAPE["heads"], n_inner=SHAPE["feed_forward"], resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).double()
    for place, (name, parameter) in enumerate(model.transformer.named_parameters()):
        ours = as_ours(name, parameter.data)
        ours.copy_(make_weight(place, name, list(ours.shape)))
    return model


def samples(values: torch.Tensor) -> list[float]:
    """The elements 0, n / SAMPLES, 2 n / SAMPLES, ..."""
    flat = values.detach().flatten()
    return [flat[i * flat.numel() // SAMPLES].item() for i in range(SAMPLES)]


def main() -> None:
    model, tokens = make_model(), make_tokens()
    logits = model(tokens[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
    (loss / tokens[:, 1:].numel()).backward()
    gradients = {name: as_ours(name, weight.grad) for name, weight in model.transformer.named_parameters()}
    result = {"torch": torch.__version__, "shape": SHAPE, "batch": BATCH, "loss_sum": loss.item(),
              "hits": int((logits.argmax(-1) == tokens[:, 1:]).sum()),
              "gradients_of_mean_loss": [{"name": name, "norm": gradient.norm().item(), "samples": samples(gradient)}
                                         for name, gradient in gradients.items()]}  # fmt: skip
    json.dump(result, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
