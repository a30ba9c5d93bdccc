"""Tests of launch/completion.sh, with the programs of a build folder."""

import os
import shutil
import subprocess
import unittest

from tests.tools.support import BIN, ROOT

COMPLETION = ROOT / "launch" / "completion.sh"
BASH = """
source {completion}
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_ddptrain_complete "${{COMP_WORDS[0]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(*words: str) -> list[str]:
    """What bash offers for the last word."""
    program = BIN / words[0]
    quoted = " ".join(f"'{word}'" for word in (str(program), *words[1:]))
    script = BASH.format(completion=COMPLETION, words=quoted)
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=400)
    return result.stdout.split()


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
