"""Draws what ddptopo's JSON says of NCCL: its rings and its trees. Every function draws on one Axes."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from ddptools.common.text import ranges_text
from ddptools.common.values import grouped

GPU_COLOR, LINK_COLOR, NODE_COLOR = "#cfe8c3", "#444444", "#f6f8fa"
NVLINK_COLOR, NETWORK_COLOR, MEMORY_COLOR = "#3a7d0a", "#c2410c", "#6b7280"
IN_BOX = "#111111"  # of texts on a color; black and white are those of the page
LINK_STYLES = {"P2P": (NVLINK_COLOR, "-"), "SHM": (MEMORY_COLOR, ":"), "NET": (NETWORK_COLOR, (0, (4, 2)))}
LINK_NAMES = {"P2P": "green: P2P", "SHM": "gray, dotted: shared memory", "NET": "orange, dashed: network"}
MOST_BOXES = 32  # of nodes in a panel
MOST_PANELS = 12
PANEL = (2.6, 2.9)  # width and height in the units of a drawing
PANEL_INCHES, PANEL_RANKS = 3.0, 16  # the height of a panel of that many ranks; more of them get a larger one
TEXT = 9.0  # points, at most

Point = tuple[float, float]


def groups_of(channels: Sequence[Any]) -> list[tuple[Any, list[int]]]:
    """The different values with the channels that share them; a channel that is null is not known."""
    groups = grouped((json.dumps(value), channel) for channel, value in enumerate(channels) if value)
    return [(channels[sharing[0]], sharing) for sharing in groups.values()]


def draw_ranks(ax: Axes, places: dict[int, Point], radius: float, scale: float) -> None:
    """`scale`: points of a unit."""
    digits = max(len(str(rank)) for rank in places)
    size = min(TEXT, 2.6 * radius * scale / digits)
    for rank, at in places.items():
        ax.add_patch(FancyBboxPatch((at[0] - radius, at[1] - radius), 2 * radius, 2 * radius, ec=LINK_COLOR, lw=0.7,
                                    boxstyle=f"round,pad=0,rounding_size={radius}", zorder=2, fc=GPU_COLOR))
        ax.text(*at, str(rank), ha="center", va="center", fontsize=size, zorder=3, color=IN_BOX)


@dataclass
class Links:
    """Which rank is on which node, and what joins two ranks, of "nccl"; empty where the log does not tell."""

    nodes: list[list[int]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # of the nodes
    kinds: dict[tuple[int, int], str] = field(default_factory=dict)  # P2P, SHM or NET, by the two ranks

    @property
    def several_nodes(self) -> bool:
        return len(self.nodes) > 1

    def kind(self, start: int, end: int) -> str:
        """Of the link between two ranks, as NCCL says it, else by their nodes; empty where neither is known."""
        known = self.kinds.get((start, end)) or self.kinds.get((end, start))
        if known:
            return known
        node_of = {rank: i for i, ranks in enumerate(self.nodes) for rank in ranks}
        return "NET" if node_of.get(start) != node_of.get(end) else ""

    def legend(self) -> str:
        kinds = set(self.kinds.values()) | ({"NET"} if self.several_nodes else set())
        said = [text for kind, text in LINK_NAMES.items() if kind in kinds]
        return "; ".join([*said, *(["a box is a node"] if self.several_nodes else [])])


def links_of(nccl: dict[str, Any]) -> Links:
    """Of ddptopo's "nccl"; of an older one without nodes, what there is."""
    found = Links()
    for i, node in enumerate(nccl.get("ranks_by_node") or []):
        found.nodes.append(node["ranks"])
        found.names.append(node["host"] or f"node {i}")
    for transport in nccl.get("transports") or []:
        kind = next((kind for kind in LINK_STYLES if str(transport["via"]).startswith(kind)), "")
        if kind:
            found.kinds[transport["from"], transport["to"]] = kind
    return found


def draw_nodes(ax: Axes, places: dict[int, Point], radius: float, links: Links, scale: float) -> None:
    """A box around the ranks of each node, where there are several."""
    if not links.several_nodes or len(links.nodes) > MOST_BOXES:
        return
    pad = 1.35 * radius
    for ranks, name in zip(links.nodes, links.names):
        inside = [places[rank] for rank in ranks if rank in places]
        if not inside:
            continue
        left, right = min(x for x, _ in inside) - pad, max(x for x, _ in inside) + pad
        low, high = min(y for _, y in inside) - pad, max(y for _, y in inside) + pad
        ax.add_patch(FancyBboxPatch((left, low), right - left, high - low, boxstyle="round,pad=0,rounding_size=0.08",
                                    fc=NODE_COLOR, ec=MEMORY_COLOR, lw=0.8, zorder=0))
        size = min(0.8 * TEXT, 1.5 * (right - left) * scale / max(1, len(name)))
        if size > 3:
            ax.text((left + right) / 2, low - 0.02, name, ha="center", va="top", fontsize=size, color="#57606a")


def draw_arrow(ax: Axes, start: Point, end: Point, radius: float, kind: str = "") -> None:
    length = math.dist(start, end) or 1.0
    step = ((end[0] - start[0]) / length * radius, (end[1] - start[1]) / length * radius)
    color, style = LINK_STYLES.get(kind, (LINK_COLOR, "-"))
    ax.add_patch(FancyArrowPatch((start[0] + step[0], start[1] + step[1]), (end[0] - step[0], end[1] - step[1]),
                                 arrowstyle="-|>", mutation_scale=7, shrinkA=0, shrinkB=0, color=color, ls=style,
                                 lw=1.4 if kind == "NET" else 0.9, zorder=1))


def panel_grid(groups: Sequence[Any], width: float) -> tuple[int, int, float]:
    """Columns, rows, and the height of a panel, in a figure that is `width` inches wide."""
    shown = groups[:MOST_PANELS]
    ranks = max((len(value) for value, _ in shown), default=0)
    inches = min(PANEL_INCHES * max(1.0, ranks / PANEL_RANKS), width)
    columns = min(max(1, int(width * PANEL[1] / PANEL[0] / inches)), max(1, len(shown)))
    return columns, max(1, math.ceil(len(shown) / columns)), inches


def panels_height(channels: Sequence[Any], width: float) -> float:
    """Inches that draw_rings() and draw_trees() take in a figure that is `width` inches wide."""
    _, rows, inches = panel_grid(groups_of(channels), width)
    return rows * inches


def draw_panels(ax: Axes, channels: Sequence[Any], what: str, links: Links,
                draw: Callable[[Axes, Any, Point, float, Links], None]) -> None:
    """A grid of panels, one for each different ring or tree, with the channels that share it."""
    ax.set_axis_off()
    ax.set_aspect("equal")
    groups = groups_of(channels)
    columns, rows, inches = panel_grid(groups, ax.figure.get_figwidth())
    for i, (value, sharing) in enumerate(groups[:MOST_PANELS]):
        center = (PANEL[0] * (i % columns), -PANEL[1] * (i // columns))
        draw(ax, value, center, 72 * inches / PANEL[1], links)
        ax.text(center[0], center[1] + 1.28, f"channel{'s' if len(sharing) > 1 else ''} {ranges_text(sharing)}",
                ha="center", va="center", fontsize=TEXT if columns < 3 else 7.0)
    more = f" (the first {MOST_PANELS} of {len(groups)} different ones)" if len(groups) > MOST_PANELS else ""
    title = f"{what}{more}" if groups else f"{what}: none in the log"
    legend = links.legend()
    ax.set_title(f"{title}\n{legend}" if legend else title, fontsize=10)
    ax.set_xlim(-PANEL[0] / 2, PANEL[0] * (columns - 0.5))
    ax.set_ylim(-PANEL[1] * (rows - 1) - 1.3, 1.5)


def draw_ring(ax: Axes, ring: list[int], center: Point, scale: float, links: Links) -> None:
    """Every rank has its place on the circle by node and number, so that rings can be told apart."""
    node_of = {rank: i for i, node in enumerate(links.nodes) for rank in node}
    ranks = sorted(ring, key=lambda rank: (node_of.get(rank, 0), rank))
    radius = min(0.17, 2.2 / max(1, len(ranks)))
    turned = 0.5 if links.several_nodes else 0.0  # so that boxes around arcs do not meet
    places = {}
    for i, rank in enumerate(ranks):
        angle = math.pi / 2 - 2 * math.pi * (i + turned) / len(ranks)
        places[rank] = (center[0] + math.cos(angle) * 0.9, center[1] + math.sin(angle) * 0.9)
    draw_nodes(ax, places, radius, links, scale)
    for rank, following in zip(ring, ring[1:] + ring[:1]):
        if rank != following:
            draw_arrow(ax, places[rank], places[following], radius, links.kind(rank, following))
    draw_ranks(ax, places, radius, scale)


def tree_places(nodes: dict[int, dict[str, Any]]) -> dict[int, tuple[float, int]]:
    """Column and depth of every rank: leaves side by side, parents above the middle of their children."""
    places: dict[int, tuple[float, int]] = {}
    next_column = 0

    def visit(rank: int, depth: int, above: frozenset[int]) -> None:
        nonlocal next_column
        children = [c for c in nodes.get(rank, {}).get("children", []) if c not in places and c not in above]
        for child in children:
            visit(child, depth + 1, above | {rank})
        columns = [places[child][0] for child in children if child in places]
        if not columns:
            columns = [float(next_column)]
            next_column += 1
        places[rank] = (sum(columns) / len(columns), depth)

    # Where lines of the log are missing, a tree falls into several.
    roots = [rank for rank, node in nodes.items() if node["parent"] not in nodes]
    for root in [*roots, *nodes]:
        if root not in places:
            visit(root, 0, frozenset())
    return places


def draw_tree(ax: Axes, tree: list[dict[str, Any]], center: Point, scale: float, links: Links) -> None:
    nodes = {node["rank"]: node for node in tree}
    levels = tree_places(nodes)
    columns = max(column for column, _ in levels.values())
    depth = max(1, max(level for _, level in levels.values()))
    radius = min(0.17, 0.8 / (depth + 1), 0.9 / (columns + 1))
    places = {}
    for rank, (column, level) in levels.items():
        across = column / columns * 2 - 1 if columns else 0.0
        places[rank] = (center[0] + 0.95 * across, center[1] + 0.95 - 1.9 * level / depth)
    draw_nodes(ax, places, radius, links, scale)
    for rank, node in nodes.items():
        for child in node["children"]:
            if child in places and levels[child][1] > levels[rank][1]:
                draw_arrow(ax, places[rank], places[child], radius, links.kind(rank, child))
    draw_ranks(ax, places, radius, scale)


def draw_rings(ax: Axes, channels: Sequence[list[int] | None], nccl: dict[str, Any] | None = None) -> None:
    """Draws "rings": for each channel the ranks in their order around the ring, null where unknown. `nccl`: tells nodes
    and links."""
    draw_panels(ax, channels, "Rings", links_of(nccl or {}), draw_ring)


def draw_trees(ax: Axes, channels: Sequence[list[dict[str, Any]] | None], nccl: dict[str, Any] | None = None) -> None:
    """Draws "trees": for each channel rank, parent and children of the ranks whose lines the log has."""
    draw_panels(ax, channels, "Trees, the root on top", links_of(nccl or {}), draw_tree)


def drawings_of(nccl: dict[str, Any], width: float) -> Iterator[tuple[str, Callable[[Axes], None], float]]:
    """Caption, drawing, and its height in a figure that is `width` inches wide: the rings, the trees."""
    for name, draw in (("rings", draw_rings), ("trees", draw_trees)):
        if channels := nccl.get(name):
            yield name, functools.partial(draw, channels=channels, nccl=nccl), panels_height(channels, width)
