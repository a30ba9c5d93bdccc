"""The progress of a run as people see it: a bar in a terminal, lines in a pipe, each logged step in the metrics file."""

import fcntl
import json
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import termios
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.tools.support import FolderCase  # noqa: E402

PROGRAM = [os.environ["DDPTRAIN"], "--device", "cpu", "--baseline", "off", "--model", "mlp", "--hidden", "16",
           "--data", "synthetic:320"]  # fmt: skip
MPIRUN = os.environ["DDP_MPIRUN"].split()
BAR = re.compile(r"\r\[=* *\] Step \d+/\d+, epoch \d+/\d+, loss \d\.\d{4}( \(step \d+\))?, [\d,.]+ images/s, \d:\d\d:\d\d left\x1b\[K\r")


class ProgressTest(FolderCase):
    def on_terminal(self, *command: str) -> str:
        """What the command writes to a terminal of 100 columns."""
        mine, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        environment = dict(os.environ, TERM="xterm")
        process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment, cwd=self.folder)
        os.close(its)
        text = b""
        try:
            while part := os.read(mine, 65536):
                text += part
        except OSError:  # the other end is closed
            pass
        os.close(mine)
        self.assertEqual(process.wait(), 0, text)
        return text.decode()

    def check_bar(self, text: str) -> None:
        self.assertRegex(text, BAR)
        self.assertNotRegex(text, r"Step \d+/\d+[^\r]*\n", "a line of the bar is left behind")
        self.assertRegex(text, r"(?m)^(.*\r)*(\x1b\[K)?Epoch 1/300\r?$")

    def test_a_terminal_has_a_bar(self) -> None:
        self.check_bar(self.on_terminal(*PROGRAM, "--batch", "16", "--epochs", "300"))

    def test_the_terminal_of_mpirun_has_a_bar(self) -> None:
        self.check_bar(self.on_terminal(*MPIRUN, "-np", "2", *PROGRAM, "--batch", "8", "--epochs", "300"))

    def test_a_pipe_has_plain_lines(self) -> None:
        command = [*PROGRAM, "--batch", "16", "--epochs", "3", "--log-every", "20", "--metrics", "m.jsonl"]
        run = subprocess.run(command, capture_output=True, text=True, cwd=self.folder,
                             env=dict(os.environ, TERM="xterm"))  # fmt: skip
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertNotRegex(run.stdout + run.stderr, "[\r\x1b]")
        lines = re.findall(r"\[info\] \[rank 0\] (Step .*)", run.stderr)
        self.assertEqual([line.split(",")[0] for line in lines], ["Step 20/60", "Step 40/60", "Step 60/60"])
        self.assertRegex(lines[0], r"^Step 20/60, epoch 1/3, loss \d\.\d{4}, [\d,.]+ images/s, 0:00:\d\d left$")
        self.assertIn("Epoch 3/3\nloss ", run.stdout)

    def test_a_terminal_gets_no_control_characters_of_a_text(self) -> None:
        (self.folder / "text").write_bytes(b"\xc3\xa9\x1b" * 2000)  # a letter of two bytes
        cpu = [PROGRAM[0], "--device", "cpu", "--model", "gpt"]
        train = ["--baseline", "off", "--layers", "1", "--width", "32", "--heads", "2", "--seq", "12", "--batch", "8"]
        run = [*cpu, *train, "--data", "text", "--steps", "100", "--lr", "0.01", "--save", "model"]
        self.assertEqual(subprocess.run(run, capture_output=True, cwd=self.folder).returncode, 0)
        generate = [*cpu, "--generate", "--init", "model", "--prompt", "\xe9", "--max-tokens", "10", "--temperature", "0"]
        for start in ([], [*MPIRUN, "-np", "2"]):
            command = [*start, *generate]
            piped = subprocess.run(command, capture_output=True, cwd=self.folder).stdout.decode()
            text = piped.partition("\n")[0]
            self.assertEqual(text, "\xe9\x1b" * 4)
            self.assertIn("\n" + text.replace("\x1b", "?") + "\r\n", "\n" + self.on_terminal(*command))

    def test_resumed_runs_have_each_step_once_and_with_the_same_loss(self) -> None:
        flags = [*PROGRAM, "--batch", "16", "--epochs", "20"]  # 400 steps, of which each fourth is logged
        saving = [*flags, "--checkpoint", "c", "--checkpoint-every", "50", "--metrics", "parts.jsonl"]
        for code, command in ((0, [*flags, "--metrics", "whole.jsonl"]), (1, [*saving, "--fail-at", "0:190"]),
                              (0, [*saving, "--resume", "auto"])):  # fmt: skip
            self.assertEqual(subprocess.run(command, capture_output=True, cwd=self.folder).returncode, code)

        def losses(name: str) -> dict[int, float]:
            """By step; a restart drops what it does again."""
            found: dict[int, float] = {}
            for line in map(json.loads, (self.folder / name).read_text().splitlines()):
                if line["event"] == "restart":
                    found = {step: loss for step, loss in found.items() if step < line["step"]}
                if line["event"] == "step":
                    self.assertNotIn(line["step"], found)
                    found[line["step"]] = line["loss"]
            return found

        self.assertEqual(losses("parts.jsonl"), losses("whole.jsonl"))
        self.assertEqual(sorted(losses("parts.jsonl")), list(range(4, 401, 4)))


if __name__ == "__main__":
    unittest.main()
