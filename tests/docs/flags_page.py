"""docs/reference/flags.md from the help of the programs.

Usage: flags_page.py BIN [--write]

Prints the page, or writes it with --write. Versions of argparse differ in the layout of the help; the page depends on
the words only.
"""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "flags.md"
BENCHMARKS = ("p2p", "allreduce", "split", "overlap", "gemm", "memory", "doctor")
PROGRAMS = ("ddptrain", "ddpsweep", "ddpreport", "ddpplan", "ddptopo", "supervise")
START = pathlib.Path(__file__).with_name("flags_page_start.md").read_text(encoding="utf-8")
HEADING = re.compile(r"([A-Za-z][A-Za-z -]*):\s*")
FLAG = re.compile(r" {2,4}(-\S.*?)(?: {2,}(\S.*))?")
CONTINUATION = re.compile(r" {8,}(\S.*)")
COLUMN = 30  # in which the C++ programs begin what a flag means
DEFAULT = re.compile(r"(.*?\S)=([^=]*)")


def help_of(command: list[str], programs: pathlib.Path) -> str:
    environment = os.environ | {"COLUMNS": "100", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    topic = ["all"] if command == ["ddptrain"] else []
    path = [str(programs / command[0]), *command[1:], "--help", *topic]
    return subprocess.run(path, env=environment, capture_output=True, text=True, check=True, timeout=300).stdout


def split(line: str) -> tuple[str, str] | None:
    """A flag and what it means; None where the line begins no flag."""
    match = FLAG.fullmatch(line)
    if match is None:
        return None
    if match[2] is None and line[COLUMN - 1 : COLUMN] == " ":
        return line[:COLUMN].strip(), line[COLUMN:]
    return match[1], match[2] or ""


def groups(text: str) -> dict[str, list[tuple[str, str]]]:
    """Per heading of the help, its flags."""
    found: dict[str, list[tuple[str, str]]] = {}
    flags: list[tuple[str, str]] = []
    for line in text.splitlines():
        if heading := HEADING.fullmatch(line):
            flags = found.setdefault(heading[1], [])
        elif pair := split(line):
            flags.append(pair)
        elif (more := CONTINUATION.fullmatch(line)) and flags:
            left, meaning = flags[-1]
            flags[-1] = left, f"{meaning} {more[1]}".strip()
    return found


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


def row(left: str, meaning: str, has_default: bool) -> str:
    match = DEFAULT.fullmatch(left) if has_default else None
    left, default = match.groups() if match else (left, "")
    left, default, meaning = map(escaped, (left, default, meaning))
    if not has_default:
        return f"| `{left}` | {meaning} |\n"
    return f"| `{left}` | `{default}` | {meaning} |\n" if default else f"| `{left}` | | {meaning} |\n"


def table(flags: list[tuple[str, str]], has_default: bool = False) -> str:
    columns = ("flag", "default", "meaning") if has_default else ("flag", "meaning")
    head = f"\n| {' | '.join(columns)} |\n|{' --- |' * len(columns)}\n"
    return head + "".join(row(left, meaning, has_default) for left, meaning in flags)


def shown(command: list[str], programs: pathlib.Path) -> dict[str, list[tuple[str, str]]]:
    """Per heading of the help, its flags without -h."""
    found = groups(help_of(command, programs)).items()
    flags = {name: [pair for pair in pairs if not pair[0].startswith("-h")] for name, pairs in found}
    return {name: pairs for name, pairs in flags.items() if pairs}


def page(programs: pathlib.Path) -> str:
    text = START
    for program in PROGRAMS:
        text += f"\n## {program}\n"
        of_models: list[tuple[str, str]] = []
        for name, flags in shown([program], programs).items():
            if name.startswith("Model "):
                flags = [pair for pair in flags if pair not in of_models]
                of_models += flags
            text += "" if name.lower() == "options" else f"\n### {name[0].upper()}{name[1:]}\n"
            text += table(flags, has_default=program == "ddptrain") if flags else "\nAs above.\n"
    commands: dict[tuple[str, str], list[str]] = {}
    for name in BENCHMARKS:
        for pair in shown(["ddpbench", name], programs)["Options"]:
            commands.setdefault(pair, []).append(name)
    text += "\n## ddpbench\n\n| flag | subcommands | meaning |\n| --- | --- | --- |\n"
    for (left, meaning), names in commands.items():
        where = "all" if len(names) == len(BENCHMARKS) else ", ".join(names)
        text += f"| `{escaped(left)}` | {where} | {escaped(meaning)} |\n"
    return text


def main() -> int:
    text = page(pathlib.Path(sys.argv[1]))
    if "--write" in sys.argv[2:]:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
