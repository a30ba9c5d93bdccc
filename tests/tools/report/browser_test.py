"""The page of ddpreport in a real browser without a network; skipped where there is none."""

import html
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest
from typing import Any

from ddptools.page.render import DYGRAPHS, to_html
from ddptools.report.training.page import blocks_of_runs
from ddptools.report.training.runs import load_runs
from tests.tools.report.support import everything, run_report
from tests.tools.support import ROOT, write_lines, write_results

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)


DARK = "(prefers-color-scheme: dark)"
READABLE = 4.5  # contrast of text, by WCAG 2 (AA)
OTHERS = """<div class="warnings"><p>w</p></div><p class="footnote">f</p></body>"""  # that these results do not have
KEPT = ROOT / "benchmarks" / "results" / "sweeps-4-h200-2026-11-21"
FRAME = pathlib.Path(__file__).with_name("browser_test.html").read_text()  # looks at a page in a frame


def lines_of_a_run() -> list[dict[str, Any]]:
    steps = [{"event": "step", "step": i, "time": 100 + 2 * i, "samples": 64 * i, "loss": 5 * 0.9**i, "learning_rate": 1e-3,
              "images_per_second": 1000.0 + i} for i in range(5, 51, 5)]  # fmt: skip
    summary = {"event": "summary", "time": 205, "world_size": 2, "images_per_second": 1e3, "parameter_hash": "4b80f0c2" * 4,
               "step_seconds": 1e-3, "scaling_efficiency": 0.8, "scaling_efficiency_low": 0.7, "scaling_efficiency_high": 0.9,
               "step_seconds_without_communication": 9e-4, "step_seconds_without_communication_mean": 8.5e-4,
               "disturbed": "other programs took 52% of the cores"}  # fmt: skip
    epoch = {"event": "epoch", "step": 50, "time": 201, "test_loss": 0.05, "accuracy": 0.872}
    return [{"event": "start", "time": 100, "model": "cnn", "world_size": 2, "configuration": {}}, *steps, epoch, summary]


@unittest.skipIf(BROWSER is None, "no chromium here (apt-get install chromium)")
class BrowserTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # the browser may still write its profile
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        sources = [write_results(cls.folder / "results", everything()), KEPT / "scaling", KEPT / "p2p-level"]
        run_report(*sources, "--out", cls.folder / "r.html", "--title", "Seen & read")
        cls.page = (cls.folder / "r.html").read_text()
        run = write_lines(cls.folder / "run.jsonl", lines_of_a_run())
        run_report(run, "--out", cls.folder / "run.html", "--title", "One run")
        cls.run_page = (cls.folder / "run.html").read_text()

    def browse(self, *options: str, page: str = "r.html") -> subprocess.CompletedProcess:
        profile = tempfile.mkdtemp(dir=self.folder)  # that of the browser before may still be locked
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        command += ["--allow-file-access-from-files", "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--log-level=0"]
        command += [*options, (self.folder / page).as_uri()]
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300, cwd=self.folder)

    def test_the_page_is_read_as_it_was_written(self) -> None:
        done = self.browse("--dump-dom")
        self.assertIn("<h1>Seen &amp; read</h1>", done.stdout)
        self.assertNotIn("CONSOLE", done.stderr)
        for tag in ("<table", "<h2", "<h3", "<figure", "<tr"):
            self.assertEqual(done.stdout.count(tag), self.page.count(tag), tag)

    def look(self, page: str, width: int) -> dict:
        source = f'srcdoc="{html.escape(page.replace("</body>", OTHERS))}"'
        found = self.in_frame("look", source, width)
        self.assertEqual(found["width"], width)
        return found

    def in_frame(self, function: str, source: str, width: int = 1280) -> dict:
        """What a function of browser_test.html found on a page."""
        text = FRAME.replace("WIDTH", str(width)).replace("READABLE", str(READABLE))
        (self.folder / "frame.html").write_text(text.replace("LOOK", function).replace("SOURCE", source))
        window = f"--window-size={max(width, 500)},900"
        dumped = self.browse("--dump-dom", "--hide-scrollbars", window, page="frame.html").stdout
        return json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', dumped, re.DOTALL)[1]))

    def test_nothing_is_wider_than_the_window_or_faint(self) -> None:
        for width in (1280, 420):
            run_page = self.run_page if width == 1280 else self.run_page.replace(DARK, "all")
            for page in (run_page, self.page, self.page.replace(DARK, "all")):
                found = self.look(page, width)
                for kind in ("wide", "cut", "faint", "filtered"):
                    self.assertEqual(found[kind], [], (kind, width))
                self.assertLessEqual(found["content"], width)
                self.assertGreater(found["texts"], 50)
                self.assertLess(found["first"], 700)  # the first screen has a picture
        self.assertLess(found["page"], 0.05)  # the last one was dark

    def test_a_bad_page_is_found(self) -> None:
        self.assertEqual(self.page.count(DARK), 1)
        cutting = ".answer { display: block; overflow: hidden; white-space: nowrap; }"
        changes = (("table, tbody, tr, td { display: block; }", "", 420, "wide", "TABLE."),
                   ("overflow-wrap: break-word;\n}", "white-space: nowrap;\n}", 420, "wide", "SPAN.answer"),
                   (".wide { overflow-x: auto; }", ".wide { overflow-x: auto; width: 70rem; }", 1280, "wide", "table"),
                   ("td:empty {", ".caption { width: 30rem; } td:empty {", 420, "wide", "caption"),
                   ("td:empty {", cutting + " td:empty {", 420, "cut", "SPAN.answer"),
                   ("@container (max-width: 40rem)", "@container (max-width: 1rem)", 420, "cut", "bar"),
                   ("--muted: #57606a", "--muted: #9da7b3", 1280, "faint", ".caption"))  # fmt: skip
        for good, bad, width, kind, named in changes:
            self.assertIn(good, self.page)
            page = self.page if "--muted" in good else self.page.replace(DARK, "all")
            found = self.look(page.replace(good, bad), width)[kind]
            self.assertTrue(any(named in text for text in found), (bad, found))

    @unittest.skipUnless(DYGRAPHS.is_file(), "no dygraphs here (apt-get install libjs-dygraphs)")
    def test_curves_tell_their_values_and_zoom(self) -> None:
        found = self.look(self.page, 1280)
        self.assertGreater(found["canvases"], 4)
        values = found["curves"]
        self.assertEqual(values["before"], ["1", "2", "4"])
        self.assertRegex(values["hovered"], r"ranks 4:\s*batch 64 \d+")
        self.assertEqual(values["after"], ["4"])

    @unittest.skipUnless(DYGRAPHS.is_file(), "no dygraphs here (apt-get install libjs-dygraphs)")
    def test_pictures_of_a_run(self) -> None:
        found = self.in_frame("use", f'srcdoc="{html.escape(self.run_page)}"')
        pictures = len(found["before"])
        self.assertEqual((found["before"], found["after"]), (["step"] * pictures, ["time"] * pictures))
        self.assertEqual(found["pressed"], ["time"] * pictures)
        self.assertIn("40", found["steps"][0])
        self.assertIn("1:30 min", found["times"][0])
        loss, rate, *_ = found["ticks"]
        self.assertEqual(loss, ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2"])  # a logarithmic axis
        self.assertEqual(rate[0], "0")
        self.check_saved(found, figures=pictures + 2)  # with the accuracy, a number, and the bars

    def check_saved(self, found: dict, figures: int) -> None:
        """A file of each kind for each figure of lines_of_a_run()."""
        self.assertEqual(found["pngs"], ["PNG"] * figures)
        self.assertEqual(found["parsed"], ["svg"] * figures)
        curves = found["svgs"][0]
        for text in (">training</text>", ">time</text>", ">1:30 min</text>", ">0.1</text>", ">loss</text>", 'stroke="#3b7dd8"'):
            self.assertIn(text, curves)
        self.assertNotIn("zoom", curves)
        self.assertTrue(any(">87.2</text>" in svg for svg in found["svgs"]))
        bars = found["svgs"][-1]
        self.assertIn(">stragglers</text>", bars)
        self.assertGreater(bars.count("<rect"), 4)

    @unittest.skipUnless(DYGRAPHS.is_file(), "no dygraphs here (apt-get install libjs-dygraphs)")
    def test_a_page_that_is_read_again_keeps_what_was_chosen(self) -> None:
        watched = to_html("Watched", blocks_of_runs(load_runs([self.folder / "run.jsonl"])), refresh_seconds=1)
        (self.folder / "watched.html").write_text(watched)
        found = self.in_frame("lookAgain", 'src="watched.html"')
        self.assertEqual(set(found["below"]), {"time"})
        self.assertEqual(found["scrolled"], 150)
