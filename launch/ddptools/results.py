"""The results of a sweep: a folder with results.jsonl (one record per run, in the order of the runs), results.csv (the
same as a table), plan.json, topology.json and logs/."""

import contextlib
import fcntl
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from ddptools.errors import UsageError

Record = dict[str, Any]


class ResultFolder:
    """Records are on the disk when append() returns. One writer at a time."""

    def __init__(self, path: pathlib.Path, sweep: str, resume: bool) -> None:
        self.path = path
        self.file = path / "results.jsonl"
        if self.file.exists() and self.file.stat().st_size > 0 and not resume:
            raise UsageError(f"{path} holds results already: go on with --resume, or give another --out")
        (path / "logs").mkdir(parents=True, exist_ok=True)
        self._lock = open(path / ".lock", "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"{path}: another ddpsweep writes there") from error
        _end_last_line(self.file)
        self._out = open(self.file, "ab")
        others = {str(record.get("sweep")) for record in self.records()} - {sweep}
        if others:
            self.close()
            raise UsageError(f"{path} holds results of {', '.join(others)}, not of {sweep}: give another --out")

    def append(self, record: Record) -> None:
        with _errors_name(self.file):
            self._out.write(json.dumps(record).encode() + b"\n")
            self._out.flush()
            os.fsync(self._out.fileno())

    def records(self) -> list[Record]:
        return list(read_records(self.file))

    def write_json(self, name: str, value: Any) -> None:
        self.write_text(name, json.dumps(value, indent=1) + "\n")

    def write_text(self, name: str, text: str) -> None:
        write_atomically(self.path / name, text)

    def close(self) -> None:
        with _errors_name(self.file):
            self._out.close()
        self._lock.close()


def read_records(path: pathlib.Path, bad_lines: list[int] | None = None, needed: str = "") -> Iterator[Record]:
    """The records of a file of JSON lines. Lines that are none, as the last one after a crash, or that do not hold what
    is `needed`, are left out, and their numbers added to `bad_lines`."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            record = from_json(line)
            if isinstance(record, dict) and (not needed or needed in record):
                yield record
            elif line.strip() and bad_lines is not None:
                bad_lines.append(number)


def from_json(text: str | bytes) -> Any:
    """None where it is no JSON, or nested deeper than Python reads."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _end_last_line(path: pathlib.Path) -> None:
    """Takes away a last line that a crash has cut, so that the next record stands on a line of its own."""
    data = path.read_bytes() if path.exists() else b""
    last = data[data.rfind(b"\n") + 1 :]
    if isinstance(from_json(last), dict):
        with open(path, "ab") as file:
            file.write(b"\n")
    elif last:
        os.truncate(path, len(data) - len(last))


@contextlib.contextmanager
def _errors_name(path: pathlib.Path) -> Iterator[None]:
    """Errors of a disk, as where it is full, name no file, or one that is only temporary."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def write_atomically(path: pathlib.Path, text: str) -> None:
    write_bytes_atomically(path, text.encode())


def write_bytes_atomically(path: pathlib.Path, data: bytes) -> None:
    """Nothing is left where the disk does not take it, or where Ctrl-C comes between."""
    if path.exists() and not path.is_file():  # a device or a pipe
        path.write_bytes(data)
        return
    temporary = path.with_name(path.name + ".tmp")
    try:
        with _errors_name(path), open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
