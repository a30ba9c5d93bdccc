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
from support import ROOT, write_results
from ddptools.page import DYGRAPHS

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)


DARK = "(prefers-color-scheme: dark)"
READABLE = 4.5  # contrast of text, by WCAG 2 (AA)
OTHERS = """<div class="warnings"><p>w</p></div><p class="footnote">f</p></body>"""  # that these results do not have
KEPT = ROOT / "benchmarks" / "results" / "sweeps-4-h200-2026-11-21"

# Looks at a page in a frame, because no window of the browser is as narrow as a phone. Finds elements that reach over
# the right edge, but for those inside a picture or, unless on a phone, in a container that scrolls; texts that their own
# box cuts; and texts with too little contrast against what is behind them.
FRAME = """<!DOCTYPE html><html><body style="margin:0"><pre id="found"></pre><script>
function look(frame) {
  frame.height = frame.contentDocument.documentElement.scrollHeight + 100;
  const page = frame.contentDocument, width = page.documentElement.clientWidth, wide = [], cut = [];
  const edge = e => e.getBoundingClientRect().right, style = e => frame.contentWindow.getComputedStyle(e);
  const all = [...page.body.querySelectorAll("*")].filter(e => e.getClientRects().length > 0);
  const scrolls = e => e.closest("figure .wide") !== null || (width > 640 && e.closest(".wide") !== null);
  for (const e of all) {
    if (!scrolls(e) && edge(e) > width + 0.5) wide.push(e.tagName + "." + e.className);
    if (style(e).overflowX === "hidden" && e.scrollWidth > e.clientWidth + 1) cut.push(e.tagName + "." + e.className);
  }
  for (const e of page.querySelectorAll(".bars")) {
    for (const text of e.querySelectorAll(".after")) if (edge(text) > edge(e) + 1) cut.push(`bar ${text.textContent}`);
    for (const bar of e.querySelectorAll(".bar")) if (bar.getBoundingClientRect().width < 60) cut.push(`bar ${bar.textContent}`);
  }
  for (const e of page.querySelectorAll("caption, .caption")) if (edge(e) > width) wide.push("caption");
  const numbers = color => color.match(/[\\d.]+/g).map(Number);
  const light = color => numbers(color).slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = e => e === null ? "rgb(255, 255, 255)" : numbers(style(e).backgroundColor)[3] === 0 ? behind(e.parentElement)
      : style(e).backgroundColor;
  const shape = e => { // what a picture has under the middle of a text
    const box = e.getBoundingClientRect();
    const under = page.elementsFromPoint(box.left + box.width / 2, box.top + box.height / 2)
        .find(o => ["path", "rect"].includes(o.tagName) && style(o).fill.startsWith("rgb"));
    return under === undefined ? behind(e.ownerSVGElement.parentElement) : style(under).fill;
  };
  let texts = 0, letters = 0, faint = [], filters = 0;
  for (const e of all) {
    for (let above = e; above; above = above.parentElement) if (style(above).filter !== "none") filters++;
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) || e.tagName === "SCRIPT") continue;
    if (e.getBoundingClientRect().left > width) continue; // scrolled away
    const drawn = e.ownerSVGElement, color = drawn ? style(e).fill : style(e).color;
    const [dim, bright] = [light(color), light(drawn ? shape(e) : behind(e))].sort((a, b) => a - b);
    const contrast = (bright + 0.05) / (dim + 0.05);
    drawn ? letters++ : texts++;
    if (contrast < READABLE) faint.push(`${e.tagName}.${e.className.baseVal ?? e.className} ${contrast.toFixed(2)} ${e.textContent}`);
  }
  const found = {width, content: page.documentElement.scrollWidth, wide, cut, texts, letters, faint, filters,
                 page: light(behind(page.body)), canvases: page.querySelectorAll(".plot canvas").length,
                 first: Math.min(...[...page.querySelectorAll("figure")].map(e => e.getBoundingClientRect().top)),
                 values: probe(page)};
  document.getElementById("found").textContent = JSON.stringify(found);
}
function probe(page) { // moves the pointer over the first curves, and zooms
  const plot = page.querySelector(".plot"), view = page.defaultView, values = page.querySelector(".values");
  const ticks = () => [...plot.querySelectorAll(".dygraph-axis-label-x")].map(e => e.textContent);
  const target = plot.querySelector("canvas:last-of-type"), box = target.getBoundingClientRect();
  const send = (name, share) => target.dispatchEvent(new view.MouseEvent(name, {bubbles: true, view,
      clientX: box.left + share * box.width, clientY: box.top + box.height / 2, screenX: share * box.width, screenY: 0}));
  const before = ticks();
  send("mousemove", 0.99);
  const hovered = values.textContent;
  send("mousedown", 0.7);
  send("mousemove", 0.99);
  page.dispatchEvent(new view.MouseEvent("mousemove", {clientX: box.left + 0.99 * box.width, clientY: box.top + box.height / 2, view}));
  page.dispatchEvent(new view.MouseEvent("mouseup", {clientX: box.left + 0.99 * box.width, clientY: box.top + box.height / 2, view}));
  return {before, hovered, after: ticks()};
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
        sources = [cls.folder / "results", KEPT / "scaling", KEPT / "p2p-level"]
        done = run_report(*sources, "--out", cls.folder / "r.html", "--title", "Seen & read")
        assert done.returncode == 0, done.stderr
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
        for tag in ("<table", "<svg", "<h2", "<h3", "<figure", "<tr", "<path", "<text"):
            self.assertEqual(done.stdout.count(tag), self.page.count(tag), tag)

    def look(self, page: str, width: int) -> dict:
        page = page.replace("</body>", OTHERS)
        text = FRAME.replace("WIDTH", str(width)).replace("READABLE", str(READABLE)).replace("PAGE", html.escape(page))
        (self.folder / "frame.html").write_text(text)
        dumped = self.browse("--dump-dom", "--hide-scrollbars", f"--window-size={max(width, 500)},900", page="frame.html").stdout
        found = json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', dumped)[1]))
        self.assertEqual(found["width"], width)
        return found

    def test_nothing_is_wider_than_the_window_or_faint(self) -> None:
        for width in (1280, 420):
            for page in (self.page, self.page.replace(DARK, "all")):
                found = self.look(page, width)
                self.assertEqual((found["wide"], found["cut"], found["faint"], found["filters"]), ([], [], [], 0), width)
                self.assertLessEqual(found["content"], width)
                self.assertGreater(found["texts"], 100)
                self.assertGreater(found["letters"], 10)
                self.assertLess(found["first"], 700)  # the first screen has a picture
        self.assertLess(found["page"], 0.05)  # the last one was dark

    def test_a_bad_page_is_found(self) -> None:
        self.assertEqual(self.page.count(DARK), 1)
        changes = (("thead { display: none; } table, tbody, tr, td { display: block; }", "", 420, "wide", "TABLE."),
                   ("overflow-wrap: break-word; }", "white-space: nowrap; }", 420, "wide", "SPAN.answer"),
                   ("td:empty {", ".caption { width: 30rem; } td:empty {", 420, "wide", "caption"),
                   ("td:empty {", ".answer { display: block; overflow: hidden; white-space: nowrap; } td:empty {", 420, "cut", "SPAN.answer"),
                   ("@container (max-width: 40rem)", "@container (max-width: 1rem)", 420, "cut", "bar"),
                   ("--muted: #57606a", "--muted: #9da7b3", 1280, "faint", ".caption"),
                   ("figure svg text { fill: var(--text); }", "", 1280, "faint", "text."))  # fmt: skip
        for good, bad, width, kind, named in changes:
            self.assertIn(good, self.page)
            page = self.page if "--muted" in good else self.page.replace(DARK, "all")
            found = self.look(page.replace(good, bad), width)[kind]
            self.assertTrue(any(named in text for text in found), (bad, found))

    @unittest.skipUnless(DYGRAPHS.is_file(), "no dygraphs here (apt-get install libjs-dygraphs)")
    def test_curves_tell_their_values_and_zoom(self) -> None:
        found = self.look(self.page, 1280)
        self.assertGreater(found["canvases"], 4)
        values = found["values"]
        self.assertEqual(values["before"], ["1", "2", "4"])
        self.assertRegex(values["hovered"], r"ranks 4:\s*batch 64 \d+")
        self.assertEqual(values["after"], ["4"])

    def test_the_page_is_drawn(self) -> None:
        self.browse(f"--screenshot={self.folder}/page.png", "--window-size=1000,3000")
        data = (self.folder / "page.png").read_bytes()
        self.assertEqual(struct.unpack(">II", data[16:24]), (1000, 3000))
        self.assertGreater(len(data), 50_000)  # an empty page has 15 kB


if __name__ == "__main__":
    unittest.main()
