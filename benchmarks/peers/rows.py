"""What benchmarks/compare runs: the works, the rows of each, and their commands. Importable without PyTorch."""

import dataclasses
import pathlib
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
DDPTRAIN, PYTORCH = "ddptrain", "PyTorch DDP"
MODES = ("eager", "eager+graph", "default", "default+graph", "reduce-overhead", "max-autotune",
         "max-autotune-no-cudagraphs", "max-autotune-no-cudagraphs+graph")  # fmt: skip
CPU_MODES = ("eager", "default")


@dataclasses.dataclass(frozen=True)
class Row:
    program: str
    gradients: str  # type in which several ranks sum them
    flags: tuple[str, ...] = ()  # of ddptrain

    @property
    def name(self) -> str:
        if self.program == PYTORCH:
            return f"{PYTORCH}, {self.gradients} gradients"
        return " ".join((DDPTRAIN, *self.flags))


@dataclasses.dataclass(frozen=True)
class Work:
    name: str
    unit: str
    device: str
    ddptrain_flags: tuple[str, ...]
    peer: str
    peer_flags: tuple[str, ...]
    ddptrain_rows: tuple[Row, ...]
    ddptrain_start_seconds: float  # a guess for the plan, as the next two
    peer_start_seconds: float
    compile_seconds: float  # of max-autotune, from nothing

    def rows(self, ranks: int) -> list[Row]:
        gradients = ("bf16", "fp32") if ranks > 1 else ("fp32",)  # one rank sends none
        return [*self.ddptrain_rows, *(Row(PYTORCH, dtype) for dtype in gradients)]

    def peer_modes(self) -> tuple[str, ...]:
        return MODES if self.device == "cuda" else CPU_MODES


def ddptrain_rows(common: str, *flags: str) -> tuple[Row, ...]:
    """`common`: the type of the gradients without --comm-dtype."""
    dtypes = [words.partition("--comm-dtype ")[2] or common for words in flags]
    return tuple(Row(DDPTRAIN, dtype, tuple(words.split())) for words, dtype in zip(flags, dtypes))


def cnn(device: str, batch: int, samples: int, flags: Sequence[str], steps: int) -> Work:
    precision = "bf16" if device == "cuda" else "fp32"
    data = f"synthetic:{samples}"
    return Work(
        f"CNN, batch {batch}", "images", device,
        ("--model", "cnn", "--data", data, "--batch", str(batch), "--precision", precision, "--steps", str(steps)),
        "benchmarks/peers/torch_ddp_cnn.py",
        ("--data", data, "--batch", str(batch), "--precision", precision, "--device", device),
        ddptrain_rows(precision, *flags), ddptrain_start_seconds=6, peer_start_seconds=18, compile_seconds=60,
    )  # fmt: skip


def works(device: str) -> list[Work]:
    if device == "cpu":
        return [cnn("cpu", 64, 16384, ("", "--comm-dtype bf16"), steps=40)]
    cnn_flags = ("--tune off", "--tune on", "--tune off --fused off")  # --comm-dtype fp32 is refused beside bf16
    gpt = Work(
        "GPT-2 124M", "tokens", "cuda",
        ("--config", "configs/gpt2-124m.toml", "--data", "synthetic:8000000:50257", "--eval-samples", "64",
         "--steps", "20"),
        "benchmarks/peers/torch_ddp_gpt.py", ("--batch", "64"),
        ddptrain_rows("bf16", "--tune on", "--tune off", "--tune on --comm-dtype fp32"),
        ddptrain_start_seconds=20, peer_start_seconds=30, compile_seconds=240,
    )  # fmt: skip
    return [cnn("cuda", 512, 131072, cnn_flags, 500), cnn("cuda", 8192, 262144, cnn_flags, 100), gpt]


def ddptrain_command(program: pathlib.Path, work: Work, row: Row, ranks: int, seconds: float, metrics: str) -> list[str]:
    return ["mpirun", "-np", str(ranks), "--bind-to", "none", "--oversubscribe", str(program), "--device", work.device,
            *work.ddptrain_flags, *row.flags, "--baseline", "off", "--min-seconds", f"{seconds:g}",
            "--metrics", metrics]  # fmt: skip


def peer_command(python: str, work: Work, gradients: str, mode: str, ranks: int, seconds: float) -> list[str]:
    start = [python] if ranks == 1 else [
        python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]  # fmt: skip
    return [*start, work.peer, *work.peer_flags, "--mode", mode, "--gradients", gradients, "--seconds", f"{seconds:g}"]


def start_seconds(work: Work, program: str, mode: str = "", compiled: bool = True) -> float:
    """Guess of what a run takes beside its measured steps. `compiled`: torch.compile finds its work in its cache."""
    if program == DDPTRAIN:
        return work.ddptrain_start_seconds
    compiling = 0.0 if compiled or mode.startswith("eager") else work.compile_seconds
    return work.peer_start_seconds + (compiling if mode.startswith("max-autotune") else compiling / 3)
