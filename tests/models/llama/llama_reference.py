#!/usr/bin/env python3
"""Writes llama_reference.json: the logits of transformers' Llama, Qwen2 and Qwen3, tiny and in double precision, for
llama_reference_test.cpp to meet; and how far transformers' own logits in bf16 are from them.

Weights follow from a formula, so the file holds only configurations, shapes of tensors, and logits.
Needs PyTorch and transformers: python3 tests/models/llama/llama_reference.py > tests/models/llama/llama_reference.json
"""

import json
import math
import sys

import torch
import transformers

VOCABULARY = 29
TEXT = [(k * k + 3 * k) // 2 % VOCABULARY for k in range(20)]
COMMON = {"vocab_size": VOCABULARY, "num_hidden_layers": 2, "max_position_embeddings": 64, "attention_dropout": 0.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}  # fmt: skip
MODELS = {
    "Llama 3.2": transformers.LlamaConfig(
        **COMMON, hidden_size=24, intermediate_size=40, num_attention_heads=4, num_key_value_heads=2,
        rms_norm_eps=1e-5, rope_theta=500000.0, rope_scaling=LLAMA3, tie_word_embeddings=True),
    "Qwen2.5": transformers.Qwen2Config(
        **COMMON, hidden_size=28, intermediate_size=36, num_attention_heads=7, num_key_value_heads=1,
        rms_norm_eps=1e-6, rope_theta=1000000.0, tie_word_embeddings=True),
    "Qwen3": transformers.Qwen3Config(
        **COMMON, hidden_size=20, intermediate_size=44, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        rms_norm_eps=1e-6, rope_theta=1000000.0, tie_word_embeddings=False),
}  # fmt: skip
CLASSES = {"llama": transformers.LlamaForCausalLM, "qwen2": transformers.Qwen2ForCausalLM,
           "qwen3": transformers.Qwen3ForCausalLM}  # fmt: skip


def make_weight(place: int, name: str, shape: list[int]) -> torch.Tensor:
    """0.3 sin(0.7 i + 1.3 place) for element i, and 1 more for the weights of norms."""
    elements = torch.arange(math.prod(shape), dtype=torch.float64)
    values = 0.3 * torch.sin(0.7 * elements + 1.3 * place)
    if "norm" in name:
        values += 1.0
    return values.float().double().reshape(shape)  # as safetensors has them


def logits_of(config: transformers.PretrainedConfig) -> dict:
    model = CLASSES[config.model_type](config).double().eval()
    tensors = {}
    with torch.no_grad():
        for place, (name, parameter) in enumerate(sorted(model.named_parameters())):
            parameter.copy_(make_weight(place, name, list(parameter.shape)))
            tensors[name] = list(parameter.shape)
        logits = model(torch.tensor([TEXT])).logits[0]
        apart = (model.bfloat16()(torch.tensor([TEXT])).logits[0].double() - logits).abs().max().item()
    return {"config": json.loads(config.to_json_string(use_diff=True)), "tensors": tensors, "bf16_apart": round(apart, 3),
            "logits": [[round(logit, 9) for logit in row] for row in logits.tolist()]}  # fmt: skip


def main() -> None:
    result = {"torch": torch.__version__, "transformers": transformers.__version__, "text": TEXT,
              "models": {name: logits_of(config) for name, config in MODELS.items()}}  # fmt: skip
    text = json.dumps(result, separators=(",", ":"))
    sys.stdout.write(text.replace("],", "],\n") + "\n")


if __name__ == "__main__":
    main()
