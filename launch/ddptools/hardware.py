"""What the planner knows of models, GPUs and links. Figures are the vendors' advertised ones."""

import dataclasses

from ddptools.errors import UsageError

GBIT = 0.125  # GB/s


@dataclasses.dataclass(frozen=True)
class Gpu:
    peak_tflops: float  # dense bf16 (V100: fp16)
    generation: str  # of NCCL's tuning tables
    link: str  # to the other GPUs of its node


GPUS = {
    "v100": Gpu(125.0, "volta", "nvlink2"),
    "a100": Gpu(312.0, "ampere", "nvlink3"),
    "h100": Gpu(989.0, "hopper", "nvlink4"),
    "h200": Gpu(989.0, "hopper", "nvlink4"),
    "b200": Gpu(2250.0, "blackwell", "nvlink5"),
}

# Within a node: GB/s of a GPU, one way.
LINKS = {
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
NETWORKS = {
    "edr": 100.0,
    "hdr": 200.0,
    "ndr": 400.0,
    "xdr": 800.0,
    "efa2": 3200.0,
}
OF_A_NODE = ("efa2",)  # its adapters together


Ready = tuple[tuple[float, float], ...]


def ready_at(ready: Ready, share: float) -> float:
    x0 = y0 = 0.0
    for x1, y1 in ready:
        if share <= x1 and x1 > x0:
            return y0 + (y1 - y0) * (share - x0) / (x1 - x0)
        x0, y0 = x1, y1
    return y0


@dataclasses.dataclass(frozen=True)
class Model:
    """`matmul_flops`: of forward and backward for one sample (an image, or a sequence). `ready`: points (share of the
    gradients, share of backward after which they are complete), with straight lines between them from (0, 0) on."""

    name: str
    parameters: float
    matmul_flops: float
    ready: Ready = ((1.0, 1.0),)


def transformer(
    name: str, parameters: float, layers: int, width: int, sequence: int, vocabulary: int, context: int
) -> Model:
    """A GPT with the head tied to the embedding, whose gradient backward begins and ends with: no gradient is complete
    while it goes through the head, and the embeddings' are at its end. FLOP by the PaLM count, (6 P + 12 layers width
    sequence) per token."""
    per_token = 6.0 * parameters + 12.0 * layers * width * sequence
    embeddings = (vocabulary + context) * width
    head = 6.0 * vocabulary * width / per_token
    ready = ((0.0, head), (1.0 - embeddings / parameters, 1.0), (1.0, 1.0))
    return Model(name, parameters, per_token * sequence, ready)


def gpt2(name: str, layers: int, width: int, sequence: int, vocabulary: int = 50257, context: int = 1024) -> Model:
    if sequence > context:
        raise UsageError(f"--seq {sequence}: {name} has a context of {context}")
    parameters = vocabulary * width + context * width + layers * (12 * width**2 + 13 * width) + 2 * width
    return transformer(name, parameters, layers, width, sequence, vocabulary, context)


GPT2_SHAPES = {
    "gpt2-124m": (12, 768),
    "gpt2-355m": (24, 1024),
    "gpt2-774m": (36, 1280),
    "gpt2-1558m": (48, 1600),
}
# fc1's weight, 98% of the parameters, is complete after 10% of backward's products: those of fc2 and fc1.
CNN = Model("cnn", 1_199_882, 71.565e6, ready=((0.983, 0.10), (1.0, 1.0)))
MODEL_NAMES = ("cnn", *GPT2_SHAPES)


def named_model(name: str, sequence: int) -> Model:
    if name == "cnn":
        return CNN
    if name in GPT2_SHAPES:
        return gpt2(name, *GPT2_SHAPES[name], sequence)
    raise UsageError(f"--model {name}: there are {', '.join(MODEL_NAMES)}; or give --params")


def plain_model(parameters: float, sequence: int) -> Model:
    """A language model of which only the size is known: 2 FLOP per parameter and token forward, 4 backward."""
    return Model("language model", parameters, 6.0 * parameters * sequence)


def link_bandwidth(name: str) -> float:
    """GB/s of a link within a node: a name, or a number of GB/s."""
    return LINKS[name] if name in LINKS else _number("--link", name, LINKS, "GB/s")


def network_bandwidth(name: str, adapters: int) -> float:
    """GB/s of a node with so many adapters of this name, or of a number of Gbit/s."""
    gbit = NETWORKS[name] if name in NETWORKS else _number("--network", name, NETWORKS, "Gbit/s")
    return gbit * GBIT * (1 if name in OF_A_NODE else adapters)


def _number(flag: str, text: str, names: dict[str, float], unit: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < 1e9:
        raise UsageError(f"{flag} {text}: give one of {', '.join(names)}, or a number of {unit}")
    return value
