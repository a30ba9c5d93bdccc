"""Files of JSON lines, and files that are written whole or not at all."""

import contextlib
import json
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from ddptools.common.errors import UsageError
from ddptools.common.text import one_line

Record = dict[str, Any]
# What UTF-8 cannot hold: Python's form of other bytes in a command line, and halves of characters in JSON.
SURROGATES = re.compile("[\ud800-\udfff]")


def no_pipe(path: pathlib.Path) -> pathlib.Path:
    """A pipe gives its text only once, and may give nothing for ever."""
    if path.is_fifo():
        raise UsageError(f"{path}: is a pipe, and a file is needed. Write into a file first.")
    return no_device(path)


def no_device(path: pathlib.Path) -> pathlib.Path:
    """A device may have no end."""
    if path.is_char_device() or path.is_block_device():
        raise UsageError(f"{path}: is a device, and a file is needed")
    return path


def read_records(path: pathlib.Path, bad_lines: list[int] | None = None, needed: str | tuple[str, ...] = ()) -> Iterator[Record]:
    """The records of a file of JSON lines. Lines that are none, as the last one after a crash, or that do not hold what
    is `needed`, are left out, and their numbers added to `bad_lines`."""
    fields = (needed,) if isinstance(needed, str) else needed
    with open(no_pipe(path), "rb") as file:
        for number, line in enumerate(file, 1):
            record = from_json(line)
            if isinstance(record, dict) and all(record.get(field) is not None for field in fields):
                yield record
            elif line.strip() and bad_lines is not None:
                bad_lines.append(number)


def unread_text(bad_lines: list[int]) -> str:
    """About lines that read_records() left out."""
    numbers = ", ".join(map(str, bad_lines[:5])) + (", ..." if len(bad_lines) > 5 else "")
    lines = f"{len(bad_lines)} line{'s' if len(bad_lines) > 1 else ''}"
    return f"{lines} could not be read and left out (line {numbers})"


def short_names(paths: list[pathlib.Path]) -> list[str]:
    """The ends of the paths, as long as tells them apart."""
    for parts in range(1, max((len(path.parts) for path in paths), default=0) + 1):
        names = [one_line("/".join(path.parts[-parts:])) for path in paths]
        if len(set(names)) == len(paths):
            return names
    return [f"{path} ({i})" for i, path in enumerate(paths, 1)]


def from_json(text: str | bytes) -> Any:
    """None where it is no JSON, or nested deeper than Python reads."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


@contextlib.contextmanager
def errors_name(path: pathlib.Path) -> Iterator[None]:
    """Errors of a disk, such as a full one, name no file, or only a temporary one."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def write_atomically(path: pathlib.Path, text: str | bytes) -> None:
    """Nothing is left if the disk does not take it, or if Ctrl-C comes in between. A text has U+FFFD in place of what
    UTF-8 cannot hold."""
    data = SURROGATES.sub("\ufffd", text).encode() if isinstance(text, str) else text
    if path.exists() and not path.is_file():  # a device or a pipe
        with errors_name(path):
            path.write_bytes(data)
        return
    temporary = path.with_name(path.name + ".tmp")
    try:
        with errors_name(path), open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
