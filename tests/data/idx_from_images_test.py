"""data/idx-from-images: the bytes that it writes, its messages, and training with them."""

import pathlib
import resource
import shutil
import sys
import unittest
from typing import Any

from tests.tools.support import ROOT, FolderCase, run, run_ranks

try:
    from PIL import Image
except ImportError:
    Image = None

PROGRAM = ROOT / "data" / "idx-from-images"


@unittest.skipIf(Image is None, "needs Pillow")
class IdxFromImagesTest(FolderCase):
    def setUp(self) -> None:
        super().setUp()
        self.out = self.folder / "out"

    def write(self, name: str, rows: list[list], mode: str = "L") -> None:
        path = self.folder / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.new(mode, (len(rows[0]), len(rows)))
        image.putdata([pixel for row in rows for pixel in row])
        image.save(path)

    def convert(self, *options: str, code: int = 0, python: tuple[str, ...] = (), **settings: Any) -> str:
        command = [sys.executable, *python, PROGRAM, self.folder / "images", self.out, *options]
        return run(command, code, **settings).stderr

    def written(self, name: str) -> bytes:
        return (self.out / name).read_bytes()

    def fill(self, classes: int, images: int, height: int = 1, width: int = 1) -> None:
        for label in range(classes):
            for i in range(images):
                self.write(f"{label}/{i}.png", [[20 * label + i] * width] * height)

    def test_exact_bytes(self) -> None:
        self.write("train/dog/1.png", [[1, 2]])
        self.write("train/dog/0.PGM", [[5, 6]])
        self.write("train/cat/color.png", [[(255, 0, 0, 255), (200, 200, 200, 0)]], "RGBA")
        self.write("train/cat/deep.png", [[257 * 200 + 100, 257 * 7 + 200]], "I;16")
        self.write("val/dog/wide.bmp", [[0, 70, 140, 210]] * 3)  # a new pixel has weights 3, 3, 1 of seven
        self.write("val/cat/gray.jpg", [[80] * 16] * 16)
        (self.folder / "images/train/dog/notes.txt").write_text("no image")
        (self.folder / "images/train/dog/._1.png").write_text("no image")
        self.convert("--size", "1x2")
        sizes = b"\0\0\0\1\0\0\0\2"
        train = bytes([76, 0, 200, 8, 5, 6, 1, 2])
        self.assertEqual(self.written("train-images-idx3-ubyte"), b"\0\0\10\3\0\0\0\4" + sizes + train)
        self.assertEqual(self.written("train-labels-idx1-ubyte"), b"\0\0\10\1\0\0\0\4\0\0\1\1")
        test = bytes([80, 80, 50, 160])
        self.assertEqual(self.written("t10k-images-idx3-ubyte"), b"\0\0\10\3\0\0\0\2" + sizes + test)
        self.assertEqual(self.written("t10k-labels-idx1-ubyte"), b"\0\0\10\1\0\0\0\2\0\1")
        self.assertEqual(self.written("classes.txt"), b"cat\ndog\n")

    def test_photos_are_turned_upright(self) -> None:
        rows = [[10, 20, 30], [40, 50, 60]]
        upright = {
            1: [10, 20, 30, 40, 50, 60], 2: [30, 20, 10, 60, 50, 40], 3: [60, 50, 40, 30, 20, 10], 4: [40, 50, 60, 10, 20, 30],
            5: [10, 40, 20, 50, 30, 60], 6: [40, 10, 50, 20, 60, 30], 7: [60, 30, 50, 20, 40, 10], 8: [30, 60, 20, 50, 10, 40],
            99: [10, 20, 30, 40, 50, 60],
        }  # fmt: skip
        for orientation, expected in upright.items():
            for name in ("a/0", "b/0", "a/1", "b/1"):
                self.write(f"{'train' if name[-1] == '0' else 'test'}/{name}.png", rows)
            exif = Image.Exif()
            exif[0x0112] = orientation
            photo = self.folder / "images/train/a/0.png"
            with Image.open(photo) as image:
                image.save(photo, exif=exif)
            self.out = self.folder / f"out{orientation}"
            self.convert("--size", "2x3" if orientation not in (5, 6, 7, 8) else "3x2")
            self.assertEqual(list(self.written("train-images-idx3-ubyte")[16:22]), expected)

    def test_damaged_exif_data_say_nothing(self) -> None:
        for name in ("train/a", "train/b", "test/a", "test/b"):
            self.write(f"{name}/0.png", [[80, 80]])
        photo = self.folder / "images/train/a/0.png"
        for exif in (b"garbage", b"MM\0*\0", b"MM\0*\0\0\0\10\0\2\1\22\0\2\0\0\0\1\xff"):
            with Image.open(photo) as image:
                image.save(photo, exif=exif)
            self.convert("--size", "1")
            self.assertEqual(self.written("train-images-idx3-ubyte")[16:], bytes([80, 80]))
            shutil.rmtree(self.out)

    def test_a_class_is_one_line(self) -> None:
        for name in ("two\nlines", "two\rlines"):
            self.write(f"train/{name}/0.png", [[0]])
            refused = self.convert(code=2)
            folder = self.folder / "images/train/two?lines"
            why = "the name of a class is a line of classes.txt: rename the folder\n"
            self.assertEqual(refused, f"idx-from-images: {folder}: {why}")
            (self.folder / "images/train" / name / "0.png").unlink()
            (self.folder / "images/train" / name).rmdir()

    def test_an_image_stays_in_its_part(self) -> None:
        def parts(out: pathlib.Path) -> list[set[int]]:
            return [set((out / f"{part}-images-idx3-ubyte").read_bytes()[16:]) for part in ("train", "t10k")]

        self.fill(12, 15)
        self.convert("--size", "1", "--test-part", "0.3")
        train, test = parts(self.out)
        self.assertEqual(len(train) + len(test), 12 * 15)
        self.assertTrue(30 < len(test) < 80, len(test))
        self.assertGreater(len({value % 20 for value in test}), 10)  # names are of classes
        self.assertEqual(self.written("classes.txt").decode().split(), [str(label) for label in range(12)])
        self.fill(12, 20)
        self.out = self.folder / "more"
        self.convert("--size", "1", "--test-part", "0.3")
        train_of_more, test_of_more = parts(self.out)
        self.assertEqual(len(train_of_more) + len(test_of_more), 12 * 20)
        self.assertLess(train, train_of_more)
        self.assertLess(test, test_of_more)

    def test_mistakes(self) -> None:
        images = self.folder / "images"
        self.assertIn(f"{images}: No such file or directory", self.convert(code=2))
        images.mkdir()
        self.assertIn(f"{images}: 0 folders of classes", self.convert(code=2))
        (images / "a").mkdir()
        self.assertIn(f"{images / 'a'}: no images (.bmp .gif", self.convert(code=2))
        self.write("a/1.png", [[0]])
        self.write("b/1.png", [[0]])
        self.assertIn("no images for testing: use a larger --test-part", self.convert("--test-part", "0", code=2))
        self.assertIn("class 'a' has images for testing and none for", self.convert("--test-part", "1", code=2))
        self.assertIn("argument --size: invalid size value: '28x'", self.convert("--size", "28x", code=2))
        self.assertIn("package python3-pil", self.convert(code=2, python=("-S",)))
        self.fill(2, 40)
        (images / "1/39.png").write_bytes((images / "1/38.png").read_bytes()[:45])
        self.assertIn(f"idx-from-images: {images / '1/39.png'}: the image cannot be read: ", self.convert(code=2))
        self.assertFalse(self.out.exists())
        self.out.mkdir()
        (self.out / "precious").touch()
        self.assertEqual(self.convert(code=2), f"idx-from-images: {self.out}: the folder has files; name another one\n")

    def test_a_full_disk_is_told_and_leaves_nothing(self) -> None:
        self.fill(2, 40)
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))  # noqa: E731
        for out in (self.folder / "out", self.folder / "new" / "out", self.folder / "empty"):
            self.out = out
            (self.folder / "empty").mkdir(exist_ok=True)  # not made by the program, so it stays
            self.assertEqual(self.convert(code=1, preexec_fn=limit), f"idx-from-images: {out}: File too large\n")
            self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["empty", "images"])
            self.assertEqual(list((self.folder / "empty").iterdir()), [])

    def test_ddptrain_trains_with_it(self) -> None:
        self.fill(12, 12, 15, 18)
        train = ("--device", "cpu", "--model", "cnn", "--batch", 12, "--steps", 2, "--baseline", "off", "--metrics")
        refused = run_ranks(1, *train, self.folder / "refused", "--data", self.folder / "images", code=2)
        self.assertIn("`data/idx-from-images FOLDER OUT`", refused.stderr)
        self.convert("--size", "15x18")
        run_ranks(1, *train, self.folder / "metrics", "--data", self.out)
        summary = self.lines("metrics")[-1]
        self.assertEqual([summary[name] for name in ("classes", "height", "width", "steps")], [12, 15, 18, 2])
