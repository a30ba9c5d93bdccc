#!/usr/bin/env python3
"""The scripts of launch/slurm under a real Slurm over emulated hosts: they train, save themselves before the time
limit, go back to the queue, outlive a node, and end with the parameters of an undisturbed run."""

import contextlib
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
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "faults"))
from emulated import Hosts  # noqa: E402
from slurm import Cluster, skip_without_slurm  # noqa: E402
from support import BIN, ROOT, kill  # noqa: E402

RUN = ["--device=cpu", "--baseline=off", "--model=mlp", "--hidden=16", "--data=synthetic:600", "--batch=8"]
MORE = 20  # steps


class SlurmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        skip_without_slurm()
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="ddptrain-slurm-")))
        hosts = cls.enterClassContext(Hosts(3))  # ends before the folder does, and Slurm with it
        cls.cluster = Cluster(hosts, folder)
        cls.scripts = folder / "check out" / "launch" / "slurm"  # jobs start in another folder, and find their program
        shutil.copytree(ROOT / "launch" / "slurm", cls.scripts)
        (folder / "check out" / "build").mkdir()
        (folder / "check out" / "build" / "bin").symlink_to(BIN)

    def submit(self, script: str, *flags: str, nodes: int = 2, **settings: str) -> str:
        placed = [f"--nodes={nodes}", "--ntasks-per-node=1", *(f"--{name}={value}" for name, value in settings.items())]
        return self.cluster.submit(*placed, str(self.scripts / script), *RUN, *flags)

    def submit_endless(self, script: str, name: str, **settings: str) -> str:
        """Until end_after()."""
        (self.cluster.folder / f"{name}.toml").write_text("steps = 10000000\n")
        job = self.submit(script, f"--config={name}.toml", "--checkpoint-every=20", **settings)
        self.until(job, lambda: self.steps(job) != [], "trains")
        return job

    def end_after(self, name: str, step: int) -> None:
        (self.cluster.folder / f"{name}.toml").write_text(f"steps = {step}\n")

    def until(self, job: str, condition: Callable[[], bool], what: str) -> float:
        return self.cluster.until(condition, f"job {job} {what}")

    def wait_for_end(self, job: str, state: str = "COMPLETED") -> None:
        ended, seen = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"), [""]

        def has_ended() -> bool:
            seen.append(self.cluster.state(job))
            if seen[-1] == "PENDING":  # Slurm may put a job back into the queue at any time
                self.cluster.start_now(job)
            return seen[-1] in ended

        self.until(job, has_ended, "ends")
        self.assertEqual(seen[-1], state, self.cluster.logs())

    def steps(self, job: str) -> list[int]:
        """Of its checkpoints."""
        folder = self.cluster.folder / "checkpoints" / job
        return sorted(int(path.parent.name[5:]) for path in folder.glob("step-*/manifest.json"))

    def hash_of(self, text: str) -> str:
        hashes = re.findall(r"\bHash +([0-9a-f]{32})\b", text)
        self.assertEqual(len(hashes), 1, text)
        return hashes[0]

    def until_requeued(self, job: str, name: str) -> tuple[float, int]:
        """When that was noticed, and the step after which the job now ends when it starts again."""
        noticed = self.until(job, lambda: self.cluster.state(job) == "PENDING", "goes back to the queue")
        step = self.steps(job)[-1] + MORE
        self.end_after(name, step)
        return noticed, step

    def check_resumed(self, job: str, step: int, ranks: int = 2) -> None:
        """It went on from its newest checkpoint, and ends with what an undisturbed run gives."""
        self.wait_for_end(job)
        self.assertIn(f"Resumed at step {step - MORE} from", self.cluster.output(job))
        mpirun = self.cluster.hosts.on(self.cluster.hosts.names[0], "mpirun", "--oversubscribe", "--bind-to", "none")
        command = [*mpirun, "-np", str(ranks), str(BIN / "ddptrain"), *RUN, f"--steps={step}"]
        undisturbed = subprocess.run(command, capture_output=True, text=True, timeout=300).stdout
        self.assertEqual(self.hash_of(self.cluster.output(job)), self.hash_of(undisturbed))

    def test_trains(self) -> None:
        jobs = {script: self.submit(f"{script}.sbatch", "--steps=20") for script in ("srun", "mpirun")}
        for job in jobs.values():
            self.wait_for_end(job)
        self.assertEqual(*(self.hash_of(self.cluster.output(job)) for job in jobs.values()))
        self.assertRegex(self.cluster.output(jobs["srun"]), r"(?m)^0: Hash +[0-9a-f]{32} ")
        self.assertRegex(self.cluster.output(jobs["mpirun"]), r"(?m)^\[1,0\]<stdout>:\s*Hash +[0-9a-f]{32} ")

    def ranks_of(self, name: str) -> list[int]:
        """Processes of the job that submit_endless() started."""
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ends meanwhile
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if words[0].endswith(b"/ddptrain") and f"--config={name}.toml".encode() in words:
                    found.append(int(folder.name))
        return found

    def test_failures_start_again(self) -> None:
        """Once, as RESTARTS says; the second one ends the job."""
        jobs = {name: self.submit_endless(f"{name}.sbatch", f"fails-{name}", export="ALL,RESTARTS=1,PAUSE=1")
                for name in ("srun", "mpirun")}  # fmt: skip
        newest = {}
        for name, job in jobs.items():
            ranks = self.ranks_of(f"fails-{name}")
            for rank in ranks:
                kill(rank, signal.SIGSTOP)  # it writes no checkpoint any more
            newest[name] = self.steps(job)[-1]
            for rank in ranks:
                kill(rank)
        for name, job in jobs.items():
            again = re.compile(r"Resumed at step (\d+) from")
            self.until(job, lambda job=job: again.search(self.cluster.output(job)) is not None, "starts again")
            self.assertEqual(int(again.search(self.cluster.output(job))[1]), newest[name])
            known = self.steps(job)[-1]
            self.until(job, lambda job=job, known=known: self.steps(job)[-1] > known, "goes on")
            os.kill(self.ranks_of(f"fails-{name}")[0], signal.SIGKILL)
        for job in jobs.values():
            self.wait_for_end(job, "FAILED")
            self.assertEqual(self.cluster.output(job).count("it starts again in 1 s"), 1)

    def test_mistakes_end_the_job_at_once(self) -> None:
        jobs = [self.submit(f"{name}.sbatch", "--batch=0") for name in ("srun", "mpirun")]
        copy = self.cluster.folder / "copy.sbatch"
        shutil.copy(self.scripts / "srun.sbatch", copy)
        jobs.append(self.cluster.submit("--nodes=1", str(copy), *RUN))
        for job in jobs:
            self.wait_for_end(job, "FAILED")
            self.assertIn("ExitCode=2:0", self.cluster.answer("scontrol", "show", "job", job), self.cluster.output(job))
        self.assertIn("build it, or set DDPTRAIN to its path", self.cluster.output(jobs[-1]))

    def limit_time(self, job: str) -> None:
        """To a time from now, when it trains, in which Slurm signals it and it ends: Slurm looks every half minute."""
        found = re.search(r"RunTime=(\d+):(\d+):", self.cluster.answer("scontrol", "show", "job", job))
        minutes = 60 * int(found[1]) + int(found[2]) + 3
        self.cluster.answer("scontrol", "update", f"job={job}", f"TimeLimit={minutes}")

    def test_time_limit(self) -> None:
        jobs = {
            "srun": self.submit_endless("srun.sbatch", "srun", time="60", signal="B:USR2@170"),
            "mpirun": self.submit_endless("mpirun.sbatch", "mpirun", time="60", signal="B:USR2@170"),
        }
        start = time.monotonic()
        for job in jobs.values():
            self.limit_time(job)
        steps = {}
        for name, job in jobs.items():
            noticed, steps[name] = self.until_requeued(job, name)
            print(f"{name}: back in the queue {noticed - start:.0f} s after the time limit was set", flush=True)
            self.assertIn("SIGUSR2: ended after step", self.cluster.output(job))
        for name, job in jobs.items():
            self.cluster.start_now(job)
            self.check_resumed(job, steps[name])

    def test_node_failure(self) -> None:
        """The jobs need it again, and start on it when it has returned and nothing is left there of their first start."""
        lost = self.cluster.hosts.names[2]
        jobs = {
            "srun": self.submit_endless("srun.sbatch", "failure-srun", nodes=3, export="ALL,PAUSE=1"),
            "mpirun": self.submit_endless("mpirun.sbatch", "failure-mpirun", nodes=3),
        }
        cut = self.cluster.hosts.cut(lost)
        self.addCleanup(self.cluster.wait_until_idle)
        self.addCleanup(self.cluster.hosts.mend, lost)
        steps = {}
        for name, job in jobs.items():
            noticed, steps[name] = self.until_requeued(job, f"failure-{name}")
            print(f"{name}: node lost: back in the queue after {noticed - cut:.0f} s", flush=True)
        self.cluster.hosts.mend(lost)
        for name, job in jobs.items():
            self.until(job, lambda name=name: self.ranks_of(f"failure-{name}") == [], "leaves no rank on the node")
            self.cluster.start_now(job)
        for name, job in jobs.items():
            self.check_resumed(job, steps[name], ranks=3)
            again = self.cluster.output(job).count("it starts again in")
            print(f"{name}: its ranks were started again {again} times", flush=True)

    def test_cancelled_jobs_stay_cancelled(self) -> None:
        jobs = [self.submit_endless(f"{name}.sbatch", f"cancel-{name}") for name in ("srun", "mpirun")]
        self.cluster.answer("scancel", *jobs)
        time.sleep(8)  # KillWait, and a second for a requeue
        for job in jobs:
            self.wait_for_end(job, "CANCELLED")


if __name__ == "__main__":
    unittest.main(verbosity=2)
