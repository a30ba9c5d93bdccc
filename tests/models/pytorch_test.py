#!/usr/bin/env python3
"""Does ddptrain train as PyTorch does, does PyTorch get the same from the weights that it saves, and do both generate the
same text?

Training: transformers saves a small GPT-2, Llama, Qwen2 and Qwen3. PyTorch and ddptrain start from it and train 30 steps
of AdamW in fp32 on the same samples; every step has all of them, so their order does not matter. The losses agree within
2e-5.
"""

import array
import logging
import shutil
import struct
import sys
import unittest
import warnings
from pathlib import Path

try:
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError:
    torch = None

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.tools.support import FolderCase, run_ranks  # noqa: E402

SEQUENCE, SAMPLES, STEPS, RATE = 32, 16, 30, 1e-3
VOCABULARY = 96
SHAPE = {"vocab_size": VOCABULARY, "n_positions": SEQUENCE, "n_embd": 64, "n_layer": 4, "n_head": 4,
         "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # fmt: skip
LLAMA_SHAPE = {"vocab_size": VOCABULARY, "max_position_embeddings": 128, "hidden_size": 64, "intermediate_size": 96,
               "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": None,
               "eos_token_id": None, "pad_token_id": None}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}  # fmt: skip
LAYOUTS = {  # ranks, and flags with 16 samples per step
    "one rank": (1, "--batch 16"),
    "data 2": (2, "--batch 8"),
    "ZeRO-3": (2, "--batch 8 --zero 3"),
    "pipeline 2": (2, "--batch 4 --grad-accum 4 --pp 2"),
    "tensor 2": (2, "--batch 16 --tp 2"),
}


CONFIGS = {
    "plain": {"vocab_size": 97, "n_positions": 32, "n_embd": 48, "n_layer": 2, "n_head": 4},
    "feed-forward of its own, other epsilon": {
        "vocab_size": 50257, "n_positions": 16, "n_embd": 24, "n_layer": 1, "n_head": 2, "n_inner": 40,
        "layer_norm_epsilon": 1e-3},
}  # fmt: skip
CONFIG_KEYS = ["vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "layer_norm_epsilon", "activation_function"]


def make_models() -> "dict[str, transformers.PreTrainedModel]":
    """Models of `--model gpt` and `--model llama`, by name."""
    torch.manual_seed(1)
    llama3 = transformers.LlamaConfig(**LLAMA_SHAPE, rms_norm_eps=1e-5, rope_theta=500000.0, rope_scaling=LLAMA3,
                                      tie_word_embeddings=True)  # fmt: skip
    qwen2 = transformers.Qwen2Config(**LLAMA_SHAPE, rope_theta=1000000.0, tie_word_embeddings=True)
    qwen3 = transformers.Qwen3Config(**LLAMA_SHAPE, head_dim=24, rope_theta=1000000.0, tie_word_embeddings=False)
    models = {"GPT-2": transformers.GPT2LMHeadModel(transformers.GPT2Config(**SHAPE)),
              "Llama 3.2": transformers.LlamaForCausalLM(llama3),
              "Qwen2.5": transformers.Qwen2ForCausalLM(qwen2),
              "Qwen3": transformers.Qwen3ForCausalLM(qwen3)}  # fmt: skip
    for name, parameter in models["Qwen2.5"].named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.02)
    return models


def model_flag(name: str) -> str:
    return "gpt" if name == "GPT-2" else "llama"


def write_tokens(folder: Path) -> "torch.Tensor":
    """Token files for training and validation; returns the windows for training, [sample, SEQUENCE + 1]."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, VOCABULARY // 4, (SAMPLES * SEQUENCE + 1,), generator=generator)
    for part in ("train", "val"):
        (folder / f"{part}.bin").write_bytes(array.array("H", tokens.tolist()).tobytes())
    return torch.stack([tokens[i * SEQUENCE : (i + 1) * SEQUENCE + 1] for i in range(SAMPLES)])


def losses_of_pytorch(model: "transformers.PreTrainedModel", windows: "torch.Tensor") -> list[float]:
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
    def losses_of_ddptrain(self, model: str, device: str, ranks: int, flags: str) -> list[float]:
        (self.folder / "metrics.jsonl").unlink(missing_ok=True)
        share = ["--share-gpu"] if device == "cuda" and ranks > torch.cuda.device_count() else []
        run_ranks(ranks, "--model", model, "--device", device, *share, "--init", "start", "--seq", SEQUENCE, "--vocab",
                  VOCABULARY, "--data", "tokens", "--precision", "fp32", "--optimizer", "adamw", "--lr", RATE,
                  "--epochs", STEPS, "--log-every", 1, "--baseline", "off", "--metrics", "metrics.jsonl",
                  *flags.split(), cwd=self.folder)  # fmt: skip
        return [line["loss"] for line in self.lines("metrics.jsonl") if line["event"] == "step"]

    def compare(self, device: str, name: str, layouts: dict[str, tuple[int, str]]) -> None:
        model = make_models()[name]
        (self.folder / "tokens").mkdir()
        windows = write_tokens(self.folder / "tokens")
        model.save_pretrained(self.folder / "start", safe_serialization=True)
        expected = losses_of_pytorch(model, windows)
        self.assertLess(expected[-1], 0.9 * expected[0])
        for layout, (ranks, flags) in layouts.items():
            with self.subTest(layout=layout):
                found = self.losses_of_ddptrain(model_flag(name), device, ranks, flags)
                self.assertEqual(len(found), STEPS)
                apart = max(abs(ours / theirs - 1) for ours, theirs in zip(found, expected, strict=True))
                print(f"{name}, {layout}: losses differ by at most {apart:.1e}", flush=True)
                self.assertLess(apart, 2e-5)

    def test_gpt2_on_cpus(self) -> None:
        self.compare("cpu", "GPT-2", LAYOUTS)

    def test_llama_on_cpus(self) -> None:
        self.compare("cpu", "Llama 3.2", LAYOUTS)

    def test_qwen2_on_cpus(self) -> None:
        self.compare("cpu", "Qwen2.5", {"one rank": LAYOUTS["one rank"], "tensor 2": LAYOUTS["tensor 2"]})

    def test_qwen3_on_cpus(self) -> None:
        self.compare("cpu", "Qwen3", {"one rank": LAYOUTS["one rank"], "tensor 2": LAYOUTS["tensor 2"]})

    def test_models_on_gpus(self) -> None:
        if not torch.cuda.is_available():
            self.skipTest("needs a GPU")
        for name in make_models():
            with self.subTest(name):
                self.compare("cuda", name, LAYOUTS)
                shutil.rmtree(self.folder / "tokens")
                shutil.rmtree(self.folder / "start")


REAL_SHAPES = {
    "Qwen2.5-0.5B": ("Qwen2", {"vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
                               "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
                               "rope_theta": 1000000.0, "rms_norm_eps": 1e-6}),
    "Llama 3.2 1B": ("Llama", {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
                               "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
                               "head_dim": 64, "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
                               "rope_scaling": {**LLAMA3, "factor": 32.0, "original_max_position_embeddings": 8192}}),
}  # fmt: skip


@unittest.skipIf(torch is None or not torch.cuda.is_available(), "needs torch, transformers and a GPU")
class RealShapesTest(FolderCase):
    """Random weights in the sizes of published models. A window's loss is a mean over few tokens, so that it shows what
    its logits are; the order of the windows is that of training, which is not known here, so they are sorted."""

    WINDOWS, LENGTH = 16, 64

    def make_model(self, kind: str, settings: dict) -> "transformers.PreTrainedModel":
        torch.manual_seed(1)
        config = getattr(transformers, f"{kind}Config")(
            **settings, max_position_embeddings=4096, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
            pad_token_id=None)  # fmt: skip
        model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(2.0)
                parameter.copy_(parameter.to(torch.bfloat16))
        return model

    def losses_of_ddptrain(self, precision: str) -> list[float]:
        (self.folder / "metrics.jsonl").unlink(missing_ok=True)
        run_ranks(1, "--model", "llama", "--device", "cuda", "--init", "start", "--seq", self.LENGTH, "--data", "tokens",
                  "--precision", precision, "--optimizer", "adamw", "--lr", 1e-30, "--batch", 1, "--epochs", 1,
                  "--log-every", 1, "--baseline", "off", "--metrics", "metrics.jsonl", cwd=self.folder)  # fmt: skip
        return sorted(line["loss"] for line in self.lines("metrics.jsonl") if line["event"] == "step")

    def test_losses_are_those_of_transformers(self) -> None:
        (self.folder / "tokens").mkdir()
        generator = torch.Generator().manual_seed(5)
        tokens = torch.randint(0, 65536, (self.WINDOWS * self.LENGTH + 1,), generator=generator)
        for part in ("train", "val"):
            (self.folder / "tokens" / f"{part}.bin").write_bytes(array.array("H", tokens.tolist()).tobytes())
        starts = range(0, self.WINDOWS * self.LENGTH, self.LENGTH)
        windows = torch.stack([tokens[i : i + self.LENGTH + 1] for i in starts]).cuda()
        for name, (kind, settings) in REAL_SHAPES.items():
            model = self.make_model(kind, settings)
            model.save_pretrained(self.folder / "start", safe_serialization=True)
            expected = []
            with torch.no_grad():
                model.cuda()
                for window in windows:
                    logits = model(window[None, :-1]).logits[0]
                    expected.append(torch.nn.functional.cross_entropy(logits, window[1:]).item())
            del model, logits
            torch.cuda.empty_cache()
            self.assertGreater(max(expected) - min(expected), 0.1)
            for precision, most in (("fp32", 1e-4), ("bf16", 1e-2)):
                with self.subTest(name, precision=precision):
                    found = self.losses_of_ddptrain(precision)
                    self.assertEqual(len(found), self.WINDOWS)
                    apart = max(abs(ours - theirs) for ours, theirs in zip(found, sorted(expected), strict=True))
                    print(f"{name}, {precision}: losses of windows differ by at most {apart:.1e}", flush=True)
                    self.assertLess(apart, most)
            shutil.rmtree(self.folder / "start")


def random_gpt2(settings: dict) -> "transformers.GPT2LMHeadModel":
    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return model


def write_images(folder: Path) -> "tuple[torch.Tensor, torch.Tensor]":
    """An IDX data set of noisy stripes; returns what is for testing."""
    generator = torch.Generator().manual_seed(3)
    for part, count in (("train", 2000), ("t10k", 500)):
        labels = torch.randint(0, 7, (count,), generator=generator)
        rows = torch.arange(28).reshape(1, 28, 1) * (labels.reshape(-1, 1, 1) + 1) * 9 % 256
        noise = torch.randint(0, 256, (count, 28, 28), generator=generator)
        images = ((rows + 2 * noise) // 3).to(torch.uint8)
        header = struct.pack(">4I", 0x0803, count, 28, 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + images.numpy().tobytes())
        header = struct.pack(">2I", 0x0801, count)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(header + labels.to(torch.uint8).numpy().tobytes())
    return images, labels


def cnn_logits(weights: "dict[str, torch.Tensor]", images: "torch.Tensor") -> "torch.Tensor":
    def layer(apply, name: str, x: "torch.Tensor") -> "torch.Tensor":
        return apply(x, weights.pop(f"{name}.weight"), weights.pop(f"{name}.bias"))

    functions = torch.nn.functional
    x = torch.relu(layer(functions.conv2d, "conv1", images.to(torch.float32).unsqueeze(1) / 255))
    x = functions.max_pool2d(torch.relu(layer(functions.conv2d, "conv2", x)), 2)
    return layer(functions.linear, "fc2", torch.relu(layer(functions.linear, "fc1", torch.flatten(x, 1))))


@unittest.skipIf(torch is None, "needs torch and transformers")
class GenerationTest(FolderCase):
    """Greedy text of 64 tokens, from prompts of several lengths."""

    PROMPTS = ((5, 3, 60, 7), (1,), (9, 9, 9, 2, 44, 17, 3, 80, 6, 12, 12, 90))

    def texts_of_pytorch(self, model: "transformers.PreTrainedModel", tokens: int) -> list[list[int]]:
        texts = []
        for prompt in self.PROMPTS:
            known = torch.tensor([prompt])
            with torch.no_grad():
                text = model.generate(known, attention_mask=torch.ones_like(known), max_new_tokens=tokens,
                                      do_sample=False, pad_token_id=0)  # fmt: skip
            texts.append(text[0, len(prompt) :].tolist())
        return texts

    def test_greedy_text_is_that_of_transformers(self) -> None:
        self.compare("cpu", ((1, ""), (2, "--tp 2"), (2, "--pp 2"), (4, "--tp 2"), (4, "--tp 2 --pp 2")))

    def test_greedy_text_on_gpus(self) -> None:
        if not torch.cuda.is_available():
            self.skipTest("needs a GPU")
        share = " --share-gpu" if torch.cuda.device_count() < 2 else ""
        self.compare("cuda", ((1, ""), (2, "--tp 2" + share), (2, "--pp 2" + share)))

    def compare(self, device: str, layouts: tuple[tuple[int, str], ...]) -> None:
        (self.folder / "prompts").write_text("".join(" ".join(map(str, prompt)) + "\n" for prompt in self.PROMPTS))
        for name, model in make_models().items():
            tokens = 20 if name == "GPT-2" else 64
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(3.0)  # so that texts are no repetition of one token
            model.save_pretrained(self.folder / "start", safe_serialization=True)
            expected = self.texts_of_pytorch(model.eval(), tokens)
            self.assertGreater(len({token for text in expected for token in text}), 5)
            for ranks, flags in layouts:
                with self.subTest(name, flags=flags):
                    output = run_ranks(ranks, "--generate", "--model", model_flag(name), "--device", device, "--precision",
                                       "fp32", "--init", "start", "--prompts", "prompts", "--max-tokens", tokens,
                                       "--temperature", 0, *flags.split(), cwd=self.folder).stdout  # fmt: skip
                    lines = output.splitlines()[: len(self.PROMPTS)]
                    self.assertEqual([[int(word) for word in line.split()] for line in lines], expected)


@unittest.skipIf(torch is None, "needs torch and transformers")
class SavedWeightsTest(FolderCase):
    def load_strictly(self, kind: type | None = None) -> "transformers.PreTrainedModel":
        """As a user would, except that every complaint is an error."""
        kind = kind or transformers.GPT2LMHeadModel
        with self.assertNoLogs("transformers", logging.WARNING), warnings.catch_warnings():
            warnings.simplefilter("error")
            loaded = kind.from_pretrained(self.folder / "saved", output_loading_info=True)
        model, info = loaded
        self.assertEqual({what: names for what, names in info.items() if names}, {})
        return model.eval()

    def test_transformers_read_what_every_mesh_saves_and_exports(self) -> None:
        (self.folder / "tokens").mkdir()
        write_tokens(self.folder / "tokens")
        for name, original in make_models().items():
            original.save_pretrained(self.folder / "start", safe_serialization=True)
            common = ["--model", model_flag(name), "--device", "cpu", "--init", "start", "--seq", SEQUENCE, "--vocab",
                      VOCABULARY, "--data", "tokens", "--batch", 4, "--steps", 1, "--lr", 1e-30]  # fmt: skip
            for ranks, flags in ((1, ""), (2, "--pp 2"), (4, "--pp 2 --tp 2"), (4, "--tp 2 --zero 3")):
                for export in (False, True):
                    with self.subTest(name, flags=flags, export=export), torch.no_grad():
                        for folder in ("saved", "checkpoint"):
                            shutil.rmtree(self.folder / folder, ignore_errors=True)
                        output = ["--checkpoint", "checkpoint"] if export else ["--save", "saved"]
                        run_ranks(ranks, *common, *flags.split(), *output, cwd=self.folder)
                        if export:
                            run_ranks(1, "--resume", "checkpoint", "--export", "saved", cwd=self.folder)
                        copy = self.load_strictly(type(original))
                        tokens = torch.arange(20).reshape(2, 10)
                        self.assertTrue(torch.equal(copy(tokens).logits, original.eval()(tokens).logits))

    def test_transformers_read_them(self) -> None:
        (self.folder / "tokens").mkdir()
        write_tokens(self.folder / "tokens")
        for name, settings in CONFIGS.items():
            with self.subTest(name), torch.no_grad():
                original = random_gpt2(settings)
                original.save_pretrained(self.folder / "start", safe_serialization=True)
                # A step that is too short to change a weight.
                run_ranks(1, "--model", "gpt", "--device", "cpu", "--init", "start", "--seq", settings["n_positions"],
                          "--vocab", settings["vocab_size"], "--data", "tokens", "--batch", 1, "--steps", 1, "--lr", 1e-30,
                          "--save", "saved", cwd=self.folder)  # fmt: skip
                copy = self.load_strictly()
                for key in CONFIG_KEYS:
                    self.assertEqual(getattr(copy.config, key), getattr(original.config, key), key)
                state = copy.state_dict()
                self.assertEqual(state.keys(), original.state_dict().keys())
                for name, tensor in original.state_dict().items():
                    self.assertTrue(torch.equal(state[name], tensor), name)
                tokens = torch.arange(20).reshape(2, 10)
                self.assertTrue(torch.equal(copy(tokens).logits, original(tokens).logits))

    def test_a_cnn_of_pytorch_has_the_same_loss_and_accuracy(self) -> None:
        images, labels = write_images(self.folder)
        common = ["--device", "cpu", "--data", self.folder]
        run_ranks(1, *common, "--epochs", 1, "--batch", 50, "--baseline", "off", "--save", "saved", cwd=self.folder)
        run_ranks(1, *common, "--evaluate", "--init", "saved", "--metrics", "evaluated.jsonl", cwd=self.folder)
        found = self.lines("evaluated.jsonl")[0]
        weights = load_file(self.folder / "saved" / "model.safetensors")
        logits = cnn_logits(weights, images)
        self.assertEqual(weights, {}, "no part of the network")
        loss = torch.nn.functional.cross_entropy(logits, labels).item()
        accuracy = (logits.argmax(1) == labels).to(torch.float64).mean().item()
        self.assertAlmostEqual(found["test_loss"] / loss, 1.0, delta=1e-4)
        self.assertLessEqual(abs(found["accuracy"] - accuracy), 1 / len(labels))  # logits that are nearly the same


if __name__ == "__main__":
    unittest.main()
