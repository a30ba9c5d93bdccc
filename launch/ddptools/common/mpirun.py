"""What the mpirun of Open MPI and that of MPICH call differently."""

import dataclasses
import os
import pathlib
import re
import signal
from collections.abc import Callable

from ddptools.common.errors import UsageError
from ddptools.common.files import no_device
from ddptools.common.programs import ask

# Folder of Open MPI's files on each host. Open MPI 4 removes it, unless it is killed. 5 does not know the variable.
SESSIONS = "OMPI_MCA_orte_top_session_dir"


@dataclasses.dataclass(frozen=True)
class Mpirun:
    any_number: list[str]  # for more ranks than processors
    hostfile: str  # the flag
    on_hosts: Callable[[list[str], int], list[str]]  # names, ranks on each
    variable: Callable[[str, str], list[str]]  # for the ranks of the command that follows
    end: signal.Signals  # reaches the ranks, which have time for a checkpoint
    killed_codes: range  # exit codes that are the number of a signal which ended a rank

    def here(self) -> list[str]:
        """Flags for any number of ranks on this machine, bound to nothing."""
        return ["--bind-to", "none", *self.any_number]


def _places(hosts: list[str], ranks: int) -> str:
    return ",".join(f"{host}:{ranks}" for host in hosts)


OPEN_MPI = Mpirun(
    any_number=["--oversubscribe"],
    hostfile="--hostfile",
    on_hosts=lambda hosts, ranks: ["--host", _places(hosts, ranks), "--map-by", f"ppr:{ranks}:node"],
    variable=lambda name, value: ["-x", f"{name}={value}"],
    end=signal.SIGUSR2,  # it kills the ranks after a SIGTERM
    killed_codes=range(0),  # they are 128 more
)
# Of MPICH and those made from it. It ends after a SIGUSR2 and leaves its ranks alone.
HYDRA = Mpirun(
    any_number=[],
    hostfile="-f",
    on_hosts=lambda hosts, ranks: ["-hosts", _places(hosts, ranks)],
    variable=lambda name, value: ["-env", name, value],
    end=signal.SIGTERM,
    killed_codes=range(signal.SIGQUIT, 65),  # 1 and 2 are those of errors
)


def find_mpirun(program: str = "mpirun") -> Mpirun:
    """That of the machine; Open MPI's where there is none."""
    version = ask([program, "--version"]) or ""
    return HYDRA if re.search(r"hydra|Intel\(R\) MPI", version, re.IGNORECASE) else OPEN_MPI


def host_lines(path: pathlib.Path) -> list[str]:
    """The lines of a hostfile, which may be a pipe, without comments."""
    lines = no_device(path).read_text(errors="surrogateescape").splitlines()
    if binary := next((number for number, line in enumerate(lines, 1) if "\0" in line), None):
        raise UsageError(f"{path}: line {binary} has a byte 0: give a file of text, a host in each line")
    return [text for line in lines if (text := line.partition("#")[0].strip())]


def permission() -> dict[str, str]:
    """Variables without which Open MPI does not start as root."""
    names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    return dict.fromkeys(names, "1") if os.geteuid() == 0 else {}
