"""What there is to run on: GPUs, processors, hosts."""

import dataclasses
import os
import pathlib
import platform
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ddptools.common.errors import UsageError
from ddptools.common.files import Record, from_json
from ddptools.common.mpirun import OPEN_MPI, Mpirun, find_mpirun, host_lines
from ddptools.common.programs import ask
from ddptools.common.values import table_of
from ddptools.results.machine import differences, parts_of

PAIRS = {"best-pair": "nearest_pair", "worst-pair": "farthest_pair"}  # as ddptopo calls them


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
        told = {name: getattr(self, name) for name in ("hosts", "system", "cpu", "cores", "gpus")}
        return {"host": platform.node()} | told

    def differences(self, records: Iterable[Record]) -> list[str]:
        """Between this machine and each other that gave numbers."""
        here = parts_of(self.describe())
        others = (parts_of(table_of(record.get("machine"))) for record in records if record.get("status") == "ok")
        told = ("; ".join(f"{name} {then[name]} (here {here[name]})" for name in differences(then, here)) for then in others)
        return list(dict.fromkeys(filter(None, told)))

    def pair(self, which: str) -> list[int] | None:
        """The nearest or farthest two GPUs, as positions among the visible ones; None where that is not known."""
        hosts = (self.topology or {}).get("hosts") or [{}]
        pair = hosts[0].get(PAIRS[which])
        known = isinstance(pair, list) and len(pair) == 2 and all(isinstance(gpu, int) for gpu in pair)
        return pair if known else None


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
    hosts = [line.split()[0].partition(":")[0] for line in host_lines(path)]
    if not hosts:
        raise UsageError(f"--hostfile {path}: it names no host")
    return list(dict.fromkeys(hosts))


def read_topology(program: pathlib.Path) -> dict[str, Any] | None:
    """What ddptopo says of this machine, None without it."""
    text = ask([str(program), "--json", "-"], timeout_seconds=120.0)
    return table_of(from_json(text or "")) or None


def _slurm_hosts(environment: Mapping[str, str]) -> list[str]:
    nodes = environment.get("SLURM_JOB_NODELIST")
    text = ask(["scontrol", "show", "hostnames", nodes]) if nodes else ""
    if nodes and not text:
        raise UsageError(
            "SLURM_JOB_NODELIST is set, but `scontrol show hostnames` fails: give --hostfile, or take the variable away"
        )
    return text.split()


def _gpu_names() -> list[str]:
    text = ask(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    return [line.strip() for line in (text or "").splitlines() if line.strip()]


def _cpu_name() -> str:
    processors = pathlib.Path("/proc/cpuinfo")
    match = re.search(r"(?m)^model name\s*: (.*)$", processors.read_text() if processors.exists() else "")
    return match[1] if match else platform.processor() or "unknown"


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform()
