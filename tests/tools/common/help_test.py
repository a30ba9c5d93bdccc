"""Tests of --help: the width of every program's help, and the examples in the help of ddptrain."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from ddptools.common.mpirun import find_mpirun
from tests.tools import support

BIN = pathlib.Path(os.environ.get("DDPTRAIN_BIN", support.ROOT / "build" / "bin")).resolve()
BENCHMARKS = ("p2p", "allreduce", "split", "overlap", "gemm", "memory", "doctor", "step")
LAUNCH = support.ROOT / "launch"
COLUMNS = 100
# Short runs on the CPU, whatever the example asks for.
CNN = ["--device", "cpu", "--data", "synthetic:64", "--batch", "8", "--steps", "4", "--baseline", "off"]
CHECKPOINTS = ["--checkpoint-every", "2"]
GPT = ["--device", "cpu", "--batch", "2", "--steps", "2", "--baseline", "off"]


def run(*command: object, folder: pathlib.Path | None = None) -> str:
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "COLUMNS": "300"}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=os.environ | root, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise AssertionError(f"{words}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def scripts() -> list[pathlib.Path]:
    found = [path for pattern in ("*", "hosts/*", "slurm/*") for path in sorted(LAUNCH.glob(pattern))]
    return [path for path in found if path.is_file() and path.read_bytes()[:2] == b"#!"]


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

    def test_every_script_has_help_in_short_lines(self) -> None:
        self.assertGreater(len(scripts()), 14)
        for script in scripts():
            self.assert_narrow(script, "-h")
        for verb in ("up", "down", "run", "exec"):
            self.assert_narrow(LAUNCH / "emulate-hosts", verb, "-h")

    def test_an_unknown_topic(self) -> None:
        done = subprocess.run([BIN / "ddptrain", "--help", "vgg"], capture_output=True, text=True, timeout=300)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertEqual(done.stderr, "ddptrain: --help vgg: unknown topic. Topics: all, cnn, gpt, mlp\n")


class ExamplesTest(unittest.TestCase):
    def test_examples_run(self) -> None:
        text = run(BIN / "ddptrain", "--help").partition("\nExamples:\n")[2]
        examples = re.findall(r"(?m)^    mpirun -np \d+ ddptrain (.*)$", text)
        self.assertEqual(len(examples), 4, text)
        self.assertEqual(len(re.findall(r"(?m)^    ", text)), 4, text)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "configs").symlink_to(support.ROOT / "configs")
            (folder / "text.txt").write_text("To be, or not to be, that is the question. " * 400)
            mpirun = ["mpirun", "-np", "2", *find_mpirun().here(), BIN / "ddptrain"]
            for example in examples:
                with self.subTest(example=example):
                    short = GPT if "gpt" in example else [*CNN, *(CHECKPOINTS if "--checkpoint" in example else [])]
                    run(*mpirun, *example.split(), *short, folder=folder)
            self.assertTrue(list(folder.glob("run1/step-*")))
