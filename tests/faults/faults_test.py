#!/usr/bin/env python3
"""What happens to real jobs when a rank is killed, crashes, is stopped, hangs or throws, and when a link is cut.

Every test prints how long the fault took to be noticed and how long all ranks took to end. faults_test.py --long runs
the slow ones too.
"""

import json
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

from support import (
    ENVIRONMENT, HYDRA, MPIRUN, ROOT, SHARE_GPU, SHARING, Job, JobTest, find_mpirun, gpus, is_alive, wait_for,
)  # fmt: skip

END = 60.0  # seconds after a fault was noticed in which all ranks end, as PAGE promises; the times are printed
PAGE = ROOT / "docs" / "troubleshooting.md"
LATE = 60.0  # seconds by which a time-out may be late where other programs use the machine
TICK = 0.6  # seconds by which a time-out may be late in the time of a process that runs
LONG = "--long" in sys.argv


def long_only(test):
    return unittest.skipUnless(LONG, "slow: faults_test.py --long")(test)


class FaultsBase(JobTest):
    world_size = 3
    timeout = 3.0  # more than a healthy rank may need for a step where it has little of a processor
    start_timeout = 3.0
    settings = ["--device", "cpu", "--data", "synthetic:400", "--batch", "8"]

    def faulty(self, *flags: str, timeout: float | None = None, mpirun: list[str] = MPIRUN) -> Job:
        """When all its ranks have started."""
        common = ["--timeout", str(timeout or self.timeout), "--flight", str(self.folder / "flight")]
        job = self.job(self.world_size, *self.settings, *common, *flags, mpirun=mpirun)
        self.processes, self.shared_memory = [], set()
        job.wait_until(lambda: len(self.find(job)) == self.world_size or job.said("error on rank") is not None)
        return job

    def find(self, job: Job) -> list[int]:
        self.processes = job.ranks() or self.processes
        return self.processes

    def training(self, timeout: float | None = None, mpirun: list[str] = MPIRUN) -> Job:
        job = self.faulty("--baseline=off", "--steps=10000000", "--log-every=5", timeout=timeout, mpirun=mpirun)
        job.wait_until(lambda: "Step 10/" in job.text())
        maps = "".join(pathlib.Path(f"/proc/{rank}/maps").read_text() for rank in job.ranks())
        self.shared_memory = set(re.findall(r"/dev/shm/\S+", maps))  # whether it still has a name or not
        return job

    def all_ended(self, job: Job) -> float:
        """When mpirun and all ranks have ended."""
        job.wait_until(lambda: not job.running(), END + LATE)
        return self.ranks_end(job)

    def ranks_end(self, job: Job) -> float:
        return wait_for(lambda: not any(map(is_alive, self.processes)), "the ranks end", END + LATE, job.text)

    def left_behind(self) -> list[str]:
        return sorted(file for file in self.shared_memory if pathlib.Path(file).exists())

    def tell(self, noticed: float, ended: float) -> None:
        name = self.id().split(".", 1)[1]
        print(f"{name}: noticed after {noticed:.1f} s, all ended after {ended:.1f} s", flush=True)

    def check_end(self, job: Job, fault: float, says: str, code: int | None = None) -> None:
        """All end soon after a line that `says` so; nothing is left behind."""
        ended = self.all_ended(job)
        noticed = job.said(says)
        self.assertIsNotNone(noticed, job.text())
        self.tell(noticed - fault, ended - fault)
        self.assertLess(ended - noticed, END, job.text())
        self.assertNotEqual(job.process.returncode, 0, job.text())
        if code is not None:
            self.assertEqual(job.process.returncode, code, job.text())
        self.assertEqual(self.left_behind(), [])

    def check_timeout(self, job: Job, fault: float, names: str, timeout: float, answers: int) -> None:
        """Noticed in time, named in one line of one rank, with a record of every rank that answers: so many."""
        # MPICH's mpirun kills the ranks that are left, and on a shared GPU they lose the memory of the rank that ends: the exit
        # code may be theirs.
        self.check_end(job, fault, "has been waiting", None if find_mpirun() is HYDRA or SHARING else 76)
        self.assertLess(job.said("has been waiting") - fault, timeout + LATE, job.text())
        lines = [line for _, line in job.lines if "has been waiting" in line]
        self.assertEqual(len(lines), 1, job.text())
        self.assertRegex(lines[0], names)
        waited = float(re.search(r"has been waiting.*? for (\d+\.\d) s \(", lines[0])[1])
        self.assertGreaterEqual(waited, timeout)
        self.assertLess(waited, timeout + TICK)
        self.assertGreaterEqual(len(list((self.folder / "flight").glob("rank*.jsonl"))), answers)

    def records(self) -> list[list[dict]]:
        files = sorted((self.folder / "flight").glob("rank*.jsonl"))
        return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


class Promise(unittest.TestCase):
    def test_is_what_is_asserted(self) -> None:
        text = " ".join(PAGE.read_text(encoding="utf-8").split())
        self.assertIn(f"all ranks end within {END:.0f} s after the failure was noticed", text)


class Faults(FaultsBase):
    # --- processes that end -------------------------------------------------------------------------------------

    def test_killed_and_crashed(self) -> None:
        for rank, number in ((1, signal.SIGKILL), (0, signal.SIGSEGV)):
            with self.subTest(number.name):
                job = self.training()
                says = rf"process rank {rank} with PID|\(signal {number}\)"
                self.check_end(job, job.signal(rank, number), says)

    def test_thrown(self) -> None:
        job = self.faulty("--baseline=off", "--steps=20", "--fail-at=1:12")
        job.wait_until(lambda: job.said("error on rank 1") is not None)
        self.check_end(job, job.said("error on rank 1"), "error on rank 1", 1)
        self.assertEqual(job.text().count("step 12 fails because --fail-at says so"), 1)

    def test_the_first_cause_is_the_last_line_with_mpirun_quiet(self) -> None:
        quiet = [*MPIRUN, "--quiet"]
        if subprocess.run([*quiet, "-np", "1", "true"], env=ENVIRONMENT, capture_output=True).returncode != 0:
            self.skipTest("this mpirun has no --quiet")  # that of Open MPI 4 has it
        job = self.faulty("--baseline=off", "--steps=20", "--fail-at=1:12", mpirun=quiet)
        job.wait()
        # A rank that was reading from the one that ended may have Open MPI say so.
        lines = [line for _, line in job.lines if not re.match(r"\[\S+:\d+\] Read -1, expected", line)]
        self.assertIn("error on rank 1", lines[-1], job.text())

    def test_mpirun_killed(self) -> None:
        job = self.training()
        fault = time.monotonic()
        job.process.kill()
        ended = self.all_ended(job)
        self.tell(ended - fault, ended - fault)
        self.assertLess(ended - fault, END)
        for file in self.left_behind():  # mpirun did not live to remove them
            self.assertRegex(file, r"^/dev/shm/(vader|sm)_segment\.")
            pathlib.Path(file).unlink(missing_ok=True)

    # --- processes that stay ------------------------------------------------------------------------------------

    def test_stopped(self) -> None:
        job = self.training()
        last = self.world_size - 1
        fault = job.signal(last, signal.SIGSTOP)
        self.check_timeout(job, fault, rf"Missing: rank {last} \(\S+\) does not answer, last heard of", self.timeout, last)
        waiting = self.records()[0]
        self.assertTrue(any(line["event"] == "collective" and line["finished"] is None for line in waiting))

    def test_a_healthy_rank_that_stands_still_at_the_time_out_is_not_named(self) -> None:
        job = self.training()
        fault = job.signal(2, signal.SIGSTOP)
        time.sleep(self.timeout - 0.3)
        job.signal(1, signal.SIGSTOP)
        time.sleep(1.5)  # beyond the time-out and the first answers
        job.signal(1, signal.SIGCONT)
        self.check_timeout(job, fault, r"Missing: rank 2 \(\S+\) does not answer", self.timeout, 1)
        (line,) = [line for _, line in job.lines if "Missing: " in line]
        self.assertNotIn("rank 1 (", line.partition("Missing: ")[2])

    def test_stopped_as_a_whole_and_continued_goes_on(self) -> None:
        """The others have waited for the last rank, but not for so long, when they are stopped as well."""
        timeout = 6.0  # far more than they have waited
        job = self.training(timeout=timeout)
        ranks = range(self.world_size)
        job.signal(ranks[-1], signal.SIGSTOP)
        time.sleep(1.0)
        for rank in ranks[:-1]:
            job.signal(rank, signal.SIGSTOP)
        time.sleep(timeout)
        for rank in ranks:
            job.signal(rank, signal.SIGCONT)
        count = job.text().count("Step ")
        job.wait_until(lambda: job.text().count("Step ") > count + 2)
        self.assertIsNone(job.said("has been waiting"), job.text())

    def hangs(self, where: str, *flags: str, started: bool = True) -> None:
        """Rank 1 hangs there."""
        timeout = self.timeout if started else self.start_timeout
        job = self.faulty(f"--hang-at=1:{where}", *flags, timeout=timeout)
        job.wait_until(lambda: job.said("this rank hangs") is not None)
        names = r"Missing: rank 1 \(\S+\) has not entered a collective for"
        limit = timeout if started else 3 * timeout
        self.check_timeout(job, job.said("this rank hangs"), names, limit, self.world_size)

    def test_sigterm_ends_a_rank_that_hangs(self) -> None:
        """No rank waits for it."""
        self.world_size = 1
        job = self.faulty("--hang-at=0:12", "--baseline=off", "--steps=100", timeout=2.0)
        job.wait_until(lambda: job.said("this rank hangs") is not None)
        fault = job.signal(0, signal.SIGTERM)
        self.check_end(job, fault, "busy with its own work for .*, although SIGTERM asked it to end", 76)
        self.assertEqual(len(self.records()), 1)

    def test_hangs_in_start_up(self) -> None:
        self.hangs("start-up", started=False)

    @long_only
    def test_hangs_before_the_first_step(self) -> None:
        self.hangs("training", started=False)

    def test_hangs_in_a_step(self) -> None:
        self.hangs("20", "--baseline=off", "--steps=100")

    def test_hangs_in_evaluation(self) -> None:
        self.hangs("evaluation", "--baseline=off", "--steps=20")

    @unittest.skipIf(SHARING, "ranks that share a GPU measure no baseline")
    def test_hangs_in_the_baseline(self) -> None:
        self.hangs("baseline", "--steps=20")

    @long_only
    def test_hangs_in_trace(self) -> None:
        self.hangs("trace", "--baseline=off", "--steps=20", f"--trace={self.folder}/trace.json")

    def test_hangs_at_the_end(self) -> None:
        self.hangs("end", "--baseline=off", "--steps=20")


class FaultsOfFourRanks(FaultsBase):
    world_size = 4

    def test_a_rank_that_stood_still_does_not_hide_the_one_that_hangs(self) -> None:
        job = self.faulty("--hang-at=3:evaluation", "--baseline=off", "--steps=20")
        job.wait_until(lambda: job.said("this rank hangs") is not None)
        fault = job.signal(0, signal.SIGSTOP)
        time.sleep(1.5 * self.timeout)
        job.signal(0, signal.SIGCONT)
        self.check_timeout(job, fault, r"Missing: rank 3 \(\S+\) has not entered a collective for", self.timeout, 2)


@unittest.skipUnless(gpus() >= 2 or SHARING, "two GPUs are needed")
class FaultsOnGpus(Faults):
    world_size = SHARING or 2
    timeout = 6.0
    start_timeout = 6.0
    settings = ["--device", "cuda", "--data", "synthetic:20000", "--batch", "64", *SHARE_GPU]


@unittest.skipUnless(gpus() >= 2 or SHARING, "two GPUs are needed")
class FaultsOnGpusOfTwoHosts(FaultsBase):
    """NCCL takes the two ranks for hosts and sends over sockets, which takes most of a step of this model. So the fault
    comes in the middle of a collective."""

    world_size = 2
    timeout = 6.0
    settings = ["--device=cuda", "--model=gpt", "--layers=2", "--width=1024", "--heads=8", "--ff=4096", "--seq=128",
                "--data=synthetic:200000:64", "--batch=2", "--graph=off", *SHARE_GPU]  # fmt: skip
    # Each rank gets an environment of its own; the first two words are those of Job.
    hosts = ["-np", "2", "-x", "NCCL_SOCKET_IFNAME=lo", "-x", "NCCL_NVLS_ENABLE=0",
             "sh", "-c", 'shift 2; NCCL_HOSTID=host$OMPI_COMM_WORLD_RANK exec "$@"', "sh"]  # fmt: skip

    def test_killed_in_a_collective(self) -> None:
        job = self.training(mpirun=[*MPIRUN, *self.hosts])
        self.check_end(job, job.signal(1, signal.SIGKILL), r"process rank 1 with PID|\(signal 9\)|remote process exited")

    def test_stopped_in_a_collective(self) -> None:
        job = self.training(mpirun=[*MPIRUN, *self.hosts])
        fault = job.signal(1, signal.SIGSTOP)
        self.check_timeout(job, fault, r"Missing: rank 1 \(\S+\) does not answer, last heard of", self.timeout, 1)
        self.assertTrue(any(line["event"] == "collective" and line["finished"] is None for line in self.records()[0]))


if __name__ == "__main__":
    unittest.main(argv=[argument for argument in sys.argv if argument != "--long"], verbosity=2)
