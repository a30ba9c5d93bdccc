"""How the tools end: one message on standard error, and an exit code."""

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from ddptools.common.text import one_line, without_controls


class UsageError(Exception):
    """What the user can put right; ends the program with exit code 2."""


FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # output that was not written: exit code 1


class VisibleText:
    """A stream that gets no characters which control a terminal: names of files may have them. Its errors name it."""

    def __init__(self, stream: TextIO | None, name: str) -> None:
        self._stream = stream  # None: closed when the program started
        self.name = name
        self._error: OSError | None = None  # the first one: argparse passes over those of --help

    def write(self, text: str) -> int:
        with self._errors_name():
            if self._stream is None:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            return self._stream.write(without_controls(text))

    def flush(self) -> None:
        with self._errors_name():
            if self._stream is not None:
                self._stream.flush()

    def finish(self) -> None:
        """OSError if something was not written."""
        self.flush()
        if self._error is not None:
            raise self._error

    def discard_rest(self) -> None:
        """Of a stream that takes no more: Python would write it at its end, and change the exit code."""
        with contextlib.suppress(OSError):
            self.flush()
            return
        with contextlib.suppress(OSError, ValueError):  # it has no descriptor, as in tests
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    @contextlib.contextmanager
    def _errors_name(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = self.name
            self._error = self._error or error
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def run_program(name: str, main: Callable[[list[str]], int]) -> int:
    """Also says what no part of a tool needs to say: which file cannot be used, and which module is missing."""
    out = VisibleText(sys.stdout, "standard output")
    errors = VisibleText(sys.stderr or open(os.devnull, "w"), "standard error")
    sys.stdout, sys.stderr = out, errors  # type: ignore[assignment]
    try:
        return _run(main, out)
    except UsageError as error:
        code, reason = 2, str(error)
    except ModuleNotFoundError as error:
        code, reason = 2, f"{sys.executable} has no {error.name}: install python3-{error.name} (launch/setup does)"
    except BrokenPipeError:  # the reader of a pipe has gone, as head does
        code, reason = 1, ""
    except OSError as error:
        if error.filename is None:
            raise
        is_output = error.errno in FULL_DISK or error.filename in (out.name, errors.name)
        code, reason = 1 if is_output else 2, f"{error.filename}: {error.strerror}"
    if reason:
        with contextlib.suppress(OSError):  # the exit code remains
            print(f"{name}: {one_line(reason)}", file=errors)
    out.discard_rest()
    errors.discard_rest()
    return code


def _run(main: Callable[[list[str]], int], out: VisibleText) -> int:
    """Its exit code, when standard output is written."""
    try:
        code = main(sys.argv[1:])
    except SystemExit:  # --help
        out.finish()
        raise
    out.finish()
    return code
