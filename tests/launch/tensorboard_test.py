"""What launch/tensorboard-events writes, read back by TensorBoard itself."""

import json
import logging
import os
import pathlib
import signal
import subprocess
import sys
import unittest
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.tools.support import FolderCase, run, wait_for  # noqa: E402

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    EventAccumulator = None

logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it tells whenever it drops what a resumed run does again
DDPTRAIN = os.environ["DDPTRAIN"]
MLP = ["--model", "mlp", "--hidden", "16", "--data", "synthetic:320", "--batch", "16", "--log-every", "5"]
PROGRAM = [sys.executable, str(ROOT / "launch" / "tensorboard-events")]


class TensorBoardTest(FolderCase):
    def train(self, *flags: str, expect: int = 0) -> None:
        run([DDPTRAIN, "--device", "cpu", "--baseline", "off", *MLP, *flags, "--metrics", "m.jsonl"], expect, cwd=self.folder)

    def curve(self, tag: str) -> dict[int, float]:
        """By step, of the events that are written now."""
        run([*PROGRAM, "m.jsonl"], cwd=self.folder)
        return self.read(tag)

    def read(self, tag: str) -> dict[int, float]:
        """By step, as any version of TensorBoard reads scalars; empty where there are none."""
        board = EventAccumulator(str(self.folder / "board" / "m"), {"scalars": 0})  # 0: no sampling
        board.Reload()
        scalars = board.Scalars(tag) if tag in board.Tags()["scalars"] else []
        self.assertEqual(len({event.step for event in scalars}), len(scalars), "a step is there twice")
        return {event.step: event.value for event in scalars}

    @unittest.skipIf(EventAccumulator is None, "needs the package tensorboard")
    def test_tensorboard_reads_what_metrics_say(self) -> None:
        self.train("--epochs", "2")
        fields = {"train/loss": "loss", "train/images_per_second": "images_per_second", "epoch/loss": "loss",
                  "test/test_loss": "test_loss", "test/accuracy": "accuracy"}  # fmt: skip
        for tag, field in fields.items():
            event = "step" if tag.startswith("train/") else "epoch"
            said = {line["step"]: line[field] for line in self.lines("m.jsonl") if line["event"] == event}
            read = self.curve(tag)
            self.assertEqual(list(read), list(said))
            for step, value in said.items():
                self.assertAlmostEqual(read[step] / value, 1.0, places=6)

    @unittest.skipIf(EventAccumulator is None, "needs the package tensorboard")
    def test_steps_that_a_resumed_run_does_again_are_there_once(self) -> None:
        saving = ["--epochs", "3", "--checkpoint", "c", "--checkpoint-every", "12"]
        self.train(*saving, "--fail-at", "0:39", expect=1)
        self.assertEqual(list(self.curve("train/loss")), list(range(5, 36, 5)))
        self.train(*saving, "--resume", "auto")
        self.assertEqual(list(self.curve("train/loss")), list(range(5, 61, 5)))

    @unittest.skipIf(EventAccumulator is None, "needs the package tensorboard")
    def test_a_run_is_followed(self) -> None:
        def line(event: str, **fields: Any) -> str:
            return json.dumps({"event": event} | fields) + "\n"

        def steps(*numbers: int) -> str:
            return "".join(line("step", step=number, loss=1.0 / number) for number in numbers)

        def wait_for_steps(*numbers: int) -> None:
            wait_for(lambda: list(self.read("train/loss")) == list(numbers), running=lambda: following.poll() is None)

        file, board = self.folder / "m.jsonl", self.folder / "board" / "m"
        following = subprocess.Popen([*PROGRAM, "m.jsonl", "--follow"], cwd=self.folder)
        self.addCleanup(following.wait)
        self.addCleanup(following.kill)
        wait_for(lambda: any(board.glob("events.*")))  # the run has no file yet
        with file.open("a") as log:
            log.write(line("start") + steps(10, 20))
            log.flush()
            wait_for_steps(10, 20)
            log.write(steps(30) + line("start") + line("restart", step=15) + steps(18))
            log.flush()
            wait_for_steps(10, 18)
        file.write_text(line("start") + steps(5))  # another run
        wait_for_steps(5)
        self.assertEqual(len(list(board.glob("events.*"))), 1)  # TensorBoard reads on in the same file
        with file.open("a") as log:
            log.write(steps(8) + line("summary"))
        self.assertEqual(following.wait(), 0)
        self.assertEqual(list(self.read("train/loss")), [5, 8])

    @unittest.skipIf(EventAccumulator is None, "needs the package tensorboard")
    def test_following_ends_with_an_interrupt(self) -> None:
        following = subprocess.Popen([*PROGRAM, "m.jsonl", "--follow"], cwd=self.folder)
        self.addCleanup(following.kill)
        wait_for(lambda: any((self.folder / "board" / "m").glob("events.*")))
        following.send_signal(signal.SIGINT)
        self.assertEqual(following.wait(), 0)

    @unittest.skipIf(EventAccumulator is None, "needs the package tensorboard")
    def test_all_events_are_in_the_folder(self) -> None:
        self.train("--epochs", "1")
        for name in ("here", "here/_"):
            (self.folder / name).mkdir()
            (self.folder / name / "m.jsonl").write_bytes((self.folder / "m.jsonl").read_bytes())
        run([*PROGRAM, "m.jsonl", "../m.jsonl"], cwd=self.folder / "here")
        folders = {path.parent.relative_to(self.folder) for path in self.folder.rglob("events.out.tfevents.*")}
        self.assertEqual({str(folder) for folder in folders}, {"here/board/m", "here/board/_/m"})
        told = run([*PROGRAM, "_/m.jsonl", "../m.jsonl"], 2, cwd=self.folder / "here").stderr
        self.assertIn("_/m, _/m: two runs would be one folder", told)
        absolute = self.folder / "m.jsonl"
        run([*PROGRAM, absolute, str(absolute)[1:], "--out", self.folder / "board"], 2, cwd="/")
        self.assertEqual(len(list(self.folder.rglob("events.out.tfevents.*"))), 2)

    def test_other_files_are_refused(self) -> None:
        (self.folder / "m.jsonl").write_text("{}\n")
        for name in ("m.jsonl", "none.jsonl"):
            told = run([*PROGRAM, name], 2, cwd=self.folder).stderr
            self.assertEqual(told, f"tensorboard-events: {name}: no file of ddptrain --metrics\n")


if __name__ == "__main__":
    sys.exit(unittest.main())
