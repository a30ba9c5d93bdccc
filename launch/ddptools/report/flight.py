"""Flight records of a job's ranks (docs/reference/flight-record.md), and the program behind `ddpreport --flight`."""

import dataclasses
import pathlib
from typing import Any

from ddptools.common.errors import UsageError
from ddptools.common.files import read_records
from ddptools.common.text import one_line
from ddptools.common.values import grouped
from ddptools.common.table import Table, to_text


@dataclasses.dataclass
class Flight:
    path: pathlib.Path
    first: dict[str, Any]
    peers: dict[int, dict[str, Any]]
    collectives: dict[int, dict[str, Any]]  # by sequence number
    damaged: int  # lines that could not be read

    @property
    def rank(self) -> int:
        return int(self.first["rank"])

    @property
    def waits(self) -> bool:
        """Otherwise it computed, or was stuck outside of a wait."""
        return bool(self.first.get("waiting_for"))


def read(path: pathlib.Path) -> Flight | None:
    """None where the file is no flight record. Lines may be cut: a process may end while it writes."""
    bad: list[int] = []
    first, *lines = list(read_records(path, bad, needed="event")) or [{}]
    if first.get("event") != "flight" or not isinstance(first.get("rank"), int):
        return None
    of_event = grouped((line["event"], line) for line in lines)
    return Flight(
        path,
        first,
        peers={line["rank"]: line for line in of_event.get("peer", [])},
        collectives={line["sequence"]: line for line in of_event.get("collective", [])},
        damaged=len(bad),
    )


def load(folder: pathlib.Path) -> list[Flight]:
    """Of the newest job."""
    found = [flight for path in sorted(folder.glob("*.jsonl")) if (flight := read(path))]
    if not found:
        raise UsageError(f"--flight {folder}: no flight record in it. ddptrain --flight DIR writes them there.")
    newest = max(found, key=lambda flight: flight.first["time"])
    return sorted((f for f in found if f.first["job"] == newest.first["job"]), key=lambda flight: flight.rank)


def collective_name(line: dict[str, Any]) -> str:
    bucket = "" if line["bucket"] is None else f" of bucket {line['bucket']}"
    return f"{line['name']}{bucket}"


def progress_row(rank: int, host: str, line: dict[str, Any], source: str) -> list[str]:
    """`line`: a record's first one, or what another rank knew."""
    waits = line.get("waiting_for") or "nobody"
    collective = "none"
    if line.get("sequence"):
        collective = f"{line['sequence']} {collective_name({'name': line['collective'], 'bucket': line.get('bucket')})}"
    steps = f"{line.get('steps_ended', '?')} of {line.get('steps_queued', '?')}"
    since = f"{line.get('seconds', 0.0):.1f} s"
    return [f"{rank}", host, line.get("phase", "?"), waits, since, steps, collective, source]


def rank_table(flights: list[Flight]) -> Table:
    header = ["rank", "host", "phase", "waits for", "since", "steps ended", "open collective", "according to"]
    rows = {f.rank: progress_row(f.rank, f.first["host"], f.first, "its own record") for f in flights}
    for flight in flights:
        for rank, peer in flight.peers.items():
            if rank in rows:
                continue
            heard = peer["heard_seconds_ago"]
            source = "nobody" if heard is None else f"rank {flight.rank}, {heard:.1f} s before"
            rows[rank] = progress_row(rank, peer["host"], peer, source)
    return Table("Ranks", header, [rows[rank] for rank in sorted(rows)])


def ranks_of(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def first_difference(flights: list[Flight]) -> str:
    """The first collective that the ranks with a record do not all have, or have in different ways."""
    with_calls = [flight for flight in flights if flight.collectives]
    if len(with_calls) < 2:
        return "There are not two records of collectives to compare."
    begin = max(min(flight.collectives) for flight in with_calls)
    for sequence in range(begin, max(max(flight.collectives) for flight in with_calls) + 1):
        having = [flight for flight in with_calls if sequence in flight.collectives]
        without = [flight.rank for flight in with_calls if sequence not in flight.collectives]
        kinds = grouped((collective_name(flight.collectives[sequence]), flight.rank) for flight in having)
        if len(kinds) > 1:
            which = "; ".join(f"{ranks_of(ranks)} called {name}" for name, ranks in kinds.items())
            return f"Collective {sequence} is not the same on all ranks: {which}."
        called = f"{sequence}, {next(iter(kinds))} after {having[0].collectives[sequence]['step']} steps"
        open_on = [flight for flight in having if flight.collectives[sequence]["finished"] is None]
        waiting = [flight.rank for flight in open_on if flight.waits]
        if without:
            others = f", in which {ranks_of(waiting)} waited" if waiting else ""
            return f"{ranks_of(without)} never called collective {called}{others}.".capitalize()
        if open_on and len(open_on) < len(having):
            return f"Collective {called}, ended on some ranks, and not on {ranks_of([f.rank for f in open_on])}."
        if len(open_on) > len(waiting):
            others = ranks_of([flight.rank for flight in open_on if not flight.waits])
            return f"Collective {called}, ended on none of these ranks, but {others} did not wait in it."
        if open_on:
            return f"All these ranks waited in collective {called}."
    return "All these ranks called the same collectives, and all of them ended."


def silent_ranks(flights: list[Flight]) -> list[str]:
    """A sentence for each rank that wrote its record although it had not answered: it stood still until later."""
    sentences = {}
    for flight in flights:
        for rank, peer in flight.peers.items():
            if not peer["answers"] and any(other.rank == rank for other in flights):
                heard = peer["heard_seconds_ago"]
                last = "" if heard is None else f", which last heard of it {heard:.1f} s before"
                sentences.setdefault(rank, f"Rank {rank} did not answer rank {flight.rank}{last}. It wrote its record later.")
    return [sentences[rank] for rank in sorted(sentences)]


def report_flight(folder: pathlib.Path) -> int:
    flights = load(folder)
    for flight in flights:
        if flight.first["reason"] != "asked":
            print(one_line(str(flight.first["message"])))
    print("\n" + to_text(rank_table(flights)))
    print(f"First difference: {first_difference(flights)}")
    print("".join(f"{sentence}\n" for sentence in silent_ranks(flights)), end="")
    world_size = max(flight.first["world_size"] for flight in flights)
    if missing := sorted(set(range(world_size)) - {flight.rank for flight in flights}):
        print(f"There is no record of {ranks_of(missing)} in {folder}.")
    for flight in flights:
        if flight.damaged:
            print(f"{flight.path}: {flight.damaged} lines could not be read")
    return 0
