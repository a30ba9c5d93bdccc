#!/usr/bin/env python3
"""Writes corpus/: small files of every format, from which the fuzz targets start, and what fuzzing found."""

import gzip
import json
import pathlib
import struct

ROOT = pathlib.Path(__file__).resolve().parent / "corpus"


def write(name: str, content: bytes | str) -> None:
    path = ROOT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def idx(magic: int, dims: list[int], values: bytes) -> bytes:
    return struct.pack(f">{1 + len(dims)}I", magic, *dims) + values


def safetensors(tensors: dict[str, tuple[str, list[int], bytes]], metadata: dict[str, str] | None = None) -> bytes:
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def manifest(**changes: object) -> str:
    """A checkpoint's, of one rank and no flags; the target adds the checksum."""
    sums = {"loss": 2.5, "correct": 3, "samples": 8}
    epoch = {"epoch": 1, "step": 4, "train_loss": 2.5, "train_accuracy": 0.5, "test_loss": None, "test_accuracy": 0.25,
             "samples_per_second": 1e4}  # fmt: skip
    array = {"name": "weights/fc1.weight", "shape": [2, 3], "dtype": "F32", "placement": "replicated"}
    file = {"name": "rank-0.safetensors", "bytes": 24, "xxh3_128": "99aa06d3014798d86001c324468d497f"}
    return json.dumps({
        "format": "ddptrain checkpoint", "version": 2, "step": 4, "written": "2026-11-22T10:00:00Z", "model": "mlp",
        "sizes": {"hidden": 16}, "precision": "fp32", "seed": 1, "world_size": 1, "batch_per_rank": 8, "grad_accum": 1,
        "samples_per_step": 8, "steps_per_epoch": 4, "data": "synthetic", "configuration": {},
        "versions": {"ddptrain": "1"}, "epoch_sums": sums, "rank_sums": [sums], "epochs": [epoch], "files": [file],
        "arrays": [array]} | changes, indent=1)  # fmt: skip


def tuned(xxh3_128: str, **changes: object) -> str:
    """Choices of the machine that the target asks for; the hash is that of the contents."""
    choices = {"product: bf16 64 x 8 x 16 nt bf16 bf16 bf16": "0011aaff", "bias gradient: bf16 8 x 8 x 8": "epilogue"}
    return json.dumps({
        "format": "ddptrain tuned choices", "version": 1, "machine": {"GPU": "NVIDIA H200", "cuBLAS": "13.1.0"},
        "choices": choices, "xxh3_128": xxh3_128} | changes, indent=1)  # fmt: skip


def byte_characters() -> list[str]:
    """GPT-2's visible character for each byte."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in visible else chr(next(hidden)) for byte in range(256)]


def tokenizer(merges: list[str], text: bytes) -> bytes:
    tokens = [*byte_characters(), *(merge.replace(" ", "") for merge in merges), "<|endoftext|>"]
    vocabulary = json.dumps({token: i for i, token in enumerate(tokens)}, ensure_ascii=False, separators=(",", ":"))
    return vocabulary.encode() + b"\0" + "\n".join(["#version: 0.2", *merges, ""]).encode() + b"\0" + text


def gpt2(config: dict[str, object]) -> bytes:
    width, ff = 2, 8
    shapes = {"wte.weight": [3, width], "wpe.weight": [2, width], "ln_f.weight": [width], "ln_f.bias": [width]}
    for name, columns in (("ln_1", 0), ("attn.c_attn", 3 * width), ("attn.c_proj", width), ("ln_2", 0),
                          ("mlp.c_fc", ff), ("mlp.c_proj", width)):
        rows = ff if name == "mlp.c_proj" else width
        shapes[f"h.0.{name}.weight"] = [rows, columns] if columns else [width]
        shapes[f"h.0.{name}.bias"] = [columns or width]
    tensors = {}
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        tensors[f"transformer.{name}"] = ("BF16", shape, bytes(range(2 * count)))
    index = {"weight_map": {name: "weights.safetensors" for name in tensors}}
    return b"\0".join([json.dumps(config).encode(), json.dumps(index).encode(), safetensors(tensors)])


def main() -> None:
    images = idx(0x0803, [3, 4, 5], bytes(range(60)))
    write("idx/images", images)
    write("idx/images.gz", gzip.compress(images, mtime=0))
    write("idx/two_members.gz", gzip.compress(images[:20], mtime=0) + gzip.compress(images[20:], mtime=0))
    write("idx/labels", idx(0x0801, [9], bytes(range(9))))
    write("idx/promises_petabytes", idx(0x0803, [2**32 - 1, 1000, 1000], bytes(8)))

    types = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
             "U8": 1, "BOOL": 1}
    write("safetensors/two", safetensors({"a": ("F32", [2, 2], bytes(16)), "b.c": ("BF16", [3], b"\1\x3f" * 3)}))
    write("safetensors/types", safetensors({t: (t, [2], bytes(2 * size)) for t, size in types.items()}, {"format": "pt"}))
    write("safetensors/empty", safetensors({"none": ("F32", [0, 7], b""), "scalar": ("F64", [], bytes(8))}))

    write("manifest/whole", manifest())
    sums = {"loss": None, "correct": 3, "samples": 8}
    write("manifest/virtual_ranks", manifest(rank_sums=[sums, sums], configuration={"--virtual-ranks": "2"}))
    write("manifest/no_samples", manifest(batch_per_rank=0))
    write("manifest/escapes", manifest(data="\x1b[2J\u009b2J"))
    write("manifest/file_elsewhere", manifest(files=[{"name": "../x", "bytes": 1, "xxh3_128": ""}]))
    write("manifest/huge", manifest(step=2**63, world_size=2**31, arrays=[{"name": "a", "shape": [2**40], "dtype": "F32",
                                                                           "placement": "nowhere"}]))  # fmt: skip

    write("tuned/whole", tuned("7b5f4aec9570fa28cce4652c836f8dfc"))
    write("tuned/damaged", tuned("7b5f4aec9570fa28cce4652c836f8dfd"))
    write("tuned/other_machine", tuned("9838627aece730c1407da139b7a94501", machine={"GPU": "x"}, choices={}))
    write("tuned/no_choices", tuned("", machine=[], choices=7))

    tokens = struct.pack("<8H", 1, 2, 3, 50256, 5, 6, 7, 8)
    write("tokens/llm.c", struct.pack("<3i", 20240520, 1, 8) + bytes(1012) + tokens)
    write("tokens/nanogpt", tokens)
    write("tokens/text", "The quick brown fox jumps over the lazy dog.\n")

    write("image/grey.pgm", b"P5 # a comment\n3 2\n255\n" + bytes(range(0, 256, 51)))
    write("image/deep.pgm", b"P5\n2 1 65535\n\x80\x00\xff\xff")
    write("image/grey.png", bytes.fromhex(GREY_PNG))
    write("image/colour.png", bytes.fromhex(COLOUR_PNG))
    write("image/grey.jpg", bytes.fromhex(GREY_JPEG))

    write("tokenizer/small", tokenizer(["Ġ t", "h e", "Ġt he"], b"the the<|endoftext|> t\xffh 123 's\n\n x"))

    types_of_values = 'batch = 64\nseed = 0x10\nlr = 1e-3 # three\nmodel = "gpt\\u00e9 \\n"\noverlap = "off"\n'
    write("config/values.toml", types_of_values)
    write("config/forms.toml", "\"net\" = '''a\nb'''\nlr = inf\nseed = 1_000\nbatch = +0b11\n")
    write("config/faults.toml", "[table]\na.b = [1, {c = 1979-05-27T07:32:00Z}]\n[[x]]\ny = nan\n")

    # What fuzzing found: toml++ beyond what C++ defines, or asserting.
    write("config/number_beyond_integers.toml", "batch = 1e73\n")
    write("config/array_of_nan.toml", "batch = [nan]\n")
    write("config/carriage_return.toml", "[\rase]\n")
    write("config/letter_in_place_of_a_space.toml", "x = [1, {c = \u00a9{\n")

    write("nccl_log/info", INFO)

    config = {"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 2, "n_positions": 2, "vocab_size": 3,
              "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "n_inner": None}
    write("gpt2_folder/tiny", gpt2(config))


# 3x2 pixels: 0, 51, 102; 153, 204, 255.
GREY_PNG = (
    "89504e470d0a1a0a0000000d4948445200000003000000020800000000b81f39c60000001049444154789c63643036669879e63f0006a302"
    "ccd61205460000000049454e44ae426082"
)
COLOUR_PNG = (
    "89504e470d0a1a0a0000000d49484452000000030000000208020000001216f14d0000001d49444154789c6364606030363636363666983973"
    "e6993367feffff0f00309108603fba347a0000000049454e44ae426082"
)
GREY_JPEG = (
    "ffd8ffe000104a46494600010100000100010000ffdb004300020101010101020101010202020202040302020202050404030406050606060506"
    "0606070908060709070606080b08090a0a0a0a0a06080b0c0b0a0c090a0a0affc0000b080002000301011100ffc4001400010000000000000000"
    "0000000000000009ffc4001f1000000309000000000000000000000000000208050607182835465263ffda0008010100003f0058d1aa2b46f2bc"
    "e5525c32b29703676c6e23ffd9"
)

INFO = """\
h:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
h:1:1 [0] NCCL INFO NCCL_ALGO set by environment to Ring.
h:1:1 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to NVL
h:1:1 [0] NCCL INFO comm 0x55 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0
h:1:1 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 12, bw 20.0/20.0, type NVL/PIX, sameChannels 1
h:1:1 [0] NCCL INFO Channel 00/02 : 0 1
h:1:1 [0] NCCL INFO Channel 01/02 : 0 1
h:1:1 [0] NCCL INFO Ring 00 : 1 -> 0 -> 1
h:1:1 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1
h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
h:1:1 [0] NCCL INFO Channel 01/0 : 1[1] -> 0[0] [send] via NET/IB/0/GDRDMA
h:1:1 [0] NCCL INFO 2 coll channels, 0 collnet channels, 16 nvls channels, 2 p2p channels, 2 p2p channels per peer
h:1:1 [0] NCCL INFO AllReduce: 2097152 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}
h:1:1 [0] NCCL INFO AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_RSxLD_AGxST nchannels 8 nthreads 512
h:1:1 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo 1 proto 2 time 98.5
h:1:1 [0] NCCL INFO CollNet 00/0 : 1 [receive] via COLLNET/SHARP/0/GDRDMA
"""

if __name__ == "__main__":
    main()
