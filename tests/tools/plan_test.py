import contextlib
import dataclasses
import importlib.util
import io
import json
import math
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest
from typing import Any
from unittest import mock

from support import ROOT, cnn_description, gpt2_description, make_programs, record
from ddptools import description, interpreter, nccl_model, plan_program
from ddptools.compute_rates import NotMeasured
from ddptools.description import Buckets, language_model, parsed
from ddptools.errors import UsageError
from ddptools.hardware import LINKS_GBS, NETWORKS_GBIT
from ddptools.nccl_model import Fabric
from ddptools.plan import Case, NetworkFit, exposed_seconds, needed_gbs, predict, rule_of_thumb
from ddptools.plan_calibration import calibrate, compare, load_records, measured_runs

EXPERIMENT_7 = ["--params", "2B", "--seq", "2048", "--global-batch", "16", "--gradients", "fp32", "--recompute",
                "--tflops", "156", "--nodes", "1"]  # fmt: skip


def cut(value: float, printed: str) -> str:
    """The value with the digits of a printed one, the rest cut off as the published figures are (0.0356 as 0.035)."""
    decimals = len(printed.partition(".")[2])
    return f"{math.floor(value * 10**decimals + 1e-9) / 10**decimals:.{decimals}f}"


def case(**changes: Any) -> Case:
    return dataclasses.replace(Case(work=language_model(1e9, 1024), batch=8.0, tflops=400.0), **changes)


PROGRAMS = tempfile.TemporaryDirectory()
BIN = make_programs(pathlib.Path(PROGRAMS.name))


def output(*arguments: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        plan_program.run(["--bin", str(BIN), *arguments])
    return out.getvalue()


class ArithmeticTest(unittest.TestCase):
    """The published figures: 2 B parameters, fp32 gradients, 8 GPUs."""

    def setUp(self) -> None:
        work = language_model(2e9, 2048, gradient_dtype="fp32", recompute=True)
        self.rule = rule_of_thumb(Case(work=work, batch=2.0, tflops=156.0))

    def test_bytes(self) -> None:
        self.assertEqual(self.rule.bytes_to_move, 16e9)
        self.assertEqual(self.rule.exact_bytes_to_move, 14e9)

    def test_seconds_of_communication(self) -> None:
        for gbs, printed in ((300.0, "0.053"), (450.0, "0.035"), (200 / 8, "0.64"), (400 / 8, "0.32")):
            self.assertEqual(cut(self.rule.seconds_at(gbs), printed), printed)

    def test_compute(self) -> None:
        self.assertEqual(cut(self.rule.tflop_per_gpu, "65.5"), "65.5")
        self.assertEqual(cut(self.rule.compute_seconds, "0.42"), "0.42")
        without = Case(work=language_model(2e9, 2048), batch=2.0, tflops=156.0)
        self.assertAlmostEqual(rule_of_thumb(without).tflop_per_gpu, 2 * 3 * 2 * 2048 * 16 / 8000)

    def test_peak_rates(self) -> None:
        self.assertEqual([LINKS_GBS[f"nvlink{i}"] for i in (2, 3, 4)], [150, 300, 450])
        self.assertEqual([LINKS_GBS[f"pcie{i}"] for i in (4, 5, 6, 7)], [31, 63, 121, 242])
        self.assertEqual([NETWORKS_GBIT[name] for name in ("edr", "hdr", "ndr", "xdr", "efa2")], [100, 200, 400, 800, 3200])

    def test_the_program_prints_them(self) -> None:
        rows = {line.split()[0]: line for line in output(*EXPERIMENT_7).splitlines() if line.split()}
        self.assertIn("65.5 TFLOP per GPU", rows["Compute"])
        self.assertIn("0.420 s", rows["Compute"])
        self.assertIn("16.0 GB", rows["To"])
        self.assertIn("14.0 GB", rows["To"])
        for name, seconds, bound in (("nvlink3", "0.0533", "compute"), ("nvlink4", "0.0356", "compute"),
                                     ("hdr", "0.640", "communication"), ("ndr", "0.320", "compute")):  # fmt: skip
            self.assertIn(f" {seconds} ", rows_of(rows, name))
            self.assertTrue(rows_of(rows, name).endswith(bound))

    def test_one_node_is_bound_by_compute_and_four_over_hdr_are_not(self) -> None:
        arguments = [a if a != "16" else "64" for a in EXPERIMENT_7[:-1]]
        result = json.loads(output(*arguments, "1,4", "--gpu", "a100", "--nics", "1", "--json"))
        self.assertEqual([p["bound"] for p in result["predictions"]], ["compute", "communication"])


def rows_of(rows: dict[str, str], name: str) -> str:
    return rows[name].rstrip()


class DescriptionTest(unittest.TestCase):
    def test_what_is_sent_is_what_ddptrain_says(self) -> None:
        found = parsed(cnn_description())
        assert found is not None
        self.assertEqual((found.parameters, found.flop, found.gradient_bytes), (1_199_882, 71_565_312, 2_400_000))
        self.assertEqual(found.buckets[0], Buckets(2_359_296, 0.099, 0.099))

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
        description.complete([record("old", 0, 1.0, settings, summary=kept)], BIN / "none")


class NcclModelTest(unittest.TestCase):
    """Against the formulas of NCCL's tuning.cc, worked out by hand."""

    one = Fabric(ranks=8, nodes=1, bus_gbs=360.0, channels=24)

    def check(self, fabric: Fabric, size: float, algorithm: str, protocol: str, expected: float) -> None:
        self.assertAlmostEqual(nccl_model.estimate(fabric, size, algorithm, protocol).microseconds, expected, places=6)

    def test_ring_on_one_node(self) -> None:
        self.check(self.one, 2**20, "Ring", "Simple", 8.4 + 14 * 3.4 + 2**20 / (1000 * 360 * 8 / 14))
        self.check(self.one, 2**20, "Ring", "LL", 6.6 + 14 * 0.6 + 2**20 / (1000 * 141 * 8 / 14))
        self.check(self.one, 2**20, "Ring", "LL128", 14.0 + 14 * 1.9 + 2**20 / (1000 * 0.92 * 360 * 8 / 14))

    def test_tree_on_one_node(self) -> None:
        bus = 0.92 * 360
        self.check(self.one, 2**30, "Tree", "Simple", 8.4 + 2 * 7 * 4.0 + 2**30 / (1000 * bus / 2))
        self.check(self.one, 64, "Tree", "LL", 6.8 + 2 * 7 * 0.6 + 64 / (1000 * bus / 3.8 / 2))
        correction = 0.5  # of Simple at 2^11 x 64 B
        self.check(self.one, 2**17, "Tree", "Simple", 8.4 + 56 + 2**17 / (1000 * bus / 2 * correction))

    def test_tree_is_held_by_its_channels(self) -> None:
        few = dataclasses.replace(self.one, channels=2)
        self.check(few, 2**30, "Tree", "Simple", 8.4 + 56 + 2**30 / (1000 * 2 * 38.7 / 2))

    def test_between_nodes(self) -> None:
        four = Fabric(ranks=32, nodes=4, bus_gbs=40.0, channels=16)
        ring = 1.4 * (8.4 + 56 * 3.4 + 6 * 14.0)  # 62 steps, 6 of them between nodes; plateau
        self.check(four, 2**26, "Ring", "Simple", ring + 2**26 / (1000 * 40 * 32 / 62))
        tree = 14.0 + 2 * (7 * 1.25 + 2 * 8.5)
        self.check(four, 2**30, "Tree", "LL128", tree + 2**30 / (1000 * 0.92 * 40 * 120 / 128 / 2))

    def test_one_rank_a_node_pays_the_trees_latency_in_a_ring(self) -> None:
        alone = Fabric(ranks=4, nodes=4, bus_gbs=25.0, channels=2)
        self.check(alone, 8, "Ring", "LL", 6.6 + 6 * 5.0 + 8 / (1000 * 12.5 * 4 / 6))

    def test_measured_on_8_h200(self) -> None:
        # 340 GB/s at 128 MiB, 363 at 2 GiB, tree 288 of 1.35 GB; latency 13 us at 8 B: within 20% at 80% of NVLink 4.
        for size, algorithm, measured in ((2**27, None, 340.0), (2**31, None, 363.0), (1.35e9, "Tree", 288.0)):
            us = nccl_model.best(self.one, size, algorithm).microseconds
            self.assertAlmostEqual(size * 1.75 / us / 1000 / measured, 1.0, delta=0.05)
        self.assertAlmostEqual(nccl_model.best(self.one, 8).microseconds / 13.0, 1.0, delta=0.2)

    def test_trees_win_on_many_nodes_and_rings_for_large_sizes_on_one(self) -> None:
        many = Fabric(ranks=8192, nodes=1024, bus_gbs=40.0, channels=16)
        self.assertEqual(nccl_model.best(many, 2**22).algorithm, "Tree")
        self.assertEqual(nccl_model.best(self.one, 2**30).algorithm, "Ring")


class ExposureTest(unittest.TestCase):
    EVEN = (Buckets(100.0, 0.1, 0.9, 9), Buckets(100.0, 1.0, 1.0))

    def test_only_the_last_bucket_where_the_network_is_fast(self) -> None:
        self.assertAlmostEqual(exposed_seconds(self.EVEN, [0.05, 0.05], 1.0), 0.05)

    def test_what_backward_cannot_hide_where_it_is_slow(self) -> None:
        # The first of ten buckets is complete at 0.1; ten times 0.3 from there; backward ends at 1.
        self.assertAlmostEqual(exposed_seconds(self.EVEN, [0.3, 0.3], 1.0), 0.1 + 3.0 - 1.0)

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

    def test_gradients_need_not_come_evenly(self) -> None:
        for complete_at, exposed in ((0.1, 0.05), (0.9, 0.75)):
            groups = [Buckets(90.0, complete_at, complete_at), Buckets(10.0, 1.0, 1.0)]
            self.assertAlmostEqual(exposed_seconds(groups, [0.8, 0.05], 1.0), exposed)

    def test_the_tied_embedding_is_complete_at_the_end(self) -> None:
        work = parsed(gpt2_description())
        assert work is not None
        seconds = [1e-3] * len(work.buckets)
        self.assertAlmostEqual(exposed_seconds(work.buckets, seconds, 1.0), 3e-3)  # the last blocks, both embeddings


class PredictTest(unittest.TestCase):
    def test_one_gpu_is_its_own_baseline(self) -> None:
        result = predict(case(gpus_per_node=1))
        self.assertEqual((result.efficiency, result.exposed_seconds, result.bytes_per_gpu), (1.0, 0.0, 0.0))
        self.assertAlmostEqual(result.compute_seconds, 6e9 * 1024 * 8 / 400e12)

    def test_efficiency_falls_with_nodes_and_rises_with_the_network(self) -> None:
        nodes = [predict(case(nodes=n)).efficiency for n in (1, 2, 4, 64, 4096)]
        self.assertEqual(nodes, sorted(nodes, reverse=True))
        networks = [predict(case(nodes=4, inter_gbs=gbs)).efficiency for gbs in (10, 20, 40, 80)]
        self.assertEqual(networks, sorted(networks))

    def test_overlap_helps_and_recomputation_costs(self) -> None:
        slow = case(nodes=4, inter_gbs=20.0)
        self.assertLess(predict(slow).step_seconds, predict(dataclasses.replace(slow, overlap=False)).step_seconds)
        without = predict(dataclasses.replace(slow, overlap=False))
        self.assertAlmostEqual(without.exposed_seconds, without.communication_seconds)
        again = predict(dataclasses.replace(slow, work=language_model(1e9, 1024, recompute=True)))
        self.assertAlmostEqual(again.compute_seconds / predict(slow).compute_seconds, 4 / 3)

    def test_sums_of_cpus_go_on_beneath_the_next_forward_pass(self) -> None:
        work = parsed(cnn_description(device="cpu"))
        fit = NetworkFit(per_rank_us=0.0, busbw_gbs=0.125)  # 1 Gbit/s: 19.2 ms
        alone = 1e-12 * work.flop * 32 / 0.2  # 11.5 ms
        for changes, step in (
            ({}, 0.0192 + 0.099 * alone),  # from the first product of backward until fc1 is read again
            ({"batch": 128.0}, 4 * alone + 0.0003),  # bound by compute: the last bucket alone is exposed
            ({"overlap": False}, alone + 0.0192),
            ({"interference": 0.1, "batch": 128.0}, 4 * alone + 0.1 * 0.0192 + 0.0003),
        ):
            with self.subTest(changes=changes):
                given = {"batch": 32.0, "tflops": 0.2, "gpus_per_node": 1, "nodes": 2, "inter_fit": fit} | changes
                self.assertAlmostEqual(predict(case(work=work, **given)).step_seconds, step, delta=0.0001)
        on_one = predict(case(work=work, gpus_per_node=2, batch=32.0, tflops=0.2, intra_fit=fit))
        self.assertGreater(on_one.step_seconds, 0.0192 + 0.33 * alone)

    def test_runs_of_cpus_overlap_between_hosts_unless_an_update_needs_more_than_its_sum(self) -> None:
        told = {"device": "cpu", "description": cnn_description(device="cpu")}
        for nodes, changes, settings, overlaps in (
            (2, {}, {}, True),
            (1, {}, {}, False),
            (2, {"zero": 1}, {}, False),
            (2, {"virtual_ranks": 4}, {}, False),
            (2, {}, {"clip-norm": "1"}, False),
            (2, {}, {"clip-norm": 0}, True),
            (2, {}, {"overlap": "backward"}, False),
        ):
            with self.subTest(nodes=nodes, changes=changes, settings=settings):
                record = {"summary": summary(2, 1000.0, 800.0, nodes=nodes, **told, **changes), "settings": settings}
                (run,) = measured_runs([record])
                self.assertEqual(run.case.overlap, overlaps)

    def test_takes_what_tcp_costs_cpus_from_their_runs(self) -> None:
        told = {"device": "cpu", "description": cnn_description(device="cpu"), "communication_seconds": 0.2}
        told |= {"nodes": 2, "slowed_down_us": 10e3, "batch_per_rank": 32}  # backward takes 2/3 of 80 ms
        for changes, found in (({"slowed_down_us_half_width": 1e3}, 0.188), ({"slowed_down_us_half_width": 11e3}, None),
                               ({"slowed_down_us_half_width": 1e3, "nodes": 1}, None)):  # fmt: skip
            with self.subTest(changes=changes):
                interference = calibrate([summary(2, 500.0, 400.0, **told | changes)]).interference
                self.assertEqual(interference is None, found is None)
                self.assertAlmostEqual(interference or 0.0, found or 0.0, places=3)

    def test_accumulation_communicates_once(self) -> None:
        once, four = predict(case(nodes=2)), predict(case(nodes=2, grad_accum=4))
        self.assertAlmostEqual(four.compute_seconds, 4 * once.compute_seconds)
        self.assertAlmostEqual(four.communication_seconds, once.communication_seconds)

    def test_tens_of_thousands_of_gpus(self) -> None:
        result = predict(case(nodes=8192, work=language_model(70e9, 4096)))
        self.assertEqual(result.gpus, 65536)
        self.assertTrue(0.0 < result.efficiency < 1.0)

    def test_a_fit_stands_in_for_the_model(self) -> None:
        fit = NetworkFit(per_rank_us=2.0, busbw_gbs=100.0)
        one_bucket = language_model(1e9, 1024, bucket_bytes=1e12, last_bucket_bytes=0.0)
        result = predict(case(work=one_bucket, intra_fit=fit, overlap=False))
        self.assertAlmostEqual(result.communication_seconds, 1e-6 * (2.0 * 7 + 1.75 * 2e9 / 1e5))
        self.assertEqual(result.algorithm, "measured")

    def test_communication_slows_compute_beside_it(self) -> None:
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

    def test_latency_can_put_a_target_out_of_reach(self) -> None:
        self.assertIsNone(needed_gbs(case(nodes=1024, work=language_model(1e6, 1), batch=1.0), 0.95))


def summary(ranks: int, rate: float, baseline: float | None = None, **changes: Any) -> dict[str, Any]:
    return {"event": "summary", "model": "cnn", "device": "cuda", "precision": "bf16", "world_size": ranks, "nodes": 1,
            "batch_per_rank": 512, "grad_accum": 1, "description": cnn_description(), "images_per_second": rate,
            "baseline_per_second": baseline} | changes  # fmt: skip


def bench(ranks: int, per_rank_us: float, busbw: float) -> dict[str, Any]:
    fit = NetworkFit(per_rank_us, busbw, base_us=5.0)
    rows = [{"bytes": size, "time_us": fit.microseconds(size, ranks)} for size in (1e3, 1e5, 1e7, 1e9)]
    return {"benchmark": "allreduce", "ranks": ranks, "results": rows}


WORK = parsed(cnn_description())


class ComputeRatesTest(unittest.TestCase):
    """By model and batch."""

    def setUp(self) -> None:
        runs = [summary(1, rate, batch_per_rank=batch) for batch, rate in ((512, 4e6), (512, 4.2e6), (512, 4.1e6))]
        self.calibration = calibrate([*runs, summary(2, 13e6, 6.6e6, batch_per_rank=8192)])

    def seconds(self, batch: float) -> float:
        return batch * WORK.flop / (1e12 * self.calibration.compute.tflops(WORK, batch))

    def test_measured_batches_have_their_own_rate(self) -> None:
        self.assertAlmostEqual(self.seconds(512), 512 / 4.1e6)
        self.assertAlmostEqual(self.seconds(8192), 8192 / 6.6e6)

    def test_time_is_on_a_line_between_them(self) -> None:
        self.assertAlmostEqual(self.seconds((512 + 8192) / 2), (512 / 4.1e6 + 8192 / 6.6e6) / 2)

    def test_outside_there_is_a_reason_in_place_of_a_rate(self) -> None:
        for batch in (511, 8193):
            with self.assertRaisesRegex(NotMeasured, f"batches from 512 to 8192 per rank, not {batch}: .* --tflops"):
                self.calibration.compute.tflops(WORK, batch)
        with self.assertRaisesRegex(NotMeasured, "its runs are of cnn .* not of gpt"):
            self.calibration.compute.tflops(parsed(gpt2_description()), 512)

    def test_another_precision_or_device_is_other_work(self) -> None:
        told = cnn_description(precision="fp32", device="cuda")
        calibration = calibrate([summary(1, 2e5, description=told)])
        self.assertAlmostEqual(calibration.compute.tflops(parsed(told), 512), WORK.flop * 2e5 / 1e12)
        for change in ({"precision": "bf16"}, {"device": "cpu"}):
            with self.assertRaises(NotMeasured):
                calibration.compute.tflops(parsed(told | change), 512)

    def test_what_all_runs_were_made_with_is_asked_of_ddptrain(self) -> None:
        told = cnn_description(precision="bf16", device="cuda", gradient_dtype="fp32")
        asked = parsed(cnn_description(precision="bf16", device="cuda", gradient_dtype="bf16"))
        self.assertEqual(calibrate([summary(1, 1e6, description=told)]).flags_of(asked), {"comm-dtype": "fp32"})
        two_kinds = [summary(1, 1e6, description=told), summary(1, 1e6, description=told | {"gradient_dtype": "bf16"})]
        self.assertEqual(calibrate(two_kinds).flags_of(asked), {})
        self.assertEqual(calibrate([summary(1, 1e6, description=told)]).flags_of(parsed(gpt2_description())), {})

    def test_a_fused_sum_goes_by_the_ranks(self) -> None:
        def run(ranks: int, us: float) -> dict[str, Any]:
            return summary(ranks, ranks * 512 / 130e-6, 4e6, step_seconds=130e-6, fused_sum=True,
                           step_seconds_without_communication=130e-6 - us * 1e-6)  # fmt: skip

        calibration = calibrate([run(2, 5.0), run(2, 7.0), run(4, 8.0)])
        for ranks, us in ((2, 6.0), (3, 7.0), (4, 8.0), (8, 8.0)):
            applied = calibration.network_of(Case(WORK, 512, 300.0, gpus_per_node=ranks))
            self.assertAlmostEqual(applied.fused_sum_us, us)


class CalibrationTest(unittest.TestCase):
    def test_finds_the_network_that_made_the_points(self) -> None:
        fit = calibrate([bench(2, 3.0, 120.0), {"status": "ok", "bench": bench(8, 3.0, 120.0)}]).intra_fit
        assert fit is not None
        self.assertAlmostEqual(fit.base_us, 5.0, places=5)
        self.assertAlmostEqual(fit.per_rank_us, 3.0, places=5)
        self.assertAlmostEqual(fit.busbw_gbs, 120.0, places=5)
        self.assertEqual((fit.points, fit.least_ranks, fit.most_ranks), (8, 2, 8))

    def test_one_point_leaves_the_latency_to_the_cost_model(self) -> None:
        record = {"benchmark": "allreduce", "ranks": 2, "nodes": 2, "results": [{"bytes": 1e6, "time_us": 100.0}]}
        calibration = calibrate([record])
        self.assertIsNone(calibration.intra_fit)
        fit = calibration.inter_fit
        assert fit is not None
        self.assertAlmostEqual(fit.base_us, 6.6, places=5)  # Ring LL over a network
        self.assertAlmostEqual(fit.per_rank_us, 2 * 2.7, places=5)
        self.assertAlmostEqual(fit.busbw_gbs, 1e6 / (1000 * (100.0 - 12.0)), places=5)

    def test_takes_interference_from_the_overlap_benchmark(self) -> None:
        rows = [{"compute_alone_us": 1000.0, "compute_beside_us": 1000.0 + x, "communication_alone_us": 400.0}
                for x in (80.0, 100.0, -5.0)]  # fmt: skip
        self.assertAlmostEqual(calibrate([{"benchmark": "overlap", "results": rows}]).interference or 0.0, 0.2)

    def test_virtual_ranks_are_passes_of_their_rank(self) -> None:
        (several,) = compare([summary(2, 4e6, 3e6, virtual_ranks=4)])
        self.assertEqual(several.predicted, compare([summary(2, 4e6, 3e6, grad_accum=2)])[0].predicted)
        self.assertNotEqual(several.predicted, compare([summary(2, 4e6, 3e6)])[0].predicted)

    def test_takes_the_compute_rate_from_the_baseline(self) -> None:
        calibration = calibrate([summary(8, 26.8e6, 3.91e6), summary(1, 3.91e6)])
        self.assertAlmostEqual(calibration.compute.tflops(WORK, 512), 71_565_312 * 3.91e6 / 1e12)
        self.assertEqual([point.runs for point in calibration.compute.points], [2])

    def test_tokens_are_parts_of_sequences(self) -> None:
        record = summary(1, 0.0, model="gpt", tokens_per_second=524_000.0, description=gpt2_description())
        work = parsed(gpt2_description())
        assert work is not None
        self.assertAlmostEqual(calibrate([record]).compute.tflops(work, 512), 8.7e11 / 1024 * 524_000 / 1e12)

    def test_gradients_have_the_type_that_is_sent(self) -> None:
        for precision, dtype, size in (("fp8", "bf16", 2), ("bf16", "fp32", 4), ("fp32", "fp32", 4)):
            bucket = {"bytes": 1_199_882 * size, "complete_at": 1.0}
            told = cnn_description(gradient_dtype=dtype, buckets=[bucket])
            (found,) = compare([summary(2, 1.5e6, 1e6, precision=precision, description=told)])
            self.assertEqual(found.predicted.bytes_per_gpu, 1_199_882 * size, precision)

    def test_an_unknown_model_is_what_it_says_or_nothing(self) -> None:
        told = cnn_description(model="mlp", flop_forward_per_sample=1e6, flop_backward_per_sample=2e6)
        calibration = calibrate([summary(1, 1e6, model="mlp", description=told)])
        self.assertAlmostEqual(calibration.compute.tflops(parsed(told), 512), 3e6 * 1e6 / 1e12)
        with self.assertRaises(UsageError):
            calibrate([summary(1, 1e6, model="mlp", parameters=1e6, description=None)])

    def test_predicted_beside_measured(self) -> None:
        step = 512 / 3.91e6 + 25e-6
        record = summary(8, 8 * 512 / step, 3.91e6, communication_seconds=50e-6, step_seconds=step,
                         scaling_efficiency=512 / 3.91e6 / step)  # fmt: skip
        (result,) = compare([{"status": "ok", "summary": record, "settings": {"overlap": "off"}}])
        predicted = 512 / 3.91e6 + 50e-6  # nothing is hidden
        self.assertAlmostEqual(result.predicted.step_seconds, predicted)
        self.assertAlmostEqual(result.error, step / predicted - 1.0)
        self.assertEqual(result.gpus, 8)

    def test_a_fused_sum_costs_what_was_exposed(self) -> None:
        def run(fused: bool, step: float = 135e-6, overlap: str = "on") -> dict[str, Any]:
            record = summary(4, 4 * 512 / step, 4.05e6, communication_seconds=47e-6, step_seconds=step,
                             step_seconds_without_communication=127e-6, fused_sum=fused)  # fmt: skip
            return {"summary": record, "settings": {"overlap": overlap}}

        (fused,) = compare([run(True)])
        self.assertAlmostEqual(fused.predicted.exposed_seconds, 8e-6)
        self.assertLess(abs(fused.error), 0.01)
        (plain,) = compare([run(False)])
        self.assertNotAlmostEqual(plain.predicted.exposed_seconds, 8e-6)
        self.assertEqual(calibrate([run(True), run(False)]).fused_sum_us, {})
        self.assertAlmostEqual(calibrate([run(True)]).fused_sum_us[4], 8.0)
        beside, after = compare([run(True), run(True, step=174e-6, overlap="off")])
        self.assertAlmostEqual(beside.predicted.exposed_seconds, 8e-6)
        self.assertAlmostEqual(after.predicted.exposed_seconds, 47e-6)

    def test_nothing_runs_beside_kernels_that_fill_the_gpu(self) -> None:
        run = summary(4, 4 * 512 / 170e-6, 4.05e6, communication_seconds=45e-6, step_seconds=170e-6)
        (filled,) = compare([{"summary": run, "settings": {"comm-ctas": 0}}])
        self.assertAlmostEqual(filled.predicted.exposed_seconds, 45e-6)
        (some_free,) = compare([{"summary": run, "settings": {"comm-ctas": 4}}])
        self.assertLess(some_free.predicted.exposed_seconds, 12e-6)

    def test_emulated_and_failed_runs_do_not_count(self) -> None:
        for mark in ({"emulated": True}, {"status": "failed"}):
            with self.assertRaises(UsageError):
                calibrate([mark | {"summary": summary(2, 1e6, 6e5)}])

    def test_survives_damaged_records(self) -> None:
        rng = random.Random(1)
        values = [None, "x", -1, 0, 1e400, math.nan, [], {}, True, 10**400, 3]
        for _ in range(500):
            record = summary(8, 1e6, 2e5, communication_seconds=1e-4) | {"settings": {}}
            record |= {rng.choice(list(record)): rng.choice(values) for _ in range(rng.randint(1, 6))}
            other = bench(4, 1.0, 10.0)
            other[rng.choice(list(other))] = rng.choice(values)
            with contextlib.suppress(UsageError):
                compare([record, other, {"summary": rng.choice(values), "bench": rng.choice(values)}])

    def test_reads_lines_documents_and_folders(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            lines = json.dumps({"event": "start"}) + "\n" + json.dumps(summary(1, 1e6)) + '\n{"event": "summ'
            (folder / "results.jsonl").write_text(lines)
            self.assertEqual(len(load_records(folder)), 2)
            (folder / "bench.json").write_text(json.dumps(bench(2, 1, 1), indent=2))
            self.assertEqual(len(load_records(folder / "bench.json")), 1)
            (folder / "results.jsonl").unlink()
            with self.assertRaisesRegex(UsageError, "no results.jsonl in this folder"):
                load_records(folder)


class ProgramTest(unittest.TestCase):
    def test_json_and_text_tell_the_same(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            path = pathlib.Path(name) / "plan.json"
            text = output("--model", "gpt2-124m", "--nodes", "1,64", "--target", "0.95", "--json", str(path))
            result = json.loads(path.read_text())
        self.assertEqual([p["gpus"] for p in result["predictions"]], [8, 512])
        self.assertIn(f"{100 * result['predictions'][1]['efficiency']:.1f}%", text)
        self.assertEqual([n["nodes"] for n in result["target"]["needed_gbs"]], [1, 64])

    def test_calibrated_run(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            path = pathlib.Path(name) / "metrics.jsonl"
            path.write_text(json.dumps(summary(2, 7.5e6, 3.9e6, communication_seconds=2e-5)) + "\n")
            text = output("--model", "cnn", "--calibrate", str(path), "--nodes", "1")
        self.assertIn("measured at this batch, 1 run)", text)
        self.assertRegex(text, r"within a node: measured, .* \(1 all-reduce of 2 ranks; more are extrapolated\)")
        self.assertIn("predicted with their own one-rank baselines, and measured:", text)

    def test_the_answer_is_near_the_runs_that_it_was_given(self) -> None:
        folder = ROOT / "benchmarks" / "results" / "sweeps-4-h200-2026-11-21" / "scaling"
        for batch, measured in ((512, 15.25e6), (8192, 26.05e6)):
            text = output("--model", "cnn", "--batch", str(batch), "--calibrate", str(folder), "--nodes", "1",
                          "--gpus-per-node", "4", "--json")  # fmt: skip
            (predicted,) = json.loads(text)["predictions"]
            self.assertAlmostEqual(predicted["samples_per_second"] / measured, 1.0, delta=0.05)

    def test_batches_that_were_not_measured_are_refused_or_left_out(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            path = pathlib.Path(name) / "metrics.jsonl"
            runs = [summary(1, rate, batch_per_rank=batch) for batch, rate in ((256, 3e6), (512, 4e6))]
            path.write_text("".join(json.dumps(run) + "\n" for run in runs))
            arguments = ["--model", "cnn", "--calibrate", str(path)]
            with self.assertRaisesRegex(UsageError, "metrics.jsonl: its runs of cnn .* from 256 to 512 per rank, not 64"):
                output(*arguments, "--batch", "64", "--nodes", "1")
            output(*arguments, "--batch", "64", "--nodes", "1", "--tflops", "200")
            text = output(*arguments, "--global-batch", "4096", "--nodes", "1,2,4")
            self.assertRegex(text, r"\n  1 +8 +512 .*\n  2 +16 +256 ")
            self.assertIn("Left out: 4 nodes, because its runs of cnn", text)

    def test_gradients_are_those_of_the_runs(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            path = pathlib.Path(name) / "metrics.jsonl"
            path.write_text(json.dumps(summary(1, 4e6, description=cnn_description(gradient_dtype="fp32"))) + "\n")
            arguments = ["--model", "cnn", "--calibrate", str(path), "--nodes", "1"]
            with mock.patch.object(plan_program, "describe", side_effect=[WORK, UsageError("asked again")]) as asked:
                with self.assertRaisesRegex(UsageError, "asked again"):
                    output(*arguments)
            self.assertEqual(asked.call_args.args[1]["comm-dtype"], "fp32")
            with mock.patch.object(plan_program, "describe", return_value=WORK) as asked:
                output(*arguments, "--gradients", "bf16")
            self.assertEqual({call.args[1]["comm-dtype"] for call in asked.call_args_list}, {"bf16"})

    def test_a_node_of_nvlinks_is_never_answered_with_pcie(self) -> None:
        for batch in ("1", "4", "16", "64"):
            text = output("--batch", batch, "--nodes", "1", "--target", "0.9")
            self.assertNotIn("pcie", text.partition("For 90%")[2])
        text = output("--batch", "64", "--nodes", "1", "--target", "0.9", "--link", "pcie5")
        self.assertRegex(text.partition("For 90%")[2], r"pcie\d")

    def test_where_no_network_is_enough_it_says_what_would_be(self) -> None:
        arguments = ["--params", "100M", "--seq", "64", "--nodes", "16", "--target", "0.9", "--json"]
        (row,) = json.loads(output(*arguments, "--batch", "1"))["target"]["needed_gbs"]
        self.assertIsNone(row["achieved_gbs"])
        batch = re.fullmatch(r"batch (\d+) per GPU \(ZeRO, .*\)", row["would_be_enough"][0])[1]
        self.assertRegex(row["would_be_enough"][1], r"\d+ micro-steps per step")
        for tried, enough in ((batch, True), (int(batch) // 2, False)):
            (made,) = json.loads(output(*arguments, "--batch", str(tried)))["predictions"]
            self.assertEqual(made["efficiency"] >= 0.9, enough)
        text = output(*arguments[:-1], "--batch", "1")
        self.assertRegex(text, r"16 nodes: no bandwidth is, because of latency.*; enough would be: batch")

    def test_machines_are_as_they_are_sold(self) -> None:
        for gpu, node_gbs in (("h200", 8 * 50), ("a100", 8 * 25), ("v100", 4 * 12.5)):
            answer = json.loads(output("--gpu", gpu, "--nodes", "2", "--achievable", "1", "--json"))
            self.assertEqual(answer["case"]["inter_gbs"], node_gbs)

    def test_curves(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            png, svg = pathlib.Path(name) / "p.png", pathlib.Path(name) / "p.svg"
            output("--png", str(png), "--svg", str(svg), "--target", "0.9")
            self.assertTrue(png.read_bytes().startswith(b"\x89PNG"))
            self.assertIn("<svg", svg.read_text())

    def test_a_python_without_the_modules_hands_over_to_one_with_them(self) -> None:
        with mock.patch.object(importlib.util, "find_spec", return_value=None), mock.patch.object(os, "execv") as execv:
            execv.side_effect = KeyboardInterrupt  # it does not return
            with mock.patch.object(interpreter, "SYSTEM_PYTHON", "/bin/sh"), self.assertRaises(KeyboardInterrupt):
                output("--png", "/no/such/folder/p.png")
            self.assertEqual(execv.call_args.args, ("/bin/sh", ["/bin/sh", *sys.argv]))
            with mock.patch.object(interpreter, "SYSTEM_PYTHON", sys.executable):
                with self.assertRaisesRegex(UsageError, "there is no matplotlib: install python3-matplotlib "):
                    output("--svg", "/no/such/folder/p.svg")
                with self.assertRaisesRegex(UsageError, "there is no scipy: install python3-scipy "):
                    output("--calibrate", "/no/such/folder")
                with self.assertRaisesRegex(UsageError, "no jinja2 and no scipy: install python3-jinja2 python3-scipy"):
                    interpreter.use_one_with("jinja2", "scipy")
            output("--nodes", "1")

    def test_a_curve_of_another_network_leaves_the_measured_one_out(self) -> None:
        options = plan_program.parse(["--network", "ndr"])
        changes = plan_program.other_network(options, "hdr")
        case = Case(language_model(124e6, 1024), 16, 400.0, nodes=4, inter_fit=NetworkFit(1.0, 10000.0))
        hdr = dataclasses.replace(case, **changes)
        self.assertAlmostEqual(hdr.inter_gbs, 0.8 * 8 * 25.0)
        self.assertLess(predict(hdr).efficiency, predict(case).efficiency)

    def test_flags_reach_ddptrain(self) -> None:
        plan = ["--model", "cnn", "--bucket-mb", "2", "--gradients", "fp32", "--json", "--nodes", "1"]
        with mock.patch.object(plan_program, "describe", side_effect=UsageError("seen")) as describe:
            for more in ([], ["--", "--seed=3", "--lr", "2"]):
                with self.assertRaisesRegex(UsageError, "seen"):
                    output(*plan, *more)
        flags = {"config": "configs/cnn.toml", "device": "cuda", "data": "synthetic", "comm-dtype": "fp32",
                 "bucket-mb": 2.0}  # fmt: skip
        self.assertEqual([call.args[1:] for call in describe.call_args_list], [(flags, []), (flags, more[1:])])
        batch = json.loads(output(*plan, "--batch", "7", "--", "--batch_per_rank=99"))["case"]["batch"]
        self.assertEqual(batch, 7)

    def test_the_words_of_ddptrain_are_told(self) -> None:
        with self.assertRaisesRegex(UsageError, "^--model vgg: there is no such model$"):
            output("--model", "vgg")
        with self.assertRaisesRegex(UsageError, "cannot be run: No such file or directory. Build it, or give --bin "):
            output("--bin", PROGRAMS.name)

    def test_adapters_that_are_named_by_the_node_are_not_multiplied(self) -> None:
        for network, of_a_node in (("hdr", "160"), ("efa2", "320"), ("100", "80.0")):
            text = output("--network", network, "--nics", "8", "--nodes", "2")
            self.assertIn(f"between nodes: NCCL's cost model, {of_a_node} GB/s of a node (80% of", text)

    def test_one_gpu_needs_no_link(self) -> None:
        text = output("--gpus-per-node", "1", "--nodes", "1,2", "--target", "0.9")
        self.assertRegex(text, r"\n +1 +1 +nothing to send *\n +2 +2 +[\d.]+ Gbit/s")

    def test_compared_runs_are_in_order_and_in_plain_numbers(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            runs = [summary(ranks, 1.5e7, 3.9e6, communication_seconds=2e-5) for ranks in (4, 2)]
            path = pathlib.Path(name) / "metrics.jsonl"
            path.write_text("".join(json.dumps(run) + "\n" for run in runs))
            text = output("--model", "cnn", "--calibrate", str(path), "--nodes", "1")
        rows = re.findall(r"^ +(\d) +1 +\d+ +\d+ +(\d+) +[-+]", text, re.MULTILINE)
        self.assertEqual(rows, [("2", "15000000"), ("4", "15000000")])

    def test_bad_input_is_one_message_and_exit_code_2(self) -> None:
        for arguments in (["--foo"], ["--model", "vgg"], ["--params", "big"], ["--params", "-1B"], ["--nodes", "0"],
                          ["--nodes", "1,,2"], ["--nodes", "1000000"], ["--batch", "0"], ["--batch", "1.5"],
                          ["--global-batch", "4", "--nodes", "8"], ["--gpu", "h300"], ["--tflops", "nan"],
                          ["--network", "fast"], ["--network", "-1"], ["--link", "inf"], ["--target", "1.5"],
                          ["--model", "none.toml"], ["--achievable", "0"], ["--calibrate", "/nonexistent"],
                          ["--calibrate", str(ROOT / "README.md")], ["--json", "/nonexistent/x.json"],
                          ["--model", "cnn", "--params", "2B"], ["--bucket-mb", "0"], ["stray"],
                          ["--params", "2B", "--", "--seed", "2"], ["--bin", "/nonexistent"]):  # fmt: skip
            command = [sys.executable, ROOT / "launch/ddpplan", "--bin", str(BIN), *arguments]
            done = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertTrue(done.stderr.startswith("ddpplan: "), done.stderr)
            self.assertEqual(done.stdout, "", arguments)

    def test_random_arguments_end_in_a_table_or_a_message(self) -> None:
        rng = random.Random(5)
        flags = ["--params", "--seq", "--batch", "--nodes", "--tflops", "--network", "--nics", "--target", "--channels",
                 "--bucket-mb", "--last-bucket-kb", "--gpus-per-node", "--grad-accum", "--link"]  # fmt: skip
        values = ["0", "1", "2", "7", "1e9", "1e-9", "-3", "", "x", "1B", "999999", "0.95", "nan", "1e308", "٣"]
        for _ in range(400):
            arguments = [a for flag in rng.sample(flags, 4) for a in (flag, rng.choice(values))]
            with contextlib.suppress(UsageError):
                self.assertIn("efficiency", output(*arguments))


if __name__ == "__main__":
    unittest.main()
