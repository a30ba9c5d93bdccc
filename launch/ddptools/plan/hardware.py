"""What the planner knows of GPUs and links. Figures are the vendors' advertised ones."""

import dataclasses

from ddptools.common.errors import UsageError

GBS_PER_GBIT = 0.125


@dataclasses.dataclass(frozen=True)
class Gpu:
    peak_tflops: float  # dense bf16 (V100: fp16)
    memory_gb: float  # as it is sold today
    generation: str  # of NCCL's tuning tables
    link: str  # to the other GPUs of its node
    network: str  # of an adapter, in NVIDIA's own nodes of 8: DGX-1, DGX A100, DGX H100, H200, B200
    adapters_per_gpu: float


GPUS = {
    "v100": Gpu(125.0, 32.0, "volta", "nvlink2", "edr", 0.5),
    "a100": Gpu(312.0, 80.0, "ampere", "nvlink3", "hdr", 1.0),
    "h100": Gpu(989.0, 80.0, "hopper", "nvlink4", "ndr", 1.0),
    "h200": Gpu(989.0, 141.0, "hopper", "nvlink4", "ndr", 1.0),
    "b200": Gpu(2250.0, 180.0, "blackwell", "nvlink5", "ndr", 1.0),
}

# Within a node: GB/s of a GPU, one way.
LINKS_GBS = {
    "nvlink2": 150.0,
    "nvlink3": 300.0,
    "nvlink4": 450.0,
    "nvlink5": 900.0,
    "pcie4": 31.0,
    "pcie5": 63.0,
    "pcie6": 121.0,
    "pcie7": 242.0,
}

# Between nodes: Gbit/s of one adapter (InfiniBand: 4 lanes), one way.
NETWORKS_GBIT = {
    "edr": 100.0,
    "hdr": 200.0,
    "ndr": 400.0,
    "xdr": 800.0,
    "efa2": 3200.0,
}
OF_A_NODE = ("efa2",)  # its adapters together


def link_gbs(name: str) -> float:
    """GB/s of a link within a node: a name, or a number of GB/s."""
    return _rate("--link", name, LINKS_GBS, "GB/s")


def network_gbs(name: str, adapters: int) -> float:
    """GB/s of a node with so many adapters of this name, or of a number of Gbit/s."""
    return _rate("--network", name, NETWORKS_GBIT, "Gbit/s") * GBS_PER_GBIT * (1 if name in OF_A_NODE else adapters)


def _rate(flag: str, text: str, names: dict[str, float], unit: str) -> float:
    try:
        value = names[text] if text in names else float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < 1e9:
        raise UsageError(f"{flag} {text}: give one of {', '.join(names)}, or a number of {unit}")
    return value
