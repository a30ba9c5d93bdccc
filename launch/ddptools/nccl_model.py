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
BASE_LATENCY = {"Tree": (6.8, 14.0, 8.4), "Ring": (6.6, 14.0, 8.4)}
LINK_LATENCY = {
    "nvlink": {"Tree": (0.6, 1.25, 4.0), "Ring": (0.6, 1.9, 3.4)},
    "pcie": {"Tree": (1.0, 1.9, 4.0), "Ring": (1.0, 2.5, 5.7)},
    "net": {"Tree": (5.0, 8.5, 14.0), "Ring": (2.7, 4.0, 14.0)},
}

# On 1, 2 and more nodes, in the order of GENERATIONS; per channel but for LL.
LL_MAX = ((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (282.0, 90.0, 70.0))
LL_MAX_BETWEEN_NODES = LL_MAX[0]  # goes by the processor there: this is Intel's row
RING_LL128_MAX = ((20.0,) * 3, (20.0,) * 3, (36.7,) * 3, (73.4,) * 3)
TREE_LL128_MAX = ((20.0,) * 3, (20.0,) * 3, (36.7, 36.7, 29.0), (55.6, 31.67, 20.0))
TREE_MAX = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0))

# What of a tree's bandwidth is reached: by powers of two from 64 B; beyond the last, all of it.
TREE_CORRECTION = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    "Simple": (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7,
               0.8, 0.9, 0.9),
}  # fmt: skip
NET_OVERHEAD = 1.0  # us a step; Intel's
RING_PLATEAU = 1.4  # on the latency of Simple between nodes, for all but small sizes


@dataclasses.dataclass(frozen=True)
class Fabric:
    """What an all-reduce runs over. `bus`: GB/s that all channels together carry through the narrowest link."""

    ranks: int
    nodes: int
    bus: float
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


def bus_bandwidth(fabric: Fabric, algorithm: str, protocol: str) -> float:
    """NCCL's bandwidth of the bus, before it becomes that of the algorithm."""
    row = GENERATIONS.index(fabric.generation)
    low_latency_max = (LL_MAX[row] if fabric.nodes == 1 else LL_MAX_BETWEEN_NODES)[fabric.scale]
    bus = fabric.bus
    if algorithm == "Ring":
        if protocol == "LL":
            return min(low_latency_max, 0.5 * bus)
        if protocol == "LL128":
            return min(0.92 * bus, fabric.channels * RING_LL128_MAX[row][fabric.scale])
        return bus
    bus = min(0.92 * bus, fabric.channels * TREE_MAX[row][fabric.scale])
    if protocol == "LL":
        return min(bus / 3.8, low_latency_max)
    if protocol == "LL128":
        share = 7.0 / 9.0 if fabric.nodes == 1 else 120.0 / 128.0
        return min(share * bus, fabric.channels * TREE_LL128_MAX[row][fabric.scale])
    return bus


def latency(fabric: Fabric, algorithm: str, protocol: str) -> float:
    index = PROTOCOLS.index(protocol)
    intra = LINK_LATENCY[fabric.link][algorithm][index]
    alone = fabric.ranks == fabric.nodes  # one rank a node: nothing hides the network's latency
    inter = LINK_LATENCY["net"]["Tree" if alone else algorithm][index]
    base = BASE_LATENCY[algorithm][index]
    if algorithm == "Tree":
        return base + 2.0 * ((fabric.ranks // fabric.nodes - 1) * intra + math.floor(math.log2(fabric.nodes)) * inter)
    steps = 2 * (fabric.ranks - 1)
    between = 0 if fabric.nodes == 1 else 2 * (fabric.nodes - 1)
    if fabric.nodes > 1:
        intra = max(intra, NET_OVERHEAD * (3.0 if protocol == "Simple" else 1.0))
    return base + (steps - between) * intra + between * inter


def estimate(fabric: Fabric, size: float, algorithm: str, protocol: str) -> Estimate:
    """Of an all-reduce of `size` bytes over at least two ranks."""
    bandwidth = bus_bandwidth(fabric, algorithm, protocol)
    delay = latency(fabric, algorithm, protocol)
    if algorithm == "Ring":
        bandwidth *= fabric.ranks / (2.0 * (fabric.ranks - 1))
        if protocol == "Simple" and fabric.nodes > 1 and size / (fabric.channels * fabric.ranks) >= 64:
            delay *= RING_PLATEAU
    else:
        power = int(math.log2(size / 64.0)) if size >= 64.0 else 0
        corrections = TREE_CORRECTION[protocol]
        bandwidth *= 0.5 * (corrections[power] if power < len(corrections) else 1.0)
    return Estimate(delay + size / (1000.0 * bandwidth), algorithm, protocol)


def best(fabric: Fabric, size: float, algorithm: str | None = None, protocol: str | None = None) -> Estimate:
    """What NCCL would choose, among all or those that are given."""
    algorithms = (algorithm,) if algorithm else ALGORITHMS
    protocols = (protocol,) if protocol else PROTOCOLS
    candidates = [estimate(fabric, size, a, p) for a in algorithms for p in protocols]
    return min(candidates, key=lambda candidate: candidate.microseconds)
