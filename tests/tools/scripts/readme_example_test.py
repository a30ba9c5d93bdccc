"""README's example: its numbers are those of the claims and of the tutorial. Its command prints the same lines. No rate
is compared: tests share their machine with others."""

import os
import pathlib
import re
import tomllib
import unittest

from tests.tools.support import AS_ROOT, BIN, ROOT, run

PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
TUTORIAL = (ROOT / "docs" / "tutorial" / "first-run.md").read_text(encoding="utf-8")
FASHION_MNIST = ("/usr/share/datasets/fashion-mnist", ROOT / "data" / "downloads" / "fashion-mnist")
RANKS, BATCH = 2, 64
EXAMPLE = re.compile(r"^```text\n\$ (?P<command>mpirun .*)\n(?P<output>Epoch [^`]*)^```", re.MULTILINE)
LABELS = ["Result", "Speed", "Scaling", "Step", "Sent", "Hash"]
LINE = re.compile(rf"^({'|'.join(LABELS)}) +(\S.*)$", re.MULTILINE)
EPOCH = re.compile(r"^loss (?P<loss>[\d.]+)  accuracy (?P<accuracy>[\d.]+)$", re.MULTILINE)
RATE = re.compile(r"(?P<rate>[\d,]+) images/s \([\d,]+ to [\d,]+\)")
SCALING = re.compile(r"(?P<percent>[\d.]+)% \([\d.]+ to [\d.]+\) of linear ")


def lines_of(output: str) -> dict[str, str]:
    """What follows each label of the summary."""
    return dict(LINE.findall(output))


def three_digits(value: float) -> str:
    """Of a rate of 100 and more."""
    return f"{float(f'{value:.3g}'):,.0f}"


def accuracy(output: str) -> float:
    return float(EPOCH.findall(output)[-1][1])


class ReadmesExample(unittest.TestCase):
    def setUp(self) -> None:
        example = EXAMPLE.search(PAGE)
        self.command, self.output = example["command"], example["output"]

    def check_lines(self, output: str) -> dict[str, str]:
        """What follows their labels."""
        lines, epoch = lines_of(output), EPOCH.search(output)
        self.assertEqual(list(lines), LABELS, output)
        self.assertLessEqual(len(output[output.index("\nResult ") :].strip().splitlines()), 10, output)
        result = f"test accuracy {100 * float(epoch['accuracy']):.2f}% "
        self.assertTrue(lines["Result"].startswith(result), output)
        self.assertIn(f"1 epoch, {60000 // (RANKS * BATCH)} steps, ", lines["Result"])
        self.assertRegex(lines["Speed"], RATE)
        self.assertRegex(lines["Hash"], "^[0-9a-f]{32}  ")
        return lines

    def test_its_numbers_agree(self) -> None:
        lines = self.check_lines(self.output)
        self.assertIn(f"```text\n{self.output}```", TUTORIAL)
        claims = tomllib.loads((ROOT / "benchmarks" / "claims.toml").read_text(encoding="utf-8"))["run"]
        (run,) = [run for run in claims if run["name"].startswith("README's example")]
        self.assertIn(f"build/bin/ddptrain --device cpu {run['flags']}", self.command)
        published = {claim["field"]: claim["published"] for claim in run["claim"]}
        self.assertEqual(three_digits(published["images_per_second"]), RATE.match(lines["Speed"])["rate"])
        self.assertEqual(f"{100 * published['scaling_efficiency']:.1f}", SCALING.match(lines["Scaling"])["percent"])
        self.assertEqual(published["accuracy"], accuracy(self.output))
        trained = lines["Hash"].split()[0]
        self.assertEqual(published["parameter_hash"], trained)
        self.assertIn(f"- with {run['instructions']}: `{trained}`", TUTORIAL)

    def test_its_command_does_what_it_says(self) -> None:
        if not any(pathlib.Path(folder).is_dir() for folder in FASHION_MNIST):
            self.skipTest("Fashion-MNIST is not here: launch/setup installs it")
        command = self.command.replace("build/bin/ddptrain", str(BIN / "ddptrain")).split()
        environment = os.environ | AS_ROOT
        environment |= {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
        done = run([*command, "--calibration-seconds", "2"], env=environment)
        self.check_lines(done.stdout)
        self.assertAlmostEqual(accuracy(done.stdout), accuracy(self.output), delta=0.01)
