#!/usr/bin/env python3
"""One container per rank: the ranks have processes, files, shared memory and names of IPC of their own, and count as ranks
of one host all the same."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "faults"))
from emulated import skip_without_namespaces  # noqa: E402
from support import BIN, ENVIRONMENT  # noqa: E402

MPIRUN = ["mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none", "--mca", "btl", "self,tcp"]
CONTAINER = ["unshare", "--mount", "--ipc", "--pid", "--fork", "--mount-proc", "sh", "-c",
             'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]  # fmt: skip


class ContainersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        skip_without_namespaces()

    def setUp(self) -> None:
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="ddptrain-containers-")))

    def run_in_containers(self, *program: str, codes: tuple[int, ...] = (0,)) -> None:
        command = [*MPIRUN, *CONTAINER, *program]
        done = subprocess.run(command, cwd=self.folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
        self.assertIn(done.returncode, codes, done.stdout + done.stderr)

    def test_ddptrain(self) -> None:
        flags = ["--device=cpu", "--baseline=off", "--model=mlp", "--hidden=16", "--data=synthetic:64", "--batch=8"]
        self.run_in_containers(str(BIN / "ddptrain"), *flags, "--steps=4", "--metrics=m.jsonl")
        summary = json.loads((self.folder / "m.jsonl").read_text().splitlines()[-1])
        self.assertEqual((summary["nodes"], summary["local_world_size"]), (1, 2))

    def test_ddpbench(self) -> None:
        flags = ["--device=cpu", "--seconds=0.2", "--json=d.json"]
        self.run_in_containers(str(BIN / "ddpbench"), "doctor", *flags, codes=(0, 1))  # 1: a busy machine slows a rank
        result = json.loads((self.folder / "d.json").read_text())
        self.assertEqual((result["nodes"], [row["kind"] for row in result["results"]]), (1, ["rank", "rank"]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
