"""The page of ddpreport in a real browser without a network; skipped where there is none."""

import pathlib
import shutil
import struct
import subprocess
import tempfile
import unittest

from report_support import everything, run_report
from support import write_results

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)


@unittest.skipIf(BROWSER is None, "no chromium here (apt-get install chromium)")
class BrowserTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        write_results(cls.folder / "results", everything())
        done = run_report(cls.folder / "results", "--out", cls.folder / "r.html", "--title", "Seen & read")
        assert done.returncode == 0, done.stderr

    def browse(self, *options: str) -> subprocess.CompletedProcess:
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.folder}/profile"]
        command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--log-level=0"]
        command += [*options, (self.folder / "r.html").as_uri()]
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120, cwd=self.folder)

    def test_the_page_is_read_as_it_was_written(self) -> None:
        done = self.browse("--dump-dom")
        self.assertIn("<h1>Seen &amp; read</h1>", done.stdout)
        self.assertNotIn("CONSOLE", done.stderr)
        source = (self.folder / "r.html").read_text()
        for tag in ("<table", "<svg", "<h2", "<h3", "<figure", "<tr", "<path", "<text"):
            self.assertEqual(done.stdout.count(tag), source.count(tag), tag)

    def test_the_page_is_drawn(self) -> None:
        self.browse(f"--screenshot={self.folder}/page.png", "--window-size=1000,3000")
        data = (self.folder / "page.png").read_bytes()
        self.assertEqual(struct.unpack(">II", data[16:24]), (1000, 3000))
        self.assertGreater(len(data), 50_000)  # an empty page has 15 kB


if __name__ == "__main__":
    unittest.main()
