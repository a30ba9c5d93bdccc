"""The sizes of folders: growth is a decision that a commit states. Fails if a folder has more lines than here, or if it
has shrunk by more than a few hundred and the number here was left as it was."""

import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CPP = (".h", ".cpp", ".cu", ".cuh")
STEP = 100  # lines
SLACK = 4 * STEP

# Lines of code and comments, rounded up to the next hundred.
LINES = {
    ("runtime/core", CPP): 2400,
    ("runtime/device", CPP): 2100,
    ("runtime/ops", CPP): 9500,
    ("runtime/comm", CPP): 2500,
    ("runtime/topology", CPP): 1200,
    ("runtime/diagnostics", CPP): 1100,
    ("runtime/train", CPP): 8100,
    ("models", CPP): 4600,
    ("data", CPP): 1100,
    ("launch", CPP): 3800,
    ("launch", (".py",)): 6900,
    ("benchmarks", CPP): 4900,
    ("tests", CPP): 18300,
    ("tests", (".py",)): 8200,
}


def lines_of(folder: str, endings: tuple[str, ...]) -> int:
    files = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z", folder], capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in files.stdout.split("\0") if name.endswith(endings)]
    return sum(path.read_bytes().count(b"\n") for path in paths if path.is_file())


@unittest.skipUnless((ROOT / ".git").exists(), "needs the list of files of git")
class SizeTest(unittest.TestCase):
    def test_folders_have_the_size_that_was_decided(self) -> None:
        for (folder, endings), limit in LINES.items():
            lines = lines_of(folder, endings)
            with self.subTest(folder=folder, endings=endings):
                self.assertGreater(lines, 0)
                self.assertLessEqual(
                    lines, limit, f"{folder} has {lines} lines: remove some, or raise the number here and say why"
                )
                self.assertGreater(lines, limit - SLACK, f"{folder} has shrunk to {lines} lines: lower the number here")


if __name__ == "__main__":
    unittest.main()
