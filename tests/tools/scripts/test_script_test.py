"""launch/test in a folder of its own, with programs in place of cmake and ctest: what it says at its end."""

import os
import shutil
import subprocess

from tests.tools.support import ROOT, FolderCase, run, write_program

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
        for name, text in (("launch/setup", "#!/bin/sh\n"), ("bin/cmake", "#!/bin/sh\n"), ("bin/ctest", CTEST)):
            write_program(self.folder / name, text)
        for name in ("test", "lib.sh"):
            shutil.copy(ROOT / "launch" / name, self.folder / "launch")
        (self.folder / "log").write_text(LOG)

    def run_tests(self, code: int) -> subprocess.CompletedProcess:
        (self.folder / "build-cpu").mkdir(exist_ok=True)
        (self.folder / "build-cpu" / "CMakeCache.txt").write_text("DDPTRAIN_CUDA_BACKEND:INTERNAL=OFF\n")
        environment = os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "CODE": str(code)}
        environment["LOG"] = str(self.folder / "log")
        command = [self.folder / "launch" / "test", "--no-cuda"]
        return run(command, code, env=environment)

    def test_says_what_was_skipped_in_any_language(self) -> None:
        for code in (0, 8):
            done = self.run_tests(code)
            skipped = "this build has no CUDA (test cases skipped: 2 in C++, 25 in Python and scripts)"
            self.assertEqual(done.stdout.splitlines()[-1], f"== GPU tests did not run: {skipped}")
