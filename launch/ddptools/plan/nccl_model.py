"""How long NCCL believes that an all-reduce takes: the cost model by which it chooses algorithm and protocol, as
published in its source (src/graph/tuning.cc of NCCL 2.28), for rings and trees.

Bandwidths are in GB/s (1e9), times in microseconds.
"""

import dataclasses
import math

ALGORITHMS = ("Tree", "Ring")
PROTOCOLS = ("LL", "LL128", "Simple")
GENERATIONS = ("volta", "ampere", "hopper", "blackwell")

# In the order of PROTOCOLS.
BASE_LATENCY_US = {"Tree": (6.8, 14.0, 8.4), "Ring": (6.6, 14.0, 8.4)}
LINK_LATENCY_US = {
    "nvlink": {"Tree": (0.6, 1.25, 4.0), "Ring": (0.6, 1.9, 3.4)},
    "pcie": {"Tree": (1.0, 1.9, 4.0), "Ring": (1.0, 2.5, 5.7)},
    "net": {"Tree": (5.0, 8.5, 14.0), "Ring": (2.7, 4.0, 14.0)},
}

# On 1, 2 and more nodes, in the order of GENERATIONS; per channel but for LL.
LL_MAX_GBS = ((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (282.0, 90.0, 70.0))
LL_MAX_BETWEEN_NODES_GBS = LL_MAX_GBS[0]  # goes by the processor there: this is Intel's row
RING_LL128_MAX_GBS = ((20.0,) * 3, (20.0,) * 3, (36.7,) * 3, (73.4,) * 3)
TREE_LL128_MAX_GBS = ((20.0,) * 3, (20.0,) * 3, (36.7, 36.7, 29.0), (55.6, 31.67, 20.0))
TREE_MAX_GBS = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0))

# What of a tree's bandwidth is reached: by powers of two from 64 B; beyond the last, all of it.
TREE_CORRECTION = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    "Simple": (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7,
               0.8, 0.9, 0.9),
}  # fmt: skip
NET_OVERHEAD_US = 1.0  # us a step; Intel's
RING_PLATEAU = 1.4  # on the latency of Simple between nodes, for all but small sizes


@dataclasses.dataclass(frozen=True)
class Fabric:
    """What an all-reduce runs over. `bus_gbs`: what all channels together carry through the narrowest link."""

    ranks: int
    nodes: int
    bus_gbs: float
    channels: int
    generation: str = "hopper"
    link: str = "nvlink"  # within a node: nvlink or pcie

    @property
    def scale(self) -> int:
        """Index into the tables by nodes."""
        return min(self.nodes, 3) - 1


@dataclasses.dataclass(frozen=True)
class Estimate:
    microseconds: float
    algorithm: str
    protocol: str


def bus_bandwidth_gbs(fabric: Fabric, algorithm: str, protocol: str) -> float:
    """NCCL's bandwidth of the bus, before it becomes that of the algorithm."""
    row = GENERATIONS.index(fabric.generation)
    low_latency_gbs = (LL_MAX_GBS[row] if fabric.nodes == 1 else LL_MAX_BETWEEN_NODES_GBS)[fabric.scale]
    bus_gbs = fabric.bus_gbs
    if algorithm == "Ring":
        if protocol == "LL":
            return min(low_latency_gbs, 0.5 * bus_gbs)
        if protocol == "LL128":
            return min(0.92 * bus_gbs, fabric.channels * RING_LL128_MAX_GBS[row][fabric.scale])
        return bus_gbs
    bus_gbs = min(0.92 * bus_gbs, fabric.channels * TREE_MAX_GBS[row][fabric.scale])
    if protocol == "LL":
        return min(bus_gbs / 3.8, low_latency_gbs)
    if protocol == "LL128":
        share = 7.0 / 9.0 if fabric.nodes == 1 else 120.0 / 128.0
        return min(share * bus_gbs, fabric.channels * TREE_LL128_MAX_GBS[row][fabric.scale])
    return bus_gbs


def latency_us(fabric: Fabric, algorithm: str, protocol: str) -> float:
    index = PROTOCOLS.index(protocol)
    intra_us = LINK_LATENCY_US[fabric.link][algorithm][index]
    alone = fabric.ranks == fabric.nodes  # one rank a node: nothing hides the network's latency
    inter_us = LINK_LATENCY_US["net"]["Tree" if alone else algorithm][index]
    base_us = BASE_LATENCY_US[algorithm][index]
    if algorithm == "Tree":
        hops_within, hops_between = fabric.ranks // fabric.nodes - 1, math.floor(math.log2(fabric.nodes))
        return base_us + 2.0 * (hops_within * intra_us + hops_between * inter_us)
    steps = 2 * (fabric.ranks - 1)
    between = 0 if fabric.nodes == 1 else 2 * (fabric.nodes - 1)
    if fabric.nodes > 1:
        intra_us = max(intra_us, NET_OVERHEAD_US * (3.0 if protocol == "Simple" else 1.0))
    return base_us + (steps - between) * intra_us + between * inter_us


def estimate(fabric: Fabric, size_bytes: float, algorithm: str, protocol: str) -> Estimate:
    """Of an all-reduce of `size_bytes` over at least two ranks."""
    bandwidth_gbs = bus_bandwidth_gbs(fabric, algorithm, protocol)
    delay_us = latency_us(fabric, algorithm, protocol)
    if algorithm == "Ring":
        bandwidth_gbs *= fabric.ranks / (2.0 * (fabric.ranks - 1))
        if protocol == "Simple" and fabric.nodes > 1 and size_bytes / (fabric.channels * fabric.ranks) >= 64:
            delay_us *= RING_PLATEAU
    else:
        power = int(math.log2(size_bytes / 64.0)) if size_bytes >= 64.0 else 0
        corrections = TREE_CORRECTION[protocol]
        bandwidth_gbs *= 0.5 * (corrections[power] if power < len(corrections) else 1.0)
    return Estimate(delay_us + size_bytes / (1000.0 * bandwidth_gbs), algorithm, protocol)


def best(fabric: Fabric, size_bytes: float) -> Estimate:
    """What NCCL would choose."""
    candidates = [estimate(fabric, size_bytes, a, p) for a in ALGORITHMS for p in PROTOCOLS]
    return min(candidates, key=lambda candidate: candidate.microseconds)
