"""The progress line of ddptrain on a terminal: nothing else is lost or mixed with it, and pipes and files get none of it.

Runs real jobs on pseudo-terminals, and shows what they write on a screen as a terminal would."""

import contextlib
import dataclasses
import os
import pathlib
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest
from fcntl import ioctl

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "launch"))
from ddptools.common.mpirun import OPEN_MPI, find_mpirun  # noqa: E402

DDPTRAIN = os.environ["DDPTRAIN"]
MPIRUN = os.environ["DDP_MPIRUN"].split()
COLUMNS = 120
SAMPLES = (1200, 4800, 19200, 76800)  # so many that the line is drawn often: how many is a matter of the machine


def job(samples: int = SAMPLES[0]) -> list[str]:
    data = ["--device", "cpu", "--data", f"synthetic:{samples}", "--batch", "16"]
    return [*data, "--epochs", "2", "--log-every", "20", "--eval-every", "30", "--baseline", "off"]


SHORT = [*job(), "--steps", "20"]
BAR = re.compile(r"\[[#.]{20}\]")
TEXT = re.compile(
    r"\[\d\d:\d\d:\d\d\.\d{3}\] \[\w+\] \[rank \d+\] +\S.*|Epoch \d/\d|loss [\d.]+  accuracy [\d.]+|Images/sec: [\d.]+"
    r"|step \d+  test loss [\d.]+  accuracy [\d.]+|[A-Z][A-Za-z/, -]{4,25} +\S.*|"
)


of_open_mpi = unittest.skipUnless(find_mpirun(MPIRUN[0]) is OPEN_MPI, "the line needs the mpirun of Open MPI")


def screen(output: bytes) -> list[str]:
    """What stands on the terminal in the end, scrolled-off lines included."""
    lines, column = [""], 0
    for piece in re.findall(rb"\033\[[0-9;]*[A-Za-z]|[^\033]|\033", output):
        if piece == b"\r":
            column = 0
        elif piece == b"\n":
            lines.append("")
            column = 0
        elif piece.startswith(b"\033["):
            if piece.endswith(b"K"):
                lines[-1] = lines[-1][:column]
        else:
            lines[-1] = lines[-1][:column].ljust(column) + piece.decode("latin-1") + lines[-1][column + 1 :]
            column += 1
            assert column <= COLUMNS or not BAR.search(lines[-1]), f"the line is wider than the terminal: {lines[-1]}"
    return lines


@dataclasses.dataclass
class Result:
    terminal: bytes = b""
    pipe: bytes = b""
    seconds: float = 0.0


def run(command: list[str], *on_terminal: str, folder: str | None = None, expect: int = 0, **variables: str) -> Result:
    """`on_terminal`: stdout, stderr or both; what is not goes through a pipe."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    streams = {name: slave if name in on_terminal else subprocess.PIPE for name in ("stdout", "stderr")}
    result, start = Result(), time.monotonic()
    environment = os.environ | {"TERM": "xterm", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    process = subprocess.Popen(command, stdin=slave, cwd=folder, env=environment | variables, **streams)
    os.close(slave)

    def read() -> None:
        with contextlib.suppress(OSError):  # the last one has closed the terminal
            while piece := os.read(master, 65536):
                result.terminal += piece

    reader = threading.Thread(target=read)
    reader.start()
    try:
        out, errors = process.communicate(timeout=600)
    finally:
        process.kill()
    reader.join()
    os.close(master)
    result.pipe = (out or b"") + (errors or b"")
    result.seconds = time.monotonic() - start
    if process.returncode != expect:
        raise AssertionError(f"exit code {process.returncode}\n{result.terminal.decode()}\n{result.pipe.decode()}")
    return result


def steps_drawn(result: Result) -> list[int]:
    line = r"\] epoch [12]/2  step (\d+)/\d+  loss \d\.\d{4}  [\d.]+ (?:[kM] )?images/s  0:\d\d left\r"
    return [int(step) for step in re.findall(line, result.terminal.decode())]


def run_until_drawn(*command: str) -> tuple[int, Result]:
    """A job of so many samples that its line is seen at several of its steps."""
    for samples in SAMPLES:
        result = run([*command, *job(samples)], "stdout", "stderr")
        if len(set(steps_drawn(result))) > 2:
            break
    return samples, result


class ProgressTest(unittest.TestCase):
    def check_terminal(self, result: Result) -> str:
        shown = screen(result.terminal)
        for line in shown:
            self.assertRegex(line.rstrip(), rf"\A(?:{TEXT.pattern})\Z")
        text = "\n".join(shown)
        for expected in ("Epoch 1/2", "Epoch 2/2", "\nHash     "):
            self.assertEqual(text.count(expected), 1, text)
        self.assertEqual(len(re.findall(r"step \d+  loss", text)), len(re.findall(r"loss \S+  \d+ images/s\n", text)), text)
        draws = BAR.findall(result.terminal.decode())
        self.assertGreater(len(draws), 2)
        self.assertLess(len(draws), 10 * result.seconds + 2)
        return result.terminal.decode()

    def test_the_line_goes_with_the_steps_and_collides_with_nothing(self) -> None:
        samples, result = run_until_drawn(DDPTRAIN)
        told = self.check_terminal(result)
        self.assertGreater(len(set(steps_drawn(result))), 2, told)
        steps = [int(step) for step in re.findall(rf"step (\d+)/{samples // 8}", told)]
        self.assertEqual(steps, sorted(steps))

    @of_open_mpi
    def test_under_mpirun(self) -> None:
        samples, result = run_until_drawn(*MPIRUN, "-np", "2", DDPTRAIN)
        told = self.check_terminal(result)
        self.assertRegex(told, rf"\] epoch [12]/2  step \d+/{samples // 32 * 2}  loss ")

    @of_open_mpi
    def test_evaluation_calibration_and_checkpoints_are_named(self) -> None:
        evaluation, calibration = (rf"step 8/8  {phase} \d+/\d+ \d+ s" for phase in ("evaluation", "calibration"))
        for samples in (8000, 32_000, 128_000):
            with tempfile.TemporaryDirectory() as folder:
                slow = ["--device", "cpu", "--data", f"synthetic:{samples}", "--batch", "32", "--steps", "8"]
                command = [*MPIRUN, "-np", "2", DDPTRAIN, *slow, "--checkpoint", f"{folder}/c", "--log-level", "warn"]
                told = run(command, "stdout", "stderr").terminal.decode()
            if re.search(evaluation, told) and re.search(calibration, told):
                break
        self.assertRegex(told, evaluation)
        self.assertRegex(told, calibration)

    def test_pipes_and_files_get_none_of_it(self) -> None:
        for command in ([DDPTRAIN, *SHORT], [*MPIRUN, "-np", "2", DDPTRAIN, *SHORT]):
            for on_terminal in ([], ["stdout"]):
                with self.subTest(command=command[0], on_terminal=on_terminal):
                    result = run(command, *on_terminal)
                    for output in (result.pipe, result.terminal.replace(b"\r\n", b"\n")):
                        self.assertNotRegex(output, rb"[\r\033]|\[[#.]{20}\]")
        for samples in SAMPLES:
            result = run([DDPTRAIN, *job(samples)], "stderr")
            self.assertNotRegex(result.pipe, rb"[\r\033]")
            if re.search(rb"\[[#.]{20}\]", result.terminal):
                break
        self.assertRegex(result.terminal, rb"\[[#.]{20}\]")

    @of_open_mpi
    def test_files_of_mpirun_get_none_of_it(self) -> None:
        folder = self.enterContext(tempfile.TemporaryDirectory())
        run([*MPIRUN, "-np", "2", "--output-filename", "out", DDPTRAIN, *SHORT], "stdout", "stderr", folder=folder)
        files = [path.read_bytes() for path in pathlib.Path(folder).rglob("*") if path.is_file()]
        self.assertEqual(sum(b"Hash     " in text for text in files), 1, files)
        self.assertNotRegex(b"".join(files), rb"\033|\[[#.]{20}\]")

    def test_a_terminal_that_cannot_erase_gets_none_of_it(self) -> None:
        self.assertNotRegex(run([DDPTRAIN, *SHORT], "stdout", "stderr", TERM="dumb").terminal, rb"\033\[K|\[[#.]{20}\]")

    def test_errors_come_after_the_line(self) -> None:
        for command in ([DDPTRAIN], [*MPIRUN, "-np", "2", DDPTRAIN]):
            result = run([*command, *job(), "--fail-at", "0:20"], "stdout", "stderr", expect=1)
            told = [line for line in screen(result.terminal) if "error on rank 0" in line]
            self.assertEqual(len(told), 1, result.terminal)
            self.assertRegex(told[0], r"\Addptrain: error on rank 0 \(.*\): step 20 fails because --fail-at says so\Z")


if __name__ == "__main__":
    sys.exit(unittest.main())
