"""benchmarks/reproduce: its claims are those of README, its verdicts are right, and the CPU claims run in short form."""

import pathlib
import re
import sys
import tempfile
import unittest
from unittest import mock

from tests.tools.support import BIN, ROOT, load_script, run

README = (ROOT / "README.md").read_text(encoding="utf-8")
NEWER_PAGES = ("slow-networks", "sums-by-peers")  # whose claims are there, too


reproduce = load_script(ROOT / "benchmarks" / "reproduce")
CLAIM = {"field": "images_per_second", "published": 1000.0, "within": 0.05}
RUN = {"name": "a", "device": "cuda", "machine": "H200", "ranks": 2, "flags": "", "claim": [CLAIM]}


class ClaimsTest(unittest.TestCase):
    def test_are_on_their_pages(self) -> None:
        pages: set[str] = set()
        for claimed in reproduce.load_claims():
            page = claimed.get("page", "README.md")
            pages.add(page)
            words = " ".join((ROOT / page).read_text(encoding="utf-8").split())
            self.assertIn(" ".join(claimed["words"].split()), words, claimed["name"])
        for name in NEWER_PAGES:
            self.assertTrue(any(name in page for page in pages), name)

    def test_emulated_hosts_are_ended(self) -> None:
        started: list[list[str]] = []
        with mock.patch.object(reproduce.subprocess, "run", lambda command, **_: started.append(command)):
            with self.assertRaises(ValueError), reproduce.hosts_of({"hosts": 2, "rate": "100mbit"}):
                raise ValueError
        self.assertEqual([command[1] for command in started], ["up", "down"])
        claim = {"device": "cpu", "ranks": 4, "hosts": 2, "rate": "1gbit", "flags": ""}
        command = reproduce.command_of(claim, reproduce.parse_arguments([]), pathlib.Path("metrics"))
        self.assertEqual(command[1:6], ["run", "--prefix", reproduce.HOSTS_PREFIX, "--per-host", "2"])

    def test_every_row_of_readmes_speed_is_there(self) -> None:
        table = README.partition("## Speed")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| (?!work |---)([^|]*) \|", table, re.MULTILINE)
        self.assertGreaterEqual(len(rows), 8)
        claimed = {claim["words"] for claim in reproduce.load_claims()}
        for row in rows:
            self.assertIn(f"| {row} |", claimed)

    def test_cpu_claims_run(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder, "page.md")
            command = [sys.executable, ROOT / "benchmarks" / "reproduce", "--short", "--bin", BIN, "--out", out]
            run(command)
            page = out.read_text(encoding="utf-8")
        self.assertRegex(page, r"\| CNN, 2 CPU cores, fp32, batch 64 \| images_per_second \| 2,523 \| [0-9,.]+ \| short form")
        self.assertRegex(page, r"\| CNN, 8 GPUs, batch 8192 per GPU \| .*\| skipped \(")


RATE = re.compile(r"\d (?:[MK] )?(?:images|tokens|samples)/s|\d\.\d+ M\b")
COMMIT = re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{7,40}\b")
MONTHS = ("January February March April May June July August September October November December").split()
DAY = re.compile(rf"\b(\d{{1,2}})\s+({'|'.join(MONTHS)})\s+(\d{{4}})\b|\b(\d{{4}}-\d{{2}}-\d{{2}})\b(?!\.md)")
PAGE = re.compile(r"\]\((benchmarks/results/\S+?\.md)[)#]")


def days_in(text: str) -> set[str]:
    """As 2026-11-28, without those in names of files."""
    named = (f"{year}-{MONTHS.index(month) + 1:02}-{int(day):02}" for day, month, year, _ in DAY.findall(text) if day)
    return {*named, *(match[3] for match in DAY.findall(text) if match[3])}


def statements(section: str) -> list[str]:
    """Of rates: a table with the paragraph before it, an item of a list, or a paragraph."""
    made: list[str] = []
    for block in re.split(r"\n\s*\n", section):
        if block.lstrip().startswith("|") and made:
            made[-1] += "\n" + block
        else:
            made += re.split(r"\n(?=- )", block)
    return [statement for statement in made if RATE.search(statement)]


def faults_of_speed(readme: str) -> list[str]:
    """Every statement of a rate has one commit and one day, for all of its rows, and a page of results that has both."""
    faults = []
    for statement in statements(readme.partition("\n## Speed\n")[2].partition("\n## ")[0]):
        commits, days, pages = set(COMMIT.findall(PAGE.sub("", statement))), days_in(statement), PAGE.findall(statement)
        begin = " ".join(statement.split())[:60]
        if len(commits) != 1 or len(days) != 1 or len(pages) != 1:
            faults.append(f"{begin}: commits {sorted(commits)}, days {sorted(days)}, pages {pages}: there must be one of each")
            continue
        (commit,), (day,), (page,) = commits, days, pages
        if commit[:7] not in (ROOT / page).read_text(encoding="utf-8"):
            faults.append(f"{begin}: {page} does not name the commit {commit}")
        if day not in page:
            faults.append(f"{begin}: {page} is not of {day}")
    return faults


class SpeedTest(unittest.TestCase):
    def test_readmes_rates_are_of_one_commit_and_day_each(self) -> None:
        self.assertGreaterEqual(len(statements(README.partition("## Speed")[2])), 3)
        self.assertEqual(faults_of_speed(README), [])

    def test_rates_of_different_commits_or_days_are_refused(self) -> None:
        row = "| GPT-2 124M, bf16 | 638,500 tokens/s | 533,600 | 1.20 |"
        self.assertIn(row, README)
        caption = "(commit\nb602a5f3, 30 November 2026;"
        self.assertIn(caption, README)
        for text, changed, says in (
            (row, f"{row}\n| GPT-2 774M, 29 November 2026 | 1,000 tokens/s | | |", r"days \['2026-11-29', '2026-11-30'\]"),
            (row, f"{row}\n| GPT-2 774M (commit 2f7fc12d) | 1,000 tokens/s | | |", r"commits \['2f7fc12d', 'b602a5f3'\]"),
            (row, f"{row}\n| CNN ([runs](benchmarks/results/gpt-h200-2026-11-22.md)) | 1.1 M | | |", "gpt-h200-2026-11-22"),
            (caption, "(30 November 2026;", r"commits \[\]"),
            (caption, "(commit b602a5f3;", r"days \[\]"),
            (caption, "(commit c602a5f3, 30 November 2026;", "does not name the commit c602a5f3"),
            (caption, "(commit b602a5f3, 22 November 2026;", "is not of 2026-11-22"),
            ("- 4 H200: ", "- 4 H200, 2026-11-27: ", r"days \['2026-11-27', '2026-11-29'\]"),
            ("## Code, models", "Today 9.9 M images/s.\n\n## Code, models", r"Today .*commits \[\], days \[\], pages \[\]"),
        ):
            with self.subTest(changed):
                self.assertRegex(" ".join(faults_of_speed(README.replace(text, changed))), says)


class VerdictTest(unittest.TestCase):
    def verdict(self, measured, claim=CLAIM, device="NVIDIA H200", short=False) -> str:
        summaries = [{claim["field"]: value, "device_name": device} for value in measured]
        return reproduce.judge(RUN, claim, summaries, short).verdict

    def test_verdicts(self) -> None:
        self.assertEqual(self.verdict([1049.0]), reproduce.AGREES)
        self.assertEqual(self.verdict([1051.0]), reproduce.DIFFERS)
        self.assertEqual(self.verdict([900.0, 1010.0, 2000.0]), reproduce.AGREES)  # the median
        self.assertEqual(self.verdict([None]), reproduce.FAILED)
        self.assertEqual(self.verdict([float("nan")]), reproduce.FAILED)
        self.assertEqual(self.verdict([5.0], short=True), reproduce.SHORT)
        self.assertEqual(self.verdict([1000.0], device="NVIDIA A100"), reproduce.OTHER)
        points = {"field": "scaling_efficiency", "published": 0.931, "points": 1.5}
        self.assertEqual(self.verdict([0.945], points), reproduce.AGREES)
        self.assertEqual(self.verdict([0.95], points), reproduce.DIFFERS)
        name = {"field": "parameter_hash", "published": "ab"}
        self.assertEqual(self.verdict(["ab"], name), reproduce.AGREES)
        self.assertEqual(self.verdict(["ac"], name), reproduce.DIFFERS)
        accuracy = {"field": "accuracy", "published": 0.8741}
        self.assertEqual(self.verdict([0.87412], accuracy), reproduce.AGREES)
        self.assertEqual(self.verdict([0.8742], accuracy), reproduce.DIFFERS)

    def test_other_vector_instructions_are_another_machine(self) -> None:
        for flags, verdict in (("sse avx2 avx512f", reproduce.AGREES), ("sse avx2", reproduce.OTHER)):
            with mock.patch.object(reproduce.pathlib.Path, "read_text", return_value=f"flags : {flags}"):
                summaries = [{"images_per_second": 1000.0, "device_name": "NVIDIA H200"}]
                line = reproduce.judge(RUN | {"instructions": "AVX-512"}, CLAIM, summaries, False)
            self.assertEqual(line.verdict, verdict)

    def test_what_cannot_run_here(self) -> None:
        self.assertEqual(reproduce.why_not(RUN, 2, False, "python3"), "")
        self.assertEqual(reproduce.why_not(RUN, 1, False, "python3"), "needs 2 GPUs, here is 1")
        self.assertEqual(reproduce.why_not(RUN, 4, True, "python3"), "has no short form")
