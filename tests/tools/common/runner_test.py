import os
import sys
from unittest import mock

from ddptools.common import runner
from tests.tools.support import FolderCase, is_alive

STUBBORN = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for name in ("same", "group"):
    child = os.fork()
    if child == 0:
        if name == "group":
            os.setpgid(0, 0)
        pathlib.Path(sys.argv[1], name).write_text(str(os.getpid()))
        time.sleep(600)
time.sleep(600)
"""


class RunnerTest(FolderCase):
    def run_python(self, text: str, timeout: float = 300.0) -> runner.Outcome:
        command = [sys.executable, "-S", "-c", text, str(self.folder)]
        return runner.run(command, dict(os.environ), self.folder / "log.out", timeout)

    def test_nothing_is_left_of_a_job_that_ignores_being_asked(self) -> None:
        files = [self.folder / name for name in ("same", "group")]
        for seconds in (2.0, 8.0, 32.0, 64.0):  # on a slow machine two seconds are not enough for both children
            with mock.patch.object(runner, "GRACE", 0.5):
                outcome = self.run_python(STUBBORN, timeout=seconds)
            self.assertEqual(outcome.status, "timeout")
            if all(file.exists() and file.read_text() for file in files):
                break
        self.assertEqual([file.name for file in files if is_alive(int(file.read_text()))], [])

    def test_children_that_outlive_the_job_are_ended(self) -> None:
        text = (
            "import os, pathlib, sys, time\npid = os.fork()\nif pid == 0:\n    time.sleep(600)\n"
            "pathlib.Path(sys.argv[1], 'child').write_text(str(pid))\n"
        )
        self.assertEqual(self.run_python(text).status, "ok")
        self.assertFalse(is_alive(int((self.folder / "child").read_text())))

    def test_what_is_kept_of_its_words(self) -> None:
        outcome = self.run_python(
            "import sys; print('out'); print('-' * 9, 'a', '', 'b', sep='\\n', file=sys.stderr); sys.exit(3)"
        )
        self.assertEqual((outcome.status, outcome.exit_code, outcome.reason), ("failed", 3, "exit code 3: a | b"))
        self.assertEqual((self.folder / "log.out").read_text(), "out\n")
        errors = self.folder / "log.err"
        errors.write_text(
            "noise\nddptrain: error on rank 1 (h): no memory\n-----\nmpirun detected that one or more\nbye\n"
        )
        self.assertEqual(runner.last_words(errors.read_text()), "ddptrain: error on rank 1 (h): no memory")
        errors.write_text("Errorcode: 1\n\n---\n\0ddptrain: error on rank 1 (h): no memory\nprterun has exited due to process rank 1\n")
        self.assertEqual(runner.last_words(errors.read_text()), "ddptrain: error on rank 1 (h): no memory")
        errors.write_text("noise\nddptrain: no data. Looked in:\n  /a\nFetch it.\n[12:00] [info] x\n---\nbye\n")
        self.assertEqual(runner.last_words(errors.read_text()), "ddptrain: no data. Looked in: | /a | Fetch it.")
        errors.write_bytes(b"\xff\x00" + b"x" * 100_000)
        self.assertLessEqual(len(runner.last_words(runner.end_of(errors))), 2000)

    def test_signals_and_missing_programs(self) -> None:
        killed = self.run_python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
        self.assertEqual((killed.status, killed.reason), ("failed", "ended by SIGSEGV"))
        told = self.run_python("import sys; sys.exit(128 + 9)")  # as mpirun does
        self.assertEqual((told.exit_code, told.reason), (137, "ended by SIGKILL"))
        missing = runner.run(["/no/such"], {}, self.folder / "log.out", 1.0)
        self.assertEqual((missing.status, "/no/such" in missing.reason), ("failed", True))
