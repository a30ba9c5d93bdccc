"""What a record of ddpsweep says of its run, of ddptrain or ddpbench."""

import dataclasses
import math
from typing import Any

from ddptools.common.files import Record
from ddptools.common.text import size_text
from ddptools.common.values import finite, list_of, positive, table_of

NCCL_CHOICES = ("algorithm", "protocol", "channels", "transport")
UNITS = ("images", "tokens", "samples")
LEAST_CPU_SHARE = 0.9  # of a rank that computes; with less, ddptrain warns of other programs
MOST_HALF_WIDTH = 0.05  # of the efficiency; with more, ddptrain prints it in whole numbers
WORDS_OF_OTHERS = ("other programs", "for a core")  # in reasons of files without disturbed_by_others
WORKLOAD = {
    "ranks", "batch", "global-batch", "model", "config", "precision", "data", "seq", "micro-batch", "grad-accum",
    "layers", "width", "heads", "device", "seed", "steps", "epochs",
}  # fmt: skip
PLACEMENT = ("gpus", "cpus", "layout")


def varied(tables: list[dict[str, Any]]) -> list[str]:
    """Names of settings that differ between cases; batch is not one of them if it follows from ranks."""
    names = dict.fromkeys(name for table in tables for name in table)
    if "global-batch" in names:
        names.pop("batch", None)
    return [name for name in names if len({str(table.get(name, "")) for table in tables}) > 1]


@dataclasses.dataclass
class Run:
    rate: float
    unit: str
    summary: dict[str, Any]
    bench: dict[str, Any]
    record: Record

    @property
    def disturbed(self) -> str:
        """Why its numbers are not to be trusted; empty: nothing is known against them."""
        return why_unusable(self.summary or self.bench)


def make_run(record: Record) -> Run | None:
    """None where the record has no number that could be compared."""
    if record.get("status") != "ok":
        return None
    summary, bench = table_of(record.get("summary")), table_of(record.get("bench"))
    rates = [(positive(summary.get(f"{unit}_per_second")), f"{unit}/s") for unit in UNITS]
    if rows := bench_rows(bench):
        size_bytes, _, busbw_gbs = max(rows)
        rates.append((busbw_gbs, f"GB/s busbw at {size_text(size_bytes)}"))
    return next((Run(rate, unit, summary, bench, record) for rate, unit in rates if rate is not None), None)


def result_rows(bench: dict[str, Any]) -> list[dict[str, Any]]:
    return [table_of(row) for row in list_of(bench.get("results"))]


def bench_rows(bench: dict[str, Any]) -> list[tuple[float, bool, float]]:
    """Bytes of a call, whether in place, and GB/s of bus bandwidth: of `ddpbench allreduce` and `split`."""
    found = []
    for row in result_rows(bench):
        size_bytes, busbw_gbs = positive(row.get("bytes", row.get("bytes_each"))), positive(row.get("busbw_gbs"))
        if size_bytes is not None and busbw_gbs is not None:
            found.append((size_bytes, row.get("in_place") is True, busbw_gbs))
    return found


def bench_choices(bench: dict[str, Any]) -> dict[float, tuple[str, str]]:
    """NCCL's algorithm and protocol by bytes, of `ddpbench allreduce`."""
    found = {}
    for row in result_rows(bench):
        size, algorithm, protocol = positive(row.get("bytes")), row.get("algorithm"), row.get("protocol")
        if size is not None and isinstance(algorithm, str) and isinstance(protocol, str):
            found[size] = (algorithm, protocol)
    return dict(sorted(found.items()))


def gpus_of(run: Run) -> list[dict[str, Any]]:
    """What the sensors of each rank's GPU showed, of ddptrain or ddpbench; empty where nothing was read."""
    return [table_of(gpu) for gpu in list_of(run.summary.get("gpus") or run.bench.get("gpus"))]


def nccl_of(run: Run) -> dict[str, Any]:
    """What ddptrain says that NCCL used, or ddpbench of all sizes together."""
    chosen = bench_choices(run.bench)
    if run.summary.get("nccl") or not chosen:
        return table_of(run.summary.get("nccl"))
    algorithms, protocols = zip(*chosen.values(), strict=True)
    by_size = {"algorithm": "+".join(dict.fromkeys(algorithms)), "protocol": "+".join(dict.fromkeys(protocols))}
    return table_of(run.bench.get("nccl")) | by_size


Value = str | int | float
PLACEMENT_KEYS = ("ranks", "layout", "gpus", "cpus", "groups")
PATH_FLAGS = ("symmetric", "fused-sum", "comm")  # they decide how gradients are summed


def is_too_noisy(efficiency_half_width: float | None) -> bool:
    return efficiency_half_width is not None and efficiency_half_width > MOST_HALF_WIDTH


def why_unusable(summary: Record) -> str:
    """Why efficiency and parts of a step are not to be trusted, as ddptrain says, and for files of older versions by the
    rules by which it warned. Empty where they are usable, or where nothing is known."""
    told = summary.get("disturbed")
    if isinstance(told, str):
        return told
    shares = [share for value in list_of(summary.get("cpu_share_per_rank")) if (share := positive(value)) is not None]
    if min(shares, default=1.0) < LEAST_CPU_SHARE:
        return f"other programs, or too many threads, left a rank a core for {100 * min(shares):.0f}% of its time"
    half_width = finite(summary.get("scaling_efficiency_half_width"))
    return f"the interval of its efficiency is +- {100 * half_width:.0f} points" if is_too_noisy(half_width) else ""


def is_by_others(summary: Record) -> bool:
    """Whether other programs disturbed the run, as ddptrain says, and for files of older versions by the words of the reason."""
    told = summary.get("disturbed_by_others")
    return told if isinstance(told, bool) else any(words in why_unusable(summary) for words in WORDS_OF_OTHERS)


def seconds_to_measure(summaries: list[Record]) -> int:
    """A value of --calibration-seconds that is worth trying: three times what was too short, and a minute at least."""
    limits = [limit for summary in summaries if (limit := positive(summary.get("calibration_limit_seconds"))) is not None]
    return max(60, math.ceil(3 * max(limits, default=0.0) / 10) * 10)


ACCURACY = "test accuracy"


def quality_of(summary: Record) -> tuple[str, float] | None:
    """What training came to, and what it is called: accuracy on test data, or of language models the loss on validation
    data. None where nothing was evaluated."""
    accuracy, loss = finite(summary.get("accuracy")), finite(summary.get("test_loss"))
    is_language_model = "perplexity" in summary or "tokens_per_second" in summary
    if accuracy is not None and not is_language_model:
        return ACCURACY, accuracy
    return None if loss is None else ("validation loss" if is_language_model else "test loss", loss)


def quality_text(name: str, value: float) -> str:
    return f"{100 * value:.2f}%" if name == ACCURACY else f"{value:.4f}"
