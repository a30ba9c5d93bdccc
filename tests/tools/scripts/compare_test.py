"""benchmarks/compare: what it runs and in which order, how it chooses, and what its page says; the PyTorch peers on the CPU
where there is PyTorch."""

import dataclasses
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest
from unittest import mock

from tests.tools.support import ROOT, FolderCase, run

sys.path.insert(0, str(ROOT / "benchmarks"))

from ddptools.common.errors import UsageError
from ddptools.page.render import to_markdown
from ddptools.sweep.machine import Machine
from peers import results_page, rows, session

GRAPHED, PLAIN, TUNED = "default+graph", "default", "max-autotune"


def flag(command: list[str], name: str) -> str:
    return command[command.index(name) + 1] if name in command else ""


class FakePrograms:
    """In place of session.run_program: rates that are known, and what was started."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.failing: set[tuple[str, str]] = set()  # mode, gradients
        self.modes = {GRAPHED: 1.0, PLAIN: 0.9, TUNED: 0.8}

    def __call__(self, command: list[str], environment: dict[str, str], timeout_seconds: float) -> str:
        if "mpirun" in command:
            ranks, dtype = int(flag(command, "-np")), flag(command, "--comm-dtype") or "bf16"
            self.started.append(f"ddptrain {dtype}")
            rate = {"bf16": 400.0, "fp32": 300.0}[dtype] * ranks
            summary = {"images_per_second": rate, "tokens_per_second": rate, "gpus": None}
            pathlib.Path(flag(command, "--metrics")).write_text(json.dumps(summary), encoding="utf-8")
            return ""
        mode, dtype = flag(command, "--mode"), flag(command, "--gradients")
        ranks = int(flag(command, "--nproc_per_node") or 1)
        self.started.append(f"{mode} {dtype}")
        if (mode, dtype) in self.failing and ranks > 1:
            raise session.RunFailed("exit code 1: RuntimeError: no such capture")
        rate = {"bf16": 200.0, "fp32": 100.0}[dtype] * ranks * self.modes[mode]
        return "some line\n" + json.dumps({"images_per_second": rate, "tokens_per_second": rate, "measured_from": 0,
                                           "measured_until": 1, "torch": "2", "cuda": "13", "cudnn": 9, "nccl": "2"})  # fmt: skip


class CompareTest(FolderCase):
    def setUp(self) -> None:
        super().setUp()
        self.file, self.programs = self.folder / "compared.json", FakePrograms()
        self.enterContext(mock.patch.object(session, "run_program", self.programs))

    def make(self, ranks: list[int], only: str = "batch 512", gpus: int = 2, **changes: object) -> session.Session:
        settings = {"device": "cuda", "ranks": ranks, "seconds": 60, "trial_seconds": 3, "repeats": 2, "only": only,
                    "modes": [PLAIN, GRAPHED, TUNED], "time_limit_seconds": math.inf, "bin": pathlib.Path("bin"),
                    "python": "python3"} | changes  # fmt: skip
        machine = Machine("a CPU", 8, "a system", ["NVIDIA H200"] * gpus, list("0123456789"[:gpus]))
        about = machine.describe() | {"driver": "1", "ddptrain": "0.1", "commit": "abc", "nccl_environment": {}}
        document = session.load(self.file, {"machine": about, "seconds": settings["seconds"]})
        return session.Session(session.Settings(**settings), machine, self.file, document)

    def page(self, made: session.Session) -> str:
        return to_markdown(results_page.title(made.document), results_page.blocks(made))

    def line(self, page: str, begin: str) -> list[str]:
        found = next(line for line in page.splitlines() if line.startswith(f"| {begin}"))
        return [cell.strip() for cell in found.strip("|").split("|")]

    def test_rows_run_in_turn_after_the_trials(self) -> None:
        made = self.make([2])
        self.assertEqual(made.run_all(), [])
        self.assertEqual(sorted(self.programs.started[:3]), sorted([f"{m} fp32" for m in (PLAIN, GRAPHED, TUNED)]))
        fastest = [f"{mode} {dtype}" for dtype in ("bf16", "fp32") for mode in (GRAPHED, PLAIN)]  # on two ranks: two
        self.assertEqual(self.programs.started[3:7], fastest)
        turn = ["ddptrain bf16", "ddptrain bf16", "ddptrain bf16", f"{GRAPHED} bf16", f"{GRAPHED} fp32"]
        self.assertEqual(self.programs.started[7:], turn + turn)

    def test_ratios_are_of_gradients_of_one_type(self) -> None:
        made = self.make([1, 2], only="GPT-2")
        made.run_all()
        two = self.page(made).partition("## GPT-2 124M, 2 GPUs")[2]
        self.assertEqual(self.line(two, "ddptrain --tune on |")[1:5], ["800.0", "2", "2.00", "100.0%"])
        self.assertEqual(self.line(two, "ddptrain --tune on --comm-dtype fp32")[3], "3.00")
        self.assertEqual(self.line(two, f"PyTorch DDP, bf16 gradients, {GRAPHED}")[1:4], ["400.0", "2", ""])
        one = self.page(made).partition("## GPT-2 124M, 1 GPU")[2]
        self.assertEqual(self.line(one, "ddptrain --tune on |")[3], "4.00")  # one rank: PyTorch has one row

    def test_no_row_of_a_bf16_cnn_sums_in_fp32(self) -> None:
        """ddptrain refuses such a run: that model's kernels write bf16 gradients."""
        asked = [row.name for work in rows.works("cuda") if work.name.startswith("CNN") for row in work.ddptrain_rows]
        self.assertEqual([name for name in asked if "--comm-dtype fp32" in name], [])

    def test_a_mode_that_fails_is_not_chosen(self) -> None:
        self.programs.failing = {(GRAPHED, "bf16"), (GRAPHED, "fp32")}
        made = self.make([2])
        made.run_all()
        page = self.page(made)
        self.assertEqual(self.line(page, f"PyTorch DDP, bf16 gradients, {PLAIN}")[1], "360.0")
        self.assertRegex(page, rf"PyTorch DDP, bf16 gradients \| {re.escape(GRAPHED)} \| failed: .*no such capture")

    def test_a_row_that_cannot_run_is_named_with_its_reason(self) -> None:
        self.programs.failing = {(mode, "bf16") for mode in (GRAPHED, PLAIN, TUNED)}
        made = self.make([2, 4])
        self.assertEqual(made.run_all(), [])
        two, _, four = self.page(made).partition("## CNN, batch 512, 4 GPUs")
        self.assertRegex(self.line(two, "PyTorch DDP, bf16")[1], "^not run: .*RuntimeError: no such capture")
        self.assertEqual(self.line(two, f"PyTorch DDP, fp32 gradients, {GRAPHED}")[2], "2")
        self.assertEqual(self.line(four, "ddptrain --tune on")[1], "not run: needs 4 GPUs, and there are 2")

    def test_goes_on_where_the_time_limit_ended_it(self) -> None:
        first = self.make([2], time_limit_seconds=80)  # the trials and ddptrain's runs, not PyTorch's, take 60 s + start
        left = first.run_all()
        self.assertGreater(len(left), 0)
        self.assertIn("not run: no time was left", self.page(first))
        done = len(self.programs.started)
        self.assertEqual(self.make([2]).run_all(), [])
        self.assertEqual(len(self.programs.started), done + len(left))
        self.assertEqual(len(set(json.dumps(run.key()) for run in left)), len(left))

    def test_a_failed_run_is_made_again_and_a_failed_trial_is_not(self) -> None:
        self.programs.failing = {(PLAIN, "bf16")}
        made = self.make([2])
        made.run_all()
        made.document["runs"][-1]["error"] = made.document["runs"][-1].pop("result") and "killed"
        session.save(self.file, made.document)
        self.programs.started.clear()
        self.make([2]).run_all()
        self.assertEqual(self.programs.started, [f"{GRAPHED} fp32"])

    def test_does_not_mix_machines(self) -> None:
        self.make([2]).run_all()
        with self.assertRaisesRegex(UsageError, "machine"):
            self.make([2], gpus=4)

    def test_plan(self) -> None:
        made = self.make([2], repeats=3, only="GPT-2.*ddptrain")
        text = results_page.plan_text(made, made.pending())
        self.assertRegex(text, r"9 runs, about 738 s \(12 minutes\) in all")  # 60 s, 2 s of warm-up, 20 s of start
        self.assertEqual(text.count("GPT-2 124M, 2 GPUs: ddptrain"), 9)
        made.run_all()
        self.assertEqual(self.make([2], repeats=3, only="GPT-2.*ddptrain").pending(), [])

    def test_reason_is_the_line_that_names_the_error(self) -> None:
        text = "Traceback\n  File x\nRuntimeError: CUDA error: graph\nE1122 ===\nRoot Cause\n====\n"
        self.assertEqual(session.reason(text), "RuntimeError: CUDA error: graph")
        self.assertEqual(session.reason(""), "no message")


class SensorsTest(unittest.TestCase):
    def test_sensors(self) -> None:
        lines = ["2026/11/22 10:00:00.000, 0, 345, 80.1, 30", "2026/11/22 10:00:10.250, 0, 1500, 690.5, 60",
                 "2026/11/22 10:00:10.250, 1, 1600, 700.5, 65", "2026/11/22 10:00:11.0, 0, [N/A], 1, 1", "2026/1"]  # fmt: skip
        readings = session.parse_readings("\n".join(lines))
        self.assertEqual(len(readings), 3)
        found = session.summarize(readings, readings[1][0] - 1, readings[1][0] + 1)
        self.assertEqual(found, {"sm_mhz": 1550, "sm_mhz_min": 1500, "watts": 695.5, "celsius_max": 65, "readings": 2})
        self.assertIsNone(session.summarize(readings, 0, 1))
        gpu = {"readings": 5, "sm_mhz": 1900.0, "sm_mhz_min": 1700, "watts": 400.0, "celsius_max": 50}
        found = session.own_sensors({"gpus": [gpu, gpu | {"sm_mhz": 1800.0, "sm_mhz_min": 1650}]})
        self.assertEqual((found["sm_mhz"], found["sm_mhz_min"], found["readings"]), (1850.0, 1650, 10))
        self.assertIsNone(session.own_sensors({"gpus": None}))


class CommandLineTest(unittest.TestCase):
    def run_it(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return run([sys.executable, ROOT / "benchmarks" / "compare", *arguments], code)

    def test_plan_and_bad_input_start_nothing(self) -> None:
        done = self.run_it("--plan", "--ranks", "2", "--bin", "nowhere", "--out", "/nowhere/compared.json")
        for expected in ("CNN, batch 512", "CNN, batch 8192", "GPT-2 124M", "--fused off", "--comm-dtype fp32", "in all"):
            self.assertIn(expected, done.stdout)
        for arguments in (["--only", "("], ["--only", "no such row"], ["--seconds", "0"], ["--out", "page.md"]):
            done = self.run_it("--device", "cpu", *arguments, code=2)
            self.assertRegex(done.stderr, rf"compare: {arguments[0]}")


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
        command = rows.peer_command(self.python or "", work, gradients, "eager", ranks, 0.01)
        one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
        return session.last_json(run([*command, "--warmup", "2"], cwd=ROOT, env=one_thread).stdout)

    def test_both_train_on_the_cpu(self) -> None:
        cnn = rows.cnn("cpu", 8, 512, ("",), steps=1)
        shape = "--device cpu --precision fp32 --batch 2 --seq 8 --layers 1 --width 16 --heads 2 --ff 32 --vocab 64"
        gpt = rows.Work("GPT", "tokens", "cpu", (), "benchmarks/peers/torch_ddp_gpt.py", tuple(shape.split()), (), 0, 0, 0)
        llama = dataclasses.replace(gpt, name="Llama", peer="benchmarks/peers/torch_ddp_llama.py",
                                    peer_flags=(*gpt.peer_flags, "--key-heads", "1"))  # fmt: skip
        for ranks, gradients, work in ((1, "fp32", cnn), (2, "bf16", cnn), (2, "fp32", gpt), (1, "fp32", llama)):
            result = self.peer(ranks, gradients, work)
            self.assertEqual((result["world_size"], result["gradients"]), (ranks, gradients))
            self.assertGreater(result[f"{work.unit}_per_second"], 0)
            self.assertGreaterEqual(result["windows"], 3)
            self.assertLess(result["measured_from"], result["measured_until"])
            self.assertTrue(math.isfinite(result["loss"]))
