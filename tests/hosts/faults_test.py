#!/usr/bin/env python3
"""Jobs over three hosts under launch/supervise, to which things happen: every one ends on every host, with the
host's name in the last line and an exit code that tells what it was; and they go on, on as many hosts and on fewer.
A job of two hosts without supervise ends, too.

Every test prints how long the fault took to be noticed and how long everything took to end.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "faults"))
from emulated import HostsCase  # noqa: E402
from support import BIN, ROOT, Job, children, run, starts, wait_for  # noqa: E402

RUN = ["--device=cpu", "--baseline=off", "--model=mlp", "--hidden=16", "--data=synthetic:600", "--batch=8"]
# Of a job that has noticed that it ends.
NOTICED = re.compile(
    r"has been waiting in|lost communication|exited on signal|error on rank|asks for a checkpoint|SIGUSR2|attempt 1 ended"
)
TIMEOUT = 10  # seconds; longer than keepalive's 9
MORE = 50  # steps
HANGS = 180.0  # seconds after which a job counts as one that hangs; how long it took is printed
JOB = "ddptrain|mpirun|orted|prterun|prted"  # processes of a job, without supervise


class HostsTest(HostsCase):
    _newest = 0

    def start(self, before: list[str], *flags: str, timeout: int = TIMEOUT, preload: str = "") -> None:
        """`before`: the command before mpirun."""
        places = ",".join(f"{name}:1" for name in self.hosts.names)
        program = [str(BIN / "ddptrain"), *RUN, "--checkpoint=c", "--metrics=m.jsonl", f"--timeout={timeout}", *flags]
        exported = ["-x", f"LD_PRELOAD={preload}"] if preload else []
        mpirun = ["mpirun", "--bind-to", "none", *exported, "--host", places, *program]
        self.job = Job(self.hosts.on(self.hosts.names[0], *before, *mpirun), self.folder)
        self.addCleanup(self.job.end)
        self.process, self.text = self.job.process, self.job.text

    def supervise(self, *flags: str, restarts: int = 0, own: tuple[str, ...] = (), **settings) -> None:
        command = [str(ROOT / "launch" / "supervise"), f"--restarts={restarts}", "--pause=0.5", *own]
        self.start(command, *flags, **settings)

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 120.0) -> float:
        return wait_for(condition, what, seconds, self.text)

    def newest(self) -> int:
        """Step of the newest checkpoint; 0: there is none. They may come and go while this looks."""
        self._newest = max(self._newest, *self.steps("c"), 0)
        return self._newest

    def until_newer(self, what: str) -> None:
        known = self.newest()
        self.until(lambda: self.newest() > known, what)

    def running(self, names: str = JOB) -> str:
        """Processes on all hosts, which have a namespace of processes together."""
        found = self.hosts.on(self.hosts.names[0], "pgrep", "--runstates", "R,S,D,T", "--exact", names)
        return run(found, None).stdout

    def kill(self, host: str, number: signal.Signals, names: str = "ddptrain") -> float:
        """Processes on this host; the time just after."""
        script = f"pkill -{number} --ns $$ --nslist uts --exact '{names}'"
        run(self.hosts.on(host, "sh", "-c", script))
        return time.monotonic()

    def training(self, *flags: str, **settings) -> None:
        """Endless, until it has a checkpoint."""
        self.end_at(10000000)
        self.supervise("--config=run.toml", "--checkpoint-every=50", *flags, **settings)
        self.until(lambda: self.newest() > 0 or self.process.poll() is not None, "it trains")
        self.assertIsNone(self.process.poll(), self.text())

    def check_end(self, fault: float, codes: tuple[int, ...], last: str, before: int = 0, unclean: tuple[str, ...] = ()) -> None:
        """`before`: length of the output before the fault, where it tells of an earlier one. `unclean`: supervise reaches
        these hosts no longer, so they may keep Open MPI's files."""
        noticed = self.until(lambda: NOTICED.search(self.text()[before:]) is not None, "the fault is noticed", HANGS)
        ended = self.until(lambda: not self.job.running(), "supervise ends", HANGS)
        gone = self.until(lambda: not self.running(), "all processes end", HANGS)
        print(f"{self.id().split('.', 1)[1]}: noticed after {noticed - fault:.1f} s, supervise ended after "
              f"{ended - fault:.1f} s, all processes after {gone - fault:.1f} s, code {self.process.returncode}",
              flush=True)  # fmt: skip
        self.assertIn(self.process.returncode, codes, self.text())
        self.assertRegex(self.text().splitlines()[-1], last)
        left = {host: self.hosts.do(host, "ls -I clock-jump /dev/shm") for host in self.hosts.names}
        for host in unclean:
            left.pop(host)
            self.hosts.do(host, "find /dev/shm -depth -path /dev/shm/ddptrain-* -delete")
        self.assertEqual([host for host, files in left.items() if files], [], left)


class FaultsOverHosts(HostsTest):
    def test_rank_killed(self) -> None:
        self.training()
        fault, host = self.kill(self.hosts.names[2], signal.SIGKILL), self.hosts.names[2]
        # Open MPI 5 may end with the errors of the other ranks.
        self.check_end(fault, (137, 14), f"rank 2 on {host} ended by SIGKILL|a rank on {host} ended, and others lost")

    def test_throw(self) -> None:
        self.end_at(10000000)
        self.supervise("--config=run.toml", "--fail-at=1:100")
        error = rf"error on rank 1 \({self.hosts.names[1]}\): step 100 fails"
        self.until(lambda: re.search(error, self.text()) is not None, "rank 1 fails")
        self.check_end(time.monotonic(), (1,), error)
        self.assertNotIn("outlives", self.text(), "mpirun ends by itself")

    def test_rank_stopped(self) -> None:
        self.training(timeout=4)  # all links are up: keepalive has nothing to notice
        fault = self.kill(self.hosts.names[2], signal.SIGSTOP)
        self.check_end(fault, (76,), rf"rank 2 \({self.hosts.names[2]}\)")

    def test_daemon_killed(self) -> None:
        self.training()
        fault = self.kill(self.hosts.names[2], signal.SIGKILL, "orted|prted")
        # Open MPI 5 names the host on standard output, which supervise does not read.
        self.check_end(fault, (77, 137), f"daemon on {self.hosts.names[2]}|ended by SIGKILL")

    def test_link_down(self) -> None:
        self.training()
        lost = self.hosts.names[2]
        self.addCleanup(self.hosts.mend, lost)
        self.check_end(self.hosts.cut(lost), (77,), f"lost {lost}", unclean=(lost,))

    def test_watchdog_before_keepalive(self) -> None:
        """mpirun hangs then: supervise ends it."""
        self.training(timeout=6)
        lost = self.hosts.names[2]
        self.addCleanup(self.hosts.mend, lost)
        self.check_end(self.hosts.drop(lost), (77,), f"lost {lost}", unclean=(lost,))

    def test_full_disk_on_one_host(self) -> None:
        self.training()
        self.hosts.do(self.hosts.names[1], f"mount -t tmpfs -o size=4k tmpfs {self.folder}/c")
        fault = time.monotonic()
        self.addCleanup(self.hosts.do, self.hosts.names[1], f"umount {self.folder}/c")
        self.check_end(fault, (1,), self.hosts.names[1])

    def test_clock_jump(self) -> None:
        """Nothing happens to the job."""
        source = pathlib.Path(__file__).with_name("clock_jump.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", self.folder / "jump.so", source], check=True)
        ahead = self.hosts.names[2]
        self.addCleanup(self.hosts.do, ahead, "rm -f /dev/shm/clock-jump")
        self.training(preload=f"{self.folder}/jump.so")
        self.hosts.do(ahead, "touch /dev/shm/clock-jump")
        for _ in range(2):
            self.until_newer("it goes on")
        self.assertNotIn("attempt 2", self.text())
        before = len(self.text())
        self.process.terminate()
        self.check_end(time.monotonic(), (75,), "exit code 75", before)


class LinkDownWithoutSupervise(HostsTest):
    count = 2

    def test_link_down(self) -> None:
        """mpirun, without keepalive, notices nothing for minutes. Each rank ends by itself, and one names the other."""
        lost = self.hosts.names[1]
        self.start([], "--steps=10000000", "--log-every=5", "--flight=flight", timeout=4)
        self.job.wait_until(lambda: "Step 10/" in self.text())
        self.addCleanup(self.hosts.mend, lost)
        self.hosts.cut(lost)
        self.until(lambda: not self.running("ddptrain"), "all ranks end", HANGS)
        self.assertRegex(self.text(), rf"Missing: rank 1 \({lost}\) does not answer")
        self.assertEqual(len(list((self.folder / "flight").glob("rank*.jsonl"))), 2)


class RestartsOverHosts(HostsTest):
    def undisturbed(self, steps: int, *flags: str) -> dict:
        program = [str(BIN / "ddptrain"), *RUN, *flags, f"--steps={steps}", "--metrics=undisturbed.jsonl"]
        run([*self.hosts.mpirun(1), *program], cwd=self.folder)
        return self.lines("undisturbed.jsonl")[-1]

    def kill_rank_for_the_last_time(self, host: str) -> int:
        """The next attempt ends MORE steps after the newest checkpoint: at the step that this returns. supervise, which
        starts it, stands still until the step is known."""
        (supervise,) = children(self.process.pid)
        os.kill(supervise, signal.SIGSTOP)
        self.kill(host, signal.SIGKILL)
        self.until(lambda: not self.running("ddptrain"), "all ranks end")
        steps = self.newest() + MORE
        self.end_at(steps)
        os.kill(supervise, signal.SIGCONT)
        return steps

    def ended_at(self, steps: int, newest: int = 0) -> dict:
        """`newest`: step of the newest checkpoint when the job started."""
        self.until(lambda: not self.job.running(), "the job ends")
        self.assertEqual(self.process.returncode, 0, self.text())
        self.assertEqual(starts(self.text(), newest)[-1], steps - MORE)
        summary = self.lines("m.jsonl")[-1]
        self.assertEqual(summary["steps"], steps)
        return summary

    def test_preempted(self) -> None:
        """SIGTERM: the ranks save the step that they have reached, and the next job goes on from it."""
        self.training()
        self.process.terminate()
        self.until(lambda: not self.job.running(), "supervise ends")
        self.assertEqual(self.process.returncode, 75, self.text())
        step = int(re.search(r"ended after step (\d+)", self.text())[1])
        self.assertEqual(self.newest(), step)
        self.end_at(step + MORE)
        self.supervise("--config=run.toml")
        summary, undisturbed = self.ended_at(step + MORE, step), self.undisturbed(step + MORE)
        self.assertEqual(summary["parameter_hash"], undisturbed["parameter_hash"])

    def test_on_as_many_hosts(self) -> None:
        """Bit by bit what an undisturbed run gives."""
        self.training(restarts=3)
        steps = self.kill_rank_for_the_last_time(self.hosts.names[2])
        self.assertEqual(self.ended_at(steps)["parameter_hash"], self.undisturbed(steps)["parameter_hash"])

    def test_on_fewer_hosts_and_back(self) -> None:
        """The samples of a step stay the same, and so do the losses, within rounding."""
        slowly = "--lr=1e-5"
        self.training(slowly, restarts=5, own=("--min-ranks", "2"))
        self.addCleanup(self.hosts.mend, self.hosts.names[2])
        self.hosts.drop(self.hosts.names[2])
        self.until(lambda: "attempt 2: " in self.text(), "attempt 2 starts")
        self.until_newer("attempt 2 trains")
        self.assertRegex(self.text(), "attempt 2: .* --batch 6 --grad-accum 2")
        self.hosts.mend(self.hosts.names[2])
        steps = self.kill_rank_for_the_last_time(self.hosts.names[1])
        summary = self.ended_at(steps)
        self.assertEqual(summary["world_size"], 3)
        expected = self.undisturbed(steps, slowly)
        for name in ("loss", "test_loss"):
            self.assertAlmostEqual(summary[name], expected[name], places=4)


if __name__ == "__main__":
    unittest.main(verbosity=2)
