"""What the programs say of themselves: --help, its width and its examples, and launch/completion.sh."""

import os
import pathlib
import re
import shutil
import subprocess
import unittest

from tests.tools.support import AS_ROOT, BIN, ROOT, FolderCase, run, run_ranks

COMPLETION = ROOT / "launch" / "completion.sh"
BENCHMARKS = ("p2p", "allreduce", "split", "overlap", "gemm", "memory", "doctor", "step")
COLUMNS = 100
# Short runs on the CPU, whatever the example asks for.
CNN = ["--device", "cpu", "--data", "synthetic:64", "--batch", "8", "--steps", "4", "--baseline", "off"]
CHECKPOINTS = ["--checkpoint-every", "2"]
GPT = ["--device", "cpu", "--batch", "2", "--steps", "2", "--baseline", "off"]


def help_of(program: str, *command: str) -> str:
    return run([BIN / program, *command], env=os.environ | AS_ROOT | {"COLUMNS": "300"}).stdout


class HelpTest(unittest.TestCase):
    def test_lines_are_short(self) -> None:
        for command in (("ddptopo",), ("ddpbench",), *(("ddpbench", name) for name in BENCHMARKS)):
            with self.subTest(command=command):
                lines = help_of(*command, "--help").splitlines()
                self.assertTrue(lines)
                self.assertEqual([line for line in lines if len(line) > COLUMNS], [])


class ExamplesTest(FolderCase):
    def test_examples_run(self) -> None:
        text = help_of("ddptrain", "--help").partition("\nExamples:\n")[2]
        examples = re.findall(r"(?m)^    mpirun -np \d+ --bind-to none ddptrain (.*)$", text)
        self.assertEqual(len(examples), 4, text)
        self.assertEqual(len(re.findall(r"(?m)^    ", text)), 4, text)
        (self.folder / "configs").symlink_to(ROOT / "configs")
        (self.folder / "text.txt").write_text("To be, or not to be, that is the question. " * 400)
        for example in examples:
            with self.subTest(example=example):
                short = GPT if "gpt" in example else [*CNN, *(CHECKPOINTS if "--checkpoint" in example else [])]
                run_ranks(2, *example.split(), *short, cwd=self.folder)
        self.assertTrue(list(self.folder.glob("run1/step-*")))


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
        self.assertEqual(completed("ddpbench", "broad"), ["broadcast"])
        self.assertEqual(completed("ddpbench", "broadcast", "--stepb"), ["--stepbytes"])
        self.assertEqual(completed("ddpbench", "step", "--grad"), ["--grad-accum"])
        self.assertEqual(completed("supervise", "--re"), ["--restarts"])
        self.assertEqual(completed("supervise", "--restarts", "3", "mpirun", "--re"), [])

    @unittest.skipUnless(shutil.which("zsh"), "no zsh here")
    def test_zsh_takes_the_file(self) -> None:
        script = f"source {COMPLETION} && print -r -- ${{_comps[ddptrain]}} ${{_comps[supervise]}}"
        result = subprocess.run(["zsh", "-fc", script], capture_output=True, text=True, timeout=400, env=os.environ)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(result.stdout.count("_ddptrain_complete"), 2, result.stdout)
