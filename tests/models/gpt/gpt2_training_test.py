#!/usr/bin/env python3
"""Does every layout train like PyTorch?

transformers saves a small GPT-2. PyTorch and ddptrain start from it and train 30 steps of AdamW in fp32 on the same
samples; every step has all of them, so their order does not matter. The losses agree within 2e-5.
"""

import array
import sys
import unittest
from pathlib import Path

try:
    import torch
    import transformers
except ImportError:
    torch = None

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.tools.support import FolderCase, run_ranks  # noqa: E402

SEQUENCE, SAMPLES, STEPS, RATE = 32, 16, 30, 1e-3
SHAPE = {"vocab_size": 96, "n_positions": SEQUENCE, "n_embd": 64, "n_layer": 4, "n_head": 4,
         "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # fmt: skip
LAYOUTS = {  # ranks, and flags with 16 samples per step
    "one rank": (1, "--batch 16"),
    "data 2": (2, "--batch 8"),
    "ZeRO-3": (2, "--batch 8 --zero 3"),
    "pipeline 2": (2, "--batch 4 --grad-accum 4 --pp 2"),
    "tensor 2": (2, "--batch 16 --tp 2"),
}


def write_tokens(folder: Path) -> "torch.Tensor":
    """Token files for training and validation; returns the windows for training, [sample, SEQUENCE + 1]."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, SHAPE["vocab_size"] // 4, (SAMPLES * SEQUENCE + 1,), generator=generator)
    for part in ("train", "val"):
        (folder / f"{part}.bin").write_bytes(array.array("H", tokens.tolist()).tobytes())
    return torch.stack([tokens[i * SEQUENCE : (i + 1) * SEQUENCE + 1] for i in range(SAMPLES)])


def losses_of_pytorch(model: "transformers.GPT2LMHeadModel", windows: "torch.Tensor") -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    losses = []
    for _ in range(STEPS):
        logits = model(windows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@unittest.skipIf(torch is None, "needs torch and transformers")
class TrainingTest(FolderCase):
    def losses_of_ddptrain(self, device: str, ranks: int, flags: str) -> list[float]:
        (self.folder / "metrics.jsonl").unlink(missing_ok=True)
        share = ["--share-gpu"] if device == "cuda" and ranks > torch.cuda.device_count() else []
        run_ranks(ranks, "--model", "gpt", "--device", device, *share, "--init", "start", "--seq", SEQUENCE, "--vocab",
                  SHAPE["vocab_size"], "--data", "tokens", "--precision", "fp32", "--optimizer", "adamw", "--lr", RATE,
                  "--epochs", STEPS, "--log-every", 1, "--baseline", "off", "--metrics", "metrics.jsonl",
                  *flags.split(), cwd=self.folder)  # fmt: skip
        return [line["loss"] for line in self.lines("metrics.jsonl") if line["event"] == "step"]

    def compare(self, device: str) -> None:
        torch.manual_seed(1)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SHAPE))
        (self.folder / "tokens").mkdir()
        windows = write_tokens(self.folder / "tokens")
        model.save_pretrained(self.folder / "start", safe_serialization=True)
        expected = losses_of_pytorch(model, windows)
        self.assertLess(expected[-1], 0.9 * expected[0])
        for layout, (ranks, flags) in LAYOUTS.items():
            with self.subTest(layout=layout):
                found = self.losses_of_ddptrain(device, ranks, flags)
                self.assertEqual(len(found), STEPS)
                apart = max(abs(ours / theirs - 1) for ours, theirs in zip(found, expected, strict=True))
                print(f"{layout}: losses differ by at most {apart:.1e}", flush=True)
                self.assertLess(apart, 2e-5)

    def test_cpus(self) -> None:
        self.compare("cpu")

    def test_gpus(self) -> None:
        if not torch.cuda.is_available():
            self.skipTest("needs a GPU")
        self.compare("cuda")


if __name__ == "__main__":
    unittest.main()
