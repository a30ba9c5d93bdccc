"""Command lines of the tools: one message for a mistake, which names the unknown flag and its neighbour."""

import argparse
import difflib
import math
import pathlib
import shutil
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ddptools.common.errors import UsageError
from ddptools.common.text import one_line
from ddptools.common.values import size_bytes


def number(least: float, most: float, kind: type[int] | type[float] = float) -> Callable[[str], Any]:
    """The type of a flag that takes a number within these limits."""

    def convert(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            whole = "whole " if kind is int else ""
            raise argparse.ArgumentTypeError(f"{text}: give a {whole}number from {least:.12g} to {most:.12g}")
        return value

    return convert


def size(unit: float, least: float, most: float) -> Callable[[str], float]:
    """The type of a flag that takes a number of `unit` bytes within these limits, or a size with a unit, such as 25M."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            found = size_bytes(text, unit)
            value = math.nan if found is None else found / unit
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f"{text}: give a number from {least:.12g} to {most:.12g}, or a size with a unit, such as 512K or 4M"
            )
        return value

    return convert


def whole(most: int, least: int = 1) -> Callable[[str], Any]:
    return number(least, most, int)


class NamedPath(type(pathlib.Path())):  # type: ignore[misc]
    """A path that a message shows on one line, whatever is in its name. str() gives the name itself."""

    def __format__(self, spec: str) -> str:
        return format(one_line(str(self)), spec)


def path(text: str) -> pathlib.Path:
    if not text:
        raise argparse.ArgumentTypeError("the path is empty. Give one, or leave the flag out.")
    return NamedPath(text)


class Formatter(argparse.HelpFormatter):
    """Lines of up to 100 columns. Flags in a text are not broken at their hyphens."""

    def __init__(self, prog: str, **settings: Any) -> None:
        columns = min(shutil.get_terminal_size().columns - 2, 100)
        super().__init__(prog, **({"max_help_position": 30, "width": columns} | settings))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + line for line in self._split_lines(text, width - len(indent)))


class Parser(argparse.ArgumentParser):
    """Raises UsageError for mistakes. Flags are not abbreviated, and may have underscores in place of hyphens."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, allow_abbrev=False, formatter_class=Formatter, **settings)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} ({self.prog} --help lists the flags)")

    def parse_args(self, args: Sequence[str], namespace: Any = None) -> Any:  # type: ignore[override]
        found, others = self.parse_known_args(list(map(self._hyphened, args)), namespace)
        if flags := [word.partition("=")[0] for word in others if word.startswith("--")]:
            self.error("; ".join(map(self._unknown, flags)))
        if others:
            self.error(f"unrecognized arguments: {' '.join(others)}")
        return found

    def _hyphened(self, word: str) -> str:
        """With hyphens in place of underscores in the name of a flag."""
        name, equals, value = word.partition("=")
        flag = name.replace("_", "-")
        return flag + equals + value if name.startswith("--") and flag in self._option_string_actions else word

    def _unknown(self, flag: str) -> str:
        known = [name[2:] for name in self._option_string_actions if name.startswith("--")]
        near = difflib.get_close_matches(flag[2:], known, 1)
        return f"unknown flag {flag}" + (f", did you mean --{near[0]}?" if near else "")
