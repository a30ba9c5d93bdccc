"""What ddpplan predicts, and what it prints."""

import contextlib
import dataclasses
import json
import math
import pathlib
import random
import tempfile
import unittest
from typing import Any
from unittest import mock

from ddptools.common.errors import UsageError
from ddptools.plan import nccl_model, program
from ddptools.plan.nccl_model import Fabric
from ddptools.plan.prediction import Case, NetworkFit, exposed_seconds, needed_gbs, predict
from ddptools.results import description
from ddptools.results.description import Buckets, NotDescribed, language_model, parsed
from tests.tools.plan.support import BIN, PROGRAMS, output
from tests.tools.support import ROOT, cnn_description, gpt2_description, record, run_tool

EXPERIMENT_7 = ["--params", "2B", "--seq", "2048", "--global-batch", "16", "--gradients", "fp32", "--recompute",
                "--tflops", "156", "--nodes", "1"]  # fmt: skip


def case(**changes: Any) -> Case:
    return dataclasses.replace(Case(work=language_model(1e9, 1024), batch=8.0, tflops=400.0), **changes)


class ArithmeticTest(unittest.TestCase):
    """The published figures: 2 B parameters, fp32 gradients, 8 GPUs."""

    def test_the_program_prints_them(self) -> None:
        rows = {line.split()[0]: line for line in output(*EXPERIMENT_7).splitlines() if line.split()}
        self.assertIn("65.5 TFLOP per GPU", rows["Compute"])
        self.assertIn("0.420 s", rows["Compute"])
        self.assertIn("16.0 GB", rows["To"])
        self.assertIn("14.0 GB", rows["To"])
        for name, seconds, bound in (("nvlink3", "0.0533", "compute"), ("nvlink4", "0.0356", "compute"),
                                     ("hdr", "0.640", "communication"), ("ndr", "0.320", "compute")):  # fmt: skip
            self.assertIn(f" {seconds} ", rows[name])
            self.assertTrue(rows[name].rstrip().endswith(bound))

    def test_the_gpu_is_named(self) -> None:
        for more, gpu in (((), "H200 (default), peak 989 TFLOP/s"), (("--gpu", "h200"), "H200, peak 989 TFLOP/s"),
                          (("--gpu", "a100"), "A100, peak 312 TFLOP/s")):  # fmt: skip
            self.assertIn(f"\nGPU       {gpu}\n", output(*EXPERIMENT_7, *more))

    def test_the_effects_that_it_leaves_out_are_named(self) -> None:
        effect = "compute that slows down while it overlaps with communication (--interference)"
        for more, named in (((), True), (("--interference", "0.2"), False)):
            words = output(*EXPERIMENT_7, *more)
            self.assertRegex(words, r"(?s)Steps:.*\nUpper limits: the prediction leaves out .*  - ranks that compute at different")
            self.assertEqual(effect in words, named)
            self.assertEqual(effect in json.loads(output(*EXPERIMENT_7, *more, "--json"))["leaves_out"], named)

    def test_groups_that_share_a_log(self) -> None:
        flags = [*EXPERIMENT_7, "--outer-groups", "4", "--outer-steps", "100", "--wire", "10"]
        result = json.loads(output(*flags, "--json"))
        (exchange,), step = result["groups"]["exchanges"], result["predictions"][0]["step_seconds"]
        size = 2e9 * (1 + 2 / 64)
        self.assertEqual((exchange["sent_bytes"], exchange["received_bytes"]), (size, 4 * size))
        self.assertAlmostEqual(exchange["wire_seconds"], 16 * size * 8 / 10e9)  # the server sends all to all
        self.assertAlmostEqual(exchange["efficiency"], 100 * step / (100 * step + exchange["wire_seconds"]))
        self.assertAlmostEqual(exchange["fewer"], 100 * 2e9 * 4 * 2 * 2 * 3 / 4 / (5 * size))
        delayed = json.loads(output(*flags, "--outer-delay", "50", "--outer-dtype", "int4", "--json"))["groups"]["exchanges"][0]
        self.assertAlmostEqual(delayed["still_seconds"], max(0.0, delayed["wire_seconds"] - 50 * step))
        self.assertLess(delayed["wire_seconds"], 0.6 * exchange["wire_seconds"])
        text = output(*flags)
        self.assertIn("4 groups, an exchange every 100 steps, int8, 10 Gbit/s:", text)
        self.assertIn("  waits s  ", text)
        self.assertTrue(text.endswith("\nThroughput is relative to groups that exchange nothing.\n"), text)
        least = output(*EXPERIMENT_7, "--outer-groups", "1", "--outer-steps", "1", "--outer-delay", "0")
        self.assertIn("1 group, an exchange every step, int8, 1 Gbit/s:", least)
        for wrong, says in ((["--outer-steps", "5"], "add --outer-groups N"), (["--wire", "1"], "add --outer-groups N"),
                            (["--outer-groups", "2", "--outer-delay", "50"], "give less than --outer-steps 50"),
                            (["--outer-groups", "2", "--mesh", "8"], "leave it or --mesh out")):  # fmt: skip
            with self.assertRaisesRegex(UsageError, says):
                program.parse(["--params", "1B", *wrong] if "--mesh" not in wrong else wrong)

    def test_without_overlap_a_step_takes_longer(self) -> None:
        steps = [json.loads(output(*EXPERIMENT_7, "--overlap", overlap, "--json"))["predictions"][0]["step_seconds"]
                 for overlap in ("on", "off")]  # fmt: skip
        self.assertLess(*steps)

    def test_one_node_is_bound_by_compute_and_four_over_hdr_are_not(self) -> None:
        arguments = [a if a != "16" else "64" for a in EXPERIMENT_7[:-1]]
        result = json.loads(output(*arguments, "1,4", "--gpu", "a100", "--nics", "1", "--json"))
        self.assertEqual([p["bound"] for p in result["predictions"]], ["compute", "communication"])


class DescriptionTest(unittest.TestCase):
    def test_damaged_descriptions_are_none(self) -> None:
        values = [None, "x", -1, 0, 1e400, math.nan, [], {}, True, 10**400, [1], [{}], [{"bytes": 1, "complete_at": 2}]]
        needed = cnn_description().keys() - {"model", "gradient_dtype", "decides_parameters"}
        for value in values:
            self.assertIsNone(parsed(value))
            for name in cnn_description():
                found = parsed(cnn_description(**{name: value}))
                self.assertTrue(found is None or name not in needed, (name, value))

    def test_sizes_without_a_model_come_evenly(self) -> None:
        work = language_model(1e9, 1024, bucket_bytes=3e8, last_bucket_bytes=2e8, gradient_dtype="bf16")
        self.assertEqual(work.buckets, (Buckets(3e8, 0.15, 0.9, 6), Buckets(2e8, 1.0, 1.0)))
        self.assertEqual((work.gradient_bytes, work.flop), (2e9, 6e9 * 1024))
        self.assertEqual(language_model(1e9, 1024, gradient_dtype="fp32").gradient_bytes, 4e9)

    def test_runs_without_a_description_are_described_by_their_settings(self) -> None:
        settings = {"ranks": 2, "gpus": "all", "config": "configs/cnn.toml", "batch_per_rank": 7, "NCCL_ALGO": "Ring"}
        kept = {"parameter_hash": "a"}
        records = [record("new", 0, 1.0, settings, summary=kept | {"description": 3}),
                   record("old", 0, 1.0, settings, summary=kept),
                   record("other", 0, 1.0, settings | {"config": "x"}, summary=kept),
                   record("failed", 0, None, settings),
                   record("damaged", 0, 1.0, {"\0": []}, summary=kept)]  # fmt: skip
        description.complete(records, BIN / "ddptrain")
        found = [made.get("summary", {}).get("description") for made in records]
        self.assertEqual((found[0], *found[2:]), (3, None, None, None))
        self.assertEqual((found[1]["model"], found[1]["batch_per_rank"]), ("cnn", 7))
        description.complete(records[:2], BIN / "none")  # both are described
        with self.assertRaisesRegex(NotDescribed, "none is missing"):
            description.complete([record("old", 0, 1.0, settings, summary=kept)], BIN / "none")


class NcclModelTest(unittest.TestCase):
    """Against the formulas of NCCL's tuning.cc, worked out by hand."""

    one = Fabric(ranks=8, nodes=1, bus_gbs=360.0, channels=24)

    def test_formulas(self) -> None:
        few = dataclasses.replace(self.one, channels=2)
        four = Fabric(ranks=32, nodes=4, bus_gbs=40.0, channels=16)
        alone = Fabric(ranks=4, nodes=4, bus_gbs=25.0, channels=2)  # pays the tree's latency in a ring
        bus, correction = 0.92 * 360, 0.5  # of a tree with Simple at 2^11 x 64 B
        ring_us = 1.4 * (8.4 + 56 * 3.4 + 6 * 14.0)  # 62 steps, 6 of them between nodes; plateau
        tree_us = 14.0 + 2 * (7 * 1.25 + 2 * 8.5)
        for fabric, size, algorithm, protocol, expected_us in (
            (self.one, 2**20, "Ring", "Simple", 8.4 + 14 * 3.4 + 2**20 / (1000 * 360 * 8 / 14)),
            (self.one, 2**20, "Ring", "LL", 6.6 + 14 * 0.6 + 2**20 / (1000 * 141 * 8 / 14)),
            (self.one, 2**20, "Ring", "LL128", 14.0 + 14 * 1.9 + 2**20 / (1000 * 0.92 * 360 * 8 / 14)),
            (self.one, 2**30, "Tree", "Simple", 8.4 + 2 * 7 * 4.0 + 2**30 / (1000 * bus / 2)),
            (self.one, 64, "Tree", "LL", 6.8 + 2 * 7 * 0.6 + 64 / (1000 * bus / 3.8 / 2)),
            (self.one, 2**17, "Tree", "Simple", 8.4 + 56 + 2**17 / (1000 * bus / 2 * correction)),
            (few, 2**30, "Tree", "Simple", 8.4 + 56 + 2**30 / (1000 * 2 * 38.7 / 2)),
            (four, 2**26, "Ring", "Simple", ring_us + 2**26 / (1000 * 40 * 32 / 62)),
            (four, 2**30, "Tree", "LL128", tree_us + 2**30 / (1000 * 0.92 * 40 * 120 / 128 / 2)),
            (alone, 8, "Ring", "LL", 6.6 + 6 * 5.0 + 8 / (1000 * 12.5 * 4 / 6)),
        ):
            with self.subTest(fabric=fabric, size=size, algorithm=algorithm, protocol=protocol):
                found = nccl_model.estimate(fabric, size, algorithm, protocol)
                self.assertAlmostEqual(found.microseconds, expected_us, places=6)

    def test_measured_on_8_h200(self) -> None:
        # 340 GB/s at 128 MiB, 363 at 2 GiB, tree 288 of 1.35 GB; latency 13 us at 8 B: within 20% at 80% of NVLink 4.
        best = [(size, nccl_model.best(self.one, size).microseconds, gbs) for size, gbs in ((2**27, 340), (2**31, 363))]
        tree_us = nccl_model.estimate(self.one, 1.35e9, "Tree", "Simple").microseconds
        for size, us, measured in (*best, (1.35e9, tree_us, 288)):
            self.assertAlmostEqual(size * 1.75 / us / 1000 / measured, 1.0, delta=0.05)
        self.assertAlmostEqual(nccl_model.best(self.one, 8).microseconds / 13.0, 1.0, delta=0.2)

    def test_trees_win_on_many_nodes_and_rings_for_large_sizes_on_one(self) -> None:
        many = Fabric(ranks=8192, nodes=1024, bus_gbs=40.0, channels=16)
        self.assertEqual(nccl_model.best(many, 2**22).algorithm, "Tree")
        self.assertEqual(nccl_model.best(self.one, 2**30).algorithm, "Ring")


class ExposureTest(unittest.TestCase):
    def test_agrees_with_going_through_the_buckets(self) -> None:
        rng = random.Random(3)
        for _ in range(300):
            shares = sorted(rng.uniform(0, 1) for _ in range(4))
            groups = [Buckets(1.0, shares[0], shares[1], rng.randint(2, 30)), Buckets(1.0, shares[2], shares[2])]
            groups += [Buckets(1.0, shares[3], 1.0, rng.randint(2, 5))]
            seconds = [rng.uniform(0, 0.2) for _ in groups]
            free = 0.0
            for group, each in zip(groups, seconds, strict=True):
                for bucket in range(group.count):
                    share = bucket / max(group.count - 1, 1)
                    at = group.first_complete_at + share * (group.last_complete_at - group.first_complete_at)
                    free = max(free, 2.0 * at) + each
            self.assertAlmostEqual(exposed_seconds(groups, seconds, 2.0), max(free - 2.0, 0.0))


class PredictTest(unittest.TestCase):
    def test_one_gpu_and_accumulation(self) -> None:
        result = predict(case(gpus_per_node=1))
        self.assertEqual((result.efficiency, result.exposed_seconds, result.bytes_per_gpu), (1.0, 0.0, 0.0))
        self.assertAlmostEqual(result.compute_seconds, 6e9 * 1024 * 8 / 400e12)
        once, four = predict(case(nodes=2)), predict(case(nodes=2, grad_accum=4))
        self.assertAlmostEqual(four.compute_seconds, 4 * once.compute_seconds)
        self.assertAlmostEqual(four.communication_seconds, once.communication_seconds)

    def test_sums_of_cpus_go_on_beneath_the_next_forward_pass(self) -> None:
        work = parsed(cnn_description(device="cpu"))
        fit = NetworkFit(per_rank_us=0.0, busbw_gbs=0.125)  # 1 Gbit/s: 19.2 ms
        slow = NetworkFit(per_rank_us=0.0, busbw_gbs=0.0125)
        alone = 1e-12 * work.flop * 32 / 0.2  # 11.5 ms
        for changes, step in (
            ({}, 0.0192 + 0.099 * alone),  # from the first product of backward until fc1 is read again
            ({"batch": 128.0}, 4 * alone + 0.0003),  # bound by compute: the last bucket alone is exposed
            ({"overlap": False}, alone + 0.0192),
            ({"interference": 0.1, "batch": 128.0}, 4 * alone + 0.1 * 0.0192 + 0.0003),
            ({"inter_fit": slow, "batch": 128.0}, 0.192 + 0.099 * 4 * alone),
            ({"inter_fit": slow, "batch": 1280.0}, 40 * alone + 0.0033),
            ({"gpus_per_node": 2, "batch": 128.0}, 4 * alone + 0.0003),
        ):
            with self.subTest(changes=changes):
                given = {"batch": 32.0, "tflops": 0.2, "gpus_per_node": 1, "nodes": 2, "inter_fit": fit} | changes
                self.assertAlmostEqual(predict(case(work=work, **given)).step_seconds, step, delta=0.0001)
        on_one = predict(case(work=work, gpus_per_node=2, batch=32.0, tflops=0.2, intra_fit=fit))
        self.assertGreater(on_one.step_seconds, 0.0192 + 0.33 * alone)

    def test_bytes_of_a_nodes_adapters_over_mpi(self) -> None:
        """As tests/hosts/network_test.py counts them on the adapters."""
        old = {"device": "cpu"}  # before ddptrain told
        on, off = old | {"hierarchical": "on"}, old | {"hierarchical": "off"}
        for nodes, ranks, told, times_the_gradients in (
            (2, 1, on, 1.0),
            (2, 1, off, 1.0),
            (2, 2, on, 1.0),
            (2, 2, old, 1.0),
            (2, 2, off, 2.0),
            (2, 2, off | {"device": "cuda"}, 2.0),  # --comm mpi
            (4, 1, on, 1.5),
            (4, 1, off, 1.5),
            (4, 4, on, 1.5),
            (2, 4, off, 4.0),
            (1, 4, off, 1.5),  # within a host, the sum is that of the MPI library
            (2, 2, {"device": "cuda"}, 1.5),  # NCCL's ring
        ):
            with self.subTest(nodes=nodes, ranks=ranks, told=told):
                work = parsed(cnn_description(**told))
                layout = case(work=work, gpus_per_node=ranks, nodes=nodes, intra_gbs=0.1, inter_gbs=0.1)
                seconds = times_the_gradients * 2.4e6 / 0.1e9
                self.assertAlmostEqual(predict(layout).communication_seconds, seconds, delta=5e-4)  # with latency
                fits = dict.fromkeys(("intra_fit", "inter_fit"), NetworkFit(per_rank_us=0.0, busbw_gbs=0.1))
                fitted = predict(dataclasses.replace(layout, **fits))
                self.assertAlmostEqual(fitted.communication_seconds, seconds)

    def test_what_was_measured_stands_in_for_the_model(self) -> None:
        fit = NetworkFit(per_rank_us=2.0, busbw_gbs=100.0)
        one_bucket = language_model(1e9, 1024, bucket_bytes=1e12, last_bucket_bytes=0.0)
        result = predict(case(work=one_bucket, intra_fit=fit, overlap=False))
        self.assertAlmostEqual(result.communication_seconds, 1e-6 * (2.0 * 7 + 1.75 * 2e9 / 1e5))
        self.assertEqual(result.algorithm, "measured")
        without, result = predict(case()), predict(case(interference=0.5))
        longer = 0.5 * without.communication_seconds
        self.assertAlmostEqual(result.compute_seconds, without.compute_seconds + longer)
        self.assertAlmostEqual(result.efficiency, without.compute_seconds / result.step_seconds)
        self.assertEqual(predict(case(interference=0.5, overlap=False)), predict(case(overlap=False)))

    def test_needed_bandwidth_reaches_the_target_and_no_more(self) -> None:
        for nodes, field in ((1, "intra_gbs"), (8, "inter_gbs")):
            needed = needed_gbs(case(nodes=nodes), 0.95)
            assert needed is not None
            self.assertAlmostEqual(predict(case(nodes=nodes, **{field: needed})).efficiency, 0.95, places=6)
            self.assertLess(predict(case(nodes=nodes, **{field: 0.99 * needed})).efficiency, 0.95)
        self.assertIsNone(needed_gbs(case(nodes=1024, work=language_model(1e6, 1), batch=1.0), 0.95))


class ProgramTest(unittest.TestCase):
    def test_json_and_text_tell_the_same(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            path = pathlib.Path(name) / "plan.json"
            text = output("--model", "gpt2-124m", "--nodes", "1,64", "--target", "0.95", "--json", str(path))
            result = json.loads(path.read_text())
        self.assertEqual([p["gpus"] for p in result["predictions"]], [8, 512])
        self.assertIn(f"{100 * result['predictions'][1]['efficiency']:.1f}%", text)
        self.assertEqual([n["nodes"] for n in result["target"]["needed_gbs"]], [1, 64])

    def test_it_says_where_no_network_is_enough(self) -> None:
        arguments = ["--params", "100M", "--seq", "64", "--nodes", "16", "--target", "0.9", "--batch", "1"]
        (row,) = json.loads(output(*arguments, "--json"))["target"]["needed_gbs"]
        self.assertIsNone(row["achieved_gbs"])
        self.assertIn("16 nodes: no bandwidth is, because of latency", output(*arguments))

    def test_networks_are_as_they_are_sold(self) -> None:
        for gpu, node_gbs in (("h200", 8 * 50), ("a100", 8 * 25), ("v100", 4 * 12.5)):
            answer = json.loads(output("--gpu", gpu, "--nodes", "2", "--achievable", "1", "--json"))
            self.assertEqual(answer["case"]["inter_gbs"], node_gbs)
        for network, of_a_node in (("hdr", "160"), ("efa2", "320"), ("100", "80.0")):
            text = output("--network", network, "--nics", "8", "--nodes", "2")
            self.assertIn(f"between nodes: NCCL's cost model, {of_a_node} GB/s of a node (80% of", text)

    def test_what_a_rank_keeps_fits_its_gpu_or_not(self) -> None:
        told = parsed(gpt2_description(memory={"weights": 60e9, "activations": 30e9}))
        with mock.patch.object(program, "describe", return_value=told):
            self.assertIn("90 GB of a GPU's 141 GB", output("--gpu", "h200", "--nodes", "1"))
            self.assertIn("90 GB do not fit a GPU of 80 GB", output("--gpu", "h100", "--nodes", "1"))
            for typed in ("80", "80GB", "80gb", "80000mb"):
                self.assertIn("90 GB do not fit a GPU of 80 GB", output("--memory", typed, "--nodes", "1"))
        told = parsed(gpt2_description(memory={"weights": 60e9}, host_memory={"masters": 30e9, "optimizer": 61e9}))
        with mock.patch.object(program, "describe", return_value=told):
            self.assertIn("60 GB of a GPU's 141 GB, 91 GB of the host per rank", output("--gpu", "h200", "--nodes", "1"))

    def test_flags_reach_ddptrain(self) -> None:
        plan = ["--model", "cnn", "--bucket-mb", "2", "--gradients", "fp32", "--json", "--nodes", "1"]
        with mock.patch.object(program, "describe", side_effect=UsageError("seen")) as describe:
            for more in ([], ["--", "--seed=3", "--lr", "2"]):
                with self.assertRaisesRegex(UsageError, "seen"):
                    output(*plan, *more)
        flags = {"config": "configs/cnn.toml", "device": "cuda", "data": f"synthetic:{program.SYNTHETIC_SIZE}", "comm-dtype": "fp32",
                 "bucket-mb": 2.0}  # fmt: skip
        self.assertEqual([call.args[1:] for call in describe.call_args_list], [(flags, []), (flags, more[1:])])
        with mock.patch.object(program, "describe", side_effect=UsageError("seen")) as describe:
            for typed in ("2M", "2m", "2048k", "2MiB"):
                with self.assertRaisesRegex(UsageError, "seen"):
                    output(*plan, "--bucket-mb", typed)
        self.assertEqual({call.args[1]["bucket-mb"] for call in describe.call_args_list}, {2.0})
        batch = json.loads(output(*plan, "--batch", "7", "--", "--batch_per_rank=99"))["case"]["batch"]
        self.assertEqual(batch, 7)

    def test_the_words_of_ddptrain_and_of_flags_are_told(self) -> None:
        with self.assertRaisesRegex(UsageError, "^--model vgg: there is no such model; recipes: .*, smollm-135m$"):
            output("--model", "vgg")
        with self.assertRaisesRegex(UsageError, "; recipes: .*[.] Did you mean gpt2-124m[?]$"):
            output("--model", "gpt2-124")
        with self.assertRaisesRegex(UsageError, "cannot be run: No such file or directory. Build it, or give --bin "):
            output("--bin", PROGRAMS.name)
        with self.assertRaisesRegex(UsageError, "^--fit-ranks: give the runs with --calibrate$"):
            output("--fit-ranks", "2")
        for flags, message in ((["--mesh", "4", "--nodes", "2"], "^--nodes: --mesh 4 is the number of GPUs"),
                               (["--mesh", "4", "--target", "0.9"], "^--target: it asks for the network"),
                               (["--fit-ranks", "2", "--calibrate", "x", "--mesh", "4", "--json"], "leave --mesh, --json out")):  # fmt: skip
            with self.assertRaisesRegex(UsageError, message):
                output(*flags)

    def test_one_gpu_needs_no_link(self) -> None:
        text = output("--gpus-per-node", "1", "--nodes", "1,2", "--target", "0.9")
        self.assertRegex(text, r"\n +1 +1 +nothing to send *\n +2 +2 +[\d.]+ Gbit/s")

    def test_bad_input_is_one_message_and_exit_code_2(self) -> None:
        for arguments in (["--foo"], ["--model", "vgg"], ["--params", "big"], ["--params", "-1B"], ["--nodes", "0"],
                          ["--nodes", "1,,2"], ["--nodes", "1000000"], ["--batch", "0"], ["--batch", "1.5"],
                          ["--global-batch", "4", "--nodes", "8"], ["--gpu", "h300"], ["--tflops", "nan"],
                          ["--network", "fast"], ["--network", "-1"], ["--link", "inf"], ["--target", "1.5"],
                          ["--model", "none.toml"], ["--achievable", "0"], ["--calibrate", "/nonexistent"],
                          ["--calibrate", str(ROOT / "README.md")], ["--json", "/nonexistent/x.json"],
                          ["--model", "cnn", "--params", "2B"], ["--bucket-mb", "0"], ["--bucket-mb", "2X"], ["stray"],
                          ["--params", "2B", "--", "--seed", "2"], ["--bin", "/nonexistent"],
                          ["--mesh", "0"], ["--mesh", "12"], ["--mesh", "4", "--params", "2B"],
                          ["--mesh", "4", "--global-batch", "8"], ["--mesh", "2", "--model", "vgg"]):  # fmt: skip
            done = run_tool("ddpplan", "--bin", BIN, *arguments, code=2)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertTrue(done.stderr.startswith("ddpplan: "), done.stderr)
            self.assertEqual(done.stdout, "", arguments)

    def test_random_arguments_end_in_a_table_or_a_message(self) -> None:
        rng = random.Random(5)
        flags = ["--params", "--seq", "--batch", "--nodes", "--tflops", "--network", "--nics", "--target",
                 "--bucket-mb", "--last-bucket-kb", "--gpus-per-node", "--grad-accum", "--link"]  # fmt: skip
        values = ["0", "1", "4k", "2GB", "2", "7", "1e9", "1e-9", "-3", "", "x", "1B", "999999", "0.95", "nan", "1e308", "٣"]
        for _ in range(400):
            arguments = [a for flag in rng.sample(flags, 4) for a in (flag, rng.choice(values))]
            with contextlib.suppress(UsageError):
                self.assertIn("efficiency", output(*arguments))
