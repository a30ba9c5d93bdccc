"""What a language model wrote while it was trained (ddptrain --sample-every)."""

from ddptools.common.files import Record
from ddptools.common.text import without_controls
from ddptools.common.values import list_of
from ddptools.page.blocks import Block, Heading, Texts
from ddptools.report.training.runs import TrainingRun, step_of

MOST_STEPS = 20  # of a run
MOST_PROMPTS = 10
LONGEST_TEXT = 1000  # characters, or token ids
BYTES = range(256)


def samples_of_runs(runs: list[TrainingRun]) -> list[Block]:
    """A section for each run that has samples."""
    blocks: list[Block] = []
    for run in runs:
        lines = [line for line in run.lines if line["event"] == "sample"]
        if lines:
            blocks += [Heading(2, f"Samples of {run.name}" if len(runs) > 1 else "Samples"), _texts(lines)]
    return blocks


def _texts(lines: list[Record]) -> Texts:
    """Of steps that lie evenly among all, the first and the last among them."""
    steps = sorted({step_of(line) for line in lines})
    shown = set(_evenly(steps, MOST_STEPS))
    rows: list[list[str]] = []
    prompts: dict[int, int] = {}  # by step: how many are shown
    for line in sorted(lines, key=step_of):
        step = step_of(line)
        prompts[step] = prompts.get(step, 0) + 1
        if step in shown and prompts[step] <= MOST_PROMPTS:
            rows.append([f"{step:,}", _text(line, "prompt"), _text(line, "tokens")])
    left_out = [f"{len(shown)} of {len(steps)} steps"] if len(shown) < len(steps) else []
    left_out += [f"the first {MOST_PROMPTS} prompts of each step"] if max(prompts.values()) > MOST_PROMPTS else []
    only = f" Shown: {', and '.join(left_out)}." if left_out else ""
    return Texts(f"Prompts, and how the model continued them at these steps.{only}", ["step", "prompt", "text"], rows)


def _evenly(steps: list[int], most: int) -> list[int]:
    if len(steps) <= most:
        return steps
    return [steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)]


def _text(line: Record, field: str) -> str:
    """As text if the tokens are bytes, which the field `text` tells, else as ids."""
    tokens = [token for token in list_of(line.get(field)) if isinstance(token, int)]
    kept = tokens[:LONGEST_TEXT]
    cut = " ..." if len(kept) < len(tokens) else ""
    if "text" in line and all(token in BYTES for token in kept):
        return without_controls(bytes(kept).decode(errors="replace")) + cut
    return " ".join(map(str, kept)) + cut
