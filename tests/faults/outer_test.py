"""Groups that train apart and share a log: the same bits in rounds whatever the groups are and whatever fails, and what
does not belong in the log changes nothing. With real servers of Redis; `outer_test.py --long N` kills N times."""

import contextlib
import json
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
from typing import Any

from support import BIN, ENVIRONMENT, MPIRUN, ROOT, STARTS, TINY, Job, JobTest, kill, run, starts, wait_for, words
from tests.tools.support import LOG_PASSWORD, LogServer, skip_without_log

PATIENCE = 120.0  # seconds after which what takes a moment hangs
GPT = ["--device", "cpu", "--baseline", "off", "--model", "gpt", "--layers", "2", "--width", "32", "--heads", "2", "--ff",
       "64", "--seq", "16", "--data", "synthetic:4000:200", "--batch", "4", "--eval-samples", "32"]  # fmt: skip


class Log(LogServer):
    def do(self, *words: bytes) -> bytes:
        """What the server answers to a command: a text, a number, or nothing."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as connection:
            file = connection.makefile("rb")
            for command in ([b"AUTH", self.password.encode()], words):
                parts = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in command)
                connection.sendall(b"*%d\r\n%s" % (len(command), parts))
                answer = file.readline()
                if answer.startswith(b"-"):
                    raise AssertionError(answer)
            length = int(answer[1:]) if answer.startswith(b"$") else 0
            return file.read(length) if length > 0 else b"" if length < 0 else answer[1:].strip()

    def is_loaded(self) -> bool:
        """Whether it has read its file after a start."""
        with contextlib.suppress(AssertionError):
            return self.do(b"PING") == b"PONG"
        return False

    def key(self, name: str, what: str) -> bytes:
        return f"ddptrain:{name}:{what}".encode()

    def add(self, name: str, *fields: bytes) -> None:
        """An entry in the log of a run."""
        self.do(b"XADD", self.key(name, "log"), b"*", *fields)

    def trimmed(self, name: str) -> bytes:
        """The position up to which entries have been removed."""
        return self.do(b"GET", self.key(name, "trimmed"))

    def snapshots(self, name: str) -> list[dict[str, Any]]:
        """The newest first."""
        listed = self.do(b"GET", self.key(name, "snapshots"))
        return json.loads(listed[32:])["snapshots"] if listed else []

    def entries(self, name: str) -> int:
        """Of the groups of a run."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as connection:
            connection.sendall(b"AUTH %s\r\nXREAD COUNT 100000 STREAMS ddptrain:%s:log 0\r\n" % (
                self.password.encode(), name.encode()))
            connection.settimeout(2.0)
            data = b""
            with contextlib.suppress(TimeoutError):
                while more := connection.recv(1 << 20):
                    data += more
        return data.count(b"DDPO")


class LoadingServer:
    """Answers the first connections as a Redis server that is reading its file, and hands on later ones to `port`. A
    context."""

    def __init__(self, port: int, refusals: int) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, args=(port, refusals), daemon=True)

    def __enter__(self) -> "LoadingServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(PATIENCE)

    def _serve(self, port: int, refusals: int) -> None:
        with contextlib.suppress(OSError):
            for _ in range(refusals):
                connection, _ = self._socket.accept()
                with connection:
                    while connection.recv(1 << 16):
                        connection.sendall(b"-LOADING Redis is loading the dataset in memory\r\n")
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve_by, args=(port, connection), daemon=True).start()

    @staticmethod
    def _serve_by(port: int, connection: socket.socket) -> None:
        with connection, socket.create_connection(("127.0.0.1", port)) as server:
            answers = threading.Thread(target=LoadingServer._hand_on, args=(server, connection), daemon=True)
            answers.start()
            LoadingServer._hand_on(connection, server)
            answers.join()

    @staticmethod
    def _hand_on(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


class OuterTest(JobTest):
    @classmethod
    def setUpClass(cls) -> None:
        skip_without_log()

    def setUp(self) -> None:
        super().setUp()
        self.log = Log(self.folder / "log")
        self.addCleanup(self.log.kill)
        ENVIRONMENT[LOG_PASSWORD] = self.log.password
        self.addCleanup(ENVIRONMENT.pop, LOG_PASSWORD, None)

    def group(self, name: str, run_name: str, *arguments: Any, ranks: int = 1) -> Job:
        """Starts it, in a folder of its own."""
        folder = self.folder / run_name / name
        folder.mkdir(parents=True, exist_ok=True)
        outer = ["--outer", self.log.url(run_name), "--group", name, "--metrics", "m.jsonl", "--outer-record", "record"]
        command = [*MPIRUN, "-np", str(ranks), str(BIN / "ddptrain"), *words(*outer, *arguments)]
        job = Job(command, folder)
        self.addCleanup(job.end)
        return job

    def result(self, job: Job) -> dict[str, Any]:  # type: ignore[override]
        """The summary of a group that ends well. What it has folded gives the same bits again."""
        self.assertEqual(job.wait(), 0, job.text())
        summary = self.lines(str((job.folder / "m.jsonl").relative_to(self.folder)))[-1]
        self.assertEqual(summary["event"], "summary", job.text())
        self.assertEqual(self.replayed(job), summary["outer_hash"])
        return summary

    def results(self, jobs: list[Job]) -> list[dict[str, Any]]:
        """Of groups of one run. If one fails, the others would wait for it."""
        wait_for(lambda: not all(map(Job.running, jobs)), "no group ends", 300.0, lambda: jobs[0].text())
        for job in sorted(jobs, key=Job.running):
            self.assertIn(job.process.poll(), (None, 0), job.text())
        return [self.result(job) for job in jobs]

    def replayed(self, job: Job) -> str:
        return self.replay(job.folder / "record")[1]

    def replay(self, record: pathlib.Path) -> tuple[int, str]:
        """Version and hash of the outer weights."""
        text = run([BIN / "ddptrain", "--replay-log", record], cwd=self.folder, env=ENVIRONMENT).stdout
        return int(re.search(r"Version +(\d+)", text)[1]), re.search(r"Hash +(\w{32})", text)[1]

    def hash_at(self, record: pathlib.Path, version: int) -> str:
        """Of the outer weights of this version, from a record that has all entries of one fragment."""
        whole = record.read_bytes()
        end = whole.index(b"DDPO") - 8
        part = self.folder / "part"
        found = -1
        while found < version:
            entries = version - max(found, 0)
            for _ in range(entries):
                end += 8 + int.from_bytes(whole[end : end + 8], "little")
            self.assertLessEqual(end, len(whole), "the record is too short")
            part.write_bytes(whole[:end])
            found, value = self.replay(part)
        self.assertEqual(found, version)
        return value

    def refused(self, *arguments: Any, says: str) -> None:
        job = self.job(1, *TINY, "--steps", "4", *arguments)
        self.assertEqual(job.wait(), 2, job.text())
        self.assertRegex(job.text(), says)

    # --- rounds ------------------------------------------------------------------------------------------------------

    ROUNDS = ["--outer-steps", "4", "--steps", "18"]

    def hashes(self, run_name: str, groups: dict[str, tuple[int, list[str]]], *flags: str) -> set[str]:
        """The different hashes of groups of one run: of their weights, and of the outer weights."""
        flags = (*self.ROUNDS, "--outer-groups", str(len(groups)), *flags)
        jobs = [self.group(name, run_name, *GPT, *own, *flags, ranks=ranks) for name, (ranks, own) in groups.items()]
        results = self.results(jobs)
        for result in results:
            self.assertEqual(result["exchange_entries_skipped"], 0)
        return {result[kind] for result in results for kind in ("parameter_hash", "outer_hash")}

    def test_groups_of_every_mesh_have_the_same_weights(self) -> None:
        groups = {"a": (2, ["--zero", "3"]), "b": (4, ["--pp", "2", "--grad-accum", "2"]), "c": (1, []),
                  "d": (2, ["--tp", "2"])}  # fmt: skip
        first = self.hashes("first", groups, "--outer-dtype", "int4")
        self.assertEqual(len(first), 1, first)
        self.assertEqual(self.hashes("second", groups, "--outer-dtype", "int4"), first)

    def test_fragments_and_delay(self) -> None:
        groups = {"a": (1, []), "b": (1, [])}
        flags = ["--outer-fragments", "3", "--outer-delay", "2"]
        first = self.hashes("first", groups, *flags)
        self.assertEqual(len(first), 1, first)
        self.assertEqual(self.hashes("second", groups, *flags), first)
        self.assertNotEqual(self.hashes("third", groups), first)

    def test_killed_groups_and_servers(self) -> None:
        self.check_kills(random.Random(1), 3)

    def check_kills(self, chance: random.Random, kills: int) -> None:
        """Two groups, of which one or the server is killed and started again, resume from their newest checkpoints, and end
        as they do without that. Entries are removed meanwhile."""
        flags = [*GPT, "--outer-groups", "2", "--outer-steps", "3", "--outer-delay", "1", "--outer-dtype", "int8", "--steps",
                 str(400 + 100 * kills), "--outer-snapshot-every", "2", "--checkpoint", "c", "--checkpoint-every", "5",
                 "--resume", "auto"]  # fmt: skip

        def start(name: str, run_name: str) -> Job:
            return self.group(name, run_name, *flags, ranks=2 if name == "a" else 1)

        expected = {result["outer_hash"] for result in self.results([start(name, "calm") for name in "ab"])}
        jobs = {name: start(name, "wild") for name in "ab"}

        def say() -> str:
            return "".join(f"{name}: {job.text()}" for name, job in jobs.items())

        for number in range(kills):
            victim = "log" if number % 3 == 0 else chance.choice("ab")
            folder = self.folder / "wild" / "ab"[number % 2] / "c"
            before = set(folder.glob("step-*"))
            wait_for(lambda: set(folder.glob("step-*")) - before, "no progress", 100.0, say,  # noqa: B023
                     lambda: all(map(Job.running, jobs.values())))  # fmt: skip
            time.sleep(chance.random() / 2)
            self.assertTrue(all(map(Job.running, jobs.values())), say())
            if victim == "log":
                self.log.kill()
                time.sleep(30.0 if number % 18 == 9 else 1.0)
                self.log.start()
                continue
            for process in jobs[victim].ranks():
                kill(process)
            jobs[victim].wait()
            newest = max(self.steps(f"wild/{victim}/c"), default=0)
            jobs[victim] = start(victim, "wild")
            jobs[victim].wait_until(lambda: STARTS.search(jobs[victim].text()) is not None)  # noqa: B023
            self.assertEqual(starts(jobs[victim].text(), newest), [newest])
        found = {result["outer_hash"] for result in self.results(list(jobs.values()))}
        self.assertEqual(found, expected)
        self.assertNotEqual(self.log.trimmed("wild"), b"")

    def test_the_name_of_a_finished_run_is_refused(self) -> None:
        flags = [*TINY, "--batch", "8", "--steps", "10", "--outer-steps", "5", "--outer-groups", "2", "--checkpoint", "c",
                 "--resume", "auto"]  # fmt: skip
        results = self.results([self.group(name, "done", *flags) for name in "ab"])
        for name, other in (("again", []), ("b", ["--checkpoint", "other", "--lr", "0.05"])):
            with self.subTest(name):
                job = self.group(name, "done", *flags, *other)
                self.assertEqual(job.wait(), 2, job.text())
                self.assertRegex(job.text(), "the run done in the log is finished.*another name.*--resume")
        again = self.group("a", "done", *flags)
        self.assertEqual(again.wait(), 0, again.text())
        self.assertIn(results[0]["parameter_hash"], again.text())

    # --- without rounds ----------------------------------------------------------------------------------------------

    FREE = [*TINY, "--batch", "8", "--outer-steps", "5"]

    def test_a_killed_group_stops_nobody(self) -> None:
        lost = self.group("lost", "free", *self.FREE, "--steps", "100000000")
        lost.wait_until(lambda: self.log.entries("free") > 3)
        for process in lost.ranks():
            kill(process)
        lost.wait()
        result = self.result(self.group("here", "free", *self.FREE, "--steps", "200"))
        self.assertEqual(result["exchanges"], 40)
        self.assertEqual(result["parameter_hash"], result["outer_hash"])

    def test_training_goes_on_without_the_server(self) -> None:
        job = self.group("a", "free", *self.FREE, "--steps", "1500", "--outer-delay", "2", "--log-every", "100")
        job.wait_until(lambda: job.said(r"Step 200/") is not None)
        self.log.kill()
        job.wait_until(lambda: job.said("out of reach") is not None)
        now = len(job.lines)
        job.wait_until(lambda: any("Step" in line for _, line in job.lines[now:]))
        self.log.start()
        result = self.result(job)
        self.assertEqual(result["parameter_hash"], result["outer_hash"])
        self.assertEqual(job.text().count("out of reach"), 1, job.text())
        self.assertLessEqual(job.text().count("answers again"), 1, job.text())

    def test_a_new_group_begins_with_the_outer_weights(self) -> None:
        first = self.result(self.group("a", "free", *self.FREE, "--steps", "50"))
        late = self.group("b", "free", *self.FREE, "--steps", "5")
        self.result(late)
        exchanges = [line for line in self.lines("free/b/m.jsonl") if line["event"] == "exchange"]
        self.assertEqual([line["version"] for line in exchanges], [11])
        self.assertEqual(exchanges[0]["age"], 0)
        self.assertEqual(first["exchanges"], 10)

    def test_records_that_are_damaged_or_cut_off(self) -> None:
        self.result(self.group("a", "free", *self.FREE, "--steps", "5"))
        whole = (self.folder / "free" / "a" / "record").read_bytes()
        file = self.folder / "record"
        weights = whole.index(b"}\n") + 2
        for place in (weights - 100, weights, weights + 1000, len(whole) - 100):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            done = run([BIN / "ddptrain", "--replay-log", file], code=2, env=ENVIRONMENT)
            self.assertEqual((done.stdout, done.stderr.count("/record: ")), ("", 1), done.stderr)
        file.write_bytes(whole[:-5])
        done = run([BIN / "ddptrain", "--replay-log", file], env=ENVIRONMENT)
        self.assertIn("the last entry is cut off and left out", done.stdout)

    def test_the_benchmark_of_groups(self) -> None:
        flags = ["--bin", BIN, "--groups", "2", "--steps", "4", "--seeds", "1", "--outer-steps", "2"]
        for more, settings in (([], ["--outer-steps 2"]), (["--asynchronous"], ["--outer-steps 2 --outer-max-age 100"])):
            done = run([ROOT / "benchmarks" / "groups", ROOT / "docs" / "CHANGELOG.md", *flags, *more], env=ENVIRONMENT)
            names = [line.split("|")[1].strip() for line in done.stdout.splitlines()]
            self.assertEqual(names[2:], ["synchronous", *settings])

    # --- what does not belong in the log -----------------------------------------------------------------------------

    def test_other_entries_change_nothing(self) -> None:
        flags = [*TINY, "--batch", "8", "--steps", "40", "--outer-steps", "5", "--outer-groups", "2"]
        expected = {result["outer_hash"] for result in self.results([self.group(name, "calm", *flags) for name in "ab"])}
        jobs = [self.group("a", "wild", *flags)]
        jobs[0].wait_until(lambda: self.log.entries("wild") > 0)
        chance = random.Random(2)
        for size in (0, 1, 47, 48, 100, 5000, 3_000_000):
            self.log.add("wild", b"e", chance.randbytes(size))
            self.log.add("wild", b"e", b"DDPO" + chance.randbytes(size))
        self.log.add("wild", b"f", b"other field")
        self.log.add("wild", b"e", b"two", b"f", b"fields")
        others = self.log.entries("wild")
        jobs.append(self.group("b", "wild", *flags))
        jobs[1].wait_until(lambda: self.log.entries("wild") > others)
        results = self.results(jobs)
        self.assertEqual({result["outer_hash"] for result in results}, expected)
        self.assertGreater(results[1]["exchange_entries_skipped"], 14)
        self.assertIn("An entry of the log is skipped", jobs[1].text())

    def test_a_group_too_many_is_refused(self) -> None:
        flags = [*TINY, "--batch", "8", "--steps", "10", "--outer-steps", "5", "--outer-groups", "2"]
        first = self.group("a", "full", *flags)
        first.wait_until(lambda: self.log.entries("full") > 0)
        self.log.do(b"SET", self.log.key("full", "member:1"), b"b")  # as if b had started
        more = self.group("c", "full", *flags)
        self.assertEqual(more.wait(), 2, more.text())
        self.assertIn("--group c: the run full in the log has its 2 groups already: a, b.", more.text())
        self.results([first, self.group("b", "full", *flags)])

    def test_two_jobs_with_one_name(self) -> None:
        endless = [*self.FREE, "--steps", "100000000"]
        first = self.group("a", "free", *endless)
        first.wait_until(lambda: self.log.entries("free") > 0)
        holder = first.ranks()[0]
        folder = self.folder / "second"
        folder.mkdir()
        command = [str(BIN / "ddptrain"), *endless, "--outer", self.log.url("free"), "--group", "a"]
        second = Job(command, folder)
        self.addCleanup(second.end)
        self.assertEqual(second.wait(), 2, second.text())
        self.assertRegex(second.text(), f"--group a: process {holder} on .* trains under this name in the run free")
        self.assertTrue(first.running(), first.text())
        # After a kill, the name is free soon.
        kill(holder)
        first.wait()
        third = Job(command, folder)
        self.addCleanup(third.end)
        third.wait_until(lambda: third.said("waiting up to .* in case that job was killed") is not None)
        third.wait_until(lambda: third.said("^Epoch") is not None)
        # A job that slept while another took its name ends when it wakes up.
        asleep = third.ranks()[0]
        kill(asleep, signal.SIGSTOP)
        fourth = self.group("a", "free", *endless)
        fourth.wait_until(lambda: fourth.said("^Epoch") is not None)
        kill(asleep, signal.SIGCONT)
        self.assertEqual(third.wait(), 2, third.text())
        self.assertIn("has taken this name in the run free", third.text())

    def test_a_checkpoint_of_another_run_is_refused(self) -> None:
        flags = [*self.FREE, "--steps", "10", "--checkpoint", "c", "--resume", "auto"]
        job = self.group("a", "one", *flags)
        self.result(job)
        self.result(self.group("a", "two", *flags))

        def refused(run_name: str, says: str) -> None:
            arguments = ["--outer", self.log.url(run_name), "--group", "a"]
            again = Job([str(BIN / "ddptrain"), *flags, *arguments], job.folder)
            self.addCleanup(again.end)
            self.assertEqual(again.wait(), 2, again.text())
            self.assertRegex(again.text(), says)

        refused("two", "--resume c/step-0*10: that checkpoint is of another run than two in the log .*run id")
        refused("three", "--resume c/step-0*10: the log .* has no run three")
        self.log.kill()
        shutil.rmtree(self.log.folder / "appendonlydir")
        self.log.start()
        refused("one", "--resume c/step-0*10: the log .* has no run one")

    # --- servers that fail -------------------------------------------------------------------------------------------

    def test_a_full_log_is_told(self) -> None:
        self.log.kill()
        self.log.memory = "3mb"
        self.log.start()
        flags = [*self.FREE, "--steps", "3000", "--outer-snapshot-every", "0", "--log-every", "1000"]
        job = self.group("a", "free", *flags)
        job.wait_until(lambda: job.said("The log .* is full: OOM .*until it has room.*more --memory") is not None)
        job.wait_until(lambda: job.said("Step 3000/3000") is not None)
        self.assertNotIn("out of reach", job.text())
        self.log.kill()
        self.log.memory = "100mb"
        self.log.start()
        result = self.result(job)
        self.assertEqual(result["parameter_hash"], result["outer_hash"])

    def test_a_full_log_makes_room_by_snapshots(self) -> None:
        """Whether the next one is due soon or never."""
        self.log.kill()
        self.log.memory = "3mb"
        self.log.start()
        for every in ("10", "1000000"):
            with self.subTest(every):
                flags = [*self.FREE, "--steps", "3000", "--outer-snapshot-every", every]
                jobs = [self.group(name, f"every-{every}", *flags) for name in "ab"]
                self.results(jobs)
                self.assertNotEqual(self.log.trimmed(f"every-{every}"), b"")
                self.log.kill()
                shutil.rmtree(self.log.folder / "appendonlydir")
                self.log.start()

    def test_a_group_waits_until_the_log_has_read_its_file(self) -> None:
        with LoadingServer(self.log.port, 3) as loading:
            job = self.job(1, *self.FREE, "--steps", "5", "--outer", f"redis://127.0.0.1:{loading.port}/x", "--group", "a")
            self.assertEqual(job.wait(), 0, job.text())
            self.assertEqual(job.text().count("still reading its file: waiting"), 1, job.text())

    def test_a_silent_server(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            outer = ["--outer", f"redis://127.0.0.1:{silent.getsockname()[1]}/x", "--group", "a"]
            self.refused(*outer, says="127.0.0.1.*: the server does not answer within 5 s")
            silent.accept()[0].close()
            job = self.job(1, *TINY, "--steps", "4", *outer)
            silent.settimeout(PATIENCE)
            connection, _ = silent.accept()
            with connection:
                connection.recv(100)
                kill(job.ranks()[0], signal.SIGTERM)
                self.assertEqual(job.wait(), 128 + signal.SIGTERM, job.text())
            self.assertIn("before the first step; nothing was trained", job.text())

    # --- snapshots ---------------------------------------------------------------------------------------------------

    def observer(self) -> Job:
        """A group that writes no snapshot, and has all entries in its record."""
        job = self.group("z", "long", *self.FREE, "--outer-steps", "5000", "--steps", "100000000",
                         "--outer-snapshot-every", "0")  # fmt: skip
        job.wait_until(lambda: self.log.entries("long") > 0)
        return job

    def writer(self, every: str) -> Job:
        return self.group("w", "long", *self.FREE, "--outer-steps", "500", "--steps", "100000000",
                          "--outer-snapshot-every", every)  # fmt: skip

    def check_late_group(self, name: str, observer: Job, says: str) -> None:
        """It begins with a snapshot, and its outer weights are those of a group that has been there from the start."""
        late = self.group(name, "long", *self.FREE, "--steps", "20")
        result = self.result(late)
        self.assertRegex(late.text(), says)
        version, _ = self.replay(late.folder / "record")
        observed = observer.folder / "record"
        observer.wait_until(lambda: self.replay(observed)[0] >= version)
        self.assertEqual(self.hash_at(observed, version), result["outer_hash"])

    def test_groups_begin_with_snapshots(self) -> None:
        observer = self.observer()
        writer = self.writer("8")
        writer.wait_until(lambda: self.log.trimmed("long") != b"")
        self.check_late_group("late", observer, "begins with the snapshot of version")
        for process in writer.ranks():
            kill(process)
        writer.wait()
        newest, older = self.log.snapshots("long")
        damage = {"snapshot": newest, "older snapshot": older}
        for number, head in enumerate(damage.values()):
            chunk = self.log.key("long", f"snapshot:{head['id']}:0")
            values = self.log.do(b"GET", chunk)
            self.log.do(b"SET", chunk, bytes([values[0] ^ 1]) + values[1:] if number == 0 else values[1:])
            if number == 0:
                self.check_late_group("later", observer, "(?s)is damaged: it is not used.*begins with the snapshot")
        last = self.group("last", "long", *self.FREE, "--steps", "20")
        self.assertEqual(last.wait(), 2, last.text())
        self.assertIn("the run long in the log has no snapshot that can be used", last.text())
        self.log.do(b"SET", self.log.key("long", "snapshots"), b"x" * 1000)
        last = self.group("last", "long", *self.FREE, "--steps", "20")
        self.assertEqual(last.wait(), 2, last.text())
        self.assertIn("The list of snapshots in the log long is damaged", last.text())

    def test_entries_stay_that_a_present_group_has_not_read(self) -> None:
        slow = self.group("slow", "long", *self.FREE, "--outer-steps", "10000000", "--steps", "100000000")
        slow.wait_until(lambda: slow.said("^Epoch") is not None)
        writer = self.writer("8")
        writer.wait_until(lambda: len(self.log.snapshots("long")) == 2)
        newest = self.log.snapshots("long")[0]["id"]
        writer.wait_until(lambda: newest not in [head["id"] for head in self.log.snapshots("long")])
        self.assertEqual(self.log.trimmed("long"), b"")
        for process in slow.ranks():
            kill(process)
        slow.wait()
        writer.wait_until(lambda: self.log.trimmed("long") != b"")

    def test_killed_writers_of_snapshots(self) -> None:
        self.check_writers(random.Random(3), 2)

    def check_writers(self, chance: random.Random, kills: int) -> None:
        observer = self.observer()
        for number in range(kills):
            writer = self.writer("1")
            writer.wait_until(lambda: writer.said("^Epoch") is not None)  # noqa: B023
            time.sleep(chance.random())
            if number % 2 == 1:
                self.log.kill()
                self.log.start()
                wait_for(lambda: self.log.is_loaded(), "the log is not loaded", PATIENCE)
                newest = self.log.snapshots("long")[:1]
                writer.wait_until(lambda: self.log.snapshots("long")[:1] != newest)  # noqa: B023
            for process in writer.ranks():
                kill(process)
            writer.wait()
            self.check_late_group(f"late-{number}", observer, "Groups ")
        chunks = {f"snapshot:{head['id']}:0" for head in self.log.snapshots("long")}
        self.assertEqual(len(chunks), 2)
        self.assertNotEqual(self.log.trimmed("long"), b"")

    def test_a_group_that_returns_after_its_entries_are_gone(self) -> None:
        flags = [*self.FREE, "--checkpoint", "c", "--resume", "auto"]
        first = self.group("a", "long", *flags, "--steps", "50")
        self.result(first)
        observer = self.observer()
        writer = self.writer("8")
        writer.wait_until(lambda: self.log.trimmed("long") != b"")
        again = self.group("a", "long", *flags, "--steps", "100", "--allow-change")
        result = self.result(again)
        self.assertIn("begins with the snapshot of version", again.text())
        self.assertEqual(result["parameter_hash"], result["outer_hash"])
        self.assertTrue(observer.running(), observer.text())

    def test_settings_that_differ_are_named(self) -> None:
        flags = [*self.FREE, "--steps", "5"]
        self.result(self.group("a", "free", *flags))
        for other in (["--outer-lr", "0.5"], ["--hidden", "17"], ["--seed", "2"], ["--outer-dtype", "bf16"]):
            with self.subTest(other):
                job = self.group("b", "free", *flags, *other)
                self.assertEqual(job.wait(), 2, job.text())
                self.assertIn("other settings than this group", job.text())
        self.assertIn("--outer-dtype: bf16 (in the log: int8)", job.text())

    def test_passwords(self) -> None:
        outer = ["--outer", self.log.url("x"), "--group", "a"]
        for password, says in ((None, "NOAUTH"), ("wrong", "WRONGPASS|invalid")):
            ENVIRONMENT.pop(LOG_PASSWORD, None)
            if password is not None:
                ENVIRONMENT[LOG_PASSWORD] = password
            self.refused(*outer, says=rf"({says})[^.]*\. Set .*{LOG_PASSWORD}")
        self.refused("--outer", f"redis://:secret@127.0.0.1:{self.log.port}/x", "--group", "a", says="leave it out")
        self.refused("--outer", "redis://127.0.0.1:1/x", "--group", "a", says="refused.*launch/outer-log")

    def certificate(self, name: str, *flags: str) -> None:
        """NAME.crt and NAME.key in the folder."""
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
                   f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.crt", *flags]  # fmt: skip
        run(command, cwd=self.folder)

    def test_tls(self) -> None:
        outer = ["--outer", "rediss://127.0.0.1:1/x", "--group", "a"]
        trial = subprocess.run([BIN / "ddptrain", *TINY, *outer], env=ENVIRONMENT, capture_output=True, text=True)
        self.assertEqual((trial.returncode, trial.stderr.count("\n")), (2, 1), trial.stderr)
        if "was built without TLS" in trial.stderr:
            self.assertRegex(trial.stderr, "Install hiredis 1.0 or newer with libhiredis_ssl.*ssh tunnel")
            self.skipTest("this build has no TLS (libhiredis_ssl of hiredis 1.0 or newer, and libssl-dev)")
        if shutil.which("openssl") is None:
            self.skipTest("there is no openssl")
        self.certificate("authority")
        self.certificate("other")
        self.certificate("server", "-CA", "authority.crt", "-CAkey", "authority.key", "-addext",
                         "subjectAltName=IP:127.0.0.1")  # fmt: skip
        self.addCleanup(ENVIRONMENT.pop, "DDPTRAIN_OUTER_CA", None)
        plain = self.log
        self.log = Log(self.folder / "made", "--tls")
        self.addCleanup(self.log.kill)
        self.check_tls(self.folder / "made" / "tls-127.0.0.1.crt", plain)
        files = ["--tls-cert", str(self.folder / "server.crt"), "--tls-key", str(self.folder / "server.key")]
        self.log = Log(self.folder / "given", *files)
        self.addCleanup(self.log.kill)
        self.check_tls(self.folder / "authority.crt", plain)

    def check_tls(self, authority: pathlib.Path, plain: Log) -> None:
        """Whether groups train through the log, and through no other."""
        ENVIRONMENT[LOG_PASSWORD] = self.log.password
        ENVIRONMENT["DDPTRAIN_OUTER_CA"] = str(authority)
        large = [*self.FREE, "--hidden", "2000"]  # entries of more than a record and a buffer of the system
        results = self.results([self.group(name, "tls", *large, "--steps", "10", "--outer-groups", "2") for name in "ab"])
        self.assertEqual(results[0]["outer_hash"], results[1]["outer_hash"])

        def refused(url: str, says: str) -> None:
            self.refused("--outer", url, "--group", "a", says=says)

        url = self.log.url("x")
        refused(url.replace("127.0.0.1", "localhost"), "certificate of the server: hostname mismatch. Set .*_CA to the file")
        refused(url.replace("rediss", "redis"), "If the server has TLS, the address begins with rediss://")
        refused(plain.url("x").replace("redis", "rediss"), "no TLS: .*If the server has no TLS.* begins with redis://")
        ENVIRONMENT["DDPTRAIN_OUTER_CA"] = "other.crt"
        refused(url, "certificate of the server: .*certificate.*Set .*_CA to the file")
        ENVIRONMENT["DDPTRAIN_OUTER_CA"] = "nothing.crt"
        refused(url, "DDPTRAIN_OUTER_CA=nothing.crt: this file cannot be read as certificates")
        ENVIRONMENT.pop("DDPTRAIN_OUTER_CA")
        refused(url, "set the environment variable DDPTRAIN_OUTER_CA")

    def test_outer_log_checks_its_address(self) -> None:
        for bind, port in (("127.0.0.1", self.log.port), ("192.0.2.1", 6379)):  # in use; an address of documentation
            command = [ROOT / "launch" / "outer-log", "--dir", self.folder / "other", "--bind", bind, "--port", port]
            done = run(command, None, cwd=self.folder)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(f"--bind {bind} --port {port}: ", done.stderr)
            self.assertNotIn("export", done.stdout)

    # --- launch/outer-log --------------------------------------------------------------------------------------------

    def server_refused(self, *arguments: Any, says: str) -> None:
        done = run([ROOT / "launch" / "outer-log", *arguments], code=2, cwd=self.folder)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("outer-log: "), done.stderr)
        self.assertIn(says, done.stderr)

    def test_one_server_for_a_folder(self) -> None:
        before = {path: path.read_bytes() for path in self.log.folder.glob("*.conf")}
        for port in (self.log.port, self.log.port + 1):
            says = f"another process, {self.log.process.pid}, serves"
            self.server_refused("--dir", self.log.folder, "--port", port, says=says)
        self.assertEqual({path: path.read_bytes() for path in self.log.folder.glob("*.conf")}, before)

    def test_names_of_folders_are_taken_as_they_are(self) -> None:
        for name in ("log dir", 'a "quoted" \\n name'):
            with self.subTest(name):
                server = LogServer(self.folder / name)
                server.kill(signal.SIGTERM)
                self.assertTrue(list((self.folder / name).glob("appendonly*")))
        for name in ("a cert", "a key"):
            (self.folder / name).write_text("no certificate")
        tls = ["--tls-cert", "a cert", "--tls-key", "a key"]
        self.log.kill()
        done = run([ROOT / "launch" / "outer-log", *tls, "--port", self.log.port], code=1, cwd=self.folder)
        self.assertRegex(done.stdout, "Failed to load certificate: .*/a cert")

    def test_wrong_flags_of_the_server(self) -> None:
        for flag, what in (("--dir", "a folder"), ("--bind", "an address"), ("--port", "a number"),
                           ("--memory", "a size"), ("--tls-cert", "a file"), ("--tls-key", "a file")):  # fmt: skip
            self.server_refused(flag, says=f"{flag} takes {what}")
            self.server_refused(flag, "", says=f"{flag} takes {what}")
        for port in ("0", "08", "65536", "99999999999999999999", "x"):
            self.server_refused("--port", port, says=f"--port {port}: give a number from 1 to 65535")
        for memory in ("0", "5", "08", "1023kb", "0gb"):
            self.server_refused("--memory", memory, says=f"--memory {memory}: give 1mb or more")
        self.server_refused("--memory", "9999999999gb", says="give a size")
        self.server_refused("--tls", "--tls-cert", "x", says="--tls makes a certificate")
        self.server_refused("--bind", "999.1.1.1", says="--bind 999.1.1.1 --port 6379: ")
        self.assertFalse((self.folder / "outer-log" / "redis.conf").exists())

    def test_a_resume_without_the_groups_is_refused(self) -> None:
        flags = [*self.FREE, "--steps", "10", "--checkpoint", "c", "--resume", "auto"]
        job = self.group("a", "free", *flags)
        self.result(job)
        alone = Job([str(BIN / "ddptrain"), *flags, "--allow-change"], job.folder)
        self.assertEqual(alone.wait(), 2, alone.text())
        self.assertIn("add --outer URL", alone.text())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--long"]:
        kills = int(sys.argv[2])
        test = OuterTest("test_killed_groups_and_servers")
        test.test_killed_groups_and_servers = lambda: test.check_kills(random.Random(), kills)
        writers = OuterTest("test_killed_writers_of_snapshots")
        writers.test_killed_writers_of_snapshots = lambda: writers.check_writers(random.Random(), kills // 10 + 1)
        suite = unittest.TestSuite([test, writers])
        sys.exit(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())
    unittest.main(verbosity=2)
