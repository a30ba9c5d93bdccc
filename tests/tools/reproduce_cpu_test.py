"""benchmarks/reproduce runs README's example as it stands there: the command works, its model learns what it claims, and
every claim gets a verdict. Rates are compared on the machine of the claim only, and fail nothing here: tests share
their machine with others."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = "README's example"
FASHION_MNIST = ("/usr/share/datasets/fashion-mnist", ROOT / "data" / "downloads" / "fashion-mnist")


class ReadmesExample(unittest.TestCase):
    def test_it_does_what_it_claims(self) -> None:
        if not any(pathlib.Path(folder).is_dir() for folder in FASHION_MNIST):
            self.skipTest("Fashion-MNIST is not here: launch/setup installs it")
        programs = os.environ.get("DDPTRAIN_BIN", str(ROOT / "build-cpu" / "bin"))
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder, "page.md")
            command = [sys.executable, ROOT / "benchmarks" / "reproduce", "--only", EXAMPLE, "--repeats", "1", "--bin",
                       programs, "--out", out]  # fmt: skip
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=800)
            page = out.read_text(encoding="utf-8")
        self.assertNotIn("Traceback", done.stderr)
        rows = {cells[2]: cells for line in page.splitlines() if (cells := re.split(r"\s*\|\s*", line))[1:2]
                and cells[1].startswith(EXAMPLE)}  # fmt: skip
        self.assertEqual(set(rows), {"images_per_second", "scaling_efficiency", "accuracy", "parameter_hash"}, page)
        for cells in rows.values():
            self.assertRegex(cells[5], "^(agrees|differs|another machine)", page)
        _, _, _, published, measured, _, _ = rows["accuracy"]
        self.assertAlmostEqual(float(measured), float(published), delta=0.01)
        self.assertRegex(rows["parameter_hash"][4], "^[0-9a-f]{32}$")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
