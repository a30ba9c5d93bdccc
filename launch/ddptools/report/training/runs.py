"""What files of ddptrain --metrics say of training runs."""

import dataclasses
import functools
import itertools
import math
import pathlib
import re

from ddptools.common.errors import UsageError
from ddptools.common.files import Record, read_records, short_names
from ddptools.common.values import finite, positive, table_of
from ddptools.results.efficiency import Efficiency, efficiency_of
from ddptools.results.run import why_unusable

MOST_RUNS = 10  # on a page
JSON_SUFFIX = re.compile(r"\.jsonl?(?=\.|$)")  # also of m.jsonl.g2
GROUP_SUFFIX = re.compile(r"\.g\d+")  # behind the names of files of launch/local-groups, but for its first group
MOST_FIRST_LINES = 3  # that tell what a file is: the first one may be cut
WRITTEN_TO = ("metrics", "tensorboard")  # flags, also of older runs, that say where a run writes, not what it does


Point = tuple[int, float, float]  # step, seconds since the run began, value


@dataclasses.dataclass
class TrainingRun:
    """A run from its first start on, with those that resumed it: what they did again is left out."""

    name: str
    lines: list[Record] = dataclasses.field(default_factory=list)
    start: Record = dataclasses.field(default_factory=dict)  # the newest
    summary: Record | None = None
    interruption: Record | None = None
    restarts: list[Record] = dataclasses.field(default_factory=list)
    evaluation: Record | None = None  # the last one of its weights, by ddptrain --evaluate
    generations: list[Record] = dataclasses.field(default_factory=list)  # by ddptrain --generate
    bad_lines: list[int] = dataclasses.field(default_factory=list)  # their numbers
    began: float | None = None  # Unix time

    def add(self, line: Record) -> None:
        event = line["event"]
        if event == "start":
            self.start, self.summary, self.interruption = line, None, None
        elif event == "restart":
            self.restarts.append(line)
            self.lines = [earlier for earlier in self.lines if step_of(earlier) <= step_of(line)]
        elif event == "summary":
            self.summary = line
        elif event == "interrupted":
            self.interruption = line
        elif event == "evaluated":
            self.evaluation = line
        elif event == "generated":
            self.generations.append(line)
        elif event in ("step", "epoch", "evaluation", "exchange", "sample"):
            if not self._repeats(line):
                self.lines.append(line)
        if self.began is None:
            self.began = finite(line.get("time"))

    def _repeats(self, line: Record) -> bool:
        """A resumed run writes the lines of its checkpoint's step again, without what only the first run measured."""
        resumed_here = bool(self.restarts) and step_of(self.restarts[-1]) == step_of(line)
        return resumed_here and any(_place_of(old) == _place_of(line) for old in self.lines)

    @property
    def unit(self) -> str:
        """images or tokens"""
        known = [self.summary or {}, *reversed(self.lines)]
        names = (name for line in known for name in line if name.endswith("s_per_second"))
        return next(names, "images_per_second").removesuffix("_per_second")

    @property
    def steps(self) -> int:
        return max((step_of(line) for line in self.lines), default=0)

    @property
    def has_training(self) -> bool:
        """False of a file that only other tasks have written to."""
        return bool(self.start or self.lines or self.summary)

    @property
    def end(self) -> str:
        if self.summary is not None:
            return "complete"
        if self.interruption is not None:
            return f"ended by {self.interruption.get('signal', 'a signal')}"
        return "not complete"

    @property
    def disturbed(self) -> str:
        """Why its efficiency and the parts of its step are not to be trusted; empty: nothing is known against them."""
        return why_unusable(self.summary or {})

    @property
    def efficiency(self) -> Efficiency | None:
        """None of one rank, and where it was not measured."""
        is_alone = finite((self.summary or self.start).get("world_size")) == 1
        return None if self.summary is None or is_alone else efficiency_of([self.summary])

    @property
    def counted(self) -> str:
        """What a step line counts besides steps: samples, or tokens of language models."""
        return "tokens" if self.unit == "tokens" else "samples"

    @functools.cached_property
    def counted_per_step(self) -> float | None:
        """By the newest line that tells, or by the batch; None where neither is known."""
        for line in reversed(self.lines):
            count = positive(line.get(self.counted))
            if count is not None and step_of(line) > 0:
                return count / step_of(line)
        return self._batch() if self.counted == "samples" else None

    def _batch(self) -> float | None:
        """Samples of all ranks in a step, of a run whose ranks are replicas."""
        flags = table_of(self.start.get("configuration"))
        if any(str(flags.get(name, "1")).strip('"') != "1" for name in ("pp", "tp")):
            return None
        replicas = positive(self.start.get("virtual_ranks")) or positive(self.start.get("world_size"))
        batch, micro_steps = (positive(self.start.get(name)) for name in ("batch_per_rank", "grad_accum"))
        return None if None in (replicas, batch, micro_steps) else replicas * batch * micro_steps

    @property
    def took(self) -> float | None:
        """Seconds from the first start to the last line, with breaks; None where no line tells its time."""
        known = [*self.lines, *filter(None, [self.summary, self.interruption])]
        return max((s for line in known if math.isfinite(s := self.seconds(line))), default=None)

    def curve(self, field: str, *events: str) -> list[Point]:
        """The field of lines of these kinds, where it is a number; of several with the same step the last one."""
        points: dict[int, Point] = {}
        for line in self.lines:
            value = finite(line.get(field))
            if line["event"] in events and value is not None:
                points[step_of(line)] = (step_of(line), self.seconds(line), value)
        return [points[step] for step in sorted(points)]

    def seconds(self, line: Record) -> float:
        time = finite(line.get("time"))
        return math.nan if time is None or self.began is None else time - self.began

    def configuration(self) -> dict[str, str]:
        skipped = ("event", "time", "environment", "configuration", "gradient_path_reason")
        flags, environment = (table_of(self.start.get(name)) for name in ("configuration", "environment"))
        told = {f"--{name}": str(value).strip('"') for name, value in flags.items() if name not in WRITTEN_TO}
        new = (name for name in self.start if name not in skipped and f"--{name.replace('_', '-')}" not in told)
        found = {name: str(self.start[name]) for name in new}
        return told | {str(name): str(value) for name, value in environment.items()} | found


def step_of(line: Record) -> int:
    return int(finite(line.get("step")) or 0)


def _place_of(line: Record) -> tuple[object, int, float | None]:
    """Differs between the lines of a run. Samples of a step have numbers."""
    return line["event"], step_of(line), finite(line.get("number"))


def are_runs(paths: list[pathlib.Path]) -> bool:
    """Whether these are files of ddptrain --metrics, by their first lines. UsageError for files of both kinds, and for a
    file of which no line can be read."""
    kinds = {path: path.is_file() and _is_run(path) for path in paths}
    if not any(kinds.values()):
        return False
    others = [str(path) for path, is_run in kinds.items() if not is_run]
    if others:
        files = ", ".join(others)
        raise UsageError(f"{files}: no file of ddptrain --metrics, as the others are: give one kind at a time")
    return True


def _is_run(path: pathlib.Path) -> bool:
    firsts = list(itertools.islice(read_records(path), MOST_FIRST_LINES))
    if not firsts:
        why = "not a line of it can be read: it is cut, or another kind of file" if has_content(path) else "the file is empty"
        raise UsageError(f"{path}: {why}. Give a file of ddptrain --metrics, or a folder of ddpsweep")
    return any(isinstance(first.get("event"), str) for first in firsts)


def has_content(path: pathlib.Path) -> bool:
    with open(path, "rb") as file:
        return any(line.strip() for line in file)


def has_whole_line(path: pathlib.Path) -> bool:
    with open(path, "rb") as file:
        return file.readline().endswith(b"\n")


def load_runs(paths: list[pathlib.Path], may_be_missing: bool = False) -> list[TrainingRun]:
    runs = []
    for path, name in zip(paths, _names(paths)):
        run = TrainingRun(name)
        if path.exists() or not may_be_missing:
            for line in read_records(path, run.bad_lines, needed="event"):
                run.add(line)
        runs.append(run)
    return runs


def _names(paths: list[pathlib.Path]) -> list[str]:
    """Of their runs: m.jsonl is m; with m.jsonl.g2, the file of another group, they are m.g1 and m.g2."""
    of_first_groups = {path.with_suffix("") for path in paths if GROUP_SUFFIX.fullmatch(path.suffix)}
    named = [path.with_name(f"{path.name}.g1") if path in of_first_groups else path for path in paths]
    short = [path.with_name(JSON_SUFFIX.sub("", path.name, count=1) or path.name) for path in named]
    return short_names(short if len(set(short)) == len(set(paths)) else paths)
