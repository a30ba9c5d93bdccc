"""Two of the sweeps that come with the program and one that diverges, run for real on the CPU, and their report."""

import unittest

from ddptools.common.mpirun import HYDRA, find_mpirun
from tests.tools.report.support import run_report
from tests.tools.support import BIN, ROOT, FolderCase, run_tool

SHORT = ["--repeats=1", "--timeout=400", "--set=steps=6", "--set=log-every=2", "--set=data=synthetic:512", "--set=batch=16",
         "--set=calibration-seconds=1"]  # fmt: skip


class RealSweepTest(FolderCase):
    def sweep(self, name: str) -> list[dict]:
        file, out = ROOT / f"configs/sweeps/{name}.toml", self.folder / name
        run_tool("ddpsweep", file, "--out", out, "--bin", BIN, *SHORT, cwd=self.folder)
        return self.lines(f"{name}/results.jsonl")

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
        # Of the layouts, and of overlap, because the descriptions in the summaries say that it decides no parameters.
        self.assertEqual(markdown.count("All 2 settings end with the same parameters, bit by bit."), 2)

    def test_a_run_that_diverges_is_marked(self) -> None:
        file, out = self.folder / "lr.toml", self.folder / "lr"
        file.write_text('repeats = 1\n[[product]]\nranks = 1\ndevice = "cpu"\ndata = "synthetic:512"\nbatch = 16\n'
                        'steps = 12\nbaseline = "off"\nlr = [0.001, 1e30]\n')  # fmt: skip
        run_tool("ddpsweep", file, "--out", out, "--bin", BIN, cwd=self.folder, code=1)
        well, diverged = sorted(self.lines("lr/results.jsonl"), key=lambda made: made["settings"]["lr"])
        self.assertEqual((well["status"], diverged["status"], diverged["exit_code"]), ("ok", "failed", 1))
        self.assertIn("is NaN or infinite", diverged["reason"])
        self.assertNotIn("summary", diverged)
