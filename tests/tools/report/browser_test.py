"""The page of ddpreport in a real browser without a network; skipped where there is none."""

import html
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from ddptools.page.render import DYGRAPHS
from tests.tools.report.support import everything, run_report
from tests.tools.support import ROOT, write_results

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)


DARK = "(prefers-color-scheme: dark)"
READABLE = 4.5  # contrast of text, by WCAG 2 (AA)
OTHERS = """<div class="warnings"><p>w</p></div><p class="footnote">f</p></body>"""  # that these results do not have
KEPT = ROOT / "benchmarks" / "results" / "sweeps-4-h200-2026-11-21"
FRAME = pathlib.Path(__file__).with_name("browser_test.html").read_text()  # looks at a page in a frame


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

    def browse(self, *options: str, page: str = "r.html") -> subprocess.CompletedProcess:
        profile = tempfile.mkdtemp(dir=self.folder)  # that of the browser before may still be locked
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--log-level=0"]
        command += [*options, (self.folder / page).as_uri()]
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300, cwd=self.folder)

    def test_the_page_is_read_as_it_was_written(self) -> None:
        done = self.browse("--dump-dom")
        self.assertIn("<h1>Seen &amp; read</h1>", done.stdout)
        self.assertNotIn("CONSOLE", done.stderr)
        for tag in ("<table", "<h2", "<h3", "<figure", "<tr"):
            self.assertEqual(done.stdout.count(tag), self.page.count(tag), tag)

    def look(self, page: str, width: int) -> dict:
        page = page.replace("</body>", OTHERS)
        text = FRAME.replace("WIDTH", str(width)).replace("READABLE", str(READABLE)).replace("PAGE", html.escape(page))
        (self.folder / "frame.html").write_text(text)
        window = f"--window-size={max(width, 500)},900"
        dumped = self.browse("--dump-dom", "--hide-scrollbars", window, page="frame.html").stdout
        found = json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', dumped)[1]))
        self.assertEqual(found["width"], width)
        return found

    def test_nothing_is_wider_than_the_window_or_faint(self) -> None:
        for width in (1280, 420):
            for page in (self.page, self.page.replace(DARK, "all")):
                found = self.look(page, width)
                for kind in ("wide", "cut", "faint", "filtered"):
                    self.assertEqual(found[kind], [], (kind, width))
                self.assertLessEqual(found["content"], width)
                self.assertGreater(found["texts"], 100)
                self.assertLess(found["first"], 700)  # the first screen has a picture
        self.assertLess(found["page"], 0.05)  # the last one was dark

    def test_a_bad_page_is_found(self) -> None:
        self.assertEqual(self.page.count(DARK), 1)
        cutting = ".answer { display: block; overflow: hidden; white-space: nowrap; }"
        changes = (("table, tbody, tr, td { display: block; }", "", 420, "wide", "TABLE."),
                   ("overflow-wrap: break-word;\n}", "white-space: nowrap;\n}", 420, "wide", "SPAN.answer"),
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
