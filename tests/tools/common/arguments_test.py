"""Tests of ddptools/common/arguments.py: what the tools say of command lines that they do not take."""

import contextlib
import errno
import io
import os
import resource
import subprocess
import sys
import unittest
from unittest import mock

from ddptools.common.errors import run_program
from ddptools.common.files import write_atomically
from tests.tools.support import FolderCase, run_tool


def answer(tool: str, *arguments: str) -> tuple[int, str]:
    done = run_tool(tool, *arguments, cwd="/", code=None)
    return done.returncode, done.stderr


class ArgumentsTest(unittest.TestCase):
    def assert_says(self, text: str, tool: str, *arguments: str) -> None:
        self.assertEqual(answer(tool, *arguments), (2, f"{tool}: {text}\n"))

    def test_unknown_flags_alone_in_the_order_typed(self) -> None:
        self.assert_says(
            "unknown flag --tiemout, did you mean --timeout?; unknown flag --foo (ddpsweep --help lists the flags)",
            "ddpsweep", "--tiemout", "5", "x.toml", "--foo=3")  # fmt: skip
        self.assert_says("unknown flag --modle, did you mean --model? (ddpplan --help lists the flags)",
                         "ddpplan", "--modle", "x", "--", "--zzz")  # fmt: skip
        self.assert_says("unknown flag --outt, did you mean --out? (ddpreport --help lists the flags)",
                         "ddpreport", "--outt", "x", "results")  # fmt: skip
        self.assert_says("unknown flag --restart, did you mean --restarts? (supervise --help lists the flags)",
                         "supervise", "--restart", "5", "mpirun")  # fmt: skip

    def test_underscores_are_hyphens(self) -> None:
        self.assert_says("argument --global-batch: 0: give a whole number from 1 to 1e+12 (ddpplan --help lists the "
                         "flags)", "ddpplan", "--global_batch=0")  # fmt: skip

    def test_what_supervise_starts_has_its_own_flags(self) -> None:
        code, text = answer("supervise", "--restarts", "5", "mpirun", "--zzz", "")
        self.assertEqual(code, 2)
        self.assertNotIn("unknown flag", text)

    def test_empty_paths(self) -> None:
        for tool, *arguments in (("ddpsweep", "--out", ""), ("ddpplan", "--calibrate", ""), ("ddpreport", "--flight="),
                                 ("supervise", "--log", ""), ("ddpsweep", "")):  # fmt: skip
            name = arguments[0].rstrip("=") or "SWEEP.toml"
            self.assert_says(f"argument {name}: the path is empty. Give one, or leave the flag out. ({tool} --help lists "
                             "the flags)", tool, *arguments)  # fmt: skip
        code, text = answer("ddpreport", "results", "--out", "x.svg")  # a page is no picture
        self.assertEqual(code, 2)
        self.assertIn("--out x.svg: the page is HTML", text)


class FilesTest(FolderCase):
    def test_a_write_that_fails_leaves_what_was_there(self) -> None:
        path = self.folder / "x.json"
        path.write_text("old")
        for reason in (OSError(28, "No space left on device"), KeyboardInterrupt()):
            with mock.patch("os.fsync", side_effect=reason), self.assertRaises(type(reason)):
                write_atomically(path, "new")
            self.assertEqual(os.listdir(self.folder), ["x.json"])
            self.assertEqual(path.read_text(), "old")

    def test_what_cannot_be_used_is_one_message(self) -> None:
        missing = self.folder / "none" / "x"

        def scipy() -> None:
            raise ModuleNotFoundError(name="scipy")

        for reason, use in (
            (f"{missing}: No such file or directory", lambda: write_atomically(missing, "")),
            (f"{missing}: No such file or directory", lambda: missing.read_text()),
            (f"{sys.executable} has no scipy: install python3-scipy (launch/setup does)", scipy),
        ):
            errors = io.StringIO()
            with contextlib.redirect_stderr(errors):
                self.assertEqual(run_program("ddpplan", lambda _, use=use: use()), 2)
            self.assertEqual(errors.getvalue(), f"ddpplan: {reason}\n")
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with mock.patch("os.fsync", side_effect=full), contextlib.redirect_stderr(errors := io.StringIO()):
            self.assertEqual(run_program("ddpplan", lambda _: write_atomically(self.folder / "x", "")), 1)
        self.assertEqual(errors.getvalue(), f"ddpplan: {self.folder / 'x'}: No space left on device\n")
        with self.assertRaises(BlockingIOError):  # of no file: a mistake of the tool
            run_program("ddpplan", lambda _: os.read(os.eventfd(0, os.EFD_NONBLOCK), 8))

    def test_output_that_is_not_written_is_told(self) -> None:
        sweep, metrics = self.folder / "s.toml", self.folder / "m.jsonl"
        sweep.write_text("[[product]]\nranks = 1\n")
        metrics.write_text('{"event": "start"}\n{"event": "summary", "world_size": 1}\n')
        page = ("ddpreport", metrics, "--out", self.folder / "page")
        helps = [(tool, "--help") for tool in ("ddpplan", "ddpreport", "ddpsweep", "supervise", "local-groups")]
        for command in (("ddpplan", "--params", "2B"), page, ("ddpsweep", "--dry-run", sweep), *helps):
            with open("/dev/full", "w") as full, self.subTest(command):
                done = run_tool(*command, code=1, capture_output=False, stdout=full, stderr=subprocess.PIPE)
                self.assertEqual(done.stderr, f"{command[0]}: standard output: No space left on device\n")
        for out, most_bytes, why in (("/dev/full", resource.RLIM_INFINITY, "No space left on device"),
                                     (self.folder / "other", 1024, "File too large")):  # fmt: skip
            limited = lambda most=most_bytes: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))  # noqa: E731
            done = run_tool("ddpreport", metrics, "--out", out, code=1, preexec_fn=limited)
            self.assertEqual(done.stderr, f"ddpreport: {out}: {why}\n")
        self.assertEqual(sorted(os.listdir(self.folder)), ["m.jsonl", "page", "s.toml"])

    def test_a_reader_that_ends_early_is_no_error_to_tell(self) -> None:
        for flags in (["--params", "2B"], ["--help"]):
            reading, writing = os.pipe()
            os.close(reading)
            done = run_tool("ddpplan", *flags, code=1, capture_output=False, stdout=writing, stderr=subprocess.PIPE)
            os.close(writing)
            self.assertEqual(done.stderr, "")

    def test_messages_that_cannot_be_written_leave_the_exit_code(self) -> None:
        with open("/dev/full", "w") as full:
            run_tool("ddpplan", "--zzz", code=2, capture_output=False, stderr=full)
