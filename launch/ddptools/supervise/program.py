"""A training job that goes on: restarted from its newest checkpoint after a failure, ended with one on Ctrl-C."""

import argparse
import contextlib
import dataclasses
import datetime
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import tomllib
import uuid
from collections import deque
from typing import Any, IO

from ddptools.common.arguments import Parser, number, path, whole
from ddptools.common.errors import UsageError
from ddptools.common.mpirun import OPEN_MPI, SESSIONS, find_mpirun, permission
from ddptools.common.programs import answer
from ddptools.common.runner import end_session, exit_text, positive, start_session, with_words
from ddptools.common.text import counted
from ddptools.supervise.hosts import (
    FOLDER_FLAGS,
    HOSTFILE_FLAGS,
    HOST_FLAGS,
    RANKS_FLAGS,
    THIS_HOST,
    Hosts,
    is_here,
    normal,
    place_of,
)

RESUMABLE = 75  # ddptrain's exit code after a checkpoint that a signal asked for
TIMEOUT = 76  # ddptrain's where ranks waited too long for others
LOST_HOST = 77  # a host does not answer, or mpirun lost its daemon there
FAILURE = 1
USAGE = 2
NO_LIBRARY = 127  # the loader's exit code
LONGEST_PAUSE = 300.0
CONTROLS = dict.fromkeys([*range(32), 127], "?")  # characters that names of files may have, and that would split a line
# Open MPI otherwise learns after eight minutes that a host is gone. Seconds, seconds, and probes: after 9 s.
KEEPALIVE = {
    f"{version}_MCA_oob_tcp_keepalive_{name}": value
    for version in ("OMPI", "PRTE")  # Open MPI 4, 5
    for name, value in (("time", "3"), ("intvl", "2"), ("probes", "3"))
}
# mpirun hands such variables on: that of Open MPI 4 to its daemons and ranks; 5 the first to ranks, the second to
# daemons.
MARKS = ("OMPI_MCA_ddptrain_job", "PRTE_MCA_ddptrain_job")
# Lines of a job that is ending. mpirun can outlive it: its daemon on a lost host never acknowledges the order to end.
ENDING = re.compile(
    r"has been waiting in|error on rank|lost communication with a remote daemon"
    r"|(mpirun|prterun) (noticed|detected) that"
)
# Seconds after such a line, until mpirun is ended. It needs 4.3 s to end the ranks of several hosts after MPI_Abort.
OUTLIVES = 20.0
LOST_DAEMON = re.compile(r"Remote daemon: \S+ on node (\S+)")
KILLED = re.compile(r"process rank (\d+) with PID \d+ on node (\S+)\s+exited\s+on\s+signal (\d+)")
FIRST_ERROR = re.compile(r"^ddptrain: error on rank .*", re.MULTILINE)
DISCONNECTED = re.compile(r"peer process has unexpectedly disconnected.*Peer host:\s+(\S+)", re.DOTALL)
ENDED = re.compile(r"^ddptrain: SIG\w+: ended (after|before) ", re.MULTILINE)
DESCRIPTION = """\
Starts COMMAND (mpirun or srun with ddptrain --checkpoint DIR, or ddptrain alone) with --resume auto. After a failure,
supervise ends the rest of the job on the hosts of mpirun's --hostfile or --host. Then it starts COMMAND again on the
hosts that answer over ssh, and the job resumes from the newest undamaged checkpoint. If slots are lost with a host,
supervise waits for the host. With --min-ranks or --virtual-ranks it continues with fewer ranks, and returns to all
ranks at the next restart that finds all hosts. On SIGTERM, SIGINT (Ctrl-C) or SIGHUP (a closed terminal), the ranks
write a checkpoint, and supervise exits with code 75. A second signal ends the job at once. SIGUSR1 writes a checkpoint.
When supervise gives up, its exit code is 77 for a lost host, 76 for a timeout, and otherwise the exit code of the job.
Open MPI notices a lost host after 9 s ({OMPI,PRTE}_MCA_oob_tcp_keepalive_*, unless these are set)."""


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = Parser("supervise", description=DESCRIPTION)
    add = parser.add_argument
    add("--restarts", type=whole(10**9, 0), default=3, metavar="N",
        help="give up after N restarts in a row without a new undamaged checkpoint (3)")  # fmt: skip
    add("--pause", type=number(0, 1e9), default=5.0, metavar="SECONDS",
        help="wait before the first restart; doubles with each further restart, up to 5 minutes (5)")  # fmt: skip
    add("--min-ranks", type=whole(10**9, 0), default=0, metavar="N",
        help="continue with as few as N ranks while hosts of mpirun's --hostfile (each line with slots=) or --host are "
        "lost; --batch and --grad-accum of ddptrain change to keep the samples per step")  # fmt: skip
    add("--log", type=path, metavar="FILE",
        help="log of why each attempt ended (supervise.log in the folder of --checkpoint)")  # fmt: skip
    add("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    arguments = parser.parse_args(argv)
    if arguments.command[:1] == ["--"]:
        del arguments.command[0]
    return arguments


def place_of_program(command: list[str]) -> int | None:
    """Of ddptrain among the words; the words before it are mpirun's."""
    named = [i for i, word in enumerate(command) if pathlib.Path(word).name == "ddptrain" and "=" not in word]
    return next((i for i in named if i == 0 or command[i - 1] not in FOLDER_FLAGS), None)


def flags_of(command: list[str], shown: subprocess.CompletedProcess[str] | None) -> dict[str, Any]:
    """ddptrain's flags, with those of its --config file, as --print-config shows them; some of those in the command if
    it cannot run on this host."""
    if shown is not None and shown.returncode == USAGE:
        raise UsageError(shown.stderr.strip())
    parser = argparse.ArgumentParser("supervise", add_help=False, allow_abbrev=False)
    for name in ("checkpoint", "resume", "virtual-ranks", "pp", "tp"):
        parser.add_argument(f"--{name}", dest=name)
    given = vars(parser.parse_known_args(command)[0])
    if shown is not None and shown.returncode == 0:
        with contextlib.suppress(tomllib.TOMLDecodeError):  # it is the answer to --help or --version
            return tomllib.loads(shown.stdout) | {name: value for name, value in given.items() if value}
    return given


@dataclasses.dataclass
class Size:
    wanted: int
    least: int
    samples: int  # of a step, where batches may change
    batch: int
    parts: int  # --virtual-ranks
    replica: int  # ranks that share a model: --pp x --tp

    @staticmethod
    def of(ranks: str, flags: dict[str, Any], hosts: Hosts, least: int) -> "Size":
        wanted = int(ranks) if ranks.isdigit() else hosts.least_slots()
        parts = int(flags["virtual-ranks"] or 0)
        replica = int(flags.get("pp") or 1) * int(flags.get("tp") or 1)
        if least == 0 and parts == 0:
            return Size(wanted, wanted, 0, 0, 0, replica)
        flag = "--min-ranks" if least > 0 else "--virtual-ranks"
        if least > 0 and hosts is THIS_HOST:
            told = "the command names no hosts that could be lost. Give mpirun --hostfile or --host."
            raise UsageError(f"{flag}: {told}")
        if unknown := [host.name for host in hosts.hosts if host.slots is None]:
            told = f"how many ranks may {unknown[0]} have? Write slots=N behind it in the hostfile."
            raise UsageError(f"{flag}: {told}")
        if parts > 0:
            return Size(wanted, least or 1, 0, 0, parts, replica)
        if "batch" not in flags:
            raise UsageError("--min-ranks: the command names no ddptrain that runs here, whose --batch would change")
        if flags["batch"] == "auto":
            raise UsageError("--min-ranks: fewer ranks need larger batches. Give ddptrain a number: --batch N.")
        samples = wanted // replica * flags["batch"] * flags["grad-accum"]
        return Size(wanted, least, samples, flags["batch"], 0, replica)

    def on(self, slots: int) -> list[str] | None:
        """The number of ranks on so many slots, and flags of ddptrain that keep the samples of a step; None: too few"""
        if slots >= self.wanted:
            return [str(self.wanted)]
        for replicas in range(slots // self.replica, -(-self.least // self.replica) - 1, -1):
            ranks = str(replicas * self.replica)
            if self.parts and self.parts % replicas == 0:
                return [ranks]
            if self.samples and self.samples % replicas == 0:
                of_replica = self.samples // replicas
                batch = max(size for size in range(1, self.batch + 1) if of_replica % size == 0)
                return [ranks, "--batch", str(batch), "--grad-accum", str(of_replica // batch)]
        return None


def say(text: bytes) -> None:
    """On standard error, of which the reader may have ended: the job goes on without its terminal."""
    try:
        sys.stderr.buffer.write(text)
        sys.stderr.buffer.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


class Job:
    def __init__(self, arguments: argparse.Namespace) -> None:
        command: list[str] = arguments.command
        if not command:
            raise UsageError("give a command: supervise mpirun -np 8 ddptrain --checkpoint DIR ...")
        program = place_of_program(command)
        self.starter = normal(command[:program])
        self.program = command[program:] if program is not None else []
        place = place_of(FOLDER_FLAGS, self.starter)
        self.work = pathlib.Path(self.starter[place] if place is not None else "")
        shown = self.asked(*self.program[1:], "--print-config")
        self.runs_here = shown is not None
        self.flags = flags_of(self.program or command, shown)
        if not self.flags["checkpoint"]:
            raise UsageError("the command has no --checkpoint DIR, from which it could go on")
        if not self.flags["resume"]:
            self.resume_auto()
        self.folder = self.work / self.flags["checkpoint"]
        self.hosts = self.hosts_in_use = Hosts.of(self.starter)
        place = place_of(RANKS_FLAGS, self.starter)
        self.size = Size.of(self.starter[place] if place else "", self.flags, self.hosts, arguments.min_ranks)
        self.mark = uuid.uuid4().hex
        self.sessions = f"{os.environ.get('OMPI_MCA_orte_tmpdir_base') or '/tmp'}/ddptrain-{self.mark}"
        mpirun = find_mpirun(command[0]) if pathlib.Path(command[0]).name.startswith("mpi") else OPEN_MPI
        self.end_signal, self.killed_codes = mpirun.end, mpirun.killed_codes
        self.restarts: int = arguments.restarts
        self.first_pause: float = arguments.pause
        self.log_file: pathlib.Path = arguments.log or self.folder / "supervise.log"
        self.log_lacks_lines = False
        self.newest = ""  # readable checkpoint: its name
        self.process: subprocess.Popen | None = None
        self.ending_since: float | None = None
        self.ends_asked = 0
        self.woken = threading.Event()

    @property
    def command(self) -> list[str]:
        return [*self.starter, *self.program]

    def asked(self, *flags: str) -> subprocess.CompletedProcess[str] | None:
        """What ddptrain answers; None: it cannot run on this host (no program, no library, MPI does not start)."""
        if not self.program:
            return None
        try:
            done = answer([self.program[0], *flags], None, cwd=self.work)
        except OSError:
            return None
        return done if done.returncode not in (FAILURE, NO_LIBRARY) else None

    def resume_auto(self) -> None:
        self.program = [*self.program, "--resume", "auto"]
        self.flags["resume"] = "auto"

    def log(self, text: str) -> None:
        text = text.translate(CONTROLS)
        line = f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%dT%H:%M:%SZ} {text}"
        say(f"supervise: {text}\n".encode(errors="surrogateescape"))
        try:
            self.log_file.parent.mkdir(parents=True, exist_ok=True)
            with open(self.log_file, "a", encoding="utf-8", errors="surrogateescape") as file:
                file.write(line + "\n")
        except OSError as error:  # a full disk must not end the job
            if not self.log_lacks_lines:
                self.log_lacks_lines = True
                told = f"{self.log_file}: {error.strerror}. The job goes on, and this log will lack lines."
                say(f"supervise: {told.translate(CONTROLS)}\n".encode(errors="surrogateescape"))

    def clean_up(self) -> tuple[Hosts, list[str]]:
        """Ends what an attempt has left on the hosts that answer. Returns them, and the names of the others."""
        answering, silent = self.hosts.answering()
        answering.clean_up(self.mark, self.sessions)
        return answering, silent

    def for_hosts_that_answer(self) -> list[str] | None:
        """The command of the next attempt; None if they have too few slots."""
        hosts, silent = self.clean_up()
        self.hosts_in_use, slots = hosts, hosts.least_slots()
        if not silent:
            return self.command
        self.log(f"no answer from {', '.join(silent)}: left out; {slots} slots on the other hosts")
        flags = self.size.on(slots)
        if flags is None:
            self.log(f"waits for hosts: {slots} slots are too few")
            return None
        ranks, *changes = flags
        own = hosts.in_command(self.starter, self.folder / "supervise.hosts")
        if (place := place_of(RANKS_FLAGS, own)) is not None:
            own[place] = ranks
        else:
            place = place_of((*HOSTFILE_FLAGS, *HOST_FLAGS), own)
            own[place - 1 : place - 1] = ["-np", ranks]
        return [*own, *self.program, *changes]

    def on_signal(self, number: int, _frame: object) -> None:
        if number != signal.SIGUSR1:
            self.ends_asked += 1
            self.woken.set()
        process = self.process
        if process is None or process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            if self.ends_asked > 1:
                process.terminate()
            else:
                process.send_signal(signal.SIGUSR1 if number == signal.SIGUSR1 else self.end_signal)

    def attempt(self, command: list[str]) -> tuple[int, str]:
        """Exit code, and the end of what the job said on standard error."""
        own = dict.fromkeys(MARKS, self.mark) | {SESSIONS: self.sessions}
        environment = KEEPALIVE | os.environ | own
        self.process = start_session(command, self.end_signal, env=environment, stderr=subprocess.PIPE)
        self.ending_since = None
        lines: deque[str] = deque(maxlen=1000)
        copier = threading.Thread(target=self._copy, args=(self.process.stderr, lines), daemon=True)
        outlived = False
        try:
            if self.ends_asked > 0:  # in between
                self.process.send_signal(self.end_signal)
            copier.start()
            outlived = self._wait()
        finally:
            if outlived:
                self.process.kill()  # a mpirun that is asked to end a second time crashes
            end_session(self.process)
        copier.join(5.0)
        code, said = self.process.returncode, "".join(lines)
        if code == 0 and ENDED.search(said):  # at times MPICH returns 0
            code = RESUMABLE
        lost = code == 0 and LOST_DAEMON.search(said) is not None  # Open MPI 5 returns 0
        return FAILURE if outlived or lost else code, said

    def _wait(self) -> bool:
        """Until the job ends, or is to be ended; whether mpirun outlives it."""
        while self.process.poll() is None:
            if self.ends_asked > 1:
                return False
            if self.ending_since is not None and time.monotonic() > self.ending_since + OUTLIVES:
                self.log("mpirun outlives its job, and is ended")
                return True
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.2)
        return False

    def _copy(self, source: IO[bytes], lines: deque[str]) -> None:
        for line in source:
            say(line)
            lines.append(line.decode(errors="replace"))
            if self.ending_since is None and ENDING.search(lines[-1]):
                self.ending_since = time.monotonic()

    def checkpoints(self) -> list[pathlib.Path]:
        """Folders with a manifest and a name that ddptrain gives, the newest first."""
        found = [path.parent for path in self.folder.glob("step-*/manifest.json")]
        return sorted((path for path in found if re.fullmatch(r"step-\d{12}", path.name)), reverse=True)

    def newest_readable(self) -> str:
        found = self.checkpoints()
        return next((path.name for path in found if path.name == self.newest or self.is_readable(path)), "")

    def is_readable(self, checkpoint: pathlib.Path) -> bool:
        """Taken for granted if ddptrain cannot run on this host."""
        shown = self.asked("--inspect", str(checkpoint.absolute()))
        return not self.runs_here or (shown is not None and "complete and undamaged" in shown.stdout)

    def lost(self, silent: list[str]) -> str:
        here, names = os.uname().nodename, ", ".join(silent)
        if len(silent) < sum(not is_here(name) for name in self.hosts_in_use.names):
            return f"lost {names}, which {'does' if len(silent) == 1 else 'do'} not answer"
        if len(silent) == 1:
            return f"lost {names}, or the network between it and {here}"
        return f"lost {here}, which reaches no other host ({names})"

    def cause(self, code: int, said: str) -> tuple[int, str]:
        """supervise's exit code for an attempt that failed, and why in words. It ends what the attempt has left."""
        _, silent = self.clean_up()
        if silent := [name for name in silent if name in self.hosts_in_use.names]:
            return LOST_HOST, self.lost(silent)
        if self.ends_asked > 1:
            return positive(code), "a second signal"
        if daemons := sorted(set(LOST_DAEMON.findall(said))):
            return LOST_HOST, f"lost mpirun's daemon on {', '.join(daemons)}"
        if code == TIMEOUT or "has been waiting in" in said:
            return TIMEOUT, f"a wait for other ranks was too long{with_words(said)}"
        if killed := KILLED.search(said):
            return 128 + int(killed[3]), f"rank {killed[1]} on {killed[2]} {exit_text(-int(killed[3]))}"
        if code in self.killed_codes:
            return 128 + code, f"a rank {exit_text(-code)}"
        if first := FIRST_ERROR.search(said):
            return positive(code), f"{exit_text(code)}: {first[0]}"
        if gone := DISCONNECTED.search(said):  # before Open MPI 5 said what became of it
            return positive(code), f"a rank on {gone[1]} ended, and others lost their connections to it"
        return positive(code), f"{exit_text(code)}{with_words(said)}"

    def one_attempt(self, number: int, command: list[str]) -> tuple[int | None, int, str]:
        """supervise's exit code where it is to end now; else that where it gives up, and why the attempt ended."""
        self.log(f"attempt {number}: {shlex.join(command)}")
        start = time.monotonic()
        code, said = self.attempt(command)
        ended = f"attempt {number} ended after {time.monotonic() - start:.0f} s"
        if code in (0, USAGE, RESUMABLE):
            newest = next((path.name for path in self.checkpoints()), "none")
            self.log(f"{ended}: {exit_text(code)}{with_words(said) if code != 0 else ''}; newest checkpoint: {newest}")
            return code, code, ""
        result, why = self.cause(code, said)
        self.newest = max(self.newest, self.newest_readable())
        self.log(f"{ended}: {why}; newest checkpoint: {self.newest or 'none'}")
        if self.ends_asked > 0:
            before_start = code in (-self.end_signal, 128 + self.end_signal)  # nothing was there to save
            return RESUMABLE if before_start else result, result, why
        return None, result, why

    def run(self) -> int:
        failures, number, result, why = 0, 0, LOST_HOST, "too few hosts answered"
        self.newest = at_start = self.newest_readable()
        while True:
            before = self.newest
            command = self.for_hosts_that_answer() if number > 0 or self.size.least < self.size.wanted else self.command
            if command is not None:
                number += 1
                end, result, why = self.one_attempt(number, command)
                if end is not None:
                    return end
            failures = 1 if self.newest > before else failures + 1
            if self.newest > at_start and self.flags["resume"] != "auto":  # a checkpoint of this run
                self.resume_auto()
            if failures > self.restarts:
                restarts = counted(self.restarts, "restart")
                self.log(f"gives up after {restarts} in a row without a new undamaged checkpoint; the last failure: {why}")
                return result
            pause = min(self.first_pause * 2 ** (failures - 1), LONGEST_PAUSE)
            self.log(f"restarts in {pause:g} s")
            if self.woken.wait(pause):
                self.log("asked to end before the restart")
                return RESUMABLE


def main(argv: list[str]) -> int:
    job = Job(parse_arguments(argv))
    os.environ.update(permission() | os.environ)
    for handled in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(handled, job.on_signal)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, job.on_signal)
    return job.run()
