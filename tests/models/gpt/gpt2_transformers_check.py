#!/usr/bin/env python3
"""Does transformers read what ddptrain writes, and ddptrain what transformers writes?

transformers saves a small GPT-2, gpt2_resave loads and saves it, transformers loads that: the same weights, logits and
configuration, no tensor missing or left over, and not one warning. Exit code 77 where transformers or torch is missing.
"""

import argparse
import logging
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

try:
    import torch
    import transformers
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

CONFIGS = {
    "plain": {"vocab_size": 97, "n_positions": 32, "n_embd": 48, "n_layer": 2, "n_head": 4},
    "feed-forward of its own, other epsilon": {
        "vocab_size": 50257, "n_positions": 16, "n_embd": 24, "n_layer": 1, "n_head": 2, "n_inner": 40,
        "layer_norm_epsilon": 1e-3},
}
CONFIG_KEYS = ["vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "layer_norm_epsilon", "activation_function"]


def make_model(settings: dict) -> "transformers.GPT2LMHeadModel":
    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return model


def load_strictly(folder: Path) -> "transformers.GPT2LMHeadModel":
    """As a user would, except that every complaint is an error."""
    with unittest.TestCase().assertNoLogs("transformers", logging.WARNING), warnings.catch_warnings():
        warnings.simplefilter("error")
        model, info = transformers.GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    complaints = {what: names for what, names in info.items() if names}
    if complaints:
        raise SystemExit(f"transformers reports: {complaints}")
    return model.eval()


def check(resave: Path, settings: dict, folder: Path) -> None:
    original = make_model(settings)
    original.save_pretrained(folder / "theirs", safe_serialization=True)
    subprocess.run([resave, folder / "theirs", folder / "ours"], check=True)
    copy = load_strictly(folder / "ours")
    for key in CONFIG_KEYS:
        assert getattr(copy.config, key) == getattr(original.config, key), key
    state = copy.state_dict()
    assert state.keys() == original.state_dict().keys()
    for name, tensor in original.state_dict().items():
        assert torch.equal(state[name], tensor), name
    tokens = torch.arange(20).reshape(2, 10)[:, : settings["n_positions"]]
    with torch.no_grad():
        assert torch.equal(copy(tokens).logits, original(tokens).logits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("resave", type=Path, help="the program gpt2_resave")
    args = parser.parse_args()
    for name, settings in CONFIGS.items():
        with tempfile.TemporaryDirectory() as folder:
            check(args.resave, settings, Path(folder))
        print(f"ok: {name} (transformers {transformers.__version__}, torch {torch.__version__})")


if __name__ == "__main__":
    main()
