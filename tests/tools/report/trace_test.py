import contextlib
import io
import json
import math
import pathlib
import random
import unittest
import xml.etree.ElementTree
from typing import Any

from ddptools.common.errors import UsageError
from ddptools.common.values import grouped
from ddptools.report.program import main
from ddptools.report.trace.picture import COLORS, bars_of, kind_of, timeline
from ddptools.report.trace.spans import (
    Span,
    covered,
    length_us,
    load_trace,
    nested,
    part_table,
    rank_table,
    rank_times,
)
from tests.tools.report.support import run_report
from tests.tools.support import FolderCase

# Of a step: backward's span lasts into the last bucket, as on a GPU, where that one is on the compute stream.
SPANS = json.loads(pathlib.Path(__file__).with_name("step_spans.json").read_text())
COMPUTE, COMMUNICATION = SPANS["compute"], SPANS["communication"]  # name, begin and end in microseconds


def event(name: str, rank: int, lane: int, begin: float, end: float) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": rank, "tid": lane, "ts": begin, "dur": end - begin}


def events(slow: float = 2.0) -> list[dict[str, Any]]:
    """Two ranks and two steps; rank 1 takes `slow` times as long for everything."""
    made: list[dict[str, Any]] = []
    for rank, factor in ((0, 1.0), (1, slow)):
        made.append({"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": f"rank {rank} (h)"}})
        made.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": 1, "args": {"name": "communication"}})
        for step in range(2):
            for lane, spans in enumerate((COMPUTE, COMMUNICATION)):
                for name, begin, end in spans:
                    times = factor * (100 * step + begin), factor * (100 * step + end)
                    made.append(event(name.format(step), rank, lane, *times))
    return made


# On CPUs of several hosts: the buckets of the step before arrive in forward, which waits for them.
WAITING = json.loads(pathlib.Path(__file__).with_name("waiting_trace.json").read_text())


def span(name: str, begin: float, end: float) -> Span:
    return Span(name, begin, end)


class TraceCase(FolderCase):
    def setUp(self) -> None:
        super().setUp()
        self.file = self.folder / "trace.json"

    def load(self, made: Any) -> list:
        self.file.write_text(json.dumps(made))
        return load_trace(self.file)

    def svg(self, made: list[dict[str, Any]], *options: Any) -> str:
        self.file.write_text(json.dumps({"traceEvents": made}))
        self.assertEqual(run_report("--trace", self.file, "--out", self.folder / "t.svg", *options).stderr, "")
        text = (self.folder / "t.svg").read_text()
        xml.etree.ElementTree.fromstring(text)
        return text


class IntervalTest(unittest.TestCase):
    def test_against_counting(self) -> None:
        rng = random.Random(3)
        for _ in range(200):
            rows = []
            for _ in range(3):
                begins = [rng.randrange(-20, 50) for _ in range(rng.randrange(6))]
                rows.append([span("s", b, b + rng.randrange(20)) for b in begins])
            inside = (rng.randrange(-20, 30), rng.randrange(30, 70))
            a, b, c = ({t for s in row for t in range(int(s.begin_us), int(s.end_us)) if inside[0] <= t < inside[1]}
                       for row in rows)  # fmt: skip
            found = covered(inside, *rows[:2], free_of=rows[2])
            self.assertEqual(length_us(found), len(a & b - c))
            self.assertTrue(all(end < begin for (_, end), (begin, _) in zip(found, found[1:])), found)


class NestingTest(unittest.TestCase):
    def levels(self, spans: list[Span]) -> dict[str, int]:
        return {s.name: s.level for s in nested(spans)}

    def test_levels(self) -> None:
        spans = [span(name, begin, end) for name, begin, end in COMPUTE if "update" not in name]
        levels = self.levels(spans[::-1])
        self.assertEqual(list(levels.values()), [0, 1, 2, 2, 1, 2, 3, 2])
        by_name = {s.name: s for s in spans}
        self.assertEqual(by_name["d attention"].parent, by_name["h.1 backward"])
        self.assertEqual(by_name["backward"].within_us, 59)
        levels = self.levels([span("a", 0, 10), span("b", 5, 15), span("in b", 11, 14), span("c", 15.2, 20)])
        self.assertEqual(levels, {"a": 0, "b": 1, "in b": 2, "c": 0})

    def test_kinds(self) -> None:
        spans = nested([span("step 0", 0, 99), span("forward", 0, 9), span("attention", 1, 2), span("backward", 10, 30),
                        span("h.0 forward", 11, 15), span("attention", 12, 13), span("norm", 16, 18),
                        span("clip", 40, 41), span("wait for bucket 1", 3, 4)])  # fmt: skip
        kinds = ["step", "forward", "forward", "waiting", "backward", "forward", "forward", "backward", "other compute"]
        self.assertEqual([kind_of(s) for s in spans], kinds)


class TimesTest(TraceCase):
    def test_communication_beside_compute(self) -> None:
        for made in (events(), {"traceEvents": events()}, events()[::-1]):
            times = [rank_times(trace) for trace in self.load(made)]
            for rank, factor in enumerate((1, 2)):
                self.assertEqual((times[rank].rank, times[rank].steps), (rank, 2))
                self.assertAlmostEqual(times[rank].step_us, 100 * factor)
                self.assertAlmostEqual(times[rank].communication_us, 42 * factor)
                self.assertAlmostEqual(times[rank].hidden_us, 25 * factor)  # nothing is hidden once the last bucket is off

    def test_communication_beside_a_wait_is_exposed(self) -> None:
        (trace,) = self.load(WAITING)
        times = rank_times(trace)
        self.assertEqual((times.communication_us, times.hidden_us), (70, 30))

    def test_exchanges_of_a_replica_are_communication(self) -> None:
        (trace,) = self.load([event("step 0", 0, 0, 0, 100), event("forward", 0, 0, 0, 40), event("backward", 0, 0, 40, 100),
                              event("exchange with stages", 0, 0, 30, 40), event("bucket 0 gradients", 0, 1, 35, 50),
                              event("exchange of split layers", 0, 1, 60, 80)])  # fmt: skip
        times = rank_times(trace)
        self.assertEqual((times.communication_us, times.hidden_us), (40, 30))  # backward goes on until 100
        self.assertIn(["exchange with stages", "communication"], [row[:2] for row in part_table([trace]).rows])
        self.assertEqual(kind_of(trace.compute[2]), "communication, exposed")

    def test_communication_in_several_threads(self) -> None:
        (trace,) = self.load([event("step 0", 0, 0, 0, 100), event("forward", 0, 0, 0, 100), event("bucket 0", 0, 1, 10, 50),
                              event("exchange of split layers", 0, 2, 40, 80)])  # fmt: skip
        self.assertEqual(rank_times(trace).communication_us, 70)
        self.assertEqual([span.name for span in trace.communication], ["bucket 0", "exchange of split layers"])

    def test_no_steps_and_no_communication(self) -> None:
        (trace,) = self.load([event("forward", 3, 0, 5, 10), event("backward", 3, 0, 10, 30)])
        times = rank_times(trace)
        self.assertEqual((times.rank, times.steps, times.step_us, times.communication_us), (3, 1, 25, 0))
        self.assertEqual(rank_table([trace]).rows[0][-1], "n/a")

    def test_longest_parts(self) -> None:
        rows = part_table(self.load(events())).rows
        self.assertEqual(rows[0], ["bucket N gradients", "communication", "2", "63", "42.0%", "84 (rank 1)"])
        by_name = {row[0]: row for row in rows}
        self.assertEqual(by_name["h.N forward"][2:4], ["2", "45"])
        self.assertEqual(by_name["h.N weight gradients"][3], "27")  # until the last bucket starts
        self.assertEqual(by_name["backward, outside its parts"][3], "0")
        self.assertNotIn("forward", by_name)  # all of it is within its layers
        self.assertEqual(by_name["bucket N update"][1:4], ["update", "2", "7.5"])

    def test_an_update_of_all_buckets_is_in_the_row_of_updates(self) -> None:
        (trace,) = self.load([event("backward", 0, 0, 0, 80), event("update of all buckets", 0, 0, 80, 100)])
        self.assertEqual([span.name for span in trace.rows["update"]], ["update of all buckets"])
        self.assertIn(["update of all buckets", "update", "1", "20"], [row[:4] for row in part_table([trace]).rows])


class PictureTest(TraceCase):
    def test_rows_and_legend(self) -> None:
        svg = self.svg(events())
        for text in ("rank 0 (h)  compute", "rank 1 (h)  compute", "update", "communication", "us", "step", "backward",
                     "communication, exposed"):  # fmt: skip
            self.assertIn(f">{text}</text>", svg)
        self.assertNotIn(">other compute</text>", svg)
        self.assertGreater(svg.count(COLORS["communication, hidden"]), 2)

    def test_backward_ends_where_the_last_bucket_starts_and_waits_are_no_compute(self) -> None:
        def drawn(made: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
            rows = [row for _, row in bars_of(self.load(made)[0])]
            bars = grouped((kind, bar) for row in rows for kind, bars in row.items() for bar in bars)
            return {kind: sorted(of_kind) for kind, of_kind in bars.items()}

        bars = drawn(events())
        self.assertEqual(bars["backward"], [(30, 60), (30, 78), (32, 52), (60, 78), (130, 160), (130, 178), (132, 152),
                                            (160, 178)])  # fmt: skip
        self.assertEqual([bar for bar in bars["communication, exposed"] if bar[0] % 100 == 78], [(78, 95), (178, 195)])
        self.assertEqual(bars["communication, hidden"], [(50, 75), (150, 175)])
        bars = drawn(WAITING)
        self.assertEqual(bars["waiting"], [(10, 30), (50, 55)])
        self.assertEqual(bars["communication, hidden"], [(0, 10), (0, 10), (30, 50)])

    def test_one_step(self) -> None:
        both, one = (self.svg(events(slow=1.0), *options) for options in ([], ["--step", "1"]))
        self.assertEqual([text.count(f"fill: {COLORS['forward']}") for text in (both, one)], [13, 7])  # with the legend

    def test_tables_and_png(self) -> None:
        self.file.write_text(json.dumps(events()))
        done = run_report("--trace", self.file, "--out", self.folder / "t.png")
        self.assertTrue((self.folder / "t.png").read_bytes().startswith(b"\x89PNG"))
        self.assertRegex(done.stdout, r"1 +2 +200\.0 +84 +42\.0% +59\.5%")
        self.assertIn("2 of 2 ranks", done.stdout)
        run_report("--trace", self.file)
        self.assertEqual(len(list(self.folder.iterdir())), 2)

    def test_odd_names_and_times(self) -> None:
        odd = ["$x^{$", "\ud800", "a\u0000b\n<b>&", "", "x" * 10_000, "step 1", "bucket 7 update", "bucket 9 gradients"]
        shown = {"$x^{$", "?", "a?b?<b>&", "(no name)", "x" * 60, "step 1", "bucket 7 update", "bucket 9 gradients"}
        for begin, end in ((0, 0), (1e15, 1.5e15), (-4e14, 4e14), (1e-9, 2e-9)):
            made = [event(name, rank, lane, begin, end) for name in odd for rank in (0, 7) for lane in (0, 1)]
            traces = self.load(made)
            self.assertEqual([trace.rank for trace in traces], [0, 7])
            for trace in traces:
                self.assertEqual({span.name for row in trace.rows.values() for span in row}, shown)
                self.assertEqual(rank_times(trace).step_us, end - begin)  # of the span "step 1"
            self.assertEqual([row[0] for row in rank_table(traces).rows], ["0", "7"])
            parts = [row[0] for row in part_table(traces).rows]
            self.assertIn("bucket N gradients", parts)
            self.assertTrue(any(part.startswith("a?b?<b>&") for part in parts), parts)
            picture = timeline(traces, (begin, max(end, begin + 1e-3)), "svg")
            xml.etree.ElementTree.fromstring(picture)
            for rank in (0, 7):
                self.assertIn(f">rank {rank}  compute</text>", picture if isinstance(picture, str) else picture.decode())


class DamagedTest(TraceCase):
    def refused(self, *options: Any) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as out, self.assertRaises(UsageError) as raised:
            main(list(map(str, options)))
        self.assertEqual(out.getvalue(), "")
        return str(raised.exception)

    def test_files(self) -> None:
        good = json.dumps({"traceEvents": events()})
        none = "no JSON with traceEvents, or cut off"
        for text, told in (("", none), (good[: len(good) // 2], none), ("{}", none), ("3", none), ("[]", "no spans"),
                           ('{"traceEvents": {}}', none), ("[" * 100_000, none), ("\x00", none),
                           ('[{}, {"ph": "X"}]', "event 1 is none of ddptrain"), (json.dumps([event("a", 0, -1, 0, 1)]), "event 0 is"),
                           (json.dumps([event("a", 0, 0, 1, 0)]), "event 0 is"),
                           (json.dumps([event("a", 0, 0, 0, math.nan)]), "event 0 is"),
                           (json.dumps([event("a", -1, 0, 0, 1)]), "event 0 is")):  # fmt: skip
            self.file.write_text(text)
            message = self.refused("--trace", self.file, "--out", self.folder / "t.svg")
            self.assertIn(told, message)
            self.assertIn("trace.json", message)
        self.assertFalse((self.folder / "t.svg").exists())

    def test_options(self) -> None:
        self.file.write_text(json.dumps(events()))
        for told, options in (("results", []), ("--trace", [self.folder, "--step", 1]),
                              ("steps 0 to 1", ["--trace", self.file, "--step", 2]),
                              ("steps 0 to 1", ["--trace", self.file, "--step", -1]),
                              (".svg or .png", ["--trace", self.file, "--out", self.folder / "t.pdf"]),
                              ("stand alone", ["--trace", self.file, self.folder]),
                              ("stand alone", ["--trace", self.file, "--md", self.folder / "t.md"]),
                              ("stand alone", ["--flight", self.folder, "--md", self.folder / "t.md"])):  # fmt: skip
            self.assertIn(told, self.refused(*options))
