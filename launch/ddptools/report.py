"""ddpreport: one page that explains the results of sweeps, or draws training runs."""

import argparse
import itertools
import json
import pathlib
import sys

from ddptools.arguments import Parser, path
from ddptools.description import complete, defaults_of
from ddptools.flight import report_flight
from ddptools.lost_time import lost_time_table, lost_time_words, losses
from ddptools.measurements import Experiment, Results, load
from ddptools.page import Block, Heading, HowToRead, Notes, Summary, Warnings, pictures_of, to_html, to_markdown
from ddptools.picture_file import KINDS, Picture
from ddptools.plots import drawings, lost_time_picture, pictures
from ddptools.programs import program_folder
from ddptools.results import write_atomically, write_bytes_atomically
from ddptools.run_page import blocks_of_runs, title_of_runs
from ddptools.runs import are_runs, load_runs
from ddptools.summary import MOST_ANSWERS, entry_of, measured_on, warnings_of
from ddptools.tables import failures, machine_table, tables
from ddptools.trace_picture import report_trace
from ddptools.words import UNEXPLAINED, answers, choices, limited, numerics

MOST_EXPERIMENTS = 50


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="ddpreport", description="Writes an HTML page, which needs no network, about results of ddpsweep or "
        "runs of ddptrain --metrics. --trace draws the timeline of a run. --flight explains why a run ended with a "
        "timeout.",
    )
    add = parser.add_argument
    add("results", nargs="*", type=path,
        help="folders of ddpsweep, their results.jsonl, or files of ddptrain --metrics")  # fmt: skip
    add("--out", type=path, metavar="FILE", help="the page (report.html); with --trace: a .svg or .png file")
    add("--png", type=path, metavar="DIR", help="also write the pictures as PNG")
    add("--md", type=path, metavar="FILE", help="also write the report as Markdown (with the pictures of --png)")
    add("--title", help="title of the page")
    add("--trace", type=path, metavar="FILE", help="draw the timeline of ddptrain --trace, instead of results")
    add("--flight", type=path, metavar="DIR",
        help="explain the flight records of ddptrain --flight, instead of results")  # fmt: skip
    add("--bin", type=path, metavar="DIR",
        help="folder of ddptrain, for results without a description (the folder of ddpreport, else build/bin)")  # fmt: skip
    add("--step", type=int, metavar="N", help="draw only this step of the trace, counted from 0")
    arguments = parser.parse_args(argv)
    if arguments.flight is not None:
        others = (arguments.results, arguments.trace, arguments.out, arguments.png, arguments.md, arguments.step)
        if any(other not in (None, []) for other in others):
            parser.error("--flight stands alone")
        return arguments
    if arguments.trace is None and not arguments.results:
        parser.error("give results of ddpsweep, files of ddptrain --metrics, --trace FILE or --flight DIR")
    if arguments.trace is None and arguments.out is not None and arguments.out.suffix in KINDS:
        parser.error(f"--out {arguments.out}: the page is HTML; --png DIR writes its pictures")
    if arguments.trace is None and arguments.step is not None:
        parser.error("--step belongs to --trace")
    if arguments.trace is not None and (arguments.results or arguments.png or arguments.md):
        parser.error("--trace stands alone: results, --png and --md belong to a page")
    return arguments


def blocks_of(results: Results) -> list[Block]:
    blocks: list[Block] = [Notes(results.notes)] if results.notes else []
    if not results.experiments:
        return [*blocks, "There are no runs in these results yet."]
    shown = results.experiments[:MOST_EXPERIMENTS]
    everywhere = measured_on(shown)
    entries, sections = [], []
    for experiment, title in zip(shown, titles_of(shown)):
        first, *drawn = pictures(experiment) or [None]
        facts = measured_on([experiment])
        entries.append(entry_of(experiment, title, "" if facts == everywhere else facts, first))
        sections += [Heading(2, title), *experiment_blocks(experiment, drawn)]
    blocks += [Summary(entries), *sections]
    left = len(results.experiments) - MOST_EXPERIMENTS
    if left > 0:
        blocks.append(f"{left} more experiments are left out: give fewer results at a time.")
    return [*blocks, Heading(2, "Machine"), machine_table(shown), *machine_pictures(results), HowToRead()]


def title_of(experiments: list[Experiment]) -> str:
    """With machine and date."""
    names = list(dict.fromkeys(experiment.sweep for experiment in experiments))
    name = ", ".join(names) if len(names) < 4 else f"{len(names)} sweeps"
    return " on ".join(filter(None, [name, measured_on(experiments)])) or "Measurements"


def titles_of(experiments: list[Experiment]) -> list[str]:
    """Different ones: those that several experiments share say their folder, as far as it tells them apart."""
    titles = [experiment.title for experiment in experiments]
    named = []
    for experiment, title in zip(experiments, titles):
        others = [other.source for other in experiments if other.title == title and other is not experiment]
        named.append(f"{title} in {folder_name(experiment.source, others)}" if others else title)
    return named


def folder_name(source: pathlib.Path, others: list[pathlib.Path]) -> str:
    """The end of a path that no other path has."""
    parts = source.parent.parts
    for length in range(1, len(parts) + 1):
        if all(other.parent.parts[-length:] != parts[-length:] for other in others):
            return "/".join(parts[-length:])
    return source.parent.name


def machine_pictures(results: Results) -> list[Block]:
    """A machine that several results share is drawn once."""
    machines: dict[str, pathlib.Path] = {}
    for source, topology in results.topologies.items():
        machines.setdefault(json.dumps(topology, sort_keys=True), source.parent)
    drawn = (drawings(json.loads(text), folder.name or "topology") for text, folder in machines.items())
    return list(itertools.chain.from_iterable(drawn))


def experiment_blocks(experiment: Experiment, drawn: list[Picture]) -> list[Block]:
    """`drawn`: its pictures, without the one of the summary."""
    blocks: list[Block] = [Notes(experiment.notes)] if experiment.notes else []
    emulated = [case for case in experiment.cases if case.emulated]
    if emulated:
        how = ", ".join(dict.fromkeys(_emulation(case.runs, case.failures) for case in emulated))
        blocks.append(Notes([f"Nodes were emulated on one machine ({how}): numbers marked emulated are no network's."]))
    same = numerics(experiment)
    warned = warnings_of(experiment) + [line for line in same if UNEXPLAINED in line]
    blocks += [Warnings(warned)] if warned else []
    further = answers(experiment)[MOST_ANSWERS:]
    if further:
        blocks += [Heading(3, "In words"), *limited(answer.sentence for answer in further)]
    if experiment.measured:
        blocks += [Heading(3, "Measured"), *tables(experiment), *drawn]
    lost = losses(experiment)
    if lost:
        blocks += [Heading(3, "Where the time went"), lost_time_words(lost), lost_time_picture(experiment, lost)]
        blocks += [lost_time_table(lost)]
    explained = [line for line in same if line not in warned]
    for heading, lines in (("What NCCL chose", choices(experiment)), ("Numerics", explained)):
        blocks += [Heading(3, heading), *lines] if lines else []
    failed = failures(experiment)
    return [*blocks, Heading(3, "Failed and skipped"), failed] if failed.rows else blocks


def _emulation(runs: list, failed: list) -> str:
    records = [run.record for run in runs] + failed
    return next((str(r["emulation"]) for r in records if r.get("emulation")), "emulation unknown")


def unique_names(blocks: list[Block]) -> None:
    """Pictures of experiments with the same title get names of their own."""
    seen: dict[str, int] = {}
    for picture in pictures_of(blocks):
        seen[picture.name] = seen.get(picture.name, 0) + 1
        if seen[picture.name] > 1:
            name = f"{picture.name}-{seen[picture.name]}"
            for before in ('"', "#"):
                picture.svg = picture.svg.replace(f"{before}{picture.name}-", f"{before}{name}-")
            picture.name = name


def write_pictures(folder: pathlib.Path, blocks: list[Block]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for picture in pictures_of(blocks):
        write_bytes_atomically(folder / f"{picture.name}.png", picture.png)


def main(argv: list[str]) -> int:
    arguments = parse_arguments(argv)
    if arguments.flight is not None:
        return report_flight(arguments.flight)
    if arguments.trace is not None:
        return report_trace(arguments.trace, arguments.out, arguments.step)
    if are_runs(arguments.results):
        runs = load_runs(arguments.results)
        return write_report(arguments, title_of_runs(runs), blocks_of_runs(runs), f"{len(runs)} training runs")
    results = load(arguments.results)
    runs = [run for experiment in results.experiments for run in experiment.runs]
    program = program_folder(arguments.bin) / "ddptrain"
    complete((run.record for run in runs), program)
    for experiment in results.experiments:
        experiment.defaults = defaults_of(program, experiment.cases[0].settings)
    for note in results.notes:
        print(f"ddpreport: {note}", file=sys.stderr)
    told = f"{len(results.experiments)} experiments, {len(runs)} runs"
    return write_report(arguments, title_of(results.experiments), blocks_of(results), told)


def write_report(arguments: argparse.Namespace, title: str, blocks: list[Block], told: str) -> int:
    out = arguments.out or pathlib.Path("report.html")
    title = arguments.title or title
    unique_names(blocks)
    if arguments.png:
        write_pictures(arguments.png, blocks)
    if arguments.md:
        write_atomically(arguments.md, to_markdown(title, blocks, arguments.md, arguments.png))
    write_atomically(out, to_html(title, blocks))
    print(f"{out}: {told}")
    return 0
