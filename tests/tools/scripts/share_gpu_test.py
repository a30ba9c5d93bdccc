"""launch/share-gpu starts and ends an MPS server, here a stand-in that notes what it is told."""

import os
import pathlib
import signal
import subprocess
import time

from tests.tools.support import ROOT, FolderCase, wait_for


class ShareGpuTest(FolderCase):
    def setUp(self) -> None:
        super().setUp()
        self.temporary, self.told = self.folder / "tmp", self.folder / "told"
        self.temporary.mkdir()
        mps = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
        self.environment = {name: value for name, value in os.environ.items() if name not in mps}
        path = f"{pathlib.Path(__file__).parent}/stand_ins:{os.environ['PATH']}"
        self.environment |= {"PATH": path, "TMPDIR": str(self.temporary), "TOLD": str(self.told)}

    def start(self, script: str, **environment: str) -> subprocess.Popen:
        command = [ROOT / "launch" / "share-gpu", "sh", "-c", script]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env=self.environment | environment, **streams)

    def until_server_is_gone(self, gpus: str = "all") -> None:
        """The server of these GPUs was told to quit, and its folder is removed."""
        wait_for(lambda: self.told.exists() and "quit" in self.told.read_text() and not any(self.temporary.iterdir()))
        start, stop = self.told.read_text().splitlines()
        self.assertEqual(start.split()[1], stop.split()[-1])
        self.assertEqual(start.split()[2], gpus)

    def test_the_command_has_a_server_of_its_own_that_ends_with_it(self) -> None:
        job = self.start("echo $CUDA_MPS_PIPE_DIRECTORY; exit 3")
        out, errors = job.communicate()
        self.until_server_is_gone()
        self.assertEqual((job.returncode, out.split(), errors), (3, [self.told.read_text().split()[1]], ""))

    def test_a_killed_command_leaves_no_server(self) -> None:
        job = self.start("echo started; exec sleep 1000")
        self.assertEqual(job.stdout.readline(), "started\n")
        self.assertNotIn("quit", self.told.read_text())
        job.send_signal(signal.SIGKILL)
        job.communicate()
        self.assertEqual(job.returncode, -signal.SIGKILL)
        self.until_server_is_gone()

    def test_a_command_that_is_killed_while_the_server_starts_leaves_none(self) -> None:
        job = self.start("true", STARTS_IN="0.5")
        wait_for(lambda: any(self.temporary.glob("*/start")))
        os.kill(job.pid, signal.SIGTERM)
        job.communicate()
        self.assertEqual(job.returncode, -signal.SIGTERM)
        self.until_server_is_gone()

    def test_the_command_keeps_its_gpus_and_the_server_has_all(self) -> None:
        out, _ = self.start("echo $CUDA_VISIBLE_DEVICES", CUDA_VISIBLE_DEVICES="1").communicate()
        self.assertEqual(out, "1\n")
        self.until_server_is_gone()

    def test_gpus_that_have_names_are_the_only_ones_of_the_server(self) -> None:
        out, _ = self.start("echo $CUDA_VISIBLE_DEVICES", CUDA_VISIBLE_DEVICES="GPU-1,GPU-2").communicate()
        self.assertEqual(out, "GPU-1,GPU-2\n")
        self.until_server_is_gone("GPU-1,GPU-2")

    def test_the_server_outlives_the_first_process_while_others_run(self) -> None:
        job = self.start("sh -c 'echo $$; exec sleep 1000' & wait")
        child = int(job.stdout.readline())
        job.kill()
        job.wait()
        time.sleep(0.2)  # a server that ends too early would show by now, on a machine that is not busy
        self.assertNotIn("quit", self.told.read_text())
        os.kill(child, signal.SIGKILL)
        job.communicate()
        self.until_server_is_gone()

    def test_a_server_that_does_not_start_is_told_and_the_command_runs(self) -> None:
        job = self.start("echo [$CUDA_MPS_PIPE_DIRECTORY]", REFUSES="1")
        out, error = job.communicate()
        self.assertEqual((job.returncode, out), (0, "[]\n"))
        self.assertIn("take turns on a GPU: refused", error)
        self.until_server_is_gone()

    def test_a_long_name_of_the_folder_for_temporary_files(self) -> None:
        long = self.temporary / ("x" * 100)
        long.mkdir()
        out, _ = self.start("echo $CUDA_MPS_PIPE_DIRECTORY", TMPDIR=str(long)).communicate()
        self.assertLess(len(out), 90)

    def test_mistakes(self) -> None:
        for command, environment, code, says in (
            (["-c"], {}, 127, "-c: not found"),
            (["true"], {"TMPDIR": f"{self.folder}/none"}, 2, "set TMPDIR to a folder that is writable"),
        ):
            script = [ROOT / "launch" / "share-gpu", *command]
            done = subprocess.run(script, env=self.environment | environment, capture_output=True, text=True)
            self.assertEqual(done.returncode, code)
            self.assertIn(says, done.stderr)
        self.until_server_is_gone()

    def test_without_mps_the_cost_is_told(self) -> None:
        (self.folder / "bin").mkdir()
        for name in ("dirname", "basename", "id", "sh", "bash", "env"):
            found = subprocess.run(["sh", "-c", f"command -v {name}"], capture_output=True, text=True).stdout.strip()
            (self.folder / "bin" / name).symlink_to(found)
        job = self.start("echo runs", PATH=f"{self.folder}/bin")
        out, error = job.communicate()
        self.assertEqual((job.returncode, out), (0, "runs\n"), error)
        self.assertIn("16,000", error)
