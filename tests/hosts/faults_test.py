#!/usr/bin/env python3
"""Jobs over three hosts under launch/supervise, to which things happen: every one ends in time on every host, with the
host's name in the last line and an exit code that tells what it was; and they go on, on as many hosts and on fewer.

Every test prints how long the fault took to be noticed and how long everything took to end.
"""

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

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "faults"))
from emulated import ROOT, Hosts  # noqa: E402
from job import processes_with, runs, variable  # noqa: E402

BIN = pathlib.Path(os.environ.get("DDPTRAIN_BIN", ROOT / "build" / "bin")).resolve()
RUN = ["--device=cpu", "--baseline=off", "--model=mlp", "--hidden=16", "--data=synthetic:600", "--batch=8"]
TIMEOUT = 12  # seconds; longer than keepalive's 9
LIMIT = 25.0 if os.environ.get("CI") is None else 15.0


class HostsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.hosts = cls.enterClassContext(Hosts(3))

    def setUp(self) -> None:
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="ddptrain-hosts-")))

    def supervise(self, *flags: str, restarts: int = 0, own: tuple[str, ...] = (), timeout: int = TIMEOUT) -> None:
        places = ",".join(f"{name}:1" for name in self.hosts.names)
        program = [str(BIN / "ddptrain"), *RUN, "--checkpoint=c", "--metrics=m.jsonl", f"--timeout={timeout}", *flags]
        mpirun = ["mpirun", "--bind-to", "none", "--host", places, *program]
        supervise = [str(ROOT / "launch" / "supervise"), f"--restarts={restarts}", "--pause=0.5", *own, *mpirun]
        self.output = open(self.folder / "output", "wb")
        self.addCleanup(self.output.close)
        self.process = subprocess.Popen(
            self.hosts.on(self.hosts.names[0], *supervise), cwd=self.folder, stdout=self.output, stderr=self.output
        )
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)

    def text(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def until(self, condition, what: str, seconds: float = 120.0) -> float:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not within {seconds} s\n{self.text()}")
            time.sleep(0.05)
        return time.monotonic()

    def steps(self) -> list[int]:
        return sorted(int(path.parent.name[5:]) for path in (self.folder / "c").glob("step-*/manifest.json"))

    def marked(self) -> dict[int, str]:
        """Processes of the job on all hosts: daemons and ranks."""
        found = {}
        for folder in pathlib.Path("/proc").iterdir():
            if folder.name.isdigit() and variable(int(folder.name), "OMPI_MCA_ddptrain_job") and runs(int(folder.name)):
                found[int(folder.name)] = (folder / "comm").read_text().strip()
        return {process: name for process, name in found.items() if self.host_of(process) in self.hosts.names}

    def host_of(self, process: int) -> str:
        try:
            inside = ["nsenter", "-t", str(process), "--uts", "hostname"]
            return subprocess.run(inside, capture_output=True, text=True, timeout=10).stdout.strip()
        except OSError:
            return ""

    def process_on(self, host: str, name: str) -> int:
        return next(p for p, comm in self.marked().items() if comm == name and self.host_of(p) == host)

    def training(self, *flags: str, **settings) -> None:
        """Endless, until it has a checkpoint."""
        self.supervise("--steps=10000000", "--checkpoint-every=200", *flags, **settings)
        self.until(lambda: self.steps() or self.process.poll() is not None, "it trains")
        self.assertIsNone(self.process.poll(), self.text())

    def check_end(self, fault: float, code: int, last: str, limit: float = LIMIT) -> None:
        ended = self.until(lambda: self.process.poll() is not None, "supervise ends")
        gone = self.until(lambda: not self.marked(), "all processes end", 30)
        print(f"{self.id().split('.', 1)[1]}: supervise ended after {ended - fault:.1f} s, all processes after "
              f"{gone - fault:.1f} s, code {self.process.returncode}", flush=True)  # fmt: skip
        self.assertEqual(self.process.returncode, code, self.text())
        self.assertRegex(self.text().splitlines()[-1], last)
        self.assertLess(gone - fault, limit)
        self.assertEqual([host for host in self.hosts.names if "segment" in self.hosts.do(host, "ls /dev/shm")], [])


class FaultsOverHosts(HostsTest):
    def kill(self, host: str, name: str, number: signal.Signals) -> float:
        os.kill(self.process_on(host, name), number)
        return time.monotonic()

    def test_rank_killed(self) -> None:
        self.training()
        self.check_end(self.kill(self.hosts.names[2], "ddptrain", signal.SIGKILL), 137, "ended by SIGKILL")

    def test_rank_stopped(self) -> None:
        self.training()
        fault = self.kill(self.hosts.names[2], "ddptrain", signal.SIGSTOP)
        self.check_end(fault, 76, rf"rank 2 \({self.hosts.names[2]}\)")

    def test_daemon_killed(self) -> None:
        self.training()
        self.check_end(self.kill(self.hosts.names[2], "orted", signal.SIGKILL), 77, f"daemon on {self.hosts.names[2]}")

    def test_link_down(self) -> None:
        self.training()
        self.addCleanup(self.hosts.mend, self.hosts.names[2])
        self.check_end(self.hosts.cut(self.hosts.names[2]), 77, f"lost {self.hosts.names[2]}")

    def test_black_hole(self) -> None:
        self.training()
        self.addCleanup(self.hosts.mend, self.hosts.names[2])
        self.check_end(self.hosts.drop(self.hosts.names[2]), 77, f"lost {self.hosts.names[2]}")

    def test_watchdog_before_keepalive(self) -> None:
        """mpirun hangs then: supervise ends it."""
        self.training(timeout=3)
        self.addCleanup(self.hosts.mend, self.hosts.names[2])
        self.check_end(self.hosts.drop(self.hosts.names[2]), 77, f"lost {self.hosts.names[2]}")

    def test_full_disk_on_one_host(self) -> None:
        self.training()
        self.hosts.do(self.hosts.names[1], f"mount -t tmpfs -o size=4k tmpfs {self.folder}/c")
        fault = time.monotonic()
        self.addCleanup(self.hosts.do, self.hosts.names[1], f"umount {self.folder}/c")
        self.check_end(fault, 1, self.hosts.names[1])

    def test_preempted(self) -> None:
        self.training()
        self.process.terminate()
        self.check_end(time.monotonic(), 75, "exit code 75")


if __name__ == "__main__":
    unittest.main(verbosity=2)
