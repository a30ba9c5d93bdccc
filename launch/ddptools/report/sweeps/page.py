"""The page that explains the results of sweeps."""

from ddptools.common.files import short_names
from ddptools.common.values import grouped
from ddptools.page.blocks import Answer, Block, Disturbed, Entry, Heading, HowToRead, Notes, Summary, Warnings
from ddptools.pictures.charts import Picture
from ddptools.report.sweeps.answers import answers, limited
from ddptools.report.sweeps.experiment import Experiment, Results
from ddptools.report.sweeps.lost_time import losses, lost_time_table, lost_time_words
from ddptools.report.sweeps.machines import same_cases
from ddptools.report.sweeps.numerics import UNEXPLAINED, choices, numerics
from ddptools.report.sweeps.plots import lost_time_pictures, pictures
from ddptools.report.sweeps.tables import failures, machine_table, tables
from ddptools.report.sweeps.warnings import disturbed_cases, first_line, warnings_of
from ddptools.results.machine import short_name

MOST_EXPERIMENTS = 50
MOST_ANSWERS = 4  # of an experiment, in the summary


def blocks_of(results: Results) -> list[Block]:
    disturbed = first_line(results.experiments)
    blocks: list[Block] = [Disturbed([disturbed])] if disturbed else []
    blocks += [Notes(results.notes)] if results.notes else []
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
    compared = same_cases(shown)
    blocks += [Summary(entries)]
    blocks += [Heading(2, "The same cases on several machines"), compared] if compared.rows else []
    blocks += sections
    left = len(results.experiments) - MOST_EXPERIMENTS
    if left > 0:
        blocks.append(f"{left} more experiments are left out: give fewer results at a time.")
    return [*blocks, Heading(2, "Machine"), machine_table(shown), HowToRead()]


def entry_of(experiment: Experiment, title: str, facts: str, picture: Picture | None) -> Entry:
    found = answers(experiment)
    more = [Answer("", f"{len(found) - MOST_ANSWERS} more are below")] if len(found) > MOST_ANSWERS else []
    return Entry(title, experiment.description, facts, found[:MOST_ANSWERS] + more, picture)


def measured_on(experiments: list[Experiment]) -> str:
    machines = list(dict.fromkeys(short_name(machine) for e in experiments for machine in e.machines))
    days = sorted({str(r.get("started"))[:10] for e in experiments for r in e.records if r.get("started")})
    date = [days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"] if days else []
    return ", ".join([*([" and ".join(machines[:2])] if len(machines) < 3 else [f"{len(machines)} machines"]), *date])


def title_of(experiments: list[Experiment]) -> str:
    names = list(dict.fromkeys(experiment.sweep for experiment in experiments))
    name = ", ".join(names) if len(names) < 4 else f"{len(names)} sweeps"
    return " on ".join(filter(None, [name, measured_on(experiments)])) or "Measurements"


def titles_of(experiments: list[Experiment]) -> list[str]:
    """Different ones: those that several experiments share say their folder, as far as it tells them apart."""
    titles = [experiment.title for experiment in experiments]
    for title, alike in grouped(zip(titles, range(len(titles)))).items():
        folders = short_names([experiments[i].source.parent for i in alike]) if len(alike) > 1 else []
        for i, folder in zip(alike, folders):
            titles[i] = f"{title} in {folder}"
    return titles


def experiment_blocks(experiment: Experiment, drawn: list[Picture]) -> list[Block]:
    """`drawn`: its pictures, without the one of the summary."""
    blocks: list[Block] = [Notes(experiment.notes)] if experiment.notes else []
    if any(case.emulated for case in experiment.cases):
        ways = dict.fromkeys(str(record["emulation"]) for record in experiment.records if record.get("emulation"))
        how = ", ".join(ways) or "emulation unknown"
        blocks.append(Notes([f"Nodes were emulated on one machine ({how}): numbers marked emulated are no network's."]))
    same = numerics(experiment)
    warned = warnings_of(experiment) + [line for line in same if UNEXPLAINED in line]
    disturbed = disturbed_cases(experiment)
    blocks += [Disturbed(disturbed)] if disturbed else []
    blocks += [Warnings(warned)] if warned else []
    further = answers(experiment)[MOST_ANSWERS:]
    if further:
        blocks += [Heading(3, "In words"), *limited(answer.sentence for answer in further)]
    if experiment.measured:
        blocks += [Heading(3, "Measured"), *tables(experiment), *drawn]
    lost = losses(experiment)
    if lost:
        blocks += [Heading(3, "Where the time went"), lost_time_words(lost)]
        blocks += lost_time_pictures(lost, any(case.emulated for case in experiment.measured))
        blocks += [lost_time_table(lost)]
    explained = [line for line in same if line not in warned]
    for heading, lines in (("What NCCL chose", choices(experiment)), ("Numerics", explained)):
        blocks += [Heading(3, heading), *lines] if lines else []
    failed = failures(experiment)
    return [*blocks, Heading(3, "Failed and skipped"), failed] if failed.rows else blocks
