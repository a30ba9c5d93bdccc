"""The hosts of a job of mpirun: which ones answer, and what an ended job has left on them."""

import concurrent.futures
import dataclasses
import os
import pathlib
import re
import subprocess
from collections.abc import Callable

HOSTFILE_FLAGS = ("--hostfile", "-hostfile", "--machinefile", "-machinefile")
HOST_FLAGS = ("--host", "-host", "-H")
RANKS_FLAGS = ("-np", "-n", "--np", "-c")
SSH = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=3"]
PATIENCE = 15  # seconds for a command over ssh

# Ends the processes that have the job's mark in their command or environment, and removes files of shared memory that Open
# MPI made for this user, that are older than 2 s and that nobody uses. It comes over standard input, so that its own command has no mark.
CLEAN_UP = """
for file in $(grep -lsF -f - /proc/[0-9]*/cmdline /proc/[0-9]*/environ <<END
$mark
END
); do
  process=${file#/proc/}
  kill -KILL ${process%%/*} 2>/dev/null
done
sleep 0.2
for file in /dev/shm/vader_segment.* /dev/shm/sm_segment.*; do
  [ -O "$file" ] && [ $(($(date +%s) - $(stat -c %Y "$file"))) -gt 2 ] && ! grep -qsF "$file" /proc/[0-9]*/maps &&
    rm -f "$file"
done
true
"""


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


def on_all(function: Callable[[str], bool], hosts: list[str]) -> list[bool]:
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        return list(pool.map(function, hosts))


def place_of(flags: tuple[str, ...], command: list[str]) -> int | None:
    """Of the value after one of the flags, among those of mpirun."""
    return next((i + 1 for i, word in enumerate(command[:-1]) if word in flags), None)


@dataclasses.dataclass
class Hosts:
    """As Open MPI's hostfile or --host names them: names, slots, and the text of each."""

    names: list[str]
    slots: list[int]
    texts: list[str]
    in_file: bool

    @staticmethod
    def of(command: list[str]) -> "Hosts | None":
        """None: the command names none."""
        if (place := place_of(HOSTFILE_FLAGS, command)) is not None:
            lines = pathlib.Path(command[place]).read_text(encoding="utf-8").splitlines()
            texts = [line for line in lines if line.partition("#")[0].strip()]
            found = [re.search(r"slots\s*=\s*(\d+)", text) for text in texts]
            return Hosts([text.split()[0] for text in texts], [int(f[1]) if f else 1 for f in found], texts, True)
        if (place := place_of(HOST_FLAGS, command)) is not None:
            texts = command[place].split(",")
            parts = [text.partition(":") for text in texts]
            slots = [int(count) if count.isdigit() else 1 for _, _, count in parts]
            return Hosts([name for name, _, _ in parts], slots, texts, False)
        return None

    def only(self, kept: list[bool]) -> "Hosts":
        def chosen(values: list) -> list:
            return [value for value, good in zip(values, kept, strict=True) if good]

        return Hosts(chosen(self.names), chosen(self.slots), chosen(self.texts), self.in_file)

    def in_command(self, command: list[str], file: pathlib.Path) -> list[str]:
        """The command with these hosts in place of its own; `file` becomes its hostfile."""
        command = list(command)
        if self.in_file:
            file.write_text("".join(text + "\n" for text in self.texts), encoding="utf-8")
            command[place_of(HOSTFILE_FLAGS, command)] = str(file)
        else:
            command[place_of(HOST_FLAGS, command)] = ",".join(self.texts)
        return command

    def clean_up(self, mark: str) -> None:
        """On all of them that answer."""
        on_all(lambda host: on_host(host, f"mark={mark}\n{CLEAN_UP}"), list(dict.fromkeys(self.names)))
