"""A picture of a page, and a picture's file, of the kind that its name says."""

import dataclasses
import io
import pathlib
from typing import Any

from ddptools.results import write_bytes_atomically

KINDS = {".svg": "svg", ".png": "png"}


@dataclasses.dataclass
class Picture:
    name: str  # of its file, without an ending
    caption: str
    svg: str
    png: bytes


def save_figure(figure: Any, path: pathlib.Path, otherwise: str) -> None:
    """A figure of matplotlib; `otherwise`: the kind where the name ends in neither .svg nor .png."""
    data = io.BytesIO()
    figure.savefig(data, format=KINDS.get(path.suffix.lower(), otherwise), dpi=150)
    write_bytes_atomically(path, data.getvalue())
