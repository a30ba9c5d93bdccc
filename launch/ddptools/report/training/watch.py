"""ddpreport --watch: the page of runs that go on."""

import pathlib
import time
from collections.abc import Callable

from ddptools.common.errors import UsageError
from ddptools.report.training.runs import TrainingRun, are_runs, load_runs

POLL_SECONDS = 1.0
REFRESH_SECONDS = 5  # after which the browser reads the page again


def check_watched(paths: list[pathlib.Path]) -> None:
    """UsageError unless these are files of ddptrain --metrics: of a sweep, nothing is followed. Files that do not exist
    yet, or are empty, may become such files."""
    known = [path for path in paths if path.exists() and (not path.is_file() or path.stat().st_size > 0)]
    if known and not are_runs(known):
        raise UsageError(f"{known[0]}: give files of ddptrain --metrics to follow")


def watch(paths: list[pathlib.Path], write: Callable[[list[TrainingRun], int], None]) -> str:
    """Calls `write` with the runs, and with the seconds until the browser should read the page again, whenever a file
    has changed. Returns how it ended: every run has its summary, or Ctrl-C. Then the page is not read again."""
    seen: list[tuple[int, int, int] | None] = []
    try:
        while True:
            found = [_state(path) for path in paths]
            if found != seen:
                runs = load_runs(paths, may_be_missing=True)
                is_over = all(run.summary is not None for run in runs)
                write(runs, 0 if is_over else REFRESH_SECONDS)
                if is_over:
                    return f"training runs: {len(runs)}, complete"
                seen = found
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        runs = load_runs(paths, may_be_missing=True)
        write(runs, 0)
        return f"training runs: {len(runs)}, {', '.join(dict.fromkeys(run.end for run in runs))}"


def _state(path: pathlib.Path) -> tuple[int, int, int] | None:
    """Changes with the file; None where there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
