"""The tools read files that people send each other. Whatever a file holds, a reader returns, or raises UsageError."""

import contextlib
import io
import json
import pathlib
import random
from collections.abc import Callable

from ddptools.common.errors import UsageError
from ddptools.common.files import read_records
from ddptools.common.values import grouped
from ddptools.page.render import to_html
from ddptools.plan import calibration
from ddptools.plan.measured import measured_runs
from ddptools.plan.prediction import predict
from ddptools.report.sweeps.answers import answers
from ddptools.report.sweeps.experiment import load
from ddptools.report.sweeps.lost_time import losses, lost_time_table, lost_time_words
from ddptools.report.sweeps.numerics import choices, numerics
from ddptools.report.sweeps.page import blocks_of
from ddptools.report.sweeps.tables import failures, tables
from ddptools.report.trace import spans
from ddptools.report.training import page, runs
from ddptools.results import description
from ddptools.results.run import bench_choices
from ddptools.sweep.folder import ResultFolder
from ddptools.sweep.program import runs_done
from ddptools.sweep.sweep_file import load_sweep
from tests.tools import support
from tests.tools.report.support import everything

SEED = 1
ODD_VALUES = ["null", "true", "-1", "0", "1e400", "-1e-400", "9" * 400, '""', '"x"', "[]", "{}", "[[]]", '{"a":[]}', "NaN"]
ODD_TOML = ["nan", "inf", "[]", "{}", "1979-05-27", '""', "-1", "[[1]]", "9" * 400, "true"]


def mutations(text: str, odd: list[str], count: int) -> list[str]:
    """Each with one to three changes: bytes, pieces cut out or put elsewhere, values replaced by values of other types."""
    source = random.Random(SEED)
    found = []
    for _ in range(count):
        mutated = text
        for _ in range(source.randint(1, 3)):
            at = source.randrange(len(mutated) + 1)
            end = min(len(mutated), at + source.choice([1, 1, 8, 200]))
            kind = source.randrange(5)
            if kind == 0:
                mutated = mutated[:at] + chr(source.choice([0, 10, 34, 44, 91, 123, 0x20AC, 0xD800])) + mutated[at + 1 :]
            elif kind == 1:
                mutated = mutated[:at] + mutated[end:]
            elif kind == 2:
                mutated = mutated[:at] + mutated[at:end] * source.choice([2, 50]) + mutated[end:]
            else:
                mutated = with_other_value(mutated, source, odd)
        found.append(mutated)
    return found


def with_other_value(text: str, source: random.Random, odd: list[str]) -> str:
    """Replaces what stands behind a colon or an equals sign, up to the next separator."""
    places = [i + 1 for i, c in enumerate(text) if c in ":="]
    if not places:
        return text
    begin = source.choice(places)
    ends = [i for i in (text.find(c, begin) for c in ",}]\n") if i >= 0]
    return text[:begin] + " " + source.choice(odd) + text[min(ends, default=len(text)) :]


class DamagedFilesTest(support.FolderCase):
    def check(self, name: str, text: str, read: Callable[[pathlib.Path], object], odd: list[str], count: int) -> None:
        path = self.folder / name
        refused = 0
        for i, mutated in enumerate([text, *mutations(text, odd, count)]):
            path.write_text(mutated, encoding="utf-8", errors="surrogatepass")
            try:
                with contextlib.redirect_stderr(io.StringIO()):
                    read(path)
            except UsageError as error:
                refused += 1
                self.assertGreater(i, 0, f"the undamaged file is refused: {error}")
                self.assertLess(len(str(error)), 2000)
            except Exception as error:
                raise AssertionError(f"{name}, mutation {i} of seed {SEED}: {mutated!r}") from error
        self.assertLess(refused, count, "every mutation is refused: they do not reach the reader")

    def results_text(self) -> str:
        """Two cases of each kind."""
        products = grouped((record["product"], record) for record in everything() if record["repeat"] == 0)
        return "".join(json.dumps(record) + "\n" for records in products.values() for record in records[:2])

    def test_results(self) -> None:
        def read(path: pathlib.Path) -> None:
            loaded = load([path.parent])
            for experiment in loaded.experiments:
                bench_choices(experiment.runs[-1].bench if experiment.runs else {})
                if found := losses(experiment):
                    lost_time_words(found), lost_time_table(found)
                for loss in found:  # others could not be drawn
                    self.assertGreater(loss.useful_seconds, 0)
                    self.assertLess(max(map(abs, loss.part_seconds.values())), 1e6 * loss.step_seconds)
                tables(experiment), answers(experiment), numerics(experiment), choices(experiment), failures(experiment)

        self.check("results.jsonl", self.results_text(), read, ODD_VALUES, 3000)

    def test_report_of_results(self) -> None:
        def read(path: pathlib.Path) -> None:
            to_html("t", blocks_of(load([path.parent])))

        self.check("results.jsonl", self.results_text(), read, ODD_VALUES, 40)

    def runs_text(self) -> str:
        """A run, and another one that was resumed."""
        folder = support.ROOT / "tests" / "tools" / "report"
        return "".join((folder / f"{name}_run.jsonl").read_text() for name in ("whole", "resumed"))

    def test_training_runs(self) -> None:
        def read(path: pathlib.Path) -> None:
            if runs.are_runs([path]):
                loaded = runs.load_runs([path])
                page.run_table(loaded), page.configuration_table(loaded), page.words(loaded)

        self.check("m.jsonl", self.runs_text(), read, ODD_VALUES, 1000)

    def test_pages_of_training_runs(self) -> None:
        def read(path: pathlib.Path) -> None:
            to_html("t", page.blocks_of_runs(runs.load_runs([path])))

        self.check("m.jsonl", self.runs_text(), read, ODD_VALUES, 8)

    def test_plans_of_results(self) -> None:
        (self.folder / "results.jsonl").write_text(self.results_text())
        plan = {"sweep": "made-up", "description": "d", "repeats": 2,
                "cases": [{"case": name, "product": "main"} for name in "abcd"]}
        self.check("plan.json", json.dumps(plan), lambda path: load([path.parent]), ODD_VALUES, 300)

    def test_resumed_results(self) -> None:
        def read(path: pathlib.Path) -> None:
            folder = ResultFolder(path.parent, "made-up", resume=True)
            try:
                runs_done(folder, retry_failed=True)
            finally:
                folder.close()

        self.check("results.jsonl", self.results_text(), read, ODD_VALUES, 2000)

    def test_calibration(self) -> None:
        def read(path: pathlib.Path) -> None:
            records = calibration.load_records(path)
            calibrated = calibration.calibrate(records)
            for run in measured_runs(records):
                predict(calibrated.network_of(run.case))
            calibration.check_one_machine((path, record) for record in records)

        self.check("results.jsonl", self.results_text(), read, ODD_VALUES, 1000)

    def test_descriptions(self) -> None:
        def read(path: pathlib.Path) -> None:
            for record in read_records(path):
                description.complete([record], pathlib.Path("/bin/false"))

        self.check("results.jsonl", self.results_text(), read, ODD_VALUES, 300)

    def test_traces(self) -> None:
        events = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "rank 0"}}]
        for lane, names in ((0, ("step", "forward", "backward")), (1, ("bucket 0",))):
            events += [{"ph": "X", "name": name, "pid": 0, "tid": lane, "ts": 10.0 * i, "dur": 5.0}
                       for i, name in enumerate(names)]
        text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})

        def read(path: pathlib.Path) -> None:
            timeline = spans.load_trace(path)
            spans.rank_table(timeline), spans.part_table(timeline)

        self.check("trace.json", text, read, ODD_VALUES, 2000)

    def test_sweeps(self) -> None:
        for name in ("scaling-cpu.toml", "node-layout-cpu.toml", "gradient-path.toml", "p2p-level-cpu.toml"):
            text = (support.ROOT / "configs" / "sweeps" / name).read_text()
            self.check(name, text, load_sweep, ODD_TOML, 500)

    def test_deeply_nested_files(self) -> None:
        """Deeper than Python's parsers go."""
        deep = "[" * 100_000
        for name, read in (("a.toml", load_sweep), ("a.json", spans.load_trace)):
            path = self.folder / name
            path.write_text("x = " * name.endswith("toml") + deep)
            with self.assertRaises(UsageError):
                read(path)
        path = self.folder / "results.jsonl"
        path.write_text(self.results_text() + deep)
        ResultFolder(self.folder, "made-up", resume=True).close()
        self.assertEqual(path.read_text(), f"{self.results_text()}{deep}\n")
