"""What ddptrain --describe says, and what the planner makes of it: with the real program."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
from typing import Any

from tests.tools.plan.support import output
from tests.tools.support import AS_ROOT, BIN, find_mpirun, run_ranks, run_tool

GPT = ["--model=gpt", "--data=synthetic:4096:100", "--layers=2", "--width=32", "--heads=4", "--ff=128", "--seq=16"]
GPT += ["--vocab=100", "--batch=4"]


def described(*arguments: str, ranks: int = 1) -> dict[str, Any]:
    return json.loads(run_ranks(ranks, *arguments, "--describe").stdout)


def plan(*arguments: str) -> dict[str, Any]:
    return json.loads(output("--bin", str(BIN), "--json", *arguments))


@unittest.skipUnless((BIN / "ddptrain").exists(), f"no ddptrain in {BIN}")
class DescribeTest(unittest.TestCase):
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
        block_0 = layers["h.0.attn"]["flop_forward"] + layers["h.0.mlp"]["flop_forward"] / 2  # its expansion
        self.assertEqual(again["flop_backward_per_sample"] - found["flop_backward_per_sample"], block_0)
        stages = described(*GPT, "--recompute=block", "--device=cpu", "--pp=2", "--ranks=2")
        self.assertEqual(stages["layers"], found["layers"])  # each block is the last one of a stage
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
        self.assertTrue(0.7 < embedding["complete_at"] < 1.0)  # tied; before block 0's weight gradients
        two = described(*GPT, "--zero=1", ranks=2)
        self.assertEqual(two["world_size"], 2)
        whole = described(*GPT)["memory"]
        self.assertAlmostEqual(two["memory"]["optimizer"] / whole["optimizer"], 0.5, delta=0.1)

    def test_what_a_rank_sends_on_each_axis(self) -> None:
        """Bytes as the pages of docs/concepts have them, numbers of messages as a run has them."""
        shape = [flag for flag in GPT if "layers" not in flag] + ["--layers=4", "--grad-accum=2", "--device=cpu"]
        activation = 4 * 16 * 32 * 4
        for ranks, flags, spans, sent in (
            (2, ["--zero=0"], {"bucket N gradients": 1}, {("data", "backward"): lambda n, tied: n}),
            (4, ["--zero=1"], {"bucket N gradients": 1}, {("gather", "update"): lambda n, tied: n * 3 / 4}),
            (4, ["--zero=3"], {"bucket N gradients": 12, "bucket N weights": 9},
             {("data", "backward"): lambda n, tied: 2 * n * 3 / 4}),
            (4, ["--zero=3", "--pp=2"], {"bucket N weights": 3},
             {("pipeline", "forward"): lambda n, tied: 2 * 2 * activation + tied,
              ("pipeline", "backward"): lambda n, tied: 2 * (activation + tied)}),
            (2, ["--tp=2"], {"exchange of split layers": 2 * (2 * 17 + 2 + 2 * 18)},  # each in two chunks but two
             {("tensor", "forward"): lambda n, tied: 2 * (18 * activation / 2 + 16 * 4 * 16),
              ("tensor", "backward"): lambda n, tied: 2 * (18 * activation / 2 + 9 * 16 * 32 / 2)}),
            (2, ["--tp=2", "--recompute=selective"], {"exchange of split layers": 2 * (2 * 17 + 2 + 2 * 18 + 2 * 6)},
             {("tensor", "forward"): lambda n, tied: 2 * (24 * activation / 2 + 16 * 4 * 16)}),
            (2, ["--tp=2", "--recompute=block"], {"exchange of split layers": 2 * (2 * 17 + 2 + 2 * 18 + 2 * 9)},
             {("tensor", "forward"): lambda n, tied: 2 * (27 * activation / 2 + 16 * 4 * 16)}),
        ):  # fmt: skip
            with self.subTest(flags=flags), tempfile.TemporaryDirectory() as folder:
                trace = pathlib.Path(folder) / "trace.json"
                run_ranks(ranks, *shape, *flags, "--steps=3", "--baseline=off", f"--trace={trace}")
                found = described(*shape, *flags, f"--ranks={ranks}")
                self.assertEqual(found, described(*shape, *flags, ranks=ranks))
                sends = {(sent["axis"], sent["when"]): sent for sent in found["sends"]}
                tied = 128 * 32 * 4  # with padding
                for kind, expected in sent.items():
                    self.assertEqual(sends[kind]["bytes"], expected(found["comm_bytes_per_step"], tied), kind)
                events = json.loads(trace.read_text())["traceEvents"]
                of_rank = [re.sub(r"\d+", "N", event["name"]) for event in events if event["pid"] == 0]
                for name, count in spans.items():
                    self.assertEqual(of_rank.count(name) / of_rank.count("step N"), count, name)
                told = {name: sum(sent["times"] for (axis, _), sent in sends.items() if axis == of)
                        for name, of in (("bucket N gradients", "data"), ("bucket N weights", "gather"))}  # fmt: skip
                for name in told.keys() & spans.keys():
                    self.assertEqual(told[name], spans[name], name)
                together = 2 * 10 if "--tp=2" in flags else 0  # two gathers in one, and two sums of the embedding
                self.assertEqual(sum(sent["times"] for (axis, _), sent in sends.items() if axis == "tensor"),
                                 spans.get("exchange of split layers", 0) + together)  # fmt: skip
        self.assertEqual(described(*shape)["sends"], [])
        self.assertEqual(described(*shape, "--overlap=none", "--ranks=2")["sends"], [])

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
        hosts = ["--model", "cnn", "--nodes", "2", "--gpus-per-node", "2", "--network", "0.1", "--tflops", "1", "--", "--device=cpu", "--comm=mpi"]
        together, apart = (plan(*hosts, *flags)["predictions"][0] for flags in ([], ["--hierarchical=off"]))
        self.assertAlmostEqual(apart["communication_seconds"] / together["communication_seconds"], 2.0, places=2)
        self.assertEqual((together["algorithm"], together["protocol"]), ("MPI", ""))
        without = [flag for flag in hosts if flag not in ("--network", "0.1")]
        done = run_tool("ddpplan", "--bin", BIN, *without, code=2)
        self.assertRegex(done.stderr, "^ddpplan: --network: CPUs have no default: .*\n$")

    def test_memory_of_libraries(self) -> None:
        def libraries(ranks: int, *flags: str) -> int:
            return described(*GPT, "--device=cuda", f"--ranks={ranks}", *flags)["memory"]["libraries"]

        for ranks, flags, gigabytes, shared in (
            (1, [], 0.574, 0.658),
            (2, ["--zero=0"], 1.304, 0.658),
            (2, ["--zero=3"], 1.304, 0.838),
            (2, ["--pp=2"], 2.222, 1.039),
            (2, ["--tp=2"], 1.574, 0.998),
            (4, ["--tp=2", "--zero=1"], 1.814, 1.178),
        ):
            self.assertAlmostEqual(libraries(ranks, *flags) / 1e9, gigabytes, places=3, msg=flags)
            self.assertAlmostEqual(libraries(ranks, *flags, "--share-gpu") / 1e9, shared, places=3, msg=flags)

    def test_memory_of_attention(self) -> None:
        """All GPUs have the same kernels in fp32, which keep a number per sample, head and token. The kernel in bf16 for
        sequences of 16 tokens keeps nothing."""
        gpu = described(*GPT, "--device=cuda", "--precision=fp32")["memory"]
        self.assertEqual(gpu["attention"], 4 * 4 * 4 * 16)
        self.assertEqual(described(*GPT, "--device=cuda", "--precision=bf16")["memory"]["attention"], 0)
        deep = [flag for flag in GPT if "layers" not in flag] + ["--layers=8", "--device=cuda", "--precision=fp32"]
        self.assertEqual(described(*deep)["memory"]["attention"], gpu["attention"])
        of_half = described(*deep, "--tp=2", "--ranks=2")["memory"]["attention"]  # of the heads, and of the samples
        self.assertEqual(of_half, gpu["attention"] // 4)
        self.assertNotIn("attention", described(*GPT, "--device=cpu")["memory"])
        table = run_ranks(1, *deep, "--dry-run").stdout
        self.assertRegex(table, r"(?m)^attention +1\.02 kB$")

    def test_memory_of_a_group(self) -> None:
        group = ["--device=cpu", "--outer=redis://here/run", "--group=a"]
        plain = described(*GPT, "--device=cpu")
        if "without hiredis" in run_ranks(1, *GPT, *group, "--print-config", code=None).stderr:
            self.skipTest("this build has no hiredis")
        count = plain["parameters"]
        int8, fp32 = -(-count // 64) * 2 + count, 4 * count
        for flags, expected in (([], 28 * count + 5 * int8),
                                (["--outer-dtype=fp32", "--outer-groups=4"], 36 * count + 11 * fp32),
                                (["--outer-fragments=4"], 16 * count + 2 * int8)):  # fmt: skip
            memory = described(*GPT, *group, *flags)["memory"]
            self.assertAlmostEqual(memory["outer state"] / expected, 1.0, places=3, msg=flags)
            self.assertEqual(memory | plain["memory"], memory, flags)

    def test_memory_of_a_process_is_what_a_run_takes(self) -> None:
        """On CPUs. A layer of 67 MB shows copies of buckets at the start and at the end."""
        run = ["--model=mlp", "--hidden=4096", "--data=synthetic:600", "--batch=8", "--eval-samples=8", "--device=cpu"]
        for ranks, flags in ((1, []), (2, []), (2, ["--zero=1"]), (2, ["--checkpoint=c"])):
            told = sum(described(*run, *flags, f"--ranks={ranks}")["memory"].values())
            for peak in self.peaks(ranks, *run, "--steps=2", "--baseline=off", *flags):
                self.assertLess(peak, 1.02 * told, flags)
                self.assertGreater(peak, 0.7 * told, flags)

    def peaks(self, ranks: int, *flags: str) -> list[int]:
        """Most memory of each rank, in bytes."""
        watch = ("import os, resource, subprocess, sys; code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL); "
                 "peak = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss; "
                 "os.write(1, b'peak %d\\n' % peak); sys.exit(code)")  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            command = [*find_mpirun().here(), "-np", str(ranks), sys.executable, "-c", watch, str(BIN / "ddptrain")]
            done = subprocess.run(["mpirun", *command, *flags], cwd=folder, env=os.environ | AS_ROOT, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = [int(peak) for peak in re.findall(r"peak (\d+)", done.stdout)]
        self.assertEqual(len(found), ranks, done.stdout)
        return found

    def test_what_people_are_told(self) -> None:
        done = run_ranks(1, *GPT, "--dry-run")
        for name in ("weights", "gradients", "optimizer", "activations", "all"):
            self.assertRegex(done.stdout.lower(), rf"(?m)^{name} +[\d.]+ [kmg]?b", name)
        self.assertNotIn("Epoch", done.stdout)
        done = run_ranks(1, *GPT, "--describe", "--batch=0", code=2)
        self.assertEqual(done.stdout, "")
        self.assertIn("--batch 0", done.stderr)
