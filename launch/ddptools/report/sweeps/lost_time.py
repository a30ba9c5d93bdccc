"""Where the time of a step went: its parts against the same step of one rank alone, which add up to what was lost."""

import collections
import dataclasses
import statistics

from ddptools.common.table import Table
from ddptools.common.text import measured, percent
from ddptools.common.values import positive
from ddptools.report.sweeps.experiment import Case, Experiment
from ddptools.report.sweeps.tables import MOST_ROWS
from ddptools.results.efficiency import DISTURBED, TOO_NOISY, Efficiency

EXPOSED = "exposed communication"
TOGETHER = "contention"
STRAGGLERS = "stragglers"
SLOWED_DOWN = "compute slowed down by communication"
WAITING = "waiting for communication"

FIELDS = {EXPOSED: "exposed_comm_us", TOGETHER: "together_us", STRAGGLERS: "stragglers_us", SLOWED_DOWN: "slowed_down_us",
          WAITING: "waiting_us"}  # fmt: skip

ONE_RANK = "single-rank baseline"


@dataclasses.dataclass
class Loss:
    label: str  # of the case
    ranks: int
    step_seconds: float
    useful_seconds: float  # of the single-rank baseline
    part_seconds: dict[str, float]  # which add up to what a step is longer than useful
    slowest: str = ""  # which rank, in words, if its distance is more than noise
    half_width_seconds: dict[str, float] = dataclasses.field(default_factory=dict)  # 95% intervals, as far as known
    efficiency: Efficiency | None = None  # that the jobs measured

    def is_noise(self, name: str) -> bool:
        """Whether the interval of this part, or of exposed communication as a whole, is known and includes 0."""
        exposed = sum(self.part_seconds.get(half, 0.0) for half in (EXPOSED, SLOWED_DOWN, WAITING))
        seconds = exposed if name == EXPOSED else self.part_seconds.get(name, 0.0)
        half_width = self.half_width_seconds.get(name)
        return half_width is not None and abs(seconds) <= half_width

    @property
    def by_others(self) -> bool:
        """Whether other programs disturbed its measurement."""
        return self.efficiency is not None and self.efficiency.by_others

    @property
    def marks(self) -> list[str]:
        return self.efficiency.marks if self.efficiency else []

    @property
    def marked_label(self) -> str:
        """Of a row or a bar: all its parts are not to be trusted if a run was disturbed."""
        return f"{self.label}, {DISTURBED}" if DISTURBED in self.marks else self.label

    @property
    def is_beyond_noise(self) -> bool:
        """Whether the step is longer than that of one rank, as far as the interval of the efficiency tells."""
        if self.efficiency is None or self.efficiency.limits is None:
            return self.share > 0
        return self.efficiency.limits[1] < 1.0

    @property
    def share(self) -> float:
        return 1 - self.useful_seconds / self.step_seconds

    @property
    def credible(self) -> bool:
        """Not of a damaged record: what could not even be drawn."""
        parts = (self.useful_seconds, *self.part_seconds.values())
        return self.useful_seconds > 0 and all(abs(part) < 1e6 * self.step_seconds for part in parts)


def losses(experiment: Experiment) -> list[Loss]:
    found = (loss_of(case, experiment.label(case)) for case in experiment.measured)
    return sorted(filter(None, found), key=lambda loss: loss.ranks)


def loss_of(case: Case, label: str) -> Loss | None:
    """See docs/concepts/measuring.md. None where its runs did not measure it, and for damaged records."""
    step, efficiency = case.medians("step_seconds"), case.medians("scaling_efficiency")
    silent, mean = (case.medians(f"step_seconds_without_communication{of_ranks}") for of_ranks in ("", "_mean"))
    if not step or step <= 0 or not efficiency or efficiency <= 0 or not silent or not mean or case.ranks < 2:
        return None
    alone = step * efficiency
    slowed_down = case.medians("slowed_down_us")  # of runs that tell both parts of what is exposed
    parts = {EXPOSED: step - silent}
    if slowed_down is not None:
        parts = {SLOWED_DOWN: 1e-6 * slowed_down, WAITING: step - silent - 1e-6 * slowed_down}
    parts |= {TOGETHER: mean - alone, STRAGGLERS: silent - mean}
    widths = {name: 1e-6 * us for name, field in FIELDS.items() if (us := case.half_width(field)) is not None}
    loss = Loss(label, case.ranks, step, alone, parts, half_width_seconds=widths, efficiency=case.efficiency())
    if not loss.is_noise(STRAGGLERS) and not loss.by_others:
        loss.slowest = _slowest_rank(case)
    return loss if loss.credible else None


def _slowest_rank(case: Case) -> str:
    above: list[tuple[int, float]] = []  # of each run the slowest rank, and how far it is above the mean
    for run in case.runs:
        seconds = run.summary.get("step_seconds_without_communication_per_rank")
        known = [positive(value) for value in seconds] if isinstance(seconds, list) else []
        if len(known) < 2 or None in known:
            continue
        above_mean = max(known) - statistics.mean(known)
        slowest, mean = (positive(run.summary.get(f"step_seconds_without_communication{end}")) for end in ("", "_mean"))
        if slowest is not None and mean is not None and 2 * above_mean < slowest - mean:
            continue  # ranks are slowest by turns
        above.append((known.index(max(known)), above_mean / statistics.mean(known)))
    rank, times = collections.Counter(rank for rank, _ in above).most_common(1)[0] if above else (0, 0)
    if 2 * times <= len(above):  # another one each time: chance
        return ""
    often = f" in {times} of {len(above)} runs" if len(above) > 1 else ""
    share = percent(statistics.median(share for one, share in above if one == rank))
    return f"rank {rank}{often}, {share} above the mean"


def drawn_parts(loss: Loss) -> dict[str, float] | None:
    """Seconds that a bar can show, none below 0: they add up to the step. The halves of exposed communication are one
    part if one of them is negative; other negative parts shorten the baseline's. None if more is negative than it has."""
    parts = loss.part_seconds
    halves = [parts[name] for name in (SLOWED_DOWN, WAITING) if name in parts]
    if min(halves, default=0.0) < 0:
        parts = {EXPOSED: sum(halves)} | {name: seconds for name, seconds in parts.items() if name not in (SLOWED_DOWN, WAITING)}
    useful = loss.useful_seconds + sum(min(0.0, seconds) for seconds in parts.values())
    return None if useful < 0 else {ONE_RANK: useful} | {name: max(0.0, seconds) for name, seconds in parts.items()}


def lost_time_words(found: list[Loss]) -> str:
    """Of the case that loses the largest share, without those that other programs disturbed."""
    usable = [loss for loss in found if not loss.by_others]
    if not usable:
        return "Other programs disturbed all of these measurements, so what is lost, and why, is not known."
    left_out = " Measurements that other programs disturbed are left out." if len(usable) < len(found) else ""
    return _most_lost(usable) + left_out


def _most_lost(found: list[Loss]) -> str:
    """Among those that lose more than the noise. Like the summary of ddptrain, names the causes that are more than noise."""
    if max(loss.share for loss in found) <= 0:
        return f"No step takes longer than its reference ({ONE_RANK})."
    worst = max((loss for loss in found if loss.is_beyond_noise), key=lambda loss: loss.share, default=None)
    if worst is None:
        return f"No step takes longer than its reference ({ONE_RANK}) by more than the noise."
    unit, factor = time_unit([worst])
    text = f"Most is lost with {worst.label}: {percent(worst.share)} of {measured(factor * worst.step_seconds)} {unit}"
    causes = ", ".join(f"{name} {percent(share)}" for name, share in _causes(worst).items())
    if not causes:
        return f"{text}. No single cause is more than the noise."
    return f"{text} ({causes})." + (f" Its slowest rank is {worst.slowest}." if worst.slowest else "")


def _causes(loss: Loss) -> dict[str, float]:
    """Shares of the step. The halves of exposed communication are one cause if only their sum is more than noise."""
    parts = loss.part_seconds
    if WAITING in parts and loss.is_noise(SLOWED_DOWN) and loss.is_noise(WAITING):
        halves = (SLOWED_DOWN, WAITING)
        parts = {EXPOSED: sum(parts[name] for name in halves)} | {n: s for n, s in parts.items() if n not in halves}
    shares = {name: seconds / loss.step_seconds for name, seconds in parts.items() if not loss.is_noise(name)}
    return {name: share for name, share in shares.items() if abs(share) >= 5e-4}


def lost_time_table(found: list[Loss]) -> Table:
    names = part_names(found)
    unit, factor = time_unit(found)
    header = ["case", *(f"{name}, {unit}" for name in ("step", ONE_RANK, *names)), "efficiency"]
    rows = []
    for loss in found[:MOST_ROWS]:
        whole = [measured(factor * seconds) for seconds in (loss.step_seconds, loss.useful_seconds)]
        efficiency = percent(1 - loss.share) + (f", {TOO_NOISY}" if TOO_NOISY in loss.marks else "")
        rows.append([loss.marked_label, *whole, *(_part_text(loss, name, factor) for name in names), efficiency])
    return Table("The time of a step and its parts.", header, rows)


def _part_text(loss: Loss, name: str, factor: float) -> str:
    seconds, half_width = loss.part_seconds.get(name), loss.half_width_seconds.get(name)
    if seconds is None:
        return ""
    return measured(factor * seconds, None if half_width is None else factor * half_width)


def time_unit(found: list[Loss]) -> tuple[str, float]:
    """In which the steps are read best, and how many of it a second has."""
    return ("us", 1e6) if statistics.median(loss.step_seconds for loss in found) < 1e-3 else ("ms", 1e3)


def part_names(found: list[Loss]) -> list[str]:
    return list(dict.fromkeys(name for loss in found for name in loss.part_seconds))
