"""Runs the programs of each work in turn on the same devices, and keeps every round."""

import contextlib
import dataclasses
import datetime
import functools
import json
import math
import os
import pathlib
import re
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

from ddptools.common.errors import UsageError
from ddptools.common.files import write_atomically
from ddptools.common.programs import ask
from ddptools.sweep.machine import Machine
from peers import rows
from peers.programs import OutOfTime, RunFailed, last_json, run_program
from peers.rows import DDPTRAIN, LLMQ, LOSS, PYTORCH, ROOT, Row, Work
from peers.sensors import Readings, own_sensors

MODES_ON_SEVERAL_RANKS = 2  # the fastest on one rank, of which the fastest on several is found
MOST_FAILURES = 2  # of a row, after which it is run no more
DIRTY = "-dirty"  # behind a commit if tracked files differ from it


@dataclasses.dataclass(frozen=True)
class Settings:
    device: str
    ranks: list[int]
    seconds: float
    trial_seconds: float
    repeats: int
    only: str  # regular expression, sought in "WORK, RANKS: ROW"
    modes: list[str]  # of PyTorch; empty: all
    seconds_left: float
    bin: pathlib.Path
    python: str  # that has PyTorch
    llmq: pathlib.Path | None = None  # its program `train`
    variants: bool = False  # the rows that are in no table of README, too
    short: bool = False
    text: pathlib.Path | None = None  # None: the project's documentation
    has_pytorch: bool = True
    pytorch: str = ""  # its version; empty: not known, and any counts


@dataclasses.dataclass(frozen=True)
class Group:
    """A work on a number of ranks, and the rows that are wanted of it: they run in turn on the same devices."""

    work: Work
    ranks: int
    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        kind = "CPU rank" if self.work.device == "cpu" else "GPU"
        return f"{self.work.name}, {self.ranks} {kind}{'s' if self.ranks > 1 else ''}"


@dataclasses.dataclass(frozen=True)
class Trial:
    """A short run of PyTorch in one mode, on the way to the fastest."""

    work: Work
    ranks: int
    row: Row
    mode: str

    @property
    def name(self) -> str:
        return f"trial, {Group(self.work, self.ranks, ()).name}: {self.row.name} ({self.mode})"


@dataclasses.dataclass(frozen=True)
class Round:
    """Every row of a group once."""

    group: Group
    number: int  # from 0, counted over the rounds that are left

    @property
    def name(self) -> str:
        return f"round, {self.group.name}: {', '.join(row.name for row in self.group.rows)}"


RECORD = {"kind": str, "device": str, "work": str, "ranks": int, "began": str, "machine": dict}
MACHINE = {"gpus": list, "driver": str, "cpu": str, "cores": int, "system": str}
RUN = {"row": str, "mode": str, "wall_seconds": (int, float)}
MEASURED = {"command": str, "result": dict, "sensors": (dict, type(None))}


def check_fields(part: Any, fields: dict[str, Any]) -> None:
    if not isinstance(part, dict):
        raise ValueError("it is not an object")
    for name, kind in fields.items():
        if not isinstance(part.get(name), kind) or name not in part:
            raise ValueError(f'its "{name}" is not as it must be')


def check_run(run: Any) -> None:
    check_fields(run, RUN)
    if "error" in run:
        check_fields(run, {"error": str})
        return
    check_fields(run, MEASURED)
    rates = [run["result"].get(name) for name in ("images_per_second", "tokens_per_second", LOSS)]
    if not any(isinstance(rate, (int, float)) and math.isfinite(rate) for rate in rates):
        raise ValueError('its "result" has no rate and no loss')


def check_record(record: Any) -> None:
    """ValueError for a trial or round that this program has not written."""
    check_fields(record, RECORD)
    check_fields(record["machine"], MACHINE)
    if record["kind"] == "trial":
        check_run(record)
    elif record["kind"] == "round":
        check_fields(record, {"runs": list, "gpus": list})
        for run in record["runs"]:
            check_run(run)
    else:
        raise ValueError('its "kind" is neither trial nor round')


class Records:
    """A file of JSON lines: trials and rounds that have ended. Copied to another machine, the work goes on there."""

    def __init__(self, file: pathlib.Path) -> None:
        self.file, self.lock = file, threading.Lock()
        self.all: list[dict[str, Any]] = []
        self.earlier = 0  # the first records of `all`, which earlier sessions made
        if not file.exists():
            return
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                check_record(record)
                self.all.append(record)
            except ValueError as error:
                is_cut = isinstance(error, json.JSONDecodeError) and number == len(lines)
                if is_cut and number > 1:  # while it was written
                    break
                raise UsageError(f"--out {file}, line {number}: it is not a file of benchmarks/compare: {error}") from error
        self.earlier = len(self.all)
        text = "".join(json.dumps(record) + "\n" for record in self.all)
        if text != file.read_text(encoding="utf-8", errors="replace"):
            write_atomically(file, text)

    def add(self, record: dict[str, Any]) -> None:
        with self.lock:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
            self.all.append(record)

    @property
    def new(self) -> list[dict[str, Any]]:
        """Of this session."""
        return self.all[self.earlier :]


class Session:
    """What there is to run and what has been run. Rounds made under other conditions (see `same`) are in the file and do
    not count."""

    def __init__(self, settings: Settings, machine: Machine, records: Records, about: dict[str, Any]) -> None:
        """`about` the machine and its versions; with `commit`."""
        self.settings, self.machine, self.records, self.about = settings, machine, records, about
        self.began = time.monotonic()
        self.interrupted = threading.Event()
        self.device_name = machine.gpus[0] if settings.device == "cuda" and machine.gpus else machine.cpu
        self.same = {"device": self.device_name, "commit": about["commit"], "seconds": settings.seconds,
                     "ddptrain": about["ddptrain"], "nccl_environment": about["nccl_environment"]}  # fmt: skip

    # What is wanted

    @functools.cached_property
    def works(self) -> list[Work]:
        if self.settings.short:
            return rows.short_works(self.settings.device)
        return rows.works(self.settings.device, self.settings.llmq is not None)

    @functools.cached_property
    def groups(self) -> list[Group]:
        """One rank first."""
        return [group for ranks in sorted(self.settings.ranks) for work in self.works
                if work.fits(ranks) and (group := self.group(work, ranks)).rows]  # fmt: skip

    def group(self, work: Work, ranks: int) -> Group:
        named = Group(work, ranks, ()).name
        rows_here = [row for row in work.rows(ranks) if self.settings.variants or not row.variant]
        wanted = [row for row in rows_here if re.search(self.settings.only, f"{named}: {row.name}")]
        return Group(work, ranks, tuple(wanted))

    def why_not(self, ranks: int, row: Row | None = None) -> str:
        """Empty if so many ranks can run here, and the row's program is there."""
        gpus = len(self.machine.gpus)
        if row is not None and row.program == PYTORCH and not self.settings.has_pytorch:
            return f"{self.settings.python} has no PyTorch"
        if self.settings.device == "cuda" and ranks > gpus:
            return f"needs {ranks} GPU{'s' if ranks > 1 else ''}, and there {'is' if gpus == 1 else 'are'} {gpus}"
        return ""

    def possible(self) -> list[Group]:
        return [group for group in self.groups if not self.why_not(group.ranks)]

    def modes(self, work: Work, row: Row) -> list[str]:
        return [mode for mode in work.modes(row) if not mode or not self.settings.modes or mode in self.settings.modes]

    def trials_alone(self, work: Work) -> list[Trial]:
        """On one rank: also the way to the modes for several. None if the work has no PyTorch there, or one mode."""
        row = Row(PYTORCH, "fp32")
        modes = self.modes(work, row)
        return [Trial(work, 1, row, mode) for mode in modes] if work.peer and work.fits(1) and len(modes) > 1 else []

    def wanted_trials_alone(self, work: Work) -> list[Trial]:
        """None if no row that is wanted depends on them, or if PyTorch cannot run."""
        is_needed = any(each.program == PYTORCH and "--shard" not in each.flags and not self.why_not(1, each)
                        for group in self.possible() if group.work == work for each in group.rows)  # fmt: skip
        return self.trials_alone(work) if is_needed else []

    def wanted_trials(self, group: Group) -> list[Trial]:
        return [trial for row in group.rows if not self.why_not(group.ranks, row) for trial in self.trials(group, row)]

    def has_choice(self, work: Work, row: Row) -> bool:
        return row.program == PYTORCH and len(self.modes(work, row)) > 1

    def trials(self, group: Group, row: Row) -> list[Trial]:
        """Trials that choose the mode of the row, whether or not they can be made here. On several ranks, the fastest modes
        of one rank are tried. None if there is nothing to choose, or if every mode has failed on one rank."""
        if not self.has_choice(group.work, row):
            return []
        modes = self.modes(group.work, row)
        alone = self.trials_alone(group.work)
        if group.ranks == 1:
            return alone
        if "--shard" not in row.flags and alone:
            modes = self.fastest(alone)[:MODES_ON_SEVERAL_RANKS] if self.are_done(alone) else modes[:MODES_ON_SEVERAL_RANKS]
        return [Trial(group.work, group.ranks, row, mode) for mode in modes]

    def all_trials(self, group: Group, row: Row) -> list[Trial]:
        """With those on one rank that choose what is tried on several."""
        trials = self.trials(group, row)
        is_last = group.ranks == 1 or "--shard" in row.flags or not self.has_choice(group.work, row)
        return trials if is_last else self.trials_alone(group.work) + trials

    # What is known

    def trial_records(self) -> dict[tuple[str, int, str, str], dict[str, Any]]:
        """Of any commit: the modes are PyTorch's. By work, ranks, row and mode: the last one, or the last that did not fail."""
        found: dict[tuple[str, int, str, str], dict[str, Any]] = {}
        for record in self.records.all:
            if has(record, self.trial_conditions()):
                key = (record["work"], record["ranks"], record["row"], record["mode"])
                if "result" in record or "result" not in found.get(key, {}):
                    found[key] = record
        return found

    def trial_record(self, trial: Trial) -> dict[str, Any] | None:
        return self.trial_records().get((trial.work.name, trial.ranks, trial.row.name, trial.mode))

    def is_done(self, trial: Trial) -> bool:
        """A trial that failed in an earlier session is made again."""
        record = self.trial_record(trial)
        return record is not None and ("result" in record or any(record is made for made in self.records.new))

    def trial_conditions(self) -> dict[str, Any]:
        """Of the trials that count."""
        version = {"pytorch": self.settings.pytorch} if self.settings.pytorch else {}
        return {"kind": "trial", "device": self.device_name, "trial_seconds": self.settings.trial_seconds} | version

    def are_done(self, trials: Sequence[Trial]) -> bool:
        return all(map(self.is_done, trials))

    def fastest(self, trials: Sequence[Trial]) -> list[str]:
        """Their modes, the fastest first; without those that failed."""
        found = [(trial.work.value(record["result"]), trial.mode) for trial in trials
                 if (record := self.trial_record(trial)) and "result" in record]  # fmt: skip
        return [mode for _, mode in sorted(found, reverse=True)]

    def best_mode(self, group: Group, row: Row) -> str | None:
        """None if every mode failed, if the trials have not been made, or if no mode that is wanted fits the row."""
        if not self.has_choice(group.work, row):
            return next(iter(self.modes(group.work, row)), None)
        is_chosen = all(map(self.trial_record, self.all_trials(group, row)))
        return next(iter(self.fastest(self.trials(group, row))), None) if is_chosen else None

    @property
    def has_exact_commit(self) -> bool:
        """Whether the commit tells the program. Rounds of changed files count only in the session that made them."""
        return self.about["commit"] != "unknown" and not self.about["commit"].endswith(DIRTY)

    def all_that_may_count(self) -> list[dict[str, Any]]:
        return self.records.all if self.has_exact_commit else self.records.new

    def rounds(self, work: Work, ranks: int) -> list[dict[str, Any]]:
        """Records that count."""
        key = self.same | {"kind": "round", "work": work.name, "ranks": ranks}
        return [r for r in self.all_that_may_count() if has(r, key)]

    def runs(self, work: Work, ranks: int, row: Row) -> list[dict[str, Any]]:
        """Of the row, in the rounds that count; failed ones have `error` in place of `result`."""
        mode = self.best_mode(Group(work, ranks, ()), row)
        return [run for record in self.rounds(work, ranks) for run in self.runs_in(record, row, mode)]

    def runs_in(self, record: dict[str, Any], row: Row, mode: str | None) -> list[dict[str, Any]]:
        """Runs of the row in a round. PyTorch's count only in `mode`, its fastest, and with this session's PyTorch."""
        runs = [run for run in record["runs"] if run["row"] == row.name]
        if row.program != PYTORCH:
            return runs
        version = self.settings.pytorch
        return [run for run in runs if run["mode"] == mode and (not version or run.get("pytorch", version) == version)]

    def rounds_of(self, group: Group, row: Row) -> list[dict[str, Any]]:
        """Rounds that count, in which the row has a result."""
        mode = self.best_mode(group, row)
        return [record for record in self.rounds(group.work, group.ranks)
                if any("result" in run for run in self.runs_in(record, row, mode))]  # fmt: skip

    def values(self, work: Work, ranks: int, row: Row) -> list[float]:
        return [work.value(run["result"]) for run in self.runs(work, ranks, row) if "result" in run]

    def can_run(self, group: Group, row: Row) -> bool:
        failures = sum("error" in run for run in self.runs(group.work, group.ranks, row))
        is_there = not self.why_not(group.ranks, row) and self.best_mode(group, row) is not None
        return is_there and failures < MOST_FAILURES

    def rounds_left(self, group: Group) -> list[Round]:
        wanted = [row for row in group.rows if self.can_run(group, row) or not self.has_mode(group, row)]
        missing = [self.settings.repeats - len(self.values(group.work, group.ranks, row)) for row in wanted]
        return [Round(group, number) for number in range(max([*missing, 0]))]

    def has_mode(self, group: Group, row: Row) -> bool:
        """Whether no trial of it is left that can be made."""
        if self.why_not(group.ranks, row) or not self.has_choice(group.work, row):
            return True
        return self.are_done(self.all_trials(group, row))

    def trials_left(self, trials: Sequence[Trial]) -> list[Trial]:
        return [trial for trial in dict.fromkeys(trials) if not self.is_done(trial)]

    def estimate_seconds(self, unit: Trial | Round) -> float:
        if isinstance(unit, Trial):
            compiled = self.has_compiled(unit.work, unit.mode)
            return self.settings.trial_seconds + 2 + rows.start_seconds(unit.work, unit.row, unit.ranks, unit.mode, compiled)
        group = unit.group
        return sum(self.run_seconds(group, row, self.best_mode(group, row) or "") for row in group.rows
                   if self.can_run(group, row) or not self.has_mode(group, row))  # fmt: skip

    def run_seconds(self, group: Group, row: Row, mode: str) -> float:
        known = [run["wall_seconds"] for record in self.rounds(group.work, group.ranks) if self.is_here(record)
                 for run in record["runs"] if run["row"] == row.name and "result" in run]  # fmt: skip
        if known:
            return max(known)
        compiled = self.has_compiled(group.work, mode) or not self.has_mode(group, row)  # by the trials that come first
        return self.seconds_of(group.work) + 2 + rows.start_seconds(group.work, row, group.ranks, mode, compiled)

    def is_here(self, record: dict[str, Any]) -> bool:
        """Made on this machine: its caches are still there."""
        return record["machine"].get("host") == self.about.get("host")

    def has_compiled(self, work: Work, mode: str) -> bool:
        return any(r["kind"] == "trial" and (r["work"], r["mode"]) == (work.name, mode) and self.is_here(r)
                   for r in self.records.all)  # fmt: skip

    def seconds_of(self, work: Work) -> float:
        return self.settings.seconds if work.seconds is None else work.seconds

    def left_over(self) -> list[Trial | Round]:
        """In about the order in which they run. Modes that trials will choose are not known yet."""
        groups = self.possible()
        alone = [trial for work in self.works for trial in self.wanted_trials_alone(work)]
        units: list[Trial | Round] = [*self.trials_left(alone)]
        for group in groups:
            units += self.trials_left(self.wanted_trials(group))
            units += self.rounds_left(group)
        return list(dict.fromkeys(units))

    def lanes(self) -> list[list[str]]:
        """GPUs of each: works of one rank run beside each other. On CPUs they would take each other's cores."""
        return [[gpu] for gpu in self.machine.visible_ids] if self.settings.device == "cuda" else [[]]

    # Doing it

    def run_all(self) -> list[Trial | Round]:
        """What is left over."""
        groups = self.possible()
        alone = [group for group in groups if group.ranks == 1]
        try:
            self._in_lanes(self.trials_left([trial for work in self.works for trial in self.wanted_trials_alone(work)]))
            self._in_lanes([unit for group in alone for unit in self.rounds_left(group) if self._is_ready(group)])
            for group in groups:
                if group.ranks == 1:
                    continue
                if self.are_done(self.wanted_trials_alone(group.work)):
                    self._alone(self.trials_left(self.wanted_trials(group)), group.ranks)
                if self._is_ready(group):
                    self._alone(self.rounds_left(group), group.ranks)
        except KeyboardInterrupt:
            self.interrupted.set()
            raise
        return self.left_over()

    def _is_ready(self, group: Group) -> bool:
        return all(self.has_mode(group, row) for row in group.rows)

    def _alone(self, units: Sequence[Trial | Round], ranks: int) -> None:
        gpus = self.machine.visible_ids[:ranks] if self.settings.device == "cuda" else []
        for unit in units:
            with contextlib.suppress(OutOfTime):
                self._do(unit, gpus)

    def _in_lanes(self, units: Sequence[Trial | Round]) -> None:
        """Each lane takes the next one that ends in time."""
        waiting, lock = list(units), threading.Lock()
        faults: list[BaseException] = []

        def work(gpus: list[str]) -> None:
            try:
                while not self.interrupted.is_set() and not faults:
                    with lock:
                        unit = next((each for each in waiting if self._ends_in_time(each)), None)
                        if unit is None:
                            return
                        waiting.remove(unit)
                    with contextlib.suppress(OutOfTime):
                        self._do(unit, gpus)
            except BaseException as error:
                faults.append(error)

        threads = [threading.Thread(target=work, args=(gpus,)) for gpus in self.lanes()]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            self.interrupted.set()
            for thread in threads:
                thread.join()
            raise
        if faults:
            raise faults[0]

    def seconds_left(self) -> float:
        return self.settings.seconds_left - (time.monotonic() - self.began)

    def _ends_in_time(self, unit: Trial | Round) -> bool:
        return self.estimate_seconds(unit) <= self.seconds_left()

    def _do(self, unit: Trial | Round, gpus: list[str]) -> None:
        if not self._ends_in_time(unit):
            raise OutOfTime
        record = self.same | {"machine": self.about, "gpus": gpus,
                              "began": datetime.datetime.now().astimezone().isoformat(timespec="seconds")}  # fmt: skip
        if isinstance(unit, Trial):
            limit = 2 * self.estimate_seconds(unit) + 60
            run = self._run(Group(unit.work, unit.ranks, ()), unit.row, unit.mode, gpus, self.settings.trial_seconds, limit)
            self.records.add(record | self.trial_conditions() | {"work": unit.work.name, "ranks": unit.ranks} | run)
            return
        group = unit.group
        order = group.rows if unit.number % 2 == 0 else group.rows[::-1]
        runs = []
        for row in order:
            mode = self.best_mode(group, row)
            if mode is None or not self.can_run(group, row):
                continue
            limit = 2 * self.run_seconds(group, row, mode) + 60
            runs.append(self._run(group, row, mode, gpus, self.seconds_of(group.work), limit))
        if runs:
            self.records.add(record | {"kind": "round", "work": group.work.name, "ranks": group.ranks, "runs": runs})

    def _run(self, group: Group, row: Row, mode: str, gpus: list[str], seconds: float, limit: float) -> dict[str, Any]:
        """OutOfTime if the session's time ends it. A run that fails or hangs has its reason as `error`."""
        run: dict[str, Any] = {"row": row.name, "mode": mode}
        if row.program == PYTORCH and self.settings.pytorch:
            run["pytorch"] = self.settings.pytorch
        start = time.monotonic()
        try:
            run |= self._execute(group, row, mode, gpus, seconds, limit)
        except (RunFailed, ValueError, KeyError, TypeError) as error:
            told = str(error) if isinstance(error, RunFailed) else f"its result cannot be read: {error!r}"
            run["error"] = told
            print(f"compare: {group.name}: {row.name}{f' ({mode})' if mode else ''}: {told}", file=sys.stderr)
        return run | {"wall_seconds": time.monotonic() - start}

    def _command(self, group: Group, row: Row, mode: str, seconds: float, folder: pathlib.Path) -> list[str]:
        settings = self.settings
        if row.program == PYTORCH:
            return rows.peer_command(settings.python, group.work, row, mode, group.ranks, seconds)
        if row.program == LLMQ:
            return rows.llmq_command(settings.python, settings.llmq or pathlib.Path("train"), row, seconds)
        text = str(settings.text or text_of_project(folder)) if rows.TEXT in group.work.ddptrain_flags else ""
        return rows.ddptrain_command(settings.bin / "ddptrain", group.work, row, group.ranks, seconds,
                                     str(folder / "metrics.jsonl"), text)  # fmt: skip

    def _environment(self, gpus: list[str]) -> dict[str, str]:
        environment = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if gpus:
            threads = max(1, (os.cpu_count() or 1) // len(self.lanes()))
            return environment | {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "TORCHINDUCTOR_COMPILE_THREADS": str(threads)}
        return environment | {"OMP_NUM_THREADS": "1"}  # one thread per rank, as ddptrain

    def _execute(self, group: Group, row: Row, mode: str, gpus: list[str], seconds: float, limit: float) -> dict[str, Any]:
        environment = self._environment(gpus)
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            command = self._command(group, row, mode, seconds, folder)
            print("+", shlex.join(command), file=sys.stderr, flush=True)
            with Readings(gpus, folder / "sensors.csv") as readings:
                text = run_program(command, os.environ | environment, limit, self._must_end)
            if row.program == DDPTRAIN:
                metrics = folder / "metrics.jsonl"
                result = last_json(metrics.read_text(encoding="utf-8") if metrics.exists() else "")
                sensors = own_sensors(result)
            else:
                result = last_json(text)
                sensors = readings.between(result["measured_from"], result["measured_until"])
        value = result.get(group.work.field or f"{group.work.unit}_per_second")
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise RunFailed(f"its result is {value}")
        return {"command": shlex.join(command).replace(name, "FOLDER"), "environment": environment,
                "result": essential(result), "sensors": sensors}  # fmt: skip

    def _must_end(self) -> bool:
        return self.interrupted.is_set() or self.seconds_left() <= 0


def has(record: dict[str, Any], key: dict[str, Any]) -> bool:
    return all(record.get(name) == value for name, value in key.items())


def essential(result: dict[str, Any]) -> dict[str, Any]:
    """Without the lists of windows, which make a summary a hundred times as long."""
    return {name: value for name, value in result.items() if name not in ("calibration", "memory", "parameters", "gpus")}


def text_of_project(folder: pathlib.Path) -> pathlib.Path:
    """Its documentation as one file, which every machine has."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")),
             *sorted((ROOT / "benchmarks").rglob("*.md"))]  # fmt: skip
    file = folder / "text.txt"
    file.write_bytes(b"".join(page.read_bytes() for page in pages))
    return file


def commit_of(folder: pathlib.Path) -> str:
    """What git has checked out there, with DIRTY."""
    commit = ask(["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--exclude=*", f"--dirty={DIRTY}"])
    return (commit or "unknown").strip()
