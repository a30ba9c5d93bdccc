"""The page that ddpreport writes of training runs."""

import dataclasses
import math
import statistics

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from ddptools.confusion import evaluation_blocks
from ddptools.page import Block, Heading, Notes
from ddptools.picture_file import Picture
from ddptools.plots import STYLE, finish
from ddptools.runs import Curve, TrainingRun, as_number, step_of
from ddptools.tables import Table
from ddptools.words import number, percent

MOST_POINTS = 2000  # of a curve
LOGARITHMIC = 20.0  # from this ratio of the largest to the smallest value on


@dataclasses.dataclass
class Quantity:
    """What a picture shows: a field of step lines as a line, one of tests as points."""

    name: str
    caption: str
    label: str
    field: str = ""
    tested: str = ""
    logarithmic: bool = False
    from_zero: bool = False
    scale: float = 1.0


def quantities(units: list[str]) -> list[Quantity]:
    rates = [
        Quantity(f"throughput {unit}", "Throughput of all ranks.", f"{unit}/s", f"{unit}_per_second", from_zero=True)
        for unit in dict.fromkeys(units)
    ]
    loss = "Loss: mean of the steps since the line before; points: of the test or validation data."
    exposed = "Communication that backward did not hide, per step."
    memory = "Memory in use on the GPU where most is."
    return [
        Quantity("loss", loss, "loss", "loss", "test_loss", logarithmic=True),
        Quantity("accuracy", "Accuracy on the test data.", "accuracy, %", tested="accuracy", scale=100.0),
        Quantity("learning rate", "Learning rate.", "learning rate", "learning_rate", from_zero=True),
        Quantity("gradient norm", "Norm of the gradient, before clipping.", "norm", "gradient_norm", logarithmic=True),
        *rates,
        Quantity("exposed communication", exposed, "ms", "exposed_comm_seconds", from_zero=True, scale=1e3),
        Quantity("memory", memory, "GB", "memory_used_bytes", from_zero=True, scale=1e-9),
        Quantity("clock", "Clock of the slowest GPU's multiprocessors, lowest reading.", "MHz", "sm_mhz_min"),
    ]


def blocks_of_runs(runs: list[TrainingRun]) -> list[Block]:
    notes = [
        f"{run.name}: {run.bad_lines} lines are cut or damaged, and left out." for run in runs if run.bad_lines > 0
    ]
    notes += [f"{run.name}: no steps: --log-every N writes a line each N steps." for run in runs if not _logged(run)]
    blocks: list[Block] = [Notes(notes)] if notes else []
    blocks += [Heading(2, "Runs"), run_table(runs), *words(runs)]
    drawn = run_pictures(runs)
    if drawn:
        blocks += [Heading(2, "Over steps and over time"), *drawn]
    for run in runs:
        blocks += evaluation_blocks(run.evaluations, f" of {run.name}" if len(runs) > 1 else "")
    return [*blocks, Heading(2, "Configuration"), configuration_table(runs)]


def _logged(run: TrainingRun) -> bool:
    return any(line["event"] == "step" for line in run.lines)


def words(runs: list[TrainingRun]) -> list[str]:
    best = {}
    for run in runs:
        tests = run.curve("test_loss", "epoch", "evaluation")
        if tests.values:
            lowest = min(range(len(tests.values)), key=lambda i: tests.values[i])
            best[run.name] = (tests.values[lowest], tests.steps[lowest])
    if not best:
        return []
    ranking = sorted(best, key=lambda name: best[name])
    told = [f"{name}: {best[name][0]:.4g} at step {best[name][1]}" for name in ranking]
    return [f"Lowest test loss: {'; '.join(told)}."]


def run_table(runs: list[TrainingRun]) -> Table:
    rows = []
    for run in runs:
        last = {line["event"]: line for line in run.lines}
        test = max((last[e] for e in ("epoch", "evaluation") if e in last), key=step_of, default={})
        rates = run.curve(f"{run.unit}_per_second", "step").values or run.curve(f"{run.unit}_per_second", "epoch").values
        rate = (run.summary or {}).get(f"{run.unit}_per_second") or (statistics.median(rates) if rates else None)
        seconds = [run.seconds(line) for line in [*run.lines, *filter(None, [run.summary, run.interruption])]]
        took = max((s for s in seconds if math.isfinite(s)), default=math.nan)
        last_loss = run.curve("loss", "step").values[-1:] or run.curve("last_loss", "epoch").values[-1:]
        rows.append([
            run.name, run.end, str(run.steps), str(len(run.restarts)),
            duration(took) if math.isfinite(took) else "",
            *(f"{value:.4f}" for value in last_loss or []), *([] if last_loss else [""]),
            _shown(test.get("test_loss"), lambda v: f"{v:.4f}"), _shown(test.get("accuracy"), percent),
            _shown(rate, lambda v: f"{number(v)} {run.unit}/s"),
        ])  # fmt: skip
    header = ["run", "", "steps", "restarts", "time", "last loss", "test loss", "accuracy", "throughput"]
    footnote = "Last loss: of the last line of steps. Throughput: median. Time: from the first start on, with breaks."
    return Table("What the runs came to.", header, rows, footnote)


def _shown(value: object, show) -> str:
    known = as_number(value)
    return "" if known is None else show(known)


def configuration_table(runs: list[TrainingRun]) -> Table:
    told = [run.configuration() for run in runs]
    names = list(dict.fromkeys(name for configuration in told for name in configuration))
    if len(runs) > 1:
        names = [name for name in names if len({configuration.get(name) for configuration in told}) > 1]
    rows = [[name, *(configuration.get(name, "") for configuration in told)] for name in names]
    same = "The runs were told the same, on the same machine." if not rows else "What differs between the runs."
    return Table(same if len(runs) > 1 else "What the run was told.", ["", *(run.name for run in runs)], rows)


def run_pictures(runs: list[TrainingRun]) -> list[Picture]:
    with plt.rc_context(STYLE):
        made = [_picture(quantity, runs) for quantity in quantities([run.unit for run in runs])]
    return [picture for picture in made if picture is not None]


def _picture(quantity: Quantity, runs: list[TrainingRun]) -> Picture | None:
    lines = [run.curve(quantity.field, "step") for run in runs]
    tests = [run.curve(quantity.tested, "epoch", "evaluation") for run in runs]
    if not any(curve.values for curve in [*lines, *tests]):
        return None
    if quantity.field == "exposed_comm_seconds" and not any(value for curve in lines for value in curve.values):
        return None
    timed = any(math.isfinite(s) for curve in [*lines, *tests] for s in curve.seconds)
    figure, panels = plt.subplots(1, 1 + timed, figsize=(9 if timed else 6, 3.2), squeeze=False, sharey=True)
    for axes, over_time in zip(panels[0], (False, True)):
        for color, (run, line, test) in enumerate(zip(runs, lines, tests)):
            _draw(axes, f"C{color}", run, line, test, quantity.scale, over_time)
        _label_axis(axes, over_time)
    first = panels[0][0]
    first.set_ylabel(quantity.label)
    _scale(first, quantity, [v for curve in [*lines, *tests] for v in curve.values])
    if len(runs) > 1 or quantity.field and quantity.tested:
        first.legend(fontsize=8)
    marked = " Dashed: the run was resumed there." if any(run.restarts for run in runs) else ""
    return finish(figure, f"run {quantity.name}", quantity.caption + marked)


def _draw(
    axes: Axes, color: str, run: TrainingRun, line: Curve, test: Curve, scale: float, over_time: bool
) -> None:
    every = 1 + len(line.values) // MOST_POINTS
    places = (line.seconds if over_time else line.steps)[::every]
    if line.values:
        axes.plot(places, [scale * v for v in line.values[::every]], color=color, linewidth=1, label=run.name)
    if test.values:
        label = f"{run.name}: test" if line.values else run.name
        places = test.seconds if over_time else test.steps
        values = [scale * v for v in test.values]
        axes.plot(places, values, color=color, linestyle=":" if line.values else "-", marker="o", markersize=3, label=label)
    for restart in run.restarts:
        at = run.seconds(restart) if over_time else step_of(restart)
        axes.axvline(at, color=color, linestyle="--", linewidth=0.8)


def _label_axis(axes: Axes, over_time: bool) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=not over_time))
    axes.set_xlabel("time since the start" if over_time else "step")
    if over_time:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: duration(seconds)))
    else:
        axes.xaxis.set_major_formatter(EngFormatter())


def _scale(axes: Axes, quantity: Quantity, values: list[float]) -> None:
    if quantity.logarithmic and min(values) > 0 and max(values) > LOGARITHMIC * min(values):
        decades = math.log10(max(values) / min(values))
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 4 else (1.0,)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        return
    axes.yaxis.set_major_formatter(EngFormatter() if quantity.field.endswith("_per_second") else axes.yaxis.get_major_formatter())
    if quantity.from_zero:
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:g} s" if seconds == round(seconds) else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"
