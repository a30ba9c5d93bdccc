#!/usr/bin/env python3
"""Tests of ddptools/pictures/topology.py: drawing_test.py FOLDER_OF_DDPTOOLS. Ends with 77 without matplotlib."""

import re
import sys
import unittest
from io import StringIO
from typing import Any

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv.pop(1))

try:
    import matplotlib
    from matplotlib.figure import Figure
except ImportError:
    print("skipped: no matplotlib here")
    sys.exit(77)

from ddptools.pictures import topology  # noqa: E402

matplotlib.rcParams["svg.fonttype"] = "none"


def svg_of(draw: Any, value: Any) -> str:
    figure = Figure()
    draw(figure.subplots(), value)
    text = StringIO()
    figure.savefig(text, format="svg")
    return text.getvalue()


class RingAndTreeTest(unittest.TestCase):
    def test_equal_rings_are_drawn_once(self) -> None:
        text = svg_of(topology.draw_rings, [[0, 11, 2], [0, 2, 11], None, [0, 11, 2]])
        self.assertIn("channels 0, 3", text)
        self.assertIn("channel 1", text)
        self.assertEqual(text.count(">11<"), 2)
        self.assertIn("none in the log", svg_of(topology.draw_rings, [None]))
        rings = [[0, *range(start, 40), *range(1, start)] for start in range(1, 21)]
        self.assertIn("the first 12 of 20", svg_of(topology.draw_rings, rings))

    def test_ranks_of_many_stay_readable(self) -> None:
        parent = {rank: (rank - 1) // 2 if rank else None for rank in range(64)}
        tree = [{"rank": rank, "parent": parent[rank], "children": [c for c in parent if parent[c] == rank]}
                for rank in parent]
        for draw, value in ((topology.draw_rings, [list(range(64))]), (topology.draw_trees, [tree])):
            figure = Figure(figsize=(11, topology.panels_height(value, 11)))
            axes = figure.subplots()
            draw(axes, value)
            self.assertGreater(min(text.get_fontsize() for text in axes.texts), 6)
        self.assertEqual(topology.panels_height([[0, 1, 2, 3]], 11), 3)

    def test_nodes_are_boxes_and_network_links_are_unlike_nvlink(self) -> None:
        transports = [{"from": a, "to": b, "channel": 0, "via": via} for a, b, via in
                      ((0, 1, "P2P/CUMEM/read"), (1, 2, "NET/IB/0/GDRDMA"), (2, 3, "SHM/direct/direct"),
                       (3, 0, "NET/IB/1"))]  # fmt: skip
        nodes = [{"host": "left", "ranks": [0, 1]}, {"host": None, "ranks": [2, 3]}]
        nccl = {"ranks_by_node": nodes, "transports": transports}
        tree = [{"rank": 0, "parent": None, "children": [1, 2]}, {"rank": 1, "parent": 0, "children": []},
                {"rank": 2, "parent": 0, "children": [3]}, {"rank": 3, "parent": 2, "children": []}]
        for draw, value, arrows in ((topology.draw_rings, [0, 1, 2, 3], 2), (topology.draw_trees, tree, 1)):
            text = svg_of(lambda axes, channels, draw=draw: draw(axes, channels, nccl), [value])
            for label in (">left<", ">node 1<", "orange, dashed: network", "green: P2P", "a box is a node"):
                self.assertIn(label, text)
            self.assertEqual(text.count(f"fill: {topology.NODE_COLOR}"), 2)
            lines = re.findall(r"fill: none; stroke(?:-dasharray: [^;]*; stroke-dashoffset: 0; stroke)?: (#\w+)", text)
            self.assertEqual(lines.count(topology.NETWORK_COLOR), arrows, text)
        alone = svg_of(lambda axes, value: topology.draw_rings(axes, value, {"ranks_by_node": nodes[:1]}), [[0, 1]])
        self.assertNotIn("a box is a node", alone)
        self.assertNotIn(topology.NETWORK_COLOR, alone)

    def test_boxes_do_not_meet(self) -> None:
        for count, each in ((2, 1), (2, 4), (3, 3), (4, 2), (8, 8)):
            nodes = [list(range(i * each, (i + 1) * each)) for i in range(count)]
            figure = Figure(figsize=(11, 6))
            axes = figure.subplots()
            nccl = {"ranks_by_node": [{"host": None, "ranks": ranks} for ranks in nodes]}
            topology.draw_rings(axes, [list(range(count * each))], nccl)
            boxes = [patch.get_path().get_extents() for patch in axes.patches
                     if matplotlib.colors.to_hex(patch.get_facecolor()) == topology.NODE_COLOR]  # fmt: skip
            self.assertEqual(len(boxes), count)
            for i, a in enumerate(boxes):
                for b in boxes[:i]:
                    width, height = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
                    self.assertLess(min(width, height), 0.12, (count, each))  # no more than their corners

    def test_trees(self) -> None:
        tree = {0: {"parent": None, "children": [1, 2]}, 1: {"parent": 0, "children": []},
                2: {"parent": 0, "children": [3]}, 3: {"parent": 2, "children": []}}
        self.assertEqual(topology.tree_places(tree), {0: (0.5, 0), 1: (0.0, 1), 2: (1.0, 1), 3: (1.0, 2)})
        circle = [{"rank": 0, "parent": 1, "children": [1]}, {"rank": 1, "parent": 0, "children": [0]}]
        parts = [{"rank": 2, "parent": 0, "children": [33]}, {"rank": 5, "parent": None, "children": []}]
        for tree, label in ((circle, ">1<"), (parts, ">33<"), ([{"rank": 0, "parent": 0, "children": [0]}], ">0<")):
            self.assertIn(label, svg_of(topology.draw_trees, [tree]))


if __name__ == "__main__":
    unittest.main()
