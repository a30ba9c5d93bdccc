"""What there is to run on: GPUs, processors, hosts."""

import dataclasses
import json
import os
import pathlib
import platform
import re
import subprocess
from collections.abc import Mapping
from typing import Any

from ddptools.errors import UsageError
from ddptools.mpirun import OPEN_MPI, Mpirun, find_mpirun
from ddptools.programs import ask


@dataclasses.dataclass
class Machine:
    cpu: str
    cores: int
    system: str
    gpus: list[str]  # names of those that are visible, in the order in which CUDA counts them
    visible_ids: list[str]  # what CUDA_VISIBLE_DEVICES calls them
    hosts: list[str] = dataclasses.field(default_factory=list)  # of the job; none: this machine alone
    hostfile: pathlib.Path | None = None
    topology: dict[str, Any] | None = None  # what ddptopo says
    mpirun: Mpirun = OPEN_MPI

    def describe(self) -> dict[str, Any]:
        return {
            "host": platform.node(),
            "hosts": self.hosts,
            "system": self.system,
            "cpu": self.cpu,
            "cores": self.cores,
            "gpus": self.gpus,
        }

    def pair(self, which: str) -> list[int] | None:
        """The nearest or farthest two GPUs, as positions among the visible ones; None where that is not known."""
        hosts = (self.topology or {}).get("hosts") or [{}]
        pair = hosts[0].get({"best-pair": "nearest_pair", "worst-pair": "farthest_pair"}[which])
        if isinstance(pair, dict):
            pair = pair.get("gpus")
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(gpu, int) for gpu in pair):
            return pair
        return None


def find_machine(environment: Mapping[str, str], hostfile: pathlib.Path | None = None) -> Machine:
    names = _gpu_names()
    ids = [str(i) for i in range(len(names))]
    if "CUDA_VISIBLE_DEVICES" in environment:
        ids = [i.strip() for i in environment["CUDA_VISIBLE_DEVICES"].split(",") if i.strip() not in ("", "-1")]
        names = [names[int(i)] if i.isdigit() and int(i) < len(names) else (names or ["GPU"])[0] for i in ids]
    hosts = read_hostfile(hostfile) if hostfile else _slurm_hosts(environment)
    return Machine(_cpu_name(), os.cpu_count() or 1, _system(), names, ids, hosts, hostfile, mpirun=find_mpirun())


def read_hostfile(path: pathlib.Path) -> list[str]:
    """Names of the hosts, in the form that mpirun reads: a name per line, then slots=N and the like, or name:N."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--hostfile {path}: the file cannot be read: {error}") from error
    hosts = [line.split("#")[0].split()[0].partition(":")[0] for line in lines if line.split("#")[0].strip()]
    if not hosts:
        raise UsageError(f"--hostfile {path}: it names no host")
    return list(dict.fromkeys(hosts))


def read_topology(program: pathlib.Path) -> dict[str, Any] | None:
    """What ddptopo says of this machine, None without it."""
    text = ask([str(program), "--json", "-"], timeout_seconds=120.0) if program.exists() else None
    try:
        topology = json.loads(text) if text else None
    except ValueError:
        return None
    return topology if isinstance(topology, dict) else None


def _slurm_hosts(environment: Mapping[str, str]) -> list[str]:
    if not environment.get("SLURM_JOB_NODELIST"):
        return []
    text = ask(["scontrol", "show", "hostnames", environment["SLURM_JOB_NODELIST"]])
    if not text:
        raise UsageError(
            "SLURM_JOB_NODELIST is set, but `scontrol show hostnames` fails: give --hostfile, or take the variable away"
        )
    return text.split()


def _gpu_names() -> list[str]:
    text = ask(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    return [line.strip() for line in (text or "").splitlines() if line.strip()]


def _cpu_name() -> str:
    try:
        match = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1) if match else platform.processor() or "unknown"


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform()
