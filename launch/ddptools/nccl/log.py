"""NCCL's log, as NCCL 2.8 to 2.32 write it with NCCL_DEBUG=INFO, of one rank or of several mixed with each other and
with a program's own output."""

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any

from ddptools.common.values import grouped

MOST_RANKS = 1_000_000
MOST_CHANNELS = 1024
MOST_EXAMPLES = 3
MOST_ADAPTERS = 256
MOST_VALUES = 8  # of a variable, on different ranks

UNNAMED_COLLECTIVE = "Collective"  # versions 2.20 to 2.22 do not say which
VALUE_SEPARATOR = " | "

ALGORITHMS = ["Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"]
PROTOCOLS = ["LL", "LL128", "Simple"]
PATTERNS = ["", "Balanced tree", "Split tree", "Tree", "Ring", "NVLS", "CollNet direct"]
# Older versions write numbers, newer ones capitals.
ALGORITHM_NAMES = {str(i): name for i, name in enumerate(ALGORITHMS)} | {"RING": "Ring", "TREE": "Tree"}
PROTOCOL_NAMES = {str(i): name for i, name in enumerate(PROTOCOLS)} | {"SIMPLE": "Simple"}

Match = re.Match[str]


@dataclasses.dataclass(order=True)
class Transport:
    """One direction between two ranks on one channel."""

    source: int
    target: int
    channel: int
    via: str  # P2P/CUMEM/read, P2P/IPC, SHM/direct/direct, NET/IB/0/GDRDMA ...


@dataclasses.dataclass
class Place:
    """What a rank says: comm ... rank 5 ... localRanks 4 localRank 1."""

    local_rank: int
    local_ranks: int
    host: str  # with which its line begins


@dataclasses.dataclass
class Log:
    """Of one communicator. Where lines contradict each other, the first counts. 0 and empty: the log does not say."""

    version: str = ""
    ranks: int = 0
    ranks_told: bool = False  # else counted from those that rings, trees and transports name
    nodes: int = 0
    channels: int = 0
    nvls_channels: int | None = None
    has_nvswitch: bool = False
    rings: dict[int, list[int]] = dataclasses.field(default_factory=dict)  # by channel; complete ones alone
    trees: dict[int, dict[int, dict[str, Any]]] = dataclasses.field(default_factory=dict)  # by channel and rank
    transports: list[Transport] = dataclasses.field(default_factory=list)
    choices: dict[tuple[str, int], dict[str, Any]] = dataclasses.field(default_factory=dict)  # by collective and bytes
    graphs: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    ranks_by_node: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    network: str = ""
    adapters: list[str] = dataclasses.field(default_factory=list)
    pxn_disabled: bool = False
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    contradictions: int = 0
    unreadable_lines: int = 0
    unreadable_examples: list[str] = dataclasses.field(default_factory=list)

    def says_nothing(self) -> bool:
        numbers = self.ranks or self.channels or self.unreadable_lines
        return not (self.version or numbers or self.environment or self.choices or self.graphs or self.network)


class Unreadable(Exception):
    """A line about something above that is cut, damaged or of an unknown form. What came before may be kept."""


NUMBER = r"(\d{1,9})"
NAME = r"([A-Za-z0-9_-]*)"
PEER = NUMBER + r"(?:\[[^\]]*\]|(?!\[))"
NETWORK = r"[A-Za-z0-9_ -]*"  # with a space, as AWS Libfabric
VIA = (
    r"(?:(?! via ).)* via (direct shared memory|P2P/(?:direct pointer|CUMEM|MNNVL|IPC)(?:/read)?|P2P/indirect/\d{1,6}"
    r"|SHM/(?:direct|CE)/(?:direct|CE)"
    rf"|NET/{NETWORK}/\d{{1,7}}(?:\(\d{{1,6}}\)|(?!\())(?:/GDRDMA)?(?:\(PCI\))?(?:/Shared)?)"
)
RATE = r"(-?\d+(?:\.\d*)?(?:e[+-]?\d+)?)"


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


CHANNEL = _compiled(rf"{NUMBER}(?:/{NUMBER})? *:")
RING = _compiled(r"(?: *\d{1,6}(?!\d))*")
NEIGHBOURS = _compiled(rf"{NUMBER} -> {NUMBER} -> {NUMBER}")
TRANSPORT = _compiled(rf" *{PEER} -> {PEER}{VIA}")
TREE = _compiled(rf"\[{NUMBER}\] (-1|\d{{1,6}})/(-1|\d{{1,6}})/(-1|\d{{1,6}})->(\d{{1,6}})->(-1|\d{{1,6}})(?:\|[^ ]*)?")
RANKS = _compiled(rf"{NUMBER} n[Rr]anks {NUMBER}")
NODES = _compiled(rf" nNodes {NUMBER}(?: localRanks {NUMBER}(?: localRank {NUMBER})?)?")
VERSION = _compiled(r"(\d{1,5})\.(\d{1,5})\.(\d{1,5})(?!\d)")
GRAPH = _compiled(rf"(\d\d?)(?!\d).*?nChannels {NUMBER}, (?:bw|speed) {RATE}/{RATE}, type {NAME}/{NAME},")
ENVIRONMENT = _compiled(r"(NCCL_[A-Za-z0-9_-]*) set (?:by environment )?to ")
CHANNEL_COUNTS = _compiled(rf"{NUMBER} coll channels(?:.*? collnet channels)?(?:, {NUMBER} nvls channels)?")
COLLECTIVE = _compiled(r"(?!\d)([A-Za-z0-9_-]*)( \[Symmetric\])?: |(?=\d)")
BYTES = _compiled(r"(\d{1,18}) Bytes -> ")
ALGORITHM = _compiled(rf"Algo {NAME} proto {NAME}(?: time | channel{{Lo\.\.Hi}}={{{NUMBER}\.\.{NUMBER}}})")
KERNEL = _compiled(rf"Kernel {NAME} nchannels {NUMBER}")
HOST = _compiled(r"([A-Za-z0-9_.-]*):\d+:\d+$")


def printable(text: str, most: int = 90) -> str:
    shown = re.sub(r"[^ -~]", "?", text[:most])
    return shown + "..." if len(text) > most else shown


class Reader:
    """One pass over a log. Every method named after a kind of line gets what follows the words that tell the kind."""

    def __init__(self) -> None:
        self.log = Log()
        self._transports: set[tuple[int, int, int, str]] = set()
        self._environment: dict[str, list[str]] = {}
        self._ring_lines: dict[int, int] = {}
        self._next_ranks: dict[int, dict[int, int]] = {}  # by channel and rank
        self._places: dict[int, Place] = {}  # by rank
        self._host = ""  # with which the message begins
        self._line_number = 0
        self._message_is_whole = True  # no other rank wrote into it
        self._ring_channels = 0
        self._highest_rank = -1
        # Kinds of messages: by how they begin, then by what they hold.
        self._beginnings: list[tuple[str, Callable[[str], None]]] = [
            ("Channel ", self._channel),
            ("Ring ", self._neighbours),
            ("Trees ", self._tree_nodes),
            ("comm 0x", self._communicator),
            ("NCCL version ", self._version),
            ("Pattern ", self._graph),
            ("Using network ", self._network),
        ]
        self._contents: list[tuple[str, Callable[[str], None]]] = [
            (" coll channels", self._channel_counts),
            (" Bytes -> ", self._choice),
        ]

    def read(self, line: str) -> None:
        self._line_number += 1
        if not line.endswith("\n"):  # the last one, which may be cut
            if "NCCL INFO " in line:
                self._unreadable(self._line_number, line.partition("NCCL INFO ")[2])
            return
        before, *messages = line.removesuffix("\n").split("NCCL INFO ")
        if not messages:
            if before.startswith("NCCL version "):
                self._message(before)
        for i, message in enumerate(messages):
            found = HOST.search(before.rpartition(" [")[0])
            self._host = found[1] if found else ""
            self._message_is_whole = i + 1 == len(messages)
            self._message(message)
            before += f"NCCL INFO {message}"

    def result(self) -> Log:
        log = self.log
        log.transports = [Transport(*each) for each in sorted(self._transports)]
        log.channels = log.channels or self._ring_channels
        log.ranks_told = log.ranks > 0
        if not log.ranks_told:
            log.ranks = self._highest_rank + 1
        self._close_rings()
        self._drop_cut_rings()
        log.rings = dict(sorted(log.rings.items()))
        log.trees = {channel: dict(sorted(tree.items())) for channel, tree in sorted(log.trees.items())}
        log.choices = dict(sorted(log.choices.items()))
        log.ranks_by_node = ranks_by_node(self._places, log.ranks, log.nodes)
        for name, values in sorted(self._environment.items()):
            log.environment[name] = VALUE_SEPARATOR.join(values)
        return log

    def _message(self, message: str) -> None:
        try:
            self._subject(message.lstrip(" "))
        except Unreadable:
            self._unreadable(self._line_number, message)

    def _unreadable(self, line_number: int, message: str) -> None:
        self.log.unreadable_lines += 1
        if len(self.log.unreadable_examples) < MOST_EXAMPLES:
            self.log.unreadable_examples.append(f"line {line_number}: {printable(message)}")

    def _subject(self, text: str) -> None:
        for words, method in self._beginnings:
            if text.startswith(words):
                return method(text.removeprefix(words))
        if text.startswith("NCCL_"):
            return self._variable(text)
        self.log.pxn_disabled = self.log.pxn_disabled or text.startswith("PXN Disabled")
        if text.startswith("NET/"):
            return self._adapters(text)
        self.log.has_nvswitch = self.log.has_nvswitch or " - NVS/" in text
        for words, method in self._contents:
            if words in text:
                return method(text)
        return None

    def _match(self, pattern: re.Pattern[str], text: str, at: int = 0) -> Match:
        found = pattern.match(text, at)
        if not found:
            raise Unreadable
        return found

    def _number(self, text: str, below: int = MOST_RANKS) -> int:
        if int(text) >= below:
            raise Unreadable
        return int(text)

    def _see(self, *ranks: int) -> None:
        self._highest_rank = max(self._highest_rank, *ranks)

    def _keep_first(self, name: str, value: Any) -> None:
        kept = getattr(self.log, name)
        if not kept:
            setattr(self.log, name, value)
        elif kept != value:
            self.log.contradictions += 1

    def _version(self, text: str) -> None:
        found = self._match(VERSION, text)
        self._keep_first("version", ".".join(str(int(part)) for part in found.groups()))

    def _channel(self, text: str) -> None:
        """Channel 00/02 : 0 1 2 3 is a ring; Channel 00/0 : 1[1] -> 0[0] via ... and Channel 00 : ... a transport."""
        found = self._match(CHANNEL, text)
        channel = self._number(found[1], MOST_CHANNELS)
        rest = text[found.end() :]
        if "->" in rest:
            return self._transport(rest, channel)
        if not found[2]:
            raise Unreadable
        self._ring(rest, channel, self._number(found[2], MOST_CHANNELS + 1))

    def _ring(self, text: str, channel: int, channels: int) -> None:
        # Another rank's line may follow, if the ring is complete, which is judged at the end.
        ring = [int(rank) for rank in self._match(RING, text)[0].split()]
        self._see(*ring, -1)
        if not ring or len(set(ring)) < len(ring) or channel >= channels:
            raise Unreadable
        self._ring_channels = max(self._ring_channels, channels)
        self._ring_lines.setdefault(channel, self._line_number)
        if self.log.rings.setdefault(channel, ring) != ring:
            self.log.contradictions += 1

    def _neighbours(self, text: str) -> None:
        """Ring 00 : 3 -> 0 -> 1: a rank between its neighbours."""
        channel, separator, rest = text.partition(" : ")
        if not separator or not re.fullmatch(NUMBER, channel, re.ASCII) or int(channel) >= MOST_CHANNELS:
            return
        found = self._match(NEIGHBOURS, rest)
        before, rank, after = (self._number(number) for number in found.groups())
        self._see(before, rank, after)
        if self._next_ranks.setdefault(int(channel), {}).setdefault(rank, after) != after:
            self.log.contradictions += 1

    def _close_rings(self) -> None:
        """Rings of which all ranks named their neighbours, where the line of the whole ring is cut or missing."""
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
            if len(ring) == self.log.ranks:
                continue
            about = f"ring of channel {channel} with {len(ring)} of {self.log.ranks} ranks"
            self._unreadable(self._ring_lines[channel], about)
            del self.log.rings[channel]

    def _transport(self, text: str, channel: int) -> None:
        found = self._match(TRANSPORT, text)
        source, target = self._number(found[1]), self._number(found[2])
        self._see(source, target)
        via = "SHM" if found[3] == "direct shared memory" else found[3]
        self._transports.add((source, target, channel, via))

    def _tree_nodes(self, text: str) -> None:
        """[channel] child/child/child->rank->parent, as often as there are channels. NCCL 2.7 and before wrote the
        second tree behind |."""
        rest = text.lstrip(" ")
        if not rest.startswith("["):
            raise Unreadable
        while rest.startswith("["):
            found = self._match(TREE, rest)
            channel = self._number(found[1], MOST_CHANNELS)
            children = [int(child) for child in found.group(2, 3, 4) if child != "-1"]
            rank, parent = int(found[5]), int(found[6])
            self._see(rank, parent, *children)
            node = {"rank": rank, "parent": None if parent < 0 else parent, "children": children}
            if self.log.trees.setdefault(channel, {}).setdefault(rank, node) != node:
                self.log.contradictions += 1
            rest = rest[found.end() :].lstrip(" ")
        if rest.startswith("..."):  # another rank's line may follow, but here something is missing
            raise Unreadable

    def _communicator(self, text: str) -> None:
        """comm 0x... rank 0 nRanks 4 nNodes 2 ..., and older: comm 0x... rank 0 nranks 4 cudaDev 0 ..."""
        _, separator, rest = text.partition(" rank ")
        if not separator:
            return
        found = self._match(RANKS, rest)
        rank, ranks = self._number(found[1]), self._number(found[2], MOST_RANKS + 1)
        if ranks == 0:
            raise Unreadable
        self._keep_first("ranks", ranks)
        if not rest.startswith(" nNodes ", found.end()):
            return
        found = self._match(NODES, rest, found.end())
        if found[3]:
            self._places.setdefault(rank, Place(int(found[3]), int(found[2]), self._host))
        self._keep_first("nodes", self._number(found[1], MOST_RANKS + 1))

    def _network(self, text: str) -> None:
        name = re.match(NETWORK, text)[0].rstrip(" ")
        if not name or not self._message_is_whole:
            raise Unreadable
        self._keep_first("network", name)

    def _adapters(self, text: str) -> None:
        """NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>"""
        listed = text.partition(" : Using ")[2]
        if not listed.startswith("[0]"):
            return
        adapters: list[str] = []
        for word in re.split(" +", listed)[:MOST_ADAPTERS]:
            if not word.startswith("[") or word.startswith("[RO]") or word.endswith(";"):
                break
            adapters.append(printable(word))
        if len(adapters) > len(self.log.adapters):  # a node with fewer is no news
            self.log.adapters = adapters

    def _channel_counts(self, text: str) -> None:
        found = self._match(CHANNEL_COUNTS, text)
        self.log.channels = max(self.log.channels, self._number(found[1], MOST_CHANNELS))
        if found[2]:
            self.log.nvls_channels = max(self.log.nvls_channels or 0, int(found[2]))

    def _graph(self, text: str) -> None:
        """Pattern 4, crossNic 0, nChannels 12, bw 20.0/20.0, type NVL/PIX, sameChannels 1; before 2.13 "speed"."""
        found = self._match(GRAPH, text)
        pattern = int(found[1])
        graph = {
            "pattern": PATTERNS[pattern] if 0 < pattern < len(PATTERNS) else f"Pattern {pattern}",
            "channels": self._number(found[2], MOST_CHANNELS),
            "intra_gb_per_s": float(found[3]),
            "inter_gb_per_s": float(found[4]),
            "intra_type": found[5],
            "inter_type": found[6],
        }
        if graph not in self.log.graphs:
            self.log.graphs.append(graph)

    def _variable(self, text: str) -> None:
        """NCCL_NAME set by environment to VALUE; integers end with a dot."""
        found = ENVIRONMENT.match(text)
        if not found:
            return
        if not self._message_is_whole or found.end() == len(text):
            raise Unreadable
        value = text[found.end() :].rstrip(" \r")
        if re.fullmatch(r"-?\d+\.", value, re.ASCII):
            value = value[:-1]
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
        size = self._match(BYTES, text, head.end())
        if head[2]:
            found = self._match(KERNEL, text, size.end())
            choice = {"algorithm": "Symmetric", "protocol": found[1].removeprefix(f"{collective}_")}
            channels = self._number(found[2], MOST_CHANNELS)
        else:
            found = self._match(ALGORITHM, text, size.end())
            names = ALGORITHM_NAMES.get(found[1], found[1]), PROTOCOL_NAMES.get(found[2], found[2])
            choice = {"algorithm": names[0], "protocol": names[1]}
            channels = 0
            if found[3]:
                low, high = (self._number(number, MOST_CHANNELS) for number in found.group(3, 4))
                channels = high - low + 1
                if channels < 1:
                    raise Unreadable
        self.log.choices[collective, int(size[1])] = {**choice, "channels": channels or None}


def read_log(lines: Iterable[str]) -> Log:
    reader = Reader()
    for line in lines:
        reader.read(line)
    return reader.result()


def ranks_by_node(places: dict[int, Place], ranks: int, nodes: int) -> list[dict[str, Any]]:
    """By the hosts that the lines of the ranks begin with; on one host, of which NCCL_HOSTID makes nodes, by local
    ranks that count up. Empty where neither gives as many nodes as the log tells of."""
    if len(places) != ranks:
        return []
    by_host = grouped((place.host, rank) for rank, place in sorted(places.items()))
    if len(by_host) == nodes:
        return [{"host": host or None, "ranks": of_host} for host, of_host in by_host.items()]
    blocks: list[list[int]] = []
    for rank, place in sorted(places.items()):
        if place.local_rank == 0 or not blocks:
            blocks.append([])
        blocks[-1].append(rank)
    is_right = len(blocks) == nodes and all(len(block) == places[block[0]].local_ranks for block in blocks)
    return [{"host": None, "ranks": block} for block in blocks] if is_right else []
