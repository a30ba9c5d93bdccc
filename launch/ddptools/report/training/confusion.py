"""What `ddptrain --evaluate` found out of a classifier, from the lines "evaluated" and "confusion" of its metrics file:
which classes it takes for which, and images that it took for another class."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib import pyplot as plt

from ddptools.common.errors import UsageError
from ddptools.common.table import Table
from ddptools.common.text import percent
from ddptools.common.values import finite
from ddptools.page.blocks import Block, Heading
from ddptools.pictures.charts import Picture
from ddptools.pictures.figures import STYLE, image_of

MOST_COLUMNS = 20  # of a matrix
MOST_PAIRS = 30  # of classes that are taken for each other
MOST_CLASSES = 256
COLUMNS = 6  # of misclassified images
LONGEST_NAME = 24  # of a class


def evaluation_blocks(lines: list[dict[str, Any]], of_run: str = "") -> list[Block]:
    """Of the last evaluation in a metrics file, whose run the heading names; nothing where there is none. UsageError
    where its lines are damaged."""
    evaluated = [line for line in lines if line.get("event") == "evaluated"]
    if not evaluated:
        return []
    confusions = [line for line in lines if line.get("event") == "confusion"]
    blocks: list[Block] = [Heading(2, f"Evaluation{of_run}"), _words(evaluated[-1])]
    if not confusions:
        return blocks
    try:
        classes, matrix, images = _read(confusions[-1])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(f'damaged line "confusion": {error}') from error
    blocks.append(_matrix_table(classes, matrix))
    return blocks + ([_mistakes_picture(classes, images)] if images else [])


def _words(line: dict[str, Any]) -> str:
    def shown(name: str, show: Callable[[float], str] = "{:.4f}".format) -> str:
        value = finite(line.get(name))
        return "unknown" if value is None else show(value)

    unit = "images" if "images" in line else "tokens"
    text = f"Test loss {shown('test_loss')}, accuracy {shown('accuracy', percent)}"
    text += f", perplexity {shown('perplexity')}" if "perplexity" in line else ""
    return f"{text} over {line.get(unit, '?')} test {unit} (model {line.get('model', '?')}, {line.get('precision', '?')})."


def _read(line: dict[str, Any]) -> tuple[list[str], np.ndarray, list[tuple[np.ndarray, int, int, float]]]:
    classes = [str(name)[:LONGEST_NAME] for name in line["classes"]]
    matrix = np.array(line["matrix"], dtype=np.int64)
    if not 0 < len(classes) <= MOST_CLASSES or matrix.shape != (len(classes), len(classes)) or matrix.min() < 0:
        raise ValueError(f"{len(classes)} classes and a matrix of {matrix.shape}")
    height, width = int(line["height"]), int(line["width"])
    images = []
    for mistake in line["mistakes"]:
        pixels = np.frombuffer(bytes.fromhex(mistake["pixels"]), np.uint8)
        label, predicted = int(mistake["label"]), int(mistake["predicted"])
        if not (0 <= label < len(classes) and 0 <= predicted < len(classes)):
            raise ValueError(f"a label of {label} or {predicted}")
        images.append((pixels.reshape(height, width), label, predicted, float(mistake["probability"])))
    return classes, matrix, images


def _matrix_table(classes: list[str], matrix: np.ndarray) -> Table:
    """Of many classes, only those that are most often taken for others."""
    if len(classes) <= MOST_COLUMNS:
        rows = [[name, *(str(count or "") for count in row)] for name, row in zip(classes, matrix.tolist())]
        return Table("Confusion matrix: which class (row) is taken for which (column).", ["class", *classes], rows)
    wrong = matrix - np.diag(np.diag(matrix))
    pairs = np.argwhere(wrong)
    most = sorted(pairs.tolist(), key=lambda pair: -wrong[tuple(pair)])[:MOST_PAIRS]
    rows = [[classes[label], classes[predicted], str(wrong[label, predicted])] for label, predicted in most]
    return Table("Which classes are most often taken for others.", ["class", "taken for", "images"], rows)


def _mistakes_picture(classes: list[str], images: list[tuple[np.ndarray, int, int, float]]) -> Picture:
    rows = (len(images) + COLUMNS - 1) // COLUMNS
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(rows, COLUMNS, figsize=(8, 1.75 * rows), squeeze=False)
        for panel in panels.flat:
            panel.axis("off")
        for panel, (pixels, label, predicted, probability) in zip(panels.flat, images):
            panel.imshow(pixels, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            panel.set_title(f"{classes[label]}\nas {classes[predicted]} ({100 * probability:.0f}%)", fontsize=7)
        caption = "Misclassified test images, those of which the model was surest first"
        return Picture(caption, image_of(figure, "png"))
