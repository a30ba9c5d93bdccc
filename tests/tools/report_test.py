import json
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

from support import ROOT, record, write_results
from ddptools import plots
from ddptools.lost_time import lost_time_table, lost_time_words, losses
from ddptools.measurements import load
from ddptools.noise import compare, student_p, welch_p
from ddptools.page import to_html
from ddptools.plots import lost_time_picture
from ddptools.predicted import predicted_table, predicted_words, predictions
from ddptools.tables import Table
from ddptools.words import choices, explain, numerics

RING = {"algorithm": "Ring", "protocol": "LL128", "channels": 24, "transport": "P2P/CUMEM", "version": "2.28.3"}
TREE = RING | {"algorithm": "Tree"}


def runs(case: str, rates: list[float], settings: dict[str, Any], **changes: Any) -> list[dict[str, Any]]:
    return [record(case, i, rate, settings, **changes) for i, rate in enumerate(rates)]


def algo(value: str, rates: list[float], **changes: Any) -> list[dict[str, Any]]:
    settings = {"ranks": 4, "layout": "", "gpus": "all", "batch": 512, "NCCL_ALGO": value}
    return runs(f"algo-{value}", rates, settings, **changes)


class NoiseTest(unittest.TestCase):
    def test_students_distribution(self) -> None:
        for t, degrees, p in ((12.706, 1, 0.05), (4.303, 2, 0.05), (2.228, 10, 0.05), (2.576, 1e9, 0.01), (0, 3, 1)):
            self.assertAlmostEqual(student_p(t, degrees), p, delta=0.0005)

    def test_welch(self) -> None:
        # By hand: means 2 and 5, variances 1 and 1, n = 3: t = 3 / sqrt(2/3) = 3.674, 4 degrees: p = 0.0213
        self.assertAlmostEqual(welch_p([1, 2, 3], [4, 5, 6]), 0.0213, delta=0.0002)
        self.assertEqual(welch_p([1, 1], [1, 1]), 1.0)
        self.assertEqual(welch_p([1, 1], [2, 2]), 0.0)

    def test_one_run_cannot_tell(self) -> None:
        self.assertIsNone(compare([1.0], [2.0, 2.1]).beyond_noise())
        self.assertTrue(compare([1.0, 1.01, 1.02], [2.0, 2.01, 2.02]).beyond_noise())
        self.assertFalse(compare([1.0, 2.0, 3.0], [1.1, 2.1, 3.3]).beyond_noise())

    def test_more_comparisons_ask_for_more(self) -> None:
        comparison = compare([1, 2, 3], [4, 5, 6])
        self.assertTrue(comparison.beyond_noise(2))
        self.assertFalse(comparison.beyond_noise(3))


class ReportCase(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def experiment(self, records: list[dict[str, Any]]):
        experiments = load([write_results(self.folder / "results", records)]).experiments
        self.assertEqual(len(experiments), 1)
        return experiments[0]

    def words(self, records: list[dict[str, Any]]) -> str:
        return "\n".join(explain(self.experiment(records)))


class WordsTest(ReportCase):
    def test_a_clear_winner(self) -> None:
        text = self.words(algo("", [100, 101, 102]) + algo("Ring", [200, 201, 202]) + algo("Tree", [50, 51, 52]))
        self.assertIn("Highest is NCCL_ALGO=Ring: 201.0 images/s (200.0 to 202.0 over 3 runs)", text)
        self.assertIn("Against NCCL_ALGO=unset with 101.0 images/s", text)
        self.assertIn("99.0% more, more than the noise", text)
        self.assertIn("Lowest is NCCL_ALGO=Tree with 51 images/s (50 to 52 over 3 runs), against the same: 49.5%", text)

    def test_no_difference_beyond_the_noise(self) -> None:
        text = self.words(algo("", [100, 110, 90]) + algo("Ring", [102, 112, 89]))
        self.assertIn("no difference beyond the noise (2.0% more", text)
        self.assertNotIn("more than the noise", text)

    def test_the_farthest_two_of_many_were_picked_among_all_pairs(self) -> None:
        records = []
        for gpus, rates in (("0,1", [100, 101, 102]), ("0,2", [101, 102, 103]), ("0,3", [103.7, 105, 106.3])):
            records += runs(gpus, rates, {"ranks": 2, "gpus": gpus})
        self.assertIn("times 3 comparisons", self.words(records))

    def test_two_runs_are_too_few(self) -> None:
        text = self.words(algo("", [100, 110]) + algo("Tree", [50, 70]))
        self.assertIn("42.9% less; 2 runs on a side are too few to tell that from the noise", text)
        self.assertIn("more than the noise", self.words(algo("", [100, 100.1]) + algo("Tree", [50, 50.1])))

    def test_one_run_each(self) -> None:
        self.assertIn("cannot be told", self.words(algo("", [100]) + algo("Ring", [120])))

    def test_what_does_not_communicate_is_no_winner(self) -> None:
        def overlap(value: str, rates: list[float]) -> list[dict[str, Any]]:
            return runs(value, rates, {"ranks": 2, "overlap": value})

        text = self.words(overlap("none", [200, 201]) + overlap("off", [100, 101]) + overlap("on", [150, 151]))
        self.assertIn("Highest is overlap=on", text)
        self.assertIn("overlap=none, which trains nothing together) it is 200.5", text)
        self.assertIn("reaches 75.1% of that", text)

    def test_scaling(self) -> None:
        records = []
        for ranks, rate in ((1, 100), (2, 190), (8, 700)):
            summary = {"scaling_efficiency": 0.9}
            records += runs(f"r{ranks}", [rate, rate * 1.01], {"ranks": ranks, "batch": 8}, summary=summary)
        text = self.words(records)
        self.assertIn("From 1 to 8 ranks the rate grows 7.00 times, an efficiency of 87.5% (87.1% to 87.9%)", text)
        self.assertIn("its own one-rank baseline, 90.0%", text)

    def test_saturation_with_the_batch(self) -> None:
        records = []
        for batch, rate in ((32, 1050), (64, 1498), (256, 2192), (512, 2450), (1024, 2529), (1280, 2458)):
            records += runs(f"b{batch}", [rate], {"ranks": 1, "batch": batch})
        text = self.words(records)
        self.assertIn("The highest rate is at batch 1024", text)
        self.assertIn("from batch 512 on it is within 5.0%", text)

    def test_emulated_numbers_say_so(self) -> None:
        def layout(value: str, rates: list[float], emulated: bool) -> list[dict[str, Any]]:
            return runs(value, rates, {"ranks": 4, "layout": value}, emulated=emulated, emulation="NCCL_HOSTID")

        records = layout("1x4", [100, 101], False) + layout("2x2", [10, 11], True)
        self.assertIn(
            "lowest with layout 2x2 (emulated): 10.5 images/s (10 to 11 over 2 runs, emulated)", self.words(records)
        )
        markdown = self.report(records)
        self.assertIn("| 2x2 emulated | 10.5 (10 to 11) emulated |", markdown)
        self.assertIn("Nodes were emulated on one machine (NCCL_HOSTID)", markdown)

    def report(self, records: list[dict[str, Any]]) -> str:
        write_results(self.folder / "results", records)
        done = run_report(self.folder / "results", "--out", self.folder / "r.html", "--md", self.folder / "r.md")
        self.assertEqual(done.returncode, 0, done.stderr)
        return (self.folder / "r.md").read_text()

    def test_pairs_that_are_the_same_gpus(self) -> None:
        records = []
        for gpus, used in (("best-pair", ["0", "1"]), ("worst-pair", ["0", "1"]), ("0,3", ["0", "3"])):
            records += runs(gpus, [5, 6], {"ranks": 2, "gpus": gpus}, gpus_used=used)
        text = self.words(records)
        self.assertIn("best-pair and worst-pair are the same GPUs here: 0,1.", text)
        self.assertIn("Highest with gpus 0,3", text)
        self.assertNotIn("Highest with gpus", self.words(records[:4]))

    def test_cases_that_nothing_compares_are_listed(self) -> None:
        text = self.words(runs("2", [10, 12], {"ranks": 2}) + runs("4", [20], {"ranks": 4}))
        self.assertEqual(text, "Measured: 2 ranks: 11 images/s (10 to 12 over 2 runs); 4 ranks: 20 images/s (one run).")

    def test_settings_without_effect(self) -> None:
        records = algo("", [100], summary={"nccl": RING}) + algo("Ring", [101], summary={"nccl": RING})
        records += algo("Tree", [90], summary={"nccl": TREE})
        text = "\n".join(choices(self.experiment(records)))
        self.assertIn("No effect on what NCCL chose: NCCL_ALGO=Ring. It took Ring, LL128, 24 channels, P2P/CUMEM", text)
        self.assertNotIn("Tree", text)
        self.assertIn(
            "do not say what NCCL chose", "\n".join(choices(self.experiment(algo("", [1]) + algo("Ring", [1]))))
        )

    def test_what_nccl_chose_by_size(self) -> None:
        def chosen(value: str, *protocols: str) -> list[dict[str, Any]]:
            rows = [{"bytes": 1024 << i, "in_place": True, "busbw_gbs": 1.0, "algorithm": "Ring", "protocol": protocol}
                    for i, protocol in enumerate(protocols)]  # fmt: skip
            told = {"benchmark": "allreduce", "nccl": {"channels": 4, "transport": "SHM"}, "results": rows}
            return runs(value, [1.0], {"ranks": 4, "NCCL_PROTO": value}, bench=told, variables=["NCCL_PROTO"])

        records = chosen("", "LL", "LL", "Simple") + chosen("^LL128", "LL", "LL", "Simple")
        records += chosen("^LL", "LL", "Simple", "Simple")
        text = "\n".join(choices(self.experiment(records)))
        self.assertIn("NCCL_PROTO=^LL128. It took Ring, LL+Simple, 4 channels, SHM, as with NCCL_PROTO=unset", text)
        self.assertNotIn("^LL.", text)  # other sizes
        markdown = self.report(records)
        self.assertIn("What NCCL chose, by size.", markdown)
        self.assertIn("| 2 KiB | Ring LL | Ring Simple | Ring LL |", markdown)

    def test_settings_that_change_the_numerics(self) -> None:
        same = {"summary": {"parameter_hash": "a"}}
        other = {"summary": {"parameter_hash": "b"}}
        text = "\n".join(numerics(self.experiment(algo("", [1, 2], **same) + algo("Ring", [1, 2], **same))))
        self.assertIn("All 2 settings end with the same parameters", text)
        text = "\n".join(numerics(self.experiment(algo("", [1], **same) + algo("Tree", [1], **other))))
        self.assertIn("differ from those of NCCL_ALGO=unset with: NCCL_ALGO=Tree", text)
        records = algo("", [1], **same) + algo("Ring", [1], **same)
        records.append(records[0] | {"repeat": 1, "summary": records[0]["summary"] | {"parameter_hash": "c"}})
        self.assertIn("not reproducible bit by bit", "\n".join(numerics(self.experiment(records))))


def run_report(*arguments: Any) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "launch" / "ddpreport"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def everything() -> list[dict[str, Any]]:
    """An experiment of each kind."""
    records = []
    for ranks in (1, 2, 4):
        for batch in (64, 512):
            summary = {
                "step_seconds": 1e-3,
                "step_seconds_without_communication": 9e-4,
                "scaling_efficiency": 0.8,
                "exposed_comm_fraction": 0.3,
                "world_size": ranks,
                "topology": "NV18",
                "nccl": RING,
                "mfu": None,
            }
            settings = {"ranks": ranks, "batch": batch}
            rates = [ranks * 90 + batch, ranks * 95 + batch]
            records += runs(f"w{ranks}-{batch}", rates, settings, product="weak", summary=summary)
    for algorithm in ("", "Ring", "Tree"):
        for protocol in ("", "LL", "Simple"):
            settings = {"ranks": 4, "NCCL_ALGO": algorithm, "NCCL_PROTO": protocol}
            rates = [100 + 10 * len(algorithm) + len(protocol)] if protocol != "LL" else [None]
            records += runs(f"g{algorithm}{protocol}", rates, settings, product="grid")
        rows = [{"bytes": 2**e, "in_place": True, "busbw_gbs": e * 1.5, "time_us": 1.0} for e in range(10, 30)]
        bench = {"benchmark": "allreduce", "results": rows}
        settings = {"ranks": 4, "NCCL_ALGO": algorithm}
        records.append(record(f"b{algorithm}", 0, 1.0, settings, product="bench", summary={}, bench=bench))
        records[-1]["summary"] = None
    for layout in ("1x4", "2x2"):
        lost = {"step_seconds": 1e-3, "scaling_efficiency": 0.7, "step_seconds_without_communication": 9e-4}
        lost |= {"step_seconds_without_communication_mean": 8.5e-4}
        lost |= {"step_seconds_without_communication_per_rank": [8.5e-4, 8.4e-4, 8.9e-4, 8.2e-4]}
        settings = {"ranks": 4, "layout": layout, "note": "<script>alert(1)</script>|`x`"}
        records += runs(layout, [5, 6], settings, product="layouts", summary=lost, emulated=layout == "2x2")
    for bucket in (1, 4, 25):
        records += runs(f"k{bucket}", [5, 6], {"ranks": 4, "bucket-mb": bucket}, product="buckets")
    return records


def scaled(ranks: int, rate: float, baseline: float, **changes: Any) -> dict[str, Any]:
    """A record that tells what a prediction takes: a step is 512 images, its all-reduces take 50 us."""
    step = ranks * 512 / rate
    summary = {"model": "cnn", "device": "cuda", "precision": "bf16", "world_size": ranks, "nodes": 1,
               "batch_per_rank": 512, "parameters": 1_199_882, "baseline_per_second": baseline,
               "communication_seconds": 50e-6 if ranks > 1 else None, "step_seconds": step,
               "scaling_efficiency": rate / ranks / baseline}  # fmt: skip
    settings = {"ranks": ranks, "overlap": "off"} | changes.pop("settings", {})
    return record(f"r{ranks}", 0, rate, settings, summary=summary, **changes)


class PredictedTest(ReportCase):
    def test_error_of_a_case(self) -> None:
        # Nothing is hidden: a step takes 512 / 4e6 = 128 us and 50 us; measured are 160 us.
        experiment = self.experiment([scaled(1, 4e6, 4e6), scaled(8, 8 * 512 / 160e-6, 4e6)])
        found = predictions(experiment)
        self.assertEqual([one.case.ranks for one in found], [8])
        self.assertAlmostEqual(found[0].error, 160 / 178 - 1)
        (row,) = predicted_table(experiment, found).rows
        self.assertEqual(row, ["8 ranks", "23,011,236", "25,600,000", "-10.1%", "71.9%", "80.0%"])
        self.assertIn("off by 10.1% in the median, by 10.1% at most", predicted_words(experiment, found))
        self.assertIn("is 8 ranks (-10.1%)", predicted_words(experiment, found))

    def test_the_network_of_other_variables_is_another(self) -> None:
        def level(value: str, us: float) -> dict[str, Any]:
            made = scaled(8, 8 * 512 / (128e-6 + us * 1e-6), 4e6, settings={"NCCL_P2P_LEVEL": value})
            made["summary"]["communication_seconds"] = us * 1e-6
            return made | {"case": value}

        found = predictions(self.experiment([level("", 50), level("LOC", 500)]))
        self.assertEqual([one.case.settings["NCCL_P2P_LEVEL"] for one in found], ["", "LOC"])
        for one in found:
            self.assertAlmostEqual(one.error, 0.0, places=6)

    def test_only_what_can_be_predicted(self) -> None:
        without = {"ranks": 4, "overlap": "none"}
        for records in (algo("", [100, 101]), [scaled(1, 4e6, 4e6)], [scaled(8, 2e7, 4e6, emulated=True)],
                        [scaled(4, 2e7, 4e6, settings=without)]):  # fmt: skip
            self.assertEqual(predictions(self.experiment(records)), [])
        unfitted = scaled(8, 2e7, 4e6)
        unfitted["summary"]["communication_seconds"] = None
        self.assertEqual(predictions(self.experiment([unfitted])), [])

    def test_section_of_the_page(self) -> None:
        for records, there in (([scaled(2, 7e6, 4e6), scaled(8, 2e7, 4e6)], True), (algo("", [1.0]), False)):
            write_results(self.folder / "results", records)
            done = run_report(self.folder / "results", "--out", self.folder / "r.html")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual("Predicted and measured</h3>" in (self.folder / "r.html").read_text(), there)

    def test_damaged_summaries(self) -> None:
        rng = random.Random(2)
        values = [None, "x", -1, 0, 0.5, 1e400, 1e29, 1e-300, [], {}, True, 10**400, 3]
        for _ in range(300):
            made = [scaled(1, 4e6, 4e6), scaled(8, 2e7, 4e6)]
            for _ in range(rng.randrange(1, 5)):
                summary = rng.choice(made)["summary"]
                summary[rng.choice([*summary, "grad_accum", "seq"])] = rng.choice(values)
            for experiment in load([write_results(self.folder / "results", made)]).experiments:
                found = predictions(experiment)
                if found:
                    predicted_words(experiment, found), predicted_table(experiment, found)


def bench(ranks: int, benchmark: str, results: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """A record of ddpbench."""
    made = {"benchmark": benchmark, "ranks": ranks, "results": results} | fields
    return record(f"{benchmark}{ranks}", 0, None, {"ranks": ranks}, status="ok", bench=made)


def step_bench(ranks: int, parts: dict[str, float | None], **fields: Any) -> dict[str, Any]:
    """Of ddpbench step; `parts` in us."""
    rows = [{"part": name, "time_us": time} for name, time in parts.items()]
    rows.append({"part": "step", "time_us": sum(time or 0.0 for time in parts.values())})
    return bench(ranks, "step", rows, **{"model": "cnn", "batch_per_rank": 32, "grad_accum": 1} | fields)


ONE = {"data": 10.0, "forward": 200.0, "backward": 400.0, "exposed_communication": 2.0, "optimizer": 50.0}
ONE |= {"launch_gaps": 30.0}
FOUR = {"data": 25.0, "forward": 220.0, "backward": 440.0, "exposed_communication": 102.0, "optimizer": 48.0}
FOUR |= {"launch_gaps": 70.0}


class LostTimeTest(ReportCase):
    def test_parts_add_up(self) -> None:
        rng = random.Random(5)
        for _ in range(100):
            summaries = []
            for _ in range(3):
                summary = {"step_seconds": rng.uniform(1, 2), "scaling_efficiency": rng.uniform(0.3, 1.1)}
                summary["step_seconds_without_communication"] = rng.uniform(0.5, 2)
                if rng.random() < 0.8:
                    summary["step_seconds_without_communication_mean"] = rng.uniform(0.5, 2)
                summaries.append(summary)
            made = [record("c", i, 1.0, {"ranks": 4}, summary=s) for i, s in enumerate(summaries)]
            (loss,) = losses(self.experiment(made))
            self.assertAlmostEqual(sum(loss.parts.values()), loss.step - loss.useful)
            known = any("step_seconds_without_communication_mean" in s for s in summaries)
            self.assertEqual("stragglers" in loss.parts, known)

    def test_the_slowest_rank_is_named_by_how_often_it_is(self) -> None:
        def words(*per_rank: Any) -> str:
            summary = {"step_seconds": 1.0, "scaling_efficiency": 0.5, "step_seconds_without_communication": 0.9}
            changes = [{"step_seconds_without_communication_per_rank": ranks} for ranks in per_rank]
            made = [record("c", i, 1.0, {"ranks": 2}, summary=summary | c) for i, c in enumerate(changes)]
            return lost_time_words(losses(self.experiment(made)))

        self.assertIn("slowest rank is rank 1, 20.0% above the mean", words([0.4, 0.6]))
        self.assertIn("rank 0 in 2 of 3 runs, 15.0% above the mean", words([0.6, 0.4], [0.55, 0.45], [0.4, 0.6]))
        self.assertNotIn("slowest", words([0.4, 0.6], [0.6, 0.4]))
        for nothing in (None, [], [0.5], [0.5, None], [0.5, "x"], [0.5, -1.0], {"0": 1.0}, [0.5, 1e400]):
            self.assertNotIn("slowest", words(nothing))

    def test_step_of_ddpbench(self) -> None:
        experiment = self.experiment([step_bench(1, ONE), step_bench(4, FOUR, stragglers_us=12.0)])
        self.assertEqual(experiment.unit, "samples/s")
        self.assertAlmostEqual(experiment.measured[1].rate, 4 * 32 / 905e-6)
        (loss,) = losses(experiment)
        expected = {"exposed communication": 100, "slower together": 46, "stragglers": 12, "input": 15}
        expected |= {"launch gaps": 40}
        self.assertEqual({name: round(1e6 * part, 6) for name, part in loss.parts.items()}, expected)
        self.assertEqual((round(1e6 * loss.step, 6), round(1e6 * loss.useful, 6)), (905, 692))

    def test_only_what_ddpbench_measured(self) -> None:
        graph = {"data": None, "launch_gaps": 0.0}
        (loss,) = losses(self.experiment([step_bench(1, ONE | graph), step_bench(4, FOUR | graph)]))
        self.assertEqual(list(loss.parts), ["exposed communication", "slower together and stragglers"])
        self.assertAlmostEqual(sum(loss.parts.values()), loss.step - loss.useful)
        for records in ([step_bench(4, FOUR)], [step_bench(1, ONE, batch_per_rank=128), step_bench(4, FOUR)]):
            self.assertEqual(losses(self.experiment(records)), [])

    def test_overlap_of_ddpbench_tells_slow_compute_from_waiting(self) -> None:
        rows = [{"bucket_bytes": 2**size, "compute_alone_us": 900.0, "compute_beside_us": 950.0 + size,
                 "together_us": 1000.0} for size in (20, 18)]  # fmt: skip
        experiment = self.experiment([bench(2, "overlap", rows)])
        self.assertEqual((experiment.unit, experiment.measured[0].rate), ("backward passes/s", 1000.0))
        first, second = losses(experiment)
        self.assertEqual((first.label, second.label), ("main, buckets of 256 KiB", "main, buckets of 1 MiB"))
        expected = {"compute slowed down by communication": 68, "waiting for communication": 32}
        self.assertEqual({name: round(1e6 * part, 6) for name, part in first.parts.items()}, expected)
        self.assertEqual(lost_time_table([first]).header[2], "without communication, ms")

    def test_short_steps_are_read_in_microseconds(self) -> None:
        summary = {"step_seconds": 134e-6, "scaling_efficiency": 0.93, "step_seconds_without_communication": 126e-6}
        summary |= {"step_seconds_without_communication_mean": 125.93e-6}
        found = losses(self.experiment([record("c", 0, 1.0, {"ranks": 2}, summary=summary)]))
        self.assertIn("7.0% of 134.0 us", lost_time_words(found))
        self.assertEqual(lost_time_table(found).rows[0], ["main", "134.0", "124.6", "8.00", "1.31", "0.07", "93.0%"])
        self.assertEqual(lost_time_table(found).header[1:3], ["step, us", "one rank alone, us"])

    def test_the_legend_is_not_cut_off(self) -> None:
        rows = [{"bucket_bytes": 1, "compute_alone_us": 900, "compute_beside_us": 950, "together_us": 1000}]
        for made in ([bench(2, "overlap", rows)], [step_bench(1, ONE), step_bench(4, FOUR, stragglers_us=12.0)]):
            experiment = self.experiment(made)
            with mock.patch.object(plots, "finish", lambda figure, *_: figure):
                figure = lost_time_picture(experiment, losses(experiment))
            figure.canvas.draw()
            box = figure.axes[0].get_legend().get_window_extent()
            self.assertGreaterEqual(box.x0, 0)
            self.assertLessEqual(box.x1, figure.bbox.x1)

    def test_long_names_leave_room_for_the_bars(self) -> None:
        settings = {f"OMPI_MCA_btl_vader_{name}": "x" for name in ("single_copy_mechanism", "eager_limit", "flags")}
        summary = {"step_seconds": 1.0, "scaling_efficiency": 0.9, "step_seconds_without_communication": 0.95}
        made = [record(v, 0, 1.0, dict.fromkeys(settings, v) | {"ranks": 2}, summary=summary) for v in ("x", "y")]
        experiment = self.experiment(made)
        drawn: list[Any] = []
        with mock.patch.object(plots, "finish", lambda figure, *_: drawn.append(figure)):
            lost_time_picture(experiment, losses(experiment))
            plots.pictures(experiment)
        self.assertGreaterEqual(len(drawn), 2)
        for figure in drawn:
            figure.canvas.draw()
            self.assertGreater(figure.axes[0].get_position().width, 0.4)

    def test_nothing_lost(self) -> None:
        summary = {"step_seconds": 1.0, "scaling_efficiency": 1.1, "step_seconds_without_communication": 0.95}
        found = losses(self.experiment([record("c", 0, 1.0, {"ranks": 2}, summary=summary)]))
        self.assertEqual(lost_time_words(found), "No step takes longer than one rank alone.")

    def test_damaged_results(self) -> None:
        rng = random.Random(3)
        values = [None, "x", -1, 0, 0.5, 1e400, 1e308, 1e-300, [], {}, True, 10**400, [None], [{}], [[1]]]
        rows = [{"bucket_bytes": 4, "compute_alone_us": 9.0, "compute_beside_us": 10.0, "together_us": 11.0}]
        summary = {"step_seconds": 1.0, "scaling_efficiency": 0.5, "step_seconds_without_communication": 0.9,
                   "step_seconds_without_communication_mean": 0.8,
                   "step_seconds_without_communication_per_rank": [0.7, 0.9]}  # fmt: skip
        for _ in range(100):
            made = [step_bench(1, ONE), step_bench(4, FOUR, stragglers_us=1.0), bench(2, "overlap", [dict(rows[0])])]
            made.append(record("t", 0, 1.0, {"ranks": 2}, summary=dict(summary)))
            for one in rng.sample(made, 2):
                table = one["bench"] if "bench" in one else one["summary"]
                if rng.random() < 0.5 and isinstance(table.get("results"), list):
                    table = rng.choice(table["results"])
                table[rng.choice(list(table))] = rng.choice(values)
            for experiment in load([write_results(self.folder / "results", made)]).experiments:
                found = losses(experiment)
                if found:
                    lost_time_words(found), lost_time_table(found), lost_time_picture(experiment, found)


class PageTest(ReportCase):
    def report(self, *options: Any, source: pathlib.Path | None = None) -> subprocess.CompletedProcess:
        done = run_report(source or self.folder / "results", "--out", self.folder / "r.html", *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        self.assertNotIn("Warning", done.stderr)
        return done

    def page(self) -> str:
        return (self.folder / "r.html").read_text()

    def test_the_page_has_everything_and_needs_nothing(self) -> None:
        write_results(self.folder / "results", everything())
        self.report("--png", self.folder / "png", "--md", self.folder / "r.md", "--title", "A <title>")
        page = self.page()
        for text in ("busbw at 512 MiB", "stragglers", "exit code 1: no luck", "emulated", "A &lt;title&gt;", "Ring"):
            self.assertIn(text, page)
        self.assertNotIn("<script", page)
        without_names = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
        self.assertNotRegex(without_names, r"https?:|//[a-z]|@import|<link|<iframe")
        for target in re.findall(r'(?:href|src)="([^"]*)"', without_names):
            self.assertRegex(target, r"^(#|data:)")
        ids = re.findall(r'\bid="([^"]+)"', page)
        self.assertEqual(len(ids), len(set(ids)))
        for target in re.findall(r'href="#([^"]+)"', page):
            self.assertIn(target, ids)
        names = {file.stem for file in (self.folder / "png").iterdir()}
        for kind in (
            "weak-ranks",
            "weak-lost-time",
            "grid-nccl-algo-nccl-proto",
            "bench-bus-bandwidth",
            "layouts-cases",
        ):
            self.assertIn(f"made-up-{kind}", names)
        self.assertIn("made-up-buckets-bucket-mb", names)
        for file in (self.folder / "png").iterdir():
            self.assertTrue(file.read_bytes().startswith(b"\x89PNG"))
        markdown = (self.folder / "r.md").read_text()
        for picture in re.findall(r"!\[[^]]*\]\(([^)]*)\)", markdown):
            self.assertTrue((self.folder / picture).exists(), picture)
        self.assertEqual(markdown.count("!["), len(names))

    def test_a_machine_is_drawn_once(self) -> None:
        kept = ROOT / "benchmarks" / "results" / "sweeps-4-h200-2026-11-21" / "scaling" / "topology.json"
        for name, host in (("a", "vm"), ("b", "vm"), ("c", "other")):
            folder = write_results(self.folder / name, algo("", [1.0]))
            (folder / "topology.json").write_text(kept.read_text().replace('"vm"', f'"{host}"'))
        folders = [self.folder / name for name in "abc"]
        done = run_report(*folders, "--out", self.folder / "r.html", "--md", self.folder / "r.md")
        self.assertEqual(done.returncode, 0, done.stderr)
        titles = re.findall(r"^## The machine of .*/(.*)$", (self.folder / "r.md").read_text(), re.MULTILINE)
        self.assertEqual(titles, ["a and 1 more", "c"])
        for folder in folders:  # the same sweep in each
            self.assertIn(f"\n## made-up in {folder}\n", (self.folder / "r.md").read_text())

    def test_published_form_of_scaling(self) -> None:
        write_results(self.folder / "results", everything())
        self.report("--md", self.folder / "r.md")
        markdown = (self.folder / "r.md").read_text()
        self.assertIn("| ranks | batch 64: images/s | efficiency | batch 512: images/s | efficiency |", markdown)
        self.assertIn("| 1 | 156 (154 to 159) |", markdown.replace(".5", "").replace(".0", ""))

    def markdown(self, records: list[dict[str, Any]]) -> str:
        write_results(self.folder / "results", records)
        self.report("--md", self.folder / "r.md")
        return (self.folder / "r.md").read_text()

    def test_without_one_rank_there_is_no_efficiency(self) -> None:
        markdown = self.markdown(runs("2", [10, 12], {"ranks": 2}) + runs("4", [20], {"ranks": 4}))
        self.assertIn("| ranks | main: images/s |\n", markdown)
        self.assertNotIn("efficiency", markdown)

    def test_one_rank_has_no_communication_to_tell_of(self) -> None:
        def case(ranks: int, batch: int, rate: float) -> list[dict[str, Any]]:
            summary = {"scaling_efficiency": 1.0, "exposed_comm_fraction": 0.0, "topology": "none", "mfu": 0.25}
            if ranks > 1:
                summary |= {"scaling_efficiency": 0.9, "exposed_comm_fraction": 0.3, "topology": "NV18"}
            return runs(f"{ranks}-{batch}", [rate], {"ranks": ranks, "batch": batch}, summary=summary)

        markdown = self.markdown(case(1, 8, 100) + case(2, 8, 180))
        header = "| ranks | images/s | runs | efficiency in the job | exposed communication | MFU | topology |"
        self.assertIn(header, markdown)
        self.assertIn("| 1 | 100.0 | 1 |  |  | 25.0% |  |", markdown)
        self.assertIn("| 2 | 180.0 | 1 | 90.0% | 30.0% | 25.0% | NV18 |", markdown)
        self.assertIn("| batch | images/s | runs | MFU |\n", self.markdown(case(1, 8, 100) + case(1, 16, 150)))

    def test_only_the_same_work_is_compared(self) -> None:
        def case(batch: int, overlap: str, rate: float) -> list[dict[str, Any]]:
            return runs(f"{batch}{overlap}", [rate], {"ranks": 2, "batch": batch, "overlap": overlap})

        markdown = self.markdown(case(8, "none", 120) + case(8, "off", 100) + case(8, "on", 110) + case(16, "on", 130))
        self.assertIn("| 8 | none | 120.0 | +20.0% | 1 |", markdown)
        self.assertIn("| 8 | off | 100.0 | reference | 1 |", markdown)
        self.assertIn("| 8 | on | 110.0 | +10.0% | 1 |", markdown)
        self.assertIn("| 16 | on | 130.0 |  | 1 |", markdown)

    def test_the_machine_is_named_by_what_is_known(self) -> None:
        row = {"bytes": 1024, "busbw_gbs": 1.0}
        bench = {"benchmark": "allreduce", "library": "MPI", "device": "AMD EPYC", "results": [row]}
        markdown = self.markdown([record("c", 0, 1.0, {"ranks": 2}, bench=bench) | {"summary": None}])
        self.assertIn("| ranks run on | AMD EPYC |", markdown)
        for unknown in ("| topology |", "| NCCL |", "unknown", "with care"):
            self.assertNotIn(unknown, markdown)
        one, two = runs("c", [1.0], {"ranks": 2}) + [record("c", 1, 2.0, {"ranks": 2}, versions="ddptrain 2")]
        two["machine"] = one["machine"] | {"gpus": ["G", "H"], "host": "elsewhere"}
        markdown = self.markdown([one, two])
        self.assertIn("| GPUs | 2 x G; 1 x G, 1 x H |", markdown)
        self.assertIn("| versions | ddptrain 1, NCCL 2; ddptrain 2 |", markdown)
        self.assertIn("Not all of it on the same machine with the same versions", markdown)

    def test_runs_that_ended_alike_share_a_row(self) -> None:
        skipped = [record("c", i, None, {"ranks": 8}, status="skipped", reason="4 GPUs", log=None) for i in range(3)]
        self.assertIn("| main | 1, 2, 3 | skipped | 4 GPUs |\n", self.markdown(skipped))
        failed = algo("", [None, None])
        failed[1]["reason"] = "another"
        markdown = self.markdown(failed)
        self.assertIn("| main | 1 | failed | exit code 1: no luck | logs/algo--r0.out |\n", markdown)
        self.assertIn("| main | 2 | failed | another | logs/algo--r1.out |\n", markdown)

    def test_texts_stand_left_and_numbers_right(self) -> None:
        header, cells = ["case", "rate", "GPUs", "channels"], ["a", "1,234 (1,200 to 1,300) emulated", "4 x H200", "24"]
        html = to_html("T", [Table("", header, [cells, ["8 b", "(skipped)", "", "2"], ["c", "1.5e+09", "2.28.3", ""]])])
        cells[1] = "1,234 (1,200&nbsp;to&nbsp;1,300) emulated"  # goes to the next line as a whole
        for tag, row, kinds in (("th", header, "t-t-"), ("td", cells, "tlt-")):
            for text, kind in zip(row, kinds):
                names = {"t": ' class="text"', "l": ' class="long"', "-": ""}[kind]
                self.assertIn(f"<{tag}{names}>{text}<", html)

    def test_passes_of_a_rank_are_no_throughput_of_all(self) -> None:
        records = []
        for ranks in (1, 2):
            bench = {"benchmark": "overlap", "library": "NCCL 2.28.3", "results": [{"together_us": 1000 + ranks}]}
            records.append(record(f"o{ranks}", 0, 1.0, {"ranks": ranks}, bench=bench) | {"summary": None})
        markdown = self.markdown(records)
        self.assertIn("backward passes/s", markdown)
        self.assertNotIn("all ranks", markdown)
        self.assertIn("| NCCL | 2.28.3 |", markdown)

    def test_bus_bandwidth_of_many_settings(self) -> None:
        records = []
        for i in range(11):
            bench = {"benchmark": "allreduce", "library": "NCCL", "version": "2.28.3",
                     "results": [{"bytes": 1024, "in_place": True, "busbw_gbs": 100.0 + i}]}  # fmt: skip
            records.append(record(f"c{i}", 0, 1.0, {"ranks": 2, "NCCL_ALGO": f"a{i}"}, bench=bench) | {"summary": None})
        markdown = self.markdown(records)
        for i in range(11):
            self.assertRegex(markdown, rf"\| size \|.* NCCL_ALGO=a{i} \|")
        self.assertIn("| 1 KiB | 100.0 | 101.0 | 110.0 | 102.0 | 103.0 | 104.0 |\n", markdown)
        self.assertIn("| 1 KiB | 105.0 | 106.0 | 107.0 | 108.0 | 109.0 |\n", markdown)
        self.assertIn("| NCCL | 2.28.3 |", markdown)

    def test_the_results_that_are_kept_here(self) -> None:
        files = sorted((ROOT / "benchmarks" / "results").glob("*/*/results.jsonl"))
        self.assertTrue(files)
        done = run_report(*(f.parent for f in files), "--out", self.folder / "r.html", "--md", self.folder / "r.md")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse([line for line in done.stderr.splitlines() if ": partial: " not in line], done.stderr)
        titles = re.findall(r"^## (.*)$", (self.folder / "r.md").read_text(), re.MULTILINE)
        for file in files:
            self.assertTrue([title for title in titles if re.split("[: ]", title)[0] == file.parent.name], file)
            for kept in file.parent.iterdir():
                self.assertNotRegex(kept.read_text(), r'"/|=/', f"{kept}: a path of the machine")

    def test_lost_time(self) -> None:
        write_results(self.folder / "results", everything())
        self.report("--md", self.folder / "r.md")
        markdown = (self.folder / "r.md").read_text()
        self.assertIn("| case | step, ms | one rank alone, ms | exposed communication, ms | slower", markdown)
        self.assertIn("| 2 ranks, batch 64 | 1.00 | 0.80 | 0.10 | 0.10 | 80.0% |", markdown)
        self.assertIn("exposed communication, ms | slower together, ms | stragglers, ms | efficiency |", markdown)
        self.assertIn("| layout 1x4 | 1.00 | 0.70 | 0.10 | 0.15 | 0.05 | 70.0% |", markdown)
        self.assertIn("30.0% of 1.00 ms (exposed communication 10.0%, slower together 15.0%, stragglers 5.0%). "
                      "Its slowest rank is rank 2 in 2 of 2 runs, 4.7% above the mean.", markdown)  # fmt: skip

    def test_empty(self) -> None:
        write_results(self.folder / "results", [])
        done = self.report()
        self.assertIn("no runs recorded", done.stderr)
        self.assertIn("no runs in these results yet", self.page())

    def test_only_failures(self) -> None:
        write_results(self.folder / "results", algo("", [None, None]))
        self.report()
        self.assertIn("No run gave a number", self.page())
        self.assertIn('>1, 2</td><td class="text">failed</td><td class="text">exit code 1: no luck<', self.page())

    def test_partial(self) -> None:
        folder = write_results(self.folder / "results", algo("", [1.0]))
        cases = [{"case": "algo-", "product": "main"}, {"case": "other", "product": "main"}]
        (folder / "plan.json").write_text(json.dumps({"sweep": "made-up", "repeats": 3, "cases": cases}))
        self.assertIn("partial: 1 of 6 planned runs are there", self.report().stderr)
        self.assertIn("partial: 1 of 6 planned runs are there", self.page())
        self.assertNotIn("earlier plan", self.page())
        (folder / "plan.json").write_text(json.dumps({"sweep": "made-up", "repeats": 1, "cases": cases[1:]}))
        self.assertIn("1 of the runs are of an earlier plan", self.report().stderr)

    def test_cut_and_foreign_lines(self) -> None:
        folder = write_results(self.folder / "results", algo("", [1.0, 2.0]))
        file = folder / "results.jsonl"
        file.write_bytes(b"\x00\xff\n[1]\n" + file.read_bytes() + b'{"case": "algo-Ring", "rep')
        self.assertIn("3 lines could not be read and left out (line 1, 2, 5)", self.report().stderr)

    def test_records_of_the_wrong_form(self) -> None:
        good = algo("", [1.0])[0]
        bad = [None, True, "x", -1, 0, 1e400, [], {}, {"a": None}, "\u0000", [[]], {"batch": [1]}]
        records = [good]
        for number, value in enumerate(bad):
            for name in good:
                records.append(good | {"case": f"{number}{name}", name: value})
            for name in ("images_per_second", "nccl", "step_seconds", "parameter_hash", "topology"):
                summary = good["summary"] | {
                    "step_seconds_without_communication": 1,
                    "scaling_efficiency": 1,
                    name: value,
                }
                records.append(good | {"case": f"{number}s{name}", "summary": summary | {name: value}})
            records.append(good | {"case": f"{number}b", "bench": {"benchmark": "allreduce", "results": [value]}})
        folder = write_results(self.folder / "results", records)
        (folder / "plan.json").write_text('{"cases": [1, {"case": []}], "repeats": "x", "sweep": []}')
        (folder / "topology.json").write_text('{"hosts": 3, "nccl": []}')
        self.report("--md", self.folder / "r.md")

    def test_huge(self) -> None:
        file = write_results(self.folder / "results", []) / "results.jsonl"
        with open(file, "w") as out:
            for i in range(100_000):
                settings = {"ranks": 4, "batch": i // 20, "NCCL_ALGO": ("", "Ring")[i % 2]}
                rate = None if i % 1000 == 999 else 100.0 + i % 7
                out.write(json.dumps(record(f"c{i // 20}-{i % 2}", i // 2 % 10, rate, settings)) + "\n")
        self.report("--md", self.folder / "r.md")
        self.assertLess((self.folder / "r.html").stat().st_size, 3_000_000)
        self.assertIn("9800 more rows are in results.csv", self.page())

    def test_a_run_that_was_made_again_counts_once(self) -> None:
        records = algo("", [None, 2.0]) + [record("algo-", 0, 4.0, algo("", [1.0])[0]["settings"])]
        self.assertIn("3 images/s (2 to 4 over 2 runs)", self.words(records))

    def test_mistakes(self) -> None:
        missing = run_report(self.folder / "missing")
        self.assertEqual((missing.returncode, "no such file" in missing.stderr), (2, True))
        empty = run_report(self.folder)
        self.assertEqual((empty.returncode, "no results.jsonl" in empty.stderr), (2, True))
        for text in ("# A text\n", '{"event": "summary", "images_per_second": 5}\n'):  # as ddptrain --metrics writes
            (self.folder / "other.jsonl").write_text(text)
            other = run_report(self.folder / "other.jsonl", "--out", self.folder / "r.html")
            self.assertEqual((other.returncode, "is a run of ddpsweep" in other.stderr), (2, True), other.stderr)
            self.assertFalse((self.folder / "r.html").exists())
        folder = write_results(self.folder / "results", algo("", [1.0]))
        for option in ("--out", "--md"):
            done = run_report(folder, "--out", self.folder / "r.html", option, self.folder / "none" / "x")
            self.assertEqual((done.returncode, option in done.stderr), (2, True), done.stderr)
        done = run_report(folder, "--out", self.folder / "r.html", "--png", folder / "results.jsonl" / "x")
        self.assertEqual((done.returncode, "--png" in done.stderr), (2, True), done.stderr)


if __name__ == "__main__":
    os.environ.pop("MPLBACKEND", None)
    unittest.main()
