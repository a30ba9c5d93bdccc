"""benchmarks/compare: what it runs, where and in which order, how it chooses, how it goes on, and what its page says; the
PyTorch peers on the CPU where there is PyTorch."""

import dataclasses
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import unittest
from collections.abc import Callable
from unittest import mock

from tests.tools.support import BIN, PATIENCE, ROOT, FolderCase, run, wait_for, write_program

sys.path.insert(0, str(ROOT / "benchmarks"))

from ddptools.common.errors import UsageError
from ddptools.page.render import to_markdown
from ddptools.sweep.machine import Machine
from peers import programs, results_page, rows, session

GRAPHED, PLAIN, TUNED = "default+graph", "default", "max-autotune"


def flag(command: list[str], name: str) -> str:
    return command[command.index(name) + 1] if name in command else ""


class FakePrograms:
    """In place of session.run_program: rates that are known, and what was started where."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.gpus: list[str] = []  # of each that was started
        self.lock = threading.Lock()
        self.active: set[str] = set()  # GPUs
        self.meeting: threading.Barrier | None = None  # of the first runs on each GPU
        self.failing: set[tuple[str, str]] = set()  # mode, gradients; on several ranks
        self.says = "exit code 1: RuntimeError: no such capture"
        self.modes = {GRAPHED: 1.0, PLAIN: 0.9, TUNED: 0.8}

    def __call__(self, command: list[str], environment: dict[str, str], timeout: float, must_end: Callable[[], bool]) -> str:
        gpus = set(environment["CUDA_VISIBLE_DEVICES"].split(","))
        with self.lock:
            assert not self.active & gpus, f"{gpus} are in use"
            self.active |= gpus
            is_first = not gpus <= set(",".join(self.gpus).split(","))
            self.gpus.append(",".join(sorted(gpus)))
            said = self.start(command)
            self.started.append(said)
        try:
            if self.meeting is not None and is_first:
                self.meeting.wait(60)
            return self.answer(command, said)
        finally:
            with self.lock:
                self.active -= gpus

    def start(self, command: list[str]) -> str:
        if "mpirun" in command:
            return " ".join(["ddptrain", flag(command, "--comm-dtype") or "bf16", flag(command, "--precision")]).strip()
        if "benchmarks/peers/llmq.py" in command:
            return f"llmq {flag(command, '--model')}"
        shard = "FSDP " if "--shard" in command else ""
        return f"{shard}{flag(command, '--mode')} {flag(command, '--gradients')}"

    def answer(self, command: list[str], said: str) -> str:
        if "mpirun" in command:
            ranks = int(flag(command, "-np"))
            rate = {"bf16": 400.0, "fp32": 300.0}[said.split()[1]] * ranks
            summary = {"images_per_second": rate, "tokens_per_second": rate, "gpus": None,
                       "test_loss": 3.25 if "fp8" in said else 3.125}  # fmt: skip
            if "--baseline" not in command:
                summary |= {"scaling_efficiency": 0.95, "exposed_comm_us": 812.4, "exposed_comm_us_half_width": 20.0}
            pathlib.Path(flag(command, "--metrics")).write_text(json.dumps(summary), encoding="utf-8")
            return ""
        about = {"measured_from": 0, "measured_until": 1, "torch": "2", "cuda": "13", "cudnn": 9, "nccl": "2"}
        if said.startswith("llmq"):
            return json.dumps(about | {"tokens_per_second": 320.0})
        mode, dtype = flag(command, "--mode"), flag(command, "--gradients")
        ranks = int(flag(command, "--nproc_per_node") or 1)
        if (mode, dtype) in self.failing and ranks > 1:
            raise programs.RunFailed(self.says)
        rate = {"bf16": 200.0, "fp32": 100.0}[dtype] * ranks * self.modes.get(mode, 0.5)
        return "some line\n" + json.dumps(about | {"images_per_second": rate, "tokens_per_second": rate})


class CompareTest(FolderCase):
    def setUp(self) -> None:
        super().setUp()
        self.file, self.programs = self.folder / "compared.jsonl", FakePrograms()
        self.enterContext(mock.patch.object(session, "run_program", self.programs))
        self.enterContext(mock.patch.object(sys, "stderr"))

    def make(self, ranks: list[int], only: str = "CNN, batch 512", gpus: int = 2, commit: str = "abc", host: str = "h",
             about: dict[str, object] | None = None, **changes: object) -> session.Session:  # fmt: skip
        settings = {"device": "cuda", "ranks": ranks, "seconds": 60, "trial_seconds": 3, "repeats": 2, "only": only,
                    "modes": [PLAIN, GRAPHED, TUNED], "seconds_left": math.inf, "bin": pathlib.Path("bin"),
                    "python": "python3"} | changes  # fmt: skip
        machine = Machine("a CPU", 8, "a system", ["NVIDIA H200"] * gpus, list("0123456789"[:gpus]))
        here = {"host": host, "driver": "1", "ddptrain": "0.1", "commit": commit, "nccl_environment": {}} | (about or {})
        return session.Session(session.Settings(**settings), machine, session.Records(self.file), machine.describe() | here)

    def page(self, made: session.Session) -> str:
        return to_markdown(results_page.title(made), results_page.blocks(made))

    def line(self, page: str, begin: str) -> list[str]:
        found = next(line for line in page.splitlines() if line.startswith(f"| {begin}"))
        return [cell.strip() for cell in found.strip("|").split("|")]

    def test_programs_run_in_turn_after_the_trials(self) -> None:
        made = self.make([2])
        self.assertEqual(made.run_all(), [])
        self.assertEqual(sorted(self.programs.started[:3]), sorted([f"{m} fp32" for m in (PLAIN, GRAPHED, TUNED)]))
        self.assertEqual(self.programs.started[3:5], [f"{mode} bf16" for mode in (GRAPHED, PLAIN)])  # on two ranks: two
        turn = ["ddptrain bf16 bf16", "ddptrain bf16 bf16", f"{GRAPHED} bf16"]
        self.assertEqual(self.programs.started[5:], turn + turn[::-1])
        self.assertEqual(set(self.programs.gpus[3:]), {"0,1"})

    def test_works_for_one_gpu_run_beside_each_other_and_a_round_stays_on_its_gpu(self) -> None:
        self.programs.meeting = threading.Barrier(4)
        made = self.make([1, 2], only="^(CNN|mini GPT).*1 GPU|CNN, batch 512, 2 GPUs", gpus=4)
        self.assertEqual(made.run_all(), [])
        self.assertEqual(self.programs.meeting.n_waiting, 0)
        self.assertEqual(set(self.programs.gpus), {"0", "1", "2", "3", "0,1"})  # no GPU had two at once: see FakePrograms
        rounds = [record for record in made.records.all if record["kind"] == "round"]
        self.assertEqual(len(rounds), 2 * 5)
        for record in rounds:
            used = {run["environment"]["CUDA_VISIBLE_DEVICES"] for run in record["runs"]}
            self.assertEqual(used, {",".join(record["gpus"])})
            self.assertEqual(len(record["gpus"]), record["ranks"])
            programs = {run["row"].split()[0] for run in record["runs"]}
            self.assertEqual(programs, {"ddptrain", "PyTorch"})

    def test_every_row_tells_commit_day_machine_spread_and_mode(self) -> None:
        made = self.make([1], only="GPT-2 124M, ", gpus=1)
        made.run_all()
        first = next(record for record in made.records.all if record["kind"] == "round")
        first["runs"][1]["result"]["tokens_per_second"] = 500.0
        row = self.line(self.page(made), "GPT-2 124M, 1 GPU")
        day = made.records.all[-1]["began"][:10]
        self.assertEqual(row[1:7], ["--tune on", "400.0", "PyTorch", GRAPHED, "100.0", "4.00"])
        self.assertEqual(row[10:], ["2", "abc", day, "1 x NVIDIA H200, driver 1"])
        fp8 = next(line for line in self.page(made).splitlines() if "| --tune on --precision fp8 |" in line)
        self.assertIn("450.0 (400.0 to 500.0)", fp8)
        self.assertIn("4.50 (4.00 to 5.00)", fp8)
        self.assertIn("| 3.2500 |", fp8)  # its loss after equal steps
        self.assertEqual(row[9], "3.1250")
        self.assertIn("+4.0%", self.line(self.page(made), "ddptrain --precision fp8"))

    def test_ratios_are_of_gradients_of_one_type(self) -> None:
        made = self.make([1, 2], only="GPT-2 124M, . GPU", variants=True)
        made.run_all()
        one, _, two = self.page(made).partition("## GPT-2 124M, 2 GPUs")
        self.assertEqual(self.line(two, "ddptrain --tune on |")[1:5], ["800.0", "2", "2.00", "95.0% (100.0%)"])
        self.assertEqual(self.line(self.page(made), "GPT-2 124M, 2 GPUs")[8], "812 +- 20")
        self.assertEqual(self.line(two, "ddptrain --tune on --comm-dtype fp32")[3], "3.00")
        self.assertEqual(self.line(two, f"PyTorch DDP, bf16 gradients, {GRAPHED}")[1:4], ["400.0", "2", ""])
        self.assertEqual(self.line(one.partition("## GPT-2 124M, 1 GPU")[2], "ddptrain --tune on |")[3], "4.00")

    def test_meshes_are_beside_the_faster_of_ddp_and_fsdp(self) -> None:
        self.programs.modes["eager"] = 1.5
        made = self.make([2], only="774M, batch 8", modes=[PLAIN, "eager"])
        self.assertEqual(made.run_all(), [])
        row = self.line(self.page(made), "GPT-2 774M, batch 8, 2 GPUs | --zero 3")
        self.assertEqual(row[3:7], ["PyTorch FSDP (weights sharded)", "eager", "600.0", "1.33"])
        self.programs.modes["eager"] = 0.1
        self.file.unlink()
        made = self.make([2], only="774M, batch 8.*(zero 3|DDP)", modes=[PLAIN])
        made.run_all()
        self.assertEqual(self.line(self.page(made), "GPT-2 774M, batch 8, 2 GPUs")[3], "PyTorch DDP")

    def test_llmq_runs_if_it_is_given(self) -> None:
        self.assertNotIn("llmq", " ".join(row.name for work in rows.works("cuda") for row in work.rows(1)))
        for batch, accumulate in ((16, 4), (32, 2)):  # llmq is fastest at 32
            (work,) = (work for work in rows.works("cuda", True) if work.name.endswith(f"1.5B, batch {batch} x {accumulate}"))
            self.assertIn(f"--grad-accum {accumulate}", " ".join(work.ddptrain_rows[0].flags))
            self.assertIn(f"--batch {batch} --accumulate {accumulate}", " ".join(work.peer_rows[0].flags))
        made = self.make([1], only="Qwen2.5-1.5B.*x 4", gpus=1, llmq=pathlib.Path("/x/train"))
        self.assertEqual(made.run_all(), [])
        self.assertEqual(self.programs.started.count("llmq Qwen2.5-1.5B"), 2)
        self.assertEqual(self.line(self.page(made), "Qwen2.5-1.5B, batch 16 x 4")[3:7], ["llmq", "", "320.0", "1.25"])

    def test_no_row_of_a_bf16_cnn_sums_in_fp32(self) -> None:
        """ddptrain refuses such a run: that model's kernels write bf16 gradients."""
        asked = [row.name for work in rows.works("cuda") if work.name.startswith("CNN") for row in work.ddptrain_rows]
        self.assertEqual([name for name in asked if "--comm-dtype fp32" in name], [])

    def test_a_mode_that_fails_is_not_chosen(self) -> None:
        self.programs.failing = {(GRAPHED, "bf16")}
        made = self.make([2])
        made.run_all()
        page = self.page(made)
        self.assertEqual(self.line(page, f"PyTorch DDP, bf16 gradients, {PLAIN}")[1], "360.0")
        self.assertRegex(page, rf"PyTorch DDP, bf16 gradients \| {re.escape(GRAPHED)} \| failed: .*no such capture")

    def test_a_row_that_cannot_run_is_named_with_its_reason(self) -> None:
        self.programs.failing = {(mode, "bf16") for mode in (GRAPHED, PLAIN, TUNED)}
        self.programs.says = "did not end within 90 s"
        made = self.make([2, 4])
        self.assertEqual(made.run_all(), [])
        two, _, four = self.page(made).partition("## CNN, batch 512, 4 GPUs")
        two = two.partition("## CNN, batch 512, 2 GPUs")[2]
        self.assertRegex(self.line(two, "PyTorch DDP, bf16")[1], "^not run: .*did not end within 90 s")
        self.assertEqual(self.line(two, "ddptrain --tune on")[1], "800.0")
        self.assertEqual(results_page.failed(made), 2)  # the trials of PyTorch on two ranks
        self.assertEqual(self.line(four, "ddptrain --tune on")[1], "not run: needs 4 GPUs, and there are 2")

    def test_without_pytorch_its_rows_are_named_and_nothing_of_it_is_tried(self) -> None:
        made = self.make([1, 2], has_pytorch=False)
        self.assertEqual(made.run_all(), [])
        self.assertEqual({started.split()[0] for started in self.programs.started}, {"ddptrain"})
        two = self.page(made).partition("## CNN, batch 512, 2 GPUs")[2]
        self.assertEqual(self.line(two, "PyTorch DDP, bf16 gradients")[1], "not run: python3 has no PyTorch")
        self.assertEqual({record["kind"] for record in made.records.all}, {"round"})

    def test_a_result_that_cannot_be_read_is_named(self) -> None:
        for said in ("{broken", "{}", '{"images_per_second": NaN, "measured_from": 0, "measured_until": 1}'):
            self.file.unlink(missing_ok=True)
            answer = self.programs.answer
            self.programs.answer = lambda command, name: answer(command, name) if "mpirun" in command else said
            made = self.make([1])
            self.assertEqual(made.run_all(), [])
            one = self.page(made).partition("## CNN, batch 512, 1 GPU")[2]
            self.assertRegex(self.line(one, "PyTorch")[1], "^not run: default: its result ")
            self.programs.answer = answer

    def test_a_program_that_fails_does_not_end_the_round_and_is_tried_twice(self) -> None:
        self.make([2]).run_all()
        self.file.write_text("".join(line for line in self.file.open() if '"kind": "trial"' in line))
        self.programs.failing = {(GRAPHED, "bf16")}
        made = self.make([2])
        self.assertEqual(made.run_all(), [])
        self.assertEqual(results_page.failed(made), 2)
        self.assertEqual(self.line(self.page(made), "CNN, batch 512, 2 GPUs | --tune on")[2:4], ["800.0", ""])
        self.programs.started.clear()
        self.assertEqual(self.make([2], repeats=3).run_all(), [])
        self.assertEqual(self.programs.started, ["ddptrain bf16 bf16"] * 2)  # without the row that has failed twice

    def test_goes_on_where_the_time_ended_it(self) -> None:
        first = self.make([2], seconds_left=100)  # enough for the trials
        left = first.run_all()
        self.assertEqual([type(unit) for unit in left], [session.Round] * 2)
        self.assertIn("not run: no time was left", self.page(first))
        done = len(self.programs.started)
        self.assertEqual(self.make([2]).run_all(), [])
        self.assertEqual(len(self.programs.started), done + 2 * 3)

    def test_a_round_that_time_ends_does_not_count(self) -> None:
        made = self.make([2])
        made.run_all()
        lines = len(made.records.all)
        with mock.patch.object(session, "run_program", mock.Mock(side_effect=programs.OutOfTime)):
            more = self.make([2], repeats=3)
            self.assertEqual(len(more.run_all()), 1)
        self.assertEqual(len(session.Records(self.file).all), lines)

    def test_a_file_that_was_cut_goes_on_and_another_one_is_refused(self) -> None:
        self.make([2]).run_all()
        text = self.file.read_text()
        self.file.write_text(text[:-20])
        self.programs.started.clear()
        self.assertEqual(self.make([2]).run_all(), [])
        self.assertEqual(len(self.programs.started), 3)
        self.assertEqual(len(self.lines("compared.jsonl")), len(text.splitlines()))
        self.file.write_text('{"a": 1}\n' + text)
        with self.assertRaisesRegex(UsageError, "line 1: it is not a file of benchmarks/compare"):
            self.make([2])
        first, last = (json.loads(text.splitlines()[line]) for line in (0, -1))
        for bad, named in ((first | {"ranks": "1"}, '"ranks"'), (first | {"mode": None}, '"mode"'), (first | {"result": {}}, "rate"),
                           (first | {"error": 1}, '"error"'), (last | {"runs": {}}, '"runs"'), (last | {"runs": [{}]}, '"row"'),
                           (last | {"machine": {}}, '"gpus"'), (last | {"kind": "other"}, '"kind"')):  # fmt: skip
            self.file.write_text(f"{json.dumps(bad)}\n{text}")
            with self.assertRaisesRegex(UsageError, f"line 1: it is not a file of benchmarks/compare: .*{named}"):
                self.make([2])
            self.assertIn(json.dumps(bad), self.file.read_text())
            self.file.write_text(f"{text}{json.dumps(bad)}\n")
            with self.assertRaisesRegex(UsageError, f"line {len(text.splitlines()) + 1}: .*{named}"):
                self.make([2])

    def test_rounds_of_another_commit_or_kind_of_gpu_do_not_count_and_trials_do(self) -> None:
        self.make([2]).run_all()
        self.programs.started.clear()
        other = self.make([2], commit="def", host="another")
        self.assertEqual(other.run_all(), [])
        self.assertEqual(len(self.programs.started), 2 * 3)
        self.assertIn("2 rounds of another commit, version, kind of device or duration", self.page(other))
        self.assertEqual(self.line(self.page(other), "CNN, batch 512, 2 GPUs")[11], "def")
        again = self.make([2], host="a third machine of the kind")
        self.assertEqual(again.run_all(), [])
        self.assertEqual(len(self.programs.started), 2 * 3)

    def test_rounds_of_a_mode_that_is_not_the_fastest_do_not_count(self) -> None:
        self.programs.modes["eager"] = 0.7
        self.make([1], modes=["eager"], repeats=1).run_all()
        made = self.make([1], modes=["eager", GRAPHED])
        self.assertIn("PyTorch, eager | 70", self.page(self.make([1], modes=["eager"])))
        self.assertNotIn("PyTorch, eager |", self.page(made))  # before the trials
        self.assertEqual(made.run_all(), [])
        row = self.line(self.page(made), "CNN, batch 512, 1 GPU | --tune on")
        self.assertEqual(row[3:7], ["PyTorch", GRAPHED, "100.0", "4.00"])
        _, _, one = self.page(made).partition("## CNN, batch 512, 1 GPU")
        self.assertEqual(self.line(one, f"PyTorch, {GRAPHED}")[1:3], ["100.0", "2"])
        self.assertIn("Failed: 0 of 8 runs", self.page(made))  # 2 rows of ddptrain in 3 rounds, PyTorch in 2

    def test_reasons_of_what_has_not_run(self) -> None:
        made = self.make([1], only="CNN, batch 512", modes=["no such mode"])
        made.run_all()
        told = self.line(self.page(made).partition("## CNN, batch 512, 1 GPU")[2], "PyTorch")[1]
        self.assertRegex(told, "^not run: none of --modes is among its modes .eager, ")
        self.file.unlink()
        made = self.make([1])
        with mock.patch.object(session, "run_program", mock.Mock(side_effect=KeyboardInterrupt)):
            self.assertRaises(KeyboardInterrupt, made.run_all)
        self.assertIn("not run: the measurement was interrupted", self.page(made))

    def test_the_page_says_what_holds_for_its_rows(self) -> None:
        alone = self.page(self.make([1], gpus=1))
        several = self.page(self.make([1], gpus=2, only="Qwen2.5-1.5B.*x 4", llmq=pathlib.Path("/x/train")))
        short = self.page(self.make([1], gpus=1, seconds=0.2))
        for words in ("beside each other", "llmq:", "FP8"):
            self.assertNotIn(words, alone)
            self.assertIn(words, several)
        self.assertIn("windows of a second", alone)
        self.assertNotIn("windows of a second", short)

    def test_efficiency_of_pytorch_is_over_its_row_on_one_rank(self) -> None:
        made = self.make([1, 2], only="774M, batch 8.*DDP", modes=[PLAIN])
        self.assertEqual(made.run_all(), [])
        two = self.page(made).partition("## GPT-2 774M, batch 8, 2 GPUs")[2]
        self.assertEqual(self.line(two, "PyTorch DDP, bf16 gradients")[4], "(100.0%)")

    def test_no_ratio_without_a_common_round(self) -> None:
        made = self.make([1])
        made.run_all()
        for record in made.records.all:
            if record["kind"] == "round" and record is not made.records.all[-1]:
                record["runs"] = [run for run in record["runs"] if run["row"].startswith("PyTorch")]
        made.records.all[-1]["runs"] = [run for run in made.records.all[-1]["runs"] if not run["row"].startswith("PyTorch")]
        self.assertNotIn("nan", self.page(made))

    def test_rounds_of_other_versions_or_nccl_variables_do_not_count(self) -> None:
        self.make([1], pytorch="2.1").run_all()
        for about, changes, count in (({"ddptrain": "0.2"}, {"pytorch": "2.1"}, 6),
                                      ({"nccl_environment": {"NCCL_ALGO": "Ring"}}, {"pytorch": "2.1"}, 6),
                                      ({}, {"pytorch": "2.2"}, 3 + 6)):  # fmt: skip
            self.programs.started.clear()
            other = self.make([1], about=about, **changes)
            self.assertEqual(other.run_all(), [])
            self.assertEqual(len(self.programs.started), count)
        self.assertIn("NCCL variables: none", self.page(other))
        driver = self.make([1], about={"driver": "2"}, repeats=3, pytorch="2.2")
        driver.run_all()
        page = self.page(driver)
        self.assertIn("2 x NVIDIA H200, driver 1; 2 x NVIDIA H200, driver 2", page)
        self.assertIn("driver 1; 8 x a CPU; a system / 2 x NVIDIA H200, driver 2; 8 x a CPU; a system;", page)

    def test_every_pytorch_of_the_rounds_that_count_is_named(self) -> None:
        made = self.make([1])
        made.run_all()
        peer = next(run for run in made.records.all[-1]["runs"] if run["row"].startswith("PyTorch"))
        peer["result"]["torch"] = "3"
        self.assertRegex(self.page(made), "PyTorch (2|3), CUDA 13, cuDNN 9, NCCL 2 / PyTorch (2|3), CUDA 13")

    def test_trials_that_failed_are_made_again_by_the_next_call(self) -> None:
        self.programs.failing = {(GRAPHED, "bf16")}
        self.make([2]).run_all()
        self.programs.started.clear()
        self.assertIn("no such capture", self.page(self.make([2])))  # what is known is told
        self.assertIn(f"PyTorch DDP, bf16 gradients, {PLAIN} |", self.page(self.make([2])))
        self.programs.failing = set()
        made = self.make([2])
        self.assertEqual(made.run_all(), [])
        self.assertEqual(self.programs.started[0], f"{GRAPHED} bf16")
        page = self.page(made)
        self.assertIn(f"PyTorch DDP, bf16 gradients, {GRAPHED} |", page)
        self.assertNotIn("no such capture", page)

    def test_trials_of_another_length_or_pytorch_do_not_count(self) -> None:
        self.make([1], pytorch="2.1").run_all()
        for changes in ({"trial_seconds": 5, "pytorch": "2.1"}, {"pytorch": "2.2"}):
            made = self.make([1], **changes)
            self.assertEqual(sum(isinstance(unit, session.Trial) for unit in made.left_over()), 3)
        self.assertEqual(self.make([1], pytorch="2.1").left_over(), [])

    def test_rounds_of_changed_files_count_only_in_their_session_and_are_marked(self) -> None:
        for commit, shown in (("0123456789-dirty", "01234567-dirty"), ("unknown", "unknown")):
            self.file.unlink(missing_ok=True)
            made = self.make([2], commit=commit)
            self.assertEqual(made.run_all(), [])
            self.assertEqual(self.line(self.page(made), "CNN, batch 512, 2 GPUs")[11], shown)
            self.programs.started.clear()
            again = self.make([2], commit=commit)
            self.assertIn(f"The commit is {shown}: rounds of earlier sessions do not count", self.page(again))
            self.assertEqual(again.run_all(), [])
            self.assertEqual(len(self.programs.started), 2 * 3)

    def test_several_ranks_run_in_no_mode_if_all_failed_on_one_rank(self) -> None:
        self.programs.answer = mock.Mock(side_effect=programs.RunFailed("out of memory"))
        made = self.make([1, 2])
        self.assertEqual(made.run_all(), [])
        self.assertEqual([s for s in self.programs.started if s.endswith("bf16") and s[:8] != "ddptrain"], [])
        two = self.page(made).partition("## CNN, batch 512, 2 GPUs")[2]
        self.assertRegex(self.line(two, "PyTorch DDP, bf16 gradients")[1], "^not run: default: out of memory")
        self.assertGreater(results_page.failed(made), 0)

    def test_rows_of_different_days_are_told(self) -> None:
        made = self.make([2])
        made.run_all()
        self.assertNotIn("different days", self.page(made))
        made.records.all[-1]["began"] = "2001-01-01T00:00:00+00:00"
        page = self.page(made)
        self.assertIn("README takes rows of one day", page)
        self.assertRegex(self.line(page, "CNN, batch 512, 2 GPUs")[12], "^2001-01-01 to 20")

    def test_plan(self) -> None:
        made = self.make([2], repeats=3, only="GPT-2 124M, 2 GPUs: ddptrain")
        text = results_page.plan_text(made)
        self.assertRegex(text, r"0 trials and 3 rounds, about 624 s \(10 minutes\) in all")  # 2 x (60 + 2 + 20 + 22 s)
        made.run_all()
        self.assertEqual(self.make([2], repeats=3, only="GPT-2 124M, 2 GPUs: ddptrain").left_over(), [])

    def test_reason_is_the_line_that_names_the_error(self) -> None:
        text = "Traceback\n  File x\nRuntimeError: CUDA error: graph\nE1122 ===\nRoot Cause\n====\n"
        self.assertEqual(programs.reason(text), "RuntimeError: CUDA error: graph")
        self.assertEqual(programs.reason(""), "no message")
        line = "-" * 70
        self.assertEqual(programs.reason(f"the words\n{line}\nmpirun noticed that rank 0 exited\n{line}\n"), "the words")
        self.assertRegex(programs.reason(f"{line}\nmpirun noticed that rank 0 exited\n{line}\n"), "^mpirun noticed")


class LlmqTest(FolderCase):
    TRAIN = """#!/usr/bin/env python3
import sys, time
flags = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[1:])
assert open(flags["train-file"], "rb").read(8) == b"BIN.TOK\\n"
if flags["model"] == "broken":
    sys.exit("no such model")
with open(flags["log-file"], "w") as log:
    log.write("[\\n")
    for step in range(1000000):
        log.write('  {"log": "step", "step": %d, "step_tokens": 1000, "duration_ms": %d},\\n' % (step, 900 if step < 3 else 250))
        log.flush()
        time.sleep(0.01)
"""

    def test_the_steps_after_the_warm_up_count(self) -> None:
        train = write_program(self.folder / "train", self.TRAIN)
        command = [sys.executable, ROOT / "benchmarks" / "peers" / "llmq.py", train, "--batch", "1", "--seconds", "0.5"]
        with mock.patch.dict(os.environ, {"TMPDIR": str(self.folder)}):
            result = programs.last_json(run([*command, "--model", "Qwen2.5-0.5B"]).stdout)
            self.assertEqual((result["tokens_per_second"], result["tokens_per_second_min"]), (4000.0, 4000.0))
            done = run([*command, "--model", "broken"], 1)
        self.assertIn("LlmqError: it ended by itself with code 1: no such model", done.stderr)


class CommandLineTest(FolderCase):
    def run_it(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return run([sys.executable, ROOT / "benchmarks" / "compare", *arguments], code)

    def test_plan_and_bad_input_start_nothing(self) -> None:
        done = self.run_it("--plan", "--all", "--ranks", "2", "--bin", "nowhere", "--out", "/nowhere/compared.jsonl")
        for expected in ("CNN, batch 512", "CNN, batch 8192", "GPT-2 124M", "--fused off", "--comm-dtype fp32", "in all"):
            self.assertIn(expected, done.stdout)
        for arguments in (["--only", "("], ["--only", "no such row"], ["--seconds", "0"], ["--out", "page.md"],
                          ["--seconds", "nan"], ["--llmq", "/nowhere/train"], ["--seconds-left", "nan"]):  # fmt: skip
            done = self.run_it("--device", "cpu", *arguments, code=2)
            self.assertRegex(done.stderr, rf"compare: {arguments[0]}")
        with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": ""}):
            self.assertRegex(self.run_it(code=2).stderr, "compare: --device cuda: nvidia-smi names no GPU")

    def test_a_signal_ends_the_programs_and_leaves_a_page(self) -> None:
        text = f'#!/bin/sh\n[ "$1" = --version ] && exit\necho $$ > {self.folder}/started\nexec sleep 1000\n'
        program = write_program(self.folder / "bin" / "ddptrain", text)
        os.utime(program, (0, 0))
        out = self.folder / "compared.jsonl"
        command = [sys.executable, ROOT / "benchmarks" / "compare", "--device", "cpu", "--ranks", "1", "--bin", program.parent,
                   "--commit", "abc", "--out", out]  # fmt: skip
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            (self.folder / "started").unlink(missing_ok=True)
            out.with_suffix(".md").unlink(missing_ok=True)
            with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                wait_for((self.folder / "started").exists, "ddptrain starts", PATIENCE)
                process.send_signal(number)
                _, said = process.communicate(timeout=PATIENCE)
            self.assertEqual(process.returncode, code, said)
            self.assertNotIn("Traceback", said)
            self.assertEqual("ddptrain is older than the commit" in said, session.commit_of(ROOT) != "unknown")
            self.assertIn("not run: the measurement was interrupted", out.with_suffix(".md").read_text(encoding="utf-8"))

    def test_short_form_runs_on_the_cpu_and_goes_on(self) -> None:
        out = self.folder / "compared.jsonl"
        command = ["--device", "cpu", "--short", "--ranks", "1", "1", "2", "--bin", str(BIN), "--commit", "abc", "--out", str(out)]
        page = self.run_it(*command).stdout
        self.assertEqual(out.with_suffix(".md").read_text(encoding="utf-8") + "\n", page)
        for ranks, row in (("1 CPU rank", "CNN"), ("1 CPU rank", "GPT, loss"), ("2 CPU ranks", "CNN")):
            self.assertRegex(page, rf"\n## {row}[^\n]*, {ranks}\n")
        self.assertNotIn("not run", page)
        self.assertEqual([record["commit"] for record in self.lines("compared.jsonl")], ["abc"] * 3)
        self.assertNotIn("+ mpirun", self.run_it(*command).stderr)


class CommitTest(FolderCase):
    def test_files_that_differ_are_told(self) -> None:
        self.assertEqual(session.commit_of(self.folder), "unknown")
        git = ["git", "-C", self.folder, "-c", "user.name=a", "-c", "user.email=a@b"]
        (self.folder / "file").write_text("as committed")
        for words in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "first"]):
            run([*git, *words])
        commit = run([*git, "rev-parse", "HEAD"]).stdout.strip()
        self.assertEqual(session.commit_of(self.folder), commit)
        (self.folder / "file").write_text("changed")
        self.assertEqual(session.commit_of(self.folder), f"{commit}-dirty")


def python_with_torch() -> str | None:
    for candidate in (os.environ.get("DDPTRAIN_TORCH_PYTHON"), sys.executable, shutil.which("python3")):
        if candidate and subprocess.run([candidate, "-c", "import torch"], capture_output=True).returncode == 0:
            return candidate
    return None


class PeersTest(unittest.TestCase):
    python: str | None = None

    @classmethod
    def setUpClass(cls) -> None:
        cls.python = python_with_torch()
        if cls.python is None:
            raise unittest.SkipTest("there is no PyTorch")

    def peer(self, ranks: int, gradients: str, work: rows.Work) -> dict[str, object]:
        command = rows.peer_command(self.python or "", work, rows.Row(rows.PYTORCH, gradients), "eager", ranks, 0.01)
        one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
        return programs.last_json(run([*command, "--warmup", "2"], cwd=ROOT, env=one_thread).stdout)

    def test_both_train_on_the_cpu(self) -> None:
        cnn = rows.cnn("cpu", 8, 512, (), steps=1)
        shape = "--device cpu --precision fp32 --batch 2 --seq 8 --layers 1 --width 16 --heads 2 --ff 32 --vocab 64"
        gpt = rows.Work("GPT", "tokens", "cpu", (), "benchmarks/peers/torch_ddp_gpt.py", tuple(shape.split()), ())
        llama = dataclasses.replace(gpt, name="Llama", peer="benchmarks/peers/torch_ddp_llama.py",
                                    peer_flags=(*gpt.peer_flags, "--key-heads", "1"))  # fmt: skip
        for ranks, gradients, work in ((1, "fp32", cnn), (2, "bf16", cnn), (2, "fp32", gpt), (1, "fp32", llama)):
            result = self.peer(ranks, gradients, work)
            self.assertEqual((result["world_size"], result["gradients"]), (ranks, gradients))
            self.assertGreater(result[f"{work.unit}_per_second"], 0)
            self.assertGreaterEqual(result["windows"], 3)
            self.assertLess(result["measured_from"], result["measured_until"])
            self.assertTrue(math.isfinite(result["loss"]))
