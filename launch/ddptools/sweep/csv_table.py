"""Results as a table for a spreadsheet."""

import csv
import io
import itertools
from typing import Any

from ddptools.common.files import Record
from ddptools.common.values import table_of
from ddptools.results.run import Run, make_run, nccl_of

RECORD_COLUMNS = ("sweep", "product", "case", "repeat", "status", "reason", "emulated", "emulation", "started",
                  "seconds")  # fmt: skip
NCCL_COLUMNS = ("version", "algorithm", "protocol", "channels", "transport")


def csv_text(records: list[Record]) -> str:
    rows = [_row(record, make_run(record)) for record in records]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(itertools.chain(RECORD_COLUMNS, *rows))))
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _row(record: Record, run: Run | None) -> dict[str, Any]:
    """`rate`: the number by which ddpreport compares runs."""
    variables, nccl = table_of(record.get("environment")).items(), nccl_of(run) if run else {}
    row = {name: record.get(name) for name in RECORD_COLUMNS}
    row |= {"rate": run and run.rate, "unit": run and run.unit}
    row["versions"] = ", ".join(str(record.get("versions") or "").splitlines())
    row["environment"] = " ".join(f"{name}={value}" for name, value in variables)
    row |= {f"set:{name}": value for name, value in table_of(record.get("settings")).items()}
    row |= {f"nccl_{name}": nccl.get(name) for name in NCCL_COLUMNS}
    summary = table_of(record.get("summary")).items()
    return row | {name: value for name, value in summary if name not in row and isinstance(value, str | int | float)}
