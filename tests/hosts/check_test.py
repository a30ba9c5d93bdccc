#!/usr/bin/env python3
"""launch/check-hosts and launch/hosts over emulated hosts: what differs, and which host is slow, is named; a job says at
its start what differs between its hosts."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "faults"))
from emulated import ROOT, Hosts  # noqa: E402

BIN = pathlib.Path(os.environ.get("DDPTRAIN_BIN", ROOT / "build" / "bin")).resolve()
RUN = [
    "--device=cpu",
    "--baseline=off",
    "--model=mlp",
    "--hidden=16",
    "--data=synthetic:600",
    "--batch=8",
    "--steps=20",
]


class CheckTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.hosts = cls.enterClassContext(Hosts(3))

    def setUp(self) -> None:
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="ddptrain-check-")))
        lines = ["# ours", *(f"{name} slots=1" for name in self.hosts.names)]
        (self.folder / "hostfile").write_text("\n".join(lines) + "\n")

    def call(self, *command: str, code: int = 0, **environment: str) -> str:
        on_first = self.hosts.on(self.hosts.names[0], *command)
        variables = os.environ | {"DDPTRAIN": str(BIN / "ddptrain"), "DDPBENCH": str(BIN / "ddpbench")} | environment
        run = subprocess.run(on_first, cwd=self.folder, env=variables, capture_output=True, text=True, timeout=200)
        self.assertEqual(run.returncode, code, run.stdout + run.stderr)
        return run.stdout + run.stderr

    def check_hosts(self, *flags: str) -> str:
        return self.call(str(ROOT / "launch" / "check-hosts"), "hostfile", *flags)

    def test_hosts_that_are_alike(self) -> None:
        text = self.check_hosts("--json", "doctor.json", "--tolerance", "0.05")
        self.assertIn("The hosts have the same program, libraries, networks and time", text)
        self.assertNotIn(" is slow: ", text)
        result = json.loads((self.folder / "doctor.json").read_text())
        self.assertEqual(sum(row["kind"] == "link" for row in result["results"]), 6)

    def test_the_slow_host_is_named(self) -> None:
        slow = self.hosts.names[1]
        limit = "tc qdisc replace dev eth0 root tbf rate 2mbit burst 64kb latency 100ms"
        self.hosts.do(slow, limit)
        self.addCleanup(self.hosts.do, slow, "tc qdisc delete dev eth0 root")
        text = self.check_hosts("--tolerance", "0.1")
        named = [line for line in text.splitlines() if " is slow: " in line]
        self.assertTrue(all(slow in line for line in named), text)  # on a busy machine also the way back to it
        self.assertRegex(named[0], f"{slow} is slow: it sends at 0.000")

    def test_differences_are_named(self) -> None:
        other = self.hosts.names[2]
        self.hosts.do(other, "ip link set eth0 mtu 1400")
        self.addCleanup(self.hosts.do, other, "ip link set eth0 mtu 1500")
        (self.folder / "own").mkdir()
        shutil.copy(BIN / "ddpbench", self.folder / "own" / "ddpbench")
        with open(self.folder / "own" / "ddpbench", "ab") as file:
            file.write(b" ")
        self.hosts.do(other, f"mount --bind {self.folder}/own {BIN}")
        self.addCleanup(self.hosts.do, other, f"umount {BIN}")
        text = self.check_hosts("--seconds", "0.2")
        self.assertIn(f"{other}: the program is ", text)
        self.assertIn(
            f"{other}: the MTU is 1400 on 10.77.0.0/24, and 1500 on 10.77.0.0/24 elsewhere. Give a network", text
        )

    def test_a_job_says_what_differs(self) -> None:
        other = self.hosts.names[2]
        self.hosts.do(other, "ip link set eth0 mtu 1400")
        self.addCleanup(self.hosts.do, other, "ip link set eth0 mtu 1500")
        train = [str(ROOT / "launch" / "hosts" / "train"), "hostfile", "--checkpoint=c", *RUN]
        text = self.call(*train)
        self.assertEqual(text.count(f"{other}: the MTU is 1400"), 1, text)
        self.assertRegex(text, r"Ranks +3 on 3 nodes")

    def test_ssh_is_checked(self) -> None:
        check = str(ROOT / "launch" / "hosts" / "check-ssh")
        self.assertEqual(self.call(check, "hostfile", str(BIN / "ddptrain")).count(": good"), 3)
        self.assertEqual(
            self.call(check, "hostfile", "no-such-program", code=1).count("use a folder that all hosts share"), 3
        )
        self.hosts.cut(self.hosts.names[1])
        self.addCleanup(self.hosts.mend, self.hosts.names[1])
        text = self.call(check, "hostfile", str(BIN / "ddptrain"), code=1)
        self.assertIn(f"{self.hosts.names[1]}: no ssh without a password (ssh-copy-id", text)
        self.assertEqual(text.count(": good"), 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
