"""Tests of launch/completion.sh, with the programs of a build folder."""

import os
import pathlib
import shutil
import subprocess
import unittest

from tests.tools.support import BIN, ROOT, run

COMPLETION = ROOT / "launch" / "completion.sh"


def completed(program: str, *words: str) -> list[str]:
    """What bash offers for the last word."""
    script = pathlib.Path(__file__).with_name("completed.bash")
    return run(["bash", script, COMPLETION, BIN / program, *words]).stdout.split()


class CompletionTest(unittest.TestCase):
    def test_what_bash_offers(self) -> None:
        self.assertEqual(completed("ddptrain", "--bat"), ["--batch"])
        self.assertEqual(completed("ddptrain", "--checkpoint-"), ["--checkpoint-every"])
        self.assertIn("--layers", completed("ddptrain", "--"))
        self.assertEqual(completed("ddptrain", "--bucket"), ["--bucket-mb"])
        self.assertEqual(completed("ddptrain", "--hid"), ["--hidden"])
        self.assertEqual(completed("ddpplan", "--gpus"), ["--gpus-per-node"])
        self.assertEqual(completed("ddptopo", "--pa"), ["--parse"])
        self.assertEqual(completed("ddptrain", "--device", "c"), ["cpu", "cuda"])
        self.assertEqual(completed("ddptrain", "--model", "g"), ["gpt"])
        self.assertEqual(completed("ddptrain", "--help", "g"), ["gpt"])
        self.assertEqual(completed("ddptrain", "--device", "=", "cu"), ["cuda"])
        self.assertEqual(completed("ddpplan", "--gradients", ""), ["bf16", "fp32"])
        self.assertEqual(completed("ddptrain", "--metrics", "x"), [])  # bash then offers files
        self.assertEqual(completed("ddpbench", "ge"), ["gemm"])
        self.assertEqual(completed("ddpbench", "gemm", "--cu"), ["--cube"])
        self.assertEqual(completed("ddpbench", "step", "--grad"), ["--grad-accum"])
        self.assertEqual(completed("supervise", "--re"), ["--restarts"])
        self.assertEqual(completed("supervise", "--restarts", "3", "mpirun", "--re"), [])

    @unittest.skipUnless(shutil.which("zsh"), "no zsh here")
    def test_zsh_takes_the_file(self) -> None:
        script = f"source {COMPLETION} && print -r -- ${{_comps[ddptrain]}} ${{_comps[supervise]}}"
        result = subprocess.run(["zsh", "-fc", script], capture_output=True, text=True, timeout=400, env=os.environ)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(result.stdout.count("_ddptrain_complete"), 2, result.stdout)
