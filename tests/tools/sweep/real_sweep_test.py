"""Two of the sweeps that come with the program, run for real on the CPU, and their report."""

import json
import pathlib
import unittest

from ddptools.common.mpirun import HYDRA, find_mpirun
from tests.tools.report.support import run_report
from tests.tools.support import BIN, ROOT, FolderCase, run_tool

SHORT = "--repeats 1 --timeout 400 --set steps=6 --set log-every=2 --set data=synthetic:512 --set batch=16".split()


class RealSweepTest(FolderCase):
    def sweep(self, name: str) -> list[dict]:
        return self.records(0, ROOT / f"configs/sweeps/{name}.toml", name, *SHORT)

    def records(self, code: int, file: pathlib.Path, name: str, *options: str) -> list[dict]:
        out = self.folder / name
        run_tool("ddpsweep", file, "--out", out, "--bin", BIN, *options, cwd=self.folder, code=code)
        return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]

    @unittest.skipIf(find_mpirun() is HYDRA, "nodes are emulated with Open MPI only")
    def test_overlap_and_layout(self) -> None:
        ablation = {r["settings"]["overlap"]: r["summary"] for r in self.sweep("overlap-ablation-cpu")}
        self.assertEqual(set(ablation), {"none", "off", "on"})
        self.assertEqual(ablation["off"]["parameter_hash"], ablation["on"]["parameter_hash"])
        self.assertNotEqual(ablation["none"]["parameter_hash"], ablation["on"]["parameter_hash"])
        layouts = {r["settings"]["layout"]: r for r in self.sweep("node-layout-cpu")}
        self.assertEqual({name: r["emulated"] for name, r in layouts.items()}, {"1x2": False, "2x1": True})
        self.assertEqual(layouts["2x1"]["environment"]["OMPI_MCA_btl"], "self,tcp")
        self.assertEqual({r["summary"]["world_size"] for r in layouts.values()}, {2})
        sources = [self.folder / "overlap-ablation-cpu", self.folder / "node-layout-cpu"]
        run_report(*sources, "--out", self.folder / "r.html", "--md", self.folder / "r.md")
        markdown = (self.folder / "r.md").read_text()
        self.assertIn("Without any all-reduce", markdown)
        self.assertIn("waiting for communication, ms | contention, ms | stragglers, ms | efficiency |", markdown)
        self.assertIn("| 2x1 emulated |", markdown)
        self.assertIn("All 2 settings end with the same parameters, bit by bit.", markdown)

    def test_a_run_that_diverges_is_recorded_as_failed(self) -> None:
        (self.folder / "lr.toml").write_text(
            'repeats = 1\n[[product]]\nranks = 1\ndevice = "cpu"\n'
            'data = "synthetic:512"\nbatch = 16\nsteps = 12\nbaseline = "off"\nlr = [0.001, 1e30]\n'
        )
        by_rate = {made["settings"]["lr"]: made for made in self.records(1, self.folder / "lr.toml", "lr")}
        self.assertEqual(by_rate[0.001]["status"], "ok", by_rate[0.001])
        diverged = by_rate[1e30]
        self.assertEqual((diverged["status"], diverged["exit_code"]), ("failed", 1))
        self.assertIn("is NaN or infinite", diverged["reason"])
        self.assertNotIn("summary", diverged)
