#!/usr/bin/env python3
"""One container per rank: the ranks have processes, files, shared memory and names of IPC of their own, and count as ranks
of one host all the same."""

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "faults"))
from emulated import skip_without_namespaces  # noqa: E402
from support import BIN, ENVIRONMENT, FolderCase, run  # noqa: E402

MPIRUN = ["mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none", "--mca", "btl", "self,tcp"]
CONTAINER = ["unshare", "--mount", "--ipc", "--pid", "--fork", "--mount-proc", "sh", "-c",
             'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]  # fmt: skip


class ContainersTest(FolderCase):
    @classmethod
    def setUpClass(cls) -> None:
        skip_without_namespaces()

    def run_in_containers(self, *program: str, code: int | None = 0) -> None:
        run([*MPIRUN, *CONTAINER, *program], code, cwd=self.folder, env=ENVIRONMENT)

    def test_ddptrain(self) -> None:
        flags = ["--device=cpu", "--baseline=off", "--model=mlp", "--hidden=16", "--data=synthetic:64", "--batch=8"]
        self.run_in_containers(str(BIN / "ddptrain"), *flags, "--steps=4", "--metrics=m.jsonl")
        summary = self.lines("m.jsonl")[-1]
        self.assertEqual((summary["nodes"], summary["local_world_size"]), (1, 2))

    def test_ddpbench(self) -> None:
        flags = ["--device=cpu", "--seconds=0.2", "--json=d.json"]
        self.run_in_containers(str(BIN / "ddpbench"), "doctor", *flags, code=None)  # 1: a busy machine slows a rank
        result = json.loads((self.folder / "d.json").read_text())
        self.assertEqual((result["nodes"], [row["kind"] for row in result["results"]]), (1, ["rank", "rank"]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
