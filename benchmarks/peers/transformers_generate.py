#!/usr/bin/env python3
"""Greedy generation by transformers with a static key-value cache, for which it compiles the forward pass.

The model is the folder that `ddptrain --save` wrote. Prints one JSON line: the time of a decoded token, as the median of
--repeats generations after the first two, which compile; and the rate at which this GPU copies memory (bytes read and
written), to compare with the bytes of weights that a token reads.

  python3 transformers_generate.py FOLDER --tokens 512
"""

import argparse
import json
import statistics
import time

import torch
import transformers
from transformers import AutoModelForCausalLM


def copy_rate(bytes_of_buffer=2**31, repeats=20):
    source = torch.empty(bytes_of_buffer, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        target.copy_(source)
    torch.cuda.synchronize()
    return 2 * bytes_of_buffer * repeats / (time.perf_counter() - begin)


def seconds_of(model, prompt, tokens):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    out = model.generate(prompt, attention_mask=torch.ones_like(prompt), min_new_tokens=tokens, max_new_tokens=tokens,
                         do_sample=False, cache_implementation="static")  # fmt: skip
    torch.cuda.synchronize()
    assert out.shape[1] == prompt.shape[1] + tokens
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.bfloat16).to("cuda").eval()
    model.generation_config.pad_token_id = 0
    prompt = torch.arange(1, 5, device="cuda")[None]
    for _ in range(2):
        seconds_of(model, prompt, args.tokens)
    times = [seconds_of(model, prompt, args.tokens) for _ in range(args.repeats)]
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    print(json.dumps({
        "framework": "transformers", "version": transformers.__version__, "tokens": args.tokens,
        "milliseconds_per_token": 1e3 * statistics.median(times) / args.tokens,
        "spread": [1e3 * min(times) / args.tokens, 1e3 * max(times) / args.tokens],
        "weights_bytes": weights, "copy_bytes_per_second": copy_rate(),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
