"""How the tools end: one message on standard error, and an exit code."""

import sys
from collections.abc import Callable


class UsageError(Exception):
    """What the user can put right; ends the program with exit code 2."""


def run_program(name: str, main: Callable[[list[str]], int]) -> int:
    try:
        return main(sys.argv[1:])
    except UsageError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of a pipe has gone, as head does
        sys.stderr.close()
        return 1
