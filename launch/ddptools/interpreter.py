"""Which Python runs the tools: one for which the modules that they need are installed."""

import importlib.util
import os
import sys

from ddptools.errors import UsageError

SYSTEM_PYTHON = "/usr/bin/python3"  # for which the distribution's packages are


def use_one_with(*modules: str) -> None:
    """Returns where this one has them; else the program starts again in the distribution's."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if not missing:
        return
    if os.path.realpath(sys.executable) != os.path.realpath(SYSTEM_PYTHON) and os.path.exists(SYSTEM_PYTHON):
        sys.stdout.flush()
        os.execv(SYSTEM_PYTHON, [SYSTEM_PYTHON, *sys.argv])
    packages = " ".join(f"python3-{name}" for name in missing)
    raise UsageError(f"there is no {' and no '.join(missing)}: install {packages} (launch/setup does)")
