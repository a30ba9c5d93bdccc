"""Meshes that ddpplan compares: each term of a step by hand, and with the real program."""

import dataclasses
import json
import re
import unittest
from typing import Any
from unittest import mock

from ddptools.common.errors import UsageError
from ddptools.plan import program
from ddptools.plan.mesh import Mesh, Meshes, PlannedMesh, meshes_of, predict_mesh
from ddptools.plan.prediction import Case, NetworkFit, predict
from ddptools.results.description import Buckets, Description, NotDescribed, Sent, parsed
from tests.tools.plan.support import output
from tests.tools.support import BIN, ROOT, gpt2_description, run_ranks

PAGE = ROOT / "docs" / "concepts" / "planning.md"
GBS = NetworkFit(per_rank_us=0.0, busbw_gbs=1.0)  # a rank sends 1e9 bytes in a second
WORK = Description(
    model="gpt", parameters=1e9, forward_flop=1e12, backward_flop=2e12, buckets=(Buckets(2e9, 1.0, 1.0),),
    gradient_dtype="bf16", batch=2, grad_accum=4, memory_bytes=30e9)  # fmt: skip


def planned(mesh: Mesh, *sends: Sent, case: dict[str, Any] | None = None, **work: Any) -> PlannedMesh:
    """On one node; a pass of an undivided model takes 6 s, 2 of them forward."""
    ranks = mesh.replicas * mesh.ranks_per_replica
    made = Case(dataclasses.replace(WORK, sends=sends, **work), 2.0, 1.0, gpus_per_node=ranks, intra_fit=GBS, inter_fit=GBS)
    return predict_mesh(dataclasses.replace(made, **case or {}), mesh)


class MeshTest(unittest.TestCase):
    def test_all_meshes_of_four_ranks(self) -> None:
        found = list(meshes_of(4))
        self.assertEqual(found[0], Mesh(4, 0, 1, 1))
        self.assertEqual([(m.replicas, m.stages, m.tensor) for m in found if m.zero == 0],
                         [(4, 1, 1), (2, 1, 2), (1, 1, 4), (2, 2, 1), (1, 2, 2), (1, 4, 1)])  # fmt: skip
        self.assertEqual([(m.replicas, m.stages, m.tensor) for m in found if m.zero == 3], [(4, 1, 1), (2, 1, 2), (2, 2, 1)])

    def test_data_parallelism_is_what_the_planner_predicts_without_meshes(self) -> None:
        for zero in (0, 1):
            found = planned(Mesh(2, zero, 1, 1))
            plain = predict(Case(WORK, 2.0, 1.0, gpus_per_node=2, grad_accum=4, intra_fit=GBS))
            self.assertEqual((found.step_seconds, found.samples_per_second), (plain.step_seconds, plain.samples_per_second))
            self.assertEqual(found.data_seconds, 2.0)  # complete at the end
            self.assertAlmostEqual(found.memory_gb, 30.0)

    def test_zero_2_scatters_the_gradients_of_every_pass(self) -> None:
        self.assertAlmostEqual(planned(Mesh(2, 2, 1, 1)).data_seconds, 2.0)  # 3 times 1 s beneath 20 s
        self.assertAlmostEqual(planned(Mesh(2, 2, 1, 1), case={"overlap": False}).data_seconds, 5.0)
        slow = {"intra_fit": NetworkFit(per_rank_us=0.0, busbw_gbs=0.1)}
        self.assertAlmostEqual(planned(Mesh(2, 2, 1, 1), case=slow).data_seconds, 20.0 + (30.0 - 20.0))

    def test_zero_3_gathers_weights_before_their_use(self) -> None:
        gathers = Sent("gather", "use", 16, 12e9)  # once, 1e9 bytes, are counted with the gradients of the last pass
        self.assertAlmostEqual(planned(Mesh(2, 3, 1, 1), gathers, case={"overlap": False}).data_seconds, 5.0 + 11.0)
        self.assertAlmostEqual(planned(Mesh(2, 3, 1, 1), gathers).data_seconds, 2.0)
        gathers = Sent("gather", "use", 16, 31e9)
        self.assertAlmostEqual(planned(Mesh(2, 3, 1, 1), gathers).data_seconds, 2.0 + (30.0 + 3.0 - 20.0))

    def test_stages_wait_and_send(self) -> None:
        found = planned(Mesh(1, 0, 2, 1))
        self.assertAlmostEqual(found.compute_seconds, 4 * 6.0 / 2)
        self.assertAlmostEqual(found.bubble, 1 / 5)
        self.assertAlmostEqual(found.step_seconds, 12.0 * 5 / 4)
        self.assertAlmostEqual(found.samples_per_second, 8 / 15.0)
        sends = Sent("pipeline", "forward", 4, 3e9), Sent("pipeline", "backward", 4, 1e9)
        found = planned(Mesh(1, 0, 2, 1), *sends)
        self.assertAlmostEqual(found.pipeline_seconds, 4.0)
        self.assertAlmostEqual(found.step_seconds, (12.0 + 4.0) * 5 / 4)

    def test_split_layers_exchange_and_weight_gradients_hide_those_of_backward(self) -> None:
        forward, backward = Sent("tensor", "forward", 8, 3e9), Sent("tensor", "backward", 8, 7e9)
        for case, exposed in (({}, 3.0 + 7.0 - 4.0), ({"overlap": False}, 3.0 + 7.0)):  # 4 s of 12 are forward
            found = planned(Mesh(1, 0, 1, 2), forward, backward, case=case)
            self.assertAlmostEqual(found.tensor_seconds, exposed)
            self.assertAlmostEqual(found.step_seconds, 12.0 + exposed)
        self.assertAlmostEqual(planned(Mesh(1, 0, 1, 2), dataclasses.replace(backward, bytes=3e9)).tensor_seconds, 0.0)
        # Latency: half that of an all-reduce, for each.
        late = {"intra_fit": NetworkFit(per_rank_us=2e6, busbw_gbs=1.0), "overlap": False}
        self.assertAlmostEqual(planned(Mesh(1, 0, 1, 2), forward, case=late).tensor_seconds, 3.0 + 8 * 1.0)
        of_both = planned(Mesh(1, 0, 2, 2), forward)
        self.assertAlmostEqual(of_both.step_seconds, (6.0 + 3.0) * 5 / 4)  # a stage waits for the sums of others, too

    def test_tensor_ranks_are_neighbours_and_axes_share_the_adapters(self) -> None:
        modelled = {"intra_fit": None, "inter_fit": None, "gpus_per_node": 4, "nodes": 2, "intra_gbs": 100.0, "inter_gbs": 8.0}
        tensor, data = Sent("tensor", "forward", 1, 1e9), Buckets(1e9, 1.0, 1.0)
        for mesh, seconds in ((Mesh(2, 0, 1, 4), 0.01), (Mesh(1, 0, 1, 8), 0.125)):
            self.assertAlmostEqual(planned(mesh, tensor, case=modelled).tensor_seconds / seconds, 1.0, delta=0.02)
        for mesh, gbs in ((Mesh(8, 0, 1, 1), 8.0 / 1.75), (Mesh(2, 0, 1, 4), 2.0), (Mesh(4, 0, 1, 2), 4.0 / 1.5)):
            found = planned(mesh, case=modelled, buckets=(data,))
            self.assertAlmostEqual(found.data_seconds * gbs, 1.0, delta=0.05, msg=str(mesh))
        for mesh, gbs in ((Mesh(4, 0, 2, 1), 2.0), (Mesh(1, 0, 8, 1), 8.0)):
            found = planned(mesh, Sent("pipeline", "forward", 1, 1e9), case=modelled)
            self.assertAlmostEqual(found.pipeline_seconds, 1.0 / gbs)
        self.assertAlmostEqual(planned(Mesh(1, 0, 2, 1), Sent("pipeline", "forward", 1, 1e9),
                                       case={"intra_fit": None, "intra_gbs": 50.0}).pipeline_seconds, 0.02)  # fmt: skip

    def test_the_fastest_that_fits_is_proposed_and_of_equals_the_simplest(self) -> None:
        made = planned(Mesh(4, 0, 1, 1))
        rows = [(90.0, 20.0), (70.0, 9.97), (60.0, 10.0), (50.0, 9.0)]
        all_of_them = [dataclasses.replace(made, mesh=Mesh(4, i, 1, 1), memory_gb=memory, samples_per_second=rate)
                       for i, (memory, rate) in enumerate(rows)]  # fmt: skip
        for there_gb, proposed in ((100.0, 0), (80.0, 1), (60.0, 2), (55.0, 3), (10.0, None)):
            meshes = Meshes(there_gb, all_of_them)
            found = meshes.document()["fastest"]
            self.assertEqual(found and found["zero"], proposed)
            self.assertEqual([mesh["fits"] for mesh in meshes.document()["meshes"]], [m <= there_gb for m, _ in rows])
        self.assertIn("None fits", meshes.table().footnote)
        self.assertIn("do not fit a GPU's 10 GB (!)\n", meshes.table().footnote)
        more = Meshes(80.0, 6 * all_of_them).table()
        self.assertIn("(!). The first 20 of 24; --json has all", more.footnote)


class ProgramTest(unittest.TestCase):
    def test_every_mesh_is_described(self) -> None:
        told = parsed(gpt2_description(memory={"weights": 90e9}))
        with mock.patch.object(program, "describe", return_value=told) as describe:
            words = output("--mesh", "4", "--gpu", "h100", "--grad-accum", "3", "--batch", "5")
        asked = {tuple(call.args[2]) for call in describe.call_args_list[1:]}
        self.assertEqual(asked, {(f"--zero={m.zero}", f"--pp={m.stages}", f"--tp={m.tensor}", "--ranks=4", "--batch=5",
                                  f"--grad-accum={3 * m.stages * m.tensor}") for m in meshes_of(4)})  # fmt: skip
        self.assertIn("90!", words)
        self.assertIn("None fits: give a smaller --batch", words)

    def test_meshes_that_ddptrain_refuses_are_asked_for_once(self) -> None:
        told = parsed(gpt2_description(memory={"weights": 9e9}))

        def refuse(_program, _flags, more=()):
            asked = dict(word.removeprefix("--").split("=") for word in more)
            if int(asked.get("pp", 1)) > 12:
                raise NotDescribed("--pp 16: the model has 12 blocks")
            if 12 % int(asked.get("tp", 1)):
                raise NotDescribed("--tp 8: it does not divide --heads 12")
            return told

        with mock.patch.object(program, "describe", side_effect=refuse) as describe:
            words = output("--mesh", "4096", "--gpu", "h100", "--batch", "1")
        self.assertIn("Fastest that fits", words)
        self.assertLess(len(describe.call_args_list), 80)
        with mock.patch.object(program, "describe", side_effect=[told, *[NotDescribed(f"reason {i}") for i in range(99)]]):
            with self.assertRaisesRegex(UsageError, "--mesh 8: reason 0"):
                output("--mesh", "8", "--gpu", "h100")

    def test_cores_have_no_limit_of_a_gpu(self) -> None:
        told = parsed(gpt2_description(memory={"weights": 90e9}, device="cpu"))
        with mock.patch.object(program, "describe", return_value=told):
            words = output("--mesh", "4", "--tflops", "1", "--link", "5")
            self.assertNotIn("inf", words)
            self.assertNotIn("GPU's", words)
            self.assertIn("Fastest: --zero 0", words)
            self.assertIn("do not fit 80 GB of a rank (!)", output("--mesh", "4", "--tflops", "1", "--link", "5", "--memory", "80"))

    @unittest.skipUnless((BIN / "ddptrain").exists(), f"no ddptrain in {BIN}")
    def test_thousands_of_ranks_with_the_real_program(self) -> None:
        found = json.loads(output("--bin", str(BIN), "--model", "cnn", "--mesh", "1000", "--batch", "512", "--json"))
        self.assertEqual([each["mesh"]["zero"] for each in found["meshes"]], [0, 1, 2, 3])

    def test_meshes_of_cores_need_the_rates_of_the_networks_that_they_use(self) -> None:
        told = parsed(gpt2_description(device="cpu"))

        def describe_data_alone(_program, _flags, more=()):
            if {"--pp=1", "--tp=1"} <= set(more) or not more:
                return told
            raise NotDescribed("--tp 2: no")

        given = ["--mesh", "4", "--tflops", "1", "--gpus-per-node", "2"]
        with mock.patch.object(program, "describe", side_effect=describe_data_alone):
            with self.assertRaisesRegex(UsageError, "^--network: CPUs have no default"):
                output(*given)
            output(*given, "--network", "1")  # ranks of a node add up first
        with mock.patch.object(program, "describe", return_value=told):
            with self.assertRaisesRegex(UsageError, "^MPI has no default rate within a node: give --link,"):
                output(*given, "--network", "1")
            self.assertIn("Fastest: ", output(*given, "--network", "1", "--link", "5"))

    @unittest.skipUnless((BIN / "ddptrain").exists(), f"no ddptrain in {BIN}")
    def test_the_documentation_has_the_rates_that_its_command_prints(self) -> None:
        page = PAGE.read_text()
        command = re.search(r"`build/bin/ddpplan (--mesh 2 .*?)`", page).group(1).split()
        rows = re.findall(r"(?m)^\| `(--[^`]*)` \| ([\d, to]+) \| ([\d,]+) \|$", page)
        self.assertEqual(len(rows), 6)
        excess: dict[str, list[int]] = {"data": [], "tensor": []}
        for flags, measured, told in rows:
            typed = dict(re.findall(r"--(\S+) (\d+)", flags))
            batch = ["--batch", typed["batch"]] if "batch" in typed else []
            found = json.loads(output("--bin", str(BIN), *command, *batch, "--json"))["meshes"]
            mesh = [int(typed.get(name, least)) for name, least in (("zero", 0), ("pp", 1), ("tp", 1))]
            rate = 1024 * next(m["samples_per_second"] for m in found if list(m["mesh"].values())[1:] == mesh)
            self.assertEqual(f"{round(rate, -3):,.0f}", told, flags)
            axis = "tensor" if "tp" in typed else "data" if "zero" in typed else ""
            for number in re.findall(r"[\d,]+", measured) if axis else []:
                excess[axis].append(round(100 * rate / int(number.replace(",", "")) - 100))
        for axis, values in excess.items():
            self.assertRegex(page, rf"{min(values)}\s+to\s+{max(values)}% too high\s+for\s+{axis} parallelism")

    @unittest.skipUnless((BIN / "ddptrain").exists(), f"no ddptrain in {BIN}")
    def test_with_the_real_program(self) -> None:
        shape = ["--layers=2", "--width=72", "--heads=6", "--ff=128", "--seq=16", "--vocab=100"]
        found = json.loads(output("--bin", str(BIN), "--model", "gpt", "--mesh", "4", "--batch", "2", "--json", "--", *shape))
        meshes = {tuple(each["mesh"].values()): each for each in found["meshes"]}
        self.assertEqual(set(meshes), {(4, z, 1, 1) for z in range(4)} | {(2, z, p, t) for z in range(4) for p, t in ((1, 2), (2, 1))}
                         | {(1, 0, 2, 2)})  # 4 stages of 2 blocks, and 4 parts of 6 heads, there are none
        self.assertEqual(found["fastest"]["zero"], 0)
        flags = ["--model=gpt", "--device=cuda", f"--data=synthetic:{program.SYNTHETIC_SIZE}", *shape, "--batch=2", "--ranks=4", "--pp=2", "--zero=3"]
        told = json.loads(run_ranks(1, *flags, "--grad-accum=2", "--describe").stdout)
        self.assertAlmostEqual(meshes[(2, 3, 2, 1)]["memory_gb"], 1e-9 * sum(told["memory"].values()))
        self.assertEqual(meshes[(2, 3, 2, 1)]["passes"], 2)
