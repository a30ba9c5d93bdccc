"""Predicts a step of synchronous data-parallel training from arithmetic: predict(Case) gives a Prediction."""

import dataclasses
import math

from ddptools import nccl_model
from ddptools.hardware import Model, Ready, ready_at
from ddptools.nccl_model import Fabric

FORWARD_SHARE = 1.0 / 3.0  # of the products of forward and backward


@dataclasses.dataclass(frozen=True)
class NetworkFit:
    """A measured all-reduce: per_rank_us * (ranks - 1) + 2 (ranks - 1) / ranks * bytes / (1000 busbw_gbs)."""

    per_rank_us: float
    busbw_gbs: float
    points: int = 0

    def microseconds(self, size: float, ranks: int) -> float:
        return self.per_rank_us * (ranks - 1) + 2.0 * (ranks - 1) / ranks * size / (1000.0 * self.busbw_gbs)


@dataclasses.dataclass(frozen=True)
class Case:
    """One job. Bandwidths: GB/s one way, as achieved (not as advertised)."""

    model: Model
    batch: float  # samples per GPU and micro-step
    tflops: float  # that a GPU achieves
    gpus_per_node: int = 8
    nodes: int = 1
    grad_accum: int = 1
    recompute: bool = False  # forward again during backward
    gradient_bytes: float = 2.0  # per parameter
    bucket_bytes: float = 25.0 * 2**20
    last_bucket_bytes: float = 256.0 * 2**10
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
    def all_gradient_bytes(self) -> float:
        return self.model.parameters * self.gradient_bytes

    @property
    def step_flops(self) -> float:
        """Of one GPU and step."""
        passes = 1.0 + (FORWARD_SHARE if self.recompute else 0.0)
        return passes * self.model.matmul_flops * self.batch * self.grad_accum


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
    alone = case.step_flops / (1e12 * case.tflops)
    sizes = bucket_sizes(case)
    times = [all_reduce_seconds(case, size) for _, size in sizes]
    if case.fused_sum_us is not None and case.overlap and case.gpus > 1:
        times[-1] = (1e-6 * case.fused_sum_us, *times[-1][1:])
    communication = sum(count * seconds for (count, _), (seconds, _, _) in zip(sizes, times, strict=True))
    compute, exposed = alone, communication
    if case.overlap and case.gpus > 1:
        backward = backward_seconds(case, alone)
        slow_down = case.interference * min(communication, backward)
        compute += slow_down
        exposed = exposed_seconds(sizes, [seconds for seconds, _, _ in times], backward + slow_down, case.model.ready)
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
        buckets=sum(count for count, _ in sizes),
        algorithm=algorithm,
        protocol=protocol,
        bytes_per_gpu=2.0 * (case.gpus - 1) / case.gpus * case.all_gradient_bytes,
    )


def backward_seconds(case: Case, compute: float) -> float:
    """Of the last micro-step, beside which gradients can travel."""
    forward = FORWARD_SHARE / (1.0 + FORWARD_SHARE) if case.recompute else FORWARD_SHARE
    return (1.0 - forward) * compute / case.grad_accum


def bucket_sizes(case: Case) -> list[tuple[int, float]]:
    """How many of which size, in order; the last stands alone, because nothing is left to hide it behind."""
    last = min(case.last_bucket_bytes, case.all_gradient_bytes)
    rest = case.all_gradient_bytes - last
    full = math.ceil(rest / case.bucket_bytes)
    sizes = [(full, rest / full)] if full > 0 else []
    return sizes + ([(1, last)] if last > 0 else [])


def exposed_seconds(
    sizes: list[tuple[int, float]], seconds: list[float], backward: float, ready: Ready = ((1.0, 1.0),)
) -> float:
    """What is left of communication after backward. `ready`: see Model; a bucket starts when it is complete and the one
    before it has arrived."""
    total = sum(count * size for count, size in sizes)
    done = 0.0  # bytes so far
    free = 0.0  # when the network is
    for (count, size), each in zip(sizes, seconds, strict=True):
        # Between two points of `ready`, buckets of one size wait for each of them, or for none after the first.
        around = (bucket for share, _ in ready for bucket in _around((share * total - done) / size))
        candidates = {min(max(bucket, 1), count) for bucket in (1, count, *around)}
        starts = {bucket: backward * ready_at(ready, (done + bucket * size) / total) for bucket in candidates}
        free = max(free + count * each, *(start + (count - bucket + 1) * each for bucket, start in starts.items()))
        done += count * size
    return max(free - backward, 0.0)


def _around(position: float) -> tuple[int, int]:
    return math.floor(position), math.ceil(position)


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
    flops = case.step_flops
    return RuleOfThumb(
        bytes_to_move=2.0 * case.all_gradient_bytes,
        exact_bytes_to_move=2.0 * (case.gpus - 1) / case.gpus * case.all_gradient_bytes,
        tflop_per_gpu=flops / 1e12,
        compute_seconds=flops / (1e12 * case.tflops),
    )
