"""Jobs of real processes for the tests of failures: started, killed, resumed."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("DDPTRAIN_BIN", ROOT / "build" / "bin")).resolve()
ENVIRONMENT = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
LIMIT = 300.0  # seconds after which a job hangs
ENDLESS = 10_000_000  # steps

sys.path.insert(0, str(ROOT / "launch"))
from ddptools.common.mpirun import HYDRA, find_mpirun  # noqa: E402, F401
from ddptools.common.runner import end_session  # noqa: E402

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
    """`command` in a session of its own, with its output in a file."""

    def __init__(self, command: list[str], folder: pathlib.Path) -> None:
        self.output = tempfile.NamedTemporaryFile(dir=folder, suffix=".out", delete=False)
        self.process = subprocess.Popen(
            command, cwd=folder, env=ENVIRONMENT, stdout=self.output, stderr=self.output, start_new_session=True
        )

    def text(self) -> str:
        return pathlib.Path(self.output.name).read_text(errors="replace")

    def wait(self, limit: float = LIMIT) -> int:
        """The exit code; the job is ended where it hangs."""
        try:
            return self.process.wait(limit)
        finally:
            self.end()

    def end(self) -> None:
        end_session(self.process)
        self.output.close()

    def running(self) -> bool:
        return self.process.poll() is None

    def ranks(self) -> list[int]:
        """Their process ids, in the order of their start: of ddptrain below the process that was started."""
        return [pid for pid in sorted(descendants(self.process.pid)) if _name(pid) == "ddptrain"]

    def wait_until(self, condition: Callable[[], bool], limit: float = LIMIT) -> None:
        end = time.monotonic() + limit
        running = True
        while not condition():
            if time.monotonic() > end or not running:
                raise AssertionError(f"it did not come to that:\n{self.text()}")
            running = self.running()  # where it ended meanwhile, the condition is looked at once more
            time.sleep(0.01)


def wait_for(condition: Callable[[], bool], what: str, seconds: float, shown: Callable[[], str]) -> float:
    """The time at which the condition holds; AssertionError with what is `shown` where that takes too long."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds} s\n{shown()}")
        time.sleep(0.05)
    return time.monotonic()


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _parents() -> dict[int, int]:
    parents: dict[int, int] = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return parents


def children(pid: int) -> list[int]:
    return [child for child, parent in _parents().items() if parent == pid]


def descendants(pid: int) -> set[int]:
    parents, found = _parents(), {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    return False


def is_pending(pid: int, number: int) -> bool:
    """Whether the process has been sent the signal, and has not taken it yet."""
    with contextlib.suppress(OSError):
        masks = re.findall(r"^(?:Sig|Shd)Pnd:\s*(\w+)", pathlib.Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
    return False


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


class JobTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="ddptrain-faults-")))

    def job(self, ranks: int, *arguments: Any, before: list[str] | None = None) -> Job:
        command = [*(before or []), *MPIRUN, "-np", str(ranks), str(BIN / "ddptrain"), *words(*arguments)]
        job = Job(command, self.folder)
        self.addCleanup(job.end)
        return job

    def run_job(self, ranks: int, *arguments: Any, code: int = 0, before: list[str] | None = None) -> str:
        job = self.job(ranks, *arguments, before=before)
        self.assertEqual(job.wait(), code, job.text())
        return job.text()

    def lines(self, name: str) -> list[Any]:
        return [json.loads(line) for line in (self.folder / name).read_text(encoding="utf-8").splitlines()]

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
