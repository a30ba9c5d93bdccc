"""Ranks are killed at random instants around checkpoints; what is resumed in the end is the undisturbed run, bit by bit.

kills_test.py [KILLS [SEED]]: so many kills of each kind of job. Without arguments 20 of replicas and 4 of each kind of
mesh; 1000 are the long form, and `kills_test.py 100 1 MeshKillsTest SplitKillsTest` kills meshes alone."""

import random
import shutil
import sys
import time
import unittest

from support import TINY, Job, JobTest, kill, starts, words

KILLS: int | None = None
SEED = 1
EVERY = 2  # steps: a write is nearly always under way
GPT = ["--device", "cpu", "--baseline", "off", "--model", "gpt", "--layers", "2", "--width", "16", "--heads", "2", "--ff",
       "32", "--seq", "16", "--data", "synthetic:6000:300", "--batch", "2", "--virtual-ranks", "2", "--clip-norm", "0.5",
       "--eval-samples", "9", "--steps", "120"]  # fmt: skip


class KillsTest(JobTest):
    run_flags = [*TINY, "--batch", "8", "--epochs", "8", "--hidden", "128"]  # 296 steps on 2 ranks
    meshes = [(2, "")]  # ranks and flags; each attempt takes one of them
    kills = 20
    leaves_half_written = True  # so many kills do

    def attempt(self, generator: random.Random, disturbed: bool) -> tuple[Job, bool]:
        """A job that goes on from the newest checkpoint; and whether it was killed. If `disturbed`, it is killed soon after
        its first new checkpoint, unless a rank has ended by then."""
        size, mesh = generator.choice(self.meshes)
        flags = words(*self.run_flags, *mesh.split(), "--checkpoint", "c", "--checkpoint-every", EVERY, "--resume", "auto")
        job = self.job(size, *flags, "--metrics", "m.jsonl")
        before = self.steps("c")[-1:]
        while job.running() and self.steps("c")[-1:] == before:
            time.sleep(0.002)
        time.sleep(generator.uniform(0.0, 0.08))
        ranks = job.ranks()
        victims = generator.choice([ranks, ranks, ranks[:1], ranks[1:]]) if disturbed and len(ranks) == size else []
        for rank in victims:
            kill(rank)
        job.wait()
        newest = (before or [0])[0]
        self.assertEqual(starts(job.text(), newest), [newest], job.text())
        return job, len(victims) > 0 and job.process.returncode != 0

    def test_every_resume_ends_with_the_undisturbed_hash(self) -> None:
        generator = random.Random(SEED)
        wanted = KILLS or self.kills
        size, mesh = self.meshes[0]
        expected = self.result(size, *words(*self.run_flags, *mesh.split()))
        kills, runs, incomplete, killed = 0, 0, 0, True
        start = time.monotonic()
        while kills < wanted or killed:  # the last one is not disturbed
            job, killed = self.attempt(generator, kills < wanted)
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
        if self.leaves_half_written:
            self.assertGreater(incomplete, 0)


class MeshKillsTest(KillsTest):
    """Stages and shards. Every resume may be in another mesh; all of them end with the same bits."""

    run_flags = GPT
    meshes = [(4, "--pp 2 --zero 3"), (2, "--pp 2"), (2, "--zero 2"), (4, "--pp 2 --zero 1")]
    kills = 4
    leaves_half_written = False


class SplitKillsTest(MeshKillsTest):
    """The same with layers that two ranks split."""

    meshes = [(4, "--tp 2 --pp 2"), (4, "--tp 2 --zero 3"), (2, "--tp 2")]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        KILLS = int(sys.argv.pop(1))
    if len(sys.argv) > 1:
        SEED = int(sys.argv.pop(1))
    unittest.main()
