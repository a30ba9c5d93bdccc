"""Predicts a step of synchronous data-parallel training from arithmetic: predict(Case) gives a Prediction."""

import bisect
import dataclasses
from collections.abc import Sequence

from ddptools.plan import nccl_model
from ddptools.plan.nccl_model import Estimate, Fabric
from ddptools.results.description import Buckets, Description

CHANNELS_WITHIN_NODE, CHANNELS_BETWEEN_NODES = 24, 16
SEARCH_STEPS = 10**12  # of a bandwidth that suffices: parts in 2e-11 of it


@dataclasses.dataclass(frozen=True)
class NetworkFit:
    """A measured all-reduce: base_us + per_rank_us * (ranks - 1) + 2 (ranks - 1) / ranks * bytes / (1000 busbw_gbs). Of
    MPI between nodes, `bytes` are those of the ring with as much traffic: see mpi_traffic()."""

    per_rank_us: float
    busbw_gbs: float
    base_us: float = 0.0
    points: int = 0
    least_ranks: int = 0  # that the points have
    most_ranks: int = 0

    def microseconds(self, size_bytes: float, ranks: int) -> float:
        latency_us = self.base_us + self.per_rank_us * (ranks - 1)
        return latency_us + 2.0 * (ranks - 1) / ranks * size_bytes / (1000.0 * self.busbw_gbs)


@dataclasses.dataclass(frozen=True)
class Case:
    """One job. Bandwidths: GB/s one way, as achieved (not as advertised)."""

    work: Description
    batch: float  # samples per GPU and micro-step
    tflops: float  # that a GPU achieves
    gpus_per_node: int = 8
    nodes: int = 1
    grad_accum: int = 1
    overlap: bool = True
    fused_sum_us: float | None = None  # of the last bucket beside overlap, where its sum and update are one kernel
    interference: float = 0.0  # seconds by which a second of communication beside backward makes it longer
    intra_gbs: float = 360.0  # of a GPU, within its node
    inter_gbs: float = 40.0  # of a node
    generation: str = "hopper"
    link: str = "nvlink"  # or pcie
    intra_fit: NetworkFit | None = None  # in place of NCCL's model, on one node
    inter_fit: NetworkFit | None = None  # on several nodes

    @property
    def gpus(self) -> int:
        return self.gpus_per_node * self.nodes

    @property
    def fit(self) -> NetworkFit | None:
        return self.intra_fit if self.nodes == 1 else self.inter_fit

    @property
    def uses_mpi(self) -> bool:
        return self.work.device == "cpu" or self.work.hierarchical != ""

    @property
    def over_mpi(self) -> bool:
        return self.nodes > 1 and self.uses_mpi

    @property
    def traffic(self) -> float:
        """Of a node's adapters, over that of a ring of all GPUs."""
        return mpi_traffic(self.gpus_per_node, self.nodes, self.work.hierarchical) if self.over_mpi else 1.0

    @property
    def beneath_forward(self) -> bool:
        """Whether sums go on until the next forward pass reads the weights."""
        return self.overlap and self.work.device == "cpu" and self.nodes > 1

    @property
    def step_flop(self) -> float:
        return self.work.flop * self.batch * self.grad_accum

    @property
    def alone_seconds(self) -> float:
        """A step of a GPU that communicates with nobody."""
        return self.step_flop / (1e12 * self.tflops)

    @property
    def bytes_per_gpu(self) -> float:
        """Sent by each for a step."""
        return 2.0 * (self.gpus - 1) / self.gpus * self.work.gradient_bytes


@dataclasses.dataclass(frozen=True)
class Prediction:
    gpus: int
    nodes: int
    compute_seconds: float  # with what communication beside it costs
    communication_seconds: float  # all buckets, one after the other
    exposed_seconds: float  # communication that backward does not hide
    step_seconds: float
    samples_per_second: float  # of the whole job
    efficiency: float
    bound: str  # communication where it takes longer than compute, else compute
    algorithm: str  # of a full bucket; "MPI"; "measured" where a fit stood in
    protocol: str
    bytes_per_gpu: float  # sent by each: 2 (W-1)/W of the gradients


def predict(case: Case) -> Prediction:
    buckets = case.work.buckets
    sums = [all_reduce(case, group.bytes) for group in buckets]
    seconds = [1e-6 * each.microseconds for each in sums]
    if case.fused_sum_us is not None and case.overlap and case.gpus > 1:
        seconds[-1] = 1e-6 * case.fused_sum_us
    communication_seconds = sum(group.count * each for group, each in zip(buckets, seconds, strict=True))
    compute, exposed = case.alone_seconds, communication_seconds
    if case.beneath_forward:
        compute += case.interference * communication_seconds
        exposed = exposed_beneath_forward(buckets, seconds, compute)
    elif case.overlap and case.gpus > 1:
        last_micro_step_seconds = case.alone_seconds / case.grad_accum
        backward_seconds = case.work.backward_flop / case.work.flop * last_micro_step_seconds
        slow_down_seconds = case.interference * min(communication_seconds, backward_seconds)
        compute += slow_down_seconds
        exposed = exposed_seconds(buckets, seconds, backward_seconds + slow_down_seconds)
    return Prediction(
        gpus=case.gpus,
        nodes=case.nodes,
        compute_seconds=compute,
        communication_seconds=communication_seconds,
        exposed_seconds=exposed,
        step_seconds=compute + exposed,
        samples_per_second=case.batch * case.grad_accum * case.gpus / (compute + exposed),
        efficiency=case.alone_seconds / (compute + exposed),
        bound="communication" if communication_seconds > compute else "compute",
        algorithm=sums[0].algorithm,
        protocol=sums[0].protocol,
        bytes_per_gpu=case.bytes_per_gpu,
    )


def exposed_seconds(buckets: Sequence[Buckets], seconds: list[float], backward_seconds: float) -> float:
    """What is left of communication after backward. A bucket starts when it is complete and the one before it has
    arrived; `seconds`: how long each of a group takes."""
    free_seconds = 0.0  # when the network is
    for group, each in zip(buckets, seconds, strict=True):
        # Those of a group come at equal intervals: they wait for each other from the first one on, or not at all.
        first, last = backward_seconds * group.first_complete_at, backward_seconds * group.last_complete_at
        free_seconds = max(max(free_seconds, first) + group.count * each, last + each)
    return max(free_seconds - backward_seconds, 0.0)


def exposed_beneath_forward(buckets: Sequence[Buckets], seconds: list[float], compute_seconds: float) -> float:
    """What is left of communication where forward reads weights in the opposite order in which backward completes their
    gradients, a bucket's sum may take until then, and one that is complete later, and read earlier, goes before."""
    step_seconds = compute_seconds
    sums_seconds = 0.0
    for group, each in reversed(list(zip(buckets, seconds, strict=True))):
        sums_seconds += group.count * each
        step_seconds = max(step_seconds, group.first_complete_at * compute_seconds + sums_seconds)
    return step_seconds - compute_seconds


def all_reduce(case: Case, size_bytes: float) -> Estimate:
    if case.gpus == 1:
        return Estimate(0.0, "none", "")
    size_bytes *= case.traffic
    if case.fit is not None:
        return Estimate(case.fit.microseconds(size_bytes, case.gpus), "measured", "")
    if case.uses_mpi:
        without_latency = NetworkFit(0.0, case.intra_gbs if case.nodes == 1 else case.inter_gbs)
        return Estimate(without_latency.microseconds(size_bytes, case.gpus), "MPI", "")
    used_gbs = [case.intra_gbs] * (case.gpus_per_node > 1) + [case.inter_gbs] * (case.nodes > 1)
    channels = CHANNELS_WITHIN_NODE if case.nodes == 1 else CHANNELS_BETWEEN_NODES
    fabric = Fabric(case.gpus, case.nodes, min(used_gbs), channels, case.generation, case.link)
    return nccl_model.best(fabric, size_bytes)


def mpi_traffic(ranks_per_node: int, nodes: int, hierarchical: str = "on") -> float:
    """Bytes that a node sends to others for an all-reduce of MPI, over those of a ring of all W ranks, 2 (W-1)/W times
    the gradients. The ranks of a node add up first; with `hierarchical` off, each sends for itself."""
    senders = ranks_per_node if hierarchical == "off" else 1
    ranks = ranks_per_node * nodes
    return senders * ((nodes - 1) / nodes) / ((ranks - 1) / ranks)


def needed_gbs(case: Case, efficiency: float) -> float | None:
    """GB/s between nodes (on one node: of its links) with which the case reaches `efficiency`; 0 for a single GPU, None
    where no bandwidth is enough."""
    if case.gpus == 1:
        return 0.0
    field = "intra_gbs" if case.nodes == 1 else "inter_gbs"
    free = dataclasses.replace(case, intra_fit=None, inter_fit=None)

    def gbs_at(step: int) -> float:
        return 10.0 ** (9.0 * step / SEARCH_STEPS - 3.0)  # 1e-3 to 1e6

    def reached(step: int) -> bool:
        return predict(dataclasses.replace(free, **{field: gbs_at(step)})).efficiency >= efficiency

    step = bisect.bisect_left(range(SEARCH_STEPS + 1), True, key=reached)
    return gbs_at(step) if step <= SEARCH_STEPS else None
