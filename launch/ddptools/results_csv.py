"""Results as a table for a spreadsheet."""

import csv
import io
from collections.abc import Callable
from typing import Any

from ddptools.measurements import Run, finite, gpus_of, make_run, nccl_of, table_of
from ddptools.results import Record

SUMMARY_COLUMNS = (
    "device_name",
    "precision",
    "world_size",
    "nodes",
    "images_per_second",
    "images_per_second_min",
    "images_per_second_max",
    "tokens_per_second",
    "tokens_per_second_min",
    "tokens_per_second_max",
    "baseline_per_second",
    "scaling_efficiency",
    "scaling_efficiency_half_width",
    "exposed_comm_fraction",
    "exposed_comm_us",
    "exposed_comm_us_half_width",
    "slowed_down_us",
    "waiting_us",
    "together_us",
    "stragglers_us",
    "windows_clock_fell",
    "step_seconds",
    "step_seconds_without_communication",
    "step_seconds_without_communication_mean",
    "communication_seconds",
    "mfu",
    "loss",
    "accuracy",
    "startup_seconds",
    "train_seconds",
    "parameter_hash",
    "topology",
    "gradient_path",
    "gradient_path_reason",
)
GPU_COLUMNS = ("sm_mhz", "sm_mhz_min", "watts", "celsius_max", "throttled")  # of the GPU where they are worst
NCCL_COLUMNS = ("version", "algorithm", "protocol", "channels", "transport")
RECORD_COLUMNS = (
    "sweep",
    "product",
    "case",
    "repeat",
    "status",
    "reason",
    "emulated",
    "emulation",
    "started",
    "seconds",
    "rate",
    "unit",
    "versions",
    "environment",
)


def csv_text(records: list[Record]) -> str:
    settings = dict.fromkeys(name for record in records for name in table_of(record.get("settings")))
    out = io.StringIO()
    writer = csv.writer(out)
    head = [*RECORD_COLUMNS, *(f"set:{name}" for name in settings), *SUMMARY_COLUMNS]
    writer.writerow([*head, *(f"gpu_{name}" for name in GPU_COLUMNS), *(f"nccl_{name}" for name in NCCL_COLUMNS)])
    for record in records:
        summary, run = table_of(record.get("summary")), make_run(record)
        record = record | _on_one_line(record, run)
        row = [record.get(name) for name in RECORD_COLUMNS]
        row += [table_of(record.get("settings")).get(name) for name in settings]
        row += [summary.get(name) for name in SUMMARY_COLUMNS]
        row += _gpu_values(gpus_of(run) if run else [])
        nccl = nccl_of(run) if run else {}
        row += [nccl.get(name) for name in NCCL_COLUMNS]
        writer.writerow(row)
    return out.getvalue()


def _gpu_values(gpus: list[dict[str, Any]]) -> list[Any]:
    def worst(name: str, choose: Callable[[list[float]], float]) -> float | None:
        known = [value for gpu in gpus if (value := finite(gpu.get(name))) is not None]
        return choose(known) if known else None

    numbers = [worst(name, min if name.startswith("sm_mhz") else max) for name in GPU_COLUMNS[:-1]]
    return [*numbers, " ".join(dict.fromkeys(reason for gpu in gpus for reason in table_of(gpu.get("throttled"))))]


def _on_one_line(record: Record, run: Run | None) -> dict[str, Any]:
    """What a record holds in another form. `rate`: the number by which ddpreport compares runs."""
    variables = table_of(record.get("environment")).items()
    return {
        "rate": run and run.rate,
        "unit": run and run.unit,
        "versions": ", ".join(str(record.get("versions") or "").splitlines()),
        "environment": " ".join(f"{name}={value}" for name, value in variables),
    }
