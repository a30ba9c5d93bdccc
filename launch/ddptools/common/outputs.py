"""The check of files that a program writes. Its rule and messages are those of runtime/core/files/outputs.h."""

import dataclasses
import errno
import glob
import os
import pathlib
from collections.abc import Iterable

from ddptools.common.errors import UsageError

MOST_READ = 4096  # of a file, to see what it is


@dataclasses.dataclass(frozen=True)
class Kind:
    """Files that a program of this project writes, without white space."""

    beginnings: tuple[bytes, ...] = ()
    contains: bytes = b""  # near the beginning


PAGE = Kind(contains=b'<metaname="generator"content="ddpreport">')
MARKDOWN = Kind(contains=b"<!--ddpreport-->")
CSV = Kind((b"table,run,", b"table,experiment,"))
PICTURE = Kind((b"\x89PNG", b"<?xml"), b"ddptrain")
PLAN = Kind((b'{"case":{"work":{"model":', b'{"meshes":[{"mesh":{"replicas":'))


@dataclasses.dataclass(frozen=True)
class Output:
    flag: str
    path: pathlib.Path | None
    kind: Kind

    def is_own(self) -> bool:
        """Whether no content of others would be lost."""
        if not os.path.isfile(self.path) or os.path.getsize(self.path) == 0:
            return True
        with open(self.path, "rb") as file:
            text = b"".join(file.read(MOST_READ).split())
        return (not self.kind.beginnings or text.startswith(self.kind.beginnings)) and self.kind.contains in text


@dataclasses.dataclass(frozen=True)
class Input:
    flag: str
    path: pathlib.Path


def check_outputs(outputs: Iterable[Output], inputs: Iterable[Input], force: bool) -> None:
    """UsageError if an output is an input, is another output, or is a file that no program of this project wrote."""
    earlier: list[Output] = []
    for output in outputs:
        if output.path is None:
            continue
        if _is_device(output.path):
            _check_pipe(output)
            continue
        is_own = output.is_own()
        for file in inputs:
            _check_input(output, file, is_own)
        for other in earlier:
            if _is_same(other.path, output.path):
                raise UsageError(f"{output.flag} {output.path}: {other.flag} writes this file, too. Give another name.")
        earlier.append(output)
        if not is_own and not force:
            raise UsageError(
                f"{output.flag} {output.path}: the file exists, and was not written as {output.flag} of an earlier run. "
                "Give another name, or --force to overwrite it."
            )


def _check_input(output: Output, file: Input, is_own: bool) -> None:
    for path in glob.glob(str(file.path)) or [file.path]:
        if _is_same(path, output.path):
            raise UsageError(f"{output.flag} {output.path}: {file.flag} reads this file. Give another name.")
        if os.path.isdir(path) and os.path.exists(output.path) and not is_own and _is_in(output.path, path):
            raise UsageError(f"{output.flag} {output.path}: {file.flag} reads the folder of this file. Give another name.")


def _check_pipe(output: Output) -> None:
    """UsageError if no program reads the pipe, because opening it would wait for one. It stays open to the end, so that
    its reader waits."""
    if not output.path.is_fifo():
        return
    try:
        os.open(output.path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise UsageError(
                f"{output.flag} {output.path}: no program reads this pipe, and writing would wait for one. "
                "Start its reader first."
            ) from None


def _is_device(path: pathlib.Path) -> bool:
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _is_same(a: str | pathlib.Path, b: str | pathlib.Path) -> bool:
    """Links and other names of the same file count as the file."""
    if os.path.realpath(a) == os.path.realpath(b):
        return True
    return os.path.exists(a) and os.path.exists(b) and os.path.samefile(a, b)


def _is_in(path: pathlib.Path, folder: str | pathlib.Path) -> bool:
    whole, around = pathlib.Path(os.path.realpath(path)), pathlib.Path(os.path.realpath(folder))
    return whole.is_relative_to(around) or any(_is_same(entry.path, path) for entry in os.scandir(folder))
