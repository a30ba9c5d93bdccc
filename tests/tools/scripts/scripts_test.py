"""The scripts of launch/: --help of each, and what launch/hosts/ says of hosts and passes on, with programs that stand in for
ssh and mpirun."""

import os
import pathlib
import shutil
import subprocess

from tests.tools.support import ROOT, FolderCase, write_program

LAUNCH = ROOT / "launch"
SSH = pathlib.Path(__file__).parent / "stand_ins" / "ssh"
# What an installation or a job would call first. Each leaves a file, and fails.
CALLED = ("apt-get", "sudo", "cmake", "mpirun", "ssh", "dpkg-query")


class ScriptsTest(FolderCase):
    def setUp(self) -> None:
        super().setUp()
        for name in CALLED:
            self.stand_in(name, f"#!/bin/sh\n: > {self.folder}/called-{name}\nexit 1\n")

    def stand_in(self, name: str, text: str) -> None:
        write_program(self.folder / "bin" / name, text)

    def call(self, *command: object) -> subprocess.CompletedProcess:
        environment = os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "COLUMNS": "300"}
        words = [str(word) for word in command]
        return subprocess.run(words, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=300)

    def test_help(self) -> None:
        found = [path for pattern in ("*", "hosts/*", "slurm/*", "container/*") for path in LAUNCH.glob(pattern)]
        scripts = [path for path in found if path.is_file() and path.read_bytes()[:2] == b"#!"]
        self.assertGreater(len(scripts), 14)
        for script in scripts:
            with self.subTest(script=script.name):
                run = self.call(script, "--help")
                self.assertEqual((run.returncode, run.stderr), (0, ""))
                self.assertEqual(self.call(script, "-h").stdout, run.stdout)
                self.assertIn(script.name, run.stdout)
                self.assertNotIn("source ", run.stdout)  # more than the comment
                self.assertEqual([line for line in run.stdout.splitlines() if len(line) > 100], [])
        for verb in ("up", "down", "run", "exec"):
            self.assertEqual(self.call(LAUNCH / "emulate-hosts", verb, "-h").returncode, 0)
        self.assertEqual(list(self.folder.glob("called-*")), [])

    def test_quickstart_with_more_ranks_than_gpus(self) -> None:
        for name in ("setup", "share-gpu"):
            write_program(self.folder / "launch" / name, '#!/bin/sh\n[ $# = 0 ] || printf "%s " "$@" > started\n')
        for name in ("quickstart", "lib.sh"):
            shutil.copy(LAUNCH / name, self.folder / "launch")
        (self.folder / "build").mkdir()
        (self.folder / "build" / "CMakeCache.txt").write_text("DDPTRAIN_CUDA_BACKEND:INTERNAL=ON\n")
        self.stand_in("cmake", "#!/bin/sh\n")
        self.stand_in("mpirun", "#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n")
        self.stand_in("nvidia-smi", "#!/bin/sh\necho 'GPU 0: stand-in'\n")
        quickstart = self.folder / "launch" / "quickstart"
        for arguments, code, says in (
            (("--ranks",), 2, "--ranks: give a number"),
            (("--ranks", "0"), 2, "--ranks 0: give a number"),
            (("--ranks", "4", "--steps", "9"), 0, ""),
        ):
            run = self.call("env", "-u", "CUDA_VISIBLE_DEVICES", quickstart, *arguments)
            self.assertEqual(run.returncode, code, run.stderr)
            self.assertIn(says, run.stderr)
        started = "mpirun -np 4 --bind-to none --oversubscribe build/bin/ddptrain --share-gpu --model cnn --steps 9 "
        self.assertEqual((self.folder / "started").read_text(), started)

    def check_ssh(self, hosts: str) -> subprocess.CompletedProcess:
        shutil.copy(SSH, self.folder / "bin" / "ssh")
        (self.folder / "hostfile").write_text(hosts)
        return self.call(LAUNCH / "hosts" / "check-ssh", "hostfile")

    def test_this_machine_needs_no_ssh(self) -> None:
        self.stand_in("orted", "#!/bin/sh\n")
        (self.folder / "hostfile").write_text(f"localhost\n127.0.0.2 slots=2\n{os.uname().nodename}\n")
        check = LAUNCH / "hosts" / "check-ssh"
        for program, said in (("bin/orted", ": good\n"), ("bin/none", ": use a folder that all hosts share\n")):
            self.assertEqual(self.call(check, "hostfile", program).stdout.count(said), 3)
        self.assertFalse((self.folder / "called-ssh").exists())

    def test_every_host_is_checked_and_what_is_wrong_told_apart(self) -> None:
        for end in ("", "\n", "\n# ours\n\n", "\r\n\r\n"):
            run = self.check_ssh(f"# two\ngood slots=8\ndown slots=8{end}")
            self.assertEqual((run.returncode, run.stdout.count("\n")), (77, 2), run.stdout)
        self.assertEqual(self.check_ssh("down\r\ngood\r\n").stdout.splitlines()[1], "good: good")
        for host, says, code in (
            ("good", "good: good", 0),
            ("asks", "asks: no ssh without a password (ssh-copy-id asks): Permission denied", 1),
            ("unknown", "unknown: its key is unknown (ssh-keyscan unknown >> ~/.ssh/known_hosts): Host key", 1),
            ("down", "down: no answer: ssh: connect to host down port 22: No route to host", 77),
            ("no-mpi", "no-mpi: no Open MPI in the PATH", 1),
            ("no-program", f"no-program: no {self.folder.resolve()}/build/bin/ddptrain: use a folder", 1),
            ("-oProxyCommand=touch", "-oProxyCommand=touch: the name of a host cannot begin with -", 1),
        ):
            with self.subTest(host=host):
                run = self.check_ssh(f"{host} slots=8\n")
                self.assertEqual(run.returncode, code)
                self.assertTrue(run.stdout.startswith(says), run.stdout)
        self.assertNotIn("-oProxyCommand", (self.folder / "asked").read_text())
        for hosts, code in (("down\nno-mpi\n", 1), ("no-mpi\ndown\n", 1), ("down\ngood\n", 77)):
            self.assertEqual(self.check_ssh(hosts).returncode, code)

    def test_hosts_that_cannot_be_used(self) -> None:
        run = self.call(LAUNCH / "hosts" / "check-ssh", "no-such-file")
        self.assertEqual(run.returncode, 2)
        self.assertIn("no-such-file: there is no such hostfile", run.stderr)
        self.check_ssh("good\ndown\n")
        run = self.call(LAUNCH / "check-hosts", "hostfile")
        self.assertEqual(run.returncode, 77)
        self.assertFalse((self.folder / "called-mpirun").exists())

    def test_train_passes_flags_on(self) -> None:
        self.stand_in("mpirun", '#!/bin/sh\n[ "$1" = --version ] || printf "%s\\n" "$@" > asked\n')
        shutil.copy(SSH, self.folder / "bin" / "ssh")
        (self.folder / "hostfile").write_text("good slots=2\n")
        environment = {"NCCL_SOCKET_IFNAME": "eth1", "DDPTRAIN": "bin/ddptrain"}
        flags = ["--restarts", "0", "--checkpoint=c", "--log=some.log", "--log-every", "7"]
        run = self.call("env", *(f"{name}={value}" for name, value in environment.items()),
                        LAUNCH / "hosts" / "train", "hostfile", *flags)  # fmt: skip
        self.assertEqual(run.returncode, 0, run.stderr)
        asked = (self.folder / "asked").read_text().split()
        self.assertEqual(asked[asked.index("-x") + 1], "NCCL_SOCKET_IFNAME")
        after = asked[asked.index(f"{self.folder.resolve()}/bin/ddptrain") + 1 :]
        self.assertEqual(after, ["--checkpoint=c", "--log-every", "7", "--resume", "auto"])
        self.assertIn("exit code 0", (self.folder / "some.log").read_text())

    def test_starts_under_slurm_that_fail_at_once(self) -> None:
        """They return to the queue nine times, and again after a new checkpoint."""
        self.stand_in("squeue", "#!/bin/sh\necho RUNNING\n")
        job = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "15", "RESTARTS": "0"}
        flags = ["--model", "a b"]
        for name in ("srun", "mpirun"):
            self.stand_in(name, "#!/bin/sh\nexit 1\n")
            checkout, requeued = self.folder / f"{name} of me", self.folder / f"{name}-requeued"
            script = checkout / "launch" / "slurm" / f"{name}.sbatch"
            write_program(script, (LAUNCH / "slurm" / script.name).read_text())
            write_program(checkout / "build" / "bin" / "ddptrain", "")
            shown = f"echo '   Command={script} {' '.join(flags)}'"
            self.stand_in("scontrol", f"#!/bin/sh\n[ $1 = show ] && {shown} || echo >> '{requeued}'\n")
            variables = [f"{key}={value}" for key, value in (job | {"CHECKPOINT": name}).items()]
            for count in (9, 18):
                for _ in range(11):
                    run = self.call("env", *variables, "bash", script, *flags)
                    self.assertEqual(run.returncode, 1, run.stderr)
                self.assertEqual(requeued.read_text().count("\n"), count)
                write_program(self.folder / name / "step-1" / "manifest.json", "{}")
