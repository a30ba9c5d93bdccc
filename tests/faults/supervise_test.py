"""launch/supervise: restarts from the newest checkpoint, loses nothing on Ctrl-C, says why each attempt ended."""

import os
import signal
import time
import unittest

from support import BIN, MPIRUN, ROOT, TINY, Job, JobTest, kill, words

EPOCHS = 80
RUN = [*TINY, "--batch", "8", "--epochs", str(EPOCHS)]


class SuperviseTest(JobTest):
    def supervise(self, *arguments: object, ranks: int = 2, flags: tuple[object, ...] = ()) -> Job:
        program = words(*MPIRUN, "-np", ranks, BIN / "ddptrain", *RUN, "--checkpoint", "c", "--metrics", "m.jsonl", *flags)
        job = Job(words(ROOT / "launch" / "supervise", "--pause", 0.1, *arguments, "--", *program), self.folder)
        self.addCleanup(job.end)
        return job

    def log(self) -> str:
        path = self.folder / "c" / "supervise.log"
        return path.read_text() if path.exists() else ""

    def test_goes_on_after_a_killed_rank(self) -> None:
        expected = self.result(2, *RUN)
        job = self.supervise(flags=("--checkpoint-every", 20))
        for attempt in (1, 2):
            job.wait_until(lambda: f"attempt {attempt}: " in self.log() and len(job.ranks()) == 2)
            steps = self.steps("c")
            job.wait_until(lambda: self.steps("c")[-1:] > steps[-1:])
            kill(job.ranks()[attempt % 2])
        self.assertEqual(job.wait(), 0, job.text())
        self.assertEqual(self.result_in("m.jsonl"), expected)
        log = self.log()
        self.assertEqual(log.count(": ended by SIGKILL"), 2, log)
        self.assertEqual(log.count("restarts in 0.1 s"), 2, log)
        self.assertIn("attempt 3 ended after ", log)
        self.assertIn("exit code 0; newest checkpoint: step-", log)

    def test_interrupts_lose_nothing(self) -> None:
        expected = self.result(2, *RUN)
        for number in (signal.SIGINT, signal.SIGTERM):
            job = self.supervise()
            job.wait_until(lambda: job.text().count("Epoch ") >= 3)
            kill(job.process.pid, number)
            self.assertEqual(job.wait(), 75, job.text())
            self.assertIn("SIGUSR2: ended after step", job.text())
            self.assertEqual(self.lines("m.jsonl")[-1]["step"], self.steps("c")[-1])
        self.assertEqual(self.supervise().wait(), 0)
        self.assertEqual(self.result_in("m.jsonl"), expected)

    def test_usr1_goes_through(self) -> None:
        job = self.supervise()
        job.wait_until(lambda: "Epoch 1/" in job.text())
        kill(job.process.pid, signal.SIGUSR1)
        job.wait_until(lambda: len(self.steps("c")) > 0)
        self.assertTrue(job.running())

    def test_open_mpi_notices_a_lost_host_soon(self) -> None:
        shown = self.folder / "environment"
        command = words("sh", "-c", f"env > {shown}; exit 2", "--checkpoint", "c")
        Job(words(ROOT / "launch" / "supervise", "--", *command), self.folder).wait()
        self.assertIn("OMPI_MCA_oob_tcp_keepalive_time=3\n", shown.read_text())

    def test_a_second_interrupt_ends_the_job(self) -> None:
        job = self.supervise()
        job.wait_until(lambda: "Epoch 1/" in job.text())
        ranks = job.ranks()
        for rank in ranks:
            kill(rank, signal.SIGSTOP)
        kill(job.process.pid, signal.SIGINT)
        time.sleep(1)
        self.assertTrue(job.running(), job.text())
        kill(job.process.pid, signal.SIGINT)
        self.assertNotIn(job.wait(30), (0, 75))
        self.assertEqual(job.ranks(), [])

    def test_gives_up_and_says_why(self) -> None:
        job = self.supervise("--restarts", 2, flags=("--fail-at", "1:5"))
        self.assertEqual(job.wait(), 1, job.text())
        log = self.log()
        self.assertEqual(log.count("step 5 fails because --fail-at says so"), 3, log)
        self.assertIn("restarts in 0.2 s", log)
        self.assertIn("gives up: 3 failures in a row without a new checkpoint", log)

    def test_hosts_that_do_not_answer_are_left_out(self) -> None:
        programs = self.folder / "bin"
        programs.mkdir()
        for name, text in (("mpirun", 'echo "$@" >> started; cat "$2" >> started; exit 1'), ("ssh", '[ "$5" != b ]')):
            (programs / name).write_text(f"#!/bin/bash\n{text}\n")
            (programs / name).chmod(0o755)
        (self.folder / "hosts").write_text("# ours\na slots=4\nb slots=4\nc slots=3\n")
        command = ["mpirun", "--hostfile", "hosts", "-np", "11", "ddptrain", "--checkpoint", "c", "--virtual-ranks", "12"]
        supervise = [ROOT / "launch" / "supervise", "--restarts", 1, "--pause", 0, *command]
        job = Job(words("env", f"PATH={programs}:{os.environ['PATH']}", *supervise), self.folder)
        self.assertEqual(job.wait(), 1, job.text())
        first, second = (self.folder / "started").read_text().split("--hostfile ")[1:]
        self.assertIn("hosts -np 11 ddptrain", first)
        self.assertIn("b slots=4", first)
        self.assertIn("c/supervise.hosts -np 6 ddptrain", second)
        self.assertEqual(second.splitlines()[1:], ["a slots=4", "c slots=3"])
        self.assertIn("no answer from b: left out; 7 slots on the other hosts", self.log())

    def test_mistakes_are_not_repeated(self) -> None:
        job = self.supervise(flags=("--batch", 0))
        self.assertEqual(job.wait(), 2, job.text())
        self.assertEqual(self.log().count("attempt "), 2)
        for command in (["supervise"], ["supervise", "mpirun", "ddptrain"], ["supervise", "--restarts", "-1", "x"]):
            job = Job(words(ROOT / "launch" / command[0], *command[1:]), self.folder)
            self.assertEqual(job.wait(), 2, job.text())


if __name__ == "__main__":
    unittest.main()
