"""The pages that ddpreport makes, and the files that it takes."""

import csv
import dataclasses
import itertools
import json
import re
import socket
import subprocess
import sys
from typing import Any
from unittest import mock

from ddptools.common.table import Table
from ddptools.page import render
from ddptools.page.blocks import Heading, Notes
from ddptools.page.render import NUMBER, to_html
from ddptools.pictures.charts import Bar, Bars, Picture
from ddptools.report.sweeps.plots import pictures
from ddptools.report.sweeps.tables import tables
from tests.tools.report.support import RING, ReportCase, algo, everything, over, run_report, runs, undocumented_columns
from tests.tools.support import ROOT, record, write_results


class CasesTableTest(ReportCase):
    def row(self, *summaries: dict[str, Any], **changes: Any) -> dict[str, str]:
        """Of one case, with a run for each summary."""
        made = [record("c", i, 1.0, {"ranks": 4}, summary=summary) | changes for i, summary in enumerate(summaries)]
        (table,) = [t for t in tables(self.experiment(made)) if t.caption.startswith("All cases")]
        return dict(zip(table.header, table.rows[0], strict=True))

    def test_efficiency_has_its_interval_and_gpus_their_clocks(self) -> None:
        gpus = [{"sm_mhz": 1530.4, "throttled": {"sw_power_cap": 1.0}}, {"sm_mhz": 1600.0, "throttled": {}}]
        told = {"scaling_efficiency": 0.931, "scaling_efficiency_half_width": 0.004, "gpus": gpus}
        told |= {"windows_clock_fell": 2}
        row = self.row(told, told | {"scaling_efficiency_half_width": 0.006})
        self.assertEqual(row["efficiency in the job"], "93.1% +- 0.6")
        limits = {"scaling_efficiency_low": 0.925, "scaling_efficiency_high": 0.94}
        row = self.row(told | limits, told | limits | {"scaling_efficiency_low": 0.92})
        self.assertEqual(row["efficiency in the job"], "93.1% (92.0 to 94.0)")
        self.assertRegex(row["efficiency in the job"], NUMBER)
        self.assertEqual(row["clocks"], "1,530 MHz (sw_power_cap), fell in 4 windows")
        self.assertRegex(row["efficiency in the job"], NUMBER)
        bench = {"benchmark": "allreduce", "results": [{"bytes": 1024, "busbw_gbs": 1.0}], "gpus": gpus}
        self.assertEqual(self.row({}, bench=bench, summary=None)["clocks"], "1,530 MHz (sw_power_cap)")
        for damaged in ({"gpus": None}, {"gpus": [1, {}]}, {"scaling_efficiency_half_width": None}, {"gpus": [None]}):
            self.assertEqual(self.row({"scaling_efficiency": 0.9} | damaged)["efficiency in the job"], "90.0%")

    def test_exposed_communication_has_its_sign_and_interval(self) -> None:
        def shown(*summaries: dict[str, Any]) -> str:
            return self.row(*summaries)["exposed communication"]

        told = {"exposed_comm_us": -2.04, "exposed_comm_us_half_width": 1.5, "exposed_comm_fraction": -0.051}
        told["step_seconds"] = 1e-3
        self.assertEqual(shown(told), "-2.0 +- 1.5 us (-5.1%)")
        self.assertRegex(shown(told), NUMBER)
        self.assertEqual(shown(told, told | {"exposed_comm_us_half_width": 2.5}), "-2.0 +- 2.5 us (-5.1%)")
        self.assertEqual(shown(told | {"exposed_comm_us_half_width": None}), "-2.0 us (-5.1%)")
        self.assertEqual(shown({"exposed_comm_fraction": 0.4}), "40.0%")  # of an older version
        self.assertEqual(shown(told | {"disturbed": "busy"}), "-2.0 +- 1.5 us (-5.1%), disturbed")
        self.assertEqual(shown(told | {"exposed_comm_us_half_width": 99.0, "disturbed": "busy"}),
                         "too noisy (-2.0 +- 99.0 us), disturbed")  # fmt: skip

    def test_what_is_too_noisy_says_so_in_numbers_of_equal_precision(self) -> None:
        told = {"exposed_comm_us": 17270.9, "exposed_comm_us_half_width": 40014.3, "exposed_comm_fraction": 4.971}
        told |= {"scaling_efficiency": 0.71, "scaling_efficiency_half_width": 0.14, "step_seconds": 0.1}
        row = self.row(told)
        self.assertEqual(row["exposed communication"], "too noisy (17,271 +- 40,014 us)")
        self.assertEqual(row["efficiency in the job"], "too noisy (71.0% +- 14.0)")
        row = self.row(told | {"step_seconds": 1.0, "scaling_efficiency_half_width": 0.04})
        self.assertEqual(row["exposed communication"], "17,271 +- 40,014 us (497.1%)")  # within 5% of a step
        self.assertEqual(row["efficiency in the job"], "71.0% +- 4.0")
        wide = {"scaling_efficiency": 0.757, "scaling_efficiency_low": 0.263, "scaling_efficiency_high": 1.464}
        wide["disturbed"] = "other programs took 52% of the cores"
        self.assertEqual(self.row(wide)["efficiency in the job"], "too noisy (75.7%, 26.3 to 146.4), disturbed")
        self.assertEqual(self.row(wide | {"disturbed": ""})["efficiency in the job"], "too noisy (75.7%, 26.3 to 146.4)")
        for low, high, text in ((0.301, 0.824, "too noisy (70.0%, 30.1 to 82.4)"), (0.65, 0.749, "70.0% (65.0 to 74.9)"),
                                (0.65, 0.751, "too noisy (70.0%, 65.0 to 75.1)")):  # fmt: skip
            told = {"scaling_efficiency": 0.7, "scaling_efficiency_low": low, "scaling_efficiency_high": high}
            self.assertEqual(self.row(told)["efficiency in the job"], text)
        self.assertEqual(self.row({"exposed_comm_us": 0.3, "exposed_comm_us_half_width": 123.44})["exposed communication"],
                         "too noisy (0.3 +- 123.4 us)")  # fmt: skip


class PageTest(ReportCase):
    def test_the_page_has_everything_and_needs_nothing(self) -> None:
        markdown = self.report_of(everything(), "--title", "A <title>")
        self.check_summary(self.page)
        self.check_tables(markdown)
        page = self.page
        for text in ("busbw at 512 MiB", "stragglers", "exit code 1: no luck", "emulated", "A &lt;title&gt;", "Ring"):
            self.assertIn(text, page)
        self.assertNotIn("<script>alert", page)
        page = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)  # dygraphs names its licence
        without_names = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
        self.assertNotRegex(without_names, r"https?:|//[a-z]|@import|<link|<iframe")
        for target in re.findall(r'(?:href|src)="([^"]*)"', without_names):
            self.assertRegex(target, r"^(#|data:)")
        self.check_ids(page)
        for caption in ("Throughput of all ranks", "Parts of a step as shares", "Efficiency: ", "Each case, ", "Bus bandwidth",
                        "Throughput against bucket-mb"):  # fmt: skip
            self.assertRegex(page, f"<figcaption>{caption}")

    def test_words_are_explained(self) -> None:
        _, explained = self.report_of(everything()).split("## How to read this page\n\n")
        lines = explained.splitlines()
        for line in lines:
            self.assertRegex(line, r"^- \*\*[^*]+\*\*: [A-Z]")  # no verb behind the colon
            self.assertTrue(line.endswith("."), line)
        for word in ("Weak scaling", "Strong scaling", "host means", "NET means", "waits", "lowest lower limit"):
            self.assertIn(word, explained)

    def test_one_is_no_plural(self) -> None:
        for records, text in ((algo("", [1]), "1 experiment, 1 run\n"), (algo("", [1, 2]), "1 experiment, 2 runs\n")):
            folder = write_results(self.folder / "results", records)
            self.assertTrue(run_report(folder, "--out", self.folder / "r.html").stdout.endswith(text))

    def check_ids(self, page: str) -> None:
        ids = re.findall(r'\bid="([^"]+)"', page)
        self.assertEqual(len(ids), len(set(ids)))
        for target in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', page):
            self.assertIn("".join(target), ids)

    def check_summary(self, page: str) -> None:
        """Of links to all experiments."""
        headings = dict(re.findall(r'<h2 id="([^"]+)">(made-up[^<]*)</h2>', page))
        entries = re.findall(r'<p class="about"><a href="#([^"]+)">([^<]*)</a>', page)
        self.assertEqual((entries, len(entries)), (list(headings.items()), 5))
        self.assertLess(page.index('class="entry"'), page.index("<h2"))
        self.assertIn('<a href="#how-to-read">', page)

    def check_tables(self, markdown: str) -> None:
        self.assertIn("| ranks | batch | images/s | efficiency | runs |", markdown)
        self.assertIn("| 2 | 64 | 249.0 (244.0 to 254.0) | 79.6% (78.0% to 81.2%) |", markdown)
        lost = "| case | step, ms | single-rank baseline, ms | exposed communication, ms | contention"
        for line in (lost, "exposed communication, ms | contention, ms | stragglers, ms | efficiency |",
                     "| 2 ranks, batch 64 | 1.00 | 0.80 | 0.10 | 0.05 | 0.05 | 80.0% |",
                     "| layout 1x4 | 1.00 | 0.70 | 0.10 | 0.15 | 0.05 | 70.0% |",
                     "30.0% of 1.00 ms (exposed communication 10.0%, contention 15.0%, stragglers 5.0%). "
                     "Its slowest rank is rank 2 in 2 of 2 runs, 4.7% above the mean."):  # fmt: skip
            self.assertIn(line, markdown)

    def test_one_rank_has_no_communication_to_tell_of(self) -> None:
        markdown = self.report_of(runs("2", [10, 12], {"ranks": 2}) + runs("4", [20], {"ranks": 4}))
        self.assertIn("| ranks | images/s | runs |\n", markdown)
        self.assertNotIn("efficiency", markdown.partition("## How to read")[0])
        def case(ranks: int, batch: int, rate: float) -> list[dict[str, Any]]:
            summary = {"scaling_efficiency": 1.0, "exposed_comm_fraction": 0.0, "topology": "none", "mfu": 0.25}
            if ranks > 1:
                summary |= {"scaling_efficiency": 0.9, "exposed_comm_fraction": 0.3, "topology": "NV18"}
            return runs(f"{ranks}-{batch}", [rate], {"ranks": ranks, "batch": batch}, summary=summary)

        markdown = self.report_of(case(1, 8, 100) + case(2, 8, 180))
        header = "| ranks | images/s | efficiency | runs | efficiency in the job | exposed communication | MFU | topology |"
        self.assertIn(header, markdown)
        self.assertIn("| 1 | 100.0 |  | 1 |  |  | 25.0% |  |", markdown)
        self.assertIn("| 2 | 180.0 | 90.0% | 1 | 90.0% | 30.0% | 25.0% | NV18 |", markdown)
        self.assertIn("| batch | images/s | runs | MFU |\n", self.report_of(case(1, 8, 100) + case(1, 16, 150)))

    def test_what_training_came_to_is_a_column(self) -> None:
        def large_batch(**summaries: Any) -> str:
            made = (runs(f"{batch}", [100, 110], {"ranks": 2, "batch": batch}, summary={"test_loss": 0.4} | summaries)
                    for batch in (64, 4096))  # fmt: skip
            return self.report_of(list(itertools.chain(*made)))

        self.assertIn("| batch | images/s | runs | test accuracy |\n", large_batch(accuracy=0.872))
        self.assertIn("| 64 | 105.0 (100.0 to 110.0) | 2 | 87.20% |\n", large_batch(accuracy=0.872))
        self.assertIn("| 2 | 0.4000 |\n", large_batch(accuracy=0.4, perplexity=1.5))
        self.assertIn("| runs | validation loss |\n", large_batch(accuracy=0.4, perplexity=1.5))
        spread = over("batch", {64: [100]}, summary={"accuracy": 0.5}) + over("batch", {64: [100]}, summary={"accuracy": 0.6})
        spread[1]["repeat"] = 1
        self.assertIn("| 2 | 55.00% (50.00% to 60.00%) |\n", self.report_of(spread))
        for nothing in ({"test_loss": None}, {"accuracy": "x", "test_loss": None}):
            self.assertIn("| batch | images/s | runs |\n", large_batch(**nothing))

    def test_rows_of_numbers(self) -> None:
        told = {"scaling_efficiency": 0.9, "scaling_efficiency_half_width": 0.01, "nccl": RING, "accuracy": 0.8}
        records = runs("1", [100, 110], {"ranks": 1}) + runs("2", [200, 190, None], {"ranks": 2}, summary=told)
        rows = [{"bytes": 2**10, "busbw_gbs": 1.5, "algorithm": "Ring", "protocol": "LL"}, {"bytes": 2**20, "busbw_gbs": 99.0}]
        bench = {"benchmark": "allreduce", "results": rows}
        records += [record("b", 0, 1.0, {"ranks": 2}, product="bench", bench=bench) | {"summary": None}]
        self.report_of(records, "--csv", self.folder / "r.csv")
        found = list(csv.DictReader((self.folder / "r.csv").read_text().splitlines()))
        self.assertEqual([row["table"] for row in found], ["cases", "cases", "failures", "cases", "sizes", "sizes"])
        self.assertEqual(undocumented_columns(found[0]), [])
        one, two, failed, largest, size, _ = found
        expected = {"experiment": "made-up", "case": "2 ranks", "settings.ranks": "2", "runs": "2", "accuracy": "0.8",
                    "images_per_second": "195", "images_per_second_min": "190", "images_per_second_max": "200",
                    "scaling_efficiency": "0.9", "scaling_efficiency_low": "0.89", "scaling_efficiency_high": "0.91",
                    "efficiency_against_one_rank": "0.928571429", "nccl_algorithm": "Ring", "nccl_channels": "24"}  # fmt: skip
        self.assertEqual({name: two[name] for name in expected}, expected)
        self.assertEqual(one["scaling_efficiency"], "")
        self.assertEqual((failed["status"], failed["reason"], failed["run"]), ("failed", "exit code 1: no luck", "3"))
        self.assertEqual((largest["busbw_gbs"], size["busbw_gbs"], size["size_bytes"]), ("99", "1.5", "1024"))
        self.assertEqual((size["nccl_algorithm"], size["nccl_protocol"]), ("Ring", "LL"))

    def test_only_the_same_work_is_compared(self) -> None:
        def case(batch: int, overlap: str, rate: float) -> list[dict[str, Any]]:
            return runs(f"{batch}{overlap}", [rate], {"ranks": 2, "batch": batch, "overlap": overlap})

        markdown = self.report_of(case(8, "none", 120) + case(8, "off", 100) + case(8, "on", 110) + case(16, "on", 130))
        self.assertIn("| 8 | none | 120.0 | too few runs | 1 |", markdown)
        self.assertIn("| 8 | off | 100.0 | reference | 1 |", markdown)
        self.assertIn("| 8 | on | 110.0 | too few runs | 1 |", markdown)
        self.assertIn("| 16 | on | 130.0 |  | 1 |", markdown)

    def test_the_machine_is_named_by_what_is_known(self) -> None:
        row = {"bytes": 1024, "busbw_gbs": 1.0}
        bench = {"benchmark": "allreduce", "library": "MPI", "device": "AMD EPYC", "results": [row]}
        markdown = self.report_of([record("c", 0, 1.0, {"ranks": 2}, bench=bench) | {"summary": None}])
        self.assertIn("| ranks run on | AMD EPYC |", markdown)
        for unknown in ("| topology |", "| NCCL |", "unknown", "with care"):
            self.assertNotIn(unknown, markdown)
        one, two = runs("c", [1.0], {"ranks": 2}) + [record("c", 1, 2.0, {"ranks": 2}, versions="ddptrain 2")]
        two["machine"] = one["machine"] | {"gpus": ["G", "H"], "host": "elsewhere"}
        markdown = self.report_of([one, two])
        self.assertIn("| GPUs | 2 x G; 1 x G, 1 x H |", markdown)
        self.assertIn("| versions | ddptrain 1, NCCL 2; ddptrain 2 |", markdown)
        self.assertIn("Not all of it on the same machine with the same versions", markdown)

    def test_runs_that_ended_alike_share_a_row(self) -> None:
        skipped = [record("c", i, None, {"ranks": 8}, status="skipped", reason="4 GPUs", log=None) for i in range(3)]
        self.assertIn("| main | 1, 2, 3 | skipped | 4 GPUs |\n", self.report_of(skipped))
        failed = algo("", [None, None])
        failed[1]["reason"] = "another"
        markdown = self.report_of(failed)
        self.assertIn("| main | 1 | failed | exit code 1: no luck | logs/algo--r0.out |\n", markdown)
        self.assertIn("| main | 2 | failed | another | logs/algo--r1.out |\n", markdown)

    def test_texts_stand_left_and_numbers_right(self) -> None:
        header, cells = ["case", "rate", "GPUs", "channels"], ["a", "1,234 (1,200 to 1,300) emulated", "4 x H200", "24"]
        html = to_html("T", [Table("", header, [cells, ["8 b", "(skipped)", "", "2"], ["c", "1.5e+09", "2.28.3", ""]])])
        cells[1] = "1,234 (1,200&nbsp;to&nbsp;1,300) emulated"  # goes to the next line as a whole
        for tag, row, kinds in (("th", header, "t-t-"), ("td", cells, "tlt-")):
            for text, kind, head in zip(row, kinds, header):
                names = {"t": ' class="text"', "l": ' class="long"', "-": ""}[kind]
                names += f' data-head="{head}"' if tag == "td" else ""
                self.assertIn(f"<{tag}{names}>{text}<", html)

    def test_text_is_no_markup(self) -> None:
        picture = Picture("A & <b>", Bars("%", [Bar("<l>", "<a>", [(1.0, "red")])], {"<k>": "red"}))
        table = Table("<i>", ["<u>"], [["<s> & (1 to 2)"]], "<q>")
        html = to_html("<t>", [Heading(2, "<h>"), Notes(["<n>"]), "<p1>", table, picture])
        shown = html.partition("<script>")[0]
        for tag in ("<t>", "<h>", "<n>", "<p1>", "<i>", "<u>", "<s>", "<q>", "<b>", "<l>", "<a>", "<k>"):
            self.assertNotIn(tag, shown)
        cell = "&lt;s&gt; &amp; (1&nbsp;to&nbsp;2)</td>"
        for text in ("<h1>&lt;t&gt;</h1>", ">&lt;h&gt;</h2>", cell, "&lt;q&gt;</p>"):
            self.assertIn(text, html)
        self.assertIn("<figcaption>A &amp; &lt;b&gt;</figcaption>\n</figure>", html)

    def test_without_dygraphs_curves_are_not_drawn(self) -> None:
        (picture, *_) = pictures(self.experiment(runs("1", [1], {"ranks": 1}) + runs("2", [2], {"ranks": 2})))
        with mock.patch.object(render, "DYGRAPHS", self.folder / "none"):
            html = to_html("T", [picture])
        self.assertIn("<figcaption>Throughput of all ranks, median with smallest and largest; dashed: ideal. Not drawn", html)
        self.assertNotIn("<script", html)
        (self.folder / "library.js").write_text("const library = 1;")
        with mock.patch.object(render, "DYGRAPHS", self.folder / "library.js"):
            html = to_html("T", [picture])
        self.assertIn("const library = 1;</script>", html)
        self.assertNotIn("Not drawn", html)

    def test_labels_are_no_formulas(self) -> None:
        odd, records = r"$\frac{$", []
        for ranks in (1, 2):
            for i, batch in enumerate((8, 64, 512)):
                for note in (odd, "other"):
                    settings = {"ranks": ranks, "batch": batch, "note": note, odd: note}
                    records += runs(f"{ranks}-{i}{note}", [ranks * batch], settings)
        experiment = self.experiment(records)
        drawn = pictures(experiment)
        self.assertGreater(len(drawn), 1)
        for picture in drawn:
            self.assertTrue(odd in json.dumps(dataclasses.asdict(picture.chart)).replace("\\\\", "\\"), picture.caption)
        nodes = [{"host": odd, "ranks": [0]}, {"host": "other", "ranks": [1]}]
        topology = {"hosts": [], "nccl": {"rings": [[0, 1]], "ranks_by_node": nodes}}
        script, svg = ROOT / "launch" / "ddptools" / "pictures" / "draw_topology.py", self.folder / "t.svg"
        subprocess.run([sys.executable, script, "--svg", svg], input=json.dumps(topology), text=True, check=True)
        self.assertTrue(odd in svg.read_text())

    def test_throughput_over_ranks_begins_at_zero(self) -> None:
        for ranks, is_linear in (((1, 2, 8), True), ((1, 2, 64), False)):
            records = [made for n in ranks for made in runs(f"{n}", [100 * n], {"ranks": n})]
            throughput, efficiency, *_ = pictures(self.experiment(records))
            self.assertEqual((throughput.chart.from_zero, throughput.chart.is_logarithmic), (is_linear, not is_linear))
            places = [place for (place,), *_ in throughput.chart.lines[0].points]
            self.assertEqual(places, [1, 2, 8] if is_linear else [0, 1, 2])
            names = throughput.chart.axes[0].names
            self.assertEqual([names[int(place)] for place in places], [f"{n}" for n in ranks])
            self.assertEqual([place for (place,), *_ in efficiency.chart.lines[-1].points], [places[0], places[-1]])

    def test_bus_bandwidth_of_many_settings(self) -> None:
        records = []
        for i in range(11):
            bench = {"benchmark": "allreduce", "library": "NCCL", "version": "2.28.3",
                     "results": [{"bytes": 1024, "in_place": True, "busbw_gbs": 100.0 + i}]}  # fmt: skip
            records.append(record(f"c{i}", 0, 1.0, {"ranks": 2, "NCCL_ALGO": f"a{i}"}, bench=bench) | {"summary": None})
        markdown = self.report_of(records)
        for i in range(11):
            self.assertRegex(markdown, rf"\| size \|.* NCCL_ALGO=a{i} \|")
        rates = " | ".join(f"{rate}.0" for rate in (100, 101, 110, *range(102, 110)))
        self.assertIn(f"| 1 KiB | {rates} |\n", markdown)
        self.assertIn("| NCCL | 2.28.3 |", markdown)

    def test_the_results_that_are_kept_here(self) -> None:
        files = sorted((ROOT / "benchmarks" / "results").glob("*/*/results.jsonl"))
        self.assertTrue(files)
        markdown = self.report(*(file.parent for file in files))
        self.assertFalse([line for line in self.said_of_files.splitlines() if ": partial: " not in line])
        titles = re.findall(r"^## (.*)$", markdown, re.MULTILINE)
        for file in files:
            self.assertTrue([title for title in titles if re.split("[: ]", title)[0] == file.parent.name], file)
            for kept in file.parent.iterdir():
                self.assertNotRegex(kept.read_text(), r'"/|=/', f"{kept}: a path of the machine")

    def test_results_without_a_number(self) -> None:
        self.report_of([])
        self.assertIn("no runs recorded", self.said_of_files)
        self.assertIn("no runs in these results yet", self.page)
        self.report_of(algo("", [None, None]))
        self.assertIn("No run gave a number", self.page)
        self.assertIn('data-head="reason">exit code 1: no luck<', self.page)

    def test_notes_of_files(self) -> None:
        folder = write_results(self.folder / "results", algo("", [1.0]))
        cases = [{"case": "algo-", "product": "main"}, {"case": "other", "product": "main"}]
        (folder / "plan.json").write_text(json.dumps({"sweep": "made-up", "repeats": 3, "cases": cases}))
        self.report(folder)
        for text in (self.said_of_files, self.page):
            self.assertIn("partial: 1 of 6 planned runs are there", text)
            self.assertNotIn("earlier plan", text)
        (folder / "plan.json").write_text(json.dumps({"sweep": "made-up", "repeats": 1, "cases": cases[1:]}))
        self.report(folder)
        self.assertIn("1 of the runs are of an earlier plan", self.said_of_files)
        folder = write_results(self.folder / "results", algo("", [1.0, 2.0]))
        file = folder / "results.jsonl"
        file.write_bytes(b"\x00\xff\n[1]\n" + file.read_bytes() + b'{"case": "algo-Ring", "rep')
        self.report(folder)
        self.assertIn("ddpreport: results: 3 lines could not be read and left out (line 1, 2, 5)", self.said_of_files)

    def test_huge(self) -> None:
        records = []
        for i in range(20_000):
            settings = {"ranks": 4, "batch": i // 20, "NCCL_ALGO": ("", "Ring")[i % 2]}
            rate = None if i % 1000 == 999 else 100.0 + i % 7
            records.append(record(f"c{i // 20}-{i % 2}", i // 2 % 10, rate, settings))
        self.report_of(records)
        self.assertLess(len(self.page), 3_000_000)
        self.assertIn("1800 more rows are in results.jsonl", self.page)

    def test_a_run_that_was_made_again_counts_once(self) -> None:
        records = algo("", [None, 2.0]) + [record("algo-", 0, 4.0, algo("", [1.0])[0]["settings"])]
        self.assertIn("3 images/s (2 to 4 over 2 runs)", self.words(records))

    def test_what_is_not_utf8_is_marked(self) -> None:
        write_results(self.folder / "in", [line | {"notes": ["a half: \ud800"]} for line in algo("", [1.0, 2.0])])
        files = [self.folder / "r.html", self.folder / "r.md"]
        run_report(self.folder / "in", "--title", "my \udcff title", "--out", files[0], "--md", files[1])
        for file in files:
            self.assertIn("my \ufffd title", file.read_text(encoding="utf-8"))
            self.assertIn("a half: \ufffd", file.read_text(encoding="utf-8"))

    def test_mistakes(self) -> None:
        (self.folder / "other.jsonl").write_text("# A text\n")
        listening = self.enterContext(socket.socket(socket.AF_UNIX))
        listening.bind(str(self.folder / "socket"))
        for name, said in (("missing", "no such file"), ("", "no results.jsonl"), ("other.jsonl", "not a line of it can be read"),
                           ("/dev/null", "/dev/null: is a device, and a file is needed"),
                           ("socket", "no file of ddptrain --metrics, and no results of ddpsweep")):  # fmt: skip
            self.assertIn(said, run_report(self.folder / name, "--out", self.folder / "r.html", code=2).stderr)
        self.assertFalse((self.folder / "r.html").exists())
