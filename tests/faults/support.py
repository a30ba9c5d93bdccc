"""Jobs of real processes for the tests of failures: started, killed, resumed."""

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
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.tools.support import (  # noqa: E402, F401
    AS_ROOT, BIN, ROOT, FolderCase, is_alive, run, wait_for, write_program,
)  # fmt: skip
from ddptools.common.mpirun import HYDRA, SESSIONS, find_mpirun  # noqa: E402, F401
from ddptools.common.runner import end_session  # noqa: E402

ENVIRONMENT = os.environ | AS_ROOT
LIMIT = 300.0  # seconds after which a job hangs
ENDLESS = 10_000_000  # steps

SHARING = int(os.environ.get("DDPTRAIN_TEST_RANKS", "0"))  # ranks that share the GPUs: tests/gpu/run
SHARE_GPU = ["--share-gpu"] if SHARING else []
MPIRUN = [*([str(ROOT / "launch/share-gpu")] if SHARING else []), "mpirun", *find_mpirun().here()]
STARTS = re.compile(r"newest checkpoint: (?:step-(\d+)|none)|Resumed at step (\d+) from|training starts at step (0)")

TINY = ["--device", "cpu", "--baseline", "off", "--model", "mlp", "--hidden", "16", "--data", "synthetic:600"]


def gpus() -> int:
    """That this build can use."""
    version = subprocess.run([BIN / "ddptrain", "--version"], env=ENVIRONMENT, capture_output=True, text=True).stdout
    if "not in this build" in version or shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def words(*values: Any) -> list[str]:
    return [str(value) for value in values]


class Job:
    """`command` in a session of its own, and what it says, with the times."""

    def __init__(self, command: list[str], folder: pathlib.Path) -> None:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
        self.folder = folder
        self.process = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, start_new_session=True, **streams)
        self.lines: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line))

    def text(self) -> str:
        return "".join(line for _, line in self.lines)

    def said(self, pattern: str) -> float | None:
        """When a line that matches was first seen."""
        return next((when for when, line in self.lines if re.search(pattern, line)), None)

    def wait(self, limit: float = LIMIT) -> int:
        """The exit code. The job is ended if it hangs."""
        try:
            return self.process.wait(limit)
        finally:
            self.end()

    def end(self) -> None:
        end_session(self.process)
        for rank in self.ranks():  # on an emulated host
            kill(rank)
        self._reader.join(5.0)
        if not self._reader.is_alive():
            self.process.stdout.close()

    def running(self) -> bool:
        """After its end, all that it said is known."""
        if self.process.poll() is None:
            return True
        self._reader.join(1.0)
        return False

    def ranks(self) -> list[int]:
        """Their process ids, in the order of the ranks. They have the folder to themselves."""
        found: dict[int, int] = {}
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (entry / "comm").read_text() == "ddptrain\n" and (entry / "cwd").samefile(self.folder):
                    rank = re.search(rb"\0(?:OMPI_COMM_WORLD_RANK|PMI_RANK)=(\d+)", (entry / "environ").read_bytes())
                    found[int(rank[1]) if rank else 0] = int(entry.name)
        return [found[rank] for rank in sorted(found)]

    def signal(self, rank: int, number: signal.Signals) -> float:
        """The time just before."""
        now = time.monotonic()
        kill(self.ranks()[rank], number)
        return now

    def wait_until(self, condition: Callable[[], bool], limit: float = LIMIT) -> float:
        return wait_for(condition, "it did not come to that", limit, self.text, self.running)


def children(pid: int) -> set[int]:
    """Those that a thread of the process started."""
    found = set()
    for file in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found |= set(map(int, file.read_text().split()))
    return found


def descendants(pid: int) -> set[int]:
    return children(pid).union(*map(descendants, children(pid)))


def _masks(pid: int, names: str, number: int) -> bool:
    """Whether the signal is in one of these masks of the process."""
    with contextlib.suppress(OSError):
        masks = re.findall(rf"^(?:{names}):\s*(\w+)", pathlib.Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
    return False


def is_pending(pid: int, number: int) -> bool:
    """Whether the process has been sent the signal, and has not taken it yet."""
    return _masks(pid, "SigPnd|ShdPnd", number)


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal."""
    return _masks(pid, "SigCgt", number)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def starts(text: str, newest: int = 0) -> list[int]:
    """The steps at which the attempts with --resume auto in `text` started. Without this, a program that forgets its
    checkpoints passes a test of the result. AssertionError unless each is the step of the newest checkpoint: `newest`,
    and later what supervise says of it."""
    found = []
    for match in STARTS.finditer(text):
        if match[0].startswith("newest"):
            newest = int(match[1] or 0)
            continue
        found.append(int(match[2] or match[3]))
        if found[-1] != newest:
            raise AssertionError(f"started at step {found[-1]} in place of {newest}:\n{text}")
    return found


class JobTest(FolderCase):
    def job(self, ranks: int, *arguments: Any, mpirun: list[str] = MPIRUN) -> Job:
        """One rank without mpirun, which starts slower, unless this mpirun was asked for."""
        starter = [] if ranks == 1 and mpirun is MPIRUN and not SHARING else [*mpirun, "-np", str(ranks)]
        job = Job([*starter, str(BIN / "ddptrain"), *words(*arguments)], self.folder)
        self.addCleanup(job.end)
        return job

    def run_job(self, ranks: int, *arguments: Any, code: int = 0) -> str:
        job = self.job(ranks, *arguments)
        self.assertEqual(job.wait(), code, job.text())
        return job.text()

    def end_at(self, steps: int) -> None:
        """Of jobs with --config run.toml that start from now on."""
        (self.folder / "run.toml").write_text(f"steps = {steps}\n")

    def steps(self, folder: str) -> list[int]:
        """Of the complete checkpoints."""
        return sorted(int(path.parent.name[5:]) for path in (self.folder / folder).glob("step-*/manifest.json"))

    def result(self, ranks: int, *arguments: Any) -> dict[str, Any]:
        """What must be the same, bit by bit, of a run that ends well."""
        self.run_job(ranks, *arguments, "--metrics", "result.jsonl")
        return self.result_in("result.jsonl")

    def resumed_result(self, ranks: int, *arguments: Any) -> dict[str, Any]:
        """The same of a run that goes on from the newest checkpoint in c."""
        newest = self.steps("c")[-1]
        text = self.run_job(ranks, *arguments, "--metrics", "result.jsonl")
        self.assertEqual(starts(text, newest), [newest])
        return self.result_in("result.jsonl")

    def result_in(self, name: str) -> dict[str, Any]:
        summary = self.lines(name)[-1]
        self.assertEqual(summary["event"], "summary")
        return {key: summary[key] for key in ("parameter_hash", "loss", "test_loss", "accuracy_per_epoch")}
