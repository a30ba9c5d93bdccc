"""What a page begins with: the numbers of one run in large type, and which runs other programs disturbed."""

from ddptools.common.text import duration, number, percent
from ddptools.common.values import finite, grouped, median_of, table_of
from ddptools.page.blocks import Disturbed, KeyNumber, KeyNumbers
from ddptools.report.training.runs import TrainingRun, step_of
from ddptools.results.description import parsed
from ddptools.results.efficiency import DISTURBED
from ddptools.results.run import seconds_to_measure

Summary = dict[str, object]


def disturbed_runs(runs: list[TrainingRun]) -> list[Disturbed]:
    """The first line of a page with disturbed runs; none without one."""
    lines = []
    for run in runs:
        if run.disturbed:
            name = f"{run.name}: " if len(runs) > 1 else ""
            told = f"Disturbed: {name}{run.disturbed}."
            if run.efficiency is None:
                lines.append(f"{told} Do not trust its rate. Run it again on an idle machine.")
            else:
                lines.append(
                    f"{told} Do not trust the efficiency and the parts of the step. Run it again on an idle machine, with "
                    f"--calibration-seconds {seconds_to_measure([run.summary or {}])}."
                )
    return [Disturbed(lines)] if lines else []


def key_numbers(run: TrainingRun) -> KeyNumbers:
    """Those that the run has; before its end, how far it is."""
    found = [_progress(run), _rate(run), _efficiency(run), _loss(run), *_tests(run), _sent(run), _hash(run)]
    return KeyNumbers([one for one in found if one is not None])


def last_test(run: TrainingRun) -> Summary:
    """The newest line with results on test or validation data; empty without one."""
    lines = [line for line in run.lines if line["event"] in ("epoch", "evaluation")]
    tested = [line for line in lines if finite(line.get("test_loss")) is not None or "accuracy" in line]
    return max(tested, key=step_of, default=run.summary or {})


def rate_of(run: TrainingRun) -> float | None:
    """Units per second: of the summary, or the median of the lines so far."""
    field = f"{run.unit}_per_second"
    curve = run.curve(field, "step") or run.curve(field, "epoch")
    return finite((run.summary or {}).get(field)) or median_of(value for *_, value in curve)


def last_loss(run: TrainingRun) -> float | None:
    """Of training."""
    told = finite((run.summary or {}).get("last_loss"))
    curve = run.curve("loss", "step") or run.curve("last_loss", "epoch")
    return told if told is not None else curve[-1][-1] if curve else None


def _progress(run: TrainingRun) -> KeyNumber | None:
    steps = finite(run.start.get("steps"))
    if run.summary is not None or not run.start:
        return None
    if not steps:
        return KeyNumber("steps so far", f"{run.steps:,}", run.end)
    return KeyNumber("progress", percent(run.steps / steps), f"step {run.steps:,} of {steps:,.0f}, {run.end}")


def _rate(run: TrainingRun) -> KeyNumber | None:
    rate, summary = rate_of(run), run.summary or {}
    if rate is None:
        return None
    low, high = (finite(summary.get(f"{run.unit}_per_second_{end}")) for end in ("min", "max"))
    about = f"{number(low)} to {number(high)}" if low is not None and high is not None and low < high else ""
    mark = DISTURBED if run.disturbed and run.efficiency is None else ""
    return KeyNumber(f"{run.unit} per second", number(rate), about, mark)


def _efficiency(run: TrainingRun) -> KeyNumber | None:
    efficiency = run.efficiency
    if efficiency is None:
        return None
    about = efficiency.interval and f"{efficiency.interval}, 95% interval"
    return KeyNumber("scaling efficiency", percent(efficiency.value), about, efficiency.mark)


def _loss(run: TrainingRun) -> KeyNumber | None:
    loss = last_loss(run)
    return None if loss is None else KeyNumber("training loss", f"{loss:.4f}", f"step {run.steps:,}")


def _tests(run: TrainingRun) -> list[KeyNumber]:
    """Loss and accuracy on test data; of a language model loss and perplexity on validation data."""
    test = last_test(run)
    loss, accuracy, perplexity = (finite(test.get(name)) for name in ("test_loss", "accuracy", "perplexity"))
    found = []
    if loss is not None:
        is_language = run.unit == "tokens"
        about = f"perplexity {number(perplexity)}" if perplexity is not None else ""
        found.append(KeyNumber("validation loss" if is_language else "test loss", f"{loss:.4f}", about))
    if accuracy is not None and run.unit != "tokens":
        found.append(KeyNumber("test accuracy", f"{100 * accuracy:.2f}%"))
    return found


def _sent(run: TrainingRun) -> KeyNumber | None:
    """As the line Sent of the summary."""
    work = parsed((run.summary or {}).get("description"))
    by_axis = grouped((each.axis, each.bytes) for each in work.sends) if work else {}
    if not by_axis:
        return None
    axes = ", ".join(f"{axis} {1e-6 * sum(sizes):.3g} MB" for axis, sizes in by_axis.items())
    sent = 1e-6 * sum(sum(sizes) for sizes in by_axis.values())
    return KeyNumber("sent by rank 0 in a step", f"{sent:.3g} MB", axes)


def _hash(run: TrainingRun) -> KeyNumber | None:
    summary = run.summary or {}
    told = summary.get("parameter_hash")
    if not isinstance(told, str) or not told:
        return None
    is_asynchronous = "outer_hash" in summary and table_of(run.start.get("configuration")).get("outer-groups") == "0"
    note = "depends on when differences arrive" if is_asynchronous else "the same command gives the same hash"
    return KeyNumber("hash of the parameters", told, note, is_long=True)


def in_words(run: TrainingRun) -> str:
    """What the run was, on one line."""
    if not run.has_training:
        has_others = run.generations or run.evaluation is not None
        return f"{run.name} has no lines {'of training' if has_others else 'yet'}."
    start = run.start or run.summary or {}
    ranks, epochs = finite(start.get("world_size")), finite(start.get("epochs"))
    told = [f"{ranks:.0f} rank{'s' if ranks > 1 else ''}"] if ranks else []
    told += [str(start[name]) for name in ("precision",) if start.get(name)]
    told += [f"{epochs:g} epoch{'s' if epochs != 1 else ''}"] if epochs else []
    told += [f"{run.steps:,} steps"] if run.steps else []
    told += [f"{run.end} after {duration(run.took)}" if run.took is not None else run.end]
    return f"{', '.join(told)}."
