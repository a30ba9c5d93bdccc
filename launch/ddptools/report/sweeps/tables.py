"""Tables of an experiment, in the form in which such results are published."""

from collections.abc import Callable
from typing import Any

from ddptools.common.files import Record
from ddptools.common.table import Table, spread
from ddptools.common.text import measured, number, percent, size_text
from ddptools.common.values import finite, median_of, table_of
from ddptools.report.sweeps.experiment import Case, Experiment
from ddptools.report.sweeps.noise import Effect, Effects
from ddptools.report.sweeps.two_efficiencies import words_of_both
from ddptools.results.efficiency import DISTURBED
from ddptools.results.machine import gpus_text, processor_text
from ddptools.results.run import (
    MOST_HALF_WIDTH,
    NCCL_CHOICES,
    Run,
    bench_rows,
    gpus_of,
    quality_of,
    quality_text,
)

MOST_ROWS = 200
MOST_COLUMNS = 32
WAITS = (
    "Rates, and the efficiency against the run of one rank, count waits for other programs. Steps, the efficiency in the "
    "job and exposed communication leave them out, but for jobs on several hosts."
)

Column = tuple[str, Callable[[Case], str]]  # its head and its text


def tables(experiment: Experiment) -> list[Table]:
    choices = [(case, found) for case in experiment.measured if (found := case.choices())]
    chosen = _tables_by_size(experiment, "What NCCL chose, by size.", choices, " ".join)
    made = [_cases(experiment), *_bus_bandwidth(experiment), *chosen]
    return [table for table in made if table.rows]


def _mark(case: Case) -> str:
    return " emulated" if case.emulated else ""


def _cases(experiment: Experiment) -> Table:
    """A row per case: what differs, the rate, and what belongs to it. Columns that no case fills are left out."""
    shown = experiment.cases[:MOST_ROWS]
    effects = Effects(experiment)
    found = {case.key: effect for case in shown if case.runs and (effect := effects.of(case)) is not None}
    columns = [(name, lambda case, name=name: _setting(case, name)) for name in experiment.varied]
    columns += [(experiment.unit or "rate", _rate)]
    columns += [("efficiency", lambda case: _efficiency(experiment, case))]
    columns += [("against reference", effects.text)]
    columns += [("p", lambda case: f"{p:.2g}" if case.key in found and (p := found[case.key].p) is not None else "")]
    columns += [("runs", lambda case: str(len(case.runs))), *_quality_columns(shown), *_case_columns()]
    if len({case.path for case in experiment.measured} - {""}) > 1:
        columns.append(("gradient path", lambda case: case.path))
    columns = [(name, show) for name, show in columns if any(show(case) for case in shown)]
    rows = [[show(case) for _, show in columns] for case in shown]
    caption = with_rest("All cases, median (smallest to largest).", len(experiment.cases))
    is_busy = any((own := case.efficiency()) is not None and own.by_others for case in shown)
    footnote = " ".join(filter(None, [WAITS if is_busy else "", words_of_both(experiment, shown)]))
    return Table(caption, [name for name, _ in columns], rows, footnote, _winners(shown, effects, found))


def _efficiency(experiment: Experiment, case: Case) -> str:
    """Against the run of one rank."""
    text = spread(experiment.efficiencies(case), percent)
    return f"{text}, {DISTURBED}" if text and experiment.is_doubtful(case) else text


def _quality_columns(cases: list[Case]) -> list[Column]:
    """What training came to: accuracy, or the loss of language models."""
    found = [quality for case in cases for summary in case.summaries if (quality := quality_of(summary))]

    def column(name: str) -> Column:
        return name, lambda case: _quality(case, name)

    return [column(name) for name in dict.fromkeys(name for name, _ in found)]


def _quality(case: Case, name: str) -> str:
    told = [quality for summary in case.summaries if (quality := quality_of(summary)) and quality[0] == name]
    return spread([value for _, value in told], lambda value: quality_text(name, value))


def _winners(cases: list[Case], effects: Effects, found: dict[str, Effect]) -> list[int]:
    """Rows of the best case among those that are compared with each other, if it differs from the reference."""
    best: dict[str, tuple[float, int]] = {}  # by the key of the reference
    for row, case in enumerate(cases):
        if case.key in found and case.trains and found[case.key].is_difference and found[case.key].change > 0:
            reference = effects.references[case.key].key
            best[reference] = max(best.get(reference, (0.0, row)), (case.rate, row))
    return sorted(row for _, row in best.values())


def _rate(case: Case) -> str:
    """Marked if the runs were disturbed and no efficiency carries the mark, which one rank does not have."""
    if case.runs:
        is_marked = case.ranks == 1 and case.disturbed
        return spread(case.rates) + _mark(case) + (f", {DISTURBED}" if is_marked else "")
    return f"({case.failures[-1].get('status', 'unknown') if case.failures else 'not run'})"


def with_rest(caption: str, rows: int) -> str:
    return caption if rows <= MOST_ROWS else f"{caption} {rows - MOST_ROWS} more rows are in results.jsonl."


def _setting(case: Case, name: str) -> str:
    value = case.settings.get(name, "")
    if name == "layout":
        return value + _mark(case)
    if name == "gpus":
        used = case.gpus_used()
        return f"{value} ({used})" if used and used != value else value
    return value if value != "" else "unset"


def _case_columns() -> list[Column]:
    """What only several ranks have stays empty for one."""

    def field(name: str, show: Callable[[float], str]) -> Callable[[Case], str]:
        return lambda case: show(value) if (value := case.medians(name)) is not None else ""

    def several(show: Callable[[Case], str]) -> Callable[[Case], str]:
        return lambda case: "" if case.ranks == 1 else show(case)

    def milliseconds(value: float) -> str:
        return f"{1e3 * value:.4g}" if value > 0 else ""

    return [
        ("step ms", field("step_seconds", milliseconds)),
        ("efficiency in the job", several(_own_efficiency)),
        ("exposed communication", several(_marked_exposed)),
        ("MFU", field("mfu", percent)),
        ("clocks", _clocks),
        ("topology", several(lambda case: case.told("topology"))),
        *((name, lambda case, i=i: (case.nccl() or ("",) * 4)[i]) for i, name in enumerate(NCCL_CHOICES)),
    ]


def _own_efficiency(case: Case) -> str:
    efficiency = case.efficiency()
    if efficiency is None:
        return DISTURBED if case.disturbed else ""
    return efficiency.text


def _marked_exposed(case: Case) -> str:
    text = _exposed(case)
    return f"{text}, {DISTURBED}" if text and DISTURBED in _own_efficiency(case) else text


def _exposed(case: Case) -> str:
    """With its sign and half of its 95% interval."""
    exposed_us, half_width_us = case.medians("exposed_comm_us"), case.half_width("exposed_comm_us")
    fraction = case.medians("exposed_comm_fraction")
    share = "" if fraction is None else percent(fraction)
    if exposed_us is None:
        return share
    text = f"{measured(exposed_us, half_width_us, 1)} us"
    step_seconds = case.medians("step_seconds") or 0.0
    if half_width_us is not None and half_width_us > max(abs(exposed_us), MOST_HALF_WIDTH * 1e6 * step_seconds):
        return f"too noisy ({text})"
    return text + (f" ({share})" if share else "")


def _clocks(case: Case) -> str:
    """Of the slowest GPU while training, and what held it down."""
    gpus = [gpu for run in case.runs for gpu in gpus_of(run)]
    clocks = [clock for gpu in gpus if (clock := finite(gpu.get("sm_mhz"))) is not None]
    if not clocks:
        return ""
    reasons = dict.fromkeys(reason for gpu in gpus for reason in table_of(gpu.get("throttled")))
    fell = sum(finite(run.summary.get("windows_clock_fell")) or 0 for run in case.runs)
    held = f" ({', '.join(reasons)})" if reasons else ""
    return f"{min(clocks):,.0f} MHz{held}" + (f", fell in {fell:.0f} windows" if fell else "")


def busbw_gbs_by_bytes(case: Case) -> list[tuple[float, float]]:
    """Size in bytes and median bus bandwidth over the runs, GB/s; in place where both were measured."""
    values: dict[float, dict[bool, list[float]]] = {}
    for run in case.runs:
        for size_bytes, in_place, busbw_gbs in bench_rows(run.bench):
            values.setdefault(size_bytes, {}).setdefault(in_place, []).append(busbw_gbs)
    return [(size, median_of(places.get(True) or places[False]) or 0.0) for size, places in sorted(values.items())]


def operation(cases: list[Case]) -> str:
    names = (table_of(run.bench).get("op") or "all-reduce" for case in cases for run in case.runs)
    return ", ".join(dict.fromkeys(map(str, names)))


def _bus_bandwidth(experiment: Experiment) -> list[Table]:
    by_case = [(case, dict(busbw_gbs_by_bytes(case))) for case in experiment.measured]
    caption = f"Bus bandwidth of {operation([case for case, found in by_case if found])}, GB/s."
    return _tables_by_size(experiment, caption, [(case, found) for case, found in by_case if found], number)


def _tables_by_size(
    experiment: Experiment, caption: str, by_case: list[tuple[Case, dict[float, Any]]], show: Callable[[Any], str]
) -> list[Table]:
    """A table with a column per case; none without cases."""
    shown, rows = by_case[:MOST_COLUMNS], []
    for size in sorted({size for _, values in shown for size in values})[:MOST_ROWS]:
        rows.append([size_text(size), *(show(values[size]) if size in values else "" for _, values in shown)])
    return [Table(caption, ["size", *(experiment.label(case) for case, _ in shown)], rows)] if shown else []


def why_failed(record: Record) -> tuple[str, str]:
    """Its status and the reason."""
    status = "no result" if record.get("status") == "ok" else str(record.get("status"))
    return status, str(record.get("reason") or _no_number(record))


def failures(experiment: Experiment) -> Table:
    """A row for all runs of a case that ended for the same reason; the log is that of the first."""
    found: dict[tuple[str, str, str], tuple[list[str], str]] = {}
    for case, record in ((case, record) for case in experiment.cases for record in case.failures):
        repeat = record.get("repeat")
        status, reason = why_failed(record)
        numbers, _ = found.setdefault((experiment.label(case), status, reason), ([], str(record.get("log") or "")))
        numbers.append(str(repeat + 1) if isinstance(repeat, int) else "?")
    rows = [[label, ", ".join(n), status, reason, log] for (label, status, reason), (n, log) in found.items()]
    header = ["case", "runs", "status", "reason", "log"]
    if not any(row[-1] for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    return Table(with_rest("Runs without a result.", len(rows)), header, rows[:MOST_ROWS])


def _no_number(record: dict) -> str:
    benchmark = table_of(record.get("bench")).get("benchmark")
    return f"ddpbench {benchmark}: its numbers are in results.jsonl" if benchmark else "no number in the record"


def machine_table(experiments: list[Experiment]) -> Table:
    """What is not known has no row; of several, as after --resume elsewhere, all are named."""
    machines = [machine for experiment in experiments for machine in experiment.machines]
    cases = [case for experiment in experiments for case in experiment.measured]
    runs = [run for case in cases for run in case.runs]
    found = [
        ("system", [machine.get("system") for machine in machines]),
        ("processor", [processor_text(machine) for machine in machines]),
        ("GPUs", [gpus_text(machine) for machine in machines]),
        ("ranks run on", [run.summary.get("device_name") or run.bench.get("device") for run in runs]),
        ("topology", [run.summary.get("topology") for case in cases if case.ranks != 1 for run in case.runs]),
        ("versions", [text.replace("\n", ", ") for experiment in experiments for text in experiment.versions]),
        ("NCCL", [_nccl_version(run) for run in runs]),
    ]
    told = {name: list(dict.fromkeys(str(value) for value in values if value)) for name, values in found}
    caption = "Processors and versions."
    if any(len(told[name]) > 1 for name in ("system", "processor", "GPUs", "versions")):
        caption += " Not all of it on the same machine with the same versions: compare with care."
    return Table(caption, ["", ""], [[name, "; ".join(values)] for name, values in told.items() if values])


def _nccl_version(run: Run) -> Any:
    library = str(run.bench.get("library"))
    told = str(run.bench.get("version", library)).partition("NCCL ")[2] or run.bench.get("version")
    return table_of(run.summary.get("nccl")).get("version") or told
