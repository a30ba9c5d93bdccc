"""NCCL's log, as NCCL 2.8 to 2.32 write it with NCCL_DEBUG=INFO. The lines of several ranks, and a program's own output,
may be mixed."""

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from ddptools.common.values import grouped

MOST_ADAPTERS = 256
MOST_VALUES = 8  # of a variable, on different ranks

UNNAMED_COLLECTIVE = "Collective"  # versions 2.20 to 2.22 do not say which
VALUE_SEPARATOR = " | "

# Older versions write numbers, newer ones capitals.
ALGORITHMS = {"0": "Tree", "1": "Ring", "2": "CollNetDirect", "3": "CollNetChain", "4": "NVLS", "5": "NVLSTree",
              "6": "PAT", "RING": "Ring", "TREE": "Tree"}  # fmt: skip
PROTOCOLS = {"0": "LL", "1": "LL128", "2": "Simple", "SIMPLE": "Simple"}


@dataclasses.dataclass(order=True)
class Transport:
    """One direction between two ranks on one channel."""

    source: int
    target: int
    channel: int
    via: str  # P2P/CUMEM/read, P2P/IPC, SHM/direct/direct, NET/IB/0/GDRDMA ...; of two ends, the sending one's
    receives_via: str = dataclasses.field(default="", compare=False)  # the receiving end's, if both ends are logged


@dataclasses.dataclass
class Log:
    """Of the first communicator. If lines contradict each other, the first counts. 0 and empty: the log does not say."""

    version: str = ""
    ranks: int = 0
    ranks_told: bool = False  # otherwise counted from the ranks that rings, trees and transports name
    nodes: int = 0
    channels: int = 0
    nvls_channels: int | None = None
    has_nvswitch: bool = False
    rings: dict[int, list[int]] = dataclasses.field(default_factory=dict)  # by channel; only complete ones
    trees: dict[int, dict[int, dict[str, Any]]] = dataclasses.field(default_factory=dict)  # by channel and rank
    transports: list[Transport] = dataclasses.field(default_factory=list)
    choices: dict[tuple[str, int], dict[str, Any]] = dataclasses.field(default_factory=dict)  # by collective and bytes
    ranks_by_node: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    network: str = ""
    adapters: list[str] = dataclasses.field(default_factory=list)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    contradictions: int = 0
    other_choices: int = 0  # lines that choose otherwise for a size than an earlier line
    unreadable_lines: int = 0

    def says_nothing(self) -> bool:
        numbers = self.ranks or self.channels or self.unreadable_lines
        return not (self.version or numbers or self.environment or self.choices or self.network)


class Unreadable(Exception):
    """A known kind of line that is cut, damaged or of an unknown form. What came before may be kept."""


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


NAME = r"([A-Za-z0-9_-]*)"
RANK = r"(\d{1,6})(?!\d)"
CHANNEL = r"(\d{1,3})(?!\d)"
PEER = RANK + r"(?:\[[^\]]*\]|(?!\[))"
NETWORK = r"[A-Za-z0-9_ -]*"  # with a space, as AWS Libfabric
VIA = (
    r"((?:(?! via ).)*) via (direct shared memory|P2P/(?:direct pointer|CUMEM|MNNVL|IPC)(?:/read)?|P2P/indirect/\d{1,6}"
    r"|SHM/(?:direct|CE)/(?:direct|CE)"
    rf"|NET/{NETWORK}/\d{{1,7}}(?:\(\d{{1,6}}\)|(?!\())(?:/GDRDMA)?(?:\(PCI\))?(?:/Shared)?)"
)
# Of each kind of message, what follows the words that tell the kind.
RING = _compiled(rf"{CHANNEL}/{CHANNEL} *:((?: *\d{{1,6}}(?!\d))+)")
TRANSPORT = _compiled(rf"{CHANNEL}(?:/\d+)? *: *{PEER} -> {PEER}{VIA}")
NEIGHBOURS = _compiled(rf"{RANK} -> {RANK} -> {RANK}")
TREE = _compiled(rf" *\[{CHANNEL}\] (-1|\d{{1,6}})/(-1|\d{{1,6}})/(-1|\d{{1,6}})->(\d{{1,6}})->(-1|\d{{1,6}})(?:\|[^ ]*)?")
RANKS = _compiled(
    rf"{RANK} n[Rr]anks {RANK}(?: nNodes {RANK}(?: localRanks {RANK}(?: localRank {RANK})?)?|(?! nNodes ))"
)
VERSION = _compiled(r"(\d{1,5})\.(\d{1,5})\.(\d{1,5})(?!\d)")
ENVIRONMENT = _compiled(r"(NCCL_[A-Za-z0-9_-]*) set (?:by environment )?to ")
CHANNEL_COUNTS = _compiled(rf"{CHANNEL} coll channels(?:.*? collnet channels)?(?:, {CHANNEL} nvls channels)?")
COLLECTIVE = _compiled(r"(?!\d)([A-Za-z0-9_-]*)(?: \[Symmetric\])?: |(?=\d)")
CHOICE = _compiled(
    rf"(\d{{1,18}}) Bytes -> (?:Kernel {NAME} nchannels {CHANNEL}"
    rf"|Algo {NAME} proto {NAME}(?: time | channel{{Lo\.\.Hi}}={{{CHANNEL}\.\.{CHANNEL}}}))"
)
PROCESS = _compiled(r"([A-Za-z0-9_.-]*):(\d+):\d+$")
COMMUNICATOR = _compiled(r"(?:\[Rank \d{1,6}\] *)?(?:nccl\w+ +)?comm (0x[0-9a-fA-F]{1,16}) rank ")
COMMUNICATOR_ID = _compiled(r" commId (0x[0-9a-fA-F]{1,16})")
# Not the words of a sentence. mpirun, srun and other launchers put their marks before a line.
BARE_VERSION = _compiled(r"(?:.*[^A-Za-z0-9 ])? *(NCCL version .*)")


def matched(pattern: re.Pattern[str], text: str, at: int = 0) -> re.Match[str]:
    found = pattern.match(text, at)
    if not found:
        raise Unreadable
    return found


@dataclasses.dataclass
class Process:
    """One that writes into the log. It is in the first communicator until its lines say otherwise."""

    host: str = ""
    members: set[str] = dataclasses.field(default_factory=set)  # addresses of the first communicator, one for each GPU
    others: set[str] = dataclasses.field(default_factory=set)  # addresses of later communicators

    def is_elsewhere(self) -> bool:
        return bool(self.others) and not self.members

    def is_in_several(self) -> bool:
        return bool(self.others) and bool(self.members)


class Reader:
    """One pass over a log. Every method named after a kind of line gets what follows the words that tell the kind."""

    def __init__(self) -> None:
        self.log = Log()
        self._first: dict[str, Any] = {}  # of what each rank says: version, ranks, nodes, network
        # By source, target and channel: what the lines say, by their end of the connection ("[send]", "[receive]", "").
        self._transports: dict[tuple[int, int, int], dict[str, str]] = {}
        # The same of processes that had several communicators by then: nothing tells whose connection it is.
        self._doubtful: dict[tuple[int, int, int], dict[str, set[str]]] = {}
        self._processes: dict[str, Process] = {}
        self._process = Process()  # with which the message begins
        self._communicator_id = ""  # of the first one
        self._members: set[int] = set()  # the ranks of the first communicator that have been seen
        self._environment: dict[str, list[str]] = {}
        self._next_ranks: dict[int, dict[int, int]] = {}  # by channel and rank
        self._places: dict[int, tuple[str, int, int]] = {}  # by rank: host, local rank, local ranks
        self._ring_channels = 0
        self._message_is_whole = True  # no other rank wrote into it
        self._highest_rank = -1
        self._beginnings = {
            "Channel ": self._channel,
            "Ring ": self._neighbours,
            "Trees ": self._tree_nodes,
            "NCCL version ": self._version,
            "Using network ": self._network,
        }

    def read(self, line: str) -> None:
        before, *messages = line.removesuffix("\n").split("NCCL INFO ")
        if not line.endswith("\n"):  # the last one, which may be cut
            self.log.unreadable_lines += bool(messages)
            return
        if not messages and (version := BARE_VERSION.match(before)):
            self._message(version[1])
        for i, message in enumerate(messages):
            found = PROCESS.search(before.rpartition(" [")[0])
            self._process = self._processes.setdefault(found[0].rpartition(":")[0] if found else "", Process())
            self._process.host = found[1] if found else ""
            self._message_is_whole = i + 1 == len(messages)
            self._message(message)
            before += f"NCCL INFO {message}"

    def result(self) -> Log:
        log = self.log
        for name, value in self._first.items():
            setattr(log, name, value)
        log.channels = log.channels or self._ring_channels
        log.ranks_told = log.ranks > 0
        log.ranks = log.ranks or self._highest_rank + 1
        self._settle_doubtful()
        log.transports = [Transport(*where, *ends_of(ends)) for where, ends in sorted(self._transports.items())]
        self._close_rings()
        self._drop_cut_rings()
        log.rings = dict(sorted(log.rings.items()))
        log.trees = {channel: dict(sorted(tree.items())) for channel, tree in sorted(log.trees.items())}
        log.choices = dict(sorted(log.choices.items()))
        log.ranks_by_node = ranks_by_node(self._places, log.ranks, log.nodes)
        log.environment = {name: VALUE_SEPARATOR.join(values) for name, values in sorted(self._environment.items())}
        return log

    def _message(self, message: str) -> None:
        try:
            self._subject(message.lstrip(" "))
        except Unreadable:
            self.log.unreadable_lines += 1

    def _subject(self, text: str) -> None:
        words = next((words for words in self._beginnings if text.startswith(words)), None)
        if found := COMMUNICATOR.match(text):
            self._communicator(found[1], text[found.end() :])
        elif words:
            self._beginnings[words](text.removeprefix(words))
        elif text.startswith("NCCL_"):
            self._variable(text)
        elif text.startswith("NET/"):
            self._adapters(text)
        elif " coll channels" in text:
            self._channel_counts(text)
        elif " Bytes -> " in text:
            self._choice(text)
        self.log.has_nvswitch |= " - NVS/" in text

    def _see(self, *ranks: int) -> None:
        if self._is_of_another():
            return
        self._highest_rank = max(self._highest_rank, *ranks)

    def _keep_first(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        if self._is_of_another() and key not in table:
            return
        if table.setdefault(key, value) != value:
            self.log.contradictions += 1

    def _is_of_another(self) -> bool:
        """Whether the current line is not of the first communicator, if it is of the last one that its process named."""
        return bool(self._process.others)

    def _version(self, text: str) -> None:
        found = matched(VERSION, text)
        self._keep_first(self._first, "version", ".".join(str(int(part)) for part in found.groups()))

    def _channel(self, text: str) -> None:
        """Channel 00/02 : 0 1 2 3 is a ring; Channel 00/0 : 1[1] -> 0[0] via ... and Channel 00 : ... a transport."""
        if "->" in text:
            return self._transport(text)
        # Another rank's line may follow if the ring is complete, which is known at the end.
        found = matched(RING, text)
        channel, channels, ring = int(found[1]), int(found[2]), [int(rank) for rank in found[3].split()]
        self._see(*ring, -1)
        if len(set(ring)) < len(ring) or channel >= channels:
            raise Unreadable
        if not self._is_of_another():
            self._ring_channels = max(self._ring_channels, channels)
        self._keep_first(self.log.rings, channel, ring)

    def _transport(self, text: str) -> None:
        found = matched(TRANSPORT, text)
        channel, source, target = (int(number) for number in found.group(1, 2, 3))
        where, end = (source, target, channel), found[4].strip()
        via = "SHM" if found[5] == "direct shared memory" else found[5]
        if self._process.is_elsewhere():
            return
        if self._process.is_in_several():
            self._doubtful.setdefault(where, {}).setdefault(end, set()).add(via)
            return
        self._see(source, target)
        self._keep_first(self._transports.setdefault(where, {}), end, via)

    def _settle_doubtful(self) -> None:
        """Lines of processes with several communicators count if no process tells of the first one alone, and only if
        they name its ranks and one way for a connection."""
        if self._transports:
            known = {where: {end: {via} for end, via in ends.items()} for where, ends in self._transports.items()}
            self.log.contradictions += sum(known.get(where) != ends for where, ends in self._doubtful.items())
            return
        for (source, target, channel), ends in self._doubtful.items():
            is_clear = max(source, target) < (self.log.ranks or max(source, target) + 1)
            if is_clear and all(len(ways) == 1 for ways in ends.values()):
                self._transports[source, target, channel] = {end: next(iter(ways)) for end, ways in ends.items()}
            else:
                self.log.contradictions += 1

    def _neighbours(self, text: str) -> None:
        """Ring 00 : 3 -> 0 -> 1: a rank between its neighbours."""
        channel, separator, rest = text.partition(" : ")
        if not separator or not re.fullmatch(CHANNEL, channel, re.ASCII):
            return
        before, rank, after = (int(number) for number in matched(NEIGHBOURS, rest).groups())
        self._see(before, rank, after)
        self._keep_first(self._next_ranks.setdefault(int(channel), {}), rank, after)

    def _close_rings(self) -> None:
        """Makes rings from the neighbours that all ranks named, if the line of the whole ring is cut or missing."""
        for channel, following in self._next_ranks.items():
            if len(self.log.rings.get(channel, [])) == self.log.ranks:
                continue
            ring = [0]
            while following.get(ring[-1], 0) != 0 and len(ring) < len(following):
                ring.append(following[ring[-1]])
            if following.get(ring[-1]) == 0 and len(ring) == self.log.ranks:
                self.log.rings[channel] = ring

    def _drop_cut_rings(self) -> None:
        """NCCL cuts long rings at 127 characters, and files end anywhere."""
        for channel, ring in sorted(self.log.rings.items()):
            if len(ring) != self.log.ranks:
                self.log.unreadable_lines += 1
                del self.log.rings[channel]

    def _tree_nodes(self, text: str) -> None:
        """[channel] child/child/child->rank->parent, as often as there are channels. NCCL 2.7 and before wrote the
        second tree behind |."""
        at = 0
        while at == 0 or text[at:].lstrip(" ").startswith("["):
            found = matched(TREE, text, at)
            children = [int(child) for child in found.group(2, 3, 4) if child != "-1"]
            channel, rank, parent = (int(number) for number in found.group(1, 5, 6))
            self._see(rank, parent, *children)
            node = {"rank": rank, "parent": None if parent < 0 else parent, "children": children}
            self._keep_first(self.log.trees.setdefault(channel, {}), rank, node)
            at = found.end()
        if text[at:].lstrip(" ").startswith("..."):  # another rank's line may follow, but here something is missing
            raise Unreadable

    def _communicator(self, address: str, text: str) -> None:
        """comm 0x... rank 0 nRanks 4 nNodes 2 ..., and older: comm 0x... rank 0 nranks 4 cudaDev 0 ..., the latter behind
        the name of the function, too. `text`: from the number of the rank on."""
        rank, ranks, nodes, local_ranks, local_rank = (int(n) if n else None for n in matched(RANKS, text).groups())
        if ranks == 0:
            raise Unreadable
        name = COMMUNICATOR_ID.search(text)
        self._join(address, rank, ranks, name[1] if name else "")
        self._keep_first(self._first, "ranks", ranks)
        if self._is_of_another():
            return
        if local_rank is not None:
            self._places.setdefault(rank, (self._process.host, local_rank, local_ranks))
        if nodes is not None:
            self._keep_first(self._first, "nodes", nodes)

    def _join(self, address: str, rank: int, ranks: int, name: str) -> None:
        """Notes that the current process has this communicator."""
        process = self._process
        if address not in process.members | process.others:
            same_name = not name or not self._communicator_id or name == self._communicator_id
            same_size = ranks == self._first.get("ranks", ranks)  # another size is counted as a contradiction anyway
            is_first = same_name and same_size and rank not in self._members
            self.log.contradictions += same_size and not is_first
            (process.members if is_first else process.others).add(address)
        if address in process.members:
            self._members.add(rank)
            self._communicator_id = self._communicator_id or name

    def _network(self, text: str) -> None:
        name = re.match(NETWORK, text)[0].rstrip(" ")
        if not name or not self._message_is_whole:
            raise Unreadable
        self._keep_first(self._first, "network", name)

    def _adapters(self, text: str) -> None:
        """NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>"""
        found = re.search(r" : Using ((?: *\[\d+\][^ ;]+(?= |$))+)", text)
        adapters = [re.sub(r"[^ -~]", "?", word) for word in found[1].split()[:MOST_ADAPTERS]] if found else []
        if len(adapters) > len(self.log.adapters):  # a node with fewer is no news
            self.log.adapters = adapters

    def _channel_counts(self, text: str) -> None:
        found = matched(CHANNEL_COUNTS, text)
        if self._is_of_another():
            return
        self.log.channels = max(self.log.channels, int(found[1]))
        if found[2]:
            self.log.nvls_channels = max(self.log.nvls_channels or 0, int(found[2]))

    def _variable(self, text: str) -> None:
        """NCCL_NAME set by environment to VALUE; integers end with a dot."""
        found = ENVIRONMENT.match(text)
        if not found:
            return
        if not self._message_is_whole or found.end() == len(text):
            raise Unreadable
        value = re.sub(r"^(-?[0-9]+)\.$", r"\1", text[found.end() :].rstrip(" \r"))
        known = self._environment.setdefault(found[1], [])
        if value not in known and len(known) < MOST_VALUES:
            known.append(value)

    def _choice(self, text: str) -> None:
        """AllReduce: 2097152 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}, before: ... Algo 1 proto 2 time
        98.5; AllReduce [Symmetric]: 1048576 Bytes -> Kernel AllReduce_RSxLD_AGxST nchannels 8"""
        head = COLLECTIVE.match(text)
        if not head:
            return
        collective = UNNAMED_COLLECTIVE if head[1] is None else head[1]
        size, kernel, channels, algorithm, protocol, low, high = matched(CHOICE, text, head.end()).groups()
        if kernel is not None:
            algorithm, protocol = "Symmetric", kernel.removeprefix(f"{collective}_")
        elif low is not None:
            channels = int(high) - int(low) + 1
            if channels < 1:
                raise Unreadable
        choice = {"algorithm": ALGORITHMS.get(algorithm, algorithm), "protocol": PROTOCOLS.get(protocol, protocol)}
        choice["channels"] = int(channels or 0) or None
        self.log.other_choices += self.log.choices.setdefault((collective, int(size)), choice) != choice


def ends_of(ends: dict[str, str]) -> tuple[str, str]:
    """Transport.via and Transport.receives_via."""
    names = [name for name in ("[send]", "", "[receive]") if name in ends] or sorted(ends)
    return ends[names[0]], ends["[receive]"] if "[receive]" in names[1:] else ""


def read_log(lines: Iterable[str]) -> Log:
    reader = Reader()
    for line in lines:
        reader.read(line)
    return reader.result()


def ranks_by_node(places: dict[int, tuple[str, int, int]], ranks: int, nodes: int) -> list[dict[str, Any]]:
    """By the hosts that the lines of the ranks begin with. On one host, of which NCCL_HOSTID makes nodes, by local
    ranks that count up. Empty if neither gives as many nodes as the log tells of."""
    if len(places) != ranks:
        return []
    by_host = grouped((host, rank) for rank, (host, _, _) in sorted(places.items()))
    if len(by_host) == nodes:
        return [{"host": host or None, "ranks": of_host} for host, of_host in by_host.items()]
    blocks: list[list[int]] = []
    for rank, (_, local_rank, _) in sorted(places.items()):
        if local_rank == 0 or not blocks:
            blocks.append([])
        blocks[-1].append(rank)
    is_right = len(blocks) == nodes and all(len(block) == places[block[0]][2] for block in blocks)
    return [{"host": None, "ranks": block} for block in blocks] if is_right else []
