"""launch/test in a folder of its own, with programs in place of cmake and ctest: what it says at its end."""

import os
import pathlib
import shutil
import subprocess

from tests.tools.support import ROOT, FolderCase, run, write_program

STAND_INS = pathlib.Path(__file__).with_name("stand_ins")
LOG = STAND_INS / "last_test.txt"  # some of what ctest writes: GoogleTest names a skipped case twice


class TestScript(FolderCase):
    def setUp(self) -> None:
        super().setUp()
        for name in ("launch/setup", "bin/cmake"):
            write_program(self.folder / name, "#!/bin/sh\n")
        for name in ("test", "lib.sh"):
            shutil.copy(ROOT / "launch" / name, self.folder / "launch")

    def run_tests(self, code: int) -> subprocess.CompletedProcess:
        (self.folder / "build-cpu").mkdir(exist_ok=True)
        (self.folder / "build-cpu" / "CMakeCache.txt").write_text("DDPTRAIN_CUDA_BACKEND:INTERNAL=OFF\n")
        path = f"{self.folder}/bin:{STAND_INS}:{os.environ['PATH']}"
        environment = os.environ | {"PATH": path, "CODE": str(code), "LOG": str(LOG)}
        command = [self.folder / "launch" / "test", "--no-cuda"]
        return run(command, code, env=environment)

    def test_says_what_was_skipped_in_any_language(self) -> None:
        for code in (0, 8):
            done = self.run_tests(code)
            skipped = "this build has no CUDA (test cases skipped: 2 in C++, 25 in Python and scripts)"
            self.assertEqual(done.stdout.splitlines()[-1], f"== GPU tests did not run: {skipped}")
