"""What a page begins with, what it warns of, and what stands out on it."""

import pathlib
import re
import subprocess
import unittest
from typing import Any

from report_support import RING, ReportCase, algo, everything, run_report, runs
from support import make_programs, write_results
from ddptools.description import defaults_of
from ddptools.lost_time import losses
from ddptools.measurements import load
from ddptools.report import folder_name, titles_of
from ddptools.summary import BEYOND, SAME, UNKNOWN, WITHIN, entry_of, warnings_of


class SummaryTest(ReportCase):
    def entry(self, records: list[dict[str, Any]]):
        return entry_of(self.experiment(records), "T")

    def test_the_winner_by_how_much_and_whether_it_is_noise(self) -> None:
        (answer,) = self.entry(algo("", [100, 101, 102]) + algo("Ring", [200, 201, 202])).answers
        self.assertEqual(answer.text, "NCCL_ALGO=Ring: 201.0 images/s, 99.0% more than NCCL_ALGO=unset")
        self.assertEqual(answer.noise, BEYOND)
        (answer,) = self.entry(algo("", [200, 201, 202]) + algo("Ring", [100, 101, 102])).answers
        self.assertEqual(answer.text, "NCCL_ALGO=unset (the reference): 201.0 images/s, 99.0% more than NCCL_ALGO=Ring")
        for rates, noise in (([99, 101, 103], WITHIN), ([103], UNKNOWN), ([90, 120], UNKNOWN)):
            (answer,) = self.entry(algo("", [100, 101, 102]) + algo("Ring", rates)).answers
            self.assertEqual(answer.noise, noise, rates)

    def test_the_same_choice_is_noise_however_far(self) -> None:
        ring = {"summary": {"nccl": RING}}
        (answer,) = self.entry(algo("", [100, 101, 102], **ring) + algo("Ring", [200, 201, 202], **ring)).answers
        self.assertEqual(answer.noise, SAME)

    def test_scaling_placement_and_single_cases(self) -> None:
        scaling = runs("1", [100], {"ranks": 1}) + runs("4", [360], {"ranks": 4})
        (answer,) = self.entry(scaling).answers
        self.assertEqual(answer.text, "4 ranks: 360.0 images/s, 3.60 times one rank, an efficiency of 90.0%")
        pairs = runs("a", [100, 101, 102], {"ranks": 2, "gpus": "0,1"})
        pairs += runs("b", [50, 51, 52], {"ranks": 2, "gpus": "0,3"})
        (answer,) = self.entry(pairs).answers
        self.assertEqual((answer.text[:10], answer.noise), ("gpus 0,1: ", BEYOND))
        (answer,) = self.entry(runs("a", [7], {"ranks": 2})).answers
        self.assertEqual(answer.text, "main: 7 images/s (one run)")
        (answer,) = self.entry(runs("a", [None], {"ranks": 2})).answers
        self.assertEqual(answer.text, "No run gave a number.")

    def test_date_machine_and_versions(self) -> None:
        records = runs("a", [1, 2], {"ranks": 2}, started="2026-11-21T18:36:12+00:00")
        records[1]["started"] = "2026-11-22T01:00:00+00:00"
        facts = self.entry(records).facts
        self.assertEqual(facts, "2026-11-21 to 2026-11-22; 2 x G; ddptrain 1, NCCL 2; 2 runs")
        machine = {"cpu": "AMD EPYC", "gpus": []}
        self.assertEqual(self.entry(runs("a", [1], {"ranks": 2}, machine=machine)).facts, "AMD EPYC; ddptrain 1, NCCL 2; 1 run")

    def test_the_page_opens_with_links_to_all_experiments(self) -> None:
        write_results(self.folder / "results", everything())
        done = run_report(self.folder / "results", "--out", self.folder / "r.html", "--md", self.folder / "r.md")
        self.assertEqual(done.returncode, 0, done.stderr)
        page = (self.folder / "r.html").read_text()
        headings = dict(re.findall(r'<h2 id="([^"]+)">(made-up[^<]*)</h2>', page))
        entries = re.findall(r'<p class="title"><a href="#([^"]+)">([^<]*)</a>', page)
        self.assertEqual(entries, list(headings.items()))
        self.assertEqual(len(entries), 5)
        self.assertLess(page.index('class="entry"'), page.index("<h2"))
        self.assertIn('<a href="#how-to-read">', page)
        self.assertIn('<h2 id="how-to-read">', page)

    def test_names_of_folders_and_no_paths(self) -> None:
        write_results(self.folder / "deep" / "a", everything())
        write_results(self.folder / "deep" / "b", everything())
        with open(self.folder / "deep" / "b" / "results.jsonl", "a") as file:
            file.write("{cut")
        arguments = [self.folder / "deep" / name for name in "ab"]
        done = run_report(*arguments, "--out", self.folder / "r.html", "--md", self.folder / "r.md")
        self.assertEqual(done.returncode, 0, done.stderr)
        for name in ("r.html", "r.md"):
            self.assertNotIn(str(self.folder), (self.folder / name).read_text())
        self.assertIn("b: 1 line could not be read", (self.folder / "r.md").read_text())
        self.assertIn("## made-up: weak in a\n", (self.folder / "r.md").read_text())

    def test_folders_of_the_same_name_are_told_apart(self) -> None:
        one, other = (pathlib.Path(f"/x/{name}/scaling/results.jsonl") for name in ("old", "new"))
        self.assertEqual(folder_name(one, [other]), "old/scaling")
        self.assertEqual(folder_name(one, [pathlib.Path("/x/old/loss/results.jsonl")]), "scaling")
        folders = [write_results(self.folder / name / "s", algo("", [1.0])) for name in ("old", "new")]
        self.assertEqual(titles_of(load(folders).experiments), ["made-up in old/s", "made-up in new/s"])

    def test_defaults_come_from_the_program(self) -> None:
        program = make_programs(self.folder) / "ddptrain"
        text = program.read_text()
        program.write_text(text.replace('if "--print-config" in sys.argv:\n', 'if "--print-config" in sys.argv:\n'
                                        '    print("bucket-mb = 25\\noverlap = \\"on\\"\\nlr = 0.001")\n'))  # fmt: skip
        found = defaults_of(program, {"config": "configs/cnn.toml", "bucket-mb": "4"})
        self.assertEqual(found, {"bucket-mb": "25", "overlap": "on", "lr": "0.001"})
        self.assertEqual(defaults_of(self.folder / "none", {"model": "cnn"}), {})


class WarningsTest(ReportCase):
    def warnings(self, records: list[dict[str, Any]]) -> list[str]:
        experiment = self.experiment(records)
        return warnings_of(experiment, losses(experiment))

    def test_efficiencies_above_all(self) -> None:
        def scaling(rate: float, in_job: float, **more: Any) -> list[dict[str, Any]]:
            summary = {"scaling_efficiency": in_job} | more
            return runs("1", [100], {"ranks": 1}) + runs("2", [rate], {"ranks": 2}, summary=summary)

        self.assertEqual(self.warnings(scaling(199, 0.99)), [])
        self.assertEqual(self.warnings(scaling(200, 1.0)), [])
        (line,) = self.warnings(scaling(210, 0.99))
        self.assertIn("An efficiency above 100%: 105.0% of 2 ranks.", line)
        (line,) = self.warnings(scaling(199, 1.02))
        self.assertIn("An efficiency in the job above 100%: 102.0% of 2 ranks.", line)
        (line,) = self.warnings(scaling(199, 1.02, scaling_efficiency_half_width=0.01))
        self.assertIn("102.0% of 2 ranks (95% interval 101.0% to 103.0%).", line)
        self.assertEqual(self.warnings(scaling(199, 1.02, scaling_efficiency_half_width=0.03)), [])  # it may be 100%

    def test_parts_below_zero(self) -> None:
        def run(mean: float, **more: float) -> list[dict[str, Any]]:
            lost = {"step_seconds": 1e-3, "scaling_efficiency": 0.8, "step_seconds_without_communication": 9e-4,
                    "step_seconds_without_communication_mean": mean}  # fmt: skip
            return runs("2", [5], {"ranks": 2}, summary=lost | more)

        self.assertEqual(self.warnings(run(8.5e-4)), [])
        (line,) = self.warnings(run(7.9e-4))
        self.assertIn("A part below zero: slower together of main, -1.0% of a step.", line)
        self.assertEqual(self.warnings(run(7.9e-4, together_us_half_width=12.0)), [])  # it may be zero
        (line,) = self.warnings(run(7.9e-4, together_us_half_width=2.0))
        self.assertIn("-1.0% of a step. A time is not negative: what disturbed", line)

    def test_they_stand_on_the_page(self) -> None:
        records = runs("1", [100], {"ranks": 1}) + runs("2", [230], {"ranks": 2})
        write_results(self.folder / "results", records)
        done = run_report(self.folder / "results", "--out", self.folder / "r.html", "--md", self.folder / "r.md")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('<div class="warnings"><p>An efficiency above 100%: 115.0%', (self.folder / "r.html").read_text())
        self.assertIn("> **Warning**: An efficiency above 100%: 115.0%", (self.folder / "r.md").read_text())


class WinnerTest(ReportCase):
    def test_the_best_row_stands_out(self) -> None:
        records = algo("", [100, 101, 102]) + algo("Ring", [200, 201, 202]) + algo("Tree", [50, 51, 52])
        write_results(self.folder / "results", records)
        done: subprocess.CompletedProcess = run_report(self.folder / "results", "--out", self.folder / "r.html")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = re.findall(r'<tr class="winner">(.*?)</tr>', (self.folder / "r.html").read_text())
        self.assertEqual(len(rows), 1)
        self.assertIn(">Ring</td>", rows[0])


if __name__ == "__main__":
    unittest.main()
