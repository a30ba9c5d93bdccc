from typing import Any

from ddptools.common.errors import UsageError
from ddptools.page.blocks import Heading
from ddptools.pictures.charts import Picture
from ddptools.report.training.confusion import evaluation_blocks
from tests.tools.report.support import run_report
from tests.tools.support import FolderCase, write_lines

Line = dict[str, Any]


def evaluated(**changes: Any) -> Line:
    return {"event": "evaluated", "model": "cnn", "precision": "fp32", "images": 30, "test_loss": 0.25,
            "accuracy": 0.9} | changes  # fmt: skip


def confusion(**changes: Any) -> Line:
    mistake = {"sample": 4, "label": 1, "predicted": 0, "probability": 0.75, "pixels": "00ff80c0"}
    return {"event": "confusion", "classes": ["Coat", "Bag", "Shirt"], "matrix": [[10, 0, 0], [3, 7, 0], [0, 0, 10]],
            "height": 2, "width": 2, "mistakes": [mistake]} | changes  # fmt: skip


class ConfusionTest(FolderCase):
    def blocks(self, *lines: Line) -> list[Any]:
        return evaluation_blocks(list(lines))

    def test_the_last_evaluation_counts(self) -> None:
        self.assertEqual(self.blocks({"event": "summary", "accuracy": 1.0}), [])
        lines = [evaluated(), confusion(), evaluated(accuracy=0.5), confusion(classes=["x", "y", "z"])]
        blocks = self.blocks(*lines)
        self.assertIn("accuracy 50.0%", blocks[1])
        self.assertEqual(blocks[2].header, ["class", "x", "y", "z"])

    def test_words(self) -> None:
        heading, words = self.blocks(evaluated())
        self.assertEqual((type(heading), heading.text), (Heading, "Evaluation"))
        self.assertEqual(words, "Test loss 0.2500, accuracy 90.0% over 30 test images (model cnn, fp32).")
        gpt = {"event": "evaluated", "model": "gpt", "precision": "bf16", "tokens": 64, "test_loss": 3.0,
               "accuracy": 0.5, "perplexity": 20.0855}  # fmt: skip
        self.assertIn("perplexity 20.0855 over 64 test tokens", self.blocks(gpt)[1])

    def test_matrix_and_mistakes(self) -> None:
        table, mistakes = self.blocks(evaluated(), confusion())[2:]
        self.assertEqual(table.rows, [["Coat", "10", "", ""], ["Bag", "3", "7", ""], ["Shirt", "", "", "10"]])
        self.assertIsInstance(mistakes, Picture)
        self.assertTrue(mistakes.chart.startswith(b"\x89PNG"))
        self.assertEqual(len(self.blocks(evaluated(), confusion(mistakes=[]))), 3)
        names = [f"class {i}" for i in range(62)]
        matrix = [[9 * (i == j) + 2 * (i == 5 and j == 8) + 4 * (i == 7 and j == 0) for j in range(62)] for i in range(62)]
        (table,) = self.blocks(evaluated(), confusion(classes=names, matrix=matrix, mistakes=[]))[2:]
        self.assertEqual(table.rows, [["class 7", "class 0", "4"], ["class 5", "class 8", "2"]])

    def test_damaged_lines(self) -> None:
        good = confusion()["mistakes"][0]
        for change in ({"matrix": [[1, 2]]}, {"matrix": "x"}, {"classes": []}, {"classes": 3}, {"matrix": [[-1] * 3] * 3},
                       {"height": 3}, {"height": "x"}, {"mistakes": [good | {"label": 9}]}, {"mistakes": [3]},
                       {"mistakes": [good | {"pixels": "zz"}]}, {"mistakes": [{}]}, {"matrix": [[1, 2], [3]]},
                       {"height": 10**12, "width": 10**12}, {"matrix": [[10**30] * 3] * 3}):  # fmt: skip
            with self.subTest(change=change), self.assertRaisesRegex(UsageError, "damaged line"):
                self.blocks(evaluated(), confusion(**change))

    def test_the_page_of_a_run_has_them(self) -> None:
        start = {"event": "start", "model": "cnn", "time": 1.0}
        epoch = {"event": "epoch", "epoch": 1, "step": 4, "loss": 1.0, "test_loss": 0.5, "accuracy": 0.9, "time": 2.0,
                 "images_per_second": 5.0}  # fmt: skip
        for lines in ([start, epoch], []):
            file = write_lines(self.folder / "m.jsonl", [*lines, evaluated(), confusion()])
            run_report(file, "--out", self.folder / "page.html")
            page = (self.folder / "page.html").read_text()
            for part in ("Evaluation", "Confusion matrix", "Misclassified"):
                self.assertIn(part, page)
