"""The page of benchmarks/compare: one table of all rows, then a table for each work and number of ranks."""

import collections
import math
import pathlib
import re
import statistics
import tomllib
from typing import Any

from ddptools.common.table import Table, spread
from ddptools.common.text import number, percent, signed_percent
from ddptools.page.blocks import Block, Heading
from peers.rows import DDPTRAIN, LLMQ, LOSS, PYTORCH, Row
from peers.session import DIRTY, Group, Session, Trial, has

QUOTED = tomllib.loads((pathlib.Path(__file__).parent / "quoted.toml").read_text(encoding="utf-8"))["figure"]

FEWEST_WINDOWS = 3  # of a run: shorter ones have windows below a second


def title(session: Session) -> str:
    days = _days(_counted(session))
    return f"ddptrain and PyTorch side by side, {days or 'nothing measured'}"


def blocks(session: Session) -> list[Block]:
    made: list[Block] = [_how(session), _rows(session)]
    for group in session.groups:
        made += [Heading(2, group.name), _losses(session, group) if group.work.field == LOSS else _table(session, group)]
    quoted = [figure for figure in QUOTED if any(group.work.name == figure["work"] for group in session.groups)]
    if quoted:
        made += [Heading(2, "Figures of others"), _quoted(quoted)]
    trials = _trials(session)
    if trials.rows:
        made += [Heading(2, "Trials of torch.compile's modes"), trials]
    return [*made, Heading(2, "Machine, versions, commands"), *_facts(session)]


def _how(session: Session) -> str:
    settings = session.settings
    rows_here = [row for group in session.groups for row in group.rows]
    windows = "its windows of a second" if settings.seconds >= FEWEST_WINDOWS else "its windows"
    told = [
        f"Median of the rounds (smallest to largest; {settings.repeats} are wanted). In a round the programs ran in turn on "
        f"the same devices; a run is the median of {windows}, over {settings.seconds:g} s."
    ]
    if len(session.lanes()) > 1 and any(group.ranks == 1 for group in session.groups):
        told.append("Rounds of works for one GPU ran beside each other, each on a GPU of its own.")
    told.append("Synthetic data.")
    if any(row.program != DDPTRAIN for row in rows_here):
        told.append("Ratio: ddptrain over the fastest other program of the table, whose gradients have the same type if several "
                    "ranks sum them; median of the ratios of the rounds in which both ran.")  # fmt: skip
    if any(row.program == DDPTRAIN and _precision(row) == "fp8" for row in rows_here):
        told.append("The other programs compute in bf16, also beside ddptrain in FP8.")
    told.append("Efficiency: as ddptrain measures it within a run (see measuring); in brackets: rate / ranks / rate of the same "
                "row on one rank. Exposed: the communication for which a step waits, of the run whose interval is narrowest.")  # fmt: skip
    if any(row.program == PYTORCH for row in rows_here):
        told.append("PyTorch runs in the fastest of the modes that short trials found.")
    if any(row.program == LLMQ for row in rows_here):
        told.append("llmq: the median of the steps, whose time it measures itself; time between its steps does not count.")
    told.append("The sensors are read by ddptrain itself and by nvidia-smi beside other programs, both from NVML.")
    return " ".join(told)


# One table of all rows


def _rows(session: Session) -> Table:
    header = ["work", "ddptrain", "per second", "beside", "its mode", "per second", "ratio", "efficiency", "exposed, us", "loss",
              "runs", "commit", "day", "machine"]  # fmt: skip
    table_rows = []
    for group in session.groups:
        for row in group.rows:
            if row.program == DDPTRAIN and group.work.field != LOSS:
                table_rows.append(_one_row(session, group, row))
    return Table("All rows.", header, table_rows, _footnote(session))


def _one_row(session: Session, group: Group, row: Row) -> list[str]:
    flags = " ".join(row.flags) or "-"
    values = session.values(group.work, group.ranks, row)
    if not values:
        return [group.name, flags, f"not run: {_reason(session, group, row)}", *[""] * 11]
    best = _best_peer(session, group, row)
    peer = ["", "", "", ""]
    if best is not None:
        ratio = spread(_ratios(session, group, row, best), lambda value: f"{value:.2f}")
        peer = [_peer_name(group, best), _modes(session, group, best), spread(_peer_values(session, group, best)), ratio]
    records = session.rounds_of(group, row)
    return [group.name, flags, spread(values), *peer, _efficiency(session, group, row), _exposed(session, group, row),
            _loss_of(session, group, row), str(len(values)), _commit(session), _days(records), _machine(records)]  # fmt: skip


def _commit(session: Session) -> str:
    """Of every round that counts; the first 8 digits."""
    commit = session.same["commit"]
    return commit.removesuffix(DIRTY)[:8] + (DIRTY if commit.endswith(DIRTY) else "")


def _footnote(session: Session) -> str:
    rounds = [record for record in session.records.all if record["kind"] == "round"]
    others = len(rounds) - sum(record["kind"] == "round" and has(record, session.same) for record in session.all_that_may_count())
    told = (f"{others} rounds of another commit, version, kind of device or duration, or with other NCCL variables, are in the "
            "file and not counted. ") if others else ""  # fmt: skip
    if not session.has_exact_commit:
        told += f"The commit is {_commit(session)}: rounds of earlier sessions do not count. "
    records = _counted(session)
    if len({_days([record]) for record in records}) > 1:
        told += "The rows have different days: README takes rows of one day."
    return told.strip()


def _counted(session: Session) -> list[dict[str, Any]]:
    """Rounds with a result that counts."""
    rounds = [record for group in session.groups for row in group.rows for record in session.rounds_of(group, row)]
    return list({id(record): record for record in rounds}.values())


def _counted_runs(session: Session) -> list[tuple[Group, dict[str, Any]]]:
    return [(group, run) for group in session.groups for row in group.rows
            for run in session.runs(group.work, group.ranks, row)]  # fmt: skip


def _days(records: list[dict[str, Any]]) -> str:
    days = sorted({record["began"][:10] for record in records})
    return f"{days[0]} to {days[-1]}" if len(days) > 1 else "".join(days)


def _machine(records: list[dict[str, Any]]) -> str:
    told = []
    for record in records:
        gpus, driver = record["machine"]["gpus"], record["machine"]["driver"]
        told.append(f"{len(gpus)} x {gpus[0]}, driver {driver}" if gpus else record["machine"]["cpu"])
    return "; ".join(dict.fromkeys(told))


def _peers(group: Group, row: Row) -> list[Row]:
    """Rows of other programs that do the same as the row."""
    return [other for other in group.rows if other.program != DDPTRAIN
            and (group.ranks == 1 or other.gradients == row.gradients)]  # fmt: skip


def _best_peer(session: Session, group: Group, row: Row) -> Row | None:
    known = [(statistics.median(found), index, other) for index, other in enumerate(_peers(group, row))
             if (found := _peer_values(session, group, other))]  # fmt: skip
    return max(known)[2] if known and row.program == DDPTRAIN else None


def _peer_values(session: Session, group: Group, row: Row) -> list[float]:
    return session.values(group.work, group.ranks, row)


def _peer_name(group: Group, row: Row) -> str:
    if row.program != PYTORCH:
        return row.program
    return f"{PYTORCH} {row.kind}" if group.ranks > 1 else PYTORCH


def _modes(session: Session, group: Group, row: Row) -> str:
    return ", ".join(sorted({run["mode"] for run in session.runs(group.work, group.ranks, row) if "result" in run}))


def _ratios(session: Session, group: Group, row: Row, peer: Row) -> list[float]:
    """Of the rounds in which both have run."""
    ratios = []
    mode = session.best_mode(group, peer)
    for record in session.rounds(group.work, group.ranks):
        runs = [*session.runs_in(record, row, ""), *session.runs_in(record, peer, mode)]
        rates = {run["row"]: group.work.value(run["result"]) for run in runs if "result" in run}
        if row.name in rates and peer.name in rates:
            ratios.append(rates[row.name] / rates[peer.name])
    return ratios


def _efficiency(session: Session, group: Group, row: Row) -> str:
    if group.ranks == 1:
        return ""
    results = [run["result"] for run in session.runs(group.work, group.ranks, row) if "result" in run]
    measured = [result.get("scaling_efficiency") for result in results]
    told = spread([value for value in measured if value is not None], percent)
    alone = session.values(group.work, 1, _alone(group, row))
    here = session.values(group.work, group.ranks, row)
    if alone and here and "--shard" not in row.flags:
        told += f" ({percent(statistics.median(here) / group.ranks / statistics.median(alone))})"
    return told.strip()


def _alone(group: Group, row: Row) -> Row:
    """The same program's row on one rank: PyTorch's may have gradients of another type, which it does not send."""
    peers = [each for each in group.work.rows(1) if each.program == PYTORCH and "--shard" not in each.flags]
    return peers[0] if row.program == PYTORCH and peers else row


def _exposed(session: Session, group: Group, row: Row) -> str:
    """Communication that a step waits for, in the run with the narrowest interval."""
    known = [(width, run["result"]["exposed_comm_us"]) for run in session.runs(group.work, group.ranks, row)
             if (width := run.get("result", {}).get("exposed_comm_us_half_width")) is not None]  # fmt: skip
    return f"{min(known)[1]:,.0f} +- {min(known)[0]:,.0f}" if known else ""


def _loss_of(session: Session, group: Group, row: Row) -> str:
    """Of the same precision after equal steps."""
    precision = _precision(row)
    for work in session.works:
        for other in work.ddptrain_rows if work.name == group.work.learns_in else ():
            if _precision(other) == precision and (found := session.values(work, 1, other)):
                return f"{statistics.median(found):.4f}"
    return ""


def _precision(row: Row) -> str:
    return row.flags[row.flags.index("--precision") + 1] if "--precision" in row.flags else "bf16"


# A table for each group


def _table(session: Session, group: Group) -> Table:
    header = ["program", f"{group.work.unit}/s", "runs", "ratio", "efficiency", "MHz (lowest)", "W", "highest C"]
    quoted = _quoted_here(session, group)
    if quoted:
        header.append(f"beside {quoted['program']}'s {number(quoted['per_second'])} (quoted)")
    table_rows = []
    for row in group.rows:
        found = session.values(group.work, group.ranks, row)
        if found:
            best = _best_peer(session, group, row)
            ratios = _ratios(session, group, row, best) if best else []
            ratio = f"{statistics.median(ratios):.2f}" if ratios else ""
            cells = [spread(found), str(len(found)), ratio, _efficiency(session, group, row),
                     *_sensors([run for run in session.runs(group.work, group.ranks, row) if "result" in run])]  # fmt: skip
        else:
            cells = [f"not run: {_reason(session, group, row)}", "0", *[""] * 5]
        if quoted:
            cells.append(f"{statistics.median(found) / quoted['per_second']:.2f}" if found else "")
        table_rows.append([_label(session, group, row), *cells])
    return Table(f"{group.name}.", header, table_rows)


def _losses(session: Session, group: Group) -> Table:
    table_rows = []
    first = session.values(group.work, group.ranks, group.rows[0])
    for row in group.rows:
        found = session.values(group.work, group.ranks, row)
        shown = spread(found, lambda value: f"{value:.4f}") or f"not run: {_reason(session, group, row)}"
        change = signed_percent(statistics.median(found) / statistics.median(first) - 1) if found and first else ""
        table_rows.append([row.name, shown, str(len(found)), change])
    header = ["program", "loss", "runs", "beside the first row"]
    return Table("Validation loss in nats per token, on a text.", header, table_rows)


def _label(session: Session, group: Group, row: Row) -> str:
    if row.program != PYTORCH:
        return row.name
    name = row.name if group.ranks > 1 else PYTORCH
    modes = _modes(session, group, row)
    return f"{name}, {modes}" if modes else name


def _reason(session: Session, group: Group, row: Row) -> str:
    runs = session.runs(group.work, group.ranks, row)
    trials = [record for trial in session.all_trials(group, row) if (record := session.trial_record(trial))]
    errors = [f"{run['mode']}: {run['error']}".removeprefix(": ") for run in (*runs, *trials) if "error" in run]
    if why := session.why_not(group.ranks, row):
        return why
    if not session.modes(group.work, row):
        return f"none of --modes is among its modes ({', '.join(group.work.modes(row))})"
    if errors:
        return "; ".join(dict.fromkeys(errors))
    if session.interrupted.is_set():
        return "the measurement was interrupted"
    return "no time was left" if math.isfinite(session.settings.seconds_left) else "not measured yet"


def _sensors(runs: list[dict[str, Any]]) -> list[str]:
    known = [run["sensors"] for run in runs if run["sensors"]]

    def middle(name: str) -> str:
        values = [sensors[name] for sensors in known if sensors.get(name) is not None]
        return f"{statistics.median(values):,.0f}" if values else ""

    if not known:
        return ["", "", ""]
    lowest = min(sensors["sm_mhz_min"] for sensors in known)
    return [f"{middle('sm_mhz')} ({lowest:,.0f})", middle("watts"), middle("celsius_max")]


def _quoted_here(session: Session, group: Group) -> dict[str, Any] | None:
    return next((figure for figure in QUOTED if (figure["work"], figure["ranks"]) == (group.work.name, group.ranks)
                 and figure["gpu"] in session.device_name), None)  # fmt: skip


def _quoted(figures: list[dict[str, Any]]) -> Table:
    table_rows = [[f["program"], f["work"], f"{f['ranks']} {f['gpu']}", number(f["per_second"]), f["source"]]
                  for f in figures]  # fmt: skip
    return Table("Quoted, not measured here.", ["program", "work", "GPUs", "per second", "source"], table_rows)


def _trials(session: Session) -> Table:
    works = {work.name: work for work in session.works}
    table_rows = []
    for record in session.trial_records().values():
        if record["work"] in works:
            value = works[record["work"]].value(record["result"]) if "result" in record else None
            shown = number(value) if value else f"failed: {record['error']}"
            table_rows.append([record["work"], str(record["ranks"]), record["row"], record["mode"], shown, _days([record])])
    beside = "; on one rank, beside each other on all GPUs" if len(session.lanes()) > 1 else ""
    caption = f"One run of {session.settings.trial_seconds:g} s each{beside}."
    return Table(caption, ["work", "ranks", "row", "mode", "per second", "day"], table_rows)


def _facts(session: Session) -> list[Block]:
    """Every machine and version of the rounds that count; this machine if there is none."""
    runs = _counted_runs(session)
    machines = dict.fromkeys(_about(record["machine"]) for record in _counted(session)) or [_about(session.about)]
    peers = dict.fromkeys(f"PyTorch {peer['torch']}, CUDA {peer['cuda']}, cuDNN {peer['cudnn']}, NCCL {peer['nccl']}"
                          for _, run in runs if "torch" in (peer := run.get("result", {})))  # fmt: skip
    versions = f"{' / '.join(peers)}. " if peers else ""
    nccl = " ".join(f"{name}={value}" for name, value in session.same["nccl_environment"].items()) or "none"
    last = {(group.work.name, group.ranks, run["row"]): run["command"] for group, run in runs if "command" in run}
    python = session.settings.python
    commands = [[work, str(ranks), f"`{re.sub(r'--metrics .*', '--metrics FILE', command).replace(python, 'python3')}`"]
                for (work, ranks, _), command in last.items()]  # fmt: skip
    return [
        f"{' / '.join(machines)}; {session.same['ddptrain']}; commit {session.same['commit']}. {versions}NCCL variables: {nccl}.",
        f"Failed: {sum('error' in run for _, run in runs)} of {len(runs)} runs.",
        Table("Commands.", ["work", "ranks", "command"], commands),
    ]


def _about(machine: dict[str, Any]) -> str:
    gpus = f"{len(machine['gpus'])} x {machine['gpus'][0]}, driver {machine['driver']}" if machine["gpus"] else "no GPU"
    return f"{gpus}; {machine['cores']} x {machine['cpu']}; {machine['system']}"


def plan_text(session: Session) -> str:
    units = session.left_over()
    lines = ["Trials and rounds on one GPU run beside each other, one per GPU."] if len(session.lanes()) > 1 else []
    lines.append(f"{'seconds':>8}  what")
    for (seconds, name), count in collections.Counter((session.estimate_seconds(unit), unit.name) for unit in units).items():
        lines.append(f"{seconds:8.0f}  {f'{count} x ' if count > 1 else ''}{name}")
    for ranks in session.settings.ranks:
        if why := session.why_not(ranks):
            lines.append(f"{'-':>8}  {ranks} ranks: {why}")
    seconds = sum(_lane_seconds(session, unit) for unit in units)
    rounds = sum(not isinstance(unit, Trial) for unit in units)
    return "\n".join([*lines, f"{len(units) - rounds} trials and {rounds} rounds, about {seconds:.0f} s "
                      f"({seconds / 60:.0f} minutes) in all"])  # fmt: skip


def _lane_seconds(session: Session, unit: Any) -> float:
    ranks = unit.ranks if isinstance(unit, Trial) else unit.group.ranks
    return session.estimate_seconds(unit) / (len(session.lanes()) if ranks == 1 else 1)


def failed(session: Session) -> int:
    """Runs of the rounds that count, and trials of rows that have no mode."""
    without_mode = [(group, row) for group in session.possible() for row in group.rows
                    if session.has_mode(group, row) and session.best_mode(group, row) is None]  # fmt: skip
    trials = {trial for group, row in without_mode for trial in session.all_trials(group, row)}
    failed_trials = sum("error" in (session.trial_record(trial) or {}) for trial in trials)
    return failed_trials + sum("error" in run for _, run in _counted_runs(session))
