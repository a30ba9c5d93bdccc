#!/usr/bin/env python3
"""Does PyTorch load what ddptrain --save writes of the CNN, and get the same accuracy and loss?

ddptrain trains and saves the CNN and evaluates what it saved; a module of PyTorch loads the file strictly and is tested
on the same images. Exit code 77 where torch is missing.
"""

import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import torch
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


class Cnn(torch.nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = torch.nn.Conv2d(1, 32, 3), torch.nn.Conv2d(32, 64, 3)
        self.fc1, self.fc2 = torch.nn.Linear(64 * 12 * 12, 128), torch.nn.Linear(128, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv2(torch.relu(self.conv1(images))))
        return self.fc2(torch.relu(self.fc1(torch.flatten(torch.max_pool2d(x, 2), 1))))


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        values = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32)
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def write_images(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """An IDX data set of noisy stripes; returns what is for testing."""
    generator = torch.Generator().manual_seed(3)
    for part, count in (("train", 2000), ("t10k", 500)):
        labels = torch.randint(0, 7, (count,), generator=generator)
        rows = torch.arange(28).reshape(1, 28, 1) * (labels.reshape(-1, 1, 1) + 1) * 9 % 256
        noise = torch.randint(0, 256, (count, 28, 28), generator=generator)
        images = ((rows + 2 * noise) // 3).to(torch.uint8)
        header = struct.pack(">4I", 0x0803, count, 28, 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + images.numpy().tobytes())
        header = struct.pack(">2I", 0x0801, count)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(header + labels.to(torch.uint8).numpy().tobytes())
    return images, labels


def main(program: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images, labels = write_images(folder)
        common = [program, "--device", "cpu", "--data", name]
        training = ["--epochs", "1", "--batch", "50", "--baseline", "off", "--save", f"{name}/saved"]
        subprocess.run([*common, *training], check=True)
        use = ["--evaluate", "--init", f"{name}/saved", "--metrics", f"{name}/evaluated.jsonl"]
        subprocess.run([*common, *use], check=True)
        found = json.loads((folder / "evaluated.jsonl").read_text().splitlines()[0])
        model = Cnn(classes=7)
        model.load_state_dict(read_safetensors(folder / "saved" / "model.safetensors"), strict=True)
        with torch.no_grad():
            logits = model(images.to(torch.float32).unsqueeze(1) / 255)
            loss = torch.nn.functional.cross_entropy(logits, labels).item()
        accuracy = (logits.argmax(1) == labels).to(torch.float64).mean().item()
        print(f"ddptrain: {found['test_loss']:.6f} {found['accuracy']}; PyTorch: {loss:.6f} {accuracy}")
        assert abs(found["test_loss"] - loss) < 1e-4 * loss
        assert abs(found["accuracy"] - accuracy) <= 1 / len(labels)  # logits that are nearly the same


main(sys.argv[1])
