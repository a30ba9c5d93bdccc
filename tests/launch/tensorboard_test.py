"""What launch/tensorboard-events writes, read back by TensorBoard itself."""

import os
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.tools.support import FolderCase, run  # noqa: E402

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    EventAccumulator = None

DDPTRAIN = os.environ["DDPTRAIN"]
MLP = ["--model", "mlp", "--hidden", "16", "--data", "synthetic:320", "--batch", "16", "--log-every", "5"]
PROGRAM = [sys.executable, str(ROOT / "launch" / "tensorboard-events")]


class TensorBoardTest(FolderCase):
    def train(self, *flags: str, expect: int = 0) -> None:
        run([DDPTRAIN, "--device", "cpu", "--baseline", "off", *MLP, *flags, "--metrics", "m.jsonl"], expect, cwd=self.folder)

    def curve(self, tag: str) -> dict[int, float]:
        """By step, of the events that are written now."""
        run([*PROGRAM, "m.jsonl"], cwd=self.folder)
        board = EventAccumulator(str(self.folder / "board" / "m"), {"tensors": 0})  # 0: no sampling
        board.Reload()
        tensors = board.Tensors(tag)
        self.assertEqual(len({event.step for event in tensors}), len(tensors), "a step is there twice")
        return {event.step: event.tensor_proto.float_val[0] for event in tensors}

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
