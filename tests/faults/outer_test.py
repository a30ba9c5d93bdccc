"""Groups that train apart and share a log: the same bits in rounds whatever the groups are and whatever fails, and what
does not belong in the log changes nothing. With real servers of Redis; `outer_test.py --long N` kills N times."""

import random
import shutil
import signal
import sys
import time
import unittest

from outer import FREE, PATIENCE, OuterCase
from support import BIN, ENVIRONMENT, SHARE_GPU, SHARING, STARTS, TINY, Job, gpus, kill, run, starts, wait_for

SMALL = ["--baseline", "off", "--model", "gpt", "--layers", "2", "--width", "32", "--heads", "2", "--ff",
       "64", "--seq", "16", "--data", "synthetic:4000:200", "--batch", "4", "--eval-samples", "32"]  # fmt: skip
GPT = ["--device", "cpu", *SMALL]


class Rounds(OuterCase):
    gpt = GPT

    def hashes(self, run_name: str, groups: dict[str, tuple[int, list[str]]], *flags: str) -> set[str]:
        """The different hashes of groups of one run: of their weights, and of the outer weights."""
        flags = ("--outer-steps", "4", "--steps", "18", "--outer-groups", str(len(groups)), *flags)
        jobs = [self.group(name, run_name, *self.gpt, *own, *flags, ranks=ranks) for name, (ranks, own) in groups.items()]
        results = self.results(jobs)
        for result in results:
            self.assertEqual(result["exchange_entries_skipped"], 0)
        return {result[kind] for result in results for kind in ("parameter_hash", "outer_hash")}

    def check_groups_of_every_mesh(self) -> None:
        groups = {"a": (2, ["--zero", "3"]), "b": (4, ["--pp", "2", "--grad-accum", "2"]), "c": (1, []),
                  "d": (2, ["--tp", "2"])}  # fmt: skip
        first = self.hashes("first", groups, "--outer-dtype", "int4")
        self.assertEqual(len(first), 1, first)
        self.assertEqual(self.hashes("second", groups, "--outer-dtype", "int4"), first)


class OuterOnGpus(Rounds):
    gpt = ["--device", "cuda", "--tune", "off", *SHARE_GPU, *SMALL]

    @unittest.skipUnless(gpus() >= 4 or SHARING, "four GPUs are needed")
    def test_groups_of_every_mesh_have_the_same_weights(self) -> None:
        self.check_groups_of_every_mesh()


class OuterTest(Rounds):
    # --- rounds ------------------------------------------------------------------------------------------------------

    def test_groups_of_every_mesh_have_the_same_weights(self) -> None:
        self.check_groups_of_every_mesh()

    def test_fragments_and_delay(self) -> None:
        groups = {"a": (1, []), "b": (1, [])}
        flags = ["--outer-fragments", "3", "--outer-delay", "2"]
        first = self.hashes("first", groups, *flags)
        self.assertEqual(len(first), 1, first)
        self.assertEqual(self.hashes("second", groups, *flags), first)
        self.assertNotEqual(self.hashes("third", groups), first)

    def test_killed_groups_and_servers(self) -> None:
        self.check_kills(random.Random(1), 3)

    def start(self, name: str, run_name: str) -> Job:
        """One of two groups that are killed."""
        flags = [*GPT, "--outer-groups", "2", "--outer-steps", "3", "--outer-delay", "1", "--outer-dtype", "int8", "--steps",
                 "700", "--outer-snapshot-every", "2", "--checkpoint", "c", "--checkpoint-every", "5", "--resume",
                 "auto"]  # fmt: skip
        return self.group(name, run_name, *flags, ranks=2 if name == "a" else 1)

    def check_kills(self, chance: random.Random, kills: int) -> None:
        """Two groups, of which one or the server is killed and started again, resume from their newest checkpoints, and end
        as they do without that. In as many runs as it takes; entries are removed meanwhile."""
        expected = {result["outer_hash"] for result in self.results([self.start(name, "calm") for name in "ab"])}
        done = 0
        while done < kills:
            run_name = f"wild-{done}"
            jobs = {name: self.start(name, run_name) for name in "ab"}
            while done < kills and self.kill_one(jobs, run_name, chance, done):
                done += 1
            found = {result["outer_hash"] for result in self.results(list(jobs.values()))}
            self.assertEqual(found, expected)
            self.assertNotEqual(self.log.trimmed(run_name), b"")
            print(f"{done} kills", flush=True)

    def kill_one(self, jobs: dict[str, Job], run_name: str, chance: random.Random, number: int) -> bool:
        """A group or the server, after a checkpoint of a group. False if the run has ended."""
        folder = self.folder / run_name / "ab"[number % 2] / "c"
        before = set(folder.glob("step-*"))

        def say() -> str:
            return "".join(f"{name}: {job.text()}" for name, job in jobs.items())

        def both_run() -> bool:
            return all(map(Job.running, jobs.values()))

        wait_for(lambda: set(folder.glob("step-*")) - before or not both_run(), "no progress", 100.0, say)
        time.sleep(chance.random() / 2)
        if not both_run():
            return False
        if number % 3 == 0:
            self.log.kill()
            time.sleep(30.0 if number % 18 == 9 else 1.0)
            self.log.start()
            return True
        victim = chance.choice("ab")
        for process in jobs[victim].ranks():
            kill(process)
        jobs[victim].wait()
        newest = max(self.steps(f"{run_name}/{victim}/c"), default=0)
        jobs[victim] = self.start(victim, run_name)
        jobs[victim].wait_until(lambda: STARTS.search(jobs[victim].text()) is not None)
        self.assertEqual(starts(jobs[victim].text(), newest), [newest])
        return True

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

    def test_the_last_checkpoint_is_what_was_trained(self) -> None:
        flags = [*FREE, "--steps", "20", "--outer-groups", "2", "--checkpoint", "c", "--save", "saved"]
        jobs = [self.group(name, "last", *flags) for name in "ab"]
        self.results(jobs)
        for job in jobs:
            run([BIN / "ddptrain", "--resume", "c", "--export", "exported"], cwd=job.folder, env=ENVIRONMENT)
            saved, exported = (job.folder / name / "model.safetensors" for name in ("saved", "exported"))
            self.assertEqual(saved.read_bytes(), exported.read_bytes())

    def test_samples_are_texts_of_checkpoints(self) -> None:
        """Also at the step of an exchange, and after the last one."""
        texts = ["--prompts", str(self.folder / "prompts"), "--max-tokens", "8", "--temperature", "0.8"]
        (self.folder / "prompts").write_text("1 2 3\n")
        flags = [*GPT, "--lr", "0.02", "--optimizer", "adamw", "--outer-groups", "1", "--outer-steps", "4", "--steps", "12",
                 "--sample-every", "2", "--checkpoint", "c", "--checkpoint-every", "2", "--keep", "9"]  # fmt: skip
        job = self.group("a", "samples", *flags, *texts)
        self.result(job)
        lines = self.lines(str((job.folder / "m.jsonl").relative_to(self.folder)))
        samples = {line["step"]: line["tokens"] for line in lines if line["event"] == "sample"}
        self.assertEqual(sorted(samples), [2, 4, 6, 8, 10, 12])
        for step, tokens in samples.items():
            generate = ["--device", "cpu", "--generate", "--resume", f"c/step-{step:012}", *texts]
            said = run([BIN / "ddptrain", *generate], cwd=job.folder, env=ENVIRONMENT).stdout
            self.assertEqual([int(token) for token in said.splitlines()[0].split()], tokens, step)

    # --- without rounds ----------------------------------------------------------------------------------------------

    def test_a_killed_group_stops_nobody(self) -> None:
        lost = self.group("lost", "free", *FREE, "--steps", "100000000")
        lost.wait_until(lambda: self.log.entries("free") > 3)
        for process in lost.ranks():
            kill(process)
        lost.wait()
        result = self.result(self.group("here", "free", *FREE, "--steps", "200"))
        self.assertEqual(result["exchanges"], 40)
        self.assertEqual(result["parameter_hash"], result["outer_hash"])

    def test_training_goes_on_without_the_server(self) -> None:
        job = self.group("a", "free", *FREE, "--steps", "40000", "--outer-delay", "2", "--log-every", "100")
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
        first = self.result(self.group("a", "free", *FREE, "--steps", "50"))
        late = self.group("b", "free", *FREE, "--steps", "5")
        self.result(late)
        exchanges = [line for line in self.lines("free/b/m.jsonl") if line["event"] == "exchange"]
        self.assertEqual([line["version"] for line in exchanges], [11])
        self.assertEqual(exchanges[0]["age"], 0)
        self.assertEqual(first["exchanges"], 10)

    def test_records_that_are_damaged_or_cut_off(self) -> None:
        self.result(self.group("a", "free", *FREE, "--steps", "5"))
        whole = (self.folder / "free" / "a" / "record").read_bytes()
        file = self.folder / "record"
        weights = whole.index(b"}\n") + 2
        for place in (weights - 100, weights, weights + 1000, len(whole) - 100):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            done = run([BIN / "ddptrain", "--replay-log", file], code=2, env=ENVIRONMENT)
            self.assertEqual((done.stdout, done.stderr.count("/record: ")), ("", 1), done.stderr)
        file.write_bytes(whole[:-5])
        done = run([BIN / "ddptrain", "--replay-log", self.folder], code=2, env=ENVIRONMENT)
        self.assertRegex(done.stderr, "--replay-log: .*: is a folder")
        done = run([BIN / "ddptrain", "--replay-log", file], env=ENVIRONMENT)
        self.assertIn("the last entry is cut off and left out", done.stdout)

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
        endless = [*FREE, "--steps", "100000000"]
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
        flags = [*FREE, "--steps", "10", "--checkpoint", "c", "--resume", "auto"]
        job = self.group("a", "one", *flags)
        self.result(job)
        self.result(self.group("a", "two", *flags))

        def refused(run_name: str, says: str) -> None:
            arguments = ["--outer", self.log.url(run_name), "--group", "a"]
            again = Job([str(BIN / "ddptrain"), *flags, *arguments], job.folder)
            self.addCleanup(again.end)
            self.assertEqual(again.wait(), 2, again.text())
            self.assertRegex(again.text(), says)

        fragments = Job([str(BIN / "ddptrain"), *flags, "--outer", self.log.url("one"), "--group", "a",
                         "--outer-fragments", "2", "--allow-change"], job.folder)  # fmt: skip
        self.assertEqual(fragments.wait(), 2, fragments.text())
        self.assertRegex(fragments.text(), "--resume c/step-0*10: .*Continue with the --outer- flags")
        refused("two", "--resume c/step-0*10: that checkpoint is of another run than two in the log .*run id")
        refused("three", "--resume c/step-0*10: the log .* has no run three")
        self.log.kill()
        shutil.rmtree(self.log.folder / "appendonlydir")
        self.log.start()
        refused("one", "--resume c/step-0*10: the log .* has no run one")

    # --- snapshots ---------------------------------------------------------------------------------------------------

    def observer(self) -> Job:
        """A group that writes no snapshot, and has all entries in its record."""
        job = self.group("z", "long", *FREE, "--outer-steps", "5000", "--steps", "100000000",
                         "--outer-snapshot-every", "0")  # fmt: skip
        job.wait_until(lambda: self.log.entries("long") > 0)
        return job

    def writer(self, every: str) -> Job:
        return self.group("w", "long", *FREE, "--outer-steps", "500", "--steps", "100000000",
                          "--outer-snapshot-every", every)  # fmt: skip

    def check_late_group(self, name: str, observer: Job, says: str) -> None:
        """It begins with a snapshot, and its outer weights are those of a group that has been there from the start."""
        late = self.group(name, "long", *FREE, "--steps", "20")
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
        last = self.group("last", "long", *FREE, "--steps", "20")
        self.assertEqual(last.wait(), 2, last.text())
        self.assertIn("the run long in the log has no snapshot that can be used", last.text())
        self.log.do(b"SET", self.log.key("long", "snapshots"), b"x" * 1000)
        last = self.group("last", "long", *FREE, "--steps", "20")
        self.assertEqual(last.wait(), 2, last.text())
        self.assertIn("The list of snapshots in the log long is damaged", last.text())

    def test_entries_stay_that_a_present_group_has_not_read(self) -> None:
        slow = self.group("slow", "long", *FREE, "--outer-steps", "10000000", "--steps", "100000000")
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
            if number + 1 == kills:
                writer.wait_until(lambda: len(self.log.snapshots("long")) == 2 and self.log.trimmed("long") != b"")
            for process in writer.ranks():
                kill(process)
            writer.wait()
            self.check_late_group(f"late-{number}", observer, "Groups ")
        self.assertEqual(len(self.log.snapshots("long")), 2)

    def test_a_group_that_returns_after_its_entries_are_gone(self) -> None:
        flags = [*FREE, "--checkpoint", "c", "--resume", "auto"]
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
        flags = [*FREE, "--steps", "5"]
        self.result(self.group("a", "free", *flags))
        for other in (["--outer-lr", "0.5"], ["--hidden", "17"], ["--seed", "2"], ["--outer-dtype", "bf16"]):
            with self.subTest(other):
                job = self.group("b", "free", *flags, *other)
                self.assertEqual(job.wait(), 2, job.text())
                self.assertIn("other settings than this group", job.text())
        self.assertIn("--outer-dtype: bf16 (in the log: int8)", job.text())

    def test_a_resume_without_the_groups_is_refused(self) -> None:
        flags = [*FREE, "--steps", "10", "--checkpoint", "c", "--resume", "auto"]
        job = self.group("a", "free", *flags)
        self.result(job)
        flags = [*TINY, "--batch", "8", *flags[len(FREE) :]]
        for more in ([], ["--allow-change"]):
            alone = Job([str(BIN / "ddptrain"), *flags, *more], job.folder)
            self.assertEqual(alone.wait(), 2, alone.text())
            self.assertIn("it is of a group that shares a log: add --outer URL and --group NAME", alone.text())

    def test_a_resume_with_groups_of_another_kind_is_refused(self) -> None:
        flags = [*FREE, "--steps", "10", "--checkpoint", "c", "--resume", "auto"]
        job = self.group("a", "one", *flags)
        self.result(job)
        for other in (["--outer-dtype", "bf16"], ["--outer-optimizer", "nesterov"], ["--outer-groups", "1"]):
            with self.subTest(other):
                again = self.group("a", "one", *flags, *other, "--allow-change")
                self.assertEqual(again.wait(), 2, again.text())
                self.assertIn("Continue with the --outer- flags of that run: --outer-dtype int8, --outer-optimizer auto, "
                              "--outer-groups 0, --outer-fragments 1.", again.text())  # fmt: skip
        alone = Job([str(BIN / "ddptrain"), *TINY, "--batch", "8", "--steps", "10", "--checkpoint", "c"], job.folder.parent)
        self.assertEqual(alone.wait(), 0, alone.text())
        (job.folder.parent / "b").mkdir()
        (job.folder.parent / "c").rename(job.folder.parent / "b" / "c")
        group = self.group("b", "one", *flags, "--allow-change")
        self.assertEqual(group.wait(), 2, group.text())
        self.assertIn("it is of no group that shares a log. To begin a run of groups with its weights", group.text())


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
