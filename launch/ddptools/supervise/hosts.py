"""The hosts of a job of mpirun: which ones answer, and what an ended job has left on them."""

import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shlex
import subprocess
import typing
from collections.abc import Callable, Iterable

from ddptools.common.errors import UsageError
from ddptools.common.mpirun import host_lines

HOSTFILE_FLAGS = ("--hostfile", "-hostfile", "--machinefile", "-machinefile")
HOST_FLAGS = ("--host", "-host", "-H")
RANKS_FLAGS = ("-np", "-n", "--np", "-c")
SLOTS = re.compile(r"\sslots\s*=\s*(\d+)")  # max_slots is another
SSH = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=3", "--"]
PATIENCE = 15  # seconds for a command over ssh

CLEAN_UP = pathlib.Path(__file__).with_name("clean_up.sh")


def is_here(host: str) -> bool:
    return host in ("localhost", "127.0.0.1", os.uname().nodename)


def on_host(host: str, script: str) -> bool:
    """Runs a script of sh there; whether it succeeded."""
    command = ["sh", "-s"] if is_here(host) else [*SSH, host, "sh -s"]
    try:
        run = subprocess.run(command, input=script, text=True, capture_output=True, timeout=PATIENCE)
        return run.returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def answers(host: str) -> bool:
    return is_here(host) or on_host(host, "true")


def on_all(function: Callable[[str], bool], hosts: Iterable[str]) -> list[bool]:
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        return list(pool.map(function, hosts))


def place_of(flags: tuple[str, ...], command: list[str]) -> int | None:
    """Of the value after one of the flags, among those of mpirun."""
    return next((i + 1 for i, word in enumerate(command[:-1]) if word in flags), None)


class Host(typing.NamedTuple):
    name: str
    slots: int | None  # None: Open MPI counts cores
    text: str  # as the command or its file has it


@dataclasses.dataclass
class Hosts:
    """As Open MPI's hostfile or --host names them."""

    hosts: list[Host]
    in_file: bool

    @staticmethod
    def of(command: list[str]) -> "Hosts":
        """THIS_HOST if the command names none."""
        in_file = True
        if (place := place_of(HOSTFILE_FLAGS, command)) is not None:
            texts = host_lines(pathlib.Path(command[place]))
            slots = [int(found[1]) if (found := SLOTS.search(text)) else None for text in texts]
            hosts = [Host(text.split()[0], count, text) for text, count in zip(texts, slots, strict=True)]
        elif (place := place_of(HOST_FLAGS, command)) is not None:
            in_file, parts = False, [text.partition(":") for text in command[place].split(",")]
            hosts = [Host(name, int(n) if n.isdigit() else None if n else 1, name + c + n) for name, c, n in parts]
        else:
            return THIS_HOST
        if not hosts:
            raise UsageError(f"{command[place]}: it names no host")
        if wrong := next((host.name for host in hosts if host.name.startswith("-")), None):
            raise UsageError(f"{command[place]}: {wrong} is no name of a host")
        return Hosts(hosts, in_file)

    @property
    def names(self) -> list[str]:
        return [host.name for host in self.hosts]

    def least_slots(self) -> int:
        return sum(1 if host.slots is None else host.slots for host in self.hosts)

    def answering(self) -> tuple["Hosts", list[str]]:
        """The hosts that answer, and the names of the others."""
        asked = list(zip(self.hosts, on_all(answers, self.names), strict=True))
        silent = [host.name for host, is_there in asked if not is_there]
        return Hosts([host for host, is_there in asked if is_there], self.in_file), silent

    def in_command(self, command: list[str], file: pathlib.Path) -> list[str]:
        """The command with these hosts in place of its own; `file` becomes its hostfile."""
        command, texts = list(command), [host.text for host in self.hosts]
        if self.in_file:
            file.write_text("".join(f"{text}\n" for text in texts), errors="surrogateescape")
        place = place_of(HOSTFILE_FLAGS if self.in_file else HOST_FLAGS, command)
        command[place] = str(file) if self.in_file else ",".join(texts)
        return command

    def clean_up(self, mark: str, sessions: str) -> None:
        script = f"mark={mark}\nsessions={shlex.quote(sessions)}\n{CLEAN_UP.read_text()}"
        on_all(lambda host: on_host(host, script), dict.fromkeys(self.names))


THIS_HOST = Hosts([Host("localhost", 1, "")], False)
