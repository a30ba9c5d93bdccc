"""The planner asked about runs of more ranks than it was fitted on."""

import json
import re
import sys
import tempfile
import unittest
from typing import Any

from ddptools.common.errors import UsageError
from ddptools.common.table import to_text
from ddptools.plan import program
from ddptools.plan.out_of_sample import out_of_sample, out_of_sample_table
from ddptools.plan.prediction import Case, NetworkFit, predict
from ddptools.results.description import parsed
from tests.tools.support import BIN, ROOT, cnn_description, run, run_tool

PAGE = ROOT / "docs" / "concepts" / "planning.md"
FIT = NetworkFit(per_rank_us=1.2, busbw_gbs=60.0, base_us=6.6)  # with NCCL's latencies: what one size leaves open
PEAK_PER_SECOND = 4e6  # samples/s of one rank


def made(ranks: int, batch: int = 512, slower: float = 1.0, **settings: Any) -> dict[str, Any]:
    """A run as the planner's own model has it, without overlap; `slower`: by what its step is longer."""
    work = parsed(cnn_description(batch_per_rank=batch))
    case = Case(work, batch, work.flop * PEAK_PER_SECOND / 1e12, ranks, overlap=False, intra_fit=FIT)
    told = predict(case)
    summary = {"event": "summary", "world_size": ranks, "nodes": 1, "batch_per_rank": batch, "grad_accum": 1,
               "images_per_second": told.samples_per_second / slower, "baseline_per_second": PEAK_PER_SECOND,
               "communication_seconds": told.communication_seconds, "description": cnn_description()}  # fmt: skip
    return {"summary": summary, "settings": {"ranks": ranks, "overlap": "off"} | settings}


class OutOfSampleTest(unittest.TestCase):
    def test_what_the_model_made_it_finds_again_without_a_look(self) -> None:
        four, eight = out_of_sample([made(1), made(2), made(4), made(8, slower=1.1)], 2)
        self.assertEqual((four.ranks, eight.ranks), (4, 8))
        self.assertAlmostEqual(four.error, 0.0, places=4)
        self.assertAlmostEqual(eight.error, 0.1, places=4)
        self.assertAlmostEqual(four.lossless_per_second, 4 * PEAK_PER_SECOND)
        self.assertGreater(four.lossless_error, 0.2)
        seen = out_of_sample([made(2), made(4)], 2)[0].predicted_per_second
        other = made(4, slower=3.0)
        other["summary"] |= {"baseline_per_second": 1.0, "communication_seconds": 1.0}
        self.assertEqual(out_of_sample([made(2), other], 2)[0].predicted_per_second, seen)

    def test_other_settings_are_another_kind(self) -> None:
        found = out_of_sample([made(2, NCCL_ALGO="Tree"), made(4, NCCL_ALGO="Tree"), made(2), made(8)], 2)
        self.assertEqual([dict(one.settings)["overlap"] for one in found], ["off", "off"])
        self.assertEqual([one.ranks for one in found], [4, 8])
        text = to_text(out_of_sample_table(found, 2))
        self.assertNotIn("overlap", text)  # the same in all

    def test_medians_of_runs(self) -> None:
        (one,) = out_of_sample([made(2), *(made(4, slower=factor) for factor in (1.0, 1.25, 2.0))], 2)
        self.assertEqual(one.runs, 3)
        self.assertAlmostEqual(one.error, 0.25, places=4)
        self.assertIn("ddpplan: off by 25.0% in the median, 25.0% at most\n", to_text(out_of_sample_table([one], 2)))

    def test_what_cannot_be_asked(self) -> None:
        for records in ([made(1), made(4)], [made(2)], [made(4)], [], [made(2), made(4, NCCL_ALGO="Tree")],
                        [made(2), made(4, batch=256)], [made(2), made(4, overlap="none")]):  # fmt: skip
            with self.assertRaisesRegex(UsageError, "^--fit-ranks 2: there is no run of more ranks beside runs of 2 ranks"):
                out_of_sample(records, 2)

    def test_old_runs_need_the_program_that_describes_them(self) -> None:
        """Before ddptrain is built."""
        old = ROOT / "benchmarks" / "results" / "sweeps-1-and-2-h200-2026-11-21" / "batch-size"
        with tempfile.TemporaryDirectory() as empty:
            for mode in (["--fit-ranks", "2"], ["--params", "1M", "--nodes", "1"]):
                done = run_tool("ddpplan", *mode, "--calibrate", old, "--bin", empty, code=2)
                self.assertRegex(done.stderr, f"^ddpplan: {empty}/ddptrain is missing; .* Build it, or give --bin DIR\n$")
        with self.assertRaisesRegex(UsageError, "--fit-ranks"):
            program.parse(["--fit-ranks", "1", "--calibrate", "x"])

    @unittest.skipUnless((BIN / "ddptrain").exists(), "no ddptrain, which describes the committed runs")
    def test_the_documentation_has_the_last_lines_that_the_command_prints(self) -> None:
        command, last = re.search(r"```bash\n(build/bin/ddpplan .*?)```\n.*?```text\n(.*?)```", PAGE.read_text(), re.S).groups()
        self.assertIn("--fit-ranks 2", command)
        script = command.replace("build/bin/ddpplan", f"{sys.executable} launch/ddpplan --bin {BIN}")
        done = run(["bash", "-c", script], cwd=ROOT)
        self.assertEqual(done.stderr, "")
        self.assertEqual(done.stdout.splitlines()[-2:], last.splitlines())
