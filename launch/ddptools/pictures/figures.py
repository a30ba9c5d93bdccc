"""Figures of matplotlib."""

import io

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

STYLE = {
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # of names of cases, runs and files
    "svg.hashsalt": "ddpreport",
    "font.size": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.use": True,
}


# Without a date or versions: the same picture is the same file.
METADATA = {"png": {"Software": "ddptrain"}, "svg": {"Date": None, "Creator": "ddptrain"}}


def image_of(figure: Figure, kind: str) -> bytes:
    """`kind`: png or svg."""
    data = io.BytesIO()
    figure.savefig(data, format=kind, dpi=150, metadata=METADATA[kind])
    plt.close(figure)
    return data.getvalue()
