"""How the tools end: one message on standard error, and an exit code."""

import sys
from collections.abc import Callable
from typing import Any, TextIO

from ddptools.common.text import one_line, without_controls


class UsageError(Exception):
    """What the user can put right; ends the program with exit code 2."""


class VisibleText:
    """A stream that gets no characters which control a terminal: names of files may have them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(without_controls(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def run_program(name: str, main: Callable[[list[str]], int]) -> int:
    """Also says what no part of a tool needs to say: which file cannot be used, and which module is missing."""
    sys.stdout, sys.stderr = VisibleText(sys.stdout), VisibleText(sys.stderr)  # type: ignore[assignment]
    try:
        return main(sys.argv[1:])
    except UsageError as error:
        reason = str(error)
    except ModuleNotFoundError as error:
        reason = f"{sys.executable} has no {error.name}: install python3-{error.name} (launch/setup does)"
    except BrokenPipeError:  # the reader of a pipe has gone, as head does
        sys.stderr.close()
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        reason = f"{error.filename}: {error.strerror}"
    print(f"{name}: {one_line(reason)}", file=sys.stderr)
    return 2
