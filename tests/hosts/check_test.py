#!/usr/bin/env python3
"""launch/check-hosts over emulated hosts: what differs, and which host is slow, is named. A job names what differs, too."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "faults"))
from emulated import HostsCase  # noqa: E402
from support import BIN, ROOT, run  # noqa: E402

RUN = "--device=cpu --baseline=off --model=mlp --hidden=16 --data=synthetic:600 --batch=8 --steps=20".split()
# Of the usual rate. What is limited here has 1 part in 1000 or less; a busy machine has shown 1 part in 30 without any
# limit.
SLOW = 0.005


class CheckTest(HostsCase):
    @classmethod
    def setUpClass(cls) -> None:
        with contextlib.suppress(OSError):
            os.nice(-20)  # what else the machine does would make hosts slow
        super().setUpClass()

    def setUp(self) -> None:
        super().setUp()
        lines = ["# ours", *(f"{name} slots=1" for name in self.hosts.names)]
        (self.folder / "hostfile").write_text("\n".join(lines) + "\n")

    def call(self, *command: str, code: int = 0, **environment: str) -> str:
        on_first = self.hosts.on(self.hosts.names[0], *command)
        variables = os.environ | {"DDPTRAIN": str(BIN / "ddptrain"), "DDPBENCH": str(BIN / "ddpbench")} | environment
        done = run(on_first, code, cwd=self.folder, env=variables)
        return done.stdout + done.stderr

    def check_hosts(self, *flags: str, code: int = 1) -> str:
        """By default hosts differ or one is slow."""
        return self.call(str(ROOT / "launch" / "check-hosts"), "hostfile", *flags, code=code)

    def test_hosts_that_are_alike(self) -> None:
        text = self.check_hosts("--json", "doctor.json", "--tolerance", str(SLOW), "--data", str(self.folder), code=0)
        self.assertIn("The hosts have the same program, libraries and networks", text)
        self.assertNotRegex(text, " is slow: |: the data in ")
        result = json.loads((self.folder / "doctor.json").read_text())
        kinds = [row["kind"] for row in result["results"]]
        self.assertEqual((kinds.count("rank"), kinds.count("link")), (3, 6))
        self.assertGreaterEqual(kinds.count("all-reduce"), 4)  # all three hosts, and each two of them
        self.assertEqual(result["common"]["the network that MPI took"], "10.77.0.0/24")

    def test_the_host_that_sends_slowly_is_named(self) -> None:
        slow = self.hosts.names[1]
        self.hosts.do(slow, "tc qdisc replace dev eth0 root tbf rate 2mbit burst 64kb latency 100ms")
        self.addCleanup(self.hosts.do, slow, "tc qdisc delete dev eth0 root")
        text = self.check_hosts("--tolerance", str(SLOW))
        # On a busy machine also the way back to it.
        self.assertRegex(text, f"Slowest pair: ({slow} to .*|.* to {slow})")
        named = [line for line in text.splitlines() if " is slow: " in line]
        self.assertTrue(named and all(slow in line for line in named), text)
        for line, words in ((named[0], "it sends (?:and receives )?at"), (named[-1], "all-reduces with it run at")):
            self.assertRegex(line, rf"{slow} is slow: {words} \S+ GB/s, .* what is usual")
            self.assertLess(float(re.search(rf"{words} (\S+) GB/s", line)[1]), 0.001)

    def test_the_host_with_a_slow_processor_is_named(self) -> None:
        """Its rank is stopped for nearly all of the time."""
        slow = self.hosts.names[1]
        program = self.folder / "ddpbench"
        program.write_text(f"""#!/bin/sh
[ "$(hostname)" = {slow} ] || exec {BIN}/ddpbench "$@"
{BIN}/ddpbench "$@" &
while kill -STOP $! 2> /dev/null; do
  sleep 0.19
  kill -CONT $!
  sleep 0.01
done
wait $!
""")
        program.chmod(0o755)
        check = str(ROOT / "launch" / "check-hosts")
        text = self.call(check, "hostfile", "--tolerance", "0.3", code=1, DDPBENCH=str(program))
        self.assertRegex(text, rf"{slow} is slow: it computes at .*Different there: .*time on a processor \d")

    def test_differences_are_named(self) -> None:
        """Of the MTU, the program, the data and the networks; each of one host. A job names all but the data when it starts."""
        networked, other = self.hosts.names[1:]
        self.hosts.do(other, "ip link set eth0 mtu 1400")
        self.addCleanup(self.hosts.do, other, "ip link set eth0 mtu 1500")
        (self.folder / "own").mkdir()
        for name in ("ddpbench", "ddptrain"):
            shutil.copy(BIN / name, self.folder / "own" / name)
            with open(self.folder / "own" / name, "ab") as file:
                file.write(b" ")
        for name, labels in (("data", b"labels"), ("damaged", b"labelz")):
            (self.folder / name).mkdir()
            (self.folder / name / "labels").write_bytes(labels)
        data = self.folder / "data"
        for own, place in ((self.folder / "own", BIN), (self.folder / "damaged", data)):
            self.hosts.do(other, f"mount --bind {own} {place}")
            self.addCleanup(self.hosts.do, other, f"umount {place}")
        self.hosts.do(networked, "ip link add ib0 type bridge")
        self.addCleanup(self.hosts.do, networked, "ip link delete ib0")
        self.hosts.do(networked, "ip address add 10.78.0.1/24 dev ib0")
        self.hosts.do(networked, "ip link set ib0 up")
        text = self.check_hosts("--seconds", "0.2", "--data", str(data))
        self.assertRegex(text, f"{other}: the data in {data} is 1 files of 6 bytes .*, and 1 files of 6 bytes .* elsewhere")
        job = self.call(str(ROOT / "launch" / "hosts" / "train"), "hostfile", "--checkpoint=c", *RUN)
        for told in (
            f"{other}: the program is ",
            f"{other}: the MTU is 1400 on 10.77.0.0/24, and 1500 on 10.77.0.0/24 elsewhere. Give a network",
            f"{networked}: the list of networks is 10.77.0.0/24, 10.78.0.0/24, and 10.77.0.0/24 elsewhere. Name",
        ):
            self.assertIn(told, text)
            self.assertEqual(job.count(told), 1, job)


if __name__ == "__main__":
    unittest.main(verbosity=2)
