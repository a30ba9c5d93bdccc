"""A log for groups of this machine, or of its emulated hosts (launch/outer-log), for as long as they train."""

import contextlib
import dataclasses
import math
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from ddptools.common.errors import UsageError
from ddptools.common.runner import positive, start_session

OUTER_LOG = pathlib.Path(__file__).resolve().parents[2] / "outer-log"
PASSWORD = "DDPTRAIN_OUTER_PASSWORD"
REFUSED = 2  # its exit code if it has said why
MOST_GROUPS = 1000  # of launch/local-groups


@dataclasses.dataclass
class Log:
    address: str  # without the run
    server: subprocess.Popen

    def end(self) -> str | None:
        """How its server has ended; None while it runs. No other server can go on for it."""
        code = self.server.poll()
        return None if code is None else _end_text(code)


def free_port() -> int:
    """Below those that Linux gives to connections: no program gets it before it is used."""
    while True:
        port = random.randint(10_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port


@contextlib.contextmanager
def log_server(folder: pathlib.Path, address: str = "127.0.0.1", on: Sequence[str] = ()) -> Iterator[Log]:
    """With the password in the environment. `folder`: of the log. `on`: the start of a command line that runs a program on
    the host with this address; none: this machine. A Ctrl-C of the terminal does not reach the log: it ends when this
    context ends, or with this program."""
    port = free_port()
    command = [*on, str(OUTER_LOG), "--dir", str(folder), "--bind", address, "--port", str(port)]
    trial = [*on, "bash", "-c", f": </dev/tcp/{address}/{port}"]
    with start_session(command, signal.SIGTERM, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as server:
        while server.poll() is None and subprocess.run(trial, stderr=subprocess.DEVNULL).returncode != 0:
            time.sleep(0.1)
        if server.returncode is not None:
            told = ": see above" if server.returncode == REFUSED else ""
            raise UsageError(f"{OUTER_LOG} did not start ({_end_text(server.returncode)}){told}")
        os.environ[PASSWORD] = (folder / "password").read_text()
        try:
            yield Log(f"redis://{address}:{port}", server)
        finally:
            server.send_signal(signal.SIGTERM)


def end_of_groups(program: str, jobs: list[subprocess.Popen], log: Log) -> int | None:
    """The exit code of `program` once all groups have ended, one has failed, or the log has ended, which it says: groups
    would wait for it. None before."""
    codes = [job.poll() for job in jobs]
    if codes == [0] * len(jobs):
        return 0
    if how := log.end():
        said = f"the log has ended ({how}). The groups end with it, because no other log has what they exchanged."
        print(f"{program}: {said}", file=sys.stderr)
        return 1
    return next((positive(code) for code in codes if code), None)


def wait_for_groups(program: str, jobs: list[subprocess.Popen], log: Log, longest_seconds: float = math.inf) -> int | None:
    """end_of_groups() at their end; None if they have not ended by then."""
    end = time.monotonic() + longest_seconds
    while (code := end_of_groups(program, jobs, log)) is None and time.monotonic() < end:
        time.sleep(0.05)
    return code


def _end_text(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
