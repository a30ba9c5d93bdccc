"""The reference pages name the flags that programs have and the fields that files have, no more and no fewer."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest
from typing import Any

import flags_page

sys.path.insert(0, str(flags_page.ROOT))
from tests.tools.support import (  # noqa: E402
    AS_ROOT, BIN, LOG_PASSWORD, ROOT, FolderCase, LogServer, run, skip_without_log,
)  # fmt: skip
from ddptools.common.mpirun import find_mpirun  # noqa: E402
from ddptools.sweep import sweep_file  # noqa: E402

REFERENCE = ROOT / "docs" / "reference"
ENVIRONMENT = os.environ | AS_ROOT
MPIRUN = ["mpirun", "-np", "2", *find_mpirun().here()]
TABLE = re.compile(r"^<!-- fields: (.*) -->\n((?:\|.*\n)+)", re.MULTILINE)
ROW = re.compile(r"^\| (`[^|(]+`)(?: \(([^|)]*)\))? \|", re.MULTILINE)


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


class FieldsTest(FolderCase):
    def setUp(self) -> None:
        super().setUp()
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
        elsewhere = re.compile(r"GPUs|NICs|NUMA|--outer")
        here = {field for field, when in documented.items() if not elsewhere.search(when)}
        self.assertEqual(here - seen, set(), f"{name}: in no file")

    def call(self, *command: Any, code: int = 0) -> str:
        return run(list(command), code, cwd=self.folder, env=ENVIRONMENT).stdout

    def document(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text(encoding="utf-8"))

    def test_metrics(self) -> None:
        text = self.folder / "text.txt"
        text.write_text("To be, or not to be, that is the question. " * 40)
        cnn = ["--device", "cpu", "--data", "synthetic:128", "--batch", 8, "--epochs", 1, "--eval-every", 4, "--log-every", 4]
        self.call(*MPIRUN, BIN / "ddptrain", *cnn, "--metrics", "cnn.jsonl")
        gpt = ["--model", "gpt", "--layers", 1, "--width", 16, "--heads", 1, "--ff", 16, "--seq", 16, "--data", text]
        gpt += ["--batch", 8, "--steps", 4, "--device", "cpu", "--log-every", 2, "--eval-every", 2]
        self.call(BIN / "ddptrain", *gpt, "--sample-every", 4, "--max-tokens", 2, "--metrics", "gpt.jsonl")
        for axis in ("pp", "tp"):
            shared = [*gpt, "--layers", 2, "--heads", 2, f"--{axis}", 2, "--baseline", "off"]
            self.call(*MPIRUN, BIN / "ddptrain", *shared, "--metrics", f"{axis}.jsonl")
        saving = ["--device", "cpu", "--data", "synthetic:128", "--batch", 8, "--checkpoint", "c"]
        self.call(BIN / "ddptrain", *saving, "--steps", 4, "--metrics", "saved.jsonl")
        self.interrupt([BIN / "ddptrain", *saving, "--steps", 10**9, "--resume", "auto", "--metrics", "saved.jsonl"])
        self.use_models(text, gpt)
        self.train_in_a_group()
        written: dict[str, list[Any]] = {}
        names = ("cnn", "gpt", "llama", "pp", "tp", "saved", "used", "group")
        for line in [line for name in names for line in self.lines(f"{name}.jsonl")]:
            written.setdefault(line["event"], []).append(line)
        documented = {name.removeprefix("metrics.") for name in self.documented if name.startswith("metrics.")}
        if not self.lines("group.jsonl"):  # this machine has no log
            documented.remove("exchange")
        self.assertEqual(written.keys(), documented)
        for event, samples in written.items():
            self.expect(f"metrics.{event}", samples)

        manifest = sorted(self.folder.glob("c/step-*/manifest.json"))[0]
        self.expect("checkpoint.manifest", [json.loads(manifest.read_text(encoding="utf-8"))])

    def train_in_a_group(self) -> None:
        (self.folder / "group.jsonl").touch()
        with contextlib.suppress(unittest.SkipTest):
            skip_without_log()
            log = LogServer(self.folder / "log")
            self.addCleanup(log.kill)
            mlp = ["--model", "mlp", "--device", "cpu", "--data", "synthetic:64", "--batch", 8, "--steps", 4]
            outer = ["--outer", log.url("x"), "--group", "a", "--outer-steps", 2, "--metrics", "group.jsonl"]
            environment = ENVIRONMENT | {LOG_PASSWORD: log.password}
            run([BIN / "ddptrain", *mlp, *outer], cwd=self.folder, env=environment)

    def use_models(self, text: pathlib.Path, gpt: list[Any]) -> None:
        mlp = ["--model", "mlp", "--device", "cpu", "--data", "synthetic:64", "--batch", 8, "--steps", 1]
        self.call(BIN / "ddptrain", *mlp, "--save", "mlp", "--metrics", "used.jsonl")
        self.call(BIN / "ddptrain", *mlp, "--evaluate", "--init", "mlp", "--metrics", "used.jsonl")
        self.call(BIN / "ddptrain", *gpt, "--save", "gpt")
        self.call(BIN / "ddptrain", *gpt, "--evaluate", "--init", "gpt", "--metrics", "used.jsonl")
        llama = ["--model", "llama", *gpt[2:], "--rope-scaling", "8:1:4:16"]
        self.call(BIN / "ddptrain", *llama, "--save", "llama", "--metrics", "llama.jsonl")
        self.call(BIN / "ddptrain", *llama, "--evaluate", "--init", "llama", "--metrics", "used.jsonl")
        (self.folder / "prompts").write_text("84 111\n")
        for model in ("gpt", "llama"):
            self.call(BIN / "ddptrain", "--generate", "--device", "cpu", "--model", model, "--init", model, "--prompts",
                      "prompts", "--max-tokens", 4, "--metrics", "used.jsonl")  # fmt: skip

    def test_flight_record(self) -> None:
        tiny = ["--device", "cpu", "--data", "synthetic:64", "--batch", 4, "--steps", 4, "--baseline", "off"]
        fault = ["--hang-at", "1:2", "--timeout", 2, "--flight", self.folder / "flight"]
        command = [*MPIRUN, BIN / "ddptrain", *tiny, *fault]
        for _ in range(5):  # mpirun ends a rank that the machine holds up for seconds before it has written its record
            self.call(*command, code=76)
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
                if self.lines("flight/rank1.jsonl"):
                    break
        written: dict[str, list[Any]] = {}
        for line in self.lines("flight/rank0.jsonl") + self.lines("flight/rank1.jsonl"):
            written.setdefault(line["event"], []).append(line)
        documented = {name.removeprefix("flight.") for name in self.documented if name.startswith("flight.")}
        self.assertEqual(documented - written.keys(), set())
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
        for flags in (["--device", "cpu", "--ranks", "2"], ["--model", "gpt", "--device", "cuda"]):
            samples.append(json.loads(self.call(BIN / "ddptrain", "--data", "synthetic", *flags, "--describe")))
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
                self.call(*MPIRUN, *command)
                self.expect(f"ddpbench.{name}", [self.document("out.json")])

    def test_topology(self) -> None:
        self.call(BIN / "ddptopo", "--json", "machine.json")
        self.expect("topology.machine", [self.document("machine.json")])
        samples = []
        for log in sorted((ROOT / "tests").glob("**/logs/*.log")):
            self.call(BIN / "ddptopo", "--parse", log, "--json", "log.json")
            samples.append(self.document("log.json"))
        self.expect("topology.nccl", samples)

    def test_results(self) -> None:
        sweep = '[[product]]\nname = "a"\nranks = 1\ndevice = "cpu"\nmodel = "cnn"\nbatch = 4\nsteps = 2\n'
        sweep += 'data = "synthetic:64"\nbaseline = "off"\n[[product]]\nname = "b"\nprogram = "ddpbench"\n'
        sweep += 'arguments = ["memory"]\nranks = 1\ndevice = "cpu"\nbytes = "64K"\n'
        sweep += '[[product]]\nname = "c"\nranks = 2\nlayout = "1x2"\ngpus = "0,1"\ndevice = "cuda"\n'
        (self.folder / "tiny.toml").write_text(sweep)
        command = [BIN / "ddpsweep", "tiny.toml", "--repeats", 1, "--bin", BIN]
        self.call(*command, "--out", "out")
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


if __name__ == "__main__":
    unittest.main()
