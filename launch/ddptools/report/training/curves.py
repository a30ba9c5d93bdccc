"""One picture for each quantity of training runs, over steps, samples or tokens, and time."""

import dataclasses
import math

from ddptools.pictures.charts import COLORS, Axis, Curves, Line, Picture, Places
from ddptools.report.training.runs import Point, TrainingRun, step_of

MOST_POINTS = 2000  # of a curve
LOGARITHMIC = 20.0  # from this ratio of the largest to the smallest value on


@dataclasses.dataclass
class Quantity:
    """What a picture shows: a field of step lines as a line, one of tests as points."""

    caption: str
    label: str
    field: str = ""
    tested: str = ""
    of_epoch: str = ""  # the field of epoch lines that stands in for runs without step lines
    logarithmic: bool = False
    from_zero: bool = False
    at_most: float | None = None
    scale: float = 1.0
    event: str = "step"  # the kind of the lines
    may_be_zero: bool = True  # otherwise it is left out if nothing of it is above 0


def quantities(units: list[str]) -> list[Quantity]:
    rates = [
        Quantity("Throughput of all ranks.", f"{unit}/s", f"{unit}_per_second", of_epoch=f"{unit}_per_second", from_zero=True)
        for unit in dict.fromkeys(units)
    ]
    loss = "Loss: mean of the steps since the point before."
    exposed = "Communication that backward did not hide, per step."
    memory = "Memory in use on the GPU where most is."
    age = "Age of a group's difference: versions by which the outer weights advanced until it was applied."
    entries = "Bytes of differences that a group has"
    return [
        Quantity(loss, "loss", "loss", "test_loss", of_epoch="loss", logarithmic=True),
        *rates,
        Quantity("Accuracy on the test data.", "accuracy, %", tested="accuracy", at_most=100.0, scale=100.0),
        Quantity("Learning rate.", "learning rate", "learning_rate", from_zero=True),
        Quantity("Norm of the gradient, before clipping.", "gradient norm", "gradient_norm", logarithmic=True),
        Quantity(exposed, "exposed communication, ms", "exposed_comm_seconds", from_zero=True, scale=1e3, may_be_zero=False),
        Quantity(memory, "GPU memory, GB", "memory_used_bytes", from_zero=True, scale=1e-9),
        Quantity("Clock of the slowest GPU's multiprocessors, lowest reading.", "clock, MHz", "sm_mhz_min"),
        Quantity(age, "age, versions", "age", from_zero=True, event="exchange", may_be_zero=False),
        Quantity(f"{entries} sent.", "sent, MB", "bytes_sent", from_zero=True, scale=1e-6, event="exchange"),
        Quantity(f"{entries} received, from all groups.", "received, MB", "bytes_received", from_zero=True, scale=1e-6, event="exchange"),
    ]


def run_pictures(runs: list[TrainingRun]) -> list[Picture]:
    """Of each quantity that the runs have."""
    made = [(quantity, _curves(quantity, runs)) for quantity in quantities([run.unit for run in runs])]
    marked = " Dashed: the run was resumed there." if any(run.restarts for run in runs) else ""
    return [
        Picture(quantity.caption + _about_tests(quantity, runs) + marked, curves)
        for quantity, curves in made
        if curves is not None
    ]


def _about_tests(quantity: Quantity, runs: list[TrainingRun]) -> str:
    """What the points of tests are, in a picture that has a curve of training, too."""
    points = [len(run.curve(quantity.tested, "epoch", "evaluation")) for run in runs]
    if not quantity.field or not quantity.tested or not any(points):
        return ""
    kinds = dict.fromkeys("validation" if run.unit == "tokens" else "test" for run in runs)
    return f" {'Dotted line' if max(points) > 1 else 'Dot'}: loss on the {' or '.join(kinds)} data."


def _curves(quantity: Quantity, runs: list[TrainingRun]) -> Curves | None:
    lines: list[Line] = []
    for run, color in zip(runs, COLORS):
        trained = run.curve(quantity.field, quantity.event) or run.curve(quantity.of_epoch, "epoch")
        tested = run.curve(quantity.tested, "epoch", "evaluation")
        of_training, of_test = _labels(quantity, run, len(runs), bool(trained))
        curve, test = _line(quantity, run, trained, of_training, color), _line(quantity, run, tested, of_test, color)
        if test is not None:
            test.dashes, test.has_dots = (2, 2) if curve else None, True
        lines += filter(None, [curve, test])
    values = [value for line in lines for _, value, _, _ in line.points]
    if not values or not (quantity.may_be_zero or any(values)):
        return None
    counted = {run.counted for run in runs}
    axes = [Axis("step"), Axis(counted.pop() if len(counted) == 1 else "samples"), Axis("time", is_time=True)]
    marks = [(_places(run, step_of(restart), run.seconds(restart)), color)
             for run, color in zip(runs, COLORS) for restart in run.restarts]  # fmt: skip
    is_logarithmic = quantity.logarithmic and min(values) > 0 and max(values) > LOGARITHMIC * min(values)
    curves = Curves(axes, quantity.label, lines, is_logarithmic, quantity.from_zero, quantity.at_most, marks)
    _drop_unknown_axes(curves)
    return curves


def _labels(quantity: Quantity, run: TrainingRun, runs: int, is_trained: bool) -> tuple[str, str]:
    """Of the line of training and of that of tests. Names of runs tell several runs apart."""
    test = "validation" if run.unit == "tokens" else "test"
    if runs > 1:
        return run.name, f"{run.name}: {test}" if is_trained else run.name
    return ("training", test) if quantity.tested and is_trained else (quantity.label, quantity.label)


def _line(quantity: Quantity, run: TrainingRun, curve: list[Point], label: str, color: str) -> Line | None:
    every = 1 + len(curve) // MOST_POINTS
    points = [(_places(run, step, seconds), *3 * (quantity.scale * value,)) for step, seconds, value in curve[::every]]
    return Line(label, points, color, has_dots=False) if points else None


def _places(run: TrainingRun, step: int, seconds: float) -> Places:
    """As steps, samples or tokens, and seconds since the run began."""
    per_step = run.counted_per_step
    return (
        float(step),
        None if per_step is None else per_step * step,
        round(seconds, 3) if math.isfinite(seconds) else None,
    )


def _drop_unknown_axes(curves: Curves) -> None:
    """Axes on which no point of any line has a place."""
    kept = [
        i for i in range(len(curves.axes)) if any(places[i] is not None for line in curves.lines for places, *_ in line.points)
    ]
    curves.axes = [curves.axes[i] for i in kept]
    for line in curves.lines:
        line.points = [(tuple(places[i] for i in kept), *values) for places, *values in line.points]
    curves.marks = [(tuple(places[i] for i in kept), color) for places, color in curves.marks]
