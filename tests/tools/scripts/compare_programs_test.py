"""How benchmarks/compare runs one program, and what it reads of GPUs meanwhile."""

import os
import pathlib
import sys
import unittest
from collections.abc import Callable
from unittest import mock

from tests.tools.support import PATIENCE, ROOT, FolderCase, wait_for, write_program

sys.path.insert(0, str(ROOT / "benchmarks"))

from peers import programs, sensors


class RunProgramTest(FolderCase):
    def run_it(self, text: str, timeout: float = 100.0, must_end: Callable[[], bool] = lambda: False) -> str:
        program = write_program(self.folder / "program", f"#!/usr/bin/env python3\n{text}")
        return programs.run_program([str(program)], dict(os.environ), timeout, must_end)

    def hangs(self) -> str:
        """With a worker in a session of its own, as torchrun has them."""
        return (
            "import pathlib, subprocess, time\n"
            "worker = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
            f"pathlib.Path('{self.folder}/worker.new').write_text(str(worker.pid))\n"
            f"pathlib.Path('{self.folder}/worker.new').rename('{self.folder}/worker')\n"
            "time.sleep(1000)\n"
        )

    def is_worker_there(self) -> bool:
        try:
            stat = pathlib.Path("/proc", (self.folder / "worker").read_text(), "stat").read_text()
        except FileNotFoundError:
            return False
        return stat.rpartition(")")[2].split()[0] != "Z"

    def test_what_hangs_is_ended_with_its_workers(self) -> None:
        started = (self.folder / "worker").exists
        # The limit counts once the worker is there.
        with mock.patch.object(programs.time, "monotonic", lambda: 1000.0 if started() else 0.0):
            with self.assertRaisesRegex(programs.RunFailed, "did not end within 100 s"):
                self.run_it(self.hangs())
        self.assertTrue(started())
        wait_for(lambda: not self.is_worker_there(), "the worker ends", PATIENCE)
        (self.folder / "worker").unlink()
        with self.assertRaises(programs.OutOfTime):
            self.run_it(self.hangs(), must_end=started)
        wait_for(lambda: not self.is_worker_there(), "the worker ends", PATIENCE)

    def test_what_ends(self) -> None:
        self.assertEqual(self.run_it("print('a result')"), "a result\n")
        with self.assertRaisesRegex(programs.RunFailed, "exit code 3: ValueError: why"):
            self.run_it("import sys\nprint('ValueError: why', file=sys.stderr)\nsys.exit(3)")
        with self.assertRaisesRegex(programs.RunFailed, "No such file"):
            programs.run_program([str(self.folder / "nothing")], dict(os.environ), 1, lambda: False)


class SensorsTest(unittest.TestCase):
    def test_sensors(self) -> None:
        lines = ["2026/11/22 10:00:00.000, 0, 345, 80.1, 30", "2026/11/22 10:00:10.250, 0, 1500, 690.5, 60",
                 "2026/11/22 10:00:10.250, 1, 1600, 700.5, 65", "2026/11/22 10:00:11.0, 0, [N/A], 1, 1", "2026/1"]  # fmt: skip
        readings = sensors.parse_readings("\n".join(lines))
        self.assertEqual(len(readings), 3)
        found = sensors.summarize(readings, readings[1][0] - 1, readings[1][0] + 1)
        self.assertEqual(found, {"sm_mhz": 1550, "sm_mhz_min": 1500, "watts": 695.5, "celsius_max": 65, "readings": 2})
        self.assertIsNone(sensors.summarize(readings, 0, 1))
        gpu = {"readings": 5, "sm_mhz": 1900.0, "sm_mhz_min": 1700, "watts": 400.0, "celsius_max": 50}
        found = sensors.own_sensors({"gpus": [gpu, gpu | {"sm_mhz": 1800.0, "sm_mhz_min": 1650}]})
        self.assertEqual((found["sm_mhz"], found["sm_mhz_min"], found["readings"]), (1850.0, 1650, 10))
        self.assertIsNone(sensors.own_sensors({"gpus": None}))
