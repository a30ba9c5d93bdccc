"""A run that ends before its time and is resumed ends as the undisturbed run does, bit by bit."""

import re
import shutil
import signal
import subprocess
import time
import unittest

from support import (
    BIN, HYDRA, SHARE_GPU, SHARING, TINY, Job, JobTest, catches, find_mpirun, gpus, is_pending, kill, starts, words,
)  # fmt: skip

CNN = ["--device", "cpu", "--baseline", "off", "--data", "synthetic:192"]
GPT = ["--device", "cpu", "--baseline", "off", "--model", "gpt", "--layers", "1", "--width", "32", "--heads", "2",
       "--ff", "64", "--seq", "32", "--dropout", "0.1", "--data", "synthetic:20000:16", "--batch", "8",
       "--steps", "12", "--eval-samples", "64", "--schedule", "cosine", "--warmup", "3"]  # fmt: skip
SGD = ["--optimizer", "sgd", "--lr", "0.01"]
# Ranks, flags, and where it fails: after step 6, whose checkpoint waits until that of step 3 is complete. Every value of
# every flag that changes how state is kept comes with several others.
CASES = [
    (1, [*CNN, "--batch", "16", "--epochs", "2", "--graph", "off"], "0:13"),
    (2, [*CNN, "--batch", "8", "--epochs", "2", "--zero", "1", "--optimizer", "adamw"], "1:7"),
    (4, [*CNN, "--batch", "4", "--epochs", "2", *SGD, "--grad-accum", "2"], "3:7"),
    (1, [*GPT, "--optimizer", "adamw", "--clip-norm", "1"], "0:7"),
    (2, [*GPT, "--zero", "1", "--grad-accum", "2", "--optimizer", "muon"], "0:11"),
    (4, [*GPT, *SGD, "--log-every", "2", "--bucket-mb", "0.01"], "2:9"),
    (2, [*TINY, "--batch", "8", "--epochs", "3", "--log-every", "3", "--eval-every", "4"], "0:50"),
    (4, [*TINY, "--batch", "4", "--epochs", "2", "--zero", "1", "--optimizer", "lion"], "1:38"),
    (2, [*GPT, "--zero", "3", "--grad-accum", "2", "--optimizer", "lamb"], "1:10"),
    (4, [*GPT, "--zero", "2", "--virtual-ranks", "8", "--clip-norm", "1"], "3:8"),
]
# What no run measures twice the same, and what is not known of steps of before a resume.
MEASURED = re.compile("per_second|_seconds|^time$|^gradient_norm$|^last_loss$")
GPU_CNN = ["--device", "cuda", "--baseline", "off", "--data", "synthetic:4096", "--batch", "128",
           "--epochs", "2", *SHARE_GPU]  # fmt: skip
GPU_GPT = ["--device", "cuda", "--baseline", "off", "--model", "gpt", "--layers", "2", "--width", "128", "--heads", "2",
           "--ff", "512", "--seq", "128", "--dropout", "0.1", "--data", "synthetic:200000:16", "--batch", "8",
           "--steps", "60", "--eval-samples", "64", "--schedule", "cosine", "--warmup", "3", *SHARE_GPU]  # fmt: skip
GPU_CASES = [
    (1, [*GPU_CNN], "0:41"),
    (1, [*GPU_CNN, "--graph", "off", "--precision", "fp32", *SGD], "0:41"),
    (2, [*GPU_CNN, "--zero", "1", "--optimizer", "adamw"], "1:23"),
    (2, [*GPU_CNN, "--grad-accum", "2", "--comm", "mpi"], "0:11"),
    (1, [*GPU_GPT, "--clip-norm", "1", "--optimizer", "adamw"], "0:41"),
    (1, [*GPU_GPT, "--precision", "fp8", "--optimizer", "adamw"], "0:41"),
    (2, [*GPU_GPT, "--zero", "1", "--optimizer", "adamw"], "1:41"),
    (2, [*GPU_GPT, "--precision", "fp8", "--grad-accum", "2", "--graph", "off", "--optimizer", "adamw"], "1:41"),
]
GPU_RANKS = SHARING or gpus()  # the most that a job on GPUs has
QUICK = [*TINY, "--batch", "8", "--epochs", "3"]  # on 2 ranks: 37 steps each
ENDLESS = [*TINY, "--batch", "8", "--epochs", "100000"]


class ResumeTest(JobTest):
    def test_same_bits(self) -> None:
        self.check_same_bits(CASES)

    def test_same_bits_on_gpus(self) -> None:
        cases = [case for case in GPU_CASES if case[0] <= GPU_RANKS]
        if not cases:
            self.skipTest("no GPU")
        self.check_same_bits(cases)

    def check_same_bits(self, cases: list[tuple[int, list[str], str]]) -> None:
        for ranks, flags, fail_at in cases:
            with self.subTest(ranks=ranks, flags=" ".join(flags)):
                shutil.rmtree(self.folder / "c", ignore_errors=True)
                expected = self.result(ranks, *flags)
                saving = ["--checkpoint", "c", "--checkpoint-every", 3, "--resume", "auto"]
                job = self.job(ranks, *flags, *saving, "--fail-at", fail_at)
                self.assertEqual(job.wait(), 1, job.text())
                self.assertEqual(self.resumed_result(ranks, *flags, *saving), expected)
        # The last checkpoint is of the end: what comes after the steps is done again.
        self.assertEqual(self.resumed_result(ranks, *flags, *saving), expected)
        self.assertIsNone(self.lines("result.jsonl")[-1].get("images_per_second"), "no step was left to measure")

    def test_evaluations_and_epochs_come_as_in_the_undisturbed_run(self) -> None:
        flags = [*QUICK, "--log-every", 5, "--eval-every", 10]
        self.run_job(2, *flags, "--metrics", "whole.jsonl")
        saving = [*flags, "--checkpoint", "c", "--checkpoint-every", 10, "--keep", 100, "--metrics", "parts.jsonl"]
        self.run_job(2, *saving, "--fail-at", "1:55", code=1)
        self.run_job(2, *saving, "--resume", "auto", "--fail-at", "0:105", code=1)
        self.run_job(2, *saving, "--resume", "auto")

        def told(name: str) -> list[dict]:
            lines = [line for line in self.lines(name) if line["event"] in ("evaluation", "step", "epoch")]
            return [{key: value for key, value in line.items() if not MEASURED.search(key)} for line in lines]

        once = {(line["event"], line["step"]): line for line in told("parts.jsonl")}
        self.assertEqual(list(once.values()), told("whole.jsonl"))
        # A checkpoint comes before what its step asks for: the run that resumes it does that first.
        text = self.run_job(2, *flags, "--resume", "c/step-000000000030", "--metrics", "rest.jsonl")
        self.assertEqual(starts(text, 30), [30])
        self.assertEqual(told("rest.jsonl"), [line for line in told("whole.jsonl") if line["step"] >= 30])
        restarts = [line["step"] for line in self.lines("parts.jsonl") if line["event"] == "restart"]
        self.assertEqual([step % 10 for step in restarts], [0, 0])  # the newest may not have been complete
        self.assertTrue(0 < restarts[0] <= 50 < restarts[1] <= 100, restarts)

    def test_virtual_ranks_keep_the_bits_on_fewer_ranks(self) -> None:
        adamw = ["--optimizer", "adamw", "--clip-norm", "1"]
        for flags in ([*CNN, "--batch", "8", "--epochs", "2", *SGD], [*GPT, *adamw]):
            with self.subTest(flags=" ".join(flags)):
                self.check_fewer_ranks(4, flags, 2)

    @unittest.skipUnless(GPU_RANKS >= 2, "two GPUs, or ranks that share one, are needed")
    def test_virtual_ranks_keep_the_bits_on_fewer_gpus(self) -> None:
        for flags in ([*GPU_CNN, *SGD], [*GPU_GPT, "--clip-norm", "1", "--optimizer", "adamw"]):
            with self.subTest(flags=" ".join(flags)):
                self.check_fewer_ranks(SHARING or 2, flags, 12 // (SHARING or 2))

    def check_fewer_ranks(self, ranks: int, flags: list[str], every: int) -> None:
        """The first half of the steps on all ranks, what is left on half of them, and again."""
        shutil.rmtree(self.folder / "c", ignore_errors=True)
        flags = [*flags, "--virtual-ranks", str(ranks)]
        expected = self.result(ranks, *flags)
        saving = [*flags, "--checkpoint", "c", "--checkpoint-every", every, "--resume", "auto"]
        newest = 0
        while ranks > 1:
            job = self.job(ranks, *saving, "--fail-at", f"0:{newest + 2 * every + 1}")
            self.assertEqual(job.wait(), 1, job.text())
            self.assertEqual(starts(job.text(), newest), [newest])
            self.assertGreater(self.steps("c")[-1], newest)
            newest = self.steps("c")[-1]
            self.assertEqual(self.run_job(1, "--inspect", "c").count("complete and undamaged"), len(self.steps("c")))
            ranks //= 2
        self.assertEqual(self.resumed_result(1, *saving), expected)

    def test_what_does_not_fit_is_named(self) -> None:
        saving = [*QUICK, "--checkpoint", "c", "--checkpoint-every", 20]
        self.run_job(2, *saving)
        self.run_job(2, *QUICK, "--checkpoint", "other", "--seed", 7)
        kept = sorted((self.folder / "other").glob("step-*/*s*"))
        alone = ["--batch", 16]  # as many samples as two ranks have: one rank starts faster
        cases = [
            (2, [*saving, "--resume", "auto", "--lr", "0.5", "--momentum", "0.1"], ["--lr 0.5 (checkpoint: ", "--momentum 0.1"]),
            (1, saving, ["holds step 111", "--resume auto"]),
            (1, [*QUICK, "--resume", "c", "--hidden", "17"], ["its model has hidden 16, and this run's 17. Give the sizes of the checkpoint"]),
            (1, [*CNN, "--batch", "8", "--resume", "c"], ["model mlp"]),
            (1, [*QUICK, "--resume", "c"], ["8 samples (--batch 8 --grad-accum 1 on 1 rank) are given: for example --grad-accum 2"]),
            (2, [*QUICK, "--resume", "c", "--virtual-ranks", "4"],
             ["16 samples (--batch 8 --grad-accum 1 on 2 ranks) per step are needed, 32 samples "
              "(--batch 8 --grad-accum 1 on 4 virtual ranks) are given: for example --batch 4"]),
            (3, [*QUICK, "--resume", "c"],
             ["24 samples (--batch 8 --grad-accum 1 on 3 ranks)", "change --batch, --grad-accum, or the number of replicas (ranks / (--pp x --tp))"]),
            (1, [*QUICK, *alone, "--resume", "c", "--data", "synthetic:608"], ["Give the --data of the checkpoint, and for texts its --val"]),
            (1, [*QUICK, *alone, "--resume", "c", "--steps", "100"], ["has 111 steps behind it", "Give more --steps or --epochs"]),
            (1, [*QUICK, *alone, "--resume", "c", "--optimizer", "adamw"],
             ['--optimizer "adamw" (checkpoint: "adam"). Give the values of the checkpoint, or --allow-change']),
            *((1, [*QUICK, *alone, "--resume", "c", "--optimizer", "sgd", *more],
               ["To continue it, give --optimizer adam.", "--resume c/step-000000000111 --export DIR, then use --init DIR."])
              for more in ([], ["--allow-change"])),
            (1, [*QUICK, "--resume", "auto"], ["--checkpoint"]),
            (1, [*QUICK, "--resume", "nowhere"], ["no complete and undamaged checkpoint"]),
            (1, [*QUICK, *alone, "--checkpoint", "c", "--resume", "c/step-000000000100"], ["holds step 111"]),
            (1, [*QUICK, "--checkpoint", "/proc/none"], ["--checkpoint /proc/none"]),
            (1, [*QUICK, *alone, "--resume", "c", "--checkpoint", "other", "--epochs", "9"],
             ["--checkpoint other: it holds step ", "Add --resume auto to continue it, or name an empty folder."]),
            (1, [*QUICK, "--resume", "auto", "--checkpoint", "c/step-000000000111"],
             ["it is a checkpoint itself: give the folder above"]),
        ]
        for ranks, flags, parts in cases:
            with self.subTest(flags=" ".join(words(*flags))):
                text = self.run_job(ranks, *flags, code=2)
                self.assertEqual(text.count("ddptrain: "), 1, text)
                for part in parts:
                    self.assertIn(part, text)
        self.assertEqual(self.steps("c"), [100, 111])
        self.assertEqual(sorted((self.folder / "other").glob("step-*/*s*")), kept)
        text = self.run_job(2, *saving, "--resume", "auto", "--lr", "0.5", "--allow-change")
        self.assertIn("--lr 0.5 (checkpoint: 0.001)", text)
        text = self.run_job(2, *saving, "--resume", "auto", "--bucket-mb", "1", "--log-every", "50")
        self.assertRegex(text, r"(?m)that change the speed or the rounding: --bucket-mb 1 \(checkpoint: 25\)$")
        text = self.run_job(1, *QUICK, "--grad-accum", 2, "--resume", "c", "--epochs", 4)  # as it was advised
        self.assertEqual(starts(text, 111), [111])
        longer = self.resumed_result(2, *saving, "--resume", "auto", "--epochs", 4)
        shutil.rmtree(self.folder / "c")
        self.assertEqual(self.result(2, *QUICK, "--epochs", 4), longer)

    def test_a_size_that_the_checkpoint_leaves_out_is_compared_too(self) -> None:
        """As it has the usual value, which the model of --init does not have."""
        self.run_job(1, *GPT, "--checkpoint", "c", "--save", "w")
        config = self.folder / "w" / "config.json"
        config.write_text(re.sub(r'"layer_norm_epsilon": [^,]+', '"layer_norm_epsilon": 0.1', config.read_text()))
        text = self.run_job(1, *GPT, "--init", "w", "--resume", "c", code=2)
        self.assertIn("its model has norm_epsilon_e12 none, and this run's 100000000000", text)

    def test_the_hash_of_a_run_whose_layers_were_split_otherwise_says_so(self) -> None:
        saving = [*GPT, "--data", "synthetic:20000:64", "--schedule", "constant", "--virtual-ranks", 2, "--checkpoint", "c",
                  "--resume", "auto"]  # fmt: skip
        notes = []
        for ranks, flags in ((2, ["--tp", 2, "--steps", 4]), (2, ["--steps", 8]), (1, [])):  # the last one: 12 steps
            text = self.run_job(ranks, *saving, *flags)
            notes.append(re.search(r"(?m)^Hash +\w{32} +(.*)$", text)[1])
        self.assertEqual(notes, ["the same on every mesh with --tp 2: --virtual-ranks", *["depends on when --tp changed"] * 2])

    def test_an_inspected_checkpoint_tells_its_mesh(self) -> None:
        saving = [*GPT, "--data", "synthetic:20000:64", "--layers", 2, "--steps", 3, "--checkpoint", "c"]
        self.run_job(8, *saving, "--pp", 2, "--tp", 2, "--zero", 1, "--virtual-ranks", 4, "--moments", "bf16")
        text = self.run_job(1, "--inspect", "c")
        self.assertRegex(text, r"(?m)^  Ranks +8, 2 stages x 2 replicas x 2 parts, --zero 1, --virtual-ranks 4$")
        self.assertRegex(text, r"(?m)^  Samples +32 per step: batch 8, 1 micro-step$")
        self.assertRegex(text, r"(?m)^  Optimizer +adam, moments bf16, master fp32$")
        (self.folder / "c" / "step-000000000005").mkdir()  # as a run leaves it that was killed
        self.assertIn("NOT USABLE", self.run_job(1, "--inspect", "c"))
        (self.folder / "c" / "step-000000000005" / "manifest.json").write_text("{}")
        text = self.run_job(1, "--inspect", "c", code=1)
        self.assertIn("NOT USABLE: c/step-000000000005/manifest.json: not the manifest of a checkpoint", text)
        self.assertIn("ddptrain: --inspect c: 1 of 2 checkpoints cannot be used", text)
        shutil.rmtree(self.folder / "c" / "step-000000000003")
        (self.folder / "c" / "step-000000000005" / "manifest.json").unlink()
        self.assertIn("1 of 1 checkpoint cannot be used", self.run_job(1, "--inspect", "c", code=1))

    def test_short_waits_for_checkpoints_are_no_warning(self) -> None:
        text = self.run_job(2, *QUICK, "--checkpoint", "c", "--checkpoint-every", 1, "--epochs", 1)
        self.assertNotRegex(text, r"waited 0\.0\d s")

    def test_a_folder_has_one_run_at_a_time(self) -> None:
        first = self.job(2, *ENDLESS, "--checkpoint", "c", "--checkpoint-every", 20)
        first.wait_until(lambda: self.steps("c") != [])
        second = self.run_job(1, *ENDLESS, "--checkpoint", "c", "--resume", "auto", code=1)
        self.assertRegex(second, r"--checkpoint c: another run \(process \d+ on \S+\) writes there. Wait for its end")
        self.assertTrue(first.running())
        for rank in first.ranks():
            kill(rank)
        first.wait()
        newest = self.steps("c")[-1]
        self.assertEqual(starts(self.run_job(2, *ENDLESS, "--checkpoint", "c", "--resume", "auto", "--steps", newest), newest),
                         [newest])  # fmt: skip

    def test_a_link_in_the_folder_is_not_followed(self) -> None:
        (self.folder / "precious").write_text("precious")
        (self.folder / "c").mkdir()
        for name in (".lock", ".visible"):
            (self.folder / "c" / name).symlink_to("../precious")
        text = self.run_job(1, *QUICK, "--checkpoint", "c", code=2)
        self.assertIn("--checkpoint: c/.lock cannot be opened: ", text)
        self.assertEqual((self.folder / "precious").read_text(), "precious")

    def test_batch_auto_takes_the_batch_of_the_checkpoint(self) -> None:
        saving = [*TINY, "--checkpoint", "c"]
        self.run_job(2, *saving, "--batch", 8, "--steps", 20)
        result = self.resumed_result(2, *saving, "--batch", "auto", "--steps", 50, "--resume", "auto")
        shutil.rmtree(self.folder / "c")
        self.assertEqual(result, self.result(2, *TINY, "--batch", 8, "--steps", 50))

    def test_weights_are_exported_as_saved(self) -> None:
        self.run_job(2, *GPT, "--zero", 1, "--checkpoint", "c", "--save", "saved")
        self.run_job(1, "--export", "exported", "--resume", "c")
        for name in ("model.safetensors", "config.json"):
            saved, exported = (self.folder / folder / name for folder in ("saved", "exported"))
            self.assertEqual(saved.read_bytes(), exported.read_bytes(), name)
        self.run_job(2, *QUICK, "--checkpoint", "m")
        self.run_job(1, "--export", "weights", "--resume", "m")
        self.assertGreater((self.folder / "weights" / "model.safetensors").stat().st_size, 4 * 784 * 16)
        for flags, says in ((["--model", "gpt", "--resume", "m"], "--resume m: it is of model mlp, and this is --model gpt"),
                            (["--model", "mlp", "--hidden", 17, "--resume", "m"], "--hidden 17: the model of the checkpoint has 16"),
                            (["--model", "gpt", "--layers", 3, "--resume", "c"], "--layers 3: the model of the checkpoint has 1"),
                            (["--resume", "m/step-000000000111/manifest.json"], "it is no folder")):  # fmt: skip
            self.assertIn(says, self.run_job(1, "--export", "refused", *flags, code=2))
        self.assertFalse((self.folder / "refused").exists())
        self.run_job(1, "--model", "gpt", "--layers", 1, "--export", "again", "--resume", "c")  # what it has may be named


class SignalTest(JobTest):
    def saving(self) -> list[str]:
        return words(*TINY, "--batch", 8, "--epochs", 100_000, "--checkpoint", "c", "--metrics", "m.jsonl")

    def started(self, ranks: int, *arguments: object) -> Job:
        job = self.job(ranks, *arguments)
        job.wait_until(lambda: "Epoch 1/" in job.text())
        return job

    def test_usr1_writes_a_checkpoint_and_training_goes_on(self) -> None:
        job = self.started(2, *self.saving())
        for count in (1, 2):  # a job that ends writes one
            kill(job.ranks()[1], signal.SIGUSR1)
            job.wait_until(lambda count=count: len(self.steps("c")) == count)
        kill(job.process.pid, find_mpirun().end)
        # MPICH's mpirun may return 0 after a signal of its own.
        self.assertIn(job.wait(), (75, 0) if find_mpirun() is HYDRA else (75,), job.text())

    def test_term_and_int_at_any_rank_write_one_and_end_with_75(self) -> None:
        for number, rank in ((signal.SIGTERM, 0), (signal.SIGTERM, 2), (signal.SIGINT, 1), (signal.SIGUSR2, 0),
                             (signal.SIGHUP, 1)):  # fmt: skip
            with self.subTest(signal=number, rank=rank):
                shutil.rmtree(self.folder / "c", ignore_errors=True)
                job = self.started(3, *self.saving())
                start = time.monotonic()
                kill(job.ranks()[rank], number)
                self.assertEqual(job.wait(), 75, job.text())
                print(f"{signal.Signals(number).name} at rank {rank}: ended after {time.monotonic() - start:.2f} s")
                last = self.lines("m.jsonl")[-1]
                self.assertEqual((last["event"], last["signal"]), ("interrupted", signal.Signals(number).name))
                self.assertEqual(self.steps("c"), [last["step"]])
                self.assertIn(f"after step {last['step']}; --resume auto", job.text())

    def test_samples_end_with_the_run(self) -> None:
        """At once, with a checkpoint of their step, from which the resumed run writes them again."""
        (self.folder / "prompts").write_text("1 2 3\n" * 4000)
        model = [*GPT[: GPT.index("--seq")], "--seq", "256", "--data", "synthetic:20000:16", "--batch", "2", "--eval-samples",
                 "2", "--prompts", "prompts", "--sample-every", "3", "--checkpoint", "c", "--metrics", "m"]  # fmt: skip
        for ranks, flags in ((1, []), (2, ["--zero", "3"])):
            job = self.job(ranks, *model, *flags, "--max-tokens", "250", "--log-every", "1", "--steps", "30")
            job.wait_until(lambda: job.said("Step 3/30") is not None)
            job.signal(ranks - 1, signal.SIGTERM)
            self.assertEqual(job.wait(), 75, job.text())
            self.assertIn("ended after step 3;", job.text())
            self.assertEqual(self.steps("c"), [3])
            self.assertLess(len([line for line in self.lines("m") if line["event"] == "sample"]), 4000)
            (self.folder / "prompts").write_text("1 2 3\n7 7\n")
            self.run_job(ranks, *model, *flags, "--max-tokens", "2", "--resume", "auto", "--steps", "6")
            samples = [(line["step"], line["number"]) for line in self.lines("m") if line["event"] == "sample"]
            self.assertEqual(samples[-4:], [(3, 1), (3, 2), (6, 1), (6, 2)])
            shutil.rmtree(self.folder / "c")
            (self.folder / "prompts").write_text("1 2 3\n" * 4000)

    def test_a_second_interrupt_ends_at_once(self) -> None:
        job = self.started(2, *self.saving())
        first, second = job.ranks()
        kill(second, signal.SIGSTOP)  # so that the other one comes to no step boundary
        kill(first, signal.SIGINT)
        job.wait_until(lambda: not is_pending(first, signal.SIGINT))
        time.sleep(1)
        self.assertTrue(job.running(), job.text())
        kill(first, signal.SIGINT)
        self.assertEqual(job.wait(), 130, job.text())

    def test_a_signal_after_training_leaves_out_measurements_and_nothing_else(self) -> None:
        training = words(*TINY, "--batch", 8, "--steps", 20, "--metrics", "m.jsonl", "--save", "saved")
        checkpoint = ["--checkpoint", "c"]
        trained = self.result(2, *TINY, "--batch", 8, "--steps", 20)
        measured_for_long = {"baseline": ["--baseline", "on", "--calibration-seconds", "1000"],
                             "windows": ["--min-seconds", "1000"]}  # fmt: skip
        cases = [("baseline", signal.SIGUSR2, checkpoint, 75), ("baseline", signal.SIGUSR1, checkpoint, None),
                 ("windows", signal.SIGTERM, checkpoint, 75), ("windows", signal.SIGHUP, [], 128 + signal.SIGHUP)]  # fmt: skip
        for phase, number, saving, code in cases:
            with self.subTest(phase=phase, signal=number):
                for folder in ("c", "saved"):
                    shutil.rmtree(self.folder / folder, ignore_errors=True)
                job = self.job(2, *training, *saving, *measured_for_long[phase])
                job.wait_until(lambda: (self.folder / "saved" / "model.safetensors").exists())
                kill(job.ranks()[1], number)
                if code is None:  # there is nothing to save; the run goes on
                    job.wait_until(lambda job=job: not is_pending(job.ranks()[1], signal.SIGUSR1))
                    self.assertTrue(job.running(), job.text())
                    kill(job.ranks()[0], signal.SIGTERM)
                self.assertEqual(job.wait(), code or 75, job.text())
                self.assertIn("ended after the last step", job.text())
                self.assertEqual(self.result_in("m.jsonl"), trained)
                self.assertEqual(self.steps("c"), [20] if saving else [])

    def test_a_signal_in_start_up_ends_the_job_before_the_first_step(self) -> None:
        for saving, code in (["--checkpoint", "c"], 75), ([], 143):
            for _ in range(10):
                job = self.job(2, *ENDLESS, *saving)
                job.wait_until(lambda job=job: len(job.ranks()) == 2 and catches(job.ranks()[1], signal.SIGTERM))
                kill(job.ranks()[1], signal.SIGTERM)
                self.assertEqual(job.wait(), code, job.text())
                if "before the first step" in job.text():
                    break
                self.assertIn("after step", job.text())  # it was too quick
                shutil.rmtree(self.folder / "c", ignore_errors=True)
            self.assertIn("before the first step", job.text())
            self.assertEqual(self.steps("c"), [])

    def test_a_closed_terminal_ends_the_run_unless_it_is_ignored(self) -> None:
        for start, code in ([], 75), (["nohup"], 0):
            with self.subTest(start=start):
                shutil.rmtree(self.folder / "c", ignore_errors=True)
                steps = 100_000 if code else 20_000
                job = Job([*start, str(BIN / "ddptrain"), *words(*TINY, "--batch", 8, "--steps", steps),
                           "--checkpoint", "c", "--checkpoint-every", "1000"], self.folder)  # fmt: skip
                self.addCleanup(job.end)
                job.wait_until(lambda: len(self.steps("c")) > 0)
                kill(job.ranks()[0], signal.SIGHUP)
                self.assertEqual(job.wait(), code, job.text())

    def test_the_end_of_the_reader_ends_the_run_in_order(self) -> None:
        saving = words(*TINY, "--batch", 8, "--epochs", 100_000, "--checkpoint", "c")
        with subprocess.Popen([BIN / "ddptrain", *saving], cwd=self.folder, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as process:  # fmt: skip
            self.addCleanup(process.kill)
            next(line for line in process.stdout if line.startswith("Epoch 1/"))
            process.stdout.close()
            self.assertIn("SIGPIPE: ended after step", process.stderr.read())
            self.assertEqual(process.wait(), 75)
        self.assertEqual(len(self.steps("c")), 1)

    def test_without_checkpoints_the_end_is_orderly(self) -> None:
        job = self.started(2, *ENDLESS, "--metrics", "m.jsonl")
        kill(job.ranks()[1], signal.SIGUSR1)
        job.wait_until(lambda: "there is no --checkpoint" in job.text())
        kill(job.ranks()[1], signal.SIGTERM)
        self.assertEqual(job.wait(), 143, job.text())
        self.assertIn("without a checkpoint", job.text())
        self.assertEqual(self.lines("m.jsonl")[-1]["event"], "interrupted")


if __name__ == "__main__":
    unittest.main()
