#!/usr/bin/env python3
"""The scripts of launch/slurm under a real Slurm over emulated hosts: they train, save themselves before the time
limit, go back to the queue, outlive a node, and end with the parameters of an undisturbed run."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "faults"))
from emulated import ROOT, Hosts  # noqa: E402
from slurm import Cluster, skip_without_slurm  # noqa: E402

BIN = pathlib.Path(os.environ.get("DDPTRAIN_BIN", ROOT / "build" / "bin")).resolve()
RUN = ["--device=cpu", "--baseline=off", "--model=mlp", "--hidden=16", "--data=synthetic:600", "--batch=8"]
MORE = 20  # steps


class SlurmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        skip_without_slurm()
        hosts = cls.enterClassContext(Hosts(3))
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="ddptrain-slurm-")))
        os.environ["DDPTRAIN"] = str(BIN / "ddptrain")
        cls.cluster = Cluster(hosts, folder)

    def submit(self, script: str, *flags: str, nodes: int = 2, **settings: str) -> str:
        placed = [f"--nodes={nodes}", "--ntasks-per-node=1", *(f"--{name}={value}" for name, value in settings.items())]
        return self.cluster.submit(*placed, str(ROOT / "launch" / "slurm" / script), *RUN, *flags)

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
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        self.until(job, lambda: self.cluster.state(job) in ended, "ends")
        self.assertEqual(self.cluster.state(job), state, self.cluster.logs())

    def steps(self, job: str) -> list[int]:
        """Of its checkpoints."""
        folder = self.cluster.folder / "checkpoints" / job
        return sorted(int(path.parent.name[5:]) for path in folder.glob("step-*/manifest.json"))

    def hash_of(self, text: str) -> str:
        hashes = re.findall(r"Parameter hash\s+(\S+)", text)
        self.assertEqual(len(hashes), 1, text)
        return hashes[0]

    def until_requeued(self, job: str, name: str) -> tuple[float, int]:
        """When that was noticed, and the step after which the job now ends when it starts again."""
        noticed = self.until(job, lambda: self.cluster.state(job) == "PENDING", "goes back to the queue")
        step = self.steps(job)[-1] + MORE
        self.end_after(name, step)
        return noticed, step

    def check_resumed(self, job: str, step: int) -> None:
        """It goes on from its newest checkpoint, and ends with what an undisturbed run gives."""
        self.cluster.start_now(job)
        self.wait_for_end(job)
        self.assertIn(f"Resumed at step {step - MORE} from", self.cluster.output(job))
        mpirun = self.cluster.hosts.on(self.cluster.hosts.names[0], "mpirun", "--oversubscribe", "--bind-to", "none")
        command = [*mpirun, "-np", "2", str(BIN / "ddptrain"), *RUN, f"--steps={step}"]
        undisturbed = subprocess.run(command, capture_output=True, text=True, timeout=300).stdout
        self.assertEqual(self.hash_of(self.cluster.output(job)), self.hash_of(undisturbed))

    def test_trains(self) -> None:
        jobs = [self.submit(script, "--steps=20") for script in ("srun.sbatch", "mpirun.sbatch")]
        for job in jobs:
            self.wait_for_end(job)
        self.assertEqual(*(self.hash_of(self.cluster.output(job)) for job in jobs))

    def limit_time(self, job: str) -> None:
        """To a time from now, when it trains, in which Slurm signals it and it ends: Slurm looks every half minute."""
        found = re.search(r"RunTime=(\d+):(\d+):", self.cluster.call("scontrol", "show", "job", job))
        minutes = 60 * int(found[1]) + int(found[2]) + 3
        self.cluster.call("scontrol", "update", f"job={job}", f"TimeLimit={minutes}")

    def test_time_limit(self) -> None:
        jobs = {
            "srun": self.submit_endless("srun.sbatch", "srun", time="60", signal="USR2@170"),
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
            self.check_resumed(job, steps[name])

    def test_node_failure(self) -> None:
        job = self.submit_endless("srun.sbatch", "failure")
        nodes = self.cluster.call("squeue", "-h", "-j", job, "-o", "%N").strip()
        lost = max(name for name in self.cluster.call("scontrol", "show", "hostnames", nodes).split())
        self.assertNotEqual(lost, self.cluster.hosts.names[0])
        cut = self.cluster.hosts.cut(lost)
        self.addCleanup(self.cluster.wait_until_idle)
        self.addCleanup(self.cluster.hosts.mend, lost)
        noticed, step = self.until_requeued(job, "failure")
        print(f"node lost: back in the queue after {noticed - cut:.0f} s", flush=True)
        self.check_resumed(job, step)

    def test_cancelled_jobs_stay_cancelled(self) -> None:
        jobs = [self.submit_endless(f"{name}.sbatch", f"cancel-{name}") for name in ("srun", "mpirun")]
        self.cluster.call("scancel", *jobs)
        time.sleep(8)  # KillWait, and a second for a requeue
        for job in jobs:
            self.until(job, lambda job=job: self.cluster.call("squeue", "-h", "-j", job) == "", "ends")
            self.assertEqual(self.cluster.state(job), "CANCELLED", self.cluster.output(job))


if __name__ == "__main__":
    unittest.main(verbosity=2)
