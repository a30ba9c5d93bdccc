"""Tests of --help: the width of every program's help, and the examples in the help of ddptrain."""

import os
import re
import subprocess
import unittest

from tests.tools.support import AS_ROOT, BIN, ROOT, FolderCase, run_ranks

BENCHMARKS = ("p2p", "allreduce", "split", "overlap", "gemm", "memory", "doctor", "step")
COLUMNS = 100
# Short runs on the CPU, whatever the example asks for.
CNN = ["--device", "cpu", "--data", "synthetic:64", "--batch", "8", "--steps", "4", "--baseline", "off"]
CHECKPOINTS = ["--checkpoint-every", "2"]
GPT = ["--device", "cpu", "--batch", "2", "--steps", "2", "--baseline", "off"]


def run(*command: object) -> str:
    words, wide = [str(word) for word in command], {"COLUMNS": "300"}
    done = subprocess.run(words, env=os.environ | AS_ROOT | wide, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise AssertionError(f"{words}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


class HelpTest(unittest.TestCase):
    def assert_narrow(self, *command: object) -> None:
        with self.subTest(command=[str(word) for word in command]):
            lines = run(*command).splitlines()
            self.assertTrue(lines)
            self.assertEqual([line for line in lines if len(line) > COLUMNS], [])

    def test_lines_are_short(self) -> None:
        for topic in ([], ["all"], ["cnn"], ["gpt"], ["mlp"]):
            self.assert_narrow(BIN / "ddptrain", "--help", *topic)
        self.assert_narrow(BIN / "ddptopo", "--help")
        self.assert_narrow(BIN / "ddpbench", "--help")
        for name in BENCHMARKS:
            self.assert_narrow(BIN / "ddpbench", name, "--help")

    def test_an_unknown_topic(self) -> None:
        done = subprocess.run([BIN / "ddptrain", "--help", "vgg"], capture_output=True, text=True, timeout=300)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertEqual(done.stderr, "ddptrain: --help vgg: unknown topic. Topics: all, cnn, gpt, mlp\n")


class ExamplesTest(FolderCase):
    def test_examples_run(self) -> None:
        text = run(BIN / "ddptrain", "--help").partition("\nExamples:\n")[2]
        examples = re.findall(r"(?m)^    mpirun -np \d+ ddptrain (.*)$", text)
        self.assertEqual(len(examples), 4, text)
        self.assertEqual(len(re.findall(r"(?m)^    ", text)), 4, text)
        (self.folder / "configs").symlink_to(ROOT / "configs")
        (self.folder / "text.txt").write_text("To be, or not to be, that is the question. " * 400)
        for example in examples:
            with self.subTest(example=example):
                short = GPT if "gpt" in example else [*CNN, *(CHECKPOINTS if "--checkpoint" in example else [])]
                done = run_ranks(2, *example.split(), *short, cwd=self.folder)
                self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(list(self.folder.glob("run1/step-*")))
