"""Command lines of the tools: one message for a mistake, which names the unknown flag and its neighbour."""

import argparse
import difflib
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from ddptools.errors import UsageError

PATHS = ("FILE", "DIR", "RESULTS")


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
    """Raises UsageError for mistakes. Flags are not abbreviated, and paths are not empty."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, allow_abbrev=False, formatter_class=Formatter, **settings)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} ({self.prog} --help lists the flags)")

    def parse_args(self, args: Sequence[str], namespace: Any = None) -> Any:  # type: ignore[override]
        self._check_flags(args)
        self._check_paths(args)
        return super().parse_args(args, namespace)

    def _own(self, args: Sequence[str]) -> list[str]:
        """Without the command that follows, whose flags are its own."""
        if not any(action.nargs == argparse.REMAINDER for action in self._actions):
            return list(args)
        own: list[str] = []
        for word in args:
            takes_value = bool(own) and (action := self._option_string_actions.get(own[-1])) and action.nargs != 0
            if not word.startswith("-") and not takes_value:
                break
            own.append(word)
        return own

    def _check_flags(self, args: Sequence[str]) -> None:
        words = []
        for word in self._own(args):
            if word == "--":
                break
            flag = word.partition("=")[0]
            if not flag.startswith("--") or flag in self._option_string_actions:
                continue
            names = [name[2:] for name in self._option_string_actions if name.startswith("--")]
            near = difflib.get_close_matches(flag[2:], names, 1)
            words.append(f"unknown flag {flag}" + (f", did you mean --{near[0]}?" if near else ""))
        if words:
            self.error("; ".join(words))

    def _check_paths(self, args: Sequence[str]) -> None:
        own = self._own(args)
        for before, word in zip(["", *own], own, strict=False):
            flag = before if word == "" else word[:-1] if word.endswith("=") else None
            if flag is None:
                continue
            action = self._option_string_actions.get(flag)
            if word == "" and action is None:
                self.error("a path is empty")
            if action is not None and action.metavar in PATHS:
                raise UsageError(f"{flag} '': the path is empty. Give one, or leave the flag out.")
