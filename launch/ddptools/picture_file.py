"""A picture's file, of the kind that its name says."""

import io
import pathlib
from typing import Any

from ddptools.results import write_bytes_atomically

KINDS = {".svg": "svg", ".png": "png"}


def save_figure(figure: Any, path: pathlib.Path, otherwise: str) -> None:
    """A figure of matplotlib; `otherwise`: the kind where the name ends in neither .svg nor .png."""
    data = io.BytesIO()
    figure.savefig(data, format=KINDS.get(path.suffix.lower(), otherwise), dpi=150)
    write_bytes_atomically(path, data.getvalue())
