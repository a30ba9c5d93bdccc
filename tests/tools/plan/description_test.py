"""What ddptrain --describe says, and what the planner and the report make of it: with the real program."""

import contextlib
import io
import json
import unittest
from typing import Any

from ddptools.plan import program
from tests.tools.report.support import ReportCase
from tests.tools.support import BIN, ROOT, run_ranks, run_tool

GPT = ["--model=gpt", "--data=synthetic:4096:100", "--layers=2", "--width=32", "--heads=4", "--ff=128", "--seq=16"]
GPT += ["--vocab=100", "--batch=4"]


def described(*arguments: str, ranks: int = 1) -> dict[str, Any]:
    return json.loads(run_ranks(ranks, *arguments, "--describe").stdout)


def plan(*arguments: str) -> dict[str, Any]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        program.main(["--bin", str(BIN), "--json", *arguments])
    return json.loads(out.getvalue())


@unittest.skipUnless((BIN / "ddptrain").exists(), f"no ddptrain in {BIN}")
class DescribeTest(ReportCase):
    def test_parameters_are_those_of_the_published_models(self) -> None:
        for name, count in (("gpt2-124m", 124_439_808), ("gpt2-355m", 354_823_168), ("gpt2-774m", 774_030_080),
                            ("gpt2-1558m", 1_557_611_200), ("cnn", 1_199_882)):  # fmt: skip
            found = described(f"--config={ROOT}/configs/{name}.toml", "--data=synthetic", "--device=cuda")
            self.assertEqual(found["parameters"], count)
            self.assertEqual(found["gradient_dtype"], "bf16")
            self.assertTrue(0 <= found["comm_bytes_per_step"] / (2 * count) - 1 < 0.01, name)

    def test_flop_of_the_cnn(self) -> None:
        found = described("--model=cnn", "--data=synthetic:1024")
        self.assertEqual(found["flop_per_sample"], 71_565_312)
        layers = {layer["name"]: (layer["flop_forward"], layer["flop_backward"]) for layer in found["layers"]}
        conv2, fc1, fc2 = (2 * 24 * 24 * 9 * 32 * 64, 2 * 9216 * 128, 2 * 128 * 10)
        self.assertEqual(layers["conv1"], (2 * 26 * 26 * 9 * 32,) * 2)  # images need no gradient
        self.assertEqual([layers[name] for name in ("conv2", "fc1", "fc2")], [(n, 2 * n) for n in (conv2, fc1, fc2)])
        total = sum(forward + backward for forward, backward in layers.values())
        self.assertEqual(total, found["flop_per_sample"])
        self.assertEqual(found["flop_forward_per_sample"] + found["flop_backward_per_sample"], total)

    def test_flop_of_a_gpt(self) -> None:
        found = described(*GPT)
        layers = {layer["name"]: layer for layer in found["layers"]}
        sequence, width = 16, 32
        scores = 2 * 2 * sequence * sequence * width
        attention = 2 * sequence * 4 * width * width
        self.assertEqual(layers["h.1.attn"]["flop_forward"], attention + scores)
        self.assertEqual(
            layers["h.1.attn"]["flop_forward_causal"], attention + scores * (sequence + 1) / (2 * sequence)
        )
        self.assertEqual(layers["h.0.mlp"]["flop_forward"], 2 * sequence * 2 * width * 128)
        self.assertEqual(layers["lm_head"]["flop_forward"], 2 * sequence * width * 100)
        for layer in layers.values():
            self.assertEqual(layer["flop_backward"], 2 * layer["flop_forward"])
        again = described(*GPT, "--recompute=block")
        first_block = layers["h.0.attn"]["flop_forward"] + layers["h.0.mlp"]["flop_forward"] / 2  # its expansion
        self.assertEqual(again["flop_backward_per_sample"] - found["flop_backward_per_sample"], first_block)
        self.assertEqual(again["flop_per_sample"], found["flop_per_sample"])  # MFU does not count it
        self.assertLess(again["memory"]["activations"], found["memory"]["activations"])

    def test_buckets(self) -> None:
        one = described(*GPT, "--bucket-mb=0.01", "--last-bucket-kb=4")
        self.assertGreater(len(one["buckets"]), 3)
        complete = [bucket["complete_at"] for bucket in one["buckets"]]
        self.assertEqual(complete, sorted(complete))
        self.assertTrue(0.0 < complete[0] < complete[-1] == 1.0)
        names = [name for bucket in one["buckets"] for name in bucket["parameters"]]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(sum(bucket["bytes"] for bucket in one["buckets"]), one["comm_bytes_per_step"])
        self.assertGreaterEqual(one["comm_bytes_per_step"], 4 * one["parameters"])
        self.assertEqual(one["memory"]["gradients"], one["comm_bytes_per_step"])
        embedding = next(bucket for bucket in one["buckets"] if "wte.weight" in bucket["parameters"])
        self.assertTrue(0.7 < embedding["complete_at"] < 1.0)  # tied; before the first block's weight gradients
        two = described(*GPT, "--zero=1", ranks=2)
        self.assertEqual(two["world_size"], 2)
        whole = described(*GPT)["memory"]
        self.assertAlmostEqual(two["memory"]["optimizer"] / whole["optimizer"], 0.5, delta=0.1)

    def test_the_type_that_is_sent(self) -> None:
        for flags, dtype, size in ((["--precision=fp8"], "bf16", 2), (["--precision=bf16"], "bf16", 2),
                                   (["--comm-dtype=fp32"], "fp32", 4), (["--precision=fp32"], "fp32", 4)):  # fmt: skip
            found = described(*GPT, "--device=cuda", *flags)
            self.assertEqual(found["gradient_dtype"], dtype, flags)
            self.assertTrue(0 <= found["comm_bytes_per_step"] / (size * found["parameters"]) - 1 < 0.1, flags)
            planned = plan("--model", "gpt", "--nodes", "2", "--", *GPT[1:], *flags)
            self.assertEqual(planned["case"]["work"]["gradient_dtype"], dtype)
            moved = planned["rule_of_thumb"]["bytes_to_move"]
            self.assertEqual(moved, 2 * found["comm_bytes_per_step"])

    def test_how_mpi_sums_over_hosts(self) -> None:
        cnn = ["--model=cnn", "--data=synthetic:1024"]
        for flags, told in (([], "on"), (["--hierarchical=off"], "off"), (["--device=cuda", "--hierarchical=off"], None),
                            (["--device=cuda", "--comm=mpi", "--hierarchical=off"], "off")):  # fmt: skip
            self.assertEqual(described(*cnn, "--device=cpu", *flags).get("hierarchical"), told, flags)
        hosts = ["--model", "cnn", "--nodes", "2", "--gpus-per-node", "2", "--network", "0.1", "--tflops", "1", "--", "--device=cpu"]
        together, apart = (plan(*hosts, *flags)["predictions"][0] for flags in ([], ["--hierarchical=off"]))
        self.assertAlmostEqual(apart["communication_seconds"] / together["communication_seconds"], 2.0, places=2)

    def test_flags_that_decide_parameters(self) -> None:
        for model, own in (([], set()), (GPT, {"layers", "width", "init", "val-fraction", "seq"})):
            found = set(described("--data=synthetic:4096", *model)["decides_parameters"])
            both = {"model", "config", "data", "batch", "micro-batch", "grad-accum", "seed", "steps", "epochs", "lr",
                    "momentum", "optimizer", "clip-norm", "warmup", "precision", "comm-dtype", "dropout"}  # fmt: skip
            self.assertEqual(found & (both | own), both | own)
            for name in ("bucket-mb", "overlap", "zero", "graph", "metrics", "threads", "fused", "recompute", "device",
                         "save", "log-every", "symmetric", "comm", "help", "describe", "eval-every"):  # fmt: skip
                self.assertNotIn(name, found)

    def test_people_get_a_table_of_memory(self) -> None:
        done = run_ranks(1, *GPT, "--dry-run")
        for name in ("weights", "gradients", "optimizer", "activations", "all"):
            self.assertRegex(done.stdout.lower(), rf"(?m)^{name} +[\d.]+ [kmg]?b", name)
        self.assertNotIn("Epoch", done.stdout)

    def test_mistakes_are_those_of_training(self) -> None:
        for flags, words in ((["--model=vgg"], "there is no such model"), (["--batch=0"], "--batch 0"),
                             (["--data=/none"], "--data")):  # fmt: skip
            done = run_ranks(1, "--describe", *flags, code=2)
            self.assertEqual(done.stdout, "", flags)
            self.assertIn(words, done.stderr)

    def test_runs_keep_it_in_their_summary_and_reports_read_it(self) -> None:
        sweep, out = self.folder / "rates.toml", self.folder / "out"
        sweep.write_text('repeats = 1\n[base]\ndevice = "cpu"\ndata = "synthetic:256"\nbatch = 16\nsteps = 4\n'
                         "log-every = 2\n[[product]]\nranks = 2\nlr = [0.1, 0.2]\nbucket-mb = [1, 25]\n")
        run_tool("ddpsweep", sweep, "--bin", BIN, "--out", out)
        runs = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
        expected = described("--device=cpu", "--data=synthetic:256", "--batch=16", "--bucket-mb=1", ranks=2)
        kept = next(r["summary"]["description"] for r in runs if r["settings"]["bucket-mb"] == 1)
        for field in ("parameters", "flop_forward_per_sample", "comm_bytes_per_step", "memory"):
            self.assertEqual(kept[field], expected[field], field)
        complete_at = [[bucket["complete_at"] for bucket in told["buckets"]] for told in (kept, expected)]
        self.assertEqual(*complete_at)
        markdown = self.report(out)
        self.assertIn("lr=0.1: All 2 settings end with the same parameters, bit by bit.", markdown)
        self.assertNotIn("sums in another order", markdown)
