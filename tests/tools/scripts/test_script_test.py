"""launch/test and tests/gpu/run: what they say of tests that end in different ways. Scripts stand in for cmake, ctest, the
tests and MPS. And which folder of a build holds which programs."""

import os
import pathlib
import shutil
import subprocess
import sys
import unittest
from unittest import mock

from tests.tools.support import BIN, ROOT, FolderCase, load_script, run, write_program

STAND_INS = pathlib.Path(__file__).with_name("stand_ins")
LOG = STAND_INS / "last_test.txt"  # some of what ctest writes: GoogleTest names a skipped case twice
gpu_run = load_script(ROOT / "tests" / "gpu" / "run")
PROGRAMS = {"ddptrain", "ddpbench", "ddptopo", "gpt_ops_bench", "ddpplan", "ddpreport", "ddpsweep", "supervise", "tensorboard-events"}
PASSED = "echo '[       OK ] A.B (1 ms)'\n"
SKIPPED = "echo '[  SKIPPED ] A.C (0 ms)'\n"


class GpuRunTest(FolderCase):
    def setUp(self) -> None:
        super().setUp()
        path = f"{STAND_INS}:{os.environ['PATH']}"
        self.enterContext(mock.patch.dict(os.environ, {"PATH": path, "TOLD": str(self.folder / "told")}))
        self.enterContext(mock.patch.multiple(gpu_run, LIMIT=2.0, GRACE=1.0))

    def cell_of(self, script: str) -> str:
        write_program(self.folder / "tests" / "bin" / "some_test", f"#!/bin/bash\n{script}")
        result = gpu_run.run(gpu_run.Test("some_test", (2,), "*", True), 2, self.folder, "GPU-1")
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

    def test_a_job_has_one_gpu_of_those_that_are_visible(self) -> None:
        write_program(self.folder / "nvidia-smi", "#!/bin/sh\necho 'GPU 0: H200 (UUID: GPU-a)'; echo 'GPU 1: H200 (UUID: GPU-b)'\n")
        with mock.patch.dict(os.environ, {"PATH": f"{self.folder}:{os.environ['PATH']}"}):
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            self.assertEqual(gpu_run.visible_gpus(), ["GPU-a", "GPU-b"])
            os.environ["CUDA_VISIBLE_DEVICES"] = "1,3"
            self.assertEqual(gpu_run.visible_gpus(), ["1", "3"])
        self.assertEqual(self.cell_of('[[ $CUDA_VISIBLE_DEVICES == GPU-1 ]] && ' + PASSED), "1 ok")

    def test_nothing_to_run_is_a_mistake(self) -> None:
        for arguments in (["--only", "no-such-test"], ["--ranks", "3"], ["--ranks", "4,2"]):
            done = run([sys.executable, ROOT / "tests/gpu/run", "--no-build", *arguments], 2)
            self.assertEqual(done.stderr.count("error:"), 1)


class BuildFolderTest(unittest.TestCase):
    def test_the_folder_of_the_programs_has_no_tests(self) -> None:
        found = {path.name for path in BIN.iterdir() if path.is_file() and os.access(path, os.X_OK)}
        self.assertIn("ddptrain", found)
        self.assertEqual(found - PROGRAMS, set())


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
