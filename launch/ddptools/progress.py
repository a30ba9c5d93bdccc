"""Progress of a sweep: a bar that is drawn over on a terminal, else a line per run."""

import shutil
import sys
import time


class Progress:
    def __init__(self, runs: int) -> None:
        self.runs = runs
        self.done = 0
        self.started = time.monotonic()
        self.measured = 0  # runs that took time
        self.terminal = sys.stderr.isatty()

    def tick(self, label: str, seconds: float) -> None:
        if not self.terminal:
            return
        width = shutil.get_terminal_size().columns - 1
        filled = 20 * self.done // max(1, self.runs)
        left = f", {duration(self.seconds_left())} left" if self.measured else ""
        text = f"[{'#' * filled}{'.' * (20 - filled)}] {self.done}/{self.runs}{left}  {duration(seconds)} {label}"
        sys.stderr.write(f"\r\033[K{text[:width]}")
        sys.stderr.flush()

    def finished(self, label: str, result: str, measured: bool) -> None:
        self.done += 1
        self.measured += measured
        if self.terminal:
            sys.stderr.write("\r\033[K")
        left = f"  ({duration(self.seconds_left())} left)" if self.measured and not self.terminal else ""
        print(f"[{self.done}/{self.runs}] {label}: {result}{left}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.terminal:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

    def seconds_left(self) -> float:
        return (time.monotonic() - self.started) / max(1, self.measured) * (self.runs - self.done)


def duration(seconds: float) -> str:
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60}:{seconds % 60:02} min"
    return f"{seconds // 3600}:{seconds % 3600 // 60:02} h"
