"""A log for groups of this machine (launch/outer-log), for as long as they train."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

from ddptools.common.errors import UsageError
from ddptools.common.runner import start_session

OUTER_LOG = pathlib.Path(__file__).resolve().parents[2] / "outer-log"
PASSWORD = "DDPTRAIN_OUTER_PASSWORD"
MOST_GROUPS = 1000  # of launch/local-groups


@contextlib.contextmanager
def log_server(folder: pathlib.Path) -> Iterator[str]:
    """Its address without the run, with the password in the environment. `folder`: of the log. A Ctrl-C of the terminal
    does not reach it: it ends when this context ends, or with this program."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(OUTER_LOG), "--dir", str(folder), "--port", str(port)]
    with start_session(command, signal.SIGTERM, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as server:
        while server.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                break
            time.sleep(0.1)
        if server.returncode is not None:
            raise UsageError(f"{OUTER_LOG} did not start: see above")
        os.environ[PASSWORD] = (folder / "password").read_text()
        try:
            yield f"redis://127.0.0.1:{port}"
        finally:
            server.send_signal(signal.SIGTERM)
