"""What the tests of the tools share: a program that stands in for ddptrain, sweeps of it, and made-up records."""

import contextlib
import copy
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import types
import unittest
from collections.abc import Callable
from typing import Any

from ddptools.common.files import read_records
from ddptools.common.log_server import free_port
from ddptools.common.mpirun import find_mpirun

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("DDPTRAIN_BIN", ROOT / "build" / "bin")).resolve()
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
LOG_PASSWORD = "DDPTRAIN_OUTER_PASSWORD"
PATIENCE = 120.0  # seconds after which what takes a moment hangs


class FolderCase(unittest.TestCase):
    """Each test has an empty folder."""

    def setUp(self) -> None:
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="ddptrain-test-")))

    def lines(self, name: str) -> list[Any]:
        """Of a file of JSON lines in it."""
        return [json.loads(line) for line in (self.folder / name).read_text(encoding="utf-8").splitlines()]


def write_program(path: pathlib.Path, text: str) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def write_lines(path: pathlib.Path, lines: list[dict[str, Any]], cut: str = "") -> pathlib.Path:
    """JSON lines, and one that is `cut`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + cut)
    return path


def load_script(path: pathlib.Path) -> types.ModuleType:
    """A program of Python whose name has no ending, as a module."""
    loader = importlib.machinery.SourceFileLoader(path.name.replace("-", "_"), str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


def run(command: list[Any], code: int | None = 0, **settings: Any) -> subprocess.CompletedProcess:
    """AssertionError with what it said on standard error if it ends with another exit code; None: any."""
    settings = {"capture_output": True, "text": True, "timeout": 800} | settings
    done = subprocess.run(list(map(str, command)), **settings)
    if code is not None and done.returncode != code:
        raise AssertionError(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def run_ranks(ranks: int, *arguments: Any, **settings: Any) -> subprocess.CompletedProcess:
    """ddptrain on this number of ranks."""
    command = ["mpirun", "-np", ranks, *find_mpirun().here(), BIN / "ddptrain", *arguments]
    return run(command, env=os.environ | AS_ROOT, **settings)


def skip_without_log() -> None:
    """SkipTest if this build or this machine cannot have groups that share a log."""
    if shutil.which("redis-server") is None:
        raise unittest.SkipTest("there is no redis-server (package redis-server)")
    trial = [BIN / "ddptrain", "--outer", "redis://here/x", "--group", "a", "--print-config"]
    if "without hiredis" in run(trial, None, env=os.environ | AS_ROOT).stderr:
        raise unittest.SkipTest("this build has no hiredis (package libhiredis-dev)")


class LogServer:
    """A server of launch/outer-log in `folder`, which may be killed and started again."""

    memory = "256mb"

    def __init__(self, folder: pathlib.Path, *flags: str) -> None:
        self.folder = folder
        self.flags = flags
        self.port = free_port()
        self.start()

    def start(self) -> None:
        command = [str(ROOT / "launch" / "outer-log"), "--dir", str(self.folder), "--port", str(self.port),
                   "--memory", self.memory, *self.flags]  # fmt: skip
        with (self.folder.parent / f"{self.folder.name}.txt").open("w") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        wait_for(self.answers, "the log does not start", PATIENCE)
        self.password = (self.folder / "password").read_text()

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
            return True
        return False

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait(PATIENCE)

    def said(self) -> str:
        """Since its last start."""
        return (self.folder.parent / f"{self.folder.name}.txt").read_text()

    def url(self, name: str) -> str:
        scheme = "rediss" if any(flag.startswith("--tls") for flag in self.flags) else "redis"
        return f"{scheme}://127.0.0.1:{self.port}/{name}"


def run_tool(name: str, *arguments: Any, **settings: Any) -> subprocess.CompletedProcess:
    return run([sys.executable, ROOT / "launch" / name, *arguments], **settings)


FAKE_DDPTRAIN = """
import json, os, signal, sys, time
flags = dict(a[2:].split("=", 1) for a in sys.argv[1:] if a.startswith("--") and "=" in a)
if "--version" in sys.argv:
    print("ddptrain fake")
    sys.exit()
if flags.get("batch") == "0":
    print("ddptrain: --batch 0: give at least 1", file=sys.stderr)
    sys.exit(2)
if "--print-config" in sys.argv:
    sys.exit()
if "--help" in sys.argv:
    print("Flags of other programs:\\n  --steps\\n      --max-steps\\n      --iters\\n\\nNo counterpart:\\n  --nproc")
    sys.exit()
if "--describe" in sys.argv:
    name = flags.get("config", flags.get("model", "")).split("/")[-1]
    descriptions = json.load(open(os.path.join(os.path.dirname(sys.argv[0]), "descriptions.json")))
    if name not in descriptions:
        print(f"ddptrain: --model {name}: there is no such model", file=sys.stderr)
        sys.exit(2)
    asked = {flag: float(value) for flag, value in flags.items() if flag in ("batch_per_rank", "parameters")}
    print(json.dumps(descriptions[name] | asked))
    sys.exit()
if int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0"))):
    if flags.get("mode") != "hang":
        sys.exit()
else:
    with open(os.environ["FAKE_LOG"], "a") as log:
        log.write(json.dumps({"flags": flags, "pid": os.getpid(), "environment": dict(os.environ)}) + "\\n")
if flags.get("mode") == "fail":
    print("ddptrain: error on rank 0 (h): the loss is not finite", file=sys.stderr)
    sys.exit(1)
if flags.get("mode") == "hang":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
if flags.get("mode") == "silent":
    sys.exit()
if "FAKE_HOLD" in os.environ:
    runs, file = os.environ["FAKE_HOLD"].split(":", 1)
    while sum(1 for _ in open(os.environ["FAKE_LOG"])) > int(runs) and os.path.exists(file):
        time.sleep(0.02)
summary = {"event": "summary", "images_per_second": 1000.0 + len(sys.argv), "world_size": 2, "parameter_hash": "abc"}
summary |= {"accuracy": 0.875, "scaling_efficiency": 0.9}
summary |= json.loads(os.environ.get("FAKE_SUMMARY", "{}"))
with open(sys.argv[sys.argv.index("--metrics") + 1], "w") as metrics:
    metrics.write('{"event": "start"}\\n' + json.dumps(summary) + "\\n")
"""


def make_programs(folder: pathlib.Path) -> pathlib.Path:
    """A folder with a ddptrain that only pretends."""
    program = write_program(folder / "bin" / "ddptrain", f"#!{sys.executable} -S\n{FAKE_DDPTRAIN}")
    descriptions = {"cnn.toml": cnn_description(), "cnn": cnn_description(), "gpt2-124m.toml": gpt2_description()}
    program.with_name("descriptions.json").write_text(json.dumps(descriptions))
    return program.parent


# What ddptrain --describe says of the CNN in bf16, and of GPT-2 124M, whose tied embedding is complete at the end; without
# their layers. And a record of ddpsweep.
MADE_UP = json.loads(pathlib.Path(__file__).with_name("made_up.json").read_text())


def cnn_description(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(MADE_UP["cnn"]) | changes


def gpt2_description(**changes: Any) -> dict[str, Any]:
    return copy.deepcopy(MADE_UP["gpt"]) | changes


class FakeSweep:
    """A sweep of the stand-in, its results and the log of what was really run."""

    def __init__(self, folder: pathlib.Path, text: str) -> None:
        self.folder = folder
        self.programs = make_programs(folder)
        self.file = folder / "fake.toml"
        self.file.write_text(textwrap.dedent(text))
        self.out = folder / "out"
        self.log = folder / "runs.log"
        self.environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
        self.environment |= {"FAKE_LOG": str(self.log)}

    def command(self, *options: str) -> list[str]:
        program = ROOT / "launch" / "ddpsweep"
        files = ["--out", str(self.out), "--bin", str(self.programs)]
        return [sys.executable, str(program), str(self.file), *files, *options]

    def run(self, *options: str, code: int | None = 0) -> subprocess.CompletedProcess:
        return run(self.command(*options), code, env=self.environment, cwd=self.folder)

    def start(self, *options: str) -> subprocess.Popen:
        settings = {"env": self.environment, "cwd": self.folder, "text": True}
        return subprocess.Popen(self.command(*options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, **settings)

    def hold_after(self, runs: int) -> pathlib.Path:
        """Later runs do not end before the file is removed."""
        file = self.folder / "hold"
        file.touch()
        self.environment["FAKE_HOLD"] = f"{runs}:{file}"
        return file

    def records(self) -> list[dict[str, Any]]:
        """Without a line that a process has not yet written to its end."""
        file = self.out / "results.jsonl"
        return list(read_records(file)) if file.exists() else []

    def executed(self) -> list[dict[str, Any]]:
        return list(read_records(self.log)) if self.log.exists() else []


def wait_for(
    condition: Callable[[], bool],
    what: str = "what the test waits for",
    seconds: float = 300.0,
    shown: Callable[[], str] = str,
    running: Callable[[], bool] = lambda: True,
) -> float:
    """The time at which the condition holds. AssertionError with what is `shown` if that takes too long, or if nothing
    is `running` any more that could bring it about."""
    end = time.monotonic() + seconds
    is_possible = True
    while not condition():
        if time.monotonic() > end or not is_possible:
            raise AssertionError(f"{what}: not within {seconds} s\n{shown()}")
        is_possible = running()  # after its end, the condition is checked once more
        time.sleep(0.01)
    return time.monotonic()


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    return False


def record(case: str, repeat: int, rate: float | None, settings: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A record as ddpsweep writes it; `rate` None: a failed run. Keys of `changes` replace those of the record, those
    of `summary` are added to its summary."""
    summary = {"event": "summary", "images_per_second": rate} | changes.pop("summary", {})
    made = copy.deepcopy(MADE_UP["record"]) | {"case": case, "repeat": repeat, "settings": settings}
    made |= {"variables": [n for n in settings if n.startswith("NCCL_")], "log": f"logs/{case}-r{repeat}.out"}
    if rate is None:
        made |= {"status": "failed", "reason": "exit code 1: no luck"}
    else:
        made["summary"] = summary
    return made | changes


def write_results(folder: pathlib.Path, records: list[dict[str, Any]]) -> pathlib.Path:
    return write_lines(folder / "results.jsonl", records).parent
