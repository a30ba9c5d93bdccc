"""A job of real processes under mpirun, to which things happen; says when they were noticed and when all had ended."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable

from support import BIN, ENVIRONMENT, MPIRUN, descendants, is_running, wait_for

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
LIMIT = 120.0


def processes_with(command: list[str]) -> list[int]:
    """A daemon of mpirun on another (emulated) host is no child of it."""
    wanted = b"".join(word.encode() + b"\0" for word in command)
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and (folder / "cmdline").read_bytes() == wanted:
                found.append(int(folder.name))
    return found


def variable(process: int, name: str) -> str | None:
    with contextlib.suppress(OSError):
        for entry in pathlib.Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
            key, _, value = entry.partition(b"=")
            if key == name.encode():
                return value.decode()
    return None


def shared_memory_files(process: int) -> set[str]:
    """What the process has mapped of /dev/shm, whether it still has a name or not."""
    with contextlib.suppress(OSError):
        return set(re.findall(r"/dev/shm/\S+", pathlib.Path(f"/proc/{process}/maps").read_text()))
    return set()


class Job:
    """`prefix`: what starts mpirun, and flags of mpirun."""

    def __init__(self, ranks: int, arguments: list[str], prefix: list[str] | None = None) -> None:
        self._program = [str(BIN / "ddptrain"), *arguments]
        command = [*(prefix or MPIRUN), "-np", str(ranks), *self._program]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.mpirun = subprocess.Popen(command, env=ENVIRONMENT, start_new_session=True, **streams)
        self.ranks: dict[int, int] = {}  # process of each rank
        self.lines: list[tuple[float, str]] = []
        self._world_size = ranks
        self._files: set[str] = set()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.mpirun.stdout:
            self.lines.append((time.monotonic(), line.rstrip()))

    @property
    def output(self) -> str:
        return "\n".join(line for _, line in self.lines)

    def until(self, condition: Callable[[], bool], what: str, seconds: float = LIMIT) -> float:
        return wait_for(condition, what, seconds, lambda: self.output)

    def find_ranks(self) -> None:
        def found() -> bool:
            for process in processes_with(self._program):
                for rank in filter(None, (variable(process, name) for name in RANK_VARIABLES)):
                    self.ranks[int(rank)] = process
            return len(self.ranks) == self._world_size or self.mpirun.poll() is not None

        self.until(found, "the ranks start")

    def train_to(self, step: int) -> None:
        """Until this step is in the log (--log-every)."""
        self.find_ranks()
        self.until(lambda: f"step {step} " in self.output or self.mpirun.poll() is not None, f"step {step}")
        if self.mpirun.poll() is not None:
            raise AssertionError(f"the job ended before step {step}\n{self.output}")
        for process in self.ranks.values():
            self._files |= shared_memory_files(process)

    def signal(self, rank: int, number: signal.Signals) -> float:
        """The time just before."""
        now = time.monotonic()
        os.kill(self.ranks[rank], number)
        return now

    def said(self, pattern: str) -> float | None:
        """When a line that matches was first seen."""
        return next((when for when, line in self.lines if re.search(pattern, line)), None)

    def ranks_end(self, seconds: float = LIMIT) -> float:
        return self.until(lambda: not any(map(is_running, self.ranks.values())), "the ranks end", seconds)

    def end(self, seconds: float = LIMIT) -> float:
        """When mpirun and all ranks have ended."""
        self.until(lambda: self.mpirun.poll() is not None, "mpirun ends", seconds)
        ended = self.ranks_end(seconds)
        self._reader.join(5)
        return ended

    def left_behind(self) -> list[str]:
        files = {file for file in self._files if pathlib.Path(file).exists()}
        return sorted(files) + [f"process {process}" for process in self.ranks.values() if is_running(process)]

    def clean_up(self) -> None:
        known = [*self.ranks.values(), *descendants(self.mpirun.pid), self.mpirun.pid]
        for process in filter(is_running, known):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.mpirun.wait()
        self._reader.join(5)
        self.mpirun.stdout.close()
        for file in self._files:
            pathlib.Path(file).unlink(missing_ok=True)
