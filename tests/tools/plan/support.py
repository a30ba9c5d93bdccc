"""What the tests of ddpplan share: the program, beside a stand-in for ddptrain."""

import contextlib
import io
import pathlib
import tempfile

from ddptools.plan import program
from tests.tools.support import make_programs

PROGRAMS = tempfile.TemporaryDirectory()
BIN = make_programs(pathlib.Path(PROGRAMS.name))


def output(*arguments: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        program.main(["--bin", str(BIN), *arguments])
    return out.getvalue()
