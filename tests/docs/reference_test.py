"""The reference pages name the flags that programs have and the fields that files have, no more and no fewer."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
from typing import Any

import flags_page

ROOT = flags_page.ROOT
REFERENCE = ROOT / "docs" / "reference"
BIN = pathlib.Path(os.environ.get("DDPTRAIN_BIN", ROOT / "build" / "bin")).resolve()
ENVIRONMENT = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
TABLE = re.compile(r"^<!-- fields: (.*) -->\n((?:\|.*\n)+)", re.MULTILINE)
ROW = re.compile(r"^\| (`[^|(]+`)(?: \(([^|)]*)\))? \|", re.MULTILINE)

sys.path.insert(0, str(ROOT / "launch"))
from ddptools.common.mpirun import find_mpirun  # noqa: E402
from ddptools.sweep import csv_table, sweep_file  # noqa: E402

MPIRUN = ["mpirun", "-np", "2", *find_mpirun().here()]
LOG = """\
h:1:2 [0] NCCL INFO comm 0x5 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0
h:1:2 [0] NCCL INFO NCCL_ALGO set by environment to Tree
h:1:2 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 2, bw 3.000000/2.500000, type NVL/PHB, sameChannels 1
h:1:2 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}
"""


def tables() -> dict[str, dict[str, str]]:
    """The fields of each table that the pages mark, and when they are written: always, if no bracket says it."""
    found: dict[str, dict[str, str]] = {}
    for page in sorted(REFERENCE.glob("*.md")):
        for names, table in TABLE.findall(page.read_text(encoding="utf-8")):
            name, *others = names.split(" + ")
            found[name] = {field: when for other in others for field, when in found[other].items()}
            for names, when in ROW.findall(table):
                found[name] |= dict.fromkeys(re.findall(r"`([^`]+)`", names), when or "always")
    return found


def fields(value: Any, documented: dict[str, str], prefix: str = "") -> set[str]:
    """The fields of a JSON value, as far down as the page describes them."""
    found = set()
    for name, inner in value.items():
        path = prefix + name
        objects = inner if isinstance(inner, list) else [inner]
        below = f"{path}[]." if isinstance(inner, list) else f"{path}."
        described = any(field.startswith(below) for field in documented)
        if path in documented or not described:
            found.add(path)
        if described:
            for item in objects:
                found |= fields(item, documented, below) if isinstance(item, dict) else set()
    return found


def run(command: list[Any], folder: pathlib.Path) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=ENVIRONMENT, capture_output=True, timeout=600)
    if done.returncode != 0:
        raise AssertionError(f"{words}: exit code {done.returncode}\n{done.stderr.decode(errors='replace')}")


class FieldsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.documented = tables()

    def expect(self, name: str, samples: list[Any]) -> None:
        """Each sample has every field that is always written, and no other than those of the page; all samples together
        have those that are not of machines or cases that these runs cannot have."""
        documented = self.documented[name]
        self.assertTrue(samples, name)
        seen: set[str] = set()
        for sample in samples:
            written = fields(sample, documented)
            seen |= written
            self.assertEqual(written - documented.keys(), set(), f"{name}: not on the page")
            always = {field for field, when in documented.items() if when == "always"}
            self.assertEqual(always - written, set(), f"{name}: not in the file")
        elsewhere = re.compile(r"GPUs|NICs|NUMA")
        here = {field for field, when in documented.items() if not elsewhere.search(when)}
        self.assertEqual(here - seen, set(), f"{name}: in no file")

    def lines(self, name: str) -> list[Any]:
        return [json.loads(line) for line in (self.folder / name).read_text(encoding="utf-8").splitlines()]

    def document(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def test_metrics(self) -> None:
        text = self.folder / "text.txt"
        text.write_text("To be, or not to be, that is the question. " * 40)
        cnn = ["--device", "cpu", "--data", "synthetic:128", "--batch", 8, "--epochs", 1, "--eval-every", 4, "--log-every", 4]
        run([*MPIRUN, BIN / "ddptrain", *cnn, "--metrics", "cnn.jsonl"], self.folder)
        gpt = ["--model", "gpt", "--layers", 1, "--width", 16, "--heads", 1, "--ff", 16, "--seq", 16, "--data", text]
        gpt += ["--batch", 8, "--steps", 4, "--sample-every", 2, "--sample-tokens", 4, "--device", "cpu"]
        gpt += ["--log-every", 2, "--eval-every", 2]
        run([BIN / "ddptrain", *gpt, "--metrics", "gpt.jsonl"], self.folder)
        for axis in ("pp", "tp"):
            shared = [*gpt, "--layers", 2, "--heads", 2, f"--{axis}", 2, "--sample-every", 0, "--baseline", "off"]
            run([*MPIRUN, BIN / "ddptrain", *shared, "--metrics", f"{axis}.jsonl"], self.folder)
        saving = ["--device", "cpu", "--data", "synthetic:128", "--batch", 8, "--checkpoint", "c"]
        run([BIN / "ddptrain", *saving, "--steps", 4, "--metrics", "saved.jsonl"], self.folder)
        self.interrupt([BIN / "ddptrain", *saving, "--steps", 10**9, "--resume", "auto", "--metrics", "saved.jsonl"])
        self.use_models(text, gpt)
        written: dict[str, list[Any]] = {}
        for line in [line for name in ("cnn", "gpt", "pp", "tp", "saved", "used") for line in self.lines(f"{name}.jsonl")]:
            written.setdefault(line["event"], []).append(line)
        documented = {name.removeprefix("metrics.") for name in self.documented if name.startswith("metrics.")}
        self.assertEqual(written.keys(), documented)
        for event, samples in written.items():
            self.expect(f"metrics.{event}", samples)

        manifest = sorted(self.folder.glob("c/step-*/manifest.json"))[0]
        self.expect("checkpoint.manifest", [json.loads(manifest.read_text(encoding="utf-8"))])

    def use_models(self, text: pathlib.Path, gpt: list[Any]) -> None:
        mlp = ["--model", "mlp", "--device", "cpu", "--data", "synthetic:64", "--batch", 8, "--steps", 1]
        run([BIN / "ddptrain", *mlp, "--save", "mlp", "--metrics", "used.jsonl"], self.folder)
        run([BIN / "ddptrain", *mlp, "--evaluate", "--init", "mlp", "--metrics", "used.jsonl"], self.folder)
        run([BIN / "ddptrain", *gpt, "--save", "gpt"], self.folder)
        for task in ("--evaluate", "--generate"):
            run([BIN / "ddptrain", *gpt, task, "--init", "gpt", "--metrics", "used.jsonl"], self.folder)

    def test_flight_record(self) -> None:
        tiny = ["--device", "cpu", "--data", "synthetic:64", "--batch", 4, "--steps", 4, "--baseline", "off"]
        fault = ["--hang-at", "1:2", "--timeout", 2, "--flight", self.folder / "flight"]
        command = [*MPIRUN, BIN / "ddptrain", *tiny, *fault]
        for _ in range(5):  # mpirun ends a rank that the machine holds up for seconds before it has written its record
            done = subprocess.run(list(map(str, command)), env=ENVIRONMENT, capture_output=True, timeout=600)
            self.assertEqual(done.returncode, 76, done.stderr)
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
                if "thread" in {line["event"] for line in self.lines("flight/rank1.jsonl")}:
                    break
        written: dict[str, list[Any]] = {}
        for line in self.lines("flight/rank0.jsonl") + self.lines("flight/rank1.jsonl"):
            written.setdefault(line["event"], []).append(line)
        documented = {name.removeprefix("flight.") for name in self.documented if name.startswith("flight.")}
        self.assertEqual(documented - written.keys() - {"nccl_ras"}, set())
        for event, samples in written.items():
            self.expect(f"flight.{event}", samples)

    def interrupt(self, command: list[Any]) -> None:
        """Starts it, and ends it by a signal when it trains."""
        process = subprocess.Popen([str(word) for word in command], cwd=self.folder, env=ENVIRONMENT,
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
        self.addCleanup(process.kill)
        assert process.stdout is not None
        process.stdout.readline()  # of the first epoch
        process.terminate()
        process.stdout.read()
        process.stdout.close()
        self.assertEqual(process.wait(300), 75)

    def test_description(self) -> None:
        samples = []
        for flags in (["--device", "cpu"], ["--model", "gpt", "--device", "cuda"]):
            command = [BIN / "ddptrain", "--data", "synthetic", *flags, "--describe"]
            done = subprocess.run(command, env=ENVIRONMENT, capture_output=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            samples.append(json.loads(done.stdout))
        self.expect("description", samples)

    def test_ddpbench(self) -> None:
        tiny = {
            "allreduce": ["-e", 64],
            "split": ["--total", "64K", "--pieces", 2, "--rounds", 1],
            "overlap": ["--layers", 2, "--width", 32, "--tokens", 32, "--rounds", 1],
            "gemm": ["--cube", 32, "--tokens", 32, "--width", 32, "--vocabulary", 32, "--rounds", 1, "--seconds", 0.01],
            "memory": ["--bytes", "64K", "--rounds", 1],
            "step": ["--batch", 4, "--data", "synthetic:64"],
        }
        for name, flags in tiny.items():
            with self.subTest(benchmark=name):
                command = [BIN / "ddpbench", name, "--device", "cpu", *flags, "--json", "out.json"]
                run([*MPIRUN, *command], self.folder)
                self.expect(f"ddpbench.{name}", [self.document("out.json")])

    def test_topology(self) -> None:
        run([BIN / "ddptopo", "--json", "machine.json"], self.folder)
        self.expect("topology.machine", [self.document("machine.json")])
        (self.folder / "nccl.log").write_text(LOG)
        samples = []
        for log in [self.folder / "nccl.log", *sorted((ROOT / "tests").glob("**/logs/*.log"))]:
            run([BIN / "ddptopo", "--parse", log, "--json", "log.json"], self.folder)
            samples.append(self.document("log.json"))
        self.expect("topology.nccl", samples)

    def test_results(self) -> None:
        sweep = '[[product]]\nname = "a"\nranks = 1\ndevice = "cpu"\nmodel = "cnn"\nbatch = 4\nsteps = 2\n'
        sweep += 'data = "synthetic:64"\nbaseline = "off"\n[[product]]\nname = "b"\nprogram = "ddpbench"\n'
        sweep += 'arguments = ["memory"]\nranks = 1\ndevice = "cpu"\nbytes = "64K"\n'
        sweep += '[[product]]\nname = "c"\nranks = 2\nlayout = "1x2"\ngpus = "0,1"\ndevice = "cuda"\n'
        (self.folder / "tiny.toml").write_text(sweep)
        command = [BIN / "ddpsweep", "tiny.toml", "--repeats", 1, "--bin", BIN]
        run([*command, "--out", "out"], self.folder)
        self.expect("results", self.lines("out/results.jsonl"))
        self.expect("plan", [self.document("out/plan.json")])


class KeysTest(unittest.TestCase):
    def test_kernel_resources(self) -> None:
        """The page lists the kernels that there are; tests/portability/run resources compares its numbers."""
        page = (ROOT / "tests" / "portability" / "kernel-resources.md").read_text(encoding="utf-8")
        listed = {line.split("|")[2].strip() for line in page.splitlines() if line.startswith("|")} - {"kernel", "---"}
        kernels = set()
        for path in (path for folder in ("runtime", "models") for path in (ROOT / folder).rglob("*.cu*")):
            text = re.sub(r"__launch_bounds__\((?:[^()]|\([^()]*\))*\)", "", path.read_text(encoding="utf-8"))
            kernels |= set(re.findall(r"__global__\s+void\s+(\w+)\(", text))
        self.assertGreater(len(kernels), 40)
        self.assertEqual(listed, kernels, "write the page again: tests/portability/resources --write")

    def test_flags(self) -> None:
        self.maxDiff = None
        page = flags_page.PAGE.read_text(encoding="utf-8")
        self.assertEqual(page, flags_page.page(BIN), "write it again: python3 tests/docs/flags_page.py BIN --write")

    def test_sweep_files(self) -> None:
        text = (REFERENCE / "sweep-files.md").read_text(encoding="utf-8")
        keys = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
        of_product = {"name", "program", "arguments", "environment", "flags", "global-batch"}
        self.assertEqual(sorted(keys), sorted([*sweep_file.SWEEP_KEYS, *of_product, *sweep_file.PLACEMENT_KEYS]))

    def test_results_csv(self) -> None:
        text = (REFERENCE / "results.md").read_text(encoding="utf-8")
        for column in (*csv_table.RECORD_COLUMNS, *(f"nccl_{name}" for name in csv_table.NCCL_COLUMNS)):
            self.assertIn(f"`{column}`", text)


if __name__ == "__main__":
    unittest.main()
