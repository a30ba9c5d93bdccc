#!/usr/bin/env python3
"""Draws ddptopo's JSON, read from standard input: NCCL's rings and its trees.

Exit codes: 2, the drawing could not be made; 3, matplotlib is not here; 4, the disk is full.
"""

import argparse
import itertools
import json
import math
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).absolute().parents[2])

try:
    import matplotlib
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from ddptools.pictures.figures import image_of
except ImportError:
    sys.exit(3)

from ddptools.common.errors import FULL_DISK  # noqa: E402
from ddptools.common.files import write_atomically  # noqa: E402
from ddptools.common.text import one_line, ranges_text  # noqa: E402
from ddptools.common.values import grouped  # noqa: E402

WIDTH, LEGEND = 11.0, 0.5  # inches: of the figure, and the height of its legend
MOST_PANELS = 24
MOST_SIDE_BY_SIDE = 16  # ranks of a panel that shares its row
TEXT = 8.0  # points
GRAY = "#6b7280"
NODE_COLORS = ("#cfe8c3", "#fde0a8", "#cfe0f7", "#f7cfe0", "#ddd0f0", "#c5ece6", "#f5d0c0", "#e3e3e3")
LINKS = {  # by the first letters of NCCL's transports
    "P2P": ("P2P", "#3a7d0a", "-"),
    "SHM": ("shared memory", GRAY, ":"),
    "NET": ("network", "#c2410c", "--"),
    "": ("not known", "#444444", "-"),
}

Point = tuple[float, float]
Tree = list[dict[str, Any]]  # rank, parent and children of the ranks whose lines the log has


@dataclass
class Panel:
    """A ring or a tree, in the square from -1 to 1."""

    title: str
    places: dict[int, Point]  # of the ranks
    arrows: list[tuple[int, int]]


class Links:
    """Which rank is on which node, and what joins two ranks, of "nccl"; empty where the log does not tell."""

    def __init__(self, nccl: dict[str, Any]) -> None:
        self.nodes = nccl.get("ranks_by_node") or []
        self.node_of = {rank: i for i, node in enumerate(self.nodes) for rank in node["ranks"]}
        self.vias = {(each["from"], each["to"]): each["via"][:3] for each in nccl.get("transports") or []}

    def kind(self, start: int, end: int) -> str:
        """As NCCL says it, else by their nodes."""
        via = self.vias.get((start, end)) or self.vias.get((end, start))
        between_nodes = "NET" if self.node_of.get(start) != self.node_of.get(end) else ""
        return via if via in LINKS else between_nodes

    def color(self, rank: int) -> str:
        """The same for the ranks of a node."""
        return NODE_COLORS[self.node_of.get(rank, 0) % len(NODE_COLORS)]

    def legend(self, arrows: Iterable[tuple[int, int]]) -> list[Artist]:
        kinds = {self.kind(*arrow) for arrow in arrows}
        told = [(name, color, style) for kind, (name, color, style) in LINKS.items() if kind in kinds]
        lines = [Line2D([], [], color=color, linestyle=style, label=name) for name, color, style in told]
        named = zip(NODE_COLORS, self.nodes) if len(self.nodes) > 1 else ()
        names = [(color, node["host"] or f"node {number}") for number, (color, node) in enumerate(named)]
        return lines + [Patch(facecolor=color, edgecolor=GRAY, label=name) for color, name in names]


def panels_of(nccl: dict[str, Any], links: Links) -> list[Panel]:
    """One for each different ring or tree, with the channels that share it; a channel that is null is not known."""
    panels = []
    for kind, panel_of in (("ring", ring_panel), ("tree", tree_panel)):
        told = enumerate(nccl.get(f"{kind}s") or [])
        for value, channels in grouped((json.dumps(value), channel) for channel, value in told if value).items():
            title = f"{kind}, channel{'s' if len(channels) > 1 else ''} {ranges_text(channels)}"
            panels.append(panel_of(title, json.loads(value), links))
    return panels


def ring_panel(title: str, ring: list[int], links: Links) -> Panel:
    """Every rank has its place on the circle by node and number, so that rings can be told apart."""
    ranks = sorted(ring, key=lambda rank: (links.node_of.get(rank, 0), rank))
    angles = {rank: math.pi / 2 - 2 * math.pi * i / len(ranks) for i, rank in enumerate(ranks)}
    places = {rank: (0.9 * math.cos(angle), 0.9 * math.sin(angle)) for rank, angle in angles.items()}
    return Panel(title, places, [pair for pair in itertools.pairwise([*ring, ring[0]]) if pair[0] != pair[1]])


def tree_panel(title: str, tree: Tree, _links: Links) -> Panel:
    levels = tree_places(tree)
    columns, depth = (max(1, *(place[i] for place in levels.values())) for i in range(2))
    places = {rank: (2 * x / columns - 1, 1 - 2 * y / depth) for rank, (x, y) in levels.items()}
    return Panel(title, places, [(node["rank"], child) for node in tree for child in node["children"]])


def tree_places(tree: Tree) -> dict[int, Point]:
    """Column and depth of every rank: leaves side by side, parents above the middle of their children."""
    nodes = {node["rank"]: node for node in tree}
    places: dict[int, Point] = {}
    leaves = itertools.count()

    def visit(rank: int, depth: int) -> float:
        places[rank] = (0.0, depth)  # so that a damaged log's circle ends here
        children = nodes[rank]["children"] if rank in nodes else []
        columns = [visit(child, depth + 1) for child in children if child not in places]
        column = statistics.fmean(columns) if columns else float(next(leaves))
        places[rank] = (column, depth)
        return column

    # Where lines of the log are missing, a tree falls into several.
    roots = [rank for rank, node in nodes.items() if node["parent"] not in nodes]
    for root in [*roots, *nodes]:
        if root not in places:
            visit(root, 0)
    return places


def draw_panel(axes: Axes, panel: Panel, links: Links) -> None:
    axes.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal")
    axes.set_axis_off()
    axes.set_title(panel.title, fontsize=TEXT + 1)
    size = min(TEXT, 500 / len(panel.places))
    for start, end in panel.arrows:
        _, color, style = LINKS[links.kind(start, end)]
        arrow = {"arrowstyle": "-|>", "color": color, "linestyle": style, "shrinkA": size, "shrinkB": size}
        axes.annotate("", panel.places[end], panel.places[start], arrowprops=arrow)
    for rank, place in panel.places.items():
        box = {"boxstyle": "round", "facecolor": links.color(rank), "edgecolor": GRAY}
        axes.text(*place, str(rank), ha="center", va="center", fontsize=size, bbox=box)


def figure_of(topology: dict[str, Any]) -> Figure:
    nccl = topology["nccl"] or {}
    links = Links(nccl)
    panels = panels_of(nccl, links)
    if not panels:
        raise ValueError("there is nothing to draw: rings and trees come from --nccl, or from a log that has them")
    shown = panels[:MOST_PANELS]
    columns = min(len(shown), 3 if max(len(panel.places) for panel in shown) <= MOST_SIDE_BY_SIDE else 1)
    rows = math.ceil(len(shown) / columns)
    height = WIDTH / columns * rows + LEGEND
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.get_layout_engine().set(rect=(0, LEGEND / height, 1, 1 - LEGEND / height))
    for place, panel in enumerate(shown, 1):
        draw_panel(figure.add_subplot(rows, columns, place), panel, links)
    lines = links.legend(arrow for panel in shown for arrow in panel.arrows)
    left_out = f"{len(panels) - len(shown)} more rings and trees are left out" if len(panels) > len(shown) else None
    figure.legend(handles=lines, title=left_out, ncols=8, fontsize=TEXT, frameon=False, loc="lower center")
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--svg", metavar="FILE")
    parser.add_argument("--png", metavar="FILE")
    arguments = parser.parse_args()
    matplotlib.rcParams.update({"svg.fonttype": "none", "text.parse_math": False})  # labels stay text
    try:
        figure = figure_of(json.load(sys.stdin))
        for kind, path in (("svg", arguments.svg), ("png", arguments.png)):
            if path:
                ending = Path(path).suffix.lower()[1:]
                write_atomically(Path(path), image_of(figure, ending if ending in ("svg", "png") else kind))
    except (OSError, ValueError) as error:
        reason = f"{error.filename}: cannot be written: {error.strerror}" if isinstance(error, OSError) else error
        print(one_line(str(reason)), file=sys.stderr)
        return 4 if isinstance(error, OSError) and error.errno in FULL_DISK else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
