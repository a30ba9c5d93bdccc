"""The page of training runs: which lines count, what is drawn, and what of the configurations differs."""

import pathlib
import subprocess
from typing import Any

from ddptools.common.errors import UsageError
from ddptools.common.files import read_records
from ddptools.report.training import page, runs
from tests.tools.support import FolderCase, gpt2_description, run_tool, write_lines


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

    def report(self, *arguments: Any, code: int = 0) -> subprocess.CompletedProcess:
        return run_tool("ddpreport", *arguments, cwd=self.folder, code=code)

    def test_what_a_resumed_run_did_again_counts_once(self) -> None:
        (run,) = runs.load_runs([self.write("a.jsonl", RESUMED, '{"event": "st')])
        self.assertEqual(run.curve("loss", "step"), [(10, 1.0, 2.5), (20, 101.0, 1.5)])
        self.assertEqual((len(run.restarts), run.end, run.bad_lines), (1, "ended by SIGINT", 1))
        (run,) = runs.load_runs([self.write("a.jsonl", [*RESUMED[:4], RESUMED[4] | {"step": 10}])])
        self.assertEqual(run.curve("loss", "step"), [])  # it begins before all lines

    def test_tables_tell_how_runs_ended_and_what_differs(self) -> None:
        a, b = runs.load_runs([self.write("a.jsonl", WHOLE), self.write("b.jsonl", RESUMED)])
        rows = page.run_table([a, b]).rows
        self.assertEqual(rows[0][:4], ["a", "complete", "20", "0"])
        self.assertEqual(rows[0][4:], ["10 s", "1.0000", "0.9000", "50.0%", "2.000 M images/s"])
        self.assertEqual(rows[1][:5], ["b", "ended by SIGINT", "20", "1", "1:42 min"])
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
        drawn = page.run_pictures(pair)
        expected = ["Loss", "Accuracy", "Learning", "Norm", "Throughput"]
        first_words = [picture.caption.replace(":", "").split()[0] for picture in drawn]
        self.assertEqual(first_words, [word for word in expected for _ in ("over steps", "over time")])
        loss, over_time = drawn[0].chart, drawn[1].chart
        self.assertEqual([line.label for line in loss.lines], ["a", "a: test", "b"])
        self.assertEqual((loss.x_label, over_time.x_label), ("step", "time since the start"))
        self.assertEqual([x for x, _ in loss.marks + over_time.marks], [15.0, 100.0])
        self.assertEqual(over_time.lines[2].points, [(1.0, 2.5, 2.5, 2.5), (101.0, 1.5, 1.5, 1.5)])
        self.assertIn("Dashed", drawn[0].caption)
        self.assertNotIn("Dashed", page.run_pictures(pair[:1])[0].caption)

    def test_a_curve_that_falls_far_is_logarithmic(self) -> None:
        lines = [start(100), *(step(i, 100 + i, 10.0**-i) for i in range(4))]
        self.assertTrue(page.run_pictures(runs.load_runs([self.write("a.jsonl", lines)]))[0].chart.is_logarithmic)
        self.assertFalse(page.run_pictures(runs.load_runs([self.write("b.jsonl", WHOLE)]))[0].chart.is_logarithmic)

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

    def test_the_title_has_machine_and_date(self) -> None:
        (run,) = runs.load_runs([self.write("a.jsonl", [start(86400.0 * 365, device_name="H200")])])
        self.assertEqual(page.title_of_runs([run]), "Training cnn on H200, 1971-01-01")

    def test_pages(self) -> None:
        a, b = self.write("one/m.jsonl", WHOLE), self.write("two/m.jsonl", RESUMED)
        done = self.report(a, b, "--out", "r.html", "--md", "r.md")
        self.assertIn("training runs: 2", done.stdout)
        page = (self.folder / "r.html").read_text()
        for text in ("<h1>Training cnn, 1970-01-01</h1>", "one/m", "two/m", "<figure", "--lr"):
            self.assertIn(text, page)
        self.assertNotIn(str(self.folder), page)
        self.assertIn("| --lr | 0.001 | 0.01 |", (self.folder / "r.md").read_text())

    def test_runs_without_steps_say_what_is_missing(self) -> None:
        self.report(self.write("m.jsonl", [start(100)]))
        self.assertIn("--log-every", (self.folder / "report.html").read_text())

    def test_other_files_are_refused(self) -> None:
        run, sweep = self.write("m.jsonl", WHOLE), self.write("results.jsonl", [{"record": 1, "sweep": "s"}])
        self.assertFalse(runs.are_runs([sweep, self.folder]))
        with self.assertRaisesRegex(UsageError, "results.jsonl: no file of ddptrain --metrics"):
            runs.are_runs([run, sweep])
        self.assertEqual(self.report(*[run] * 11, code=2).stderr.count("\n"), 1)
