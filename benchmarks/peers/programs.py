"""Runs one program to its end, and says why if it fails or hangs."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from typing import Any

from ddptools.common.runner import OF_OTHERS, end_session, exit_text, start_session
from peers.rows import ROOT

MARK = "DDPTRAIN_COMPARE_RUN"  # variable by which the processes of a run are found, in whatever session they are


class OutOfTime(Exception):
    """What is being done would end after the time limit, or was interrupted."""


class RunFailed(Exception):
    pass


def run_program(command: list[str], environment: dict[str, str], timeout_seconds: float,
                must_end: Callable[[], bool]) -> str:  # fmt: skip
    """What it prints. Nothing of it is left afterwards. RunFailed if it fails or does not end, OutOfTime if `must_end`
    says so."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = start_session(command, signal.SIGTERM, cwd=ROOT, env=environment | {MARK: mark},
                                    stdin=subprocess.DEVNULL, stdout=out, stderr=err)  # fmt: skip
        except OSError as error:
            raise RunFailed(str(error)) from error
        try:
            wait_for(process, timeout_seconds, must_end)
        finally:
            end_session(process)
            end_marked(mark)
        said, errors = (read_all(file) for file in (out, err))
    if process.returncode != 0:
        raise RunFailed(f"{exit_text(process.returncode)}: {reason(errors)}")
    return said


def wait_for(process: subprocess.Popen, timeout_seconds: float, must_end: Callable[[], bool]) -> None:
    end = time.monotonic() + timeout_seconds
    while process.poll() is None:
        if must_end():
            raise OutOfTime
        if time.monotonic() > end:
            raise RunFailed(f"did not end within {timeout_seconds:.0f} s")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)


def end_marked(mark: str) -> None:
    """torchrun puts its workers into sessions of their own, and they may outlive it."""
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)


def read_all(file: Any) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def reason(errors: str) -> str:
    """The line that names the error, of a traceback and of what torchrun and mpirun write around it."""
    lines = [line.strip() for line in errors.splitlines() if line.strip("-= ")]
    lines = [line for line in lines if not OF_OTHERS.search(line)] or lines
    named = [line for line in lines if re.search(r"\w(Error|Exception|Exit): |^ddptrain: ", line)
             and "ChildFailedError" not in line]  # fmt: skip
    return ([*lines[-1:], *named] or ["no message"])[-1][:300]


def last_json(text: str) -> dict[str, Any]:
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if not lines:
        raise RunFailed("it printed no result")
    return json.loads(lines[-1])
