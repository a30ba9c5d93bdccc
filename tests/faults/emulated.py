"""Hosts of launch/emulate-hosts that end with this process, whatever ends it."""

import os
import subprocess
import time
import unittest

from support import ROOT, JobTest

EMULATE = str(ROOT / "launch" / "emulate-hosts")
PATIENCE = 120.0  # seconds after which what takes a moment hangs


def skip_without_namespaces() -> None:
    """SkipTest where this machine does not allow them."""
    trial = "unshare --net --mount --ipc --pid --fork ip link add name trial type bridge".split()
    try:
        subprocess.run(trial, check=True, capture_output=True, timeout=PATIENCE)
    except (OSError, subprocess.SubprocessError) as error:
        raise unittest.SkipTest(f"no network namespaces here: {error}") from error


class Hosts:
    """`names`: of the hosts. A context."""

    def __init__(self, count: int, *flags: str) -> None:
        skip_without_namespaces()
        self.prefix = f"t{os.getpid()}x"
        command = [EMULATE, "up", str(count), "--prefix", self.prefix, "--hold", *flags]
        self._keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.names = [self._keeper.stdout.readline().strip() for _ in range(count)]
        if "" in self.names:
            self.end()
            raise AssertionError("emulate-hosts up failed")

    def __enter__(self) -> "Hosts":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        self._keeper.stdin.close()
        self._keeper.wait(PATIENCE)
        self._keeper.stdout.close()

    def on(self, host: str, *command: str) -> list[str]:
        """The command line that runs `command` on it."""
        return [EMULATE, "exec", host, *command]

    def do(self, host: str, command: str) -> str:
        inside = self.on(host, *command.split())
        return subprocess.run(inside, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout

    def mpirun(self, per_host: int, *flags: str) -> list[str]:
        return [EMULATE, "run", "--prefix", self.prefix, "--per-host", str(per_host), *flags]

    def cut(self, host: str) -> float:
        """Its link; the time of that."""
        self.do(host, "ip link set eth0 down")
        return time.monotonic()

    def mend(self, host: str) -> None:
        self.do(host, "ip link set eth0 up")
        self.do(f"{self.prefix}-switch", f"bridge link set dev {host} state 3")

    def drop(self, host: str) -> float:
        """Every frame from and to it, while its link stays up."""
        self.do(f"{self.prefix}-switch", f"bridge link set dev {host} state 0")
        return time.monotonic()


class HostsCase(JobTest):
    """All its tests share the hosts; each has an empty folder."""

    count = 3
    hosts: Hosts

    @classmethod
    def setUpClass(cls) -> None:
        cls.hosts = cls.enterClassContext(Hosts(cls.count))
