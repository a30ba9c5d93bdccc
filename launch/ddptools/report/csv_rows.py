"""ddpreport --csv: the numbers of a page for other programs. docs/reference/results.md lists the columns."""

import csv
import io
from collections.abc import Sequence

from ddptools.common.files import Record
from ddptools.common.values import finite, median_of, table_of
from ddptools.results.efficiency import efficiency_of, why_disturbed
from ddptools.results.run import NCCL_CHOICES, UNITS

Row = dict[str, str | float | None]

# Numbers of a summary of ddptrain under their own names; see docs/reference/metrics.md.
NUMBERS = (
    "loss", "last_loss", "test_loss", "accuracy", "perplexity", "step_seconds", "step_seconds_alone",
    "step_seconds_without_communication", "communication_seconds", "together_us", "stragglers_us", "slowed_down_us",
    "waiting_us", "exposed_comm_us", "exposed_comm_fraction", "cores_taken", "mfu", "startup_seconds", "train_seconds",
)  # fmt: skip
TEXTS = ("topology", "gradient_path", "parameter_hash")


def summary_row(summaries: Sequence[Record]) -> Row:
    """Of runs with the same settings: medians of numbers; texts that differ are joined with /."""
    row: Row = {}
    for unit in UNITS:
        values = [value for summary in summaries if (value := finite(summary.get(f"{unit}_per_second"))) is not None]
        row |= spread_row(f"{unit}_per_second", values)
    efficiency = efficiency_of(summaries)
    if efficiency is not None:
        row |= {"scaling_efficiency": efficiency.value}
        row |= dict(zip(("scaling_efficiency_low", "scaling_efficiency_high"), efficiency.limits or ()))
    row |= {"disturbed": why_disturbed(summaries)}
    row |= {name: median_of(finite(summary.get(name)) for summary in summaries) for name in NUMBERS}
    row |= {name: _joined(summary.get(name) for summary in summaries) for name in TEXTS}
    nccl = [table_of(summary.get("nccl")) for summary in summaries]
    row |= {f"nccl_{name}": _joined(one.get(name) for one in nccl) for name in ("version", *NCCL_CHOICES)}
    return row


def spread_row(name: str, values: list[float]) -> Row:
    """Median, smallest and largest."""
    if not values:
        return {}
    return {name: median_of(values), f"{name}_min": min(values), f"{name}_max": max(values)}


def to_csv(rows: list[Row]) -> str:
    """Columns in the order in which the rows name them first, without those that are empty everywhere."""
    columns = dict.fromkeys(name for row in rows for name, value in row.items() if value not in (None, ""))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: str | float | None) -> str:
    if value is None:
        return ""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _joined(texts) -> str:
    return "/".join(dict.fromkeys(str(text) for text in texts if text not in (None, "")))
