"""What a report says in words, and when a difference is more than the noise."""

import unittest
from typing import Any

from support import write_results
from report_support import RING, TREE, ReportCase, algo, run_report, runs
from ddptools.noise import chance_text, compare, welch_p
from ddptools.words import choices, explain, numerics


class NoiseTest(unittest.TestCase):
    def test_welch(self) -> None:
        # By hand: means 2 and 5, variances 1 and 1, n = 3: t = 3 / sqrt(2/3) = 3.674, 4 degrees: p = 0.0213
        self.assertAlmostEqual(welch_p([1, 2, 3], [4, 5, 6]), 0.0213, delta=0.0002)
        # Means 2 and 7, variances 1 and 32/3, n = 3 and 4: t = 5 / sqrt(1/3 + 8/3) = 2.887, 3.71 degrees: p = 0.0489
        self.assertAlmostEqual(welch_p([1, 2, 3], [3, 7, 7, 11]), 0.0489, delta=0.0002)
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


    def test_how_often_chance_would_do_it(self) -> None:
        for p, comparisons, text in ((0.4, 1, "in 40 of 100 repetitions"), (0.4, 5, "in 100 of 100"), (0.02, 1, "once in 50"),
                                     (0.0001, 2, "once in 5,000 repetitions"), (0.0, 3, "less than once in a million")):  # fmt: skip
            self.assertIn(text, chance_text(p, comparisons))


class WordsTest(ReportCase):
    def test_jobs_with_the_same_choices_show_the_noise_of_the_machine(self) -> None:
        ring, tree = {"summary": {"nccl": RING}}, {"summary": {"nccl": TREE}}
        same = algo("", [100, 100.1, 100.2], **ring) + algo("Ring", [103, 103.1, 103.2], **ring)
        text = self.words(same)
        self.assertIn("3.0% more, though NCCL chose the same for both: that is the noise of this machine", text)
        self.assertNotIn("more than the noise", text)
        text = self.words(same + algo("Tree", [101.5, 101.6, 101.7], **tree))
        self.assertIn("though NCCL chose the same", text)
        text = self.words(algo("", [100, 100.1, 100.2], **ring) + algo("Tree", [103, 103.1, 103.2], **tree))
        self.assertIn("3.0% more, more than the noise", text)
        near = algo("", [100, 100.1, 100.2], **ring) + algo("Ring", [97, 97.1, 97.2], **ring)
        text = self.words(near + algo("Tree", [102, 102.1, 102.2], **tree))
        self.assertIn("no more than jobs differ for which NCCL chose the same on this machine, 3.1%", text)

    def test_only_variables_that_act_by_the_choice_show_it(self) -> None:
        ring = {"summary": {"nccl": RING}}
        for name in ("NCCL_BUFFSIZE", "bucket-mb"):
            records = runs("a", [100, 100.1, 100.2], {"ranks": 4, name: ""}, **ring)
            records += runs("b", [103, 103.1, 103.2], {"ranks": 4, name: "1"}, **ring)
            self.assertRegex(self.words(records), r"(3.0% more|2.9% less), more than the noise")

    def test_the_reference_is_the_default(self) -> None:
        records = []
        for value, rate in (("5", 100), ("25", 110), ("50", 120)):
            records += runs(value, [rate, rate + 1, rate + 2], {"ranks": 2, "bucket-mb": value, "NCCL_ALGO": ""})
        experiment = self.experiment(records)
        self.assertEqual(experiment.reference(experiment.measured).key, "5")  # nothing is known of defaults
        experiment.defaults = {"bucket-mb": "25"}
        self.assertEqual(experiment.reference(experiment.measured).key, "25")
        self.assertIn("Against bucket-mb=25 with 111.0 images/s", "\n".join(explain(experiment)))

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
        self.assertIn("Its rate is 1.0% more all the same: that is the noise of this machine between jobs.", text)
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

    def test_a_reason_for_other_parameters_is_what_the_runs_tell(self) -> None:
        def why(value: str, **changes: Any) -> str:
            usual = {"parameter_hash": "a", "nccl": RING, "gradient_path": "plain"}
            usual["description"] = {"decides_parameters": ["lr"], "buckets": [{"bytes": 1}]}
            other = usual | {"parameter_hash": "b"} | changes
            records = runs("a", [1], {"ranks": 2, "x": ""}, summary=usual)
            return "\n".join(numerics(self.experiment(records + runs("b", [1], {"ranks": 2, "x": value}, summary=other))))

        self.assertIn("NCCL chose otherwise, and sums in another order", why("Tree", nccl=TREE))
        self.assertIn("gradients by another path, symmetric, are summed", why("on", gradient_path="symmetric"))
        self.assertIn("other buckets", why("4", description={"decides_parameters": ["lr"], "buckets": [{"bytes": 2}]}))
        self.assertIn("and NCCL chose the same: ddpreport does not know why", why("odd"))
        self.assertNotIn("round differently", why("odd"))

    def test_settings_that_change_the_numerics(self) -> None:
        same = {"summary": {"parameter_hash": "a"}}
        other = {"summary": {"parameter_hash": "b"}}
        text = "\n".join(numerics(self.experiment(algo("", [1, 2], **same) + algo("Ring", [1, 2], **same))))
        self.assertIn("All 2 settings end with the same parameters", text)
        text = "\n".join(numerics(self.experiment(algo("", [1], **same) + algo("Tree", [1], **other))))
        self.assertIn("differ from those of NCCL_ALGO=unset with: NCCL_ALGO=Tree", text)
        records = algo("", [1], **same) + algo("Ring", [1], **same)
        records.append(records[0] | {"repeat": 1, "summary": records[0]["summary"] | {"parameter_hash": "c"}})
        self.assertIn("not reproducible bit by bit (ddpreport does not know why)", "\n".join(numerics(self.experiment(records))))
        for record in records:
            record["summary"]["configuration"] = {"tune": "on"}
        self.assertIn("not reproducible bit by bit (--tune on chooses", "\n".join(numerics(self.experiment(records))))

    def test_flags_that_decide_parameters_are_not_compared(self) -> None:
        def flag(name: str, values: tuple, decides: list[str] | None) -> str:
            told = {} if decides is None else {"description": {"decides_parameters": decides}}
            records = []
            for value in values:
                summary = {"parameter_hash": f"{value}"} | told
                records += runs(f"{name}{value}", [1], {"ranks": 2, name: value}, summary=summary)
            return "\n".join(numerics(self.experiment(records)))

        for name in ("lr", "momentum"):
            named = flag(name, (0.1, 0.2), ["lr", "momentum", "batch"])
            self.assertEqual(named, f"{name} decides the parameters at the end: with another value they differ, as they should.")
            self.assertIn("no flag that decides parameters differs: ddpreport does not know why", flag(name, (0.1, 0.2), ["batch"]))
            self.assertEqual(flag(name, (0.1, 0.2), None), "")  # of a version that does not say
        for name in ("ranks", "global-batch"):
            self.assertTrue(flag(name, (2, 4), []).startswith(f"{name} decides the parameters at the end"))
        self.assertIn("differ from those of", flag("gpus", ("0,1", "0,2"), None))


if __name__ == "__main__":
    unittest.main()
