"""launch/test in a folder of its own, with programs in place of cmake and ctest: what it says at its end."""

import os
import pathlib
import shutil
import subprocess

from tests.tools.support import FolderCase

LAUNCH = pathlib.Path(__file__).resolve().parents[3] / "launch"
CTEST = """#!/usr/bin/env bash
mkdir -p "$2/Testing/Temporary"
cp "$LOG" "$2/Testing/Temporary/LastTest.log"
exit "$CODE"
"""
# Some of what ctest writes: GoogleTest names a skipped case twice.
LOG = """\
[  SKIPPED ] All/CommunicatorTest.SumsBf16/nccl_plain (0 ms)
[  SKIPPED ] Gpu.Sorts (3 ms)
[  SKIPPED ] 2 tests, listed below:
[  SKIPPED ] Gpu.Sorts
test_gpu (__main__.Faults.test_gpu) ... skipped 'two GPUs are needed'
OK (skipped=3)
OK
OK (skipped=1, expected failures=1)
FAILED (failures=1, skipped=20)
skipped: No module named 'torch'
"""


class TestScript(FolderCase):
    def setUp(self) -> None:
        super().setUp()
        (self.folder / "launch").mkdir()
        for name in ("test", "lib.sh"):
            shutil.copy(LAUNCH / name, self.folder / "launch")
        (self.folder / "log").write_text(LOG)
        self.program("launch/setup", "#!/bin/sh\n")
        self.program("bin/cmake", "#!/bin/sh\n")
        self.program("bin/ctest", CTEST)

    def program(self, name: str, text: str) -> None:
        file = self.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)

    def run_tests(self, code: int) -> subprocess.CompletedProcess:
        (self.folder / "build-cpu").mkdir(exist_ok=True)
        (self.folder / "build-cpu" / "CMakeCache.txt").write_text("DDPTRAIN_CUDA_BACKEND:INTERNAL=OFF\n")
        environment = os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "CODE": str(code)}
        environment["LOG"] = str(self.folder / "log")
        command = [self.folder / "launch" / "test", "--no-cuda"]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    def test_says_what_was_skipped_in_any_language(self) -> None:
        for code in (0, 8):
            done = self.run_tests(code)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertEqual(
                done.stdout.splitlines()[-1],
                "== GPU tests did not run: this build has no CUDA (test cases skipped: 2 in C++, 25 in Python and scripts)",
            )
