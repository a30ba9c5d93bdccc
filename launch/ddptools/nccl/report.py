#!/usr/bin/env python3
"""What NCCL's log, read from standard input, says: as JSON, the object "nccl" of docs/reference/topology.md and the
same as tables. ddptopo starts this."""

import argparse
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).absolute().parents[2])

from ddptools.common.table import text_table  # noqa: E402
from ddptools.common.text import counted, ranges_text  # noqa: E402
from ddptools.common.values import grouped  # noqa: E402
from ddptools.nccl.log import VALUE_SEPARATOR, Log, Transport, read_log  # noqa: E402

SUBSYSTEMS = "NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING,NET"

Rows = list[list[str]]
Tree = dict[int, dict[str, Any]]  # by rank


def titled(title: str, rows: Rows, header: list[str] | None = None) -> str:
    """Empty where there are no rows."""
    return f"\n{title}\n{text_table([*([header] if header else []), *rows], 2)}" if rows else ""


def by_text(texts: Iterator[tuple[int, str]]) -> Rows:
    """Numbers that have the same text, and the text."""
    return [[ranges_text(numbers), text] for text, numbers in grouped((text, number) for number, text in texts).items()]


def children_of(tree: Tree) -> dict[int, list[int]]:
    """By rank. A log that lacks the lines of some ranks names them as parents or children of others."""
    children = {rank: list(node["children"]) for rank, node in tree.items()}
    for rank, node in tree.items():
        parent = node["parent"]
        if parent is not None and rank not in children.setdefault(parent, []):
            children[parent].append(rank)
    return children


def tree_text(tree: Tree) -> str:
    """The root, and in parentheses behind each rank its children: 2 (3, 0 (1)). Several roots if the log lacks ranks."""
    children = children_of(tree)
    below = {child for group in children.values() for child in group}
    written: set[int] = set()

    def branch(root: int) -> str:
        text = ""
        pending: list[int | str] = [root]
        while pending:
            item = pending.pop()
            text += str(item)
            if isinstance(item, str):
                continue
            written.add(item)
            # A damaged log may name a child twice.
            found = [child for child in dict.fromkeys(children.get(item, [])) if child not in written]
            written.update(found)
            if found:
                text += " ("
                separated = [part for child in found for part in (", ", child)][1:]
                pending += [")", *reversed(separated)]
        return text

    roots = [rank for rank in children if rank not in below]
    return "; ".join(branch(rank) for rank in [*roots, *children] if rank not in written)


def crosses_network(transport: Transport) -> bool:
    return "NET/" in transport.via


def gpu_direct(log: Log) -> list[bool]:
    """Of each connection over the network, whether all its ends in the log use GPUDirect RDMA."""
    ends = [(each.via, each.receives_via or each.via) for each in log.transports if crosses_network(each)]
    return [all("/GDRDMA" in via for via in both) for both in ends]


def network_rows(log: Log) -> Rows:
    if not (log.network or any(map(crosses_network, log.transports))):
        return []
    share = gpu_direct(log)
    used = f"{sum(share)} of {len(share)} connections over the network" if share else "unknown"
    adapters = [["adapters", " ".join(log.adapters)]] if log.adapters else []
    return [["chosen", log.network or "unknown"], *adapters, ["GPUDirect RDMA", used]]


def unread_text(log: Log) -> str:
    text = ""
    if log.unreadable_lines:
        text += f"\n{counted(log.unreadable_lines, 'line')} could not be read, or not to the end (cut, damaged or of an "
        text += "unknown form).\n"
    if log.contradictions:
        verb = "contradicts" if log.contradictions == 1 else "contradict"
        text += f"\n{counted(log.contradictions, 'line')} {verb} earlier ones, as in a log of several communicators or runs. "
        text += "The first one is shown.\n"
    if log.other_choices:
        verb = "chooses" if log.other_choices == 1 else "choose"
        text += f"\n{counted(log.other_choices, 'line')} {verb} another algorithm, protocol or number of channels for the same "
        text += "collective and size. The first choice is shown.\n"
    return text


def log_text(log: Log, ineffective: list[dict[str, str]]) -> str:
    if log.says_nothing():
        return f"Nothing of NCCL was found in the log. NCCL writes it with {SUBSYSTEMS}.\n"
    ranks = str(log.ranks or "unknown") + ("" if log.ranks_told or not log.ranks else " (counted from those named)")
    emulated = " (emulated: NCCL_HOSTID is set)" if "NCCL_HOSTID" in log.environment else ""
    nodes = [[node["host"] or str(i), ranges_text(node["ranks"])] for i, node in enumerate(log.ranks_by_node)]
    trees = ((channel, tree_text(tree)) for channel, tree in log.trees.items())
    rings = ((channel, " -> ".join(map(str, [*ring, ring[0]]))) for channel, ring in log.rings.items())
    choices = [
        [collective, str(size), choice["algorithm"], choice["protocol"], str(choice["channels"] or "unknown")]
        for (collective, size), choice in log.choices.items()
    ]
    channels = grouped(((each.source, each.target, each.via), each.channel) for each in log.transports)
    transports = [[str(a), str(b), via, ranges_text(numbers)] for (a, b, via), numbers in sorted(channels.items())]
    facts = [
        ["NCCL version", log.version or "unknown"],
        ["Ranks", ranks],
        ["Nodes", str(log.nodes or "unknown") + emulated],
        ["Channels", str(log.channels or "unknown")],
    ]
    return "".join([
        text_table(facts),
        titled("Ranks by node", nodes if len(nodes) > 1 else [], ["node", "ranks"]),
        titled("Network", network_rows(log)),
        titled("Rings, by channel", by_text(rings)),
        titled("Trees, by channel: root (children (grandchildren))", by_text(trees)),
        titled("Transports between ranks", transports, ["from", "to", "via", "channels"]),
        titled("Collectives", choices, ["collective", "bytes", "algorithm", "protocol", "channels"]),
        titled("Set by environment, as NCCL tells", [[name, value] for name, value in log.environment.items()]),
        titled("Without effect", [[f"{each['name']}={each['value']}", each["why"]] for each in ineffective]),
        unread_text(log),
    ])  # fmt: skip


def by_channel(channels: dict[int, Any]) -> list[Any]:
    """A channel's number is its place; null for those that the log does not have."""
    return [channels.get(channel) for channel in range(max(channels, default=-1) + 1)]


def log_json(log: Log, ineffective: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "version": log.version or None,
        "ranks": log.ranks or None,
        "nodes": log.nodes or None,
        "emulated": "NCCL_HOSTID" in log.environment,
        "channels": log.channels or None,
        "rings": by_channel(log.rings),
        "trees": by_channel({channel: list(tree.values()) for channel, tree in log.trees.items()}),
        "transports": [
            {"from": each.source, "to": each.target, "channel": each.channel, "via": each.via}
            for each in log.transports
        ],
        "collectives": [
            {"collective": collective, "bytes": size, **choice} for (collective, size), choice in log.choices.items()
        ],
        "ranks_by_node": log.ranks_by_node,
        "network": {
            "name": log.network or None,
            "adapters": log.adapters,
            "gpu_direct_used": any(gpu_direct(log)) if gpu_direct(log) else None,
        },
        "environment": log.environment,
        "ineffective": ineffective,
        "contradictions": log.contradictions,
        "other_choices": log.other_choices,
        "unreadable_lines": log.unreadable_lines,
    }  # fmt: skip


def _p2p_level(log: Log, level: str, settings: dict[str, str], nvlink_all_to_all: bool) -> str:
    if VALUE_SEPARATOR in level:
        return ""
    if settings.get("NCCL_P2P_DISABLE") == "1":
        return "NCCL_P2P_DISABLE=1 turns P2P off at every level"
    if log.nodes and log.nodes == log.ranks:
        return "no two ranks share a node, so there is no P2P"
    if (nvlink_all_to_all or log.has_nvswitch) and level not in ("LOC", "0"):
        return "all GPUs are joined by NVLink, which every level but LOC allows: same as without"
    return ""


def _algorithm_or_protocol(log: Log, value: str, kind: str) -> str:
    used = sorted({choice[kind] for (name, _), choice in log.choices.items() if name == "AllReduce"})
    if re.fullmatch("[A-Za-z0-9]+", value) and used and value.lower() not in [name.lower() for name in used]:
        return f"all all-reduces in the log used {', '.join(used)}"
    return ""


def ineffective_settings(log: Log, environment: dict[str, str], nvlink_all_to_all: bool) -> list[dict[str, str]]:
    """Settings that cannot have had an effect as far as the log tells. `environment`: the NCCL_* variables of the job
    where they are known: those that the log never mentions are listed too. `nvlink_all_to_all`: every pair of the job's
    GPUs is known to be joined by NVLink."""
    settings = dict(sorted((environment | log.environment).items()))
    symmetric = log.choices and all(choice["algorithm"] == "Symmetric" for choice in log.choices.values())
    within_a_node = log.nodes == 1 and not any(map(crosses_network, log.transports))
    reasons: dict[str, str] = {}

    def add(name: str, reason: str) -> None:
        if reason and name in settings:
            reasons.setdefault(name, reason)

    add("NCCL_P2P_LEVEL", _p2p_level(log, settings.get("NCCL_P2P_LEVEL", ""), settings, nvlink_all_to_all))
    for name, kind in (("NCCL_ALGO", "algorithm"), ("NCCL_PROTO", "protocol")):
        ignored = "symmetric-memory kernels ran, which follow neither NCCL_ALGO nor NCCL_PROTO"
        add(name, ignored if symmetric else _algorithm_or_protocol(log, settings.get(name, ""), kind))
    for name in ("NCCL_NTHREADS", "NCCL_BUFFSIZE", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"):
        add(name, "symmetric-memory kernels ran, which do not use it" if symmetric else "")
    of_network = ("NCCL_NET", "NCCL_CROSS_NIC", "NCCL_NSOCKS_PERTHREAD", "NCCL_SOCKET_NTHREADS")
    for name in settings if within_a_node else ():
        if name.startswith(("NCCL_IB_", "NCCL_NET_")) or name in of_network:
            add(name, "all ranks share a node: nothing goes over the network")
    if settings.get("NCCL_NVLS_ENABLE") != "0" and log.nvls_channels == 0:
        add("NCCL_NVLS_ENABLE", "NCCL made no NVLS channels")
    # Of the log itself, and what the log cannot mention.
    silent = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_DEBUG_TIMESTAMP_FORMAT", "NCCL_CONF_FILE")
    for name in sorted(environment):
        if name not in silent and name not in log.environment:
            add(name, "NCCL's log never mentions it: misspelt, unknown to this version, or not needed in this job")
    return [{"name": name, "value": settings[name], "why": reason} for name, reason in reasons.items()]


def variables(text: str) -> dict[str, str]:
    """From JSON; as in the log, with a character for each byte."""
    return json.loads(os.fsencode(text).decode("latin-1"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvlink", action="store_true", help="all GPUs of the job are joined by NVLink")
    parser.add_argument("--environment", type=variables, default={}, help="NCCL_* variables of the job, as JSON")
    parser.add_argument("--unmentioned", nargs="*", default=[], help="variables that ddptopo set")
    arguments = parser.parse_args()
    # A character for each byte, whatever the log holds.
    log = read_log(io.TextIOWrapper(sys.stdin.buffer, encoding="latin-1", newline="\n"))
    for name in arguments.unmentioned:
        log.environment.pop(name, None)
    ineffective = ineffective_settings(log, arguments.environment, arguments.nvlink)
    told = {"found": not log.says_nothing(), "text": log_text(log, ineffective), "nccl": log_json(log, ineffective)}
    text = json.dumps(told, ensure_ascii=False)
    sys.stdout.buffer.write(text.encode("latin-1", "replace").decode("utf-8", "replace").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
