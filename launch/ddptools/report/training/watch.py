"""ddpreport --watch: the page of runs that go on."""

import contextlib
import os
import pathlib
import stat
import time
from collections.abc import Callable

from ddptools.common.errors import UsageError
from ddptools.common.text import duration
from ddptools.report.training.runs import TrainingRun, are_runs, has_whole_line, load_runs

POLL_SECONDS = 1.0
REFRESH_SECONDS = 5  # after which the browser reads the page again
GONE_SECONDS = 60.0  # in which a run whose process has ended may be started again
SILENT_SECONDS = 600.0  # after which a run that no process of this host writes counts as ended: it may be on another host


def check_watched(paths: list[pathlib.Path]) -> None:
    """UsageError unless these are files of ddptrain --metrics: of a sweep, nothing is followed. Files that do not exist
    yet, or have no whole line yet, may become such files."""
    known = [path for path in paths if path.exists() and (not path.is_file() or has_whole_line(path))]
    if known and not are_runs(known):
        raise UsageError(f"{known[0]}: give files of ddptrain --metrics to follow")


class Followed:
    """Files of runs that go on. Tells which of these will not go on, as far as this host can tell."""

    def __init__(self, paths: list[pathlib.Path]) -> None:
        self._paths = paths
        self._written_here: set[pathlib.Path] = set()  # by a process of this host, which had the file open
        self._seen: list[tuple[int, int, int] | None] = []

    def have_changed(self) -> bool:
        """Since the last call; True at first."""
        found = [_state(path) for path in self._paths]
        if found == self._seen:
            return False
        self._seen = found
        unknown = [path for path in self._paths if path not in self._written_here]
        self._written_here.update(path for path in unknown if _has_writer(path))
        return True

    def end_of(self, run: TrainingRun, path: pathlib.Path) -> str:
        """Why nothing more will come of the run; empty while it may go on."""
        if run.summary is not None:
            return "complete"
        try:
            silent_seconds = time.time() - path.stat().st_mtime
        except FileNotFoundError:
            return ""  # it may still come
        patience = GONE_SECONDS if path in self._written_here else SILENT_SECONDS
        if silent_seconds < patience or _has_writer(path):
            return ""
        return f"{run.end}: no process of this host writes it, and the last line came {duration(round(silent_seconds))} ago"


def watch(paths: list[pathlib.Path], write: Callable[[list[TrainingRun], int], None]) -> str:
    """Calls `write` with the runs, and with the seconds until the browser should read the page again, whenever a file
    has changed. Returns how it ended: every run has ended, or Ctrl-C. Then the page is not read again."""
    followed = Followed(paths)
    runs: list[TrainingRun] = []
    try:
        while True:
            have_changed = followed.have_changed()
            if have_changed:
                runs = load_runs(paths, may_be_missing=True)
            ends = [followed.end_of(run, path) for run, path in zip(runs, paths)]
            if all(ends):
                write(runs, 0)
                return f"training runs: {len(runs)}, {', '.join(dict.fromkeys(ends))}"
            if have_changed:
                write(runs, REFRESH_SECONDS)
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


def _has_writer(path: pathlib.Path) -> bool:
    """Whether a process of this host has the file open to write it. Those of other users may be hidden."""
    try:
        wanted = path.stat()
    except FileNotFoundError:
        return False
    for link in pathlib.Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.path.samestat(link.stat(), wanted) and link.lstat().st_mode & stat.S_IWUSR:
                return True
    return False
