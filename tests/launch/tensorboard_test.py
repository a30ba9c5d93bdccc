"""What ddptrain --tensorboard writes, read back by the format's description and by TensorBoard itself."""

import os
import pathlib
import struct
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.tools.support import FolderCase, run  # noqa: E402

try:
    from tensorboard.backend.event_processing import event_accumulator
except ImportError:
    event_accumulator = None

DDPTRAIN = os.environ["DDPTRAIN"]
MLP = ["--model", "mlp", "--hidden", "16", "--data", "synthetic:320", "--batch", "16", "--log-every", "5"]
GPT = ["--model", "gpt", "--layers", "1", "--width", "16", "--heads", "2", "--ff", "32", "--seq", "16", "--batch", "4"]


def masked_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(path: pathlib.Path) -> list[bytes]:
    data, found, at = path.read_bytes(), [], 0
    while at < len(data):
        (length, crc), event = struct.unpack_from("<QI", data, at), data[at + 12 :]
        assert crc == masked_crc32c(data[at : at + 8]), "CRC of a length"
        assert struct.unpack_from("<I", event, length)[0] == masked_crc32c(event[:length]), "CRC of an event"
        found.append(event[:length])
        at += 12 + length + 4
    return found


class TensorBoardTest(FolderCase):
    def train(self, *flags: str, expect: int = 0) -> str:
        command = [DDPTRAIN, "--device", "cpu", "--baseline", "off", *flags, "--metrics", "m.jsonl"]
        return run(command, expect, cwd=self.folder, errors="replace").stderr

    def told(self, event: str) -> list[dict]:
        return [line for line in self.lines("m.jsonl") if line["event"] == event]

    def accumulated(self):
        accumulator = event_accumulator.EventAccumulator(str(self.folder / "t"))
        accumulator.Reload()
        return accumulator

    def text(self, accumulator, tag: str) -> str:
        return accumulator.Tensors(tag)[-1].tensor_proto.string_val[0].decode()

    def test_records_have_the_documented_form(self) -> None:
        self.assertEqual(masked_crc32c(b"123456789"), ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF)
        self.train(*MLP, "--epochs", "2", "--tensorboard", "t")
        (path,) = (self.folder / "t").iterdir()
        self.assertTrue(path.name.startswith("events.out.tfevents."))
        events = records(path)
        self.assertIn(b"brain.Event:2", events[0])
        scalars = len(self.told("step")) + len(self.told("epoch"))
        self.assertGreater(len(events), 4 * scalars)

    @unittest.skipIf(event_accumulator is None, "needs the package tensorboard")
    def test_tensorboard_reads_what_metrics_say(self) -> None:
        self.train(*MLP, "--epochs", "2", "--tensorboard", "t")
        board, steps, epochs = self.accumulated(), self.told("step"), self.told("epoch")
        names = {"train/loss": "loss", "train/learning_rate": "learning_rate", "train/gradient_norm": "gradient_norm"}
        names |= {"speed/images_per_second": "images_per_second", "speed/step_seconds": "step_seconds"}
        self.assertEqual([line["step"] for line in steps], list(range(5, 41, 5)))
        for tag, field in names.items():
            read = [(event.step, event.value) for event in board.Scalars(tag)]
            self.assertEqual([step for step, _ in read], [line["step"] for line in steps])
            for (_, value), line in zip(read, steps):
                self.assertAlmostEqual(value / line[field], 1.0, places=6)
        for tag, field in {"epoch/mean_loss": "loss", "test/loss": "test_loss", "test/accuracy": "accuracy"}.items():
            read = {event.step: event.value for event in board.Scalars(tag)}
            for line in epochs:
                self.assertAlmostEqual(read[line["step"]], line[field], places=6)
        configuration = self.text(board, "configuration")
        self.assertIn("| --batch | `16` |", configuration)
        self.assertEqual(board.SummaryMetadata("configuration").plugin_data.plugin_name, "text")

    @unittest.skipIf(event_accumulator is None, "needs the package tensorboard")
    def test_tensorboard_reads_the_perplexity_of_text_of_any_name(self) -> None:
        name = os.fsdecode(b"a|`b\xff")
        (self.folder / name).write_bytes(bytes(range(1, 256)) * 20)
        self.train(*GPT, "--data", name, "--steps", "4", "--tensorboard", "t")
        board = self.accumulated()
        self.assertIn(r'"a|`b\u00FF"', self.text(board, "configuration"))
        (epoch,) = self.told("epoch")
        self.assertAlmostEqual(board.Scalars("test/perplexity")[-1].value / epoch["perplexity"], 1.0, places=5)

    @unittest.skipIf(event_accumulator is None, "needs the package tensorboard")
    def test_a_resumed_run_takes_the_place_of_what_it_does_again(self) -> None:
        saving = [*MLP, "--epochs", "3", "--tensorboard", "t", "--checkpoint", "c", "--checkpoint-every", "12"]
        self.train(*saving, "--fail-at", "0:39", expect=1)
        self.train(*saving, "--resume", "auto")
        self.assertEqual(len(list((self.folder / "t").iterdir())), 2)
        steps = [event.step for event in self.accumulated().Scalars("train/loss")]
        self.assertEqual(steps, list(range(5, 61, 5)))

    def test_a_folder_that_cannot_be_written_is_named(self) -> None:
        told = self.train(*MLP, "--tensorboard", "/proc/none", expect=2)
        self.assertIn("ddptrain: --tensorboard /proc/none: ", told)


if __name__ == "__main__":
    sys.exit(unittest.main())
