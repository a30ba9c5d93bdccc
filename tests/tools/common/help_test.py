"""Tests of --help: the width of every program's help, and the examples in the help of ddptrain."""

import os
import re
import unittest

from tests.tools.support import AS_ROOT, BIN, ROOT, FolderCase, run, run_ranks

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
        commands = [("ddptrain", "--help", *topic) for topic in ([], ["all"], ["cnn"], ["gpt"], ["mlp"])]
        commands += [("ddpbench", name, "--help") for name in BENCHMARKS]
        for command in (*commands, ("ddpbench", "--help"), ("ddptopo", "--help")):
            with self.subTest(command=command):
                lines = help_of(*command).splitlines()
                self.assertTrue(lines)
                self.assertEqual([line for line in lines if len(line) > COLUMNS], [])

    def test_an_unknown_topic(self) -> None:
        done = run([BIN / "ddptrain", "--help", "vgg"], 2)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr, "ddptrain: --help vgg: unknown topic. Topics: all, cnn, gpt, mlp\n")


class ExamplesTest(FolderCase):
    def test_examples_run(self) -> None:
        text = help_of("ddptrain", "--help").partition("\nExamples:\n")[2]
        examples = re.findall(r"(?m)^    mpirun -np \d+ ddptrain (.*)$", text)
        self.assertEqual(len(examples), 4, text)
        self.assertEqual(len(re.findall(r"(?m)^    ", text)), 4, text)
        (self.folder / "configs").symlink_to(ROOT / "configs")
        (self.folder / "text.txt").write_text("To be, or not to be, that is the question. " * 400)
        for example in examples:
            with self.subTest(example=example):
                short = GPT if "gpt" in example else [*CNN, *(CHECKPOINTS if "--checkpoint" in example else [])]
                run_ranks(2, *example.split(), *short, cwd=self.folder)
        self.assertTrue(list(self.folder.glob("run1/step-*")))
