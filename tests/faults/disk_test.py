"""Checkpoints on a disk that is full or has become read-only: a clear message, an old checkpoint that is intact."""

import contextlib
import os
import pathlib
import re
import resource
import shutil
import unittest

from support import BIN, MPIRUN, TINY, Job, JobTest, run, words

RUN = [*TINY, "--batch", "8", "--epochs", "3"]  # 111 steps on 2 ranks; a checkpoint is 160 kB
WRITE_LIMIT = 500_000  # bytes; less than a rank's file with LARGE, and more than any other file
LARGE = ["--hidden", "128"]
NO_SIGNAL = ["bash", "-c", 'trap "" XFSZ; exec "$@"', "limited"]  # a file that grows beyond it is an error of write()


def saving(*more: object) -> list[str]:
    return words(*RUN, "--checkpoint", "c/d", "--checkpoint-every", 10, *more)


class LimitTest(JobTest):
    def limited(self, *more: object) -> Job:
        """A job whose ranks, once they train, cannot write files of the size of a checkpoint."""
        job = Job(words(*MPIRUN, "-np", 2, *NO_SIGNAL, BIN / "ddptrain", *saving(*LARGE, *more)), self.folder)
        self.addCleanup(job.end)
        job.wait_until(lambda: "Epoch 1/" in job.text())
        for rank in job.ranks():
            with contextlib.suppress(ProcessLookupError):  # it may end as soon as another one is limited
                resource.prlimit(rank, resource.RLIMIT_FSIZE, (WRITE_LIMIT, WRITE_LIMIT))
        return job

    def test_stop_names_the_reason_and_keeps_the_old_checkpoint(self) -> None:
        job = self.limited("--epochs", 100_000)
        self.assertEqual(job.wait(), 1, job.text())
        text = job.text()
        self.assertEqual(text.count("ddptrain: "), 1, text)
        failed = int(re.search(r"the checkpoint of step (\d+) was not written: rank ", text)[1])
        self.assertIn("File too large", text)
        self.assertEqual(self.steps("c/d"), [failed - 20, failed - 10])
        self.assertEqual(len(list((self.folder / "c/d").glob("step-*"))), 2)
        text = self.run_job(2, *saving(*LARGE, "--resume", "auto", "--steps", failed))
        self.assertIn(f"Resumed at step {failed - 10}", text)

    def continuing(self, *more: object) -> tuple[Job, int]:
        """A limited job that goes on without a checkpoint, after its end, and its epochs: more where a shorter one ended before
        it was limited."""
        for epochs in (16, 100, 400):
            shutil.rmtree(self.folder / "c", ignore_errors=True)
            job = self.limited("--epochs", epochs, "--metrics", "m.jsonl", "--on-checkpoint-error", "continue", *more)
            job.wait()
            if self.lines("m.jsonl")[-1]["checkpoints_failed"] > 0:
                break
        return job, epochs

    def test_continue_trains_on(self) -> None:
        job, epochs = self.continuing()
        self.assertEqual(job.process.returncode, 0, job.text())
        self.assertGreater(self.lines("m.jsonl")[-1]["checkpoints_failed"], 0)
        self.assertIn("training goes on", job.text())
        self.assertEqual(self.result_in("m.jsonl"), self.result(2, *RUN, *LARGE, "--epochs", epochs))

    def test_continue_without_any_checkpoint_fails_in_the_end(self) -> None:
        job, _ = self.continuing("--checkpoint-every", 10**9)
        self.assertEqual(job.process.returncode, 1, job.text())
        self.assertIn("the run ends without it", job.text())
        self.assertRegex(job.text(), r"(?m)^ddptrain: no checkpoint was written, so .* 1 that failed: .*File too large")
        self.assertEqual(self.lines("m.jsonl")[-1]["checkpoints_failed"], 1)  # the summary is complete


class FileSystemTest(JobTest):
    """Needs the right to mount."""

    def mount(self, size: str) -> pathlib.Path:
        folder = self.folder / "c"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
        if shutil.which("mount") is None or os.geteuid() != 0 or run(command, None).returncode:
            self.skipTest("no file system can be mounted here")
        self.addCleanup(run, ["umount", "--lazy", folder])
        return folder

    def test_free_space_is_checked_before(self) -> None:
        self.mount("400k")  # two checkpoints and not three
        text = self.run_job(2, *saving(), code=1)
        self.assertIn("has not the 0.2 MB free", text)
        self.assertEqual(self.steps("c/d"), [10, 20])
        self.assertEqual(len(list((self.folder / "c/d").glob("step-*"))), 2)

    def test_a_folder_that_became_read_only(self) -> None:
        folder = self.mount("10m")
        job = self.job(2, *words(*TINY, "--batch", 8, "--epochs", 100000, "--checkpoint", "c/d", "--checkpoint-every", 100))
        job.wait_until(lambda: len(self.steps("c/d")) == 2)
        # A second mount on top, as the first one has an open file, the lock. Remounting fails while a file is open there.
        run(["mount", "--bind", folder, folder])
        self.addCleanup(run, ["umount", "--lazy", folder])
        remount = ["mount", "-o", "remount,bind,ro", folder]
        job.wait_until(lambda: run(remount, None).returncode == 0)
        self.assertEqual(job.wait(), 1, job.text())
        self.assertIn("Read-only file system", job.text())
        with contextlib.suppress(FileNotFoundError):
            self.assertGreaterEqual(len(self.steps("c/d")), 1)
        text = self.run_job(2, *saving("--resume", "auto"), code=2)
        self.assertIn("--checkpoint c/d: the folder cannot be made or written to (Read-only file system)", text)


if __name__ == "__main__":
    unittest.main()
