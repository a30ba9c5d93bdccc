"""Results of sweeps as a report needs them: experiments of cases of runs. Whatever is damaged is left out and noted."""

import dataclasses
import functools
import json
import pathlib
import statistics
from collections.abc import Iterable, Iterator
from typing import Any

from ddptools.common.errors import UsageError
from ddptools.common.files import Record, from_json, no_pipe, read_records, unread_text
from ddptools.common.text import setting_text
from ddptools.common.values import (
    finite,
    grouped,
    list_of,
    median_of,
    number_of,
    positive,
    setting_value,
    table_of,
)
from ddptools.results.efficiency import Efficiency, efficiency_of
from ddptools.results.machine import different_machines
from ddptools.results.run import (
    NCCL_CHOICES,
    PLACEMENT,
    WORKLOAD,
    Run,
    bench_choices,
    make_run,
    nccl_of,
    varied,
)

SYMMETRIC = ("symmetric", "symmetric+fused", "peers")  # paths of gradients


@dataclasses.dataclass
class Case:
    key: str
    settings: dict[str, str]
    runs: list[Run] = dataclasses.field(default_factory=list)
    failures: list[Record] = dataclasses.field(default_factory=list)  # failed, timeout, skipped, or without a number
    emulated: bool = False

    @property
    def rates(self) -> list[float]:
        return [run.rate for run in self.runs]

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def ranks(self) -> int:
        return int(self.number("ranks"))

    def number(self, name: str) -> float:
        """A setting as a number; 0 if it is none."""
        return number_of(self.settings.get(name, ""))

    def medians(self, name: str) -> float | None:
        return median_of(finite(run.summary.get(name)) for run in self.runs)

    def half_width(self, name: str) -> float | None:
        """Half of the 95% interval of a field of the summaries, of several runs the widest; None where one has none."""
        widths = [finite(run.summary.get(f"{name}_half_width")) for run in self.runs]
        known = [width for width in widths if width is not None]
        return max(known) if known and len(known) == len(widths) else None

    @property
    def summaries(self) -> list[Record]:
        return [run.summary for run in self.runs]

    def efficiency(self) -> Efficiency | None:
        """That the jobs measured themselves; None of one rank, and where none did."""
        return None if self.ranks == 1 else efficiency_of(self.summaries)

    @property
    def disturbed(self) -> str:
        """Why its numbers are not to be trusted; empty: nothing is known against them."""
        return next(filter(None, (run.disturbed for run in self.runs)), "")

    def nccl(self) -> tuple[str, ...] | None:
        """What NCCL chose, the same in all runs or joined with /; None where NCCL was not used."""
        used = [told for run in self.runs if (told := nccl_of(run))]
        if not used:
            return None
        return tuple("/".join(dict.fromkeys(str(u.get(name, "unknown")) for u in used)) for name in NCCL_CHOICES)

    def told(self, name: str) -> str:
        """A text of the summaries, the same in all runs or joined with /; empty where none has it."""
        texts = (run.summary.get(name) for run in self.runs)
        return "/".join(dict.fromkeys(text for text in texts if isinstance(text, str) and text))

    @property
    def path(self) -> str:
        """By which path it sums its gradients: one of SYMMETRIC, plain, mpi or tree. Empty if it sends nothing or does
        not say."""
        path = self.told("gradient_path")
        return "" if path == "none" else path

    def choices(self) -> dict[float, tuple[str, str]]:
        """NCCL's algorithm and protocol by bytes of a call, where the last run says it."""
        return bench_choices(self.runs[-1].bench) if self.runs else {}

    def buckets(self) -> list[Any]:
        """In which the first run sent its gradients, as its description lists them; empty where it does not."""
        return list_of(table_of(self.runs[0].summary.get("description")).get("buckets")) if self.runs else []

    def gpus_used(self) -> str:
        """Indices of the GPUs that a selection stood for, joined by commas; empty where that is not known."""
        used = self.runs[0].record.get("gpus_used") if self.runs else None
        return ",".join(map(str, used)) if isinstance(used, list) else ""

    @property
    def trains(self) -> bool:
        """Whether its ranks communicate: without, it is a ceiling and no competitor."""
        return self.settings.get("overlap") != "none"

    def hashes(self) -> set[str]:
        return {str(run.summary["parameter_hash"]) for run in self.runs if run.summary.get("parameter_hash")}


Series = list[tuple[float, Case]]  # a number that the cases differ in, and the case


@dataclasses.dataclass
class Experiment:
    source: pathlib.Path
    sweep: str
    product: str
    notes: list[str]  # what ddpsweep added to the settings
    cases: list[Case]
    variables: set[str]  # settings that are environment variables
    machines: list[dict[str, Any]]  # different ones, where a sweep went on elsewhere
    versions: list[str]
    description: str = ""

    def __post_init__(self) -> None:
        self.varied = varied([case.settings for case in self.cases])
        self.tuned = [name for name in self.varied if name not in WORKLOAD and name not in PLACEMENT]

    @property
    def title(self) -> str:
        return self.sweep if self.product == "main" else f"{self.sweep}: {self.product}"

    @property
    def measured(self) -> list[Case]:
        return [case for case in self.cases if case.runs]

    @property
    def runs(self) -> list[Run]:
        return [run for case in self.cases for run in case.runs]

    @property
    def kinds_of_machines(self) -> list[Record]:
        """Those of its runs, one of each kind."""
        return different_machines(table_of(run.record.get("machine")) for run in self.runs)

    @property
    def records(self) -> list[Record]:
        """Of all runs, the failed ones too."""
        return [record for case in self.cases for record in [run.record for run in case.runs] + case.failures]

    @property
    def unit(self) -> str:
        return self.measured[0].runs[0].unit if self.measured else ""

    def label(self, case: Case, names: list[str] | None = None) -> str:
        """The case in words, by the settings that are named; emulated ones say so."""
        names = self.varied if names is None else names
        text = ", ".join(setting_text(name, case.settings.get(name, "")) for name in names)
        mark = " (emulated)" if case.emulated else ""
        return (text or self.product) + mark

    def contexts(self, names: list[str]) -> list[tuple[str, list[Case]]]:
        """Measured cases that differ in nothing but `names`; with what they share, in words."""
        shared = [name for name in self.varied if name not in names]
        groups = grouped((tuple(case.settings.get(name, "") for name in shared), case) for case in self.measured)
        return [(", ".join(map(setting_text, shared, key)), cases) for key, cases in groups.items()]

    def series(self, name: str) -> list[tuple[str, Series]]:
        """Measured cases along a numeric setting, one series per value of everything else."""
        if name not in self.varied:
            return []
        groups = ((context or self.product, cases) for context, cases in self.contexts([name]))
        return [(label, sorted(((case.number(name), case) for case in cases), key=lambda point: point[0]))
                for label, cases in groups]  # fmt: skip

    @functools.cached_property
    def one_rank(self) -> dict[str, Case]:
        """By the key of a case of several ranks that trains, each on its own device, the case of one rank that is
        otherwise the same."""
        found = {}
        for _, ((ranks, one), *others) in self.series("ranks"):
            compared = [case for _, case in others if case.ranks > 1 and case.trains]
            alone = [case for case in compared if not any(run.summary.get("shared_gpus") for run in case.runs)]
            found |= {case.key: one for case in alone if ranks == 1}
        return found

    def is_doubtful(self, case: Case) -> bool:
        """Whether other programs disturbed it, or the run of one rank that it is compared with."""
        one = self.one_rank.get(case.key)
        return bool(case.disturbed or (one and one.disturbed))

    def efficiencies(self, case: Case) -> list[float]:
        """Of each run, against the median of the case of one rank; empty without one."""
        one = self.one_rank.get(case.key)
        return [rate / case.ranks / one.rate for rate in case.rates] if one else []

    def references(self) -> dict[str, Case]:
        """By the key of a case, what it is compared with: of the same workload and, where settings were tuned, of the
        same placement too. Cases that nothing compares are left out."""
        names = self.tuned or [name for name in self.varied if name in PLACEMENT]
        found = {}
        for _, cases in self.contexts(names):
            if len(cases) > 1:
                found |= dict.fromkeys((case.key for case in cases), self.reference(cases))
        return found

    def reference(self, cases: list[Case]) -> Case:
        """What the others are compared with: the first one in the sweep file that trains."""
        return next((case for case in cases if case.trains), cases[0])


@dataclasses.dataclass
class Results:
    experiments: list[Experiment]
    notes: list[str]  # what was damaged or is missing


def load(paths: list[pathlib.Path]) -> Results:
    results = Results([], [])
    for path in paths:
        file = (path / "results.jsonl" if path.is_dir() else path).absolute()
        if not file.is_file():
            other = "no file of ddptrain --metrics, and no results of ddpsweep" if path.exists() else "no such file"
            why = "no results.jsonl in this folder" if path.is_dir() else other
            raise UsageError(f"{no_pipe(path)}: {why}")
        bad_lines: list[int] = []
        records = list(read_records(file, bad_lines, needed="case"))
        if bad_lines and not records and not path.is_dir():
            raise UsageError(f"{path}: not a line of this file is a run of ddpsweep: give its folder or results.jsonl")
        plan_file = file.with_name("plan.json")  # may be missing or damaged
        plan = table_of(from_json(plan_file.read_bytes()) if plan_file.is_file() else None)
        results.notes += [f"{file.parent.name}: {note}" for note in _notes(records, bad_lines, plan)]
        results.experiments += _experiments(file, records, plan)
    return results


def _places(plan: dict[str, Any]) -> dict[str, int]:
    """The keys of the cases, and their places in the plan."""
    return {str(case.get("case")): place for place, case in enumerate(map(table_of, list_of(plan.get("cases"))))}


def _notes(records: list[Record], bad_lines: list[int], plan: dict[str, Any]) -> Iterator[str]:
    if bad_lines:
        yield unread_text(bad_lines)
    places, runs = _places(plan), [(str(record.get("case")), str(record.get("repeat"))) for record in records]
    done = len({run for run in runs if run[0] in places})
    planned = len(places) * int(positive(plan.get("repeats")) or 0)
    if not records:
        yield "no runs recorded"
    elif done < planned:
        yield f"partial: {done} of {planned} planned runs are there (ddpsweep --resume goes on)"
    stale = sum(case not in places for case, _ in runs) if places else 0
    if stale:
        yield f"{stale} of the runs are of an earlier plan: the sweep was changed since"


def _experiments(file: pathlib.Path, records: list[Record], plan: dict[str, Any]) -> list[Experiment]:
    """In the order of the plan. A run that was made again replaces the earlier one."""
    identity = ("sweep", "product", "case", "repeat")
    latest = {tuple(str(record.get(name)) for name in identity): record for record in records}
    groups = grouped((key[:2], record) for key, record in latest.items())
    places = _places(plan)
    made = [_experiment(file, *name, of_product, places) for name, of_product in groups.items()]
    for experiment in made:
        experiment.description = str(plan.get("description", "")) if plan.get("sweep") == experiment.sweep else ""
    return sorted(made, key=lambda experiment: min(places.get(case.key, len(places)) for case in experiment.cases))


def _experiment(
    file: pathlib.Path, sweep: str, product: str, records: list[Record], places: dict[str, int]
) -> Experiment:
    cases: dict[str, Case] = {}
    variables: set[str] = set()
    for record in records:
        key = str(record.get("case"))
        settings = {str(k): setting_value(v) for k, v in table_of(record.get("settings")).items()}
        case = cases.setdefault(key, Case(key, settings))
        variables.update(map(str, list_of(record.get("variables"))))
        run = make_run(record)
        case.emulated |= record.get("emulated") is True
        (case.failures if run is None else case.runs).append(record if run is None else run)
    _keep_one_unit(cases)
    return Experiment(
        source=file,
        sweep=sweep,
        product=product,
        notes=_different(str(note) for record in records for note in list_of(record.get("notes"))),
        cases=sorted(cases.values(), key=lambda case: (places.get(case.key, len(places)), _natural(case))),
        variables=variables,
        machines=_different(table_of(record.get("machine")) for record in records),
        versions=_different(str(record["versions"]) for record in records if record.get("versions")),
    )


def _different(values: Iterable[Any]) -> list[Any]:
    return list({json.dumps(value, sort_keys=True): value for value in values if value}.values())


def _natural(case: Case) -> list[tuple[float, str]]:
    """The order of the settings, by number if they are numbers."""
    return [(number_of(text), text) for text in case.settings.values()]


def _keep_one_unit(cases: dict[str, Case]) -> None:
    """Numbers of different units cannot be compared; the most frequent stays, the others count as failures."""
    units = [run.unit for case in cases.values() for run in case.runs]
    if len(set(units)) < 2:
        return
    unit = statistics.mode(units)
    for case in cases.values():
        case.failures += [r.record | {"reason": f"measured in {r.unit}"} for r in case.runs if r.unit != unit]
        case.runs = [r for r in case.runs if r.unit == unit]
