"""Which Python runs the tools: one for which matplotlib is installed."""

import importlib.util
import os
import sys

from ddptools.errors import UsageError

SYSTEM_PYTHON = "/usr/bin/python3"  # for which the distribution's packages are


def use_one_with_matplotlib() -> None:
    """Returns where this one has it; else the program starts again in the distribution's."""
    if importlib.util.find_spec("matplotlib") is not None:
        return
    if os.path.realpath(sys.executable) != os.path.realpath(SYSTEM_PYTHON) and os.path.exists(SYSTEM_PYTHON):
        sys.stdout.flush()
        os.execv(SYSTEM_PYTHON, [SYSTEM_PYTHON, *sys.argv])
    raise UsageError("there is no matplotlib: install python3-matplotlib (launch/setup does)")
