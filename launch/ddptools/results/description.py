"""What ddptrain says about a run before it trains (ddptrain --describe) or in its summary; nothing is derived here."""

import contextlib
import dataclasses
import functools
import pathlib
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ddptools.common.errors import UsageError
from ddptools.common.files import Record, from_json
from ddptools.common.programs import answer, flag_arguments
from ddptools.common.runner import last_words
from ddptools.common.values import finite, list_of, positive, table_of
from ddptools.results.run import PLACEMENT_KEYS


@dataclasses.dataclass(frozen=True)
class Buckets:
    """Gradients that are sent together: one bucket, or several of one size that are complete at equal intervals. The
    shares are those of backward's FLOP after which the first and the last one are complete."""

    bytes: float  # bytes of one
    first_complete_at: float
    last_complete_at: float
    count: int = 1


@dataclasses.dataclass(frozen=True)
class Sent:
    """Collectives or messages of a rank in a step, and the bytes of all of them."""

    axis: str
    when: str
    times: float
    bytes: float


@dataclasses.dataclass(frozen=True)
class Description:
    model: str
    parameters: float
    forward_flop: float  # of a sample
    backward_flop: float  # of a sample, with what is recomputed
    buckets: tuple[Buckets, ...]  # in the order in which they are sent; the last is a single one
    gradient_dtype: str  # as sent
    batch: float  # samples per rank and micro-step
    grad_accum: int
    units_per_sample: float = 1.0  # tokens of a window
    precision: str = ""  # of compute; empty where it is not told
    device: str = ""  # cpu or cuda; empty where it is not told
    hierarchical: str = ""  # on or off: how MPI sums over hosts; empty with NCCL, and where it is not told
    memory_bytes: float = 0.0  # that a rank keeps on its device; 0 where it is not told
    host_bytes: float = 0.0  # that a rank with a GPU keeps on its host
    sends: tuple[Sent, ...] = ()

    @property
    def worker(self) -> str:
        """What texts call a rank."""
        return "rank" if self.device == "cpu" else "GPU"

    @property
    def flop(self) -> float:
        return self.forward_flop + self.backward_flop

    @property
    def gradient_bytes(self) -> float:
        return sum(group.count * group.bytes for group in self.buckets)


NUMBERS = {
    "parameters": "parameters",
    "forward_flop": "flop_forward_per_sample",
    "backward_flop": "flop_backward_per_sample",
    "batch": "batch_per_rank",
    "grad_accum": "grad_accum",
    "units_per_sample": "units_per_sample",
}  # as ddptrain calls them; all are needed


def parsed(value: Any) -> Description | None:
    """None where the table does not hold what a Description needs."""
    table = table_of(value)
    buckets = [_bucket(bucket) for bucket in list_of(table.get("buckets"))]
    numbers: dict[str, Any] = {field: positive(table.get(name)) for field, name in NUMBERS.items()}
    if not buckets or None in buckets or None in numbers.values():
        return None
    return Description(
        model=str(table.get("model")),
        buckets=tuple(buckets),
        gradient_dtype=str(table.get("gradient_dtype")),
        memory_bytes=_sum(table.get("memory")),
        host_bytes=_sum(table.get("host_memory")),
        sends=tuple(_sent(table_of(row)) for row in list_of(table.get("sends"))),
        **{name: str(table.get(name) or "") for name in ("precision", "device", "hierarchical")},
        **numbers | {"grad_accum": int(numbers["grad_accum"])},
    )


def _sum(memory: Any) -> float:
    return sum(positive(size) or 0.0 for size in table_of(memory).values())


def _sent(row: Record) -> Sent:
    times, size = positive(row.get("times")), positive(row.get("bytes"))
    return Sent(str(row.get("axis")), str(row.get("when")), times or 1.0, size or 0.0)


def _bucket(value: Any) -> Buckets | None:
    size, complete_at = positive(table_of(value).get("bytes")), finite(table_of(value).get("complete_at"))
    if size is None or complete_at is None or not 0.0 <= complete_at <= 1.0:
        return None
    return Buckets(size, complete_at, complete_at)


class NotDescribed(UsageError):
    """There is no ddptrain to ask, or it does not take these flags."""


def describe(program: pathlib.Path, flags: Mapping[str, Any], more: Sequence[str] = ()) -> Description:
    """Of a run of one rank with these flags; `more`: as they are written, behind those."""
    description = parsed(_described(program, (*flag_arguments(flags), *more)))
    if description is None:
        raise NotDescribed(f"{program}: its --describe is that of another version")
    return description


def complete(records: Iterable[Record], program: pathlib.Path) -> None:
    """Gives runs that are older than descriptions the one that ddptrain makes of their settings; those of which it
    makes none stay as they are. NotDescribed if a run needs it and the program is missing."""
    for record in records:
        summary, settings = table_of(record.get("summary")), table_of(record.get("settings"))
        if not summary.get("parameter_hash") or not settings or "description" in summary:
            continue
        if not program.exists():
            why = "it is needed to describe runs of older versions"
            raise NotDescribed(f"{program} is missing; {why}. Build it, or give --bin DIR")
        others = {*PLACEMENT_KEYS, "global-batch", *list_of(record.get("variables"))}
        flags = {str(name): value for name, value in settings.items() if name not in others}
        with contextlib.suppress(NotDescribed, ValueError):  # a damaged record, too, stays as it is
            summary["description"] = _described(program, tuple(flag_arguments(flags)))


@functools.cache
def _described(program: pathlib.Path, arguments: tuple[str, ...]) -> Any:
    """What ddptrain --describe prints; NotDescribed with its words where it does not."""
    command = [str(program), *arguments, "--describe"]
    try:
        done = answer(command, 300.0)
    except OSError as error:
        raise NotDescribed(f"{program} cannot be run: {error.strerror}. Build it, or give --bin DIR") from error
    except subprocess.TimeoutExpired as error:
        raise NotDescribed(f"{' '.join(command)} does not end") from error
    told = from_json(done.stdout)
    if done.returncode == 0 and told is not None:
        return told
    words = [line.removeprefix("ddptrain: ") for line in done.stderr.splitlines() if line.startswith("ddptrain: ")]
    raise NotDescribed(" ".join(words) or f"{' '.join(command)} does not describe the run: {last_words(done.stderr)}")


def language_model(
    parameters: float,
    sequence: int,
    *,
    batch: float = 16.0,
    grad_accum: int = 1,
    gradient_dtype: str = "bf16",
    recompute: bool = False,
    bucket_bytes: float = 25.0 * 2**20,
    last_bucket_bytes: float = 256.0 * 2**10,
) -> Description:
    """One that does not exist, of which only the size is known: 2 FLOP per parameter and token forward, 4 backward (6
    with recomputation), and gradients that are complete evenly over backward."""
    forward = 2.0 * parameters * sequence
    return Description(
        model="language model",
        parameters=parameters,
        forward_flop=forward,
        backward_flop=(3.0 if recompute else 2.0) * forward,
        buckets=_even_buckets(parameters * (4.0 if gradient_dtype == "fp32" else 2.0), bucket_bytes, last_bucket_bytes),
        gradient_dtype=gradient_dtype,
        batch=batch,
        grad_accum=grad_accum,
        units_per_sample=float(sequence),
    )


def _even_buckets(total_bytes: float, most_bytes: float, last_bytes: float) -> tuple[Buckets, ...]:
    last_bytes = min(last_bytes, total_bytes)
    rest_bytes = total_bytes - last_bytes
    full = -int(-rest_bytes // most_bytes)
    share = rest_bytes / total_bytes
    groups = [Buckets(rest_bytes / full, share / full, share, full)] if full > 0 else []
    return tuple(groups + ([Buckets(last_bytes, 1.0, 1.0)] if last_bytes > 0 else []))
