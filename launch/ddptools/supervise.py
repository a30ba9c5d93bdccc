"""A training job that goes on: restarted from its newest checkpoint after a failure, ended with one on Ctrl-C."""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import datetime
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import IO

from ddptools.arguments import Parser
from ddptools.errors import UsageError, run_program
from ddptools.runner import end_session, exit_text, last_words, when_parent_ends

RESUMABLE = 75  # ddptrain's exit code after a checkpoint that a signal asked for
USAGE = 2
LONGEST_PAUSE = 300.0
# Open MPI otherwise learns after eight minutes that a host is gone. Seconds, seconds, and probes: after 9 s.
KEEPALIVE = {
    "OMPI_MCA_oob_tcp_keepalive_time": "3",
    "OMPI_MCA_oob_tcp_keepalive_intvl": "2",
    "OMPI_MCA_oob_tcp_keepalive_probes": "3",
}
DESCRIPTION = """\
Starts COMMAND (mpirun or srun with ddptrain --checkpoint DIR, or ddptrain alone) with --resume auto. After a failure it
starts COMMAND again, which goes on from the newest undamaged checkpoint; hosts of mpirun's --hostfile that do not answer
over ssh are then left out, and with --virtual-ranks as many ranks start as the others have slots for. SIGTERM and SIGINT
(Ctrl-C) become SIGUSR2, which mpirun forwards to its ranks: they write a checkpoint and end, and supervise leaves with
code 75. A second one ends the job at once. SIGUSR1 writes a checkpoint. Open MPI is told to notice a lost host after
9 s (OMPI_MCA_oob_tcp_keepalive_*, unless these are set)."""


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = Parser("supervise", description=DESCRIPTION)
    parser.add_argument("--restarts", type=int, default=3, metavar="N",
                        help="failures in a row without a new checkpoint after which it gives up (default 3)")  # fmt: skip
    parser.add_argument("--pause", type=float, default=5.0, metavar="SECONDS",
                        help="before the first restart; doubled before each further one, up to 5 minutes (default 5)")  # fmt: skip
    parser.add_argument("--log", type=pathlib.Path, metavar="FILE",
                        help="says why each attempt ended (default: supervise.log in the folder of --checkpoint)")  # fmt: skip
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    arguments = parser.parse_args(argv)
    if arguments.command[:1] == ["--"]:
        del arguments.command[0]
    if arguments.restarts < 0 or arguments.pause < 0:
        raise UsageError("--restarts and --pause: give 0 or more")
    return arguments


def value_of(flag: str, command: list[str]) -> str | None:
    """The last one counts, as for ddptrain."""
    found = None
    for i, word in enumerate(command):
        if word.startswith(flag + "="):
            found = word[len(flag) + 1 :]
        elif word == flag and i + 1 < len(command):
            found = command[i + 1]
    return found


def newest_checkpoint(folder: pathlib.Path) -> str:
    """By name; whether it is undamaged, ddptrain finds out."""
    return max((path.parent.name for path in folder.glob("step-*/manifest.json")), default="")


def positive(code: int) -> int:
    return code if code >= 0 else 128 - code


HOSTFILE_FLAGS = ("--hostfile", "-hostfile", "--machinefile", "-machinefile")
RANKS_FLAGS = ("-np", "-n", "--np", "-c")


def place_of(flags: tuple[str, ...], command: list[str]) -> int | None:
    """Of the value after one of the flags, among those of mpirun."""
    return next((i + 1 for i, word in enumerate(command[:-1]) if word in flags), None)


def answers(host: str) -> bool:
    if host in ("localhost", "127.0.0.1", os.uname().nodename):
        return True
    command = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", host, "true"]
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=15).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@dataclasses.dataclass
class Hosts:
    """Lines of a hostfile of Open MPI whose hosts answer, and the names of the others."""

    lines: list[str]
    slots: int
    silent: list[str]

    @staticmethod
    def of(path: pathlib.Path) -> "Hosts":
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.partition("#")[0].strip()]
        names = [line.split()[0] for line in lines]
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            there = list(pool.map(answers, names))
        kept = [line for line, good in zip(lines, there, strict=True) if good]
        slots = sum(int(found[1]) if (found := re.search(r"slots\s*=\s*(\d+)", line)) else 1 for line in kept)
        return Hosts(kept, slots, [name for name, good in zip(names, there, strict=True) if not good])


class Job:
    """The attempts of one command."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.command: list[str] = arguments.command
        if not self.command:
            raise UsageError("give a command: supervise mpirun -np 8 ddptrain --checkpoint DIR ...")
        folder = value_of("--checkpoint", self.command)
        if folder is None:
            raise UsageError("the command has no --checkpoint DIR, from which it could go on")
        if value_of("--resume", self.command) is None:
            self.command = [*self.command, "--resume", "auto"]
        self.folder = pathlib.Path(folder)
        self.restarts: int = arguments.restarts
        self.first_pause: float = arguments.pause
        self.log_file: pathlib.Path = arguments.log or self.folder / "supervise.log"
        self.process: subprocess.Popen | None = None
        self.ends_asked = 0
        self.woken = threading.Event()

    def log(self, text: str) -> None:
        line = f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%dT%H:%M:%SZ} {text}"
        print(f"supervise: {text}", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError):  # a full disk must not end the job
            self.log_file.parent.mkdir(parents=True, exist_ok=True)
            with open(self.log_file, "a", encoding="utf-8") as file:
                file.write(line + "\n")

    def on_hosts_that_answer(self) -> list[str]:
        place = place_of(HOSTFILE_FLAGS, self.command)
        if place is None:
            return self.command
        hosts = Hosts.of(pathlib.Path(self.command[place]))
        if not hosts.silent:
            return self.command
        command = list(self.command)
        reduced = self.folder / "supervise.hosts"
        reduced.write_text("".join(line + "\n" for line in hosts.lines), encoding="utf-8")
        command[place] = str(reduced)
        self.log(f"no answer from {', '.join(hosts.silent)}: left out; {hosts.slots} slots on the other hosts")
        ranks, parts = place_of(RANKS_FLAGS, command), int(value_of("--virtual-ranks", command) or 0)
        if ranks is not None and parts > 0 and 0 < hosts.slots < int(command[ranks]):
            command[ranks] = str(max(count for count in range(1, hosts.slots + 1) if parts % count == 0))
        return command

    def on_signal(self, number: int, _frame: object) -> None:
        if number != signal.SIGUSR1:
            self.ends_asked += 1
            self.woken.set()
        process = self.process
        if process is None or process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            if self.ends_asked > 1:
                process.terminate()
            else:
                process.send_signal(signal.SIGUSR1 if number == signal.SIGUSR1 else signal.SIGUSR2)

    def attempt(self, command: list[str]) -> tuple[int, str]:
        """Exit code, and what the job said last."""
        with tempfile.NamedTemporaryFile(prefix="supervise-") as errors:
            # In a session of its own, so that the terminal's Ctrl-C does not reach mpirun, which would kill the ranks.
            try:
                self.process = subprocess.Popen(
                    command,
                    env=KEEPALIVE | os.environ,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    preexec_fn=when_parent_ends(signal.SIGUSR2),
                )
            except OSError as error:
                raise UsageError(f"{command[0]}: {error.strerror}") from error
            try:
                if self.ends_asked > 0:  # in between
                    self.process.send_signal(signal.SIGUSR2)
                copier = threading.Thread(target=_copy, args=(self.process.stderr, errors), daemon=True)
                copier.start()
                while self.process.poll() is None:
                    if self.ends_asked > 1:
                        break
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self.process.wait(0.2)
            finally:
                end_session(self.process)  # no rank is left, whatever became of mpirun
            copier.join(5.0)
            errors.flush()
            return self.process.returncode, last_words(pathlib.Path(errors.name))

    def run(self) -> int:
        failures, number = 0, 0
        while True:
            number += 1
            before = newest_checkpoint(self.folder)
            command = self.on_hosts_that_answer() if number > 1 else self.command
            self.log(f"attempt {number}: {shlex.join(command)}")
            start = time.monotonic()
            code, words = self.attempt(command)
            newest = newest_checkpoint(self.folder)
            failures = 1 if newest > before else failures + 1
            self.log(
                f"attempt {number} ended after {time.monotonic() - start:.0f} s: {exit_text(code)}"
                f"{': ' + words if words and code != 0 else ''}; newest checkpoint: {newest or 'none'}"
            )
            if code in (0, USAGE, RESUMABLE):
                return code
            if self.ends_asked > 0:
                before_start = code in (-signal.SIGUSR2, 128 + signal.SIGUSR2)  # nothing was there to save
                return RESUMABLE if before_start else positive(code)
            if failures > self.restarts:
                self.log(f"gives up: {failures} failures in a row without a new checkpoint")
                return positive(code)
            pause = min(self.first_pause * 2 ** (failures - 1), LONGEST_PAUSE)
            self.log(f"restarts in {pause:g} s")
            if self.woken.wait(pause):
                self.log("asked to end before the restart")
                return RESUMABLE


def _copy(source: IO[bytes], copy: IO[bytes]) -> None:
    for line in source:
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
        copy.write(line)
        copy.flush()


@contextlib.contextmanager
def _signals_to(job: Job) -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.signal(number, job.on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(argv: list[str]) -> int:
    job = Job(parse_arguments(argv))
    if os.geteuid() == 0:  # Open MPI starts as root only if both are set
        os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
        os.environ.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    with _signals_to(job):
        return job.run()


def run_main() -> int:
    return run_program("supervise", main)
