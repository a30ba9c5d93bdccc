"""The machine that a record of ddpsweep names: its parts as texts, and whether another one differs."""

import collections
from collections.abc import Iterable

from ddptools.common.files import Record

Parts = dict[str, str]  # text of each part by its name, without parts that are unknown


def processor_text(machine: Record) -> str:
    return f"{machine.get('cpu', 'unknown')}, {machine.get('cores', '?')} cores"


def gpus_text(machine: Record) -> str:
    """2 x G, 1 x H: names of GPUs have no order. none without GPUs, and if they are unknown."""
    gpus = machine.get("gpus")
    counts = collections.Counter(map(str, gpus if isinstance(gpus, list) else []))
    return ", ".join(f"{count} x {name}" for name, count in sorted(counts.items())) or "none"


def short_name(machine: Record) -> str:
    """Its GPUs, or its processor if it has none."""
    gpus = gpus_text(machine)
    return str(machine.get("cpu") or "unknown processor") if gpus == "none" else gpus


def long_name(machine: Record) -> str:
    return f"{processor_text(machine)}, GPUs: {gpus_text(machine)}"


def parts_of(machine: Record) -> Parts:
    """A host of another name, or with another system, may be a machine of the same kind."""
    gpus = gpus_text(machine) if isinstance(machine.get("gpus"), list) else ""
    told = {"GPUs": gpus, "processor": machine.get("cpu"), "cores": machine.get("cores")}
    return {name: str(value) for name, value in told.items() if value}


def differences(one: Parts, other: Parts) -> list[str]:
    """Names of the parts that are known of both machines and differ. Empty: nothing tells them apart."""
    return [name for name, text in one.items() if other.get(name, text) != text]


def different_machines(machines: Iterable[Record]) -> list[Record]:
    """One of each kind, without those of which no part is known. Those of which most is known come first, because a
    machine of which less is known may be of their kind."""
    found: list[Record] = []
    for machine in sorted(filter(parts_of, machines), key=lambda machine: -len(parts_of(machine))):
        if all(differences(parts_of(machine), parts_of(other)) for other in found):
            found.append(machine)
    return found
