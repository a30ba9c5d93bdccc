"""Predicts a step of synchronous data-parallel training from arithmetic: predict(Case) gives a Prediction."""

import dataclasses
import math
from collections.abc import Sequence

from ddptools import nccl_model
from ddptools.description import Buckets, Description
from ddptools.nccl_model import Fabric


@dataclasses.dataclass(frozen=True)
class NetworkFit:
    """A measured all-reduce: base_us + per_rank_us * (ranks - 1) + 2 (ranks - 1) / ranks * bytes / (1000 busbw_gbs)."""

    per_rank_us: float
    busbw_gbs: float
    base_us: float = 0.0
    points: int = 0
    least_ranks: int = 0  # that the points have
    most_ranks: int = 0

    def microseconds(self, size: float, ranks: int) -> float:
        latency = self.base_us + self.per_rank_us * (ranks - 1)
        return latency + 2.0 * (ranks - 1) / ranks * size / (1000.0 * self.busbw_gbs)


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
    channels: int = 0  # of NCCL; 0: 24 within a node, 16 between nodes
    algorithm: str | None = None  # None: what NCCL's model prefers
    protocol: str | None = None
    intra_fit: NetworkFit | None = None  # in place of NCCL's model, on one node
    inter_fit: NetworkFit | None = None  # on several nodes

    @property
    def gpus(self) -> int:
        return self.gpus_per_node * self.nodes

    @property
    def beneath_forward(self) -> bool:
        """Whether sums go on until the next forward pass reads the weights."""
        return self.overlap and self.work.device == "cpu" and self.nodes > 1

    @property
    def step_flop(self) -> float:
        """Of one GPU and step."""
        return self.work.flop * self.batch * self.grad_accum


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Of one step; seconds."""

    gpus: int
    nodes: int
    compute_seconds: float  # with what communication beside it costs
    communication_seconds: float  # all buckets, one after the other
    exposed_seconds: float  # communication that backward does not hide
    step_seconds: float
    samples_per_second: float  # of the whole job
    efficiency: float
    bound: str  # communication where it takes longer than compute, else compute
    buckets: int
    algorithm: str  # of a full bucket; "measured" where a fit stood in
    protocol: str
    bytes_per_gpu: float  # sent by each: 2 (W-1)/W of the gradients


def predict(case: Case) -> Prediction:
    alone = case.step_flop / (1e12 * case.tflops)
    buckets = case.work.buckets
    times = [all_reduce_seconds(case, group.size) for group in buckets]
    if case.fused_sum_us is not None and case.overlap and case.gpus > 1:
        times[-1] = (1e-6 * case.fused_sum_us, *times[-1][1:])
    communication = sum(group.count * seconds for group, (seconds, _, _) in zip(buckets, times, strict=True))
    compute, exposed = alone, communication
    if case.beneath_forward:
        compute += case.interference * communication
        exposed = exposed_beneath_forward(buckets, [seconds for seconds, _, _ in times], compute)
    elif case.overlap and case.gpus > 1:
        backward = backward_seconds(case, alone)
        slow_down = case.interference * min(communication, backward)
        compute += slow_down
        exposed = exposed_seconds(buckets, [seconds for seconds, _, _ in times], backward + slow_down)
    _, algorithm, protocol = times[0]
    return Prediction(
        gpus=case.gpus,
        nodes=case.nodes,
        compute_seconds=compute,
        communication_seconds=communication,
        exposed_seconds=exposed,
        step_seconds=compute + exposed,
        samples_per_second=case.batch * case.grad_accum * case.gpus / (compute + exposed),
        efficiency=alone / (compute + exposed),
        bound="communication" if communication > compute else "compute",
        buckets=sum(group.count for group in buckets),
        algorithm=algorithm,
        protocol=protocol,
        bytes_per_gpu=2.0 * (case.gpus - 1) / case.gpus * case.work.gradient_bytes,
    )


def backward_seconds(case: Case, compute: float) -> float:
    """Of the last micro-step, beside which gradients can travel."""
    return case.work.backward_flop / case.work.flop * compute / case.grad_accum


def exposed_seconds(buckets: Sequence[Buckets], seconds: list[float], backward: float) -> float:
    """What is left of communication after backward. A bucket starts when it is complete and the one before it has
    arrived; `seconds`: how long each of a group takes."""
    free = 0.0  # when the network is
    for group, each in zip(buckets, seconds, strict=True):
        # Those of a group come at equal intervals: they wait for each other from the first one on, or not at all.
        first, last = backward * group.first_complete_at, backward * group.last_complete_at
        free = max(max(free, first) + group.count * each, last + each)
    return max(free - backward, 0.0)


def exposed_beneath_forward(buckets: Sequence[Buckets], seconds: list[float], compute: float) -> float:
    """What is left of communication where forward reads weights in the opposite order in which backward completes their
    gradients, a bucket's sum may take until then, and one that is complete later, and read earlier, goes before."""
    step = compute
    sums = 0.0
    for group, each in reversed(list(zip(buckets, seconds, strict=True))):
        sums += group.count * each
        step = max(step, group.first_complete_at * compute + sums)
    return step - compute


def all_reduce_seconds(case: Case, size: float) -> tuple[float, str, str]:
    """With algorithm and protocol."""
    if case.gpus == 1:
        return 0.0, "none", ""
    fit = case.intra_fit if case.nodes == 1 else case.inter_fit
    if fit is not None:
        return 1e-6 * fit.microseconds(size, case.gpus), "measured", ""
    result = nccl_model.best(fabric_of(case), size, case.algorithm, case.protocol)
    return 1e-6 * result.microseconds, result.algorithm, result.protocol


def fabric_of(case: Case) -> Fabric:
    bus = case.intra_gbs if case.nodes == 1 else min(case.intra_gbs, case.inter_gbs)
    if case.nodes > 1 and case.gpus_per_node == 1:
        bus = case.inter_gbs
    channels = case.channels or (24 if case.nodes == 1 else 16)
    return Fabric(case.gpus, case.nodes, bus, channels, case.generation, case.link)


def needed_bandwidth(case: Case, efficiency: float) -> float | None:
    """GB/s between nodes (on one node: of its links) with which the case reaches `efficiency`; 0 for a single GPU, None
    where no bandwidth is enough."""
    if case.gpus == 1:
        return 0.0
    field, fit = ("intra_gbs", "intra_fit") if case.nodes == 1 else ("inter_gbs", "inter_fit")
    free = dataclasses.replace(case, **{fit: None})

    def reached(bandwidth: float) -> bool:
        return predict(dataclasses.replace(free, **{field: bandwidth})).efficiency >= efficiency

    low, high = 1e-3, 1e6
    if not reached(high):
        return None
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


@dataclasses.dataclass(frozen=True)
class RuleOfThumb:
    """The arithmetic on the back of an envelope, without latency and overlap, at advertised rates."""

    bytes_to_move: float  # 2 x gradients
    exact_bytes_to_move: float  # 2 (W-1)/W x gradients
    tflop_per_gpu: float
    compute_seconds: float

    def seconds_at(self, gbs: float) -> float:
        return self.bytes_to_move / (1e9 * gbs)


def rule_of_thumb(case: Case) -> RuleOfThumb:
    return RuleOfThumb(
        bytes_to_move=2.0 * case.work.gradient_bytes,
        exact_bytes_to_move=2.0 * (case.gpus - 1) / case.gpus * case.work.gradient_bytes,
        tflop_per_gpu=case.step_flop / 1e12,
        compute_seconds=case.step_flop / (1e12 * case.tflops),
    )
