#!/usr/bin/env python3
"""Draws ddptopo's JSON, read from standard input: NCCL's rings and its trees.

Exit codes: 2, the drawing could not be made; 3, matplotlib is not here.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).absolute().parents[2])

try:
    import matplotlib
    from matplotlib.figure import Figure
except ImportError:
    sys.exit(3)

from ddptools.pictures.charts import save_figure  # noqa: E402
from ddptools.pictures.topology import drawings_of  # noqa: E402

WIDTH = 11.0  # inches


def figure_of(topology: dict[str, Any]) -> Figure:
    parts = list(drawings_of(topology["nccl"] or {}, WIDTH))
    if not parts:
        raise ValueError("there is nothing to draw: rings and trees come from --nccl, or from a log that has them")
    heights = [inches for _, _, inches in parts]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.3), layout="constrained")
    axes = figure.subplots(len(parts), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    for (_, draw, _), ax in zip(parts, axes[:, 0]):
        draw(ax)
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--svg", metavar="FILE")
    parser.add_argument("--png", metavar="FILE")
    arguments = parser.parse_args()
    matplotlib.rcParams.update({"svg.fonttype": "none", "text.parse_math": False})  # labels stay text
    try:
        figure = figure_of(json.load(sys.stdin))
        for kind in ("svg", "png"):
            if path := getattr(arguments, kind):
                save_figure(figure, Path(path), kind)
    except (OSError, ValueError) as error:
        reason = f"{error.filename}: cannot be written: {error.strerror}" if isinstance(error, OSError) else error
        print(reason, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
