"""The page that ddpreport writes of training runs."""

import time
from collections.abc import Callable

from ddptools.common.files import Record, unread_text
from ddptools.common.table import Table
from ddptools.common.text import duration, measured, number, percent
from ddptools.common.values import finite, grouped, table_of
from ddptools.page.blocks import Block, Disturbed, Heading, Notes
from ddptools.report.sweeps.experiment import Case
from ddptools.report.sweeps.lost_time import Loss, loss_of, lost_time_table, time_unit
from ddptools.report.sweeps.plots import lost_time_pictures
from ddptools.report.training.curves import run_pictures
from ddptools.report.training.key_numbers import (
    disturbed_runs,
    in_words,
    key_numbers,
    last_loss,
    last_test,
    rate_of,
)
from ddptools.report.training.runs import TrainingRun
from ddptools.report.training.samples import samples_of_runs
from ddptools.results.description import parsed
from ddptools.results.run import make_run

MESH = {"pp": "1", "tp": "1", "zero": "0"}  # flags, and their values where replicas are ranks that keep everything
WAITS = {"waits_for_stages": "stages", "in_split_layers": "split layers", "waits_for_replicas": "replicas"}


def title_of_runs(runs: list[TrainingRun]) -> str:
    trained = [run.start for run in runs if run.has_training]
    others = [line for run in runs for line in (*run.generations, run.evaluation) if line is not None]
    what = "Training" if trained or not others else "Texts of" if any(run.generations for run in runs) else "Evaluation of"
    lines = trained or others or [{}]
    models = dict.fromkeys(str(line.get("model", "a model")) for line in lines)
    machines = dict.fromkeys(str(line["device_name"]) for line in lines if line.get("device_name"))
    days = dict.fromkeys(time.strftime("%Y-%m-%d", time.gmtime(run.began)) for run in runs if run.began is not None)
    where = f" on {' and '.join(machines)}" if machines else ""
    return ", ".join([f"{what} {' and '.join(models)}{where}", *days])


def blocks_of_runs(runs: list[TrainingRun]) -> list[Block]:
    notes = [
        f"{run.name}: {unread_text(run.bad_lines)}." for run in runs if run.bad_lines
    ]
    notes += [hint for run in runs if (hint := missing_curve(run))]
    blocks: list[Block] = [*disturbed_runs(runs), *(in_words(run) for run in runs if len(runs) == 1)]
    blocks += [key_numbers(run) for run in runs if len(runs) == 1]
    blocks += [Notes(notes)] if notes else []
    trained = [run for run in runs if run.has_training]
    caption = "Results." if len(runs) > 1 else ""  # of one run, a heading says so
    tables = [*([run_table(trained, caption)] if trained else []), *mesh_tables(runs), *group_tables(runs), *generation_tables(runs)]
    if len(runs) > 1:
        blocks += [*words(runs), *tables]
    blocks += run_pictures(runs)
    blocks += step_parts(runs)
    if len(runs) == 1:
        blocks += [Heading(2, "Results"), *words(runs), *tables] if tables else []
    for run in runs:
        if run.evaluation is not None:
            title = f"Evaluation of {run.name}" if len(runs) > 1 else "Evaluation"
            blocks += [Heading(2, title), evaluated(run.evaluation)]
    blocks += samples_of_runs(runs)
    if configured := [run for run in runs if run.configuration()]:  # not those of --generate and --evaluate alone
        blocks += [Heading(2, "Configuration"), configuration_table(configured)]
    return blocks


def missing_curve(run: TrainingRun) -> str:
    """What to do about a run that has ended without two points of a curve; empty if it has them, or may get them."""
    if run.summary is None or any(len(run.curve("loss", event)) > 1 for event in ("step", "epoch")):
        return ""
    every = max(1, min(10, run.steps // 10))
    return f"No curve of {run.name}: start the run with --log-every {every}"


def step_parts(runs: list[TrainingRun]) -> list[Block]:
    """What a step lost against a step of one rank, of the runs that measured it."""
    found = [(run, loss) for run in runs if (loss := _loss_of_run(run)) is not None]
    if not found:
        return []
    losses = [loss for _, loss in found]
    told = [parts_in_words(loss) for _, loss in found] if len(found) == 1 else []
    names = [run.name for run, _ in found if run.disturbed]
    which = "this run was disturbed" if len(runs) == 1 else f"disturbed: {', '.join(names)}"
    warning = [Disturbed([f"Do not trust these parts: {which}."])] if names else []
    return [Heading(2, "Where the time of a step went"), *warning, *told, *lost_time_pictures(losses), lost_time_table(losses)]


def _loss_of_run(run: TrainingRun) -> Loss | None:
    made = make_run({"status": "ok", "summary": run.summary})
    ranks = finite((run.summary or {}).get("world_size"))
    return None if made is None or ranks is None else loss_of(Case(run.name, {"ranks": f"{ranks:g}"}, [made]), run.name)


def parts_in_words(loss: Loss) -> str:
    unit, factor = time_unit([loss])
    step, alone = (measured(factor * seconds) for seconds in (loss.step_seconds, loss.useful_seconds))
    slowest = f" Its slowest rank is {loss.slowest}." if loss.slowest else ""
    waits = " On one host, these times leave out waits for other programs; the throughput counts them." if loss.by_others else ""
    return f"A step takes {step} {unit} with {loss.ranks} ranks, and {alone} {unit} with one rank alone.{slowest}{waits}"


def words(runs: list[TrainingRun]) -> list[str]:
    tests = {run.name: run.curve("test_loss", "epoch", "evaluation") for run in runs}
    best = sorted((*min((value, step) for step, _, value in curve), name) for name, curve in tests.items() if curve)
    told = [f"{name}: {value:.4g} at step {step}" for value, step, name in best]
    return [f"Lowest test loss: {'; '.join(told)}."] if told else []


def run_table(runs: list[TrainingRun], caption: str = "") -> Table:
    """Columns that no run fills are left out."""
    columns: list[tuple[str, Callable[[TrainingRun], str]]] = [
        ("run", lambda run: run.name),
        ("end", lambda run: run.end),
        ("steps", lambda run: str(run.steps)),
        *([("restarts", lambda run: str(len(run.restarts)))] if any(run.restarts for run in runs) else []),
        ("time", lambda run: _shown(run.took, duration)),
        ("last loss", lambda run: _shown(last_loss(run), "{:.4f}".format)),
        ("test loss", lambda run: _shown(last_test(run).get("test_loss"), "{:.4f}".format)),
        ("perplexity", lambda run: _shown(last_test(run).get("perplexity"), number)),
        ("test accuracy", lambda run: _shown(last_test(run).get("accuracy"), lambda v: f"{100 * v:.2f}%")),
        ("throughput", lambda run: _shown(rate_of(run), lambda v: f"{number(v)} {run.unit}/s")),
        ("efficiency", _efficiency),
    ]
    columns = [(name, show) for name, show in columns if any(show(run) for run in runs)]
    rows = [[show(run) for _, show in columns] for run in runs]
    footnote = "For language models, the test loss is the validation loss. Throughput: median. Time: from the first start on, with breaks."
    return Table(caption, [name for name, _ in columns], rows, footnote)


def _efficiency(run: TrainingRun) -> str:
    if run.efficiency is not None:
        return run.efficiency.text
    return "disturbed" if run.disturbed else ""


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


def group_tables(runs: list[TrainingRun]) -> list[Table]:
    """What groups that share a log exchanged. None if no run is one."""
    rows = []
    for run in runs:
        ages = [age for _, _, age in run.curve("age", "exchange")]
        summary = run.summary or {}
        if not ages and "exchanges" not in summary:
            continue
        group = str(table_of(run.start.get("configuration")).get("group", "")).strip('"')
        sizes = [_shown(summary.get(f"exchange_bytes_{way}"), lambda v: f"{1e-6 * v:.3g}") for way in ("sent", "received")]
        rows.append([run.name, group, _shown(summary.get("exchanges"), "{:,.0f}".format),
                     _shown(summary.get("exchange_seconds"), duration), *sizes,
                     f"{sum(ages) / len(ages):.2g}, at most {max(ages):g}" if ages else "",
                     _shown(summary.get("exchange_entries_skipped"), "{:,.0f}".format), str(summary.get("outer_hash", ""))])  # fmt: skip
    header = ["run", "group", "exchanges", "waited", "MB sent", "MB received", "age", "skipped", "outer hash"]
    caption = "Groups that share a log. Age: versions of the outer weights, mean. Skipped: entries that were invalid or too old."
    return [Table(caption, header, rows)] if rows else []


def generation_tables(runs: list[TrainingRun]) -> list[Table]:
    """What `ddptrain --generate` measured. None if no file has such lines."""
    rates = [("prefill tokens/s", "prefill_tokens_per_second"), ("decoding tokens/s", "decode_tokens_per_second"),
             ("generated tokens/s", "generated_tokens_per_second")]  # fmt: skip
    counts = [("prompts", "prompts"), ("their tokens", "prompt_tokens"), ("tokens generated", "generated_tokens")]
    rows = []
    for run in runs:
        for line in run.generations:
            model = ", ".join(str(line[name]) for name in ("model", "precision") if name in line)
            rows.append([run.name, model, _shown(line.get("world_size"), "{:.0f}".format),
                         *(_shown(line.get(field), "{:,.0f}".format) for _, field in counts),
                         _shown(line.get("seconds_to_first_token"), lambda seconds: f"{1e3 * seconds:.3g}"),
                         *(_shown(line.get(field), number) for _, field in rates)])  # fmt: skip
    header = ["run", "model", "ranks", *(name for name, _ in counts), "first token ms", *(name for name, _ in rates)]
    caption = "Generated texts. Prefill and decoding: on one replica. Generated: of all replicas, by the time for all texts."
    return [Table(caption, header, rows)] if rows else []


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
    differing = "Flags and machine that differ between the runs." if rows else "The runs have the same flags and machine."
    return Table(differing if len(runs) > 1 else "Flags and machine.", ["", *(run.name for run in runs)], rows)
