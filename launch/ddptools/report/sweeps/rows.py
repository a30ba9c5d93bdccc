"""Rows of ddpreport --csv, of sweeps."""

from collections.abc import Iterator

from ddptools.common.values import finite
from ddptools.report.csv_rows import Row, spread_row, summary_row
from ddptools.report.sweeps.experiment import Case, Experiment
from ddptools.report.sweeps.noise import Effects
from ddptools.report.sweeps.page import titles_of
from ddptools.report.sweeps.tables import busbw_gbs_by_bytes, why_failed
from ddptools.results.run import NCCL_CHOICES


def rows_of_experiments(experiments: list[Experiment]) -> list[Row]:
    """A row per case, one per size that ddpbench measured with it, and one per run that failed."""
    rows: list[Row] = []
    for experiment, title in zip(experiments, titles_of(experiments)):
        effects = Effects(experiment)
        for case in experiment.cases:
            begin = _begin(experiment, title, case)
            rows += [{"table": "cases"} | begin | _measured(experiment, effects, case)] if case.runs else []
            rows += [{"table": "sizes"} | begin | row for row in _sizes(case)]
            rows += [{"table": "failures"} | begin | row for row in _failures(case)]
    return rows


def _begin(experiment: Experiment, title: str, case: Case) -> Row:
    settings = {f"settings.{name}": value for name, value in case.settings.items()}
    return {"experiment": title, "case": experiment.label(case), "emulated": str(case.emulated).lower()} | settings


def _measured(experiment: Experiment, effects: Effects, case: Case) -> Row:
    row: Row = {"runs": len(case.runs)}
    row |= spread_row("efficiency_against_one_rank", experiment.efficiencies(case))
    if effect := effects.of(case):
        row |= {"change_from_reference": effect.change, "p": effect.p, "verdict": effect.text}
    row |= summary_row(case.summaries) | {"disturbed": case.disturbed}
    if not any(f"{unit}_per_second" in row for unit in ("images", "tokens", "samples")):
        row |= spread_row("busbw_gbs", case.rates)  # of ddpbench, at its largest size
    row |= dict(zip((f"nccl_{name}" for name in NCCL_CHOICES), case.nccl() or ()))
    return row


def _sizes(case: Case) -> Iterator[Row]:
    chosen = case.choices()
    for size_bytes, busbw_gbs in busbw_gbs_by_bytes(case):
        row: Row = {"size_bytes": finite(size_bytes), "busbw_gbs": busbw_gbs}
        yield row | dict(zip(("nccl_algorithm", "nccl_protocol"), chosen.get(size_bytes, ())))


def _failures(case: Case) -> Iterator[Row]:
    for record in case.failures:
        status, reason = why_failed(record)
        repeat = record.get("repeat")
        run = repeat + 1 if isinstance(repeat, int) else None
        yield {"run": run, "status": status, "reason": reason, "log": str(record.get("log") or "")}
