"""What a sweep came to: a table for the terminal, with a row per case."""

from collections.abc import Iterable

from ddptools.common.files import Record
from ddptools.common.table import spread, text_table
from ddptools.common.values import grouped
from ddptools.results.efficiency import DISTURBED, efficiency_of
from ddptools.results.run import Run, make_run, quality_of, quality_text
from ddptools.sweep.cases import Case, label


def outcome_table(cases: list[Case], varied: dict[str, list[str]], records: Iterable[Record]) -> str:
    """Rate, efficiency, and accuracy or loss, as far as the cases have them. Empty without a number."""
    latest = {(str(record.get("case")), str(record.get("repeat"))): record for record in records}
    runs = grouped((case, run) for (case, _), record in latest.items() if (run := make_run(record)) is not None)
    measured = [(case, runs[case.key]) for case in cases if case.key in runs]
    columns = [
        ("case", [label(case, varied) for case, _ in measured]),
        ("rate", [_rate(case, of_case) for case, of_case in measured]),
        ("efficiency", [_efficiency(case, of_case) for case, of_case in measured]),
    ]
    columns += [(name, [_quality(of_case, name) for _, of_case in measured]) for name in _qualities(measured)]
    filled = [(name, cells) for name, cells in columns if any(cells)]
    rows = zip(*(cells for _, cells in filled))
    return text_table([[name for name, _ in filled], *map(list, rows)], indent=2) if measured else ""


def _rate(case: Case, runs: list[Run]) -> str:
    """Marked if the runs were disturbed and no efficiency carries the mark."""
    is_marked = any(run.disturbed for run in runs) and not _efficiency(case, runs)
    return f"{spread([run.rate for run in runs])} {runs[0].unit}{f', {DISTURBED}' if is_marked else ''}"


def _efficiency(case: Case, runs: list[Run]) -> str:
    efficiency = efficiency_of([run.summary for run in runs]) if case.ranks > 1 else None
    return efficiency.text if efficiency else ""


def _qualities(measured: list[tuple[Case, list[Run]]]) -> list[str]:
    found = (quality_of(run.summary) for _, runs in measured for run in runs)
    return list(dict.fromkeys(quality[0] for quality in found if quality))


def _quality(runs: list[Run], name: str) -> str:
    told = [quality[1] for run in runs if (quality := quality_of(run.summary)) and quality[0] == name]
    return spread(told, lambda value: quality_text(name, value))
