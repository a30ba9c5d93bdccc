#!/usr/bin/env python3
"""Tests of ddptools/pictures/draw_topology.py: drawing_test.py FOLDER_OF_DDPTOOLS. Ends with 77 without matplotlib."""

import sys
import unittest
from typing import Any

sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv.pop(1))

try:
    import matplotlib  # noqa: F401
except ImportError:
    print("skipped: no matplotlib here")
    sys.exit(77)

from ddptools.pictures.draw_topology import LINKS, NODE_COLORS, figure_of, tree_places  # noqa: E402


def node(rank: int, parent: int | None, *children: int) -> dict[str, Any]:
    return {"rank": rank, "parent": parent, "children": list(children)}


TREE = [node(0, None, 1, 2), node(1, 0), node(2, 0, 3), node(3, 2)]


class RingAndTreeTest(unittest.TestCase):
    def panels(self, **nccl: Any) -> list[Any]:
        self.figure = figure_of({"nccl": nccl})
        return [axes for axes in self.figure.axes if axes.get_title()]

    def ranks(self, axes: Any) -> dict[str, Any]:
        return {text.get_text(): text for text in axes.texts if text.get_text()}

    def legend(self) -> list[str]:
        return [text.get_text() for text in self.figure.legends[0].get_texts()]

    def test_equal_rings_are_drawn_once(self) -> None:
        panels = self.panels(rings=[[0, 11, 2], [0, 2, 11], None, [0, 11, 2]])
        self.assertEqual([axes.get_title() for axes in panels], ["ring, channels 0, 3", "ring, channel 1"])
        self.assertEqual([set(self.ranks(axes)) for axes in panels], [{"0", "2", "11"}] * 2)
        for nothing in ({"rings": [None]}, {}):
            with self.assertRaisesRegex(ValueError, "nothing to draw"):
                self.panels(**nothing)
        rings = [[0, *range(start, 40), *range(1, start)] for start in range(1, 31)]
        self.assertEqual(len(self.panels(rings=rings)), 24)
        self.assertIn("6 more", self.figure.legends[0].get_title().get_text())

    def test_ranks_of_many_stay_readable(self) -> None:
        parent = {rank: (rank - 1) // 2 if rank else None for rank in range(64)}
        tree = [node(rank, parent[rank], *(child for child in parent if parent[child] == rank)) for rank in parent]
        for axes in self.panels(rings=[list(range(64))], trees=[tree]):
            self.figure.canvas.draw()
            boxes = [text.get_window_extent() for text in self.ranks(axes).values()]
            self.assertEqual(len(boxes), 64)
            self.assertGreater(min(text.get_fontsize() for text in self.ranks(axes).values()), 6)
            for i, a in enumerate(boxes):
                self.assertFalse([b for b in boxes[:i] if a.overlaps(b)])

    def test_nodes_have_colors_and_network_links_are_unlike_nvlink(self) -> None:
        vias = ((0, 1, "P2P/CUMEM/read"), (1, 2, "NET/IB/0/GDRDMA"), (2, 3, "SHM/direct/direct"), (3, 0, "NET/IB/1"))
        transports = [{"from": a, "to": b, "channel": 0, "via": via} for a, b, via in vias]
        nodes = [{"host": "left", "ranks": [0, 1]}, {"host": None, "ranks": [2, 3]}]
        panels = self.panels(rings=[[0, 1, 2, 3]], trees=[TREE], ranks_by_node=nodes, transports=transports)
        self.assertEqual(self.legend(), ["P2P", "shared memory", "network", "left", "node 1"])
        for axes, between_nodes in zip(panels, (2, 1)):
            colors = [text.arrow_patch.get_edgecolor() for text in axes.texts if not text.get_text()]
            self.assertEqual(colors.count(matplotlib.colors.to_rgba(LINKS["NET"][1])), between_nodes)
            faces = {rank: text.get_bbox_patch().get_facecolor() for rank, text in self.ranks(axes).items()}
            for rank, color in faces.items():
                self.assertEqual(color, matplotlib.colors.to_rgba(NODE_COLORS[int(rank) // 2]))
        self.panels(rings=[[0, 1, 2, 3]], ranks_by_node=nodes)
        self.assertEqual(self.legend(), ["network", "not known", "left", "node 1"])
        self.panels(rings=[[0, 1]], ranks_by_node=nodes[:1])
        self.assertEqual(self.legend(), ["not known"])

    def test_trees(self) -> None:
        self.assertEqual(tree_places(TREE), {0: (0.5, 0), 1: (0.0, 1), 2: (1.0, 1), 3: (1.0, 2)})
        circle = [node(0, 1, 1), node(1, 0, 0)]
        for tree, ranks in ((circle, "0 1"), ([node(2, 0, 33), node(5, None)], "2 33 5"), ([node(0, 0, 0)], "0")):
            (axes,) = self.panels(trees=[tree])
            self.assertEqual(set(self.ranks(axes)), set(ranks.split()))


if __name__ == "__main__":
    unittest.main()
