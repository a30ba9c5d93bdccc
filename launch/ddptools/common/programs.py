"""Where the programs are that the tools start, and what they answer."""

import pathlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from ddptools.common.errors import UsageError

ROOT = pathlib.Path(__file__).resolve().parents[3]
if not (ROOT / "configs").exists():  # installed
    ROOT = ROOT / "share" / "ddptrain"


def program_folder(given: pathlib.Path | None) -> pathlib.Path:
    """`--bin`, else the folder through which this tool was called, else the default build folder."""
    if given is not None:
        if not given.is_dir():
            raise UsageError(f"--bin {given}: there is no such folder")
        return given.absolute()
    beside = pathlib.Path(sys.argv[0]).absolute().parent
    return beside if (beside / "ddptrain").exists() else ROOT / "build" / "bin"


def answer(command: list[str], timeout_seconds: float | None = 60.0, **settings) -> subprocess.CompletedProcess[str]:
    """What a program says that is started with no input; with the errors of subprocess.run."""
    settings |= {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace"}
    return subprocess.run(command, timeout=timeout_seconds, **settings)


def ask(command: list[str], timeout_seconds: float = 60.0) -> str | None:
    """What a program prints; None where it is not there or fails."""
    try:
        done = answer(command, timeout_seconds)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def flag_arguments(flags: Mapping[str, Any]) -> list[str]:
    """One word each, so that a value may begin with a dash. A recipe is looked for where the user stands, then in the
    repository."""
    recipe = str(flags.get("config", ""))
    if recipe and not pathlib.Path(recipe).exists() and (ROOT / recipe).exists():
        flags = dict(flags) | {"config": ROOT / recipe}
    return [f"--{name}={value}" for name, value in flags.items()]
