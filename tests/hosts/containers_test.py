#!/usr/bin/env python3
"""One container per rank: the ranks have processes, files, shared memory and names of IPC of their own, and count as ranks
of one host all the same."""

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

    def test_ddptrain(self) -> None:
        flags = ["--device=cpu", "--baseline=off", "--model=mlp", "--hidden=16", "--data=synthetic:64", "--batch=8"]
        program = [BIN / "ddptrain", *flags, "--steps=4", "--metrics=m.jsonl"]
        run([*MPIRUN, *CONTAINER, *program], cwd=self.folder, env=ENVIRONMENT)
        summary = self.lines("m.jsonl")[-1]
        self.assertEqual((summary["nodes"], summary["local_world_size"]), (1, 2))


if __name__ == "__main__":
    unittest.main(verbosity=2)
