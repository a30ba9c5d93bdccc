"""Ranks are killed at random instants around checkpoints; what is resumed in the end is the undisturbed run, bit by bit.

kills_test.py [KILLS [SEED]]: 20 kills without arguments; 1000 are the long form."""

import random
import shutil
import sys
import time
import unittest

from support import TINY, Job, JobTest, kill, starts, words

KILLS = 20
SEED = 1
RUN = ["--batch", "8", "--epochs", "8", "--hidden", "128"]  # 296 steps on 2 ranks
EVERY = 2  # steps: a write is nearly always under way


class KillsTest(JobTest):
    def attempt(self, generator: random.Random, disturbed: bool) -> tuple[Job, bool]:
        """A job that goes on from the newest checkpoint; and whether it was killed. If `disturbed`, it is killed soon after
        its first new checkpoint, unless a rank has ended by then."""
        flags = words(*TINY, *RUN, "--checkpoint", "c", "--checkpoint-every", EVERY, "--resume", "auto")
        job = self.job(2, *flags, "--metrics", "m.jsonl")
        before = self.steps("c")[-1:]
        while job.running() and self.steps("c")[-1:] == before:
            time.sleep(0.002)
        time.sleep(generator.uniform(0.0, 0.08))
        ranks = job.ranks()
        victims = generator.choice([ranks, ranks, ranks[:1], ranks[1:]]) if disturbed and len(ranks) == 2 else []
        for rank in victims:
            kill(rank)
        job.wait()
        newest = (before or [0])[0]
        self.assertEqual(starts(job.text(), newest), [newest], job.text())
        return job, len(victims) > 0 and job.process.returncode != 0

    def test_every_resume_ends_with_the_undisturbed_hash(self) -> None:
        generator = random.Random(SEED)
        expected = self.result(2, *words(*TINY, *RUN))
        kills, runs, incomplete, killed = 0, 0, 0, True
        start = time.monotonic()
        while kills < KILLS or killed:  # the last one is not disturbed
            job, killed = self.attempt(generator, kills < KILLS)
            if killed:
                kills += 1
                folders = list((self.folder / "c").glob("step-*"))
                incomplete += sum(not (folder / "manifest.json").exists() for folder in folders) > 0
                continue
            self.assertEqual(job.process.returncode, 0, job.text())
            self.assertEqual(self.result_in("m.jsonl"), expected)
            shutil.rmtree(self.folder / "c")
            (self.folder / "m.jsonl").unlink()
            runs += 1
        print(f"{kills} kills, of which {incomplete} left a checkpoint half written; {runs} runs ended with the "
              f"undisturbed hash; {time.monotonic() - start:.0f} s")  # fmt: skip
        self.assertGreater(incomplete, 0)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        KILLS = int(sys.argv.pop(1))
    if len(sys.argv) > 1:
        SEED = int(sys.argv.pop(1))
    unittest.main()
