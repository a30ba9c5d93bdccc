"""Checkpoints on a disk that is full or has become read-only: a clear message, an old checkpoint that is intact."""

import contextlib
import os
import pathlib
import re
import resource
import shutil
import subprocess
import unittest

from support import BIN, MPIRUN, TINY, Job, JobTest, words

RUN = [*TINY, "--batch", "8", "--epochs", "3"]  # 111 steps on 2 ranks; a checkpoint is 160 kB
WRITE_LIMIT = 60_000  # bytes; less than a rank's file
NO_SIGNAL = ["bash", "-c", 'trap "" XFSZ; exec "$@"', "limited"]  # a file that grows beyond it is an error of write()


def saving(*more: object) -> list[str]:
    return words(*RUN, "--checkpoint", "c/d", "--checkpoint-every", 10, "--metrics", "m.jsonl", *more)


class LimitTest(JobTest):
    def limited(self, *more: object) -> Job:
        """A job whose ranks, once they train, cannot write files of the size of a checkpoint."""
        job = Job(words(*MPIRUN, "-np", 2, *NO_SIGNAL, BIN / "ddptrain", *saving(*more)), self.folder)
        self.addCleanup(job.end)
        job.wait_until(lambda: "Epoch 1/" in job.text())
        for rank in job.ranks():
            resource.prlimit(rank, resource.RLIMIT_FSIZE, (WRITE_LIMIT, WRITE_LIMIT))
        return job

    def test_stop_names_the_reason_and_keeps_the_old_checkpoint(self) -> None:
        job = self.limited("--epochs", 1000)
        self.assertEqual(job.wait(), 1, job.text())
        text = job.text()
        self.assertEqual(text.count("ddptrain: "), 1, text)
        failed = int(re.search(r"the checkpoint of step (\d+) was not written: rank ", text)[1])
        self.assertIn("File too large", text)
        self.assertEqual(self.steps("c/d"), [failed - 20, failed - 10])
        self.assertEqual(len(list((self.folder / "c/d").iterdir())), 2)
        text = self.run_job(2, *saving("--resume", "auto", "--steps", failed))
        self.assertIn(f"Resumed at step {failed - 10}", text)

    def test_continue_trains_on(self) -> None:
        flags = ["--epochs", 30]
        expected = self.result(2, *RUN, *flags)
        job = self.limited(*flags, "--on-checkpoint-error", "continue")
        self.assertEqual(job.wait(), 0, job.text())
        self.assertIn("training goes on", job.text())
        self.assertEqual(self.result_in("m.jsonl"), expected)
        self.assertGreater(self.lines("m.jsonl")[-1]["checkpoints_failed"], 0)


class FileSystemTest(JobTest):
    """Needs the right to mount."""

    def mount(self, size: str) -> pathlib.Path:
        folder = self.folder / "c"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
        if shutil.which("mount") is None or os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
            self.skipTest("no file system can be mounted here")
        self.addCleanup(subprocess.run, ["umount", folder], check=True)
        return folder

    def test_free_space_is_checked_before(self) -> None:
        self.mount("400k")  # two checkpoints and not three
        text = self.run_job(2, *saving(), code=1)
        self.assertIn("has not the 0.2 MB free", text)
        self.assertEqual(self.steps("c/d"), [10, 20])
        self.assertEqual(len(list((self.folder / "c/d").iterdir())), 2)

    def test_a_folder_that_became_read_only(self) -> None:
        folder = self.mount("10m")
        job = self.job(2, *words(*TINY, "--batch", 8, "--epochs", 100000, "--checkpoint", "c/d", "--checkpoint-every", 50))
        job.wait_until(lambda: len(self.steps("c/d")) == 2)
        while subprocess.run(["mount", "-o", "remount,ro", folder], capture_output=True).returncode != 0:
            pass  # while a file is open for writing
        self.assertEqual(job.wait(), 1, job.text())
        self.assertIn("Read-only file system", job.text())
        with contextlib.suppress(FileNotFoundError):
            self.assertGreaterEqual(len(self.steps("c/d")), 1)
        text = self.run_job(2, *saving("--resume", "auto"), code=2)
        self.assertIn("--checkpoint c/d: the folder cannot be made or written to (Read-only file system)", text)


if __name__ == "__main__":
    unittest.main()
