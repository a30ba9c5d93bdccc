"""ddpreport: one page that explains the results of sweeps, or draws training runs."""

import argparse
import pathlib
import sys

from ddptools.common.arguments import Parser, path
from ddptools.common.errors import UsageError
from ddptools.common.files import unread_text, write_atomically
from ddptools.common.outputs import CSV, MARKDOWN, PAGE, PICTURE, Input, Output, check_outputs
from ddptools.common.text import counted, one_line
from ddptools.page.blocks import Block
from ddptools.page.render import to_html, to_markdown
from ddptools.report.csv_rows import Row, to_csv
from ddptools.report.flight import report_flight
from ddptools.report.sweeps.experiment import load
from ddptools.report.sweeps.page import blocks_of, title_of
from ddptools.report.sweeps.rows import rows_of_experiments
from ddptools.report.training.page import blocks_of_runs, title_of_runs
from ddptools.report.training.rows import rows_of_runs
from ddptools.report.training.runs import MOST_RUNS, TrainingRun, are_runs, load_runs
from ddptools.report.training.watch import REFRESH_SECONDS, check_watched, watch


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
    add("--csv", type=path, metavar="FILE", help="also write a row per case or run, with units in the header")
    add("--md", type=path, metavar="FILE", help="also write the report as Markdown, without pictures")
    add("--title", help="title of the page")
    add("--watch", action="store_true", help="write the page again while runs of ddptrain --metrics go on, and let the "
        "browser read it again; ends with the runs, and if no process of this host has written them for minutes")  # fmt: skip
    instead = parser.add_mutually_exclusive_group().add_argument
    instead("--trace", type=path, metavar="FILE", help="draw the timeline of ddptrain --trace, instead of results")
    instead("--flight", type=path, metavar="DIR",
        help="explain the flight records of ddptrain --flight, instead of results")  # fmt: skip
    add("--step", type=int, metavar="N", help="draw only this step of the trace, counted from 0")
    add("--force", action="store_true", help="overwrite files that no ddpreport wrote")
    arguments = parser.parse_args(argv)
    page_alone = arguments.results or arguments.md or arguments.csv or arguments.watch
    if arguments.flight is not None and (page_alone or arguments.out) or arguments.trace is not None and page_alone:
        parser.error("--trace and --flight stand alone: results, --md, --csv and --watch belong to a page")
    if arguments.trace is None and arguments.step is not None:
        parser.error("--step belongs to --trace")
    if arguments.trace is None and arguments.flight is None:
        if not arguments.results:
            parser.error("give results of ddpsweep, files of ddptrain --metrics, --trace FILE or --flight DIR")
        if arguments.out is not None and arguments.out.suffix in (".svg", ".png"):
            parser.error(f"--out {arguments.out}: the page is HTML")
    return arguments


def check_files(arguments: argparse.Namespace) -> None:
    read = [Input("RESULTS", path) for path in arguments.results]
    read += [Input(flag, path) for flag, path in (("--trace", arguments.trace), ("--flight", arguments.flight)) if path]
    page = arguments.out if arguments.trace or arguments.flight else page_file(arguments)
    out = Output("--out", page, PICTURE if arguments.trace else PAGE)
    check_outputs([out, Output("--md", arguments.md, MARKDOWN), Output("--csv", arguments.csv, CSV)], read, arguments.force)


def main(argv: list[str]) -> int:
    arguments = parse_arguments(argv)
    check_files(arguments)
    if arguments.flight is not None:
        return report_flight(arguments.flight)
    if arguments.trace is not None:
        from ddptools.report.trace.picture import report_trace  # here: matplotlib takes a second to import

        return report_trace(arguments.trace, arguments.out, arguments.step)
    if arguments.watch:
        return watch_runs(arguments)
    if are_runs(arguments.results):
        check_number_of_runs(arguments.results)
        runs = load_runs(arguments.results)
        for run in runs:
            if run.bad_lines:
                print(f"ddpreport: {run.name}: {unread_text(run.bad_lines)}", file=sys.stderr)
        write_report(arguments, title_of_runs(runs), blocks_of_runs(runs), rows_of_runs(runs))
        print(f"{page_file(arguments)}: training runs: {len(runs)}")
        return 0
    results = load(arguments.results)
    for note in results.notes:
        print(f"ddpreport: {one_line(note)}", file=sys.stderr)
    write_report(arguments, title_of(results.experiments), blocks_of(results), rows_of_experiments(results.experiments))
    runs_made = sum(len(experiment.runs) for experiment in results.experiments)
    print(f"{page_file(arguments)}: {counted(len(results.experiments), 'experiment')}, {counted(runs_made, 'run')}")
    return 0


def watch_runs(arguments: argparse.Namespace) -> int:
    def write(runs: list[TrainingRun], refresh_seconds: int) -> None:
        write_report(arguments, title_of_runs(runs), blocks_of_runs(runs), rows_of_runs(runs), refresh_seconds)

    check_number_of_runs(arguments.results)
    check_watched(arguments.results)
    print(f"{page_file(arguments)}: open it in a browser, which reads it again every {REFRESH_SECONDS} s. Ctrl-C ends.", flush=True)
    told = watch(arguments.results, write)
    print(f"{page_file(arguments)}: {told}")
    return 0


def check_number_of_runs(paths: list[pathlib.Path]) -> None:
    if len(paths) > MOST_RUNS:
        raise UsageError(f"{len(paths)} runs: a picture shows {MOST_RUNS} at most: give fewer")


def page_file(arguments: argparse.Namespace) -> pathlib.Path:
    return arguments.out or pathlib.Path("report.html")


def write_report(
    arguments: argparse.Namespace, title: str, blocks: list[Block], rows: list[Row], refresh_seconds: int = 0
) -> None:
    """The page, and what else was asked for."""
    title = arguments.title or title
    if arguments.md:
        write_atomically(arguments.md, to_markdown(title, blocks))
    if arguments.csv:
        write_atomically(arguments.csv, to_csv(rows))
    write_atomically(page_file(arguments), to_html(title, blocks, refresh_seconds))
