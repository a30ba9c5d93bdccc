"""The page that ddpreport writes of training runs."""

import dataclasses
import math
import time
from collections.abc import Callable

from ddptools.common.files import Record
from ddptools.common.table import Table
from ddptools.common.text import duration, number, percent
from ddptools.common.values import finite, grouped, median_of, table_of
from ddptools.page.blocks import Block, Heading, Notes
from ddptools.pictures.charts import COLORS, Curves, Line, Picture
from ddptools.report.training.runs import Point, TrainingRun, step_of
from ddptools.results.description import parsed

MOST_POINTS = 2000  # of a curve
LOGARITHMIC = 20.0  # from this ratio of the largest to the smallest value on
MESH = {"pp": "1", "tp": "1", "zero": "0"}  # flags, and their values where replicas are ranks that keep everything
WAITS = {"waits_for_stages": "stages", "in_split_layers": "split layers", "waits_for_replicas": "replicas"}


@dataclasses.dataclass
class Quantity:
    """What a picture shows: a field of step lines as a line, one of tests as points."""

    caption: str
    label: str
    field: str = ""
    tested: str = ""
    logarithmic: bool = False
    from_zero: bool = False
    scale: float = 1.0


def quantities(units: list[str]) -> list[Quantity]:
    rates = [
        Quantity("Throughput of all ranks.", f"{unit}/s", f"{unit}_per_second", from_zero=True)
        for unit in dict.fromkeys(units)
    ]
    loss = "Loss: mean of the steps since the line before; points: of the test or validation data."
    exposed = "Communication that backward did not hide, per step."
    memory = "Memory in use on the GPU where most is."
    return [
        Quantity(loss, "loss", "loss", "test_loss", logarithmic=True),
        Quantity("Accuracy on the test data.", "accuracy, %", tested="accuracy", scale=100.0),
        Quantity("Learning rate.", "learning rate", "learning_rate", from_zero=True),
        Quantity("Norm of the gradient, before clipping.", "norm", "gradient_norm", logarithmic=True),
        *rates,
        Quantity(exposed, "ms", "exposed_comm_seconds", from_zero=True, scale=1e3),
        Quantity(memory, "GB", "memory_used_bytes", from_zero=True, scale=1e-9),
        Quantity("Clock of the slowest GPU's multiprocessors, lowest reading.", "MHz", "sm_mhz_min"),
    ]


def title_of_runs(runs: list[TrainingRun]) -> str:
    models = dict.fromkeys(str(run.start.get("model", "a model")) for run in runs)
    machines = dict.fromkeys(str(run.start["device_name"]) for run in runs if run.start.get("device_name"))
    days = dict.fromkeys(time.strftime("%Y-%m-%d", time.gmtime(run.began)) for run in runs if run.began is not None)
    where = f" on {' and '.join(machines)}" if machines else ""
    return ", ".join([f"Training {' and '.join(models)}{where}", *days])


def blocks_of_runs(runs: list[TrainingRun]) -> list[Block]:
    notes = [
        f"{run.name}: {run.bad_lines} lines are cut or damaged, and left out." for run in runs if run.bad_lines > 0
    ]
    unlogged = [run for run in runs if all(line["event"] != "step" for line in run.lines)]
    notes += [f"{run.name}: no steps: --log-every N writes a line each N steps." for run in unlogged]
    blocks: list[Block] = [Notes(notes)] if notes else []
    drawn = run_pictures(runs)
    blocks += [*words(runs), *drawn[:2], Heading(2, "Runs"), run_table(runs), *mesh_tables(runs)]
    if drawn[2:]:
        blocks += [Heading(2, "Over steps and over time"), *drawn[2:]]
    for run in runs:
        if run.evaluation is not None:
            title = f"Evaluation of {run.name}" if len(runs) > 1 else "Evaluation"
            blocks += [Heading(2, title), evaluated(run.evaluation)]
    return [*blocks, Heading(2, "Configuration"), configuration_table(runs)]


def words(runs: list[TrainingRun]) -> list[str]:
    tests = {run.name: run.curve("test_loss", "epoch", "evaluation") for run in runs}
    best = sorted((*min((value, step) for step, _, value in curve), name) for name, curve in tests.items() if curve)
    told = [f"{name}: {value:.4g} at step {step}" for value, step, name in best]
    return [f"Lowest test loss: {'; '.join(told)}."] if told else []


def run_table(runs: list[TrainingRun]) -> Table:
    rows = []
    for run in runs:
        last = {line["event"]: line for line in run.lines}
        test = max((last[e] for e in ("epoch", "evaluation") if e in last), key=step_of, default={})
        per_second = f"{run.unit}_per_second"
        rates = run.curve(per_second, "step") or run.curve(per_second, "epoch")
        rate = (run.summary or {}).get(per_second) or median_of(value for *_, value in rates)
        seconds = [run.seconds(line) for line in [*run.lines, *filter(None, [run.summary, run.interruption])]]
        took = max((s for s in seconds if math.isfinite(s)), default=math.nan)
        losses = run.curve("loss", "step") or run.curve("last_loss", "epoch")
        rows.append([
            run.name, run.end, str(run.steps), str(len(run.restarts)),
            duration(took) if math.isfinite(took) else "",
            f"{losses[-1][-1]:.4f}" if losses else "",
            _shown(test.get("test_loss"), lambda v: f"{v:.4f}"), _shown(test.get("accuracy"), percent),
            _shown(rate, lambda v: f"{number(v)} {run.unit}/s"),
        ])  # fmt: skip
    header = ["run", "end", "steps", "restarts", "time", "last loss", "test loss", "accuracy", "throughput"]
    footnote = "Last loss: of the last line of steps. Throughput: median. Time: from the first start on, with breaks."
    return Table("What the runs came to.", header, rows, footnote)


def mesh_tables(runs: list[TrainingRun]) -> list[Table]:
    """None if no run divides the model or its state."""
    rows, meshes = [], set()
    for run in runs:
        flags, summary = MESH | table_of(run.start.get("configuration")), run.summary or {}
        mesh = [str(flags[name]).strip('"') for name in MESH]
        waits = [_shown(summary.get(field), lambda v, who=who: f"{who} {percent(v)}") for field, who in WAITS.items()]
        work = parsed(summary.get("description"))
        sent = grouped((each.axis, 1e-6 * each.bytes) for each in work.sends) if work else {}
        rows.append([run.name, str(run.start.get("world_size", "")), *mesh, ", ".join(filter(None, waits)),
                     ", ".join(f"{axis} {sum(sizes):.3g}" for axis, sizes in sent.items()),
                     str(summary.get("parameter_hash", ""))])  # fmt: skip
        meshes.add(tuple(mesh))
    header = ["run", "ranks", *(f"--{name}" for name in MESH), "waits for", "MB sent", "hash"]
    caption = "Meshes. Waits: mean share of a rank's time in steps, on CPUs. Sent: by rank 0 in a step, by axis."
    return [Table(caption, header, rows)] if meshes - {tuple(MESH.values())} else []


def _shown(value: object, show) -> str:
    known = finite(value)
    return "" if known is None else show(known)


def evaluated(line: Record) -> str:
    """What `ddptrain --evaluate` found."""

    def shown(name: str, show: Callable[[float], str] = "{:.4f}".format) -> str:
        return _shown(line.get(name), show) or "unknown"

    unit = "images" if "images" in line else "tokens"
    text = f"Test loss {shown('test_loss')}, accuracy {shown('accuracy', percent)}"
    text += f", perplexity {shown('perplexity')}" if "perplexity" in line else ""
    return f"{text} over {line.get(unit, '?')} test {unit} (model {line.get('model', '?')}, {line.get('precision', '?')})."


def configuration_table(runs: list[TrainingRun]) -> Table:
    told = [run.configuration() for run in runs]
    names = list(dict.fromkeys(name for configuration in told for name in configuration))
    if len(runs) > 1:
        names = [name for name in names if len({configuration.get(name) for configuration in told}) > 1]
    rows = [[name, *(configuration.get(name, "") for configuration in told)] for name in names]
    same = "The runs were told the same, on the same machine." if not rows else "What differs between the runs."
    return Table(same if len(runs) > 1 else "What the run was told.", ["", *(run.name for run in runs)], rows)


def run_pictures(runs: list[TrainingRun]) -> list[Picture]:
    """Of each quantity that the runs have, over steps and, if they tell the time, over time."""
    shown = quantities([run.unit for run in runs])
    made = [(quantity, _curves(quantity, runs, is_time)) for quantity in shown for is_time in (False, True)]
    marked = " Dashed: the run was resumed there." if any(run.restarts for run in runs) else ""
    return [Picture(quantity.caption + marked, curves) for quantity, curves in made if curves is not None]


def _curves(quantity: Quantity, runs: list[TrainingRun], is_time: bool) -> Curves | None:
    lines: list[Line] = []
    for run, color in zip(runs, COLORS):
        curve = _line(quantity, run.curve(quantity.field, "step"), is_time, run.name, color)
        test_name = f"{run.name}: test" if curve else run.name
        test = _line(quantity, run.curve(quantity.tested, "epoch", "evaluation"), is_time, test_name, color)
        if test is not None:
            test.dashes, test.has_dots = (2, 2) if curve else None, True
        lines += filter(None, [curve, test])
    values = [value for line in lines for _, value, _, _ in line.points]
    if not values or (quantity.field == "exposed_comm_seconds" and not any(values)):
        return None
    marks = [(run.seconds(restart) if is_time else float(step_of(restart)), color)
             for run, color in zip(runs, COLORS) for restart in run.restarts]  # fmt: skip
    is_logarithmic = quantity.logarithmic and min(values) > 0 and max(values) > LOGARITHMIC * min(values)
    return Curves("time since the start" if is_time else "step", quantity.label, lines, is_time=is_time,
                  is_logarithmic=is_logarithmic, from_zero=quantity.from_zero,
                  marks=[mark for mark in marks if math.isfinite(mark[0])])  # fmt: skip


def _line(quantity: Quantity, curve: list[Point], is_time: bool, label: str, color: str) -> Line | None:
    places = ((seconds if is_time else float(step), value) for step, seconds, value in curve)
    points = [(place, *3 * (quantity.scale * value,)) for place, value in places if math.isfinite(place)]
    every = 1 + len(points) // MOST_POINTS
    return Line(label, points[::every], color, has_dots=False) if points else None
