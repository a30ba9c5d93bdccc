"""What the tests of ddpreport share: made-up results of every kind, and the program."""

import contextlib
import io
import os
import re
import subprocess
from typing import Any

from ddptools.report.program import main
from ddptools.report.sweeps.answers import answers
from ddptools.report.sweeps.experiment import load
from tests.tools.support import ROOT, FolderCase, cnn_description, record, run_tool, write_results

os.environ.pop("MPLBACKEND", None)  # what the user draws with is no part of a test

RING = {"algorithm": "Ring", "protocol": "LL128", "channels": 24, "transport": "P2P/CUMEM", "version": "2.28.3"}
TREE = RING | {"algorithm": "Tree"}


def runs(case: str, rates: list[float], settings: dict[str, Any], **changes: Any) -> list[dict[str, Any]]:
    return [record(case, i, rate, settings, **changes) for i, rate in enumerate(rates)]


def over(name: str, rates: dict[Any, list[float]], **changes: Any) -> list[dict[str, Any]]:
    """A case for each value of a setting; `changes` to the records."""
    return [made for value, of_case in rates.items()
            for made in runs(f"{name}-{value}", of_case, {"ranks": 2, name: value}, **changes)]  # fmt: skip


def algo(value: str, rates: list[float], **changes: Any) -> list[dict[str, Any]]:
    settings = {"ranks": 4, "layout": "", "gpus": "all", "batch": 512, "NCCL_ALGO": value}
    return runs(f"algo-{value}", rates, settings, **changes)


def run_report(*arguments: Any, **settings: Any) -> subprocess.CompletedProcess:
    return run_tool("ddpreport", *arguments, **settings)


def undocumented_columns(row: dict[str, str]) -> list[str]:
    """Of a file of ddpreport --csv, those that docs/reference/results.md does not name."""
    page = (ROOT / "docs" / "reference" / "results.md").read_text()
    names = [re.sub("_(min|max)$", "", name) for name in row if not name.startswith("settings.")]
    return [name for name in names if f"`{name}`" not in page]


def everything() -> list[dict[str, Any]]:
    """An experiment of each kind."""
    records = []
    for ranks in (1, 2, 4):
        for batch in (64, 512):
            summary = {
                "step_seconds": 1e-3,
                "step_seconds_without_communication": 9e-4,
                "step_seconds_without_communication_mean": 8.5e-4,
                "scaling_efficiency": 0.8,
                "exposed_comm_fraction": 0.3,
                "world_size": ranks,
                "batch_per_rank": batch,
                "baseline_per_second": 600.0,
                "communication_seconds": 4e-4,
                "description": cnn_description(),
                "parameter_hash": "ab",
                "topology": "NV18",
                "nccl": RING,
                "mfu": None,
            }
            settings = {"ranks": ranks, "batch": batch}
            rates = [ranks * 90 + batch, ranks * 95 + batch]
            records += runs(f"w{ranks}-{batch}", rates, settings, product="weak", summary=summary)
    for algorithm in ("", "Ring", "Tree"):
        for protocol in ("", "LL", "Simple"):
            settings = {"ranks": 4, "NCCL_ALGO": algorithm, "NCCL_PROTO": protocol}
            rates = [100 + 10 * len(algorithm) + len(protocol)] if protocol != "LL" else [None]
            records += runs(f"g{algorithm}{protocol}", rates, settings, product="grid")
        rows = [{"bytes": 2**e, "in_place": True, "busbw_gbs": e * 1.5, "time_us": 1.0} for e in range(10, 30)]
        bench = {"benchmark": "allreduce", "ranks": 4, "results": rows}
        settings = {"ranks": 4, "NCCL_ALGO": algorithm}
        records.append(record(f"b{algorithm}", 0, 1.0, settings, product="bench", summary={}, bench=bench))
        records[-1]["summary"] = None
    for layout in ("1x4", "2x2"):
        lost = {"step_seconds": 1e-3, "scaling_efficiency": 0.7, "step_seconds_without_communication": 9e-4}
        lost |= {"step_seconds_without_communication_mean": 8.5e-4}
        lost |= {"step_seconds_without_communication_per_rank": [8.5e-4, 8.4e-4, 8.9e-4, 8.2e-4]}
        settings = {"ranks": 4, "layout": layout, "note": "<script>alert(1)</script>|`x`"}
        records += runs(layout, [5, 6], settings, product="layouts", summary=lost, emulated=layout == "2x2")
    for bucket in (1, 4, 25):
        records += runs(f"k{bucket}", [5, 6], {"ranks": 4, "bucket-mb": bucket}, product="buckets")
    return records


class ReportCase(FolderCase):
    def experiment(self, records: list[dict[str, Any]]):
        experiments = load([write_results(self.folder / "results", records)]).experiments
        self.assertEqual(len(experiments), 1)
        return experiments[0]

    def report(self, *arguments: Any) -> str:
        """Of these folders, as Markdown; as HTML in self.page. What was said is in self.said_of_files."""
        out, md = self.folder / "r.html", self.folder / "r.md"
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
            self.assertEqual(main(list(map(str, [*arguments, "--out", out, "--md", md]))), 0)
        self.said_of_files, self.page = errors.getvalue(), out.read_text()
        return md.read_text()

    def report_of(self, records: list[dict[str, Any]], *options: Any) -> str:
        return self.report(write_results(self.folder / "results", records), *options)

    def words(self, records: list[dict[str, Any]]) -> str:
        return self.said(self.experiment(records))

    def said(self, experiment) -> str:
        return "\n".join(answer.sentence for answer in answers(experiment))
