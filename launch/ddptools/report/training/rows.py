"""Rows of ddpreport --csv, of training runs."""

from ddptools.common.values import finite
from ddptools.report.csv_rows import Row, summary_row
from ddptools.report.training.key_numbers import last_loss, last_test, rate_of
from ddptools.report.training.runs import TrainingRun

WAITS = ("waits_for_stages", "in_split_layers", "waits_for_replicas")


def rows_of_runs(runs: list[TrainingRun]) -> list[Row]:
    return [_row(run) for run in runs]


def _row(run: TrainingRun) -> Row:
    summary = run.summary or {}
    row: Row = {"table": "runs", "run": run.name, "end": run.end, "steps": run.steps, "restarts": len(run.restarts)}
    row |= {"run_seconds": run.took, "ranks": finite((run.start or summary).get("world_size"))}
    row |= summary_row([summary])
    rate, unit = rate_of(run), f"{run.unit}_per_second"
    row |= {unit: rate, f"{unit}_min": finite(summary.get(f"{unit}_min")), f"{unit}_max": finite(summary.get(f"{unit}_max"))}
    row |= {name: finite(last_test(run).get(name)) for name in ("test_loss", "accuracy", "perplexity")}
    row |= {"last_loss": last_loss(run)} | {name: finite(summary.get(name)) for name in WAITS}
    return row | {f"settings.{name.removeprefix('--')}": value for name, value in run.configuration().items()}
