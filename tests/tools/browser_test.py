"""The page of ddpreport in a real browser without a network; skipped where there is none."""

import html
import json
import pathlib
import re
import shutil
import struct
import subprocess
import tempfile
import unittest

from report_support import everything, run_report
from support import write_results

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)


DARK = "(prefers-color-scheme: dark)"
READABLE = 4.5  # contrast of text, by WCAG 2 (AA)
OTHERS = """<div class="warnings"><p>w</p></div><p class="footnote">f</p><span class="badge beyond">b</span>
</body>"""  # of a page, that these results do not have


# Writes the width of the page, that of its content, and every element that reaches over the right edge, but for those in
# a container that scrolls and the inside of pictures; captions of tables are never to scroll. And how many texts there
# are, and those with too little contrast, which a filter would hide from us. A frame, because no window of the browser
# is as narrow as a phone.
FRAME = """<!DOCTYPE html><html><body style="margin:0"><pre id="found"></pre><script>
function look(frame) {
  const page = frame.contentDocument, width = page.documentElement.clientWidth, wide = [];
  const scrolls = e => ["auto", "scroll"].includes(frame.contentWindow.getComputedStyle(e).overflowX);
  for (const e of page.body.querySelectorAll("*")) {
    let above = e.parentElement, inside = e.ownerSVGElement !== undefined && e.ownerSVGElement !== null;
    for (; above && above !== page.body && !inside; above = above.parentElement) inside = scrolls(above);
    if (!inside && e.getBoundingClientRect().right > width + 0.5) wide.push(e.tagName + "." + e.className);
  }
  for (const e of page.querySelectorAll("caption, .caption")) if (e.getBoundingClientRect().right > width) wide.push("caption");
  const style = e => frame.contentWindow.getComputedStyle(e), columns = style(page.querySelector("nav ul")).columnCount;
  const pictures = [...page.querySelectorAll("figure svg")].map(e => e.getBoundingClientRect().width);
  const numbers = color => color.match(/[\\d.]+/g).map(Number);
  const light = color => numbers(color).slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = e => e === null ? "rgb(255, 255, 255)" : numbers(style(e).backgroundColor)[3] === 0 ? behind(e.parentElement)
      : style(e).backgroundColor;
  let texts = 0, faint = [], filters = 0;
  for (const e of page.body.querySelectorAll("*")) {
    for (let above = e; above; above = above.parentElement) if (style(above).filter !== "none") filters++;
    if (e.closest("svg") || ![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
    const [dim, bright] = [light(style(e).color), light(behind(e))].sort((a, b) => a - b);
    const contrast = (bright + 0.05) / (dim + 0.05);
    texts++;
    if (contrast < READABLE) faint.push(e.tagName + "." + e.className + " " + contrast.toFixed(2));
  }
  const found = {width, content: page.documentElement.scrollWidth, wide, columns, pictures, texts, faint, filters,
                 page: light(behind(page.body))};
  document.getElementById("found").textContent = JSON.stringify(found);
}
</script><iframe onload="look(this)" width="WIDTH" height="900" style="border:0" srcdoc="PAGE"></iframe></body></html>"""


@unittest.skipIf(BROWSER is None, "no chromium here (apt-get install chromium)")
class BrowserTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # the browser may still write its profile
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        write_results(cls.folder / "results", everything())
        done = run_report(cls.folder / "results", "--out", cls.folder / "r.html", "--title", "Seen & read")
        assert done.returncode == 0, done.stderr

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
        source = (self.folder / "r.html").read_text()
        for tag in ("<table", "<svg", "<h2", "<h3", "<figure", "<tr", "<path", "<text"):
            self.assertEqual(done.stdout.count(tag), source.count(tag), tag)

    def look(self, page: str, width: int) -> dict:
        page = page.replace("</body>", OTHERS)
        text = FRAME.replace("WIDTH", str(width)).replace("READABLE", str(READABLE)).replace("PAGE", html.escape(page))
        (self.folder / "frame.html").write_text(text)
        dumped = self.browse("--dump-dom", "--hide-scrollbars", f"--window-size={max(width, 500)},900", page="frame.html").stdout
        found = json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', dumped)[1]))
        self.assertEqual(found["width"], width)
        return found

    def test_nothing_is_wider_than_the_window_but_what_scrolls(self) -> None:
        page = (self.folder / "r.html").read_text()
        for width, columns in ((1400, "2"), (420, "1")):
            found = self.look(page, width)
            self.assertEqual(found["wide"], [], width)
            self.assertLessEqual(found["content"], width)
            self.assertEqual(found["columns"], columns)
            self.assert_readable(found)
        self.assertGreater(min(found["pictures"]), 600)  # on a phone, pictures scroll: their letters stay legible
        without = self.look(page.replace(".wide { overflow-x: auto; }", ""), 420)
        self.assertIn("TABLE.", without["wide"])  # such as this test is there to find

    def assert_readable(self, found: dict) -> None:
        self.assertEqual((found["faint"], found["filters"]), ([], 0))
        self.assertGreater(found["texts"], 100)

    def test_the_page_is_readable_in_the_dark(self) -> None:
        page = (self.folder / "r.html").read_text()
        self.assertEqual(page.count(DARK), 1)
        found = self.look(page.replace(DARK, "all"), 1400)
        self.assertLess(found["page"], 0.05)
        self.assert_readable(found)
        faint = self.look(page.replace(DARK, "all").replace("--muted: #9da7b3", "--muted: #57606a"), 1400)["faint"]
        self.assertTrue(any(".caption" in text for text in faint), faint)  # such as this test is there to find

    def test_the_page_is_drawn(self) -> None:
        self.browse(f"--screenshot={self.folder}/page.png", "--window-size=1000,3000")
        data = (self.folder / "page.png").read_bytes()
        self.assertEqual(struct.unpack(">II", data[16:24]), (1000, 3000))
        self.assertGreater(len(data), 50_000)  # an empty page has 15 kB


if __name__ == "__main__":
    unittest.main()
