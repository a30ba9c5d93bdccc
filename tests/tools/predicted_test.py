"""What ddpplan would have predicted, beside what was measured."""

import random
import unittest
from typing import Any

from support import cnn_description, record, write_results
from report_support import ReportCase, algo, run_report
from ddptools.measurements import load
from ddptools.predicted import predicted_table, predicted_words, predictions, unseen_tables


def scaled(ranks: int, rate: float, baseline: float, **changes: Any) -> dict[str, Any]:
    """A record that tells what a prediction takes: a step is 512 images, its all-reduces take 50 us."""
    step = ranks * 512 / rate
    summary = {"model": "cnn", "device": "cuda", "precision": "bf16", "world_size": ranks, "nodes": 1,
               "batch_per_rank": 512, "parameters": 1_199_882, "baseline_per_second": baseline,
               "description": cnn_description(), "step_seconds": step, "scaling_efficiency": rate / ranks / baseline,
               "communication_seconds": 50e-6 if ranks > 1 else None}  # fmt: skip
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
        self.assertEqual(row, ["8 ranks", "23.01 M", "25.60 M", "-10.1%", "71.9%", "80.0%", "+25.0%"])
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

    def test_cpus_and_gpus_are_fitted_apart(self) -> None:
        records = [scaled(8, 8 * 512 / 178e-6, 4e6), scaled(8, 8 * 512 / 178e-6, 4e6, settings={"device": "cpu"})]
        records[1]["summary"]["device"], records[1]["case"] = "cpu", "on cores"
        found = predictions(self.experiment(records))
        self.assertEqual([one.case.told("device") for one in found], ["cuda", "cpu"])

    def test_only_what_can_be_predicted(self) -> None:
        without = {"ranks": 4, "overlap": "none"}
        for records in (algo("", [100, 101]), [scaled(1, 4e6, 4e6)], [scaled(8, 2e7, 4e6, emulated=True)],
                        [scaled(4, 2e7, 4e6, settings=without)]):  # fmt: skip
            self.assertEqual(predictions(self.experiment(records)), [])
        unfitted = scaled(8, 2e7, 4e6)
        unfitted["summary"]["communication_seconds"] = None
        self.assertEqual(predictions(self.experiment([unfitted])), [])

    def test_section_of_the_page(self) -> None:
        three = [scaled(2, 7e6, 4e6), scaled(4, 1.2e7, 4e6), scaled(8, 2e7, 4e6)]
        for records, there in ((three, True), (three[:2], False), (algo("", [1.0]), False)):
            write_results(self.folder / "results", records)
            done = run_report(self.folder / "results", "--out", self.folder / "r.html")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual("Predicted and measured</h3>" in (self.folder / "r.html").read_text(), there)

    def test_runs_that_the_fit_has_not_seen(self) -> None:
        # The fit to two ranks has 50 us. More take 60 us, of which it knows nothing but the latency per rank.
        few = scaled(2, 2 * 512 / 178e-6, 4e6)
        more = [scaled(ranks, ranks * 512 / 188e-6, 4e6) for ranks in (4, 8)]
        for made in more:
            made["summary"]["communication_seconds"] = 60e-6
        write_results(self.folder / "results", [few, *more])
        self.assertEqual(run_report(self.folder / "results", "--out", self.folder / "r.html").returncode, 0)
        page = (self.folder / "r.html").read_text()
        self.assertIn("Fitted on runs of up to 2 ranks, asked about more", page)
        self.assertIn("no loss: off by 46.9% in the median", page)
        write_results(self.folder / "results", more)
        self.assertEqual(run_report(self.folder / "results", "--out", self.folder / "r.html").returncode, 0)
        self.assertNotIn("Fitted on runs", (self.folder / "r.html").read_text())

    def test_damaged_summaries(self) -> None:
        rng = random.Random(2)
        values = [None, "x", -1, 0, 0.5, 1e400, 1e29, 1e-300, [], {}, True, 10**400, 3]
        for _ in range(300):
            made = [scaled(1, 4e6, 4e6), scaled(2, 7e6, 4e6), scaled(8, 2e7, 4e6)]
            for _ in range(rng.randrange(1, 5)):
                summary = rng.choice(made)["summary"]
                summary[rng.choice([*summary, "grad_accum", "seq"])] = rng.choice(values)
            for experiment in load([write_results(self.folder / "results", made)]).experiments:
                found = predictions(experiment)
                unseen_tables(experiment)
                if found:
                    predicted_words(experiment, found), predicted_table(experiment, found)


if __name__ == "__main__":
    unittest.main()
