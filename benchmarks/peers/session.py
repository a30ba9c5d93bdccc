"""Runs both programs in turn and keeps every run."""

import concurrent.futures
import contextlib
import dataclasses
import datetime
import json
import os
import pathlib
import queue
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

from ddptools.common.errors import UsageError
from ddptools.common.programs import ask
from ddptools.sweep.machine import Machine
from peers import rows
from peers.rows import PYTORCH, ROOT, Row, Work

TIMEOUT_SECONDS = 900.0  # of one run, beside its measured steps
MODES_ON_SEVERAL_RANKS = 2  # the fastest on one rank, of which the fastest on several is found
SENSORS = ("index", "clocks.sm", "power.draw", "temperature.gpu")


@dataclasses.dataclass(frozen=True)
class Settings:
    device: str
    ranks: list[int]
    seconds: float
    trial_seconds: float
    repeats: int
    only: str  # regular expression, sought in "WORK, RANKS: ROW"
    modes: list[str]  # of PyTorch; empty: all
    time_limit_seconds: float
    bin: pathlib.Path
    python: str  # that has PyTorch


@dataclasses.dataclass(frozen=True)
class Run:
    """One start of a program: a trial of a mode on the way to the best one, or a run that counts."""

    work: Work
    ranks: int
    row: Row
    mode: str = ""  # of PyTorch
    repeat: int | None = None  # None: a trial

    @property
    def name(self) -> str:
        mode = f" ({self.mode})" if self.mode else ""
        return f"{group_name(self.work, self.ranks)}: {self.row.name}{mode}"

    def key(self) -> dict[str, Any]:
        return {"work": self.work.name, "ranks": self.ranks, "row": self.row.name, "mode": self.mode,
                "repeat": self.repeat}  # fmt: skip


class OutOfTime(Exception):
    """The next run would end after the time limit."""


class RunFailed(Exception):
    pass


def group_name(work: Work, ranks: int) -> str:
    kind = "CPU rank" if work.device == "cpu" else "GPU"
    return f"{work.name}, {ranks} {kind}{'s' if ranks > 1 else ''}"


def is_trial_alone(run: Run) -> bool:
    return run.repeat is None and run.ranks == 1


class Session:
    """What there is to run and what has been run. `document` is the JSON file, written after every run."""

    def __init__(self, settings: Settings, machine: Machine, file: pathlib.Path, document: dict[str, Any]) -> None:
        self.settings, self.machine, self.file, self.document = settings, machine, file, document
        self.began = time.monotonic()
        self.lock = threading.Lock()  # of the document

    # What is wanted

    def groups(self) -> Iterator[tuple[Work, int, list[Row]]]:
        for work in rows.works(self.settings.device):
            for ranks in self.settings.ranks:
                wanted = [row for row in work.rows(ranks)
                          if re.search(self.settings.only, f"{group_name(work, ranks)}: {row.name}")]  # fmt: skip
                if wanted:
                    yield work, ranks, wanted

    def why_not(self, ranks: int) -> str:
        """Empty where so many ranks can run here."""
        gpus = len(self.machine.gpus)
        if self.settings.device == "cuda" and ranks > gpus:
            return f"needs {ranks} GPU{'s' if ranks > 1 else ''}, and there {'is' if gpus == 1 else 'are'} {gpus}"
        return ""

    def trials(self, work: Work, ranks: int, row: Row) -> list[Run]:
        """None where there is only one mode to choose."""
        modes = self.candidates(work, ranks)
        return [Run(work, ranks, row, mode) for mode in modes] if len(modes) > 1 else []

    def candidates(self, work: Work, ranks: int) -> list[str]:
        """On one rank, all modes; on several, the fastest ones of one rank."""
        modes = [mode for mode in work.peer_modes() if not self.settings.modes or mode in self.settings.modes]
        if ranks == 1 or len(modes) == 1:
            return modes
        alone = [Run(work, 1, Row(PYTORCH, "fp32"), mode) for mode in modes]
        known = all(self.record(trial) for trial in alone)
        return (self.fastest(alone) if known else modes)[:MODES_ON_SEVERAL_RANKS]  # before: any, for the plan

    def fastest(self, trials: list[Run]) -> list[str]:
        """Their modes, the fastest first; without those that failed."""
        found = [(self.rate(record, trials[0].work), record["mode"]) for trial in trials
                 if (record := self.record(trial)) and "result" in record]  # fmt: skip
        return [mode for _, mode in sorted(found, reverse=True)]

    # What is known

    def record(self, run: Run) -> dict[str, Any] | None:
        key = run.key()
        return next((r for r in self.document["runs"] if all(r[k] == v for k, v in key.items())), None)

    @staticmethod
    def rate(record: dict[str, Any], work: Work) -> float:
        return record["result"][f"{work.unit}_per_second"]

    def estimate_seconds(self, run: Run) -> float:
        same = [r["wall_seconds"] for r in self.document["runs"] if r["mode"] == run.mode and "result" in r
                and (r["work"], r["row"], r["ranks"], r["repeat"] is None) ==
                (run.work.name, run.row.name, run.ranks, run.repeat is None)]  # fmt: skip
        if same:
            return statistics.median(same)
        seconds = self.settings.trial_seconds if run.repeat is None else self.settings.seconds
        return seconds + 2 + rows.start_seconds(run.work, run.row.program, run.mode, compiled=not is_trial_alone(run))

    def pending(self) -> list[Run]:
        """In the order in which they would run. The modes of trials on several ranks, and of the runs that count, are
        only known when the trials before them are done: until then any mode stands for them."""
        runs: list[Run] = []
        for work, ranks, wanted in self.groups():
            if not self.why_not(ranks):
                runs += [run for run in (*self.all_trials(work, ranks, wanted), *self.measured_runs(work, ranks, wanted))
                         if not self.record(run)]  # fmt: skip
        return list(dict.fromkeys(runs))

    def all_trials(self, work: Work, ranks: int, wanted: list[Row]) -> list[Run]:
        peers = [row for row in wanted if row.program == PYTORCH]
        alone = self.trials(work, 1, Row(PYTORCH, "fp32")) if peers else []
        return alone + [trial for row in peers for trial in self.trials(work, ranks, row) if ranks > 1]

    def pending_seconds(self, runs: list[Run]) -> float:
        """Trials of one rank run beside each other."""
        beside = max(1, len(self.machine.visible_ids))
        return sum(self.estimate_seconds(run) / (beside if is_trial_alone(run) else 1) for run in runs)

    # Doing it

    def run_all(self) -> list[Run]:
        """Those that the time limit left over."""
        with contextlib.suppress(OutOfTime):
            for work, ranks, wanted in self.groups():
                if not self.why_not(ranks):
                    trials = [trial for trial in self.all_trials(work, ranks, wanted) if is_trial_alone(trial)]
                    self._do_beside_each_other(trials)
                    for run in self.all_trials(work, ranks, wanted):
                        self._do(run)
                    for run in self.measured_runs(work, ranks, wanted):
                        self._do(run)
        return self.pending()

    def measured_runs(self, work: Work, ranks: int, wanted: list[Row]) -> Iterator[Run]:
        """In turn: every row once, then every row again."""
        for repeat in range(self.settings.repeats):
            for row in wanted:
                mode = self.best_mode(work, ranks, row) if row.program == PYTORCH else ""
                if mode is not None:
                    yield Run(work, ranks, row, mode, repeat)

    def best_mode(self, work: Work, ranks: int, row: Row) -> str | None:
        """None where every mode failed. Before the trials: the first mode, for the plan."""
        trials = self.trials(work, ranks, row)
        if trials and all(self.record(trial) for trial in trials):
            return next(iter(self.fastest(trials)), None)
        return next(iter(self.candidates(work, ranks)), None)

    def _do_beside_each_other(self, trials: list[Run]) -> None:
        """One rank each, on a GPU of its own."""
        free: queue.SimpleQueue[str] = queue.SimpleQueue()
        gpus = self.machine.visible_ids or [""]
        for gpu in gpus:
            free.put(gpu)

        def do(trial: Run) -> None:
            gpu = free.get()
            try:
                self._do(trial, [gpu] if gpu else [])
            finally:
                free.put(gpu)

        with concurrent.futures.ThreadPoolExecutor(len(gpus)) as pool:
            for done in [pool.submit(do, trial) for trial in trials]:
                done.result()

    def _do(self, run: Run, gpus: list[str] | None = None) -> None:
        if self.record(run):
            return
        left = self.settings.time_limit_seconds - (time.monotonic() - self.began)
        if self.estimate_seconds(run) > left:
            raise OutOfTime
        record = run.key() | {"began": datetime.datetime.now().astimezone().isoformat(timespec="seconds")}
        start = time.monotonic()
        try:
            record |= self._execute(run, self.machine.visible_ids[: run.ranks] if gpus is None else gpus, left)
        except RunFailed as error:
            record["error"] = str(error)
            print(f"compare: {run.name}: {error}", file=sys.stderr)
        record["wall_seconds"] = time.monotonic() - start
        with self.lock:
            self.document["runs"].append(record)
            save(self.file, self.document)

    def _execute(self, run: Run, gpus: list[str], left_seconds: float) -> dict[str, Any]:
        settings = self.settings
        seconds = settings.trial_seconds if run.repeat is None else settings.seconds
        environment = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        else:
            environment["OMP_NUM_THREADS"] = "1"  # one thread per rank, as ddptrain
        with tempfile.TemporaryDirectory() as folder:
            metrics = pathlib.Path(folder, "metrics.jsonl")
            if run.row.program == PYTORCH:
                command = rows.peer_command(settings.python, run.work, run.row.gradients, run.mode, run.ranks, seconds)
            else:
                command = rows.ddptrain_command(settings.bin / "ddptrain", run.work, run.row, run.ranks, seconds,
                                                str(metrics))  # fmt: skip
            print("+", shlex.join(command), file=sys.stderr, flush=True)
            with Readings(gpus, pathlib.Path(folder, "sensors.csv")) as readings:
                text = run_program(command, os.environ | environment, min(left_seconds, TIMEOUT_SECONDS + seconds))
            if run.row.program == PYTORCH:
                result = last_json(text)
                sensors = readings.between(result["measured_from"], result["measured_until"])
            else:
                result = last_json(metrics.read_text(encoding="utf-8"))
                sensors = own_sensors(result)
        return {"command": shlex.join(command), "environment": environment, "result": result, "sensors": sensors}


def run_program(command: list[str], environment: dict[str, str], timeout_seconds: float) -> str:
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True,
                              timeout=timeout_seconds)  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"did not end within {timeout_seconds:.0f} s") from error
    except OSError as error:
        raise RunFailed(str(error)) from error
    if done.returncode != 0:
        raise RunFailed(f"exit code {done.returncode}: {reason(done.stderr)}")
    return done.stdout


def reason(errors: str) -> str:
    """The line that names the error, of a traceback and of what torchrun writes around it."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    named = [line for line in lines if re.search(r"\w(Error|Exception|Exit): |^ddptrain: ", line)
             and "ChildFailedError" not in line]  # fmt: skip
    return ([*lines[-1:], *named] or ["no message"])[-1][:300]


def last_json(text: str) -> dict[str, Any]:
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if not lines:
        raise RunFailed("it printed no result")
    return json.loads(lines[-1])


class Readings:
    """nvidia-smi beside a run, four times a second; nothing where there is none."""

    def __init__(self, gpus: list[str], file: pathlib.Path) -> None:
        self.gpus, self.file = gpus, file
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Readings":
        command = ["nvidia-smi", f"--query-gpu=timestamp,{','.join(SENSORS)}", "--format=csv,noheader,nounits",
                   "-lms", "250", "-i", ",".join(self.gpus)]  # fmt: skip
        if self.gpus:
            try:
                with self.file.open("wb") as out:
                    self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
            except OSError:
                self.process = None
        return self

    def __exit__(self, *_: object) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait()

    def between(self, begin: float, end: float) -> dict[str, float] | None:
        """Means over the GPUs and the time, and the lowest clock; None where nothing was read."""
        text = self.file.read_text(encoding="utf-8", errors="replace") if self.file.exists() else ""
        return summarize(parse_readings(text), begin, end)


def parse_readings(text: str) -> list[tuple[float, float, float, float]]:
    """Unix time, MHz, W, degrees Celsius of every complete line."""
    found = []
    for line in text.splitlines():
        try:
            stamp, _, clock, power, temperature = (word.strip() for word in line.split(","))
            moment = datetime.datetime.strptime(stamp, "%Y/%m/%d %H:%M:%S.%f").timestamp()
            found.append((moment, float(clock), float(power), float(temperature)))
        except ValueError:  # cut off, or [N/A]
            continue
    return found


def summarize(readings: list[tuple[float, ...]], begin: float, end: float) -> dict[str, float] | None:
    within = [reading for reading in readings if begin <= reading[0] <= end]
    if not within:
        return None
    _, clocks, powers, temperatures = zip(*within)
    return {"sm_mhz": statistics.mean(clocks), "sm_mhz_min": min(clocks), "watts": statistics.mean(powers),
            "celsius_max": max(temperatures), "readings": len(within)}  # fmt: skip


def own_sensors(summary: dict[str, Any]) -> dict[str, float] | None:
    """The same from the sensors that ddptrain itself reads."""
    gpus = [gpu for gpu in summary.get("gpus") or [] if gpu.get("readings") and gpu.get("sm_mhz") is not None]
    if not gpus:
        return None
    mean = lambda field: statistics.mean(values) if (values := [gpu[field] for gpu in gpus if gpu[field]]) else None
    return {"sm_mhz": mean("sm_mhz"), "sm_mhz_min": min(gpu["sm_mhz_min"] for gpu in gpus), "watts": mean("watts"),
            "celsius_max": max(gpu["celsius_max"] or 0 for gpu in gpus),
            "readings": sum(gpu["readings"] for gpu in gpus)}  # fmt: skip


def save(file: pathlib.Path, document: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(file.name + ".new")
    new.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    new.replace(file)


def load(file: pathlib.Path, same: dict[str, Any]) -> dict[str, Any]:
    """What an earlier call left, of the same machine, versions and times; else an empty document."""
    if not file.exists():
        return same | {"date": datetime.date.today().isoformat(), "runs": []}
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        different = [name for name, value in same.items() if document[name] != value]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--out {file}: it is not a file of benchmarks/compare: choose another") from error
    if different:
        raise UsageError(f"--out {file}: its {' and '.join(different)} differ from this run's: choose another file")
    document["runs"] = [run for run in document["runs"] if "result" in run or run["repeat"] is None]  # failed: again
    return document


def commit_of(folder: pathlib.Path) -> str:
    """What git has checked out there. "-dirty" stands behind it where tracked files differ."""
    commit = ask(["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"])
    return (commit or "unknown").strip()
