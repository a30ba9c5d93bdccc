"""tests/gpu/run: what it says of jobs that end in different ways. Scripts stand in for the tests, and for MPS."""

import os
import pathlib
import sys
from unittest import mock

from tests.tools.support import ROOT, FolderCase, load_script, run, write_program

gpu_run = load_script(ROOT / "tests" / "gpu" / "run")
PASSED = "echo '[       OK ] A.B (1 ms)'\n"
SKIPPED = "echo '[  SKIPPED ] A.C (0 ms)'\n"


class GpuRunTest(FolderCase):
    def setUp(self) -> None:
        super().setUp()
        path = f"{pathlib.Path(__file__).parent}/stand_ins:{os.environ['PATH']}"
        self.enterContext(mock.patch.dict(os.environ, {"PATH": path, "TOLD": str(self.folder / "told")}))
        self.enterContext(mock.patch.multiple(gpu_run, LIMIT=2.0, GRACE=1.0))

    def cell_of(self, script: str) -> str:
        write_program(self.folder / "bin" / "some_test", f"#!/bin/bash\n{script}")
        result = gpu_run.run(gpu_run.Test("some_test", (2,), "*", True), 2, self.folder)
        self.assertEqual(gpu_run.processes_of(self.folder / "gpu-tests" / "some_test.2"), [])
        text = gpu_run.cell(result)
        self.assertEqual(result.ok, " ok, " in text)
        return text.rpartition(",")[0]

    def test_only_a_job_that_ran_tests_to_their_end_is_ok(self) -> None:
        parameter = "echo '[  FAILED  ] All/A.B/nccl, where GetParam() = nccl (3 ms)'\n"
        for script, says in (
            (PASSED, "1 ok"),
            (PASSED + SKIPPED, "1 ok, 1 skipped"),
            (SKIPPED, "NOTHING RAN"),
            ("", "NOTHING RAN"),
            (PASSED + "kill -SEGV $$", "ended by SIGSEGV"),
            (PASSED + "exit 1", "exit code 1"),
            (PASSED + parameter + "exit 1", "FAILED 1"),
            (PASSED + parameter, "FAILED 1"),
            ("echo 'Ran 3 tests in 0.1s'; echo; echo 'OK (skipped=2)'", "1 ok, 2 skipped"),
            (PASSED + "timeout 100 sleep 100", "NO END"),
            (PASSED + "setsid sleep 100 >/dev/null 2>&1 &", "LEFT PROCESSES"),
        ):
            with self.subTest(script=script):
                self.assertEqual(self.cell_of(script), says)

    def test_nothing_to_run_is_a_mistake(self) -> None:
        for arguments in (["--only", "no-such-test"], ["--ranks", "3"], ["--ranks", "4,2"]):
            done = run([sys.executable, ROOT / "tests/gpu/run", "--no-build", *arguments], 2)
            self.assertEqual(done.stderr.count("error:"), 1)
