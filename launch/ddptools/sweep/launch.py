"""From a case to a command line and an environment."""

import dataclasses
import pathlib
from collections.abc import Mapping

from ddptools.common.mpirun import OPEN_MPI, permission
from ddptools.common.programs import flag_arguments
from ddptools.sweep.cases import Case
from ddptools.sweep.machine import PAIRS, Machine

LOCAL_GROUPS = pathlib.Path(__file__).resolve().parents[2] / "local-groups"
RECORDED_PREFIXES = ("NCCL_", "CUDA_", "OMPI_", "PRTE_", "MPIR_", "UCX_", "OMP_")


class Impossible(Exception):
    """Why a case cannot run on this machine."""


@dataclasses.dataclass
class Launch:
    command: list[str]
    environment: dict[str, str]  # of the process
    changes: dict[str, str | None]  # against the environment of ddpsweep; None: taken away
    emulation: str | None  # how nodes were made of one machine; None: they were not
    gpus: list[str]  # as CUDA_VISIBLE_DEVICES names them; empty: all that are visible, or none

    def recorded_environment(self) -> dict[str, str]:
        return {k: v for k, v in sorted(self.environment.items()) if k.startswith(RECORDED_PREFIXES)}


def uses_gpus(case: Case, machine: Machine) -> bool:
    device = str(case.flags.get("device", "auto"))
    return device == "cuda" or (device == "auto" and bool(machine.gpus))


def needs_gpus(case: Case) -> bool:
    return case.flags.get("device") == "cuda" or case.gpus != "all"


def plan_launch(
    case: Case, machine: Machine, program: pathlib.Path, result_file: pathlib.Path, base: Mapping[str, str]
) -> Launch:
    """Raises Impossible with the reason. `result_file`: where the program leaves its JSON."""
    if not program.exists():
        raise Impossible(f"there is no {case.program} in {program.parent}")
    gpus = _select_gpus(case, machine)
    changes: dict[str, str | None] = {name: value or None for name, value in case.environment.items()}
    if gpus:
        changes["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    nodes = case.layout.nodes if case.layout else 1
    emulation = None
    node_variables: list[dict[str, str]] = [{}]
    if nodes > 1 and len(machine.hosts) <= 1:
        emulation, node_variables = _emulate_nodes(case, machine, changes)
    elif nodes > 1 and len(machine.hosts) < nodes:
        raise Impossible(f"layout {case.layout} needs {nodes} hosts, and there are {len(machine.hosts)}")
    changes |= permission()
    environment = {k: v for k, v in (dict(base) | changes).items() if v is not None}
    exported = {k: v for k, v in changes.items() if v is not None and not k.startswith("OMPI_")}
    result_flag = "--metrics" if case.program == "ddptrain" else "--json"
    told = [str(program), *case.arguments, *flag_arguments(case.flags), result_flag, str(result_file)]
    if case.groups and (len(machine.hosts) > 1 or nodes > 1):
        raise Impossible(f"groups = {case.groups}: the groups of a sweep share one machine")
    command = [*([str(LOCAL_GROUPS), str(case.groups)] if case.groups else []), *_mpirun(case, machine)]
    for number, variables in enumerate(node_variables):
        command += [":"] * (number > 0) + ["-np", str(case.ranks // len(node_variables))]
        command += [word for pair in (exported | variables).items() for word in machine.mpirun.variable(*pair)]
        command += told
    return Launch(command, environment, changes, emulation, gpus)


def _select_gpus(case: Case, machine: Machine) -> list[str]:
    if not uses_gpus(case, machine):
        if case.gpus != "all":
            raise Impossible(f"gpus = {case.gpus}: there is no GPU, or the case does not use it")
        return []
    several_hosts = len(machine.hosts) > 1
    if not machine.gpus and not several_hosts:
        raise Impossible("device = cuda, and this machine has no GPU")
    if case.gpus == "all":
        if not several_hosts and "share-gpu" not in case.flags and case.ranks > len(machine.gpus):
            raise Impossible(f"{case.ranks} ranks need as many GPUs, and there are {len(machine.gpus)}")
        return []
    chosen = machine.pair(case.gpus) if case.gpus in PAIRS else [int(gpu) for gpu in case.gpus.split(",")]
    if chosen is None:
        raise Impossible(f"gpus = {case.gpus}: only ddptopo --json tells the pair, and it does not here")
    visible = machine.visible_ids
    if missing := [gpu for gpu in chosen if gpu >= len(visible)]:
        raise Impossible(f"gpus = {case.gpus}: there is no GPU {missing[0]}; {len(visible)} are visible")
    if case.ranks > len(chosen):
        raise Impossible(f"gpus = {case.gpus}: {case.ranks} ranks need as many GPUs")
    return [visible[gpu] for gpu in chosen]


def _emulate_nodes(case: Case, machine: Machine, changes: dict[str, str | None]) -> tuple[str, list[dict[str, str]]]:
    """How, and the variables of each node's ranks. NCCL takes ranks of different NCCL_HOSTID for separate nodes."""
    if uses_gpus(case, machine):
        changes.setdefault("NCCL_SOCKET_IFNAME", "lo")
        return "NCCL_HOSTID, NCCL_SOCKET_IFNAME=lo", [{"NCCL_HOSTID": f"node{i}"} for i in range(case.layout.nodes)]
    if case.layout.ranks_per_node > 1:
        raise Impossible("on the CPU, nodes can be emulated for one rank per node only: MPI over TCP between all ranks")
    if machine.mpirun is not OPEN_MPI:
        raise Impossible("on the CPU, nodes can be emulated with Open MPI only")
    changes |= {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo", "OMPI_MCA_pml": "ob1"}
    return "OMPI_MCA_btl=self,tcp over lo", [{}]


def _mpirun(case: Case, machine: Machine) -> list[str]:
    """Without the number of ranks."""
    command = ["mpirun", "--bind-to", "none"]
    if case.cpus != "all":
        command = ["taskset", "-c", case.cpus, *command]
    if len(machine.hosts) > 1 and case.layout:
        hosts = machine.hosts[: case.layout.nodes]
        return command + machine.mpirun.on_hosts(hosts, case.layout.ranks_per_node)
    if machine.hostfile:
        return [*command, machine.mpirun.hostfile, str(machine.hostfile)]
    return command if machine.hosts else command + machine.mpirun.any_number
