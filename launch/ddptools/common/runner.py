"""One run: a process with a time limit, of which nothing is left afterwards."""

import contextlib
import ctypes
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

GRACE = 10.0  # seconds that mpirun has to end its ranks
KILL_SECONDS = 30.0  # that killed processes have to end: one that waits for a disk may take longer
PR_SET_PDEATHSIG = 1
OF_OTHERS = re.compile(r"^\s*$|^-+$|^\[|mpirun|prterun|MPI_A")  # lines of mpirun and of logs


@dataclasses.dataclass
class Outcome:
    status: str  # ok, failed, timeout
    exit_code: int | None
    seconds: float
    reason: str | None  # of what is not ok


def run(command: list[str], environment: dict[str, str], log: pathlib.Path, timeout_seconds: float) -> Outcome:
    """Output goes to `log`, errors to the same name with .err. Whatever ends this function, an interrupt included, ends
    the whole job first."""
    start = time.monotonic()
    errors = log.with_suffix(".err")
    with open(log, "wb") as out, open(errors, "wb") as err:
        try:
            streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            process = start_session(command, signal.SIGTERM, env=environment, **streams)
        except OSError as error:
            return Outcome("failed", None, 0.0, f"{command[0]}: {error.strerror}")
        try:
            code = process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_session(process, GRACE)
    seconds = time.monotonic() - start
    if code == 0:
        return Outcome("ok", 0, seconds, None)
    reason = f"no end after {timeout_seconds:g} s" if code is None else exit_text(code)
    return Outcome("timeout" if code is None else "failed", code, seconds, reason + with_words(end_of(errors)))


_libc = ctypes.CDLL(None, use_errno=True)


def start_session(command: list[str], at_end: int, **settings: Any) -> subprocess.Popen:
    """In a session of its own, so that the terminal's Ctrl-C does not reach mpirun, which would kill the ranks. It gets
    the signal `at_end` when the tool is killed in a way that leaves it no time."""
    tied = lambda: _libc.prctl(PR_SET_PDEATHSIG, at_end)  # noqa: E731
    return subprocess.Popen(command, start_new_session=True, preexec_fn=tied, **settings)


def end_session(process: subprocess.Popen, grace_seconds: float = GRACE) -> None:
    end_sessions([process], grace_seconds)


def end_sessions(processes: list[subprocess.Popen], grace_seconds: float = GRACE) -> None:
    """Ends what is left of the jobs: mpirun is asked first, as it also ends ranks on other hosts; then whatever still
    belongs to the sessions that were made for them is killed (mpirun gives each rank a process group of its own), and
    has ended on return: a rank that is still ending holds the memory of its GPU."""
    sessions = {process.pid for process in processes}
    with _interrupts_ignored():
        for process in processes:
            if process.poll() is None:
                process.terminate()
        end = time.monotonic() + grace_seconds
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
        end = time.monotonic() + KILL_SECONDS
        while (members := list(_members(sessions))) and time.monotonic() < end:
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        for process in processes:
            process.wait()


def _members(sessions: set[int]) -> Iterator[int]:
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(fields[3]) in sessions and fields[0] != "Z":
                    yield int(entry.name)


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Signals reach the main thread: another one has nothing to ignore, and may not change what it does with them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def positive(code: int) -> int:
    """As a shell tells it: 128 + the signal that ended the process."""
    return code if code >= 0 else 128 - code


def exit_text(code: int) -> str:
    """mpirun's exit code is 128 + the signal that ended a rank."""
    try:
        return f"ended by {signal.Signals(-code if code < 0 else code - 128).name}"
    except ValueError:
        return f"exit code {code}"


def with_words(said: str) -> str:
    words = last_words(said)
    return f": {words}" if words else ""


def end_of(path: pathlib.Path) -> str:
    """The last 20 kB of a file of text."""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 20_000))
        return file.read().decode(errors="replace")


def last_words(text: str, lines: int = 5) -> str:
    """What a program said last on standard error: its own error messages where there are some, without mpirun's."""
    kept, own, within = [], [], False
    for line in text.replace("\0", "").splitlines():  # Open MPI 5 ends its own messages with one
        within = line.startswith(("ddptrain:", "ddpbench:")) or (within and not OF_OTHERS.search(line))
        kept += [line.strip()] if line.strip("- ") else []
        own += [line.strip()] if within else []
    return " | ".join((own or kept)[-lines:])[:2000]
