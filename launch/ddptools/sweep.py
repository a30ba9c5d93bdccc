"""ddpsweep: runs every case of a sweep and keeps what came out."""

import argparse
import datetime
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
from typing import Any

from ddptools import cases as cases_module
from ddptools.arguments import Parser
from ddptools.cases import Case
from ddptools.errors import UsageError, run_program
from ddptools.launch import Impossible, Launch, flag_arguments, plan_launch
from ddptools.machine import Machine, find_machine, read_topology
from ddptools.programs import ask, program_folder
from ddptools.progress import Progress, duration
from ddptools.results import Record, ResultFolder, read_records
from ddptools.results_csv import csv_text
from ddptools.runner import Outcome, run
from ddptools.sweep_file import Sweep, load_sweep

RECORD_VERSION = 1


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="ddpsweep",
        description="Runs every case of a sweep (configs/sweeps/*.toml), each in a new job, and writes the results to "
        "DIR/results.jsonl and DIR/results.csv. ddpreport DIR explains them.",
    )
    parser.add_argument("file", type=pathlib.Path, metavar="SWEEP.toml")
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="folder for the results (results/NAME)")
    parser.add_argument("--resume", action="store_true", help="continue an earlier call, and keep its results")
    parser.add_argument("--retry-failed", action="store_true", help="as --resume, and repeat the runs that failed")
    parser.add_argument("--repeats", type=_positive, metavar="N", help="runs of each case (the file's)")
    parser.add_argument("--timeout", type=_positive, metavar="S", help="longest time of a run, in seconds (the file's)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="set a key of all cases, a flag of ddptrain (a list in [] becomes an axis) or environment.NAME; "
        "may be repeated",
    )
    parser.add_argument(
        "--min-seconds", type=_positive, metavar="S", help="shortest measurement of every run, in seconds"
    )
    parser.add_argument("--hostfile", type=pathlib.Path, metavar="FILE", help="hosts for layouts, in the format of mpirun")
    parser.add_argument("--bin", metavar="DIR", help="folder of ddptrain (the folder of ddpsweep, else build/bin)")
    parser.add_argument("--dry-run", action="store_true", help="print the cases and their commands without running them")
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from 1")
    return int(text)


class SweepRun:
    def __init__(self, sweep: Sweep, cases: list[Case], programs: pathlib.Path, machine: Machine) -> None:
        self.sweep = sweep
        self.cases = cases
        self.programs = programs
        self.machine = machine
        self.varied = cases_module.varied_settings(cases)

    def label(self, case: Case) -> str:
        return cases_module.label(case, self.varied)

    def launch(self, case: Case, result_file: pathlib.Path) -> Launch:
        return plan_launch(case, self.machine, self.programs / case.program, result_file, os.environ)

    def check_programs(self) -> None:
        names = sorted({case.program for case in self.cases})
        if not any((self.programs / name).exists() for name in names):
            raise UsageError(f"there is no {' or '.join(names)} in {self.programs}: build it, or give --bin DIR")

    def check_flags(self) -> None:
        """A flag that ddptrain refuses is told now, not when its case's turn comes."""
        program = self.programs / "ddptrain"
        checked = {tuple(case.flags.items()): case for case in self.cases if case.program == "ddptrain"}
        for case in checked.values() if program.exists() else ():
            command = ["mpirun", *self.machine.mpirun.any_number, "-np", "1", str(program), *flag_arguments(case.flags)]
            try:
                done = subprocess.run(
                    [*command, "--print-config"],
                    env=_environment_for_root(),
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=120,
                )
            except FileNotFoundError as error:
                raise UsageError("there is no mpirun: install Open MPI (launch/setup) or MPICH") from error
            except subprocess.TimeoutExpired as error:
                raise UsageError(f"{shlex.join(command)} --print-config does not end") from error
            if done.returncode == 2:
                message = [line for line in done.stderr.splitlines() if line.startswith("ddptrain:")]
                raise UsageError(f"{self.sweep.path}: product {case.product}: {' '.join(message) or done.stderr}")

    def dry_run(self) -> None:
        for number, case in enumerate(self.cases, 1):
            print(f"{number}. {case.key}  {self.label(case)}")
            try:
                launch = self.launch(case, pathlib.Path("RESULT"))
            except Impossible as reason:
                print(f"   skipped: {reason}")
                continue
            changes = [f"{k}={v}" for k, v in launch.changes.items() if v is not None]
            unset = [word for k, v in launch.changes.items() if v is None for word in ("-u", k)]
            prefix = ["env", *unset, *changes] if launch.changes else []
            print(f"   {shlex.join(prefix + launch.command)}{'  (emulated nodes)' if launch.emulation else ''}")

    def run_all(self, folder: ResultFolder, repeats: int, timeout_seconds: float, retry_failed: bool) -> int:
        done = runs_done(folder, retry_failed)
        order = cases_module.interleaved(self.cases, repeats, self.sweep.seed)
        left = [(case, repeat) for case, repeat in order if (case.key, repeat) not in done]
        if len(left) < len(order):
            print(f"{len(order) - len(left)} of {len(order)} runs are done", file=sys.stderr)
        versions = {case.program: _version(self.programs / case.program) for case in self.cases}
        progress = Progress(len(left))
        counts: dict[str, int] = {}
        for case, repeat in left:
            record = self.run_case(case, repeat, folder, timeout_seconds, progress)
            record["versions"] = versions[case.program]
            folder.append(record)
            status = record["status"]
            counts[status] = counts.get(status, 0) + 1
            name = f"{self.label(case)}, run {repeat + 1}/{repeats}"
            progress.finished(name, _result_text(record), status != "skipped")
        return self.conclude(counts, progress, folder)

    def conclude(self, counts: dict[str, int], progress: Progress, folder: ResultFolder) -> int:
        text = ", ".join(f"{count} {status}" for status, count in counts.items()) or "nothing was left to run"
        seconds = sum(record.get("seconds", 0) for record in folder.records())
        print(f"{self.sweep.name}: {text}; {duration(seconds)} of runs in {folder.path}", file=sys.stderr)
        if counts and not counts.get("ok"):
            print("ddpsweep: not one run succeeded; the reasons stand above and in results.jsonl", file=sys.stderr)
        return 0 if not counts or (counts.keys() <= {"ok", "skipped"} and counts.get("ok")) else 1

    def run_case(
        self, case: Case, repeat: int, folder: ResultFolder, timeout_seconds: float, progress: Progress
    ) -> Record:
        stem = f"{case.key}-r{repeat}"
        log = folder.path / "logs" / f"{stem}.out"
        result_file = folder.path.absolute() / "logs" / f"{stem}.jsonl"
        record = self.record_of(case, repeat)
        try:
            launch = self.launch(case, result_file)
        except Impossible as reason:
            return record | {"status": "skipped", "reason": str(reason), "started": _now(), "seconds": 0.0}
        result_file.unlink(missing_ok=True)
        record |= {
            "emulated": launch.emulation is not None,
            "emulation": launch.emulation,
            "gpus_used": launch.gpus,
            "command": launch.command,
            "environment_set": launch.changes,
            "environment": launch.recorded_environment(),
            "log": str(log.relative_to(folder.path)),
            "started": _now(),
        }
        tick = lambda seconds: progress.tick(self.label(case), seconds)
        outcome = run(launch.command, launch.environment, log, timeout_seconds, tick)
        record |= {"ended": _now(), "seconds": round(outcome.seconds, 3)}
        return record | _outcome_fields(case, outcome, result_file)

    def record_of(self, case: Case, repeat: int) -> Record:
        return {
            "record": RECORD_VERSION,
            "sweep": self.sweep.name,
            "notes": self.sweep.notes,
            "product": case.product,
            "case": case.key,
            "repeat": repeat,
            "program": case.program,
            "arguments": list(case.arguments),
            "settings": case.settings(),
            "variables": list(case.environment),
            "emulated": False,
            "machine": self.machine.describe(),
        }


def _outcome_fields(case: Case, outcome: Outcome, result_file: pathlib.Path) -> Record:
    fields: Record = {"status": outcome.status, "reason": outcome.reason, "exit_code": outcome.exit_code}
    if outcome.status != "ok":
        return fields
    result = _read_summary(result_file) if case.program == "ddptrain" else _read_json(result_file)
    if result is None:
        return fields | {"status": "failed", "reason": f"{case.program} ended well, but left no result"}
    return fields | {"summary" if case.program == "ddptrain" else "bench": result}


def _read_summary(path: pathlib.Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    return next((line for line in read_records(path) if line.get("event") == "summary"), None)


def _read_json(path: pathlib.Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def runs_done(folder: ResultFolder, retry_failed: bool) -> set[tuple[str, int]]:
    done = {}
    for record in folder.records():
        case, repeat = record.get("case"), record.get("repeat")
        if isinstance(case, str) and isinstance(repeat, int):
            done[case, repeat] = record.get("status")
    return {run for run, status in done.items() if not retry_failed or status == "ok"}


def check_same_cases(folder: ResultFolder, cases: list[Case]) -> None:
    """What an earlier call measured belongs to this plan too; --set may have given it other values."""
    keys = {case.key for case in cases}
    for record in folder.records():
        if record.get("case") in keys or not isinstance(record.get("settings"), dict):
            continue
        folder.close()
        changed = _differences(record["settings"], [case.settings() for case in cases])
        raise UsageError(
            f"{folder.path} holds runs of other settings ({changed}): give another --out, or the --set of then"
        )


def _differences(settings: dict[str, Any], others: list[dict[str, Any]]) -> str:
    """From the most similar of the others."""
    def changes(other: dict[str, Any]) -> list[str]:
        names = sorted(name for name in settings.keys() | other.keys() if settings.get(name) != other.get(name))
        return [f"{name} = {settings.get(name, 'not set')}, now {other.get(name, 'not set')}" for name in names]

    return ", ".join(min((changes(other) for other in others), key=len)) or "other arguments"


def _result_text(record: Record) -> str:
    if record["status"] != "ok":
        return f"{record['status']}: {record['reason']}"
    summary = record.get("summary", {})
    for unit in ("images", "tokens", "samples"):
        if isinstance(summary.get(f"{unit}_per_second"), (int, float)):
            emulated = ", emulated" if record["emulated"] else ""
            return f"{summary[f'{unit}_per_second']:,.0f} {unit}/s{emulated} in {record['seconds']:.1f} s"
    return f"ok in {record['seconds']:.1f} s"


def _version(program: pathlib.Path) -> str | None:
    if not program.exists():
        return None
    return (ask([str(program), "--version"]) or "").strip() or None


def _environment_for_root() -> dict[str, str]:
    permission = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    return dict(os.environ) | permission


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _plan(sweep: Sweep, cases: list[Case], repeats: int) -> dict[str, Any]:
    described = [{"case": case.key, "product": case.product, "settings": case.settings()} for case in cases]
    return {
        "sweep": sweep.name,
        "description": sweep.description,
        "notes": sweep.notes,
        "repeats": repeats,
        "cases": described,
    }


def main(argv: list[str]) -> int:
    arguments = parse_arguments(argv)
    lasting = [f"min-seconds={arguments.min_seconds}"] if arguments.min_seconds else []
    sweep = load_sweep(arguments.file, arguments.overrides + lasting)
    repeats = arguments.repeats or sweep.repeats
    machine = find_machine(os.environ, arguments.hostfile)
    programs = program_folder(arguments.bin)
    machine.topology = read_topology(programs / "ddptopo")
    sweep_run = SweepRun(sweep, cases_module.expand(sweep), programs, machine)
    for note in sweep.notes:
        print(f"ddpsweep: {note}", file=sys.stderr)
    if arguments.dry_run:
        sweep_run.dry_run()
        return 0
    sweep_run.check_programs()
    sweep_run.check_flags()
    out = arguments.out or pathlib.Path("results") / sweep.name
    folder = ResultFolder(out, sweep.name, arguments.resume or arguments.retry_failed)
    check_same_cases(folder, sweep_run.cases)
    folder.write_json("plan.json", _plan(sweep, sweep_run.cases, repeats))
    if machine.topology is not None:
        folder.write_json("topology.json", machine.topology)
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return sweep_run.run_all(folder, repeats, arguments.timeout or sweep.timeout_seconds, arguments.retry_failed)
    except KeyboardInterrupt:
        print(f"\nddpsweep: interrupted; what is done stands in {out}; go on with --resume", file=sys.stderr)
        return 130
    finally:
        folder.write_text("results.csv", csv_text(folder.records()))
        folder.close()


def run_main() -> int:
    return run_program("ddpsweep", main)
