"""docs/reference/flags.md from the help of the programs.

Usage: flags_page.py BIN [--write]

Prints the page, or writes it with --write. Versions of CLI11 and argparse differ in the layout of the help; the page
depends on the words only.
"""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "flags.md"
BENCHMARKS = ("p2p", "allreduce", "split", "overlap", "gemm", "memory", "doctor")
COMMANDS = (
    ["ddptrain"],
    ["ddpsweep"],
    ["ddpreport"],
    ["ddpplan"],
    ["ddptopo"],
    ["supervise"],
    *(["ddpbench", name] for name in BENCHMARKS),
)
START = """\
# Flags

This page is generated from `--help` of every program (`python3 tests/docs/flags_page.py build/bin --write`), and a test
compares the two.
`ddpbench step` takes the flags of `ddptrain`. `source launch/completion.sh` lets bash and zsh complete flags and their
values.
"""
HEADING = re.compile(r"([A-Za-z][A-Za-z -]*):\s*")
FLAG = re.compile(r" {2,4}(-\S.*?)(?: {2,}(\S.*))?")
CONTINUATION = re.compile(r" {8,}(\S.*)")
MODELS = ("cnn", "gpt")  # whose flags the page shows
COLUMN = 30  # in which CLI11 begins what a flag means
DEFAULT = re.compile(r"(.*?\S)(?:=| \[)([^\]=]*)\]?")  # CLI11 2.3: --name TYPE=default; later: --name TYPE [default]


def help_of(command: list[str], programs: pathlib.Path) -> str:
    environment = os.environ | {"COLUMNS": "1000", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    path = [str(programs / command[0]), *command[1:], "--help"]
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


def row(left: str, meaning: str, has_default: bool) -> str:
    match = DEFAULT.fullmatch(left.removesuffix("{false}")) if has_default else None
    left, default = match.groups() if match else (left.removesuffix("{false}"), "")
    left, default, meaning = (text.replace("|", "\\|").strip() for text in (left, default, meaning))
    return f"| `{left}` | `{default}` | {meaning} |\n" if has_default and default else f"| `{left}` | | {meaning} |\n"


def page(programs: pathlib.Path) -> str:
    text = START
    for command in COMMANDS:
        text += f"\n## {' '.join(command)}\n"
        for name, flags in groups(help_of(command, programs)).items():
            shown = [(left, meaning) for left, meaning in flags if not left.startswith("-h")]
            model = re.match(r"Model (\w+)", name)
            if not shown or (model is not None and model[1] not in MODELS):
                continue
            text += "" if name.lower() == "options" else f"\n### {name[0].upper()}{name[1:]}\n"
            text += "\n| flag | default | meaning |\n| --- | --- | --- |\n"
            text += "".join(row(left, meaning, command == ["ddptrain"]) for left, meaning in shown)
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
