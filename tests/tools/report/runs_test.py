"""The page of training runs: which lines count, what is drawn, and what of the configurations differs."""

import contextlib
import csv
import io
import json
import os
import pathlib
import time
from typing import Any
from unittest import mock

from ddptools.common.errors import UsageError
from ddptools.common.files import read_records
from ddptools.page.render import to_html
from ddptools.report import program
from ddptools.report.training import curves, key_numbers, page, runs, samples, watch
from tests.tools.report.support import undocumented_columns
from tests.tools.support import FolderCase, gpt2_description, write_lines


def start(time: float, **changes: Any) -> dict[str, Any]:
    configuration = {"batch": "512", "lr": "0.001", "metrics": '"x.jsonl"'} | changes.pop("configuration", {})
    environment = changes.pop("environment", {})
    line = {"event": "start", "model": "cnn", "world_size": 2, "configuration": configuration}
    return line | {"environment": environment, "time": time} | changes


def step(number: int, time: float, loss: float, **changes: Any) -> dict[str, Any]:
    line = {"event": "step", "step": number, "loss": loss, "learning_rate": 1e-3, "gradient_norm": 1.5}
    return line | {"images_per_second": 1e6, "step_seconds": 1e-3, "time": time} | changes


FILES = (pathlib.Path(__file__).with_name(name) for name in ("whole_run.jsonl", "resumed_run.jsonl"))
WHOLE, RESUMED = (list(read_records(file)) for file in FILES)


class RunsTest(FolderCase):
    def write(self, name: str, lines: list[dict[str, Any]], cut: str = "") -> pathlib.Path:
        return write_lines(self.folder / name, lines, cut)

    def report(self, *arguments: Any) -> str:
        """What it prints."""
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(program.main(list(map(str, arguments))), 0)
        return out.getvalue()

    def test_what_a_resumed_run_did_again_counts_once(self) -> None:
        (run,) = runs.load_runs([self.write("a.jsonl", RESUMED, '{"event": "st')])
        self.assertEqual(run.curve("loss", "step"), [(10, 1.0, 2.5), (20, 101.0, 1.5)])
        self.assertEqual((len(run.restarts), run.end, run.bad_lines), (1, "ended by SIGINT", [len(RESUMED) + 1]))
        (run,) = runs.load_runs([self.write("a.jsonl", [*RESUMED[:4], RESUMED[4] | {"step": 9}])])
        self.assertEqual(run.curve("loss", "step"), [])  # it begins before all lines

    def test_a_resumed_run_repeats_the_line_of_its_checkpoint_without_what_it_did_not_measure(self) -> None:
        (first,) = (line for line in RESUMED[:4] if line["event"] == "step" and line["step"] == 10)
        again = first | {"images_per_second": None, "time": first["time"] + 100}
        (run,) = runs.load_runs([self.write("a.jsonl", [*RESUMED[:4], RESUMED[4] | {"step": 10}, again])])
        self.assertEqual([line for line in run.lines if line["event"] == "step" and line["step"] == 10], [first])

    def test_tables_tell_how_runs_ended_and_what_differs(self) -> None:
        a, b = runs.load_runs([self.write("a.jsonl", WHOLE), self.write("b.jsonl", RESUMED)])
        table = page.run_table([a, b])
        self.assertEqual(table.header, ["run", "end", "steps", "restarts", "time", "last loss", "test loss", "test accuracy",
                                        "throughput"])  # fmt: skip
        self.assertNotIn("restarts", page.run_table([a]).header)
        self.assertEqual(table.rows[0][:4], ["a", "complete", "20", "0"])
        self.assertEqual(table.rows[0][4:], ["10 s", "1.0000", "0.9000", "50.00%", "2.000 M images/s"])
        self.assertEqual(table.rows[1][:5], ["b", "ended by SIGINT", "20", "1", "1:42 min"])
        self.assertEqual(page.words([a, b]), ["Lowest test loss: a: 0.9 at step 20."])
        pair = runs.load_runs([self.write("a.jsonl", WHOLE), self.write("b.jsonl", RESUMED)])
        rows = page.configuration_table(pair).rows
        self.assertEqual(sorted(rows), [["--lr", "0.001", "0.01"], ["NCCL_ALGO", "", "Ring"]])
        alone = [row[0] for row in page.configuration_table(pair[:1]).rows]
        self.assertEqual(alone, ["--batch", "--lr", "model", "world_size"])

    def test_meshes_are_compared(self) -> None:
        sends = [{"axis": axis, "when": "", "times": 1, "bytes": size}
                 for axis, size in (("data", 3e6), ("tensor", 1e6), ("tensor", 2e6))]  # fmt: skip
        summary = {"event": "summary", "tokens_per_second": 1.0, "waits_for_stages": 0.25, "waits_for_replicas": None,
                   "parameter_hash": "ab", "description": gpt2_description(sends=sends)}  # fmt: skip
        lines = [start(0, configuration={"pp": "2", "tp": "1", "zero": '"3"'}), summary]
        pair = runs.load_runs([self.write("a.jsonl", WHOLE), self.write("b.jsonl", lines)])
        self.assertEqual(page.mesh_tables(pair[:1]), [])
        (table,) = page.mesh_tables(pair)
        self.assertEqual(table.rows, [["a", "2", "1", "1", "0", "", "", ""],
                                      ["b", "2", "2", "1", "3", "stages 25.0%", "data 3, tensor 3", "ab"]])  # fmt: skip
        self.assertIn(table, page.blocks_of_runs(pair))

    def test_pictures_have_every_run_and_mark_restarts(self) -> None:
        pair = runs.load_runs([self.write("a.jsonl", WHOLE), self.write("b.jsonl", RESUMED)])
        drawn = curves.run_pictures(pair)
        first_words = [picture.caption.replace(":", "").split()[0] for picture in drawn]
        self.assertEqual(first_words, ["Loss", "Throughput", "Accuracy", "Learning", "Norm"])  # each once
        loss = drawn[0].chart
        self.assertEqual([line.label for line in loss.lines], ["a", "a: test", "b"])
        self.assertEqual([axis.label for axis in loss.axes], ["step", "time"])
        self.assertEqual([places for places, _ in loss.marks], [(15.0, 100.0)])
        self.assertEqual(loss.lines[2].points, [((10.0, 1.0), 2.5, 2.5, 2.5), ((20.0, 101.0), 1.5, 1.5, 1.5)])
        self.assertIn("Dashed", drawn[0].caption)
        self.assertNotIn("Dashed", curves.run_pictures(pair[:1])[0].caption)
        self.assertTrue(drawn[1].chart.from_zero)  # throughput

    def test_groups_are_drawn_and_compared(self) -> None:
        files = []
        for name, ages in (("a", (0, 2)), ("b", (1, 3))):
            exchanges = [{"event": "exchange", "step": 50 * i, "age": age, "bytes_sent": 1e6 * i, "bytes_received": 3e6 * i,
                          "time": 100 + i} for i, age in enumerate(ages, 1)]  # fmt: skip
            summary = {"event": "summary", "exchanges": 2, "exchange_seconds": 1.5, "exchange_bytes_sent": 2e6,
                       "exchange_bytes_received": 6e6, "exchange_entries_skipped": 0, "outer_hash": f"{name}1"}  # fmt: skip
            lines = [start(100, configuration={"group": f'"{name}"'}), step(50, 101, 2.0), step(100, 102, 1.0)]
            files.append(self.write(f"{name}.jsonl", [*lines, *exchanges, summary]))
        pair = runs.load_runs(files)
        drawn = {picture.chart.y_label: picture.chart for picture in curves.run_pictures(pair)}
        self.assertEqual([[value for _, value, _, _ in line.points] for line in drawn["age, versions"].lines], [[0, 2], [1, 3]])
        sent, received = (drawn[name] for name in ("sent, MB", "received, MB"))
        self.assertEqual([value for _, value, _, _ in sent.lines[0].points], [1.0, 2.0])
        self.assertEqual([value for _, value, _, _ in received.lines[1].points], [3.0, 6.0])
        (table,) = page.group_tables(pair)
        self.assertEqual(table.rows, [["a", "a", "2", "1.5 s", "2", "6", "1, at most 2", "0", "a1"],
                                      ["b", "b", "2", "1.5 s", "2", "6", "2, at most 3", "0", "b1"]])  # fmt: skip
        self.assertEqual(page.group_tables(runs.load_runs([self.write("w.jsonl", WHOLE)])), [])
        zero = [line | {"age": 0} if line["event"] == "exchange" else line for line in read_records(files[0])]
        labels = [picture.chart.y_label for picture in curves.run_pictures(runs.load_runs([self.write("z.jsonl", zero)]))]
        self.assertNotIn("age, versions", labels)  # in rounds no difference is old
        self.report(*files, "--out", "r.html")
        self.assertIn("Groups that share a log", (self.folder / "r.html").read_text())

    def axes(self, *lines: dict[str, Any]) -> tuple[list[str], list[Any]]:
        """Of the loss, and the places of its last point."""
        chart = curves.run_pictures(runs.load_runs([self.write("a.jsonl", list(lines))]))[0].chart
        return [axis.label for axis in chart.axes], list(chart.lines[-1].points[-1][0])

    def test_curves_stand_over_steps_samples_or_tokens_and_time(self) -> None:
        told = step(10, 101, 2.0, samples=640)
        self.assertEqual(self.axes(start(100), told, step(20, 102, 1.0, samples=1280)),
                         (["step", "samples", "time"], [20.0, 1280.0, 2.0]))  # fmt: skip
        epoch = {"event": "epoch", "step": 30, "test_loss": 0.5, "time": 103}  # which does not count samples
        self.assertEqual(self.axes(start(100), told, epoch)[1], [30.0, 1920.0, 3.0])
        words = {"tokens": 4000, "tokens_per_second": 5.0, "images_per_second": None}
        self.assertEqual(self.axes(start(100), told | words)[0], ["step", "samples", "time"])  # it tells images first
        words = {name: value for name, value in (told | words).items() if name != "images_per_second"}
        self.assertEqual(self.axes(start(100), words), (["step", "tokens", "time"], [10.0, 4000.0, 1.0]))
        batch = {"batch_per_rank": 32, "grad_accum": 2}
        self.assertEqual(self.axes(start(100, **batch), step(10, 101, 2.0))[1], [10.0, 1280.0, 1.0])
        self.assertEqual(self.axes(start(100, **batch, virtual_ranks=8), step(10, 101, 2.0))[1], [10.0, 5120.0, 1.0])
        split = start(100, **batch, configuration={"tp": "2"})  # whose ranks are not all replicas
        self.assertEqual(self.axes(split, step(10, 101, 2.0))[0], ["step", "time"])
        untimed = {name: value for name, value in told.items() if name != "time"}
        self.assertEqual(self.axes(start(100), untimed)[0], ["step", "samples"])

    def test_a_curve_of_one_point_is_a_number(self) -> None:
        file = self.write("a.jsonl", [start(100), step(10, 101, 0.123456), step(20, 102, 0.1)])
        loss, *_ = curves.run_pictures(runs.load_runs([file]))
        self.assertFalse(loss.chart.is_single)
        file = self.write("a.jsonl", [start(100), step(10, 101, 0.123456)])
        loss, *_ = curves.run_pictures(runs.load_runs([file]))
        self.assertTrue(loss.chart.is_single)
        self.report(file, "--out", "r.html")
        page = (self.folder / "r.html").read_text()
        self.assertIn('<div class="large">0.123</div>', page)
        self.assertNotIn("data-curves=", page)

    def test_epochs_stand_in_for_steps_that_were_not_logged(self) -> None:
        epochs = [{"event": "epoch", "step": 10 * i, "loss": 1.0 / i, "images_per_second": 5.0, "time": 100 + i}
                  for i in (1, 2)]  # fmt: skip
        file = self.write("a.jsonl", [start(100), *epochs])
        loss, rate, *_ = curves.run_pictures(runs.load_runs([file]))
        self.assertEqual([value for _, value, _, _ in loss.chart.lines[0].points], [1.0, 0.5])
        self.assertEqual([value for _, value, _, _ in rate.chart.lines[0].points], [5.0, 5.0])

    def test_a_curve_that_falls_far_is_logarithmic(self) -> None:
        lines = [start(100), *(step(i, 100 + i, 10.0**-i) for i in range(4))]
        self.assertTrue(curves.run_pictures(runs.load_runs([self.write("a.jsonl", lines)]))[0].chart.is_logarithmic)
        self.assertFalse(curves.run_pictures(runs.load_runs([self.write("b.jsonl", WHOLE)]))[0].chart.is_logarithmic)

    def test_the_last_evaluation_is_told(self) -> None:
        images = {"event": "evaluated", "model": "cnn", "precision": "fp32", "images": 30, "test_loss": 0.25, "accuracy": 0.9}
        self.assertEqual(page.evaluated(images), "Test loss 0.2500, accuracy 90.0% over 30 test images (model cnn, fp32).")
        tokens = {"event": "evaluated", "model": "gpt", "precision": "bf16", "tokens": 64, "test_loss": 3.0,
                  "accuracy": 0.5, "perplexity": 20.0855}  # fmt: skip
        self.assertIn("accuracy 50.0%, perplexity 20.0855 over 64 test tokens", page.evaluated(tokens))
        self.assertIn("Test loss unknown, accuracy unknown over ? test tokens", page.evaluated({"test_loss": "x"}))
        for lines in (WHOLE, []):
            file = self.write("m.jsonl", [*lines, tokens, images, {"event": "confusion"}])  # of older versions
            self.report(file, "--md", "r.md")
            text = (self.folder / "r.md").read_text()
            self.assertIn("## Evaluation\n\nTest loss 0.2500, accuracy 90.0%", text)
            self.assertNotIn("perplexity", text)

    def test_generated_texts_are_a_table(self) -> None:
        line = {"event": "generated", "model": "gpt", "precision": "fp32", "world_size": 2, "prompts": 300,
                "prompt_tokens": 9000, "generated_tokens": 6000, "seconds": 11.39, "seconds_to_first_token": 0.0125,
                "prefill_tokens_per_second": 4000.0, "decode_tokens_per_second": 325.66,
                "generated_tokens_per_second": 526.9}  # fmt: skip
        row = "| m | gpt, fp32 | 2 | 300 | 9,000 | 6,000 | 12.5 | 4,000 | 325.7 | 526.9 |"
        for lines in ([], WHOLE):
            self.report(self.write("m.jsonl", [*lines, line]), "--md", "r.md")
            text = (self.folder / "r.md").read_text()
            self.assertIn(row, text)
            self.assertEqual("has no lines of training" in text, not lines)
            self.assertNotIn("not complete", text)
        (alone,) = runs.load_runs([self.write("g.jsonl", [line | {"device_name": "H200", "time": 0.0}])])
        self.assertEqual(page.title_of_runs([alone]), "Texts of gpt on H200, 1970-01-01")
        tested = {"event": "evaluated", "model": "cnn", "images": 3}
        self.assertEqual(page.title_of_runs(runs.load_runs([self.write("e.jsonl", [tested])])), "Evaluation of cnn")
        both = [self.write("g.jsonl", [line]), self.write("w.jsonl", WHOLE)]
        self.assertEqual(page.title_of_runs(runs.load_runs(both)), "Training cnn, 1970-01-01")
        self.report(*both, "--md", "r.md")
        text = (self.folder / "r.md").read_text()
        self.assertIn("Flags and machine.\n\n|  | w |", text)
        self.assertNotIn("that differ between", text)

    def sample(self, step: int, number: int, prompt: str, text: str) -> dict[str, Any]:
        return {"event": "sample", "step": step, "number": number, "prompt": list(prompt.encode()),
                "tokens": list(text.encode()), "text": prompt + text, "time": 100 + step}  # fmt: skip

    def test_runs_are_named_by_their_files(self) -> None:
        for files, names in ((("m.jsonl", "m.jsonl.g2", "m.jsonl.g10"), ["m.g1", "m.g2", "m.g10"]),
                             (("a/m.jsonl", "a/m.jsonl.g2", "b/m.jsonl.g2"), ["a/m.g1", "a/m.g2", "b/m.g2"]),
                             (("m.jsonl.g2",), ["m.g2"]), (("run-0.1", "run-0.2.json"), ["run-0.1", "run-0.2"]),
                             (("m.json", "m.jsonl"), ["m.json", "m.jsonl"]), ((".jsonl",), [".jsonl"])):  # fmt: skip
            with self.subTest(files):
                for file in files:
                    (self.folder / file).parent.mkdir(exist_ok=True)
                found = runs.load_runs([self.write(file, WHOLE) for file in files])
                self.assertEqual([run.name for run in found], names)

    def test_samples_are_a_section(self) -> None:
        hostile = "<b>&amp;</b> | [x](y) `z` *\\*\nnew\x1b[31m"
        lines = [self.sample(10, 1, "The ", "cat"), self.sample(10, 2, "A\n", hostile)]
        self.report(self.write("m.jsonl", [*WHOLE, *lines]), "--out", "r.html", "--md", "r.md")
        html, text = ((self.folder / name).read_text() for name in ("r.html", "r.md"))
        self.assertIn('>Samples</h2>', html)
        self.assertIn("&lt;b&gt;&amp;amp;&lt;/b&gt; | [x](y) `z` *\\*\nnew?[31m</td>", html)
        self.assertIn("| 10 | The  | cat |\n", text)
        self.assertIn("| 10 | A<br> | &lt;b>&amp;amp;&lt;/b> \\| \\[x\\](y) \\`z\\` \\*\\\\\\*<br>new?\\[31m |\n", text)
        self.assertNotIn("Shown: ", text)
        self.assertIn("training loss: 1.0000 (step 20)", text)  # samples have tokens, too, which count nothing
        ids = {"event": "sample", "step": 20, "number": 1, "prompt": [500, 2], "tokens": [7, 300]}
        pair = [self.write("a.jsonl", [*WHOLE, ids]), self.write("b.jsonl", WHOLE), self.write("c.jsonl", [*WHOLE, *lines])]
        self.report(*pair, "--md", "r.md")
        text = (self.folder / "r.md").read_text()
        self.assertIn("## Samples of a\n", text)
        self.assertIn("| 20 | 500 2 | 7 300 |\n", text)
        self.assertNotIn("## Samples of b\n", text)
        self.assertIn("## Samples of c\n", text)

    def test_many_samples_are_thinned_out(self) -> None:
        lines = [self.sample(step, number, f"p{number}-", "x" * 3000) for step in range(1, 101) for number in range(1, 13)]
        (run,) = runs.load_runs([self.write("m.jsonl", lines)])
        _, table = samples.samples_of_runs([run])
        self.assertEqual(len(table.rows), 200)
        self.assertEqual((table.rows[0][:2], table.rows[-1][:2]), (["1", "p1-"], ["100", "p10-"]))
        self.assertEqual(table.rows[0][2], "x" * 1000 + " ...")
        self.assertIn("Shown: 20 of 100 steps, and the first 10 prompts of each step.", table.caption)

    def test_a_resumed_run_repeats_its_samples(self) -> None:
        first = [self.sample(5, 1, "a", "1"), self.sample(10, 1, "a", "2")]
        again = [self.sample(10, 1, "a", "2"), self.sample(10, 2, "b", "3"), self.sample(15, 1, "a", "4")]
        lost = self.sample(12, 1, "a", "never")
        restart = {"event": "restart", "step": 10, "time": 200}
        (run,) = runs.load_runs([self.write("m.jsonl", [start(100), *first, lost, start(199), restart, *again])])
        _, table = samples.samples_of_runs([run])
        self.assertEqual([row[2] for row in table.rows], ["1", "2", "3", "4"])

    def test_the_title_has_machine_and_date(self) -> None:
        (run,) = runs.load_runs([self.write("a.jsonl", [start(86400.0 * 365, device_name="H200")])])
        self.assertEqual(page.title_of_runs([run]), "Training cnn on H200, 1971-01-01")

    def test_pages(self) -> None:
        a, b = self.write("one/m.jsonl", WHOLE), self.write("two/m.jsonl", RESUMED)
        self.assertIn("training runs: 2", self.report(a, b, "--out", "r.html", "--md", "r.md"))
        page = (self.folder / "r.html").read_text()
        for text in ("<h1>Training cnn, 1970-01-01</h1>", "one/m", "two/m", "<figure", "--lr"):
            self.assertIn(text, page)
        self.assertNotIn(str(self.folder), page)
        self.assertIn("| --lr | 0.001 | 0.01 |", (self.folder / "r.md").read_text())

    def test_runs_without_curves_say_what_is_missing(self) -> None:
        summary = {"event": "summary", "images_per_second": 1.0, "time": 120}
        epoch = {"event": "epoch", "step": 468, "loss": 1.0, "time": 110}
        for lines, hint in (([start(100), epoch, summary], "No curve of m: start the run with --log-every 10"),
                            ([start(100), epoch | {"step": 31}, summary], "--log-every 3<"), (WHOLE, ""),
                            ([start(100)], "")):  # it may still log steps  # fmt: skip
            self.report(self.write("m.jsonl", lines))
            text = (self.folder / "report.html").read_text()
            self.assertEqual("--log-every" in text, bool(hint))
            self.assertIn(hint, text)

    def test_a_page_begins_with_key_numbers(self) -> None:
        summary = WHOLE[-1] | {"images_per_second_min": 1.9e6, "images_per_second_max": 2.1e6, "world_size": 2,
                               "scaling_efficiency": 0.947, "scaling_efficiency_low": 0.93, "scaling_efficiency_high": 0.96,
                               "disturbed": "", "last_loss": 0.55, "parameter_hash": "4b80f0c2"}  # fmt: skip
        numbers = self.numbers([*WHOLE[:-1], summary])
        self.assertEqual(numbers, [("images per second", "2.000 M", "1.900 M to 2.100 M", ""),
                                   ("scaling efficiency", "94.7%", "93.0 to 96.0, 95% interval", ""),
                                   ("training loss", "0.5500", "step 20", ""), ("test loss", "0.9000", "", ""),
                                   ("test accuracy", "50.00%", "", ""),
                                   ("hash of the parameters", "4b80f0c2", "the same command gives the same hash", "")])  # fmt: skip
        for groups, note in (("0", "depends on when differences arrive"), ("2", "the same command gives the same hash")):
            first = WHOLE[0] | {"configuration": {"outer-groups": groups}}
            numbers = self.numbers([first, *WHOLE[1:-1], summary | {"outer_hash": "1a"}])
            self.assertIn(("hash of the parameters", "4b80f0c2", note, ""), numbers)
        names = [name for name, *_ in self.numbers(WHOLE)]  # of a file without these fields
        self.assertEqual(names, ["images per second", "training loss", "test loss", "test accuracy"])
        self.assertEqual(self.numbers([start(100, steps=40), *WHOLE[1:3]])[0],
                         ("progress", "50.0%", "step 20 of 40, not complete", ""))  # fmt: skip
        alone = [name for name, *_ in self.numbers([*WHOLE[:-1], summary | {"world_size": 1}])]
        self.assertNotIn("scaling efficiency", alone)
        tokens = {"event": "epoch", "step": 20, "tokens_per_second": 5.0, "test_loss": 3.0, "perplexity": 20.1, "accuracy": 0.4}
        numbers = self.numbers([start(100), tokens])
        self.assertIn(("validation loss", "3.0000", "perplexity 20.1", ""), numbers)
        self.assertNotIn("test accuracy", [name for name, *_ in numbers])
        text = self.page_of([*WHOLE[:-1], summary])
        self.assertLess(text.index('class="numbers"'), text.index("<figure"))

    def numbers(self, lines: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
        (run,) = runs.load_runs([self.write("a.jsonl", lines)])
        return [(one.name, one.value, one.about, one.mark) for one in key_numbers.key_numbers(run).numbers]

    def page_of(self, lines: list[dict[str, Any]]) -> str:
        self.report(self.write("a.jsonl", lines), "--out", "r.html", "--md", "r.md")
        return (self.folder / "r.html").read_text().partition("<body>")[2]

    def test_a_disturbed_run_is_marked(self) -> None:
        told = {"world_size": 2, "scaling_efficiency": 0.547, "scaling_efficiency_half_width": 0.04}
        new = told | {"scaling_efficiency_low": 0.51, "scaling_efficiency_high": 0.58, "calibration_limit_seconds": 30}
        why = "other programs took 52% of the cores"
        for summary, text, mark, reason, seconds in (
            (new | {"disturbed": why}, "54.7% (51.0 to 58.0), disturbed", "disturbed", why, 90),
            (new | {"disturbed": "", "cpu_share_per_rank": [0.4]}, "54.7% (51.0 to 58.0)", "", "", 0),
            (told, "54.7% +- 4.0", "", "", 0),  # of older files
            (told | {"cpu_share_per_rank": [0.5, 1.0]}, "54.7% +- 4.0, disturbed", "disturbed", "a core for 50%", 60),
            (told | {"scaling_efficiency_half_width": 0.14}, "too noisy (54.7% +- 14.0)", "too noisy", "+- 14 points", 60),
        ):
            lines = [*WHOLE[:-1], WHOLE[-1] | summary]
            page = self.page_of(lines)
            first = page.partition("</h1>")[2].strip().partition("\n")[0]
            self.assertEqual(first.startswith('<div class="disturbed"><p>Disturbed: '), bool(mark), first)
            self.assertIn(reason, first)
            self.assertEqual(f"--calibration-seconds {seconds}." in first, bool(mark))
            self.assertIn(f"| {text} |", (self.folder / "r.md").read_text())
            (efficiency,) = [one for one in self.numbers(lines) if one[0] == "scaling efficiency"]
            self.assertEqual(efficiency[3], mark)
            self.assertEqual('<div class="number marked">' in page, bool(mark))  # not bold
            self.assertNotIn('class="warnings"', page)
        pair = [self.write("a.jsonl", WHOLE), self.write("b.jsonl", [*WHOLE[:-1], WHOLE[-1] | told | {"disturbed": why}])]
        self.report(*pair, "--out", "r.html")
        page = (self.folder / "r.html").read_text().partition("</h1>")[2].strip()
        self.assertTrue(page.startswith(f'<div class="disturbed"><p>Disturbed: b: {why}.'), page[:200])

    def test_a_disturbed_run_without_an_efficiency_is_marked(self) -> None:
        why = "other programs took 52% of the cores"
        summary = WHOLE[-1] | {"event": "summary", "world_size": 1, "images_per_second": 5.0, "disturbed": why}
        first = self.page_of([*WHOLE[:-1], summary]).partition("</h1>")[2].strip().partition("\n")[0]
        self.assertIn(f"Disturbed: {why}. Do not trust its rate. Run it again on an idle machine.", first)
        self.assertIn(("images per second", "5", "", "disturbed"), self.numbers([*WHOLE[:-1], summary]))

    def test_an_interval_that_tells_nothing_is_too_noisy(self) -> None:
        wide = {"world_size": 2, "scaling_efficiency": 0.8, "scaling_efficiency_low": -2.15, "scaling_efficiency_high": 3.76}
        told = ("scaling efficiency", "80.0%", "0.0 to 376.0, 95% interval", "too noisy")
        self.assertIn(told, self.numbers([*WHOLE[:-1], WHOLE[-1] | wide]))

    def test_a_run_tells_what_it_sends(self) -> None:
        sends = [{"axis": axis, "when": "", "times": 1, "bytes": size}
                 for axis, size in (("data", 3e6), ("tensor", 1e6), ("tensor", 2e6))]  # fmt: skip
        numbers = self.numbers([*WHOLE[:-1], WHOLE[-1] | {"description": gpt2_description(sends=sends)}])
        self.assertIn(("sent by rank 0 in a step", "6 MB", "data 3 MB, tensor 3 MB", ""), numbers)

    def test_lines_that_cannot_be_read_are_told(self) -> None:
        file, lines = self.folder / "m.jsonl", [json.dumps(line) for line in WHOLE]
        for bad, number in (([*lines[:2], lines[2][:20], *lines[3:]], 3), ([lines[0][30:], *lines[1:]], 1)):
            file.write_text("\n".join(bad) + "\n")
            with contextlib.redirect_stderr(io.StringIO()) as said:
                self.report(file, "--md", "r.md")
            self.assertEqual(said.getvalue(), f"ddpreport: m: 1 line could not be read and left out (line {number})\n")
            self.assertIn(f"m: 1 line could not be read and left out (line {number}).", (self.folder / "r.md").read_text())
        for text, message in (("", "the file is empty"), ("\n", "the file is empty"), (lines[0][:40], "not a line of it can be"),
                              (lines[0][30:], "not a line of it can be read: it is cut, or another kind of file")):  # fmt: skip
            file.write_text(text)
            with self.assertRaisesRegex(UsageError, f"m.jsonl: {message}.*. Give a file of ddptrain --metrics"):
                self.report(file)

    def test_a_run_has_the_parts_of_its_step(self) -> None:
        parts = {"world_size": 2, "step_seconds": 1e-3, "scaling_efficiency": 0.8, "step_seconds_without_communication": 9e-4,
                 "step_seconds_without_communication_mean": 8.5e-4}  # fmt: skip
        self.page_of([*WHOLE[:-1], WHOLE[-1] | parts])
        text = (self.folder / "r.md").read_text()
        self.assertIn("A step takes 1.00 ms with 2 ranks, and 0.80 ms with one rank alone.", text)
        self.assertIn("| a | 1.00 | 0.80 | 0.10 | 0.05 | 0.05 | 80.0% |", text)
        reasons = {"other programs took 52% of the cores": True, "rank 1 waited 12% of its time for a core": True,
                   "4 threads share 2 cores": False, "": False}  # fmt: skip
        for why, is_told in reasons.items():
            self.page_of([*WHOLE[:-1], WHOLE[-1] | parts | {"disturbed": why}])
            told = "On one host, these times leave out waits for other programs; the throughput counts them."
            self.assertEqual(told in (self.folder / "r.md").read_text(), is_told)
        self.page_of(WHOLE)
        self.assertNotIn("Where the time", (self.folder / "r.md").read_text())

    def test_a_warning_stands_above_the_parts_of_a_disturbed_run(self) -> None:
        parts = {"world_size": 2, "step_seconds": 1e-3, "scaling_efficiency": 0.8, "step_seconds_without_communication": 9e-4,
                 "step_seconds_without_communication_mean": 8.5e-4}  # fmt: skip
        files = [self.write(f"{name}.jsonl", [*WHOLE[:-1], WHOLE[-1] | parts | {"disturbed": why}])
                 for name, why in (("a", ""), ("b", "other programs took 52% of the cores"))]  # fmt: skip
        other = self.write("c.jsonl", WHOLE)  # without parts
        for shown, told in ((files[:1], ""), (files[1:], "this run was disturbed"), (files, "disturbed: b"),
                            ([files[1], other], "disturbed: b")):  # fmt: skip
            self.report(*shown, "--out", "r.html")
            page = (self.folder / "r.html").read_text()
            below = page.partition("Where the time of a step went</h2>")[2].strip()
            warning = f'<div class="disturbed"><p>Do not trust these parts: {told}.</p></div>'
            self.assertEqual(below.startswith(warning), bool(told), below[:200])

    def test_a_row_of_numbers_for_each_run(self) -> None:
        told = {"world_size": 2, "scaling_efficiency": 0.9, "scaling_efficiency_low": 0.85, "scaling_efficiency_high": 0.93,
                "disturbed": "busy", "cores_taken": 0.52, "exposed_comm_us": 12.5, "parameter_hash": "ab"}  # fmt: skip
        a, b = self.write("a.jsonl", [*WHOLE[:-1], WHOLE[-1] | told]), self.write("b.jsonl", RESUMED)
        self.report(a, b, "--csv", "r.csv")
        first, second = csv.DictReader((self.folder / "r.csv").read_text().splitlines())
        expected = {"table": "runs", "run": "a", "end": "complete", "steps": "20", "restarts": "0", "run_seconds": "10",
                    "images_per_second": "2000000", "scaling_efficiency": "0.9", "scaling_efficiency_low": "0.85",
                    "scaling_efficiency_high": "0.93", "disturbed": "busy", "cores_taken": "0.52", "exposed_comm_us": "12.5",
                    "parameter_hash": "ab", "last_loss": "1", "test_loss": "0.9", "accuracy": "0.5", "settings.batch": "512",
                    "settings.lr": "0.001"}  # fmt: skip
        self.assertEqual({name: first[name] for name in expected}, expected)
        self.assertEqual((second["run"], second["restarts"], second["settings.NCCL_ALGO"]), ("b", "1", "Ring"))
        self.assertEqual(second["images_per_second"], "1000000")  # so far
        self.assertEqual(undocumented_columns(first), [])

    def test_the_page_of_a_run_that_goes_on_is_written_again(self) -> None:
        """By steps of the run, in place of a second of time each."""
        file, page = self.folder / "m.jsonl", self.folder / "report.html"
        pages = []

        def go_on(_: float) -> None:
            pages.append(page.read_text())
            if len(pages) == 1:
                write_lines(file, WHOLE[:1])
            elif len(pages) == 4:  # nothing changes in between
                write_lines(file, WHOLE[:3], '{"event": "epo')
            elif len(pages) == 5:
                write_lines(file, WHOLE)

        with mock.patch.object(watch.time, "sleep", go_on), mock.patch.object(program, "to_html", wraps=to_html) as written:
            self.assertIn("training runs: 1, complete", self.report(file, "--watch"))
        self.assertEqual((len(pages), written.call_count), (5, 4))
        self.assertIn("m has no lines yet.", pages[0])
        self.assertNotIn("<figure", pages[2])
        self.assertIn("<figure", pages[4])
        for text in pages:
            self.assertIn('<body data-refresh-seconds="5">', text)
        self.assertIn("<body>", page.read_text())  # which is not read again
        self.assertIn("complete", page.read_text())
        self.assertIn("complete", self.report(file, "--watch"))  # ends at once

    def test_watching_ends_with_an_interrupt(self) -> None:
        file = self.write("m.jsonl", WHOLE[:2])
        with mock.patch.object(watch.time, "sleep", side_effect=KeyboardInterrupt):
            self.assertIn("training runs: 1, not complete", self.report(file, "--watch"))
        self.assertIn("<body>", (self.folder / "report.html").read_text())

    def test_watching_ends_with_a_run_that_was_killed(self) -> None:
        file = self.write("m.jsonl", WHOLE[:2])
        gone = "training runs: 1, not complete: no process of this host writes it"
        os.utime(file, (0, 0))  # long ago
        with mock.patch.object(watch.time, "sleep", side_effect=AssertionError("it goes on")):
            self.assertIn(gone, self.report(file, "--watch"))
        self.assertIn("<body>", (self.folder / "report.html").read_text())  # which is not read again
        writer = open(file, "a")
        with mock.patch.object(watch.time, "sleep", side_effect=KeyboardInterrupt):
            self.assertNotIn("no process", self.report(file, "--watch"))

        def kill(_: float) -> None:
            self.assertFalse(writer.closed, "it goes on")
            writer.close()
            a_while_ago = time.time() - watch.GONE_SECONDS - 1
            os.utime(file, (a_while_ago, a_while_ago))

        os.utime(file)
        with mock.patch.object(watch.time, "sleep", kill):
            self.assertIn(gone, self.report(file, "--watch"))

    def test_only_runs_are_watched(self) -> None:
        results = self.write("results/results.jsonl", [{"record": 1, "sweep": "s"}])
        for path in (results, results.parent):
            with self.assertRaisesRegex(UsageError, "give files of ddptrain --metrics"):
                self.report(path, "--watch")
        for more in (["--trace", "t.json"], ["--flight", "f"]):
            for flag in ("--watch", "--csv=r.csv"):
                with self.assertRaisesRegex(UsageError, "stand alone"):
                    self.report(flag, *more)

    def test_other_files_are_refused(self) -> None:
        run, sweep = self.write("m.jsonl", WHOLE), self.write("results.jsonl", [{"record": 1, "sweep": "s"}])
        self.assertFalse(runs.are_runs([sweep, self.folder]))
        with self.assertRaisesRegex(UsageError, "results.jsonl: no file of ddptrain --metrics"):
            runs.are_runs([run, sweep])
        with self.assertRaisesRegex(UsageError, "^11 runs: "):
            self.report(*[run] * 11)
