"""Which mesh of W ranks trains fastest in the memory of a GPU: data x ZeRO x pipeline x tensor."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from ddptools.common.table import Table
from ddptools.common.text import number, percent
from ddptools.plan.prediction import Case, all_reduce, predict
from ddptools.results.description import Sent

SAME = 0.995  # of the fastest rate: the simplest mesh is proposed
MOST_ROWS = 20  # of a table


@dataclasses.dataclass(frozen=True)
class Mesh:
    replicas: int
    zero: int
    stages: int
    tensor: int

    @property
    def ranks_per_replica(self) -> int:
        return self.stages * self.tensor

    @property
    def flags(self) -> dict[str, int]:
        return {"zero": self.zero, "pp": self.stages, "tp": self.tensor}


@dataclasses.dataclass(frozen=True)
class PlannedMesh:
    """Seconds are those of a rank in a step."""

    mesh: Mesh
    passes: int  # micro-steps of a replica
    memory_gb: float
    compute_seconds: float
    bubble: float  # share of the passes' time in which a stage waits
    pipeline_seconds: float  # messages between stages
    tensor_seconds: float  # what split layers exchange and no other work hides
    data_seconds: float  # gradients and gathered weights that no other work hides
    step_seconds: float
    samples_per_second: float  # of the whole job


def meshes_of(ranks: int) -> Iterator[Mesh]:
    """The simplest first. With one replica, ZeRO divides nothing."""
    for zero in range(4):
        for stages in (i for i in range(1, ranks + 1) if ranks % i == 0):
            for tensor in (i for i in range(1, ranks // stages + 1) if ranks // stages % i == 0):
                mesh = Mesh(ranks // (stages * tensor), zero, stages, tensor)
                if mesh.replicas > 1 or zero == 0:
                    yield mesh


def predict_mesh(case: Case, mesh: Mesh) -> PlannedMesh:
    """`case`: of all ranks; its work is described with this mesh, whose replicas have work.grad_accum micro-steps."""
    work, passes = case.work, case.work.grad_accum
    of_data = dataclasses.replace(
        _along(case, mesh.replicas, mesh.tensor),
        tflops=case.tflops * mesh.ranks_per_replica,
        grad_accum=passes,
        fused_sum_us=case.fused_sum_us if mesh.zero + mesh.ranks_per_replica == 1 else None,
    )
    last = predict(of_data)  # with the gradients of the last pass and the gathers of updated weights
    forward, backward = (case.overlap * flop / work.flop * of_data.alone_seconds
                         for flop in (work.forward_flop, work.backward_flop))  # fmt: skip
    of_layers = _along(case, mesh.tensor, 1)
    # Gradients of weights take as long as forward, and hide what split layers exchange in backward.
    tensor = _seconds(of_layers, "tensor", "forward") + max(_seconds(of_layers, "tensor", "backward") - forward, 0.0)
    pipeline = sum(sent.bytes for sent in _sent(case, "pipeline")) / (1e9 * _border_gbs(case, mesh))
    once = 0.5 * last.communication_seconds  # of all gradients, or all weights
    others = max(_seconds(of_data, "gather", "use") - once, 0.0) + (passes - 1) * once * (mesh.zero >= 2)
    data = last.exposed_seconds + max(others - (forward + backward - backward / passes), 0.0)
    steps = passes + mesh.stages - 1
    step = (last.compute_seconds + tensor + pipeline) * steps / passes + data
    return PlannedMesh(
        mesh=mesh,
        passes=passes,
        memory_gb=1e-9 * work.memory_bytes,
        compute_seconds=last.compute_seconds,
        bubble=(mesh.stages - 1) / steps,
        pipeline_seconds=pipeline,
        tensor_seconds=tensor,
        data_seconds=data,
        step_seconds=step,
        samples_per_second=case.batch * passes * mesh.replicas / step,
    )


def _along(case: Case, ranks: int, stride: int) -> Case:
    """An axis whose ranks are `stride` apart. The other axes of a node use its adapters, too."""
    per_node = math.gcd(ranks, max(case.gpus_per_node // stride, 1))
    shared_gbs = case.inter_gbs * per_node / case.gpus_per_node
    return dataclasses.replace(case, gpus_per_node=per_node, nodes=ranks // per_node, inter_gbs=shared_gbs)


def _border_gbs(case: Case, mesh: Mesh) -> float:
    """Of a rank, to the next stage."""
    if case.fit is not None:
        return case.fit.busbw_gbs
    senders = min(mesh.replicas * mesh.tensor, case.gpus_per_node)
    return case.intra_gbs if case.nodes == 1 else case.inter_gbs / senders


def _sent(case: Case, axis: str, when: str = "") -> list[Sent]:
    return [sent for sent in case.work.sends if sent.axis == axis and when in ("", sent.when)]


def _seconds(axis: Case, name: str, when: str) -> float:
    """Of reduce-scatters and all-gathers, each half of an all-reduce."""
    whole = axis.gpus / max(axis.gpus - 1, 1)  # of what is reduced or gathered, over what a rank sends
    return sum(
        0.5e-6 * sent.times * all_reduce(axis, whole * sent.bytes / sent.times).microseconds
        for sent in _sent(axis, name, when)
    )


@dataclasses.dataclass
class Meshes:
    there_gb: float  # memory of a device; infinite: not known
    planned: list[PlannedMesh] = dataclasses.field(default_factory=list)  # the simplest first
    cases: list[Case] = dataclasses.field(default_factory=list)  # that were predicted
    device: str = "cuda"

    def fits(self, planned: PlannedMesh) -> bool:
        return planned.memory_gb <= self.there_gb

    def fastest(self) -> PlannedMesh | None:
        fitting = list(filter(self.fits, self.planned))
        enough = SAME * max((p.samples_per_second for p in fitting), default=0.0)
        return next((p for p in fitting if p.samples_per_second >= enough), None)

    def _room(self) -> str:
        return f"{self.there_gb:g} GB of a rank" if self.device == "cpu" else f"a GPU's {self.there_gb:g} GB"

    def document(self) -> dict[str, Any]:
        best = self.fastest()
        meshes = [dataclasses.asdict(p) | {"fits": self.fits(p)} for p in self.planned]
        return {"meshes": meshes, "fastest": best and best.mesh.flags | {"grad-accum": best.passes}}

    def table(self) -> Table:
        rows, best = [], self.fastest()
        for p in sorted(self.planned, key=lambda p: (not self.fits(p), -float(f"{p.samples_per_second:.3g}")))[:MOST_ROWS]:
            times = (p.compute_seconds, p.pipeline_seconds, p.tensor_seconds, p.data_seconds, p.step_seconds)
            rows.append([str(p.mesh.replicas), *map(str, p.mesh.flags.values()), str(p.passes),
                         f"{p.memory_gb:.3g}{'' if self.fits(p) else '!'}", percent(p.bubble),
                         *(number(1e3 * seconds) for seconds in times), number(p.samples_per_second)])  # fmt: skip
        header = ["replicas", "--zero", "--pp", "--tp", "--grad-accum", "GB", "bubble", "compute ms", "pipeline", "tensor",
                  "data", "step ms", "samples/s"]  # fmt: skip
        cut = f". The first {MOST_ROWS} of {len(self.planned)}; --json has all" if len(self.planned) > MOST_ROWS else ""
        limit = "" if math.isinf(self.there_gb) else f"; last the meshes that do not fit {self._room()} (!)"
        notes = [f"Order: samples/s; meshes that differ by rounding only: the simplest first{limit}{cut}",
                 "Bubble: share of the passes' time in which a stage waits. Pipeline, tensor, data: ms"]  # fmt: skip
        flags = " ".join(f"--{name} {value}" for name, value in (self.document()["fastest"] or {}).items())
        fastest = "Fastest" if math.isinf(self.there_gb) else "Fastest that fits"
        notes.append(f"{fastest}: {flags}" if flags else "None fits: give a smaller --batch, or more ranks")
        return Table("Meshes with the same samples per step. Communication is what no compute hides:", header, rows,
                     "\n".join(notes))  # fmt: skip
