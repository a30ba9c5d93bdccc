"""What benchmarks/compare runs: the works, the rows of each, and their commands. Importable without PyTorch."""

import dataclasses
import pathlib
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
DDPTRAIN, PYTORCH, LLMQ = "ddptrain", "PyTorch", "llmq"
MODES = ("eager", "eager+graph", "default", "default+graph", "reduce-overhead", "max-autotune",
         "max-autotune-no-cudagraphs", "max-autotune-no-cudagraphs+graph")  # fmt: skip
CPU_MODES = ("eager", "default")
SHARD_MODES = ("eager", "default", "max-autotune-no-cudagraphs")  # FSDP is captured in no graph
TEXT = "TEXT"  # in flags: stands for a file of text
LOSS = "test_loss"
LOSS_STEPS = 300
BASELINE_SECONDS = 15.0  # that ddptrain takes to measure its efficiency, about
SLOW_BASELINE_SECONDS = 22.0  # if steps take more than 10 ms


@dataclasses.dataclass(frozen=True)
class Row:
    program: str
    gradients: str  # type in which several ranks sum them
    flags: tuple[str, ...] = ()  # of the program
    fewest_ranks: int = 1
    variant: bool = False  # a row that is in no table of README: --all runs it

    @property
    def name(self) -> str:
        if self.program == PYTORCH:
            return f"{PYTORCH} {self.kind}, {self.gradients} gradients"
        return " ".join((self.program, *self.flags))

    @property
    def kind(self) -> str:
        """Of PyTorch's data parallelism."""
        return f"FSDP ({self.flags[1]} sharded)" if "--shard" in self.flags else "DDP"


@dataclasses.dataclass(frozen=True)
class Work:
    name: str
    unit: str
    device: str
    ddptrain_flags: tuple[str, ...]
    peer: str  # program of benchmarks/peers; empty: none
    peer_flags: tuple[str, ...]
    ddptrain_rows: tuple[Row, ...]
    ddptrain_start_seconds: float = 10  # a guess for the plan, as the next two
    peer_start_seconds: float = 20
    compile_seconds: float = 60  # of max-autotune, from nothing
    peer_rows: tuple[Row, ...] = ()  # none: DDP with each type of gradients
    fewest_ranks: int = 1
    most_ranks: int | None = None
    field: str = ""  # of the result, that counts; empty: <unit>_per_second
    seconds: float | None = None  # of steps, where it is not the session's choice
    learns_in: str = ""  # name of the work that trains the same model for equal steps
    has_baseline: bool = False  # with several ranks ddptrain measures its efficiency
    baseline_seconds: float = BASELINE_SECONDS

    def rows(self, ranks: int) -> list[Row]:
        """PyTorch's and llmq's come last: they are not rows of ddptrain's alone."""
        peers = self.peer_rows
        if not peers and self.peer:
            dtypes = ("bf16", "fp32") if ranks > 1 else ("fp32",)  # one rank sends none
            peers = tuple(Row(PYTORCH, dtype, variant=ranks > 1 and dtype == "fp32") for dtype in dtypes)
        return [row for row in (*self.ddptrain_rows, *peers) if ranks >= row.fewest_ranks]

    def fits(self, ranks: int) -> bool:
        return self.fewest_ranks <= ranks <= (self.most_ranks or ranks)

    def modes(self, row: Row) -> tuple[str, ...]:
        """Of the row; one, without a name, where there is nothing to choose."""
        if row.program != PYTORCH:
            return ("",)
        if "--shard" in row.flags:
            return SHARD_MODES
        return MODES if self.device == "cuda" else CPU_MODES

    def value(self, result: dict[str, object]) -> float:
        return float(result[self.field or f"{self.unit}_per_second"])


def ddptrain_rows(common: str, *flags: str, variants: Sequence[str] = (), fewest_ranks: int = 1) -> tuple[Row, ...]:
    """`common`: the type of the gradients without --comm-dtype."""
    return tuple(Row(DDPTRAIN, words.partition("--comm-dtype ")[2] or common, tuple(words.split()), fewest_ranks,
                     words in variants)
                 for words in (*flags, *variants))  # fmt: skip


def cnn(device: str, batch: int, samples: int, rows: tuple[Row, ...], steps: int) -> Work:
    precision = "bf16" if device == "cuda" else "fp32"
    data = f"synthetic:{samples}"
    return Work(
        f"CNN, batch {batch}", "images", device,
        ("--model", "cnn", "--data", data, "--batch", str(batch), "--precision", precision, "--steps", str(steps)),
        "benchmarks/peers/torch_ddp_cnn.py",
        ("--data", data, "--batch", str(batch), "--precision", precision, "--device", device),
        rows, ddptrain_start_seconds=6, peer_start_seconds=18, compile_seconds=60, has_baseline=device == "cuda",
    )  # fmt: skip


def mini_gpt(batch: int) -> Work:
    return Work(
        f"mini GPT, batch {batch}", "tokens", "cuda",
        ("--config", "configs/gpt-mini.toml", "--data", "synthetic", "--batch", str(batch), "--steps", "1000"),
        "benchmarks/peers/torch_ddp_gpt.py",
        tuple(f"--layers 1 --width 256 --heads 2 --ff 256 --seq 80 --vocab 20000 --clip 0 --batch {batch}".split()),
        ddptrain_rows("bf16", "--tune on"), ddptrain_start_seconds=8, peer_start_seconds=18, most_ranks=1,
    )  # fmt: skip


def gpt2_124m() -> Work:
    return Work(
        "GPT-2 124M", "tokens", "cuda",
        ("--config", "configs/gpt2-124m.toml", "--data", "synthetic:8000000:50257", "--eval-samples", "64",
         "--steps", "20"),
        "benchmarks/peers/torch_ddp_gpt.py", ("--batch", "64"),
        ddptrain_rows("bf16", "--tune on", "--tune on --precision fp8",
                      variants=("--tune off", "--tune on --comm-dtype fp32")),
        ddptrain_start_seconds=20, peer_start_seconds=30, compile_seconds=240, has_baseline=True,
        baseline_seconds=SLOW_BASELINE_SECONDS, learns_in=f"GPT-2 124M, loss after {LOSS_STEPS} steps",
    )  # fmt: skip


def gpt2_124m_loss() -> Work:
    return Work(
        gpt2_124m().learns_in, "tokens", "cuda",
        ("--config", "configs/gpt2-124m.toml", "--data", TEXT, "--vocab", "50257", "--batch", "16", "--warmup", "50",
         "--zero", "0", "--tune", "off", "--eval-samples", "256", "--steps", str(LOSS_STEPS)),
        "", (), ddptrain_rows("bf16", "--precision bf16", "--precision fp8"), ddptrain_start_seconds=30,
        most_ranks=1, field=LOSS, seconds=0,
    )  # fmt: skip


def large_gpt2(name: str, size: str, sizes: str, ddptrain: tuple[Row, ...], peers: tuple[Row, ...], fewest_ranks: int) -> Work:
    config = f"configs/gpt2-{size}.toml"
    return Work(
        name, "tokens", "cuda",
        ("--config", config, "--data", "synthetic:20000000:50257", "--tune", "off", "--eval-samples", "8",
         "--steps", "10"),
        "benchmarks/peers/torch_ddp_gpt.py" if peers else "", (*sizes.split(), "--batch", "8"), ddptrain,
        ddptrain_start_seconds=10, peer_start_seconds=40, compile_seconds=240, peer_rows=peers, fewest_ranks=fewest_ranks,
    )  # fmt: skip


def gpt2_774m() -> list[Work]:
    """Two works, so that a round of each ends within minutes."""
    sizes = "--layers 36 --width 1280 --heads 20 --ff 5120"
    alone = ddptrain_rows("bf16", "--zero 0 --batch 8 --grad-accum 1")
    shards = ddptrain_rows("bf16", *(f"--zero {level} --batch 8 --grad-accum 1" for level in (1, 2, 3)), fewest_ranks=2)
    splits = ddptrain_rows("bf16", "--zero 0 --pp 2 --batch 8 --grad-accum 8", "--zero 0 --tp 2 --batch 16 --grad-accum 1")
    ddp, fsdp = Row(PYTORCH, "bf16"), Row(PYTORCH, "bf16", ("--shard", "weights"), fewest_ranks=2)
    return [large_gpt2("GPT-2 774M, batch 8", "774m", sizes, alone + shards, (ddp, fsdp), 1),
            large_gpt2("GPT-2 774M in stages and slices", "774m", sizes, alone + splits, (), 2)]  # fmt: skip


def gpt2_1558m() -> Work:
    rows = ddptrain_rows("bf16", "--zero 3 --batch 8 --grad-accum 1", "--zero 0 --pp 2 --batch 8 --grad-accum 8")
    return large_gpt2("GPT-2 1558M, batch 8", "1558m", "--layers 48 --width 1600 --heads 25 --ff 6400", rows,
                      (Row(PYTORCH, "bf16", ("--shard", "weights"), fewest_ranks=2),), 2)  # fmt: skip


def qwen(size: str, batch: int, shape: str, rows: tuple[Row, ...], peers: tuple[Row, ...] = (), note: str = "") -> Work:
    """Beside PyTorch, or beside `peers`, with sequences of 1,024."""
    return Work(
        f"Qwen2.5-{size}, batch {batch}{note}", "tokens", "cuda",
        ("--config", f"configs/qwen2.5-{size.lower()}.toml", "--seq", "1024", "--batch", str(batch), "--zero", "0",
         "--data", "synthetic:4000000:151936", "--eval-samples", "16", "--steps", "3"),
        "benchmarks/peers/torch_ddp_llama.py", (*shape.split(), "--batch", str(batch), "--attention", "cudnn"), rows,
        ddptrain_start_seconds=20, peer_start_seconds=40, compile_seconds=240, peer_rows=peers, most_ranks=1,
    )  # fmt: skip


def qwens(with_llmq: bool) -> list[Work]:
    shapes = {"0.5B": "--layers 24 --width 896 --heads 14 --key-heads 2 --ff 4864",
              "1.5B": "--layers 28 --width 1536 --heads 12 --key-heads 2 --ff 8960"}  # fmt: skip
    once = ddptrain_rows("bf16", "--grad-accum 1", "--grad-accum 1 --precision fp8")
    beside_pytorch = [qwen("0.5B", 32, shapes["0.5B"], once), qwen("1.5B", 8, shapes["1.5B"], once)]
    if not with_llmq:
        return beside_pytorch
    return beside_pytorch + [beside_llmq("0.5B", 32, 4, shapes["0.5B"]), beside_llmq("1.5B", 16, 4, shapes["1.5B"]),
                             beside_llmq("1.5B", 32, 2, shapes["1.5B"])]  # fmt: skip


def beside_llmq(size: str, batch: int, accumulate: int, shape: str) -> Work:
    flags = (f"--grad-accum {accumulate}", f"--grad-accum {accumulate} --precision fp8")
    peer = Row(LLMQ, "bf16", ("--model", f"Qwen2.5-{size}", "--batch", str(batch), "--accumulate", str(accumulate)))
    return qwen(size, batch, shape, ddptrain_rows("bf16", *flags), (peer,), f" x {accumulate}")


def works(device: str, with_llmq: bool = False) -> list[Work]:
    """In the order in which they run."""
    if device == "cpu":
        return [cnn("cpu", 64, 16384, ddptrain_rows("fp32", "", "--comm-dtype bf16"), steps=40)]
    flags = ("--tune on", "--tune off --fused off")  # --comm-dtype fp32 is refused beside bf16
    made_for_it = ddptrain_rows("bf16", *flags, variants=("--tune off",))
    return [cnn("cuda", 512, 131072, made_for_it, 500), cnn("cuda", 8192, 262144, made_for_it, 100), gpt2_124m(),
            gpt2_124m_loss(), mini_gpt(32), mini_gpt(1024), *qwens(with_llmq), *gpt2_774m(),
            gpt2_1558m()]  # fmt: skip


def short_works(device: str) -> list[Work]:
    """Of seconds, without programs of others: whether the commands still work."""
    tiny = "--layers 1 --width 32 --heads 2 --ff 64 --seq 16 --vocab 256 --batch 4 --grad-accum 1 --zero 0 --tune off"
    loss = Work("GPT, loss after 4 steps", "tokens", device,
                ("--config", "configs/gpt2-124m.toml", "--data", TEXT, *tiny.split(), "--eval-samples", "8", "--steps", "4"),
                "", (), ddptrain_rows("fp32", ""), most_ranks=1, field=LOSS, seconds=0)  # fmt: skip
    speed = dataclasses.replace(cnn(device, 8, 64, ddptrain_rows("fp32", ""), steps=2), peer="", learns_in=loss.name)
    return [speed, loss]


def measures_baseline(work: Work, ranks: int) -> bool:
    return work.has_baseline and ranks > 1


def ddptrain_command(program: pathlib.Path, work: Work, row: Row, ranks: int, seconds: float, metrics: str,
                     text: str = "") -> list[str]:  # fmt: skip
    flags = [text if word == TEXT else word for word in (*work.ddptrain_flags, *row.flags)]
    baseline = [] if measures_baseline(work, ranks) else ["--baseline", "off"]
    return ["mpirun", "-np", str(ranks), "--bind-to", "none", "--oversubscribe", str(program), "--device", work.device,
            *flags, *baseline, "--min-seconds", f"{seconds:g}", "--metrics", metrics]  # fmt: skip


def peer_command(python: str, work: Work, row: Row, mode: str, ranks: int, seconds: float) -> list[str]:
    start = [python] if ranks == 1 else [
        python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]  # fmt: skip
    return [*start, work.peer, *work.peer_flags, *row.flags, "--mode", mode, "--gradients", row.gradients,
            "--seconds", f"{seconds:g}"]  # fmt: skip


def llmq_command(python: str, program: pathlib.Path, row: Row, seconds: float) -> list[str]:
    return [python, "benchmarks/peers/llmq.py", str(program), *row.flags, "--seconds", f"{seconds:g}"]


def start_seconds(work: Work, row: Row, ranks: int, mode: str = "", compiled: bool = True) -> float:
    """Guess of what a run takes beside its measured steps. `compiled`: torch.compile finds its work in its cache."""
    if row.program == DDPTRAIN:
        return work.ddptrain_start_seconds + (work.baseline_seconds if measures_baseline(work, ranks) else 0.0)
    compiling = 0.0 if compiled or mode.startswith("eager") or row.program == LLMQ else work.compile_seconds
    return work.peer_start_seconds + (compiling if mode.startswith("max-autotune") else compiling / 3)
