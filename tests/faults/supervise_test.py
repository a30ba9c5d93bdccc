"""launch/supervise: restarts from the newest checkpoint, loses nothing on Ctrl-C, says why each attempt ended."""

import fcntl
import os
import re
import signal
import subprocess
import time
import unittest
import unittest.mock

from support import (
    BIN, ENDLESS, ENVIRONMENT, LIMIT, MPIRUN, ROOT, TINY, Job, JobTest, descendants, find_mpirun, is_pending, is_alive,
    kill, starts, wait_for, words, write_program,
)  # fmt: skip

RUN = [*TINY, "--batch", "8"]
MORE = 60  # steps
SUPERVISE = ROOT / "launch" / "supervise"


class SuperviseTest(JobTest):
    def setUp(self) -> None:
        super().setUp()
        self.end_at(ENDLESS)

    def supervise(self, *arguments: object, flags: tuple[object, ...] = ()) -> Job:
        own = ["--config", "run.toml", "--checkpoint", "c", "--metrics", "m.jsonl", *flags]
        program = words(*MPIRUN, "-np", 2, BIN / "ddptrain", *RUN, *own)
        job = Job(words(SUPERVISE, "--pause", 0.1, *arguments, "--", *program), self.folder)
        self.addCleanup(job.end)
        return job

    def run_to_end(self, code: int, *command: object) -> str:
        job = Job(words(*command), self.folder)
        self.assertEqual(job.wait(), code, job.text())
        return job.text()

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

    def test_a_closed_terminal_loses_nothing(self) -> None:
        own = ["--config", "run.toml", "--checkpoint", "c", "--checkpoint-every", 50]
        program = words(*MPIRUN, "-np", 2, BIN / "ddptrain", *RUN, *own)
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        with subprocess.Popen(words(SUPERVISE, "--", *program), cwd=self.folder, env=ENVIRONMENT, **streams) as process:
            self.addCleanup(process.kill)
            while not self.steps("c"):
                self.assertIsNone(process.poll())
                time.sleep(0.05)
            process.stderr.close()
            kill(process.pid, signal.SIGHUP)
            self.assertEqual(process.wait(LIMIT), 75, self.log())
        self.assertIn("exit code 75", self.log())

    def test_usr1_goes_through(self) -> None:
        job = self.supervise()
        job.wait_until(lambda: "Epoch 1/" in job.text())
        for count in (1, 2):  # a job that ends writes one
            kill(job.process.pid, signal.SIGUSR1)
            job.wait_until(lambda count=count: len(self.steps("c")) == count)

    def test_open_mpi_notices_a_lost_host_soon(self) -> None:
        shown = self.folder / "environment"
        command = words("sh", "-c", f"env > {shown}; exit 2", "--checkpoint", "c")
        self.run_to_end(2, SUPERVISE, "--", *command)
        for version in ("OMPI", "PRTE"):
            self.assertIn(f"{version}_MCA_oob_tcp_keepalive_time=3\n", shown.read_text())

    def test_a_lost_daemon_is_a_failure_whatever_mpirun_returns(self) -> None:
        lost = "echo 'Remote daemon: [prterun-h1-9@0,2] on node h3' >&2"
        self.run_to_end(77, SUPERVISE, "--restarts", 1, "--pause", 0, "--", "sh", "-c", lost, "--checkpoint", "c")
        self.assertIn("lost mpirun's daemon on h3", self.log())
        self.assertIn("gives up after 1 restart in a row without", self.log())

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
        self.assertRegex(self.log(), r"attempt 1 ended after \d+ s: a second signal; newest")
        self.assertEqual([rank for rank in ranks if is_alive(rank)], [])

    def test_gives_up_and_says_why(self) -> None:
        job = self.supervise("--restarts", 2, flags=("--fail-at", "1:5"))
        self.assertEqual(job.wait(), 1, job.text())
        log = self.log()
        self.assertEqual(log.count("step 5 fails because --fail-at says so; newest"), 3, log)
        self.assertIn("restarts in 0.2 s", log)
        self.assertIn("gives up after 2 restarts in a row without a new undamaged checkpoint; the last failure: exit code 1: ddptrain: ", log)

    def test_a_log_that_cannot_be_written_is_told_once(self) -> None:
        job = ["sh", "-c", "exit 1", "--checkpoint", "c"]
        said = self.run_to_end(1, SUPERVISE, "--log", "/dev/full", "--restarts", 1, "--pause", 0, "--", *job)
        self.assertEqual(said.count("supervise: /dev/full: No space left on device. The job goes on, and "), 1, said)
        self.assertEqual(said.count("No space left on device"), 1, said)
        self.assertIn("supervise: attempt 2 ended after", said)

    def with_programs(self, mpirun: str, ssh: str = "true") -> list[str]:
        """Start of a command that finds these scripts as mpirun and ssh, and the real ddptrain."""
        programs = self.folder / "bin"
        for name, text in (("mpirun", f'[ "$1" = --version ] && exit; {mpirun}'), ("ssh", ssh)):
            write_program(programs / name, f"#!/bin/bash\n{text}\n")
        (programs / "ddptrain").symlink_to(BIN / "ddptrain")
        return words("env", f"PATH={programs}:{os.environ['PATH']}", SUPERVISE, "--pause", 0)

    def started_over_hosts(self, hosts: list[str], config: str = "", supervise: tuple[object, ...] = ("--restarts", 2)
                           ) -> list[list[str]]:  # fmt: skip
        """The commands of three attempts, which fail: host b answers before the first and after the second."""
        start = self.with_programs(
            'echo "$@" >> started; [ -e down ] && rm down || touch down; exit 1',
            ssh='[ "$5" = -- ] && { [ "$6" != b ] || [ ! -e down ]; }',
        )
        (self.folder / "run.toml").write_text(f'checkpoint = "c"\n{config}\n')
        command = ["mpirun", *hosts, self.folder / "bin" / "ddptrain", "--config", "run.toml"]
        self.assertIn("lost b", self.run_to_end(77, *start, *supervise, *command).splitlines()[-1])
        started = (self.folder / "started").read_text().replace(f"{self.folder}/bin/", "")
        return [line.split(" --resume")[0].split() for line in started.splitlines()]

    def test_hosts_that_do_not_answer_are_left_out(self) -> None:
        (self.folder / "hosts").write_bytes(b"# \xe4\na max_slots=8 slots=4  # slots=5\nb slots=4\nc slots = 3\n")
        first, second, third = self.started_over_hosts(["--hostfile=hosts", "-np", "11"], "virtual-ranks = 12")
        self.assertEqual(first[:4], ["--hostfile", "hosts", "-np", "11"])
        self.assertEqual(second[:4], ["--hostfile", "c/supervise.hosts", "-np", "6"])
        hosts = (self.folder / "c" / "supervise.hosts").read_text().splitlines()
        self.assertEqual(hosts, ["a max_slots=8 slots=4", "c slots = 3"])
        self.assertEqual(third, first)
        self.assertIn("no answer from b: left out; 7 slots on the other hosts", self.log())
        self.assertRegex(self.log(), r"attempt 1 ended after \d+ s: lost b, which does not answer")

    def test_fewer_ranks_keep_the_samples_of_a_step(self) -> None:
        first, second, third = self.started_over_hosts(["--host", "a:2,b:1,c:1"], "batch = 8", ("--restarts", 2, "--min-ranks", 2))
        self.assertEqual(first, ["--host", "a:2,b:1,c:1", "ddptrain", "--config", "run.toml"])
        # 4 ranks have 32 samples, which 3 ranks cannot share.
        self.assertEqual(second[:4], ["-np", "2", "--host", "a:2,c:1"])
        self.assertEqual(third, first)
        self.assertIn("--resume auto --batch 8 --grad-accum 2", self.log())

    def test_fewer_ranks_are_whole_replicas(self) -> None:
        config = 'model = "gpt"\npp = 2\nbatch = 8'
        _, second, _ = self.started_over_hosts(["--host", "a:2,b:3,c:1"], config, ("--restarts", 2, "--min-ranks", 1))
        self.assertEqual(second[:2], ["-np", "2"])
        self.assertIn("--resume auto --batch 8 --grad-accum 3", self.log())

    def test_replicas_divide_the_virtual_ranks(self) -> None:
        (self.folder / "down").touch()  # from the start on
        config = 'model = "gpt"\npp = 2\ntp = 2\nvirtual-ranks = 2'
        first, _ = self.started_over_hosts(["--host", "a:4,b:1,c:3"], config, ("--restarts", 1))
        self.assertEqual(first[:2], ["-np", "4"])

    def test_waits_for_hosts_where_the_others_are_too_few(self) -> None:
        started = self.started_over_hosts(["-H", "a:2", "-H", "b:2"])
        self.assertEqual(len(started), 1)
        self.assertIn("waits for hosts: 2 slots are too few", self.log())

    def test_names_its_own_host_if_no_other_answers(self) -> None:
        start, here = self.with_programs("exit 1", ssh="exit 255"), os.uname().nodename
        for others, lost in (
            ("b:1,c:1", f"lost {here}, which reaches no other host (b, c)"),
            ("b:1", f"lost b, or the network between it and {here}"),
        ):
            command = ["mpirun", "--host", f"{here}:1,{others}", "ddptrain", "--checkpoint", "c"]
            self.assertRegex(self.run_to_end(77, *start, "--restarts", 0, *command), rf"{re.escape(lost)}\n\Z")

    def test_damaged_checkpoints_are_no_progress(self) -> None:
        writes = "folder=c/step-00000000000$(ls c | wc -l); mkdir $folder; echo {} > $folder/manifest.json"
        start = self.with_programs(f"echo >> started; [ $(wc -l < started) -gt 5 ] && exit; {writes}; exit 1")
        self.run_to_end(1, *start, "--restarts", 2, "mpirun", "-np", 2, "ddptrain", "--checkpoint", "c")
        self.assertEqual(self.log().count("newest checkpoint: none"), 3, self.log())

    def test_checkpoints_that_cannot_be_inspected_are_no_progress(self) -> None:
        start = self.with_programs("mkdir -p c/step-000000000005; echo {} > c/step-000000000005/manifest.json; exit 1")
        (self.folder / "bin" / "ddptrain").unlink()
        fails = f'#!/bin/bash\n[ "$1" = --inspect ] && exit 1; exec {BIN}/ddptrain "$@"\n'
        write_program(self.folder / "bin" / "ddptrain", fails)
        program = self.folder / "bin" / "ddptrain"
        self.run_to_end(1, *start, "--restarts", 0, "mpirun", "-np", 2, program, "--checkpoint", "c")
        self.assertIn("newest checkpoint: none", self.log())

    def test_this_host_needs_no_ssh(self) -> None:
        start = self.with_programs("exit 1", ssh="exit 255")
        command = ["mpirun", "--host", "127.0.0.2:2", "ddptrain", "--checkpoint", "c"]
        self.run_to_end(1, *start, "--restarts", 0, *command)

    def test_a_restart_goes_on_from_a_checkpoint_of_this_run(self) -> None:
        self.run_job(1, *RUN, "--steps", 10, "--checkpoint", "old")
        (self.folder / "run.toml").write_text('resume = "old"\n')
        for new, flags in (("a", ["--resume", "old"]), ("b", ["--config", "run.toml"])):
            own = [*RUN, "--steps", ENDLESS, "--checkpoint", new, "--checkpoint-every", 10, *flags]
            job = Job(words(SUPERVISE, "--pause", 0.1, BIN / "ddptrain", *own), self.folder)
            self.addCleanup(job.end)
            job.wait_until(lambda new=new: len(self.steps(new)) > 0)
            kill(job.ranks()[0])
            resumed = re.compile(r"^\[.*Resumed at step (\d+)", re.MULTILINE)
            job.wait_until(lambda job=job, resumed=resumed: len(resumed.findall(job.text())) == 2)
            kill(job.process.pid, signal.SIGINT)
            self.assertEqual(job.wait(), 75, job.text())
            newest = re.search(r"newest checkpoint: step-0+(\d+)", job.text())[1]
            self.assertEqual(resumed.findall(job.text()), ["10", newest], job.text())

    def test_the_working_folder_of_mpirun(self) -> None:
        (self.folder / "ddptrain").mkdir()
        (self.folder / "ddptrain" / "run.toml").write_text("steps = 5\n")
        command = [*MPIRUN, "-np", 1, "-wdir", "ddptrain", BIN / "ddptrain", *RUN, "--config", "run.toml"]
        self.run_to_end(0, SUPERVISE, *command, "--checkpoint", "c")
        log = (self.folder / "ddptrain" / "c" / "supervise.log").read_text()
        self.assertIn("exit code 0; newest checkpoint: step-000000000005", log)

    def test_a_name_that_is_no_text(self) -> None:
        name = os.fsdecode(b"e\xe4")
        self.run_to_end(0, SUPERVISE, BIN / "ddptrain", *RUN, "--steps", 5, "--checkpoint", name)
        log = (self.folder / name / "supervise.log").read_bytes()
        self.assertIn(b"e\xe4", log)
        self.assertIn(b"newest checkpoint: step-000000000005", log)

    def test_waits_for_ranks_that_are_long_in_ending(self) -> None:
        (self.folder / "c").mkdir()
        with open(self.folder / "c" / ".lock", "w") as lock:
            lock.write(f"process 1 on {os.uname().nodename}\n")
            lock.flush()
            fcntl.flock(lock, fcntl.LOCK_EX)
            command = words(SUPERVISE, "--pause", 0.1, BIN / "ddptrain", *RUN, "--steps", 5, "--checkpoint", "c")
            job = Job(command, self.folder)
            self.addCleanup(job.end)
            job.wait_until(lambda: "another run (process 1 on " in self.log())
        self.assertEqual(job.wait(), 0, job.text())

    def test_the_first_error_is_the_cause(self) -> None:
        said = "ddptrain: error on rank 1 (b): no space\nmpirun: peer process has unexpectedly disconnected\n  Peer host: b\n"
        said += "".join(f"ddptrain: error on rank {rank} (c): gone\n" for rank in range(2, 9))
        start = self.with_programs(f"echo '{said}' >&2; exit 1")
        self.run_to_end(1, *start, "--restarts", 0, "mpirun", "-np", 9, "ddptrain", "--checkpoint", "c")
        self.assertIn(" s: exit code 1: ddptrain: error on rank 1 (b): no space; newest", self.log())

    def test_nothing_is_left_of_a_killed_supervise(self) -> None:
        temporary = self.folder / "temporary"
        temporary.mkdir()
        with unittest.mock.patch.dict(ENVIRONMENT, TMPDIR=str(temporary), OMPI_MCA_orte_tmpdir_base=str(temporary)):
            job = self.supervise()
        job.wait_until(lambda: "Epoch 1/" in job.text())
        processes = descendants(job.process.pid)
        job.process.kill()
        wait_for(lambda: not any(map(is_alive, processes)), "all processes end", LIMIT, job.text)
        self.assertEqual([str(path) for path in temporary.rglob("*")], [])

    def test_mistakes_are_not_repeated(self) -> None:
        job = self.supervise(flags=("--data", "no-such-folder"))
        self.assertEqual(job.wait(), 2, job.text())
        self.assertEqual(self.log().count("attempt "), 2)

    def test_mistakes_are_found_before_the_first_attempt(self) -> None:
        (self.folder / "cores").write_text("a slots=2\nb\n")
        (self.folder / "empty").write_text("# none\n")
        (self.folder / "dash").write_text("-oProxyCommand=true slots=2\n")
        (self.folder / "binary").write_text("a slots=2\n\0b\n")
        start = self.with_programs("touch started")
        mpirun, program = ["mpirun"], ["ddptrain", "--checkpoint", "c"]
        for command, said in (
            ([], "give a command"),
            ([*mpirun, "ddptrain"], "no --checkpoint"),
            (["--restarts", "-1", "x"], "--restarts"),
            ([*mpirun, "--hostfile", "none", *program], "none: No such file"),
            ([*mpirun, "--hostfile", "dash", *program], "-oProxyCommand=true is no name of a host"),
            ([*mpirun, "--host", "a,-b", *program], "-b is no name of a host"),
            ([*mpirun, "--hostfile", "empty", *program], "empty: it names no host"),
            ([*mpirun, "--hostfile", "binary", *program], "supervise: binary: line 2 has a byte 0"),
            (["--min-ranks", "1", *mpirun, "-np", "2", *program], "names no hosts"),
            (["--min-ranks", "1", *mpirun, "--hostfile", "cores", *program], "how many ranks may b have"),
            ([*mpirun, "--hostfile", "cores", *program, "--virtual-ranks", "8"], "how many ranks may b have"),
            (["--min-ranks", "1", *mpirun, "--host", "a,b", *program, "--batch", "auto"], "--batch N"),
            ([*mpirun, *program, "--batch", "0"], "--batch"),
        ):
            self.assertIn(said, self.run_to_end(2, *start, *command))
        self.assertFalse((self.folder / "started").exists())


if __name__ == "__main__":
    unittest.main()
