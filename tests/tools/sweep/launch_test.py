import os
import pathlib
from unittest import mock

from ddptools.common.errors import UsageError
from ddptools.common.mpirun import HYDRA, OPEN_MPI, find_mpirun
from ddptools.sweep import machine as machine_module
from ddptools.sweep.cases import Case, Layout
from ddptools.sweep.launch import Impossible, Launch, plan_launch
from ddptools.sweep.machine import Machine, find_machine, read_hostfile
from tests.tools.support import FolderCase, write_program


def case(**changes) -> Case:
    settings = {"ranks": 2, "layout": None, "gpus": "all", "cpus": "all", "flags": {"batch": 8}, "environment": {}}
    return Case("s", "main", **({"program": "ddptrain", "arguments": ()} | settings | changes))


def gpu_machine(count: int, **changes) -> Machine:
    settings = {"gpus": ["H"] * count, "visible_ids": [str(i) for i in range(count)]}
    return Machine("C", 8, "S", **(settings | changes))


class LaunchTest(FolderCase):
    def setUp(self) -> None:
        super().setUp()
        self.program = self.folder / "ddptrain"
        self.program.touch()

    def launch(self, machine: Machine, base: dict[str, str] | None = None, **changes) -> Launch:
        return plan_launch(case(**changes), machine, self.program, pathlib.Path("/r.jsonl"), base or {})

    def reason(self, machine: Machine, **changes) -> str:
        with self.assertRaises(Impossible) as caught:
            self.launch(machine, **changes)
        return str(caught.exception)

    def test_a_job_on_one_machine(self) -> None:
        launch = self.launch(gpu_machine(2))
        expected = ["mpirun", "--bind-to", "none", "--oversubscribe", "-np", "2", str(self.program), "--batch=8"]
        self.assertEqual(launch.command, [*expected, "--metrics", "/r.jsonl"])
        self.assertIsNone(launch.emulation)
        self.assertEqual(self.launch(gpu_machine(0), cpus="0,1").command[:4], ["taskset", "-c", "0,1", "mpirun"])

    def test_groups_are_jobs_that_share_a_log(self) -> None:
        alone = self.launch(gpu_machine(0), ranks=1).command
        command = self.launch(gpu_machine(0), ranks=1, groups=4).command
        self.assertEqual(pathlib.Path(command[0]).name, "local-groups")
        self.assertEqual(command[1:], ["4", *alone])
        self.assertIn("groups of a sweep share one machine", self.reason(gpu_machine(0), groups=4, layout=Layout(2, 1)))

    def test_another_program_gets_its_arguments_and_json(self) -> None:
        (self.folder / "ddpbench").touch()
        bench = case(program="ddpbench", arguments=("allreduce",), flags={})
        launch = plan_launch(bench, gpu_machine(2), self.folder / "ddpbench", pathlib.Path("/r"), {})
        self.assertEqual(launch.command[-4:], [str(self.folder / "ddpbench"), "allreduce", "--json", "/r"])

    def test_environment_is_set_and_taken_away(self) -> None:
        base = {"NCCL_ALGO": "Tree", "PATH": "/bin"}
        launch = self.launch(gpu_machine(2), base, environment={"NCCL_ALGO": "", "NCCL_PROTO": "LL"})
        self.assertEqual(launch.recorded_environment().get("NCCL_PROTO"), "LL")
        self.assertNotIn("NCCL_ALGO", launch.environment)
        self.assertEqual(launch.environment["PATH"], "/bin")
        self.assertIsNone(launch.changes["NCCL_ALGO"])
        self.assertIn("NCCL_PROTO=LL", launch.command)

    def test_gpus_are_chosen_among_those_that_are_visible(self) -> None:
        self.assertEqual(self.launch(gpu_machine(4), gpus="0,3").environment["CUDA_VISIBLE_DEVICES"], "0,3")
        some = gpu_machine(2, visible_ids=["5", "7"])
        self.assertEqual(self.launch(some, gpus="1,0").environment["CUDA_VISIBLE_DEVICES"], "7,5")
        self.assertNotIn("CUDA_VISIBLE_DEVICES", self.launch(gpu_machine(4)).changes)
        with mock.patch.object(machine_module, "_gpu_names", return_value=["A", "B", "C"]):
            self.assertEqual(find_machine({}).visible_ids, ["0", "1", "2"])
            some = find_machine({"CUDA_VISIBLE_DEVICES": "2,0"})
            self.assertEqual((some.gpus, some.visible_ids), (["C", "A"], ["2", "0"]))
            self.assertEqual(find_machine({"CUDA_VISIBLE_DEVICES": ""}).gpus, [])
        machine = gpu_machine(8, topology={"hosts": [{"nearest_pair": [0, 3], "farthest_pair": [1, 7]}]})
        self.assertEqual(self.launch(machine, gpus="best-pair").gpus, ["0", "3"])
        self.assertEqual(self.launch(machine, gpus="worst-pair").gpus, ["1", "7"])
        for hosts in ([], [{"nearest_pair": None}], [{"nearest_pair": ["a"]}]):
            self.assertIn("ddptopo", self.reason(gpu_machine(8, topology={"hosts": hosts}), gpus="best-pair"))
        for topology in (None, {}):
            self.assertIn("ddptopo", self.reason(gpu_machine(8, topology=topology), gpus="best-pair"))

    def test_what_cannot_run_here_is_told(self) -> None:
        self.assertIn("8 ranks need as many GPUs, and there are 4", self.reason(gpu_machine(4), ranks=8))
        self.assertIn("-np", self.launch(gpu_machine(1), ranks=8, flags={"share-gpu": True}).command)
        self.assertIn("no GPU 9", self.reason(gpu_machine(4), gpus="0,9"))
        self.assertIn("4 ranks need", self.reason(gpu_machine(8), gpus="0,1", ranks=4))
        self.assertIn("no GPU", self.reason(gpu_machine(0), flags={"device": "cuda"}))
        self.assertIn("does not use it", self.reason(gpu_machine(0), gpus="0,1"))
        self.assertIn("does not use it", self.reason(gpu_machine(4), gpus="0,1", flags={"device": "cpu"}))
        self.program.unlink()
        self.assertIn("there is no ddptrain", self.reason(gpu_machine(4)))

    def test_nodes_are_emulated_on_one_machine(self) -> None:
        launch = self.launch(gpu_machine(4), layout=Layout(2, 2), ranks=4, environment={"NCCL_ALGO": "Ring"})
        self.assertIn("NCCL_HOSTID", launch.emulation)
        self.assertEqual(launch.environment["NCCL_SOCKET_IFNAME"], "lo")
        command = launch.command
        colon = command.index(":")
        for number, part in enumerate((command[:colon], command[colon + 1 :])):
            self.assertEqual(part[part.index("-np") + 1], "2")
            self.assertIn(f"NCCL_HOSTID=node{number}", part)
            self.assertIn("NCCL_ALGO=Ring", part)
            self.assertIn("--batch=8", part)
        self.assertIsNone(self.launch(gpu_machine(4), layout=Layout(1, 4), ranks=4).emulation)
        launch = self.launch(gpu_machine(0), layout=Layout(2, 1))
        self.assertEqual(launch.environment["OMPI_MCA_btl"], "self,tcp")
        self.assertIn("tcp", launch.emulation)
        self.assertIn("one rank per node", self.reason(gpu_machine(0), layout=Layout(2, 2), ranks=4))

    def test_layouts_on_real_hosts_and_under_mpich(self) -> None:
        machine = gpu_machine(4, hosts=["a", "b", "c"])
        launch = self.launch(machine, layout=Layout(2, 2), ranks=4, environment={"NCCL_ALGO": "Ring"})
        self.assertIsNone(launch.emulation)
        self.assertEqual(launch.command[3:7], ["--host", "a:2,b:2", "--map-by", "ppr:2:node"])
        self.assertIn("NCCL_ALGO=Ring", launch.command)
        self.assertNotIn(":", launch.command)
        self.assertIn("needs 4 hosts, and there are 3", self.reason(machine, layout=Layout(4, 1), ranks=4))
        # Under MPICH.
        start = ["mpirun", "--bind-to", "none"]
        launch = self.launch(gpu_machine(2, mpirun=HYDRA), environment={"NCCL_ALGO": "Ring"})
        self.assertEqual(launch.command[:8], [*start, "-np", "2", "-env", "NCCL_ALGO", "Ring"])
        hosts = gpu_machine(4, mpirun=HYDRA, hosts=["a", "b"], hostfile=pathlib.Path("/h"))
        self.assertEqual(self.launch(hosts, layout=Layout(2, 2), ranks=4).command[3:5], ["-hosts", "a:2,b:2"])
        self.assertEqual(self.launch(hosts).command[3:5], ["-f", "/h"])
        self.assertIn("Open MPI only", self.reason(gpu_machine(0, mpirun=HYDRA), layout=Layout(2, 1)))

    def test_the_mpirun_is_known_by_what_it_says(self) -> None:
        says = {
            "mpirun (Open MPI) 4.1.4": OPEN_MPI,
            "mpirun (Open MPI) 5.0.7": OPEN_MPI,
            "HYDRA build details:\n    Version:      4.0.2": HYDRA,
            "Intel(R) MPI Library for Linux* OS, Version 2021.9": HYDRA,
        }
        for text, expected in says.items():
            with mock.patch("ddptools.common.mpirun.ask", return_value=text):
                self.assertIs(find_mpirun(), expected, text)
        self.assertIs(find_mpirun(str(self.folder / "none")), OPEN_MPI)

    def test_hosts(self) -> None:
        path = self.folder / "hosts"
        path.write_text("# mine\n\na slots=4\nb:4 # the other, as MPICH has it\na\n")
        self.assertEqual(read_hostfile(path), ["a", "b"])
        path.write_text("# none\n")
        with self.assertRaisesRegex(UsageError, "--hostfile"):
            read_hostfile(path)
        path.write_bytes(b"# mine\na\nb\0c\n")
        for file, why in ((path, "hosts: line 3 has a byte 0"), (pathlib.Path("/dev/zero"), "/dev/zero: is a device")):
            with self.assertRaisesRegex(UsageError, why):
                read_hostfile(file)
        reading, writing = os.pipe()
        os.write(writing, b"a\nb\n")
        os.close(writing)
        self.assertEqual(read_hostfile(pathlib.Path(f"/dev/fd/{reading}")), ["a", "b"])
        os.close(reading)
        write_program(self.folder / "scontrol", "#!/bin/sh\n[ \"$3\" = 'n[1-2]' ] && printf 'n1\\nn2\\n'\n")
        with mock.patch.dict(os.environ, {"PATH": f"{self.folder}:{os.environ['PATH']}"}):
            self.assertEqual(find_machine({"SLURM_JOB_NODELIST": "n[1-2]"}).hosts, ["n1", "n2"])
            with self.assertRaisesRegex(UsageError, "scontrol"):
                find_machine({"SLURM_JOB_NODELIST": "other"})
