#!/usr/bin/env python3
"""launch/emulate-hosts: what the hosts are, and that nothing is left of them, whatever ends them."""

import os
import pathlib
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "faults"))
from emulated import EMULATE, PATIENCE, Hosts, skip_without_namespaces  # noqa: E402
from support import run, wait_for  # noqa: E402


class EmulateHostsTest(unittest.TestCase):
    def setUp(self) -> None:
        skip_without_namespaces()
        self.prefix = f"e{os.getpid()}x"
        self.addCleanup(self.call, "down")

    def call(self, verb: str, *arguments: str) -> subprocess.CompletedProcess:
        return run([EMULATE, verb, "--prefix", self.prefix, *arguments], None, timeout=PATIENCE)

    def on(self, host: int, *command: str) -> subprocess.CompletedProcess:
        return run([EMULATE, "exec", f"{self.prefix}{host}", *command], None, timeout=PATIENCE)

    def wait_for_end(self) -> None:
        wait_for(lambda: run(["pgrep", "-f", self.prefix], None).stdout == "", "all processes end", PATIENCE)

    def test_hosts(self) -> None:
        names = [f"{self.prefix}{number}" for number in (1, 2)]
        self.assertEqual(self.call("up", "2", "--rate", "1gbit").stdout.split(), names)
        again = self.call("up", "2")
        self.assertEqual(again.returncode, 2)
        self.assertIn("there are hosts", again.stderr)
        self.assertEqual(self.on(1, "hostname").stdout.strip(), names[0])
        self.assertIn("rate 1Gbit", self.on(2, "tc", "qdisc").stdout)
        self.assertEqual(self.on(1, "sh", "-c", "exit 7").returncode, 7)
        self.assertEqual(self.on(1, "ls", "/sys/class/net").stdout.split(), ["eth0", "lo"])
        self.assertEqual(
            self.on(1, "ssh", "-o", "BatchMode=yes", names[1], "hostname; exit 3").stdout.strip(), names[1]
        )
        self.assertEqual(self.call("run", "--per-host", "2", "hostname").stdout.split().count(names[1]), 2)

        self.on(2, "touch", "/dev/shm/left")
        self.assertEqual(self.on(1, "ls", "/dev/shm").stdout, "")
        self.on(2, "ip", "link", "set", "eth0", "down")
        self.assertEqual(self.on(1, "ssh", "-o", "ConnectTimeout=1", names[1], "true").returncode, 255)
        self.assertEqual(self.call("down").returncode, 0)
        self.wait_for_end()
        self.assertEqual(self.call("down").returncode, 0)

    def test_sets_side_by_side(self) -> None:
        with Hosts(2) as hosts:
            self.assertEqual(self.call("up", "2").returncode, 0)
            other = self.on(1, "ssh", "-o", "ConnectTimeout=1", hosts.names[0], "true")
            self.assertEqual(other.returncode, 255, "sets must not see each other")
            self.assertEqual(self.call("down").returncode, 0)
            self.assertEqual(hosts.do(hosts.names[1], "hostname").strip(), hosts.names[1])

    def test_run_ends_when_a_host_is_lost(self) -> None:
        """Open MPI without keepalive takes eight minutes, which is longer than PATIENCE."""
        self.assertEqual(self.call("up", "2").returncode, 0)
        command = [EMULATE, "run", "--prefix", self.prefix, "sh", "-c", "echo ready; exec sleep 1000"]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(running.stdout.close)
        self.addCleanup(running.wait, PATIENCE)
        self.addCleanup(running.kill)
        for _ in range(2):
            self.assertEqual(running.stdout.readline(), "ready\n")
        self.assertEqual(self.on(2, "ip", "link", "set", "eth0", "down").returncode, 0)
        self.assertNotEqual(running.wait(PATIENCE), 0)

    def held(self) -> subprocess.Popen:
        command = [EMULATE, "up", "2", "--hold", "--prefix", self.prefix]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        keeper = subprocess.Popen(command, start_new_session=True, **streams)
        self.addCleanup(keeper.stdout.close)
        self.addCleanup(keeper.wait, PATIENCE)
        self.addCleanup(keeper.stdin.close)
        for _ in range(2):
            keeper.stdout.readline()
        self.on(1, "sh", "-c", f"setsid sleep 1000 {self.prefix} </dev/null >/dev/null 2>&1 &")
        command = [EMULATE, "exec", f"{self.prefix}2", "sh", "-c", f"echo ready; sleep 1000; : {self.prefix}"]
        running = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.addCleanup(running.stdout.close)
        self.addCleanup(running.wait, PATIENCE)
        running.stdout.readline()
        return keeper

    def test_ends_with_its_keeper(self) -> None:
        for end in (lambda keeper: keeper.stdin.close(), lambda keeper: os.killpg(keeper.pid, signal.SIGINT),
                    subprocess.Popen.kill):  # fmt: skip
            end(self.held())
            self.wait_for_end()

    def test_signals_reach_the_command(self) -> None:
        self.assertEqual(self.call("up", "1").returncode, 0)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            # Each signal ends it, and none before it is ready is lost.
            script = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_DFL); "
            script += "print('ready', flush=True); time.sleep(1000)"
            command = [EMULATE, "exec", f"{self.prefix}1", sys.executable, "-c", script]
            streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            waiting = subprocess.Popen(command, **streams)
            waiting.stdout.readline()
            waiting.send_signal(number)
            self.assertEqual(waiting.wait(PATIENCE), 128 + number)
            waiting.stdout.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
