"""launch/supervise: restarts from the newest checkpoint, loses nothing on Ctrl-C, says why each attempt ended."""

import os
import re
import signal
import time
import unittest

from support import (
    BIN, ENDLESS, LIMIT, MPIRUN, ROOT, TINY, Job, JobTest, find_mpirun, is_pending, is_running, kill, starts,
    words,
)  # fmt: skip

RUN = [*TINY, "--batch", "8"]
MORE = 60  # steps


class SuperviseTest(JobTest):
    def setUp(self) -> None:
        super().setUp()
        self.end_at(ENDLESS)

    def supervise(self, *arguments: object, flags: tuple[object, ...] = ()) -> Job:
        own = ["--config", "run.toml", "--checkpoint", "c", "--metrics", "m.jsonl", *flags]
        program = words(*MPIRUN, "-np", 2, BIN / "ddptrain", *RUN, *own)
        job = Job(words(ROOT / "launch" / "supervise", "--pause", 0.1, *arguments, "--", *program), self.folder)
        self.addCleanup(job.end)
        return job

    def log(self) -> str:
        path = self.folder / "c" / "supervise.log"
        return path.read_text() if path.exists() else ""

    def kill_rank(self, job: Job, rank: int, last: bool = False) -> None:
        """`last`: the next attempt ends MORE steps after the newest checkpoint. supervise, which starts it, stands
        still until they are known."""
        ranks = job.ranks()
        if last:
            kill(job.process.pid, signal.SIGSTOP)
        kill(ranks[rank])
        if last:
            job.wait_until(lambda: job.ranks() == [])
            self.end_at(self.steps("c")[-1] + MORE)
            kill(job.process.pid, signal.SIGCONT)

    def check_undisturbed(self, text: str, restarts: int) -> None:
        """All attempts went on from the newest checkpoint, and the parameters of the end are those of a run to which
        nothing has happened."""
        self.assertEqual([step > 0 for step in starts(text)], [False] + [True] * restarts, text)
        self.assertEqual(self.result_in("m.jsonl"), self.result(2, *RUN, "--config", "run.toml"))

    def test_goes_on_after_a_killed_rank(self) -> None:
        job = self.supervise(flags=("--checkpoint-every", 20))
        for attempt in (1, 2):
            job.wait_until(lambda: f"attempt {attempt}: " in self.log() and len(job.ranks()) == 2)
            steps = self.steps("c")
            job.wait_until(lambda: self.steps("c")[-1:] > steps[-1:])
            self.kill_rank(job, attempt % 2, last=attempt == 2)
        self.assertEqual(job.wait(), 0, job.text())
        self.check_undisturbed(job.text(), 2)
        log = self.log()
        self.assertEqual(len(re.findall(r": (?:rank [01] on \S+|a rank) ended by SIGKILL; newest", log)), 2, log)
        self.assertEqual(log.count("restarts in 0.1 s"), 2, log)
        self.assertIn("attempt 3 ended after ", log)
        self.assertIn("exit code 0; newest checkpoint: step-", log)

    def test_interrupts_lose_nothing(self) -> None:
        texts = []
        for number in (signal.SIGINT, signal.SIGTERM):
            job = self.supervise()
            job.wait_until(lambda: job.text().count("Epoch ") >= 3)
            kill(job.process.pid, number)
            self.assertEqual(job.wait(), 75, job.text())
            self.assertIn(f"{find_mpirun().end.name}: ended after step", job.text())
            self.assertEqual(self.lines("m.jsonl")[-1]["step"], self.steps("c")[-1])
            texts.append(job.text())
        self.end_at(self.steps("c")[-1] + MORE)
        job = self.supervise()
        self.assertEqual(job.wait(), 0)
        self.check_undisturbed("".join([*texts, job.text()]), 2)

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
        for version in ("OMPI", "PRTE"):
            self.assertIn(f"{version}_MCA_oob_tcp_keepalive_time=3\n", shown.read_text())

    def test_a_lost_daemon_is_a_failure_whatever_mpirun_returns(self) -> None:
        lost = "echo 'Remote daemon: [prterun-h1-9@0,2] on node h3' >&2"
        job = Job(words(ROOT / "launch" / "supervise", "--restarts", 0, "--", "sh", "-c", lost, "--checkpoint", "c"),
                  self.folder)  # fmt: skip
        self.assertEqual(job.wait(), 77, job.text())
        self.assertIn("lost mpirun's daemon on h3", self.log())

    def test_a_second_interrupt_ends_the_job(self) -> None:
        job = self.supervise()
        job.wait_until(lambda: "Epoch 1/" in job.text())
        ranks = job.ranks()
        for rank in ranks:
            kill(rank, signal.SIGSTOP)
        kill(job.process.pid, signal.SIGINT)
        job.wait_until(lambda: not is_pending(job.process.pid, signal.SIGINT))
        time.sleep(1)
        self.assertTrue(job.running(), job.text())
        kill(job.process.pid, signal.SIGINT)
        self.assertNotIn(job.process.wait(LIMIT), (0, 75))
        self.assertEqual([rank for rank in ranks if is_running(rank)], [])

    def test_gives_up_and_says_why(self) -> None:
        job = self.supervise("--restarts", 2, flags=("--fail-at", "1:5"))
        self.assertEqual(job.wait(), 1, job.text())
        log = self.log()
        self.assertEqual(log.count("step 5 fails because --fail-at says so; newest"), 3, log)
        self.assertIn("restarts in 0.2 s", log)
        self.assertIn("gives up: 3 failures in a row without a new checkpoint, the last one: exit code 1: ddptrain: ", log)

    def started_over_hosts(
        self, hosts: list[str], *flags: object, supervise: tuple[object, ...] = ()
    ) -> list[list[str]]:
        """The commands of three attempts, which fail: host b answers before the first and after the second."""
        programs = self.folder / "bin"
        programs.mkdir()
        mpirun = '[ "$1" = --version ] && exit; echo "$@" >> started; [ -e down ] && rm down || touch down; exit 1'
        shown = 'case "$*" in *--print-config) printf "batch = 8\\ngrad-accum = 1\\n";; esac'
        for name, text in (("mpirun", mpirun), ("ssh", '[ "$5" != b ] || [ ! -e down ]'), ("ddptrain", shown)):
            (programs / name).write_text(f"#!/bin/bash\n{text}\n")
            (programs / name).chmod(0o755)
        command = ["mpirun", *hosts, programs / "ddptrain", "--checkpoint", "c", *flags]
        start = [ROOT / "launch" / "supervise", "--restarts", 2, "--pause", 0, *supervise, *command]
        job = Job(words("env", f"PATH={programs}:{os.environ['PATH']}", *start), self.folder)
        self.assertEqual(job.wait(), 77, job.text())
        self.assertIn("lost b", job.text().splitlines()[-1])
        started = (self.folder / "started").read_text().replace(f"{programs}/", "")
        return [line.split(" --resume")[0].split() for line in started.splitlines()]

    def test_hosts_that_do_not_answer_are_left_out(self) -> None:
        (self.folder / "hosts").write_text("# ours\na slots=4\nb slots=4\nc slots=3\n")
        first, second, third = self.started_over_hosts(["--hostfile", "hosts", "-np", "11"], "--virtual-ranks", 12)
        self.assertEqual(first[:4], ["--hostfile", "hosts", "-np", "11"])
        self.assertEqual(second[:4], ["--hostfile", "c/supervise.hosts", "-np", "6"])
        self.assertEqual((self.folder / "c" / "supervise.hosts").read_text().splitlines(), ["a slots=4", "c slots=3"])
        self.assertEqual(third, first)
        self.assertIn("no answer from b: left out; 7 slots on the other hosts", self.log())
        self.assertRegex(self.log(), r"attempt 1 ended after \d+ s: lost b, which does not answer")

    def test_fewer_ranks_keep_the_samples_of_a_step(self) -> None:
        first, second, third = self.started_over_hosts(["--host", "a:2,b:1,c:1"], supervise=("--min-ranks", 2))
        self.assertEqual(first, ["--host", "a:2,b:1,c:1", "ddptrain", "--checkpoint", "c"])
        # 4 ranks have 32 samples, which 3 ranks cannot share.
        self.assertEqual(second[:4], ["-np", "2", "--host", "a:2,c:1"])
        self.assertEqual(third, first)
        self.assertIn("--resume auto --batch 8 --grad-accum 2", self.log())

    def test_waits_for_hosts_where_the_others_are_too_few(self) -> None:
        started = self.started_over_hosts(["--host", "a:2,b:2"])
        self.assertEqual(len(started), 1)
        self.assertIn("waits for hosts: 2 slots are too few", self.log())

    def test_mistakes_are_not_repeated(self) -> None:
        job = self.supervise(flags=("--batch", 0))
        self.assertEqual(job.wait(), 2, job.text())
        self.assertEqual(self.log().count("attempt "), 2)
        for command in (["supervise"], ["supervise", "mpirun", "ddptrain"], ["supervise", "--restarts", "-1", "x"]):
            job = Job(words(ROOT / "launch" / command[0], *command[1:]), self.folder)
            self.assertEqual(job.wait(), 2, job.text())


if __name__ == "__main__":
    unittest.main()
