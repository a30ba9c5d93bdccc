"""README's example: its numbers agree with each other, with the claims and with the tutorial. Its command prints the same
lines, whose numbers agree with each other as well, and trains the parameters of the tutorial's hash. No rate is compared:
tests share their machine with others."""

import os
import pathlib
import platform
import re
import subprocess
import tomllib
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = pathlib.Path(os.environ.get("DDPTRAIN_BIN", ROOT / "build-cpu" / "bin"))
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
TUTORIAL = (ROOT / "docs" / "tutorial" / "first-run.md").read_text(encoding="utf-8")
FASHION_MNIST = ("/usr/share/datasets/fashion-mnist", ROOT / "data" / "downloads" / "fashion-mnist")
RANKS, BATCH = 2, 64
EXAMPLE = re.compile(r"^```text\n\$ (?P<command>mpirun .*)\n(?P<output>Epoch [^`]*)^```", re.MULTILINE)
LINE = re.compile(r"^ *(?P<label>\S+(?: \S+)*)(?:  +|: )(?P<value>.+)$", re.MULTILINE)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def lines_of(output: str) -> dict[str, str]:
    """What follows each label."""
    return {NUMBER.sub("N", label): value for label, value in LINE.findall(output)}


def accuracy(lines: dict[str, str]) -> float:
    return float(lines["loss N"].split()[1])


def hash_here() -> str | None:
    """The one that the tutorial promises for this build and these vector instructions; None: it promises none."""
    cache = (PROGRAMS.parent / "CMakeCache.txt").read_text(encoding="utf-8").splitlines()
    if not {"CMAKE_BUILD_TYPE:STRING=Release", "DDPTRAIN_NATIVE:BOOL=ON", "DDPTRAIN_SANITIZE:STRING="} <= set(cache):
        return None
    compilers = set(re.findall(rb"GCC: \([^)]*\) (\d+)\.", (PROGRAMS / "ddptrain").read_bytes()))
    flags = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    instructions = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else None
    promised = dict(re.findall(r"^- with (\S+): `([0-9a-f]{32})`", TUTORIAL, re.MULTILINE))
    return promised[instructions] if instructions and platform.machine() == "x86_64" and compilers == {b"12"} else None


class ReadmesExample(unittest.TestCase):
    def setUp(self) -> None:
        example = EXAMPLE.search(PAGE)
        self.command, self.output = example["command"], example["output"]

    def check_sums(self, output: str) -> None:
        lines = lines_of(output)

        def number(label: str, place: int = 0) -> float:
            return float(NUMBER.findall(lines[label])[place])

        def check(value: float, expected: float, rounded: float) -> None:
            self.assertAlmostEqual(value, expected, delta=rounded, msg=output)

        step, alone = number("Step"), number("Step", 1)
        check(number("Images/sec per rank") * RANKS, number("Images/sec, all ranks"), 0.5 * RANKS + 0.5)
        check(number("Beside the baseline"), 1e6 * RANKS * BATCH / step, 1.0)
        check(number("One-rank baseline"), 1e6 * BATCH / alone, 1.0)
        check(number("Scaling efficiency"), 100 * alone / step, 0.06)
        parts = [number(label) for label in ("Slower together", "Stragglers", "Exposed communication")]
        check(sum(parts), step - alone, 0.3)
        check(number("compute slowed down") + number("waiting"), parts[-1], 0.2)
        self.assertEqual(number("Training", 1), 60000 // (RANKS * BATCH))
        self.assertRegex(lines["Parameter hash"], "^[0-9a-f]{32}$")

    def test_its_numbers_agree(self) -> None:
        self.check_sums(self.output)
        self.assertIn(f"```text\n{self.output}```", TUTORIAL)
        claims = tomllib.loads((ROOT / "benchmarks" / "claims.toml").read_text(encoding="utf-8"))["run"]
        (run,) = [run for run in claims if run["name"].startswith("README's example")]
        self.assertIn(f"build/bin/ddptrain --device cpu {run['flags']}", self.command)
        lines = lines_of(self.output)
        published = {claim["field"]: claim["published"] for claim in run["claim"]}
        self.assertEqual(published["images_per_second"], float(lines["Images/sec, all ranks"].split()[0]))
        self.assertEqual(f"{published['scaling_efficiency']:.1%}", lines["Scaling efficiency"].split()[0])
        self.assertEqual(published["accuracy"], accuracy(lines))
        self.assertEqual(published["parameter_hash"], lines["Parameter hash"])
        self.assertIn(f"- with {run['instructions']}: `{lines['Parameter hash']}`", TUTORIAL)

    def test_its_command_does_what_it_says(self) -> None:
        if not any(pathlib.Path(folder).is_dir() for folder in FASHION_MNIST):
            self.skipTest("Fashion-MNIST is not here: launch/setup installs it")
        command = self.command.replace("build/bin/ddptrain", str(PROGRAMS / "ddptrain")).split()
        environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        environment |= {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.check_sums(done.stdout)
        published, measured = lines_of(self.output), lines_of(done.stdout)
        self.assertEqual(list(measured), list(published), done.stdout)
        self.assertAlmostEqual(accuracy(measured), accuracy(published), delta=0.01)
        if (expected := hash_here()) is not None:
            self.assertEqual(measured["Parameter hash"], expected)


if __name__ == "__main__":
    unittest.main()
