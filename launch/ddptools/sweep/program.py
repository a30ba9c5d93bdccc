"""ddpsweep: runs every case of a sweep and keeps what came out."""

import argparse
import collections
import datetime
import itertools
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

from ddptools.common.arguments import Parser, path, whole
from ddptools.common.errors import UsageError
from ddptools.common.files import Record, from_json, read_records, unread_text
from ddptools.common.mpirun import permission
from ddptools.common.programs import answer, ask, flag_arguments, program_folder
from ddptools.common.runner import Outcome, last_words, run
from ddptools.common.text import counted, number, one_line
from ddptools.common.values import table_of
from ddptools.results.run import make_run, why_unusable
from ddptools.sweep.cases import Case, expand, interleaved, label, varied_settings
from ddptools.sweep.folder import ResultFolder
from ddptools.sweep.launch import Impossible, Launch, needs_gpus, plan_launch, uses_gpus
from ddptools.sweep.machine import Machine, find_machine, read_topology
from ddptools.sweep.outcome import outcome_table
from ddptools.sweep.sweep_file import Sweep, load_sweep

RECORD_VERSION = 1


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="ddpsweep",
        description="Runs every case of a sweep (configs/sweeps/*.toml), each in a new job, and writes the results to "
        "DIR/results.jsonl. ddpreport DIR explains them.",
    )
    add, count = parser.add_argument, whole(999_999_999)
    add("file", type=path, metavar="SWEEP.toml")
    add("--out", type=path, metavar="DIR", help="folder for the results (results/NAME)")
    add("--resume", action="store_true", help="continue an earlier call, and keep its results; warns if they are of another kind of machine")
    add("--retry-failed", action="store_true", help="as --resume, and repeat the runs that failed")
    add("--repeats", type=count, metavar="N", help="runs of each case (the file's)")
    add("--timeout", type=count, metavar="S", help="longest time of a run, in seconds (the file's)")
    add("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
        help="set a key of all cases, a flag of ddptrain (a list in [] becomes an axis) or environment.NAME; "
        "may be repeated")  # fmt: skip
    add("--min-seconds", type=count, metavar="S", help="shortest measurement of every run, in seconds")
    add("--hostfile", type=path, metavar="FILE", help="hosts for layouts, in the format of mpirun")
    add("--bin", type=path, metavar="DIR", help="folder of ddptrain (the folder of ddpsweep, else build/bin)")
    add("--dry-run", action="store_true", help="print the cases and their commands without running them")
    return parser.parse_args(argv)


class SweepRun:
    def __init__(self, sweep: Sweep, programs: pathlib.Path, machine: Machine) -> None:
        self.sweep = sweep
        self.cases = expand(sweep)
        self.programs = programs
        self.machine = machine
        self.varied = varied_settings(self.cases)

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
        self.check_names(program, list(checked.values()))
        for case in checked.values() if program.exists() else ():
            command = ["mpirun", *self.machine.mpirun.any_number, "-np", "1", str(program), *flag_arguments(case.flags)]
            if case.groups:
                command += ["--outer", "redis://127.0.0.1/run", "--group", "g1"]
            try:
                done = answer([*command, "--print-config"], 120.0, env=os.environ | permission())
            except FileNotFoundError as error:
                raise UsageError("there is no mpirun: install Open MPI (launch/setup) or MPICH") from error
            except subprocess.TimeoutExpired as error:
                raise UsageError(f"{shlex.join(command)} --print-config does not end") from error
            if done.returncode == 2:
                raise UsageError(f"{self.sweep.path}: product {case.product}: {last_words(done.stderr)}")

    def check_names(self, program: pathlib.Path, cases: list[Case]) -> None:
        """UsageError if a case has a flag under two names, such as steps and max-steps: the last one would count."""
        own_names = names_of_flags(ask([str(program), "--help", "names"]) or "")
        for case in cases:
            for name, other in itertools.permutations(case.flags, 2):
                same = own_names.get(name, set()) & (own_names.get(other, set()) | {other})
                if same:
                    where = f"{self.sweep.path}: product {case.product}"
                    raise UsageError(f"{where}: {name} and {other} are the same flag. Give {min(same)} alone")

    def lacks_gpus(self) -> str:
        """Why no case can run, if each needs a GPU and there is none; else empty. Names the sweep for CPUs."""
        if self.machine.gpus or len(self.machine.hosts) > 1 or not all(map(needs_gpus, self.cases)):
            return ""
        for_cpus = self.sweep.path.with_stem(f"{self.sweep.path.stem}-cpu")
        advice = f"Its CPU version: ddpsweep {for_cpus}" if for_cpus.exists() else "It has no CPU version"
        return f"{self.sweep.path} needs GPUs, and this machine has none. {advice}"

    def warn_of_few_cores(self) -> None:
        if len(self.machine.hosts) > 1:
            return
        on_cpus = [case for case in self.cases if not uses_gpus(case, self.machine) and self.can_run(case)]
        most = max((case.ranks * max(case.groups, 1) for case in on_cpus), default=0)
        cores = len(os.sched_getaffinity(0))
        if most > cores:
            print(
                f"ddpsweep: warning: a case has {counted(most, 'rank')}, and this machine has {counted(cores, 'core')} for "
                "them: ranks that share a core are slow",
                file=sys.stderr,
            )

    def can_run(self, case: Case) -> bool:
        try:
            self.launch(case, pathlib.Path("result.json"))
        except Impossible:
            return False
        return True

    def dry_run(self) -> None:
        lacks_gpus = self.lacks_gpus()
        for place, case in enumerate(self.cases, 1):
            print(f"{place}. {case.key}  {label(case, self.varied)}")
            try:
                launch = self.launch(case, pathlib.Path("RESULT"))
            except Impossible as reason:
                if not lacks_gpus:
                    print(f"   skipped: {reason}")
                continue
            changes = [f"{k}={v}" for k, v in launch.changes.items() if v is not None]
            unset = [word for k, v in launch.changes.items() if v is None for word in ("-u", k)]
            prefix = ["env", *unset, *changes] if launch.changes else []
            print(f"   {shlex.join(prefix + launch.command)}{'  (emulated nodes)' if launch.emulation else ''}")
        if lacks_gpus:
            print(f"ddpsweep: {lacks_gpus}", file=sys.stderr)

    def run_all(self, folder: ResultFolder, repeats: int, timeout_seconds: float, retry_failed: bool) -> int:
        done = runs_done(folder, retry_failed)
        order = interleaved(self.cases, repeats, self.sweep.seed)
        left = [(case, repeat) for case, repeat in order if (case.key, repeat) not in done]
        if len(left) < len(order):
            print(f"{len(order) - len(left)} of {len(order)} runs are done", file=sys.stderr)
        if left:
            self.warn_of_other_machines(folder)
        programs = {case.program for case in self.cases}
        versions = {name: ask([str(self.programs / name), "--version"]) for name in programs}
        counts: collections.Counter[str] = collections.Counter()
        start = time.monotonic()
        for place, (case, repeat) in enumerate(left, 1):
            name = f"{label(case, self.varied)}, run {repeat + 1}/{repeats}"
            print(one_line(f"[{place}/{len(left)}] {name}:"), end=" ", file=sys.stderr, flush=True)
            record = self.run_case(case, repeat, folder, timeout_seconds)
            record["versions"] = (versions[case.program] or "").strip() or None
            folder.append(record)
            counts[record["status"]] += 1
            each = (time.monotonic() - start) / max(place - counts["skipped"], 1)
            ahead = datetime.timedelta(seconds=round(each * (len(left) - place)))
            print(one_line(f"{_result_text(record)}  ({ahead} left)"), file=sys.stderr, flush=True)
        return self.conclude(counts, folder)

    def warn_of_other_machines(self, folder: ResultFolder) -> None:
        for told in self.machine.differences(folder.records()):
            print(
                f"ddpsweep: warning: {folder.path} holds runs of another machine: {one_line(told)}. Runs of both "
                "cannot be compared: give each machine an --out of its own",
                file=sys.stderr,
            )

    def conclude(self, counts: collections.Counter[str], folder: ResultFolder) -> int:
        print(outcome_table(self.cases, self.varied, folder.records()), file=sys.stderr, end="")
        text = ", ".join(f"{count} {status}" for status, count in counts.items()) or "nothing was left to run"
        took = datetime.timedelta(seconds=round(sum(record.get("seconds", 0) for record in folder.records())))
        print(f"{self.sweep.name}: {text}; {took} of runs in {folder.path}", file=sys.stderr)
        if counts["ok"]:  # it may have been long since the first warning
            self.warn_of_other_machines(folder)
        if counts and not counts["ok"]:
            print("ddpsweep: not one run succeeded; the reasons stand above and in results.jsonl", file=sys.stderr)
        return 0 if not counts or (counts["ok"] and counts.keys() <= {"ok", "skipped"}) else 1

    def run_case(self, case: Case, repeat: int, folder: ResultFolder, timeout_seconds: float) -> Record:
        log = folder.path / "logs" / f"{case.key}-r{repeat}.out"
        result_file = log.absolute().with_suffix(".jsonl")
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
        outcome = run(launch.command, launch.environment, log, timeout_seconds)
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

    def plan(self, repeats: int) -> dict[str, Any]:
        return {
            "sweep": self.sweep.name,
            "description": self.sweep.description,
            "notes": self.sweep.notes,
            "repeats": repeats,
            "cases": [{"case": c.key, "product": c.product, "settings": c.settings()} for c in self.cases],
        }


def _outcome_fields(case: Case, outcome: Outcome, result_file: pathlib.Path) -> Record:
    fields: Record = {"status": outcome.status, "reason": outcome.reason, "exit_code": outcome.exit_code}
    if outcome.status != "ok":
        return fields
    name, result = "bench", None
    if case.program == "ddptrain":
        name = "summary"
        lines = read_records(result_file) if result_file.exists() else ()
        result = next((line for line in lines if line.get("event") == "summary"), None)
    elif result_file.exists():
        result = table_of(from_json(result_file.read_bytes()))
    if not result:
        return fields | {"status": "failed", "reason": f"{case.program} ended well, but left no result"}
    return fields | {name: result}


def names_of_flags(text: str) -> dict[str, set[str]]:
    """By a name of another program, the flags that it may mean, of the output of ddptrain --help names. Names that stand for
    a value, such as bf16 for precision = "bf16", are left out: as false they mean nothing."""
    found: dict[str, set[str]] = {}
    flag = ""
    for line in text.partition("\n\n")[0].splitlines():
        words = line.split()
        if line.startswith("  --"):
            flag = words[0].removeprefix("--") if len(words) == 1 else ""
        elif flag and line.startswith("      --"):
            for name in words:
                found.setdefault(name.removeprefix("--"), set()).add(flag)
    return found


def runs_done(folder: ResultFolder, retry_failed: bool) -> set[tuple[str, int]]:
    done = {}
    for record in folder.records():
        case, repeat = record.get("case"), record.get("repeat")
        if isinstance(case, str) and isinstance(repeat, int):
            done[case, repeat] = record.get("status")
    return {run for run, status in done.items() if not retry_failed or status == "ok"}


def check_same_cases(folder: ResultFolder, cases: list[Case]) -> None:
    """What an earlier call measured belongs to this plan too; --set may have given it other values."""
    keys, planned = {case.key for case in cases}, [case.settings() for case in cases]
    for record in folder.records():
        if record.get("case") not in keys:
            settings = table_of(record.get("settings")).items()
            other = [f"{name} = {value}" for name, value in settings if all(p.get(name) != value for p in planned)]
            folder.close()
            raise UsageError(
                f"{folder.path} holds runs of other settings ({', '.join(other) or 'other arguments'}): give another "
                "--out, or the --set of then"
            )


def _result_text(record: Record) -> str:
    if record["status"] != "ok":
        return f"{record['status']}: {record['reason']}"
    run, emulated = make_run(record), ", emulated" if record["emulated"] else ""
    why = why_unusable(table_of(record.get("summary") or record.get("bench")))
    disturbed = f", disturbed: {why}" if why else ""
    return f"{f'{number(run.rate)} {run.unit}' if run else 'ok'}{emulated} in {record['seconds']:.1f} s{disturbed}"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main(argv: list[str]) -> int:
    arguments = parse_arguments(argv)
    lasting = [f"min-seconds={arguments.min_seconds}"] if arguments.min_seconds else []
    sweep = load_sweep(arguments.file, arguments.overrides + lasting)
    repeats = arguments.repeats or sweep.repeats
    programs = program_folder(arguments.bin)
    machine = find_machine(os.environ, arguments.hostfile)
    machine.topology = read_topology(programs / "ddptopo")
    sweep_run = SweepRun(sweep, programs, machine)
    if not arguments.dry_run:
        sweep_run.check_programs()
        if lacks_gpus := sweep_run.lacks_gpus():
            raise UsageError(lacks_gpus)
    for note in sweep.notes:
        print(f"ddpsweep: {one_line(note)}", file=sys.stderr)
    sweep_run.warn_of_few_cores()
    if arguments.dry_run:
        sweep_run.dry_run()
        if shutil.which("mpirun"):
            sweep_run.check_flags()
        return 0
    sweep_run.check_flags()
    out = arguments.out or pathlib.Path("results") / sweep.name
    folder = ResultFolder(out, sweep.name, arguments.resume or arguments.retry_failed)
    if folder.bad_lines:
        print(f"ddpsweep: {folder.file}: {unread_text(folder.bad_lines)}: their runs are made again", file=sys.stderr)
    check_same_cases(folder, sweep_run.cases)
    folder.write_json("plan.json", sweep_run.plan(repeats))
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
        folder.close()
