"""Slurm over emulated hosts: munged and slurmctld on the first one, slurmd on each; all end with the hosts."""

import contextlib
import os
import pathlib
import re
import secrets
import shutil
import subprocess
import sys
import unittest
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "faults"))
from emulated import PATIENCE, Hosts  # noqa: E402
from support import wait_for  # noqa: E402

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
CGROUP = "mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/systemd && " \
    "mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd"  # fmt: skip


def skip_without_slurm() -> None:
    path = os.environ["PATH"] + ":/usr/sbin"
    for program in PROGRAMS:
        if shutil.which(program, path=path) is None:
            raise unittest.SkipTest(f"no {program} here (packages slurmctld slurmd slurm-client munge)")


class Cluster:
    """Of all hosts, the first one included."""

    def __init__(self, hosts: Hosts, folder: pathlib.Path) -> None:
        self.hosts, self.folder = hosts, folder
        self._servers: dict[str, subprocess.Popen] = {}
        folder.chmod(0o755)
        (folder / "state").mkdir()
        (folder / "munge.key").write_bytes(secrets.token_bytes(1024))
        (folder / "munge.key").chmod(0o400)
        nodes = []
        for number, name in enumerate(hosts.names, 1):
            (folder / f"tmp-{name}").mkdir()
            nodes.append(f"NodeName={name} NodeAddr=10.77.0.{number} CPUs=2 State=UNKNOWN")
        settings = pathlib.Path(__file__).with_name("slurm.conf").read_text()
        self.configuration = folder / "slurm.conf"
        self.configuration.write_text(settings.format(controller=hosts.names[0], folder=folder, nodes="\n".join(nodes)))
        munge = [f"--{name}={folder}/munge.{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
        self._serve(
            "munged", hosts.names[0], "munged", "--foreground", "--force", f"--key-file={folder}/munge.key", *munge
        )
        self.until(lambda: self.call("munge", f"--socket={folder}/munge.socket", "--no-input") != "", "munged answers")
        self._serve("slurmctld", hosts.names[0], "slurmctld", "-D", "-i", "-f", str(self.configuration))
        for name in hosts.names:
            subprocess.run(hosts.on(name, "sh", "-c", CGROUP), check=True, timeout=PATIENCE)
            self._serve(name, name, "slurmd", "-D", "-f", str(self.configuration), "-N", name)
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        states = ["idle"] * len(self.hosts.names)
        self.until(lambda: self.call("sinfo", "-h", "-N", "-o", "%t").split() == states, "all nodes are idle")

    def environment(self) -> dict[str, str]:
        path = os.environ["PATH"] + ":/usr/sbin"
        return os.environ | {"SLURM_CONF": str(self.configuration), "PATH": path}

    def _serve(self, name: str, host: str, *command: str) -> None:
        with open(self.folder / f"{name}.out", "wb") as output:
            self._servers[name] = subprocess.Popen(
                self.hosts.on(host, *command),
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def call(self, *command: str) -> str:
        """What it says; nothing if the server does not answer now."""
        return self._try(*command)[1]

    def answer(self, *command: str) -> str:
        """What it says when it succeeds."""
        tries: list[tuple[bool, str]] = []
        self.until(lambda: tries.append(self._try(*command)) or tries[-1][0], f"{command} succeeds")
        return tries[-1][1]

    def _try(self, *command: str) -> tuple[bool, str]:
        run = self.hosts.on(self.hosts.names[0], *command)
        with contextlib.suppress(subprocess.TimeoutExpired):
            settings = {"env": self.environment(), "cwd": self.folder, "text": True, "timeout": 60}
            done = subprocess.run(run, capture_output=True, **settings)
            return done.returncode == 0, done.stdout
        return False, ""

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 300.0) -> float:
        return wait_for(condition, what, seconds, self.logs)

    def logs(self) -> str:
        files = [*self.folder.glob("slurm*.log"), *self.folder.glob("*.out"), *self.folder.glob("ddptrain-*.log")]
        return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def submit(self, *command: str) -> str:
        """The job's number."""
        job = self.call("sbatch", "--parsable", *command).strip()
        if not job:
            raise AssertionError(f"sbatch failed\n{self.logs()}")
        return job

    def state(self, job: str) -> str:
        found = re.search(r"JobState=(\S+)", self.call("scontrol", "show", "job", job))
        return found[1] if found else ""

    def start_now(self, job: str) -> None:
        """Ends the wait of a job that was put back into the queue."""
        self.call("scontrol", "update", f"job={job}", "StartTime=now")

    def output(self, job: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / f"ddptrain-{job}.log").read_text(errors="replace")
        return ""
