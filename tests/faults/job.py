"""A job of real processes under mpirun, to which things happen; says when they were noticed and when all had ended."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "launch"))
from ddptools.common.mpirun import OPEN_MPI, find_mpirun  # noqa: E402, F401

BIN = pathlib.Path(os.environ.get("DDPTRAIN_BIN") or ROOT / "build-cpu/bin")
SHARING = int(os.environ.get("DDPTRAIN_TEST_RANKS", "0"))  # ranks that share the GPUs: tests/gpu/run
SHARE_GPU = ["--share-gpu"] if SHARING else []
MPIRUN = [*([str(ROOT / "launch/share-gpu")] if SHARING else []), "mpirun", *find_mpirun().here()]
ENVIRONMENT = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
LIMIT = 120.0


def children(process: int) -> list[int]:
    with contextlib.suppress(OSError):
        tasks = pathlib.Path(f"/proc/{process}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return []


def descendants(process: int) -> list[int]:
    found = children(process)
    return found + [below for child in found for below in descendants(child)]


def runs(process: int) -> bool:
    with contextlib.suppress(OSError):
        state = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state not in "ZX"
    return False


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
        self.mpirun = subprocess.Popen(
            command,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
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
        """Waits; returns the time."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not within {seconds} s\n{self.output}")
            time.sleep(0.02)
        return time.monotonic()

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
        return self.until(lambda: not any(map(runs, self.ranks.values())), "the ranks end", seconds)

    def end(self, seconds: float = LIMIT) -> float:
        """When mpirun and all ranks have ended."""
        self.until(lambda: self.mpirun.poll() is not None, "mpirun ends", seconds)
        ended = self.ranks_end(seconds)
        self._reader.join(5)
        return ended

    def left_behind(self) -> list[str]:
        files = {file for file in self._files if pathlib.Path(file).exists()}
        return sorted(files) + [f"process {process}" for process in self.ranks.values() if runs(process)]

    def clean_up(self) -> None:
        known = [*self.ranks.values(), *descendants(self.mpirun.pid), self.mpirun.pid]
        for process in filter(runs, known):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.mpirun.wait()
        self._reader.join(5)
        self.mpirun.stdout.close()
        for file in self._files:
            pathlib.Path(file).unlink(missing_ok=True)


def gpus() -> int:
    """That ddptrain can use."""
    version = subprocess.run([BIN / "ddptrain", "--version"], capture_output=True, text=True, timeout=60).stdout
    if "not in this build" in version or shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60).stdout
    return sum(line.startswith("GPU ") for line in listed.splitlines())
