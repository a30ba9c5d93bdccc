"""The page of benchmarks/compare: a table for each work and number of ranks."""

import pathlib
import re
import statistics
import tomllib
from typing import Any

from ddptools.common.table import Table, spread
from ddptools.common.text import number, percent
from ddptools.page.blocks import Block, Heading
from peers.rows import DDPTRAIN, PYTORCH, Row, Work
from peers.session import Run, Session, group_name

QUOTED = tomllib.loads((pathlib.Path(__file__).parent / "quoted.toml").read_text(encoding="utf-8"))["figure"]


def title(document: dict[str, Any]) -> str:
    return f"ddptrain and PyTorch DDP side by side, {document['date']}"


def blocks(session: Session) -> list[Block]:
    made: list[Block] = [_how(session)]
    for work, ranks, wanted in session.groups():
        made.append(Heading(2, group_name(work, ranks)))
        made.append(_table(session, work, ranks, wanted))
    quoted = [figure for figure in QUOTED if any(work.name == figure["work"] for work, _, _ in session.groups())]
    if quoted:
        made += [Heading(2, "Figures of others"), _quoted(quoted)]
    trials = _trials(session)
    if trials.rows:
        made += [Heading(2, "Trials of torch.compile's modes"), trials]
    return [*made, Heading(2, "Machine, versions, commands"), *_facts(session)]


def results(session: Session, work: Work, ranks: int, row: Row) -> list[dict[str, Any]]:
    """Records of the runs that count and did not fail."""
    return [r for r in session.document["runs"]
            if (r["work"], r["ranks"], r["row"]) == (work.name, ranks, row.name) and r["repeat"] is not None
            and "result" in r]  # fmt: skip


def rates(session: Session, work: Work, ranks: int, row: Row) -> list[float]:
    return [session.rate(record, work) for record in results(session, work, ranks, row)]


def _how(session: Session) -> str:
    settings = session.settings
    return (
        f"Median of {settings.repeats} runs (smallest to largest), which the programs made in turn on the same devices; a "
        f"run is the median of its windows of a second, over {settings.seconds:g} s. Synthetic data. Ratio: ddptrain over "
        f"PyTorch in the same table, whose gradients have the same type where several ranks sum them. Efficiency: rate / "
        f"ranks / rate of the same row on one rank. PyTorch runs in the fastest of the modes that short trials found. "
        f"The sensors are read by ddptrain itself and by nvidia-smi beside PyTorch, both from NVML."
    )


def _table(session: Session, work: Work, ranks: int, wanted: list[Row]) -> Table:
    header = ["program", f"{work.unit}/s", "runs", "ratio", "efficiency", "MHz (lowest)", "W", "highest C"]
    quoted = _quoted_here(session, work, ranks)
    if quoted:
        header.append(f"beside {quoted['program']}'s {number(quoted['per_second'])} (quoted)")
    table_rows = []
    for row in wanted:
        found = rates(session, work, ranks, row)
        if found:
            cells = [spread(found), str(len(found)), _ratio(session, work, ranks, row),
                     _efficiency(session, work, ranks, row), *_sensors(results(session, work, ranks, row))]  # fmt: skip
        else:
            cells = [f"not run: {_reason(session, work, ranks, row)}", "0", *[""] * 5]
        if quoted:
            cells.append(f"{statistics.median(found) / quoted['per_second']:.2f}" if found else "")
        table_rows.append([_label(session, work, ranks, row), *cells])
    return Table(f"{group_name(work, ranks)}.", header, table_rows)


def _label(session: Session, work: Work, ranks: int, row: Row) -> str:
    if row.program == DDPTRAIN:
        return row.name
    name = row.name if ranks > 1 else "PyTorch"
    modes = sorted({record["mode"] for record in results(session, work, ranks, row)})
    return f"{name}, {', '.join(modes)}" if modes else name


def _reason(session: Session, work: Work, ranks: int, row: Row) -> str:
    mine = [r for r in session.document["runs"] if (r["work"], r["ranks"], r["row"]) == (work.name, ranks, row.name)]
    errors = [f"{record['mode']}: {record['error']}".removeprefix(": ") for record in mine if "error" in record]
    return session.why_not(ranks) or "; ".join(dict.fromkeys(errors)) or "no time was left"


def _ratio(session: Session, work: Work, ranks: int, row: Row) -> str:
    gradients = row.gradients if ranks > 1 else "fp32"
    peer = rates(session, work, ranks, Row(PYTORCH, gradients))
    own = rates(session, work, ranks, row)
    return f"{statistics.median(own) / statistics.median(peer):.2f}" if peer and row.program == DDPTRAIN else ""


def _efficiency(session: Session, work: Work, ranks: int, row: Row) -> str:
    alone = rates(session, work, 1, row if row.program == DDPTRAIN else Row(PYTORCH, "fp32"))
    if ranks == 1 or not alone:
        return ""
    return percent(statistics.median(rates(session, work, ranks, row)) / ranks / statistics.median(alone))


def _sensors(records: list[dict[str, Any]]) -> list[str]:
    known = [record["sensors"] for record in records if record["sensors"]]

    def middle(name: str) -> str:
        values = [sensors[name] for sensors in known if sensors.get(name) is not None]
        return f"{statistics.median(values):,.0f}" if values else ""

    if not known:
        return ["", "", ""]
    lowest = min(sensors["sm_mhz_min"] for sensors in known)
    return [f"{middle('sm_mhz')} ({lowest:,.0f})", middle("watts"), middle("celsius_max")]


def _quoted_here(session: Session, work: Work, ranks: int) -> dict[str, Any] | None:
    gpu = (session.machine.gpus or [""])[0]
    return next((figure for figure in QUOTED if (figure["work"], figure["ranks"]) == (work.name, ranks)
                 and figure["gpu"] in gpu), None)  # fmt: skip


def _quoted(figures: list[dict[str, Any]]) -> Table:
    table_rows = [[f["program"], f["work"], f"{f['ranks']} {f['gpu']}", number(f["per_second"]), f["source"]]
                  for f in figures]  # fmt: skip
    return Table("Quoted, not measured here.", ["program", "work", "GPUs", "per second", "source"], table_rows)


def _trials(session: Session) -> Table:
    units = {work.name: work.unit for work, _, _ in session.groups()}
    table_rows = []
    for record in session.document["runs"]:
        if record["repeat"] is None and record["work"] in units:
            result = record.get("result", {}).get(f"{units[record['work']]}_per_second")
            shown = number(result) if result else f"failed: {record['error']}"
            table_rows.append([record["work"], str(record["ranks"]), record["row"], record["mode"], shown])
    caption = f"One run of {session.settings.trial_seconds:g} s each; on one rank, beside each other on all GPUs."
    return Table(caption, ["work", "ranks", "row", "mode", "per second"], table_rows)


def _facts(session: Session) -> list[Block]:
    machine, runs = session.document["machine"], session.document["runs"]
    gpus = f"{len(machine['gpus'])} x {machine['gpus'][0]}, driver {machine['driver']}" if machine["gpus"] else "no GPU"
    peer = next((r["result"] for r in runs if "torch" in r.get("result", {})), None)
    versions = f"PyTorch {peer['torch']}, CUDA {peer['cuda']}, cuDNN {peer['cudnn']}, NCCL {peer['nccl']}" if peer else ""
    nccl = " ".join(f"{name}={value}" for name, value in machine["nccl_environment"].items()) or "none"
    last = {(r["work"], r["ranks"], r["row"]): r["command"] for r in runs if r["repeat"] is not None and "command" in r}
    python = session.settings.python
    commands = [[group, str(ranks), f"`{re.sub(r'--metrics .*', '--metrics FILE', command).replace(python, 'python3')}`"]
                for (group, ranks, _), command in last.items()]  # fmt: skip
    return [
        f"{gpus}; {machine['cores']} x {machine['cpu']}; {machine['system']}; {machine['ddptrain']}; commit "
        f"{machine['commit']}. {versions}. NCCL variables: {nccl}.",
        f"Failed: {sum('error' in r for r in runs)} of {len(runs)} runs and trials.",
        Table("Commands.", ["work", "ranks", "command"], commands),
    ]


def plan_text(session: Session, runs: list[Run]) -> str:
    lines = ["Trials on one GPU run beside each other, one per GPU.", f"{'seconds':>8}  run"]
    lines += [f"{session.estimate_seconds(run):8.0f}  {'trial, ' if run.repeat is None else ''}{run.name}" for run in runs]
    for ranks in session.settings.ranks:
        if why := session.why_not(ranks):
            lines.append(f"{'-':>8}  {ranks} ranks: {why}")
    seconds = session.pending_seconds(runs)
    return "\n".join([*lines, f"{len(runs)} runs, about {seconds:.0f} s ({seconds / 60:.0f} minutes) in all"])
