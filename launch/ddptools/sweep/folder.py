"""The results of a sweep: a folder with results.jsonl (one record per run, in the order of the runs), plan.json,
topology.json and logs/."""

import fcntl
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from ddptools.common.errors import UsageError
from ddptools.common.files import Record, errors_name, from_json, read_records, write_atomically
from ddptools.common.values import table_of

# Files that are written anew, and what tells that ddpsweep wrote them.
OWN_FIELDS = {"plan.json": ("sweep", "repeats", "cases"), "topology.json": ("hosts", "nccl")}


class ResultFolder:
    """Records are on the disk when append() returns. One writer at a time."""

    def __init__(self, path: pathlib.Path, sweep: str, resume: bool) -> None:
        self.path = path
        self.file = path / "results.jsonl"
        if path.exists() and not path.is_dir():
            raise UsageError(f"--out {path}: it is a file: give a folder")
        if self.file.exists() and self.file.stat().st_size > 0 and not resume:
            raise UsageError(f"{path} holds results already: go on with --resume, or give another --out")
        self._check_files_of_others()
        (path / "logs").mkdir(parents=True, exist_ok=True)
        self._lock = open(path / ".lock", "a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"{path}: another ddpsweep writes there") from error
        self._out = open(self.file, "ab")
        if self.file.read_bytes()[-1:] not in (b"", b"\n"):
            self._out.write(b"\n")  # a crash has cut the last line
        self.bad_lines: list[int] = []
        others = {str(record.get("sweep")) for record in self._read(self.bad_lines)} - {sweep}
        if others:
            self.close()
            raise UsageError(f"{path} holds results of {', '.join(others)}, not of {sweep}: give another --out")

    def _check_files_of_others(self) -> None:
        for name, fields in OWN_FIELDS.items():
            file = self.path / name
            if not file.is_file() or file.stat().st_size == 0:
                continue
            told = table_of(from_json(file.read_bytes()))
            if not all(field in told for field in fields):
                raise UsageError(f"--out {self.path}: its {name} was not written by ddpsweep: give another folder")

    def append(self, record: Record) -> None:
        with errors_name(self.file):
            self._out.write(json.dumps(record).encode() + b"\n")
            self._out.flush()
            os.fsync(self._out.fileno())

    def records(self) -> list[Record]:
        return list(self._read())

    def _read(self, bad_lines: list[int] | None = None) -> Iterator[Record]:
        return read_records(self.file, bad_lines, needed=("sweep", "case"))

    def write_json(self, name: str, value: Any) -> None:
        write_atomically(self.path / name, json.dumps(value, indent=1) + "\n")

    def close(self) -> None:
        with errors_name(self.file):
            self._out.close()
        self._lock.close()
