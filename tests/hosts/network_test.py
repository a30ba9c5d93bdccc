#!/usr/bin/env python3
"""Sums over hosts: what they send, which bits they give, and the sweep over layouts on a network whose rate is limited. Ranks
of one host in containers of their own."""

import json
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "faults"))
from emulated import HostsCase, skip_without_namespaces  # noqa: E402
from support import BIN, ENVIRONMENT, ROOT, FolderCase, run  # noqa: E402

RUN = ["--device=cpu", "--data=synthetic:256", "--batch=2", "--eval-samples=8"]
GRADIENTS = 4800512  # bytes of the CNN's buckets for two ranks
ON_ONE_HOST = ["mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none", "--mca", "btl", "self,tcp"]
CONTAINER = ["unshare", "--mount", "--ipc", "--pid", "--fork", "--mount-proc", "sh", "-c",
             'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh"]  # fmt: skip


class NetworkTest(HostsCase):
    count = 4

    def call(self, *command: str) -> str:
        return run(self.hosts.on(self.hosts.names[0], *command), cwd=self.folder, timeout=900).stdout

    def train(self, layout: tuple[int, int], steps: int, *flags: str) -> dict:
        """The summary."""
        hosts, per_host = layout
        places = ",".join(f"{name}:{per_host}" for name in self.hosts.names[:hosts])
        mpirun = ["mpirun", "--oversubscribe", "--bind-to", "none", "--host", places, "-np", str(hosts * per_host)]
        baseline = [] if "--baseline=on" in flags else ["--baseline=off"]
        program = [str(BIN / "ddptrain"), *RUN, *baseline, f"--steps={steps}", "--metrics=m.jsonl", *flags]
        self.call(*mpirun, *program)
        return self.lines("m.jsonl")[-1]

    def sent(self) -> int:
        return int(self.hosts.do(self.hosts.names[0], "cat /sys/class/net/eth0/statistics/tx_bytes"))

    def sent_per_step(self, layout: tuple[int, int], *flags: str) -> float:
        """By the first host; what a job sends besides is in a longer and a shorter run alike."""
        marks = [self.sent()]
        for steps in (12, 2):
            self.train(layout, steps, "--model=cnn", *flags)
            marks.append(self.sent())
        long, short = marks[1] - marks[0], marks[2] - marks[1]
        return (long - short) / 10

    def test_bytes_over_the_network(self) -> None:
        for layout, flags, expected in (
            ((2, 1), [], GRADIENTS),
            ((2, 2), [], GRADIENTS),
            ((2, 1), ["--comm-dtype=bf16"], GRADIENTS / 2),
            ((4, 1), [], 1.5 * GRADIENTS),
            ((2, 2), ["--hierarchical=off"], 2 * GRADIENTS),  # two ranks share the card
            ((4, 1), ["--hierarchical=off"], 1.5 * GRADIENTS),
        ):
            with self.subTest(layout=layout, flags=flags):
                sent = self.sent_per_step(layout, *flags)
                print(f"{layout[0]}x{layout[1]} {flags}: {sent / 1e6:.2f} MB a step, of which data {expected / 1e6:.2f}")
                self.assertGreater(sent, 0.99 * expected)
                self.assertLess(sent, 1.12 * expected)  # frames, acknowledgements

    def test_layouts_give_the_same_bits(self) -> None:
        two, four = ((1, 2), (2, 1)), ((1, 4), (2, 2), (4, 1), (2, 1))
        for layouts, *flags in ((two,), (two, "--comm-dtype=bf16"), (two, "--virtual-ranks=2"), (four, "--virtual-ranks=4")):
            with self.subTest(flags=flags):
                runs = [self.train(layout, 6, "--model=cnn", *flags) for layout in layouts]
                self.assertEqual([run["nodes"] for run in runs], [hosts for hosts, _ in layouts])
                self.assertEqual(len({run["parameter_hash"] for run in runs}), 1)

    def test_sums_beneath_the_next_forward_pass_change_no_bit(self) -> None:
        often = ["--eval-every=2", "--verify-every=3", "--log-every=2", "--checkpoint-every=2"]
        flags = ["--model=cnn", "--grad-accum=2", *often]
        modes = ("on", "backward", "off")
        runs = [self.train((2, 1), 7, *flags, f"--checkpoint={mode}", f"--overlap={mode}") for mode in modes]
        self.assertEqual(len({run["parameter_hash"] for run in runs}), 1)
        self.assertEqual(len({run["loss"] for run in runs}), 1)

    def test_forward_waits_only_for_the_weights_that_it_reads(self) -> None:
        self.limit_rate(2, 50)
        # A rank that stands still for longer than a sum takes begins its forward pass after the sum.
        last_first = ["bucket 1 update", "bucket 0 update"]
        for mode, expected, trials in (("on", [last_first] * 2, 8), ("backward", [], 1)):
            seen: list[list[list[str]]] = []
            while len(seen) < trials and expected not in seen:
                seen.append(self.updates_beneath_forward(mode))
            self.assertEqual(seen[-1], expected, f"{mode}: {seen}")

    def updates_beneath_forward(self, mode: str) -> list[list[str]]:
        """Of three steps: for each forward pass with updates, their order."""
        self.train((2, 1), 3, "--model=cnn", f"--overlap={mode}", "--trace=t.json")
        spans = [span for span in json.loads((self.folder / "t.json").read_text())["traceEvents"] if span["ph"] == "X"]
        mine = sorted((span for span in spans if span["pid"] == 0), key=lambda span: span["ts"])
        updates = [span for span in mine if span["name"].endswith("update")]
        orders = []
        for each in (span for span in mine if span["name"] == "forward"):
            within = [span["name"] for span in updates if each["ts"] < span["ts"] < each["ts"] + each["dur"]]
            orders += [within] if within else []
        return orders

    def limit_rate(self, hosts: int, mbit: int) -> None:
        for name in self.hosts.names[:hosts]:
            self.hosts.do(name, f"tc qdisc replace dev eth0 root tbf rate {mbit}mbit burst 64kb latency 100ms")
            self.addCleanup(self.hosts.do, name, "tc qdisc del dev eth0 root")

    def test_time_in_which_messages_travel_is_waiting(self) -> None:
        self.limit_rate(2, 100)
        flags = ["--model=cnn"]  # of a step, the bytes take 0.4 s and compute nearly nothing
        for _ in range(3):  # other programs may slow the compute of one of the two runs
            on, off = (self.train((2, 1), 14, *flags, f"--overlap={mode}")["waits_for_replicas"] for mode in ("on", "off"))
            print(f"{100 * on:.1f}% waiting, with --overlap off {100 * off:.1f}%")
            if on > 0.8 * off:
                return
        self.fail("with overlap, waits do not count")

    def test_messages_take_their_time_although_other_programs_take_the_cores(self) -> None:
        mbit = 200
        self.limit_rate(2, mbit)
        for _ in range(os.cpu_count() or 1):
            loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            self.addCleanup(loop.wait)
            self.addCleanup(loop.kill)
        summary = self.train((2, 1), 8, "--model=cnn", "--baseline=on", "--calibration-seconds=2")
        on_the_wire = 8 * GRADIENTS / (mbit * 1e6)
        print(f"step {1e3 * summary['step_seconds']:.0f} ms, on the wire {1e3 * on_the_wire:.0f} ms")
        self.assertGreater(summary["step_seconds"], 0.95 * on_the_wire)

    def test_hosts_of_one_machine_share_its_cores(self) -> None:
        cores = os.sched_getaffinity(0)
        if len(cores) >= 4 * 2:
            self.skipTest("needs fewer cores")
        summary = self.train((4, 1), 2, "--model=cnn", f"--threads={len(cores) // 4 + 1}")
        self.assertRegex(summary["disturbed"], f"^[0-9]+ threads share {len(cores)} cores?$")

    def test_sweep_over_layouts(self) -> None:
        (self.folder / "hosts").write_text("".join(f"{name}\n" for name in self.hosts.names))
        sweep = [str(BIN / "ddpsweep"), str(ROOT / "configs" / "sweeps" / "node-layout-network.toml"), "--hostfile=hosts"]
        short = ["--repeats=1", "--set=batch=2", "--set=steps=4", "--set=log-every=2", "--set=data=synthetic:256",
                 "--set=calibration-seconds=1"]  # fmt: skip
        self.call(*sweep, *short, "--out=out")
        self.assertEqual(len(self.lines("out/results.jsonl")), 9)
        self.call(str(BIN / "ddpreport"), "out", "--md=report.md")
        report = (self.folder / "report.md").read_text()
        for layout in ("1x4", "2x2", "4x1"):
            self.assertIn(layout, report)
        self.assertNotIn("emulated", report)  # by NCCL_HOSTID or MPI's transport: these hosts are hosts


class ContainersTest(FolderCase):
    """One container per rank: the ranks have processes, files, shared memory and names of IPC of their own, and count as
    ranks of one host all the same."""

    @classmethod
    def setUpClass(cls) -> None:
        skip_without_namespaces()

    def check_one_host(self, container: list[str]) -> None:
        flags = ["--device=cpu", "--baseline=off", "--model=mlp", "--hidden=16", "--data=synthetic:64", "--batch=8"]
        program = [BIN / "ddptrain", *flags, "--steps=4", "--metrics=m.jsonl"]
        run([*ON_ONE_HOST, *container, *program], cwd=self.folder, env=ENVIRONMENT)
        summary = self.lines("m.jsonl")[-1]
        self.assertEqual((summary["nodes"], summary["local_world_size"]), (1, 2))

    def test_they_are_one_host(self) -> None:
        self.check_one_host(CONTAINER)

    def test_they_are_one_host_under_names_of_their_own(self) -> None:
        self.check_one_host(["unshare", "--uts", "sh", "-c", 'hostname "node$OMPI_COMM_WORLD_RANK" && exec "$@"', "sh"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
