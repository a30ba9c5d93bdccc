"""The rates that ddpplan takes from runs and benchmarks, and what it says with them."""

import contextlib
import dataclasses
import io
import json
import unittest
from typing import Any
from unittest import mock

from ddptools.common.errors import UsageError
from ddptools.plan import program
from ddptools.plan.calibration import calibrate, load_records
from ddptools.plan.measured import NotMeasured, measured_runs, tflops_of, warning_of
from ddptools.plan.prediction import Case, NetworkFit, Prediction, predict
from ddptools.results.description import parsed
from tests.tools.plan.support import output
from tests.tools.support import ROOT, FolderCase, cnn_description, gpt2_description, write_lines

WORK = parsed(cnn_description())


def summary(ranks: int, rate: float, baseline: float | None = None, **changes: Any) -> dict[str, Any]:
    return {"event": "summary", "model": "cnn", "device": "cuda", "precision": "bf16", "world_size": ranks, "nodes": 1,
            "batch_per_rank": 512, "grad_accum": 1, "description": cnn_description(), "images_per_second": rate,
            "baseline_per_second": baseline} | changes  # fmt: skip


def bench(ranks: int, per_rank_us: float, busbw: float) -> dict[str, Any]:
    fit = NetworkFit(per_rank_us, busbw, base_us=5.0)
    rows = [{"bytes": size, "time_us": fit.microseconds(size, ranks)} for size in (1e3, 1e5, 1e7, 1e9)]
    return {"benchmark": "allreduce", "ranks": ranks, "results": rows}


def predicted(*records: dict[str, Any]) -> list[Prediction]:
    """Of each run of several ranks, with the network of all of them and its own one-rank baseline."""
    network, runs = calibrate(records), measured_runs(records)
    cases = [(network.network_of(run.case), run.baseline_per_second) for run in runs if run.case.gpus > 1]
    return [predict(dataclasses.replace(case, tflops=1e-12 * case.work.flop * rate)) for case, rate in cases]


class ComputeRatesTest(unittest.TestCase):
    """By model and batch."""

    def test_a_batch_has_the_rate_of_its_runs_or_is_between_two(self) -> None:
        runs = [summary(1, rate) for rate in (4e6, 4.2e6, 4.1e6)]
        measured = calibrate([*runs, summary(2, 13e6, 6.6e6, batch_per_rank=8192)]).runs
        small, large = 512 / 4.1e6, 8192 / 6.6e6
        for batch, seconds in ((512, small), (8192, large), ((512 + 8192) / 2, (small + large) / 2)):
            self.assertAlmostEqual(batch * WORK.flop / (1e12 * tflops_of(WORK, batch, measured)), seconds)
        for batch in (511, 8193):
            with self.assertRaisesRegex(NotMeasured, f"batches from 512 to 8192 per rank, not {batch}: .* --tflops"):
                tflops_of(WORK, batch, measured)
        with self.assertRaisesRegex(NotMeasured, "its runs are of cnn .* not of gpt"):
            tflops_of(parsed(gpt2_description()), 512, measured)

    def test_another_precision_or_device_is_other_work(self) -> None:
        told = cnn_description(precision="fp32", device="cuda")
        calibration = calibrate([summary(1, 2e5, description=told)])
        self.assertAlmostEqual(tflops_of(parsed(told), 512, calibration.runs), WORK.flop * 2e5 / 1e12)
        for change in ({"precision": "bf16"}, {"device": "cpu"}):
            with self.assertRaises(NotMeasured):
                tflops_of(parsed(told | change), 512, calibration.runs)

    def test_what_all_runs_were_made_with_is_asked_of_ddptrain(self) -> None:
        told = cnn_description(precision="bf16", device="cuda", gradient_dtype="fp32")
        asked = parsed(cnn_description(precision="bf16", device="cuda", gradient_dtype="bf16"))
        self.assertEqual(calibrate([summary(1, 1e6, description=told)]).flags_of(asked), {"comm-dtype": "fp32"})
        two_kinds = [summary(1, 1e6, description=told), summary(1, 1e6, description=told | {"gradient_dtype": "bf16"})]
        self.assertEqual(calibrate(two_kinds).flags_of(asked), {})
        over_mpi = calibrate([summary(2, 1e6, 6e5, description=told | {"device": "cpu", "hierarchical": "off"})])
        asked_for = {"comm-dtype": "fp32", "device": "cpu", "hierarchical": "off"}
        self.assertEqual(over_mpi.flags_of(asked), asked_for)
        self.assertEqual(calibrate([summary(1, 1e6, description=told)]).flags_of(parsed(gpt2_description())), {})

    def test_a_fused_sum_goes_by_the_ranks(self) -> None:
        def run(ranks: int, us: float) -> dict[str, Any]:
            return summary(ranks, ranks * 512 / 130e-6, 4e6, step_seconds=130e-6, fused_sum=True,
                           step_seconds_without_communication=130e-6 - us * 1e-6)  # fmt: skip

        calibration = calibrate([run(2, 5.0), run(2, 7.0), run(4, 8.0)])
        for ranks, us in ((2, 6.0), (3, 7.0), (4, 8.0), (8, 8.0)):
            applied = calibration.network_of(Case(WORK, 512, 300.0, gpus_per_node=ranks))
            self.assertAlmostEqual(applied.fused_sum_us, us)


class CalibrationTest(FolderCase):
    def test_finds_the_network_that_made_the_points(self) -> None:
        fit = calibrate([bench(2, 3.0, 120.0), {"status": "ok", "bench": bench(8, 3.0, 120.0)}]).intra_fit
        assert fit is not None
        self.assertAlmostEqual(fit.base_us, 5.0, places=5)
        self.assertAlmostEqual(fit.per_rank_us, 3.0, places=5)
        self.assertAlmostEqual(fit.busbw_gbs, 120.0, places=5)
        self.assertEqual((fit.points, fit.least_ranks, fit.most_ranks), (8, 2, 8))
        record = {"benchmark": "allreduce", "ranks": 2, "nodes": 2, "results": [{"bytes": 1e6, "time_us": 100.0}]}
        calibration = calibrate([record])
        self.assertIsNone(calibration.intra_fit)
        fit = calibration.inter_fit
        assert fit is not None
        self.assertAlmostEqual(fit.base_us, 6.6, places=5)  # Ring LL over a network
        self.assertAlmostEqual(fit.per_rank_us, 2 * 2.7, places=5)
        self.assertAlmostEqual(fit.busbw_gbs, 1e6 / (1000 * (100.0 - 12.0)), places=5)

    def test_takes_interference_from_the_overlap_benchmark(self) -> None:
        rows = [{"compute_alone_us": 1000.0, "compute_beside_us": 1000.0 + x, "communication_alone_us": 400.0}
                for x in (80.0, 100.0, -5.0)]  # fmt: skip
        self.assertAlmostEqual(calibrate([{"benchmark": "overlap", "results": rows}]).interference or 0.0, 0.2)

    def test_mpi_between_nodes_is_fitted_by_the_bytes_of_a_nodes_adapters(self) -> None:
        for hierarchical, times_the_gradients in (("on", 1.0), ("off", 2.0)):
            told = cnn_description(device="cpu", hierarchical=hierarchical)
            seconds = times_the_gradients * 2.4e6 / 0.125e9
            run = summary(4, 800.0, 400.0, nodes=2, device="cpu", description=told, communication_seconds=seconds)
            self.assertAlmostEqual(calibrate([run]).inter_fit.busbw_gbs, 0.125, delta=1e-3)
        alone = {"benchmark": "allreduce", "ranks": 4, "nodes": 2, "results": [{"bytes": 1e7, "time_us": 80e3}]}
        for library, busbw_gbs in (("MPI", 0.125), ("NCCL", 1.5 * 0.125)):
            fit = calibrate([alone | {"library": library}]).inter_fit
            self.assertAlmostEqual(fit.busbw_gbs, busbw_gbs, delta=1e-3)

    def test_samples_of_virtual_ranks_and_tokens(self) -> None:
        several = predicted(summary(2, 4e6, 3e6, virtual_ranks=4))
        self.assertEqual(several, predicted(summary(2, 4e6, 3e6, grad_accum=2)))
        self.assertNotEqual(several, predicted(summary(2, 4e6, 3e6)))
        record = summary(1, 0.0, model="gpt", tokens_per_second=524_000.0, description=gpt2_description())
        work = parsed(gpt2_description())
        assert work is not None
        self.assertAlmostEqual(tflops_of(work, 512, calibrate([record]).runs), 8.7e11 / 1024 * 524_000 / 1e12)

    def test_descriptions_tell_model_and_gradients(self) -> None:
        for precision, dtype, size in (("fp8", "bf16", 2), ("bf16", "fp32", 4), ("fp32", "fp32", 4)):
            bucket = {"bytes": 1_199_882 * size, "complete_at": 1.0}
            told = cnn_description(gradient_dtype=dtype, buckets=[bucket])
            (found,) = predicted(summary(2, 1.5e6, 1e6, precision=precision, description=told))
            self.assertEqual(found.bytes_per_gpu, 1_199_882 * size, precision)
        told = cnn_description(model="mlp", flop_forward_per_sample=1e6, flop_backward_per_sample=2e6)
        calibration = calibrate([summary(1, 1e6, model="mlp", description=told)])
        self.assertAlmostEqual(tflops_of(parsed(told), 512, calibration.runs), 3e6 * 1e6 / 1e12)
        with self.assertRaises(UsageError):
            calibrate([summary(1, 1e6, model="mlp", parameters=1e6, description=None)])

    def test_what_is_exposed_of_a_fused_sum_and_of_kernels_that_fill_the_gpu(self) -> None:
        def run(fused: bool, step: float = 135e-6, overlap: str = "on") -> dict[str, Any]:
            record = summary(4, 4 * 512 / step, 4.05e6, communication_seconds=47e-6, step_seconds=step,
                             step_seconds_without_communication=127e-6, fused_sum=fused)  # fmt: skip
            return {"summary": record, "settings": {"overlap": overlap}}

        (fused,) = predicted(run(True))
        self.assertAlmostEqual(fused.exposed_seconds, 8e-6)
        (plain,) = predicted(run(False))
        self.assertNotAlmostEqual(plain.exposed_seconds, 8e-6)
        self.assertEqual(calibrate([run(True), run(False)]).fused_sum_us, {})
        self.assertAlmostEqual(calibrate([run(True)]).fused_sum_us[4], 8.0)
        beside, after = predicted(run(True), run(True, step=174e-6, overlap="off"))
        self.assertAlmostEqual(beside.exposed_seconds, 8e-6)
        self.assertAlmostEqual(after.exposed_seconds, 47e-6)
        run = summary(4, 4 * 512 / 170e-6, 4.05e6, communication_seconds=45e-6, step_seconds=170e-6)
        (filled,) = predicted({"summary": run, "settings": {"comm-ctas": 0}})
        self.assertAlmostEqual(filled.exposed_seconds, 45e-6)
        (some_free,) = predicted({"summary": run, "settings": {"comm-ctas": 4}})
        self.assertLess(some_free.exposed_seconds, 12e-6)

    def test_emulated_and_failed_runs_do_not_count(self) -> None:
        for mark in ({"emulated": True}, {"status": "failed"}):
            with self.assertRaises(UsageError):
                calibrate([mark | {"summary": summary(2, 1e6, 6e5)}])

    def test_reads_lines_documents_and_folders(self) -> None:
        file = write_lines(self.folder / "results.jsonl", [{"event": "start"}, summary(1, 1e6)], '{"event": "summ')
        self.assertEqual(len(load_records(self.folder)), 2)
        (self.folder / "bench.json").write_text(json.dumps(bench(2, 1, 1), indent=2))
        self.assertEqual(len(load_records(self.folder / "bench.json")), 1)
        file.unlink()
        with self.assertRaisesRegex(FileNotFoundError, "results.jsonl"):
            load_records(self.folder)

    def test_runs_of_cpus_overlap_between_hosts_unless_an_update_needs_more_than_its_sum(self) -> None:
        told = {"device": "cpu", "description": cnn_description(device="cpu")}
        for ranks, nodes, changes, settings, overlaps in (
            (2, 2, {}, {}, True),
            (2, 1, {}, {}, False),
            (2, 2, {"zero": 1}, {}, False),
            (2, 2, {"virtual_ranks": 4}, {}, True),
            (4, 2, {"virtual_ranks": 4}, {}, False),
            (2, 2, {}, {"clip-norm": "1"}, False),
            (2, 2, {}, {"clip-norm": 0}, True),
            (2, 2, {}, {"optimizer": "lamb"}, False),
            (2, 2, {}, {"on-nonfinite": "skip"}, False),
            (2, 2, {}, {"overlap": "backward"}, False),
            (2, 2, {"configuration": {"overlap": '"off"', "clip-norm": "0"}}, {}, False),
            (2, 2, {"configuration": {"overlap": '"off"'}}, {"overlap": "on"}, True),
        ):
            with self.subTest(ranks=ranks, nodes=nodes, changes=changes, settings=settings):
                record = {"summary": summary(ranks, 1000.0, 800.0, nodes=nodes, **told, **changes), "settings": settings}
                (run,) = measured_runs([record])
                self.assertEqual(run.case.overlap, overlaps)

    def test_predicts_a_run_of_which_all_costs_are_known(self) -> None:
        """The network carries 0.125 GB/s. Fitted on fp32, batch 32, where the network decides, asked about batch 128 in
        bf16, where compute does."""
        told = {"device": "cpu", "nodes": 2, "batch_per_rank": 32, "baseline_per_second": 1600.0}
        fp32 = cnn_description(device="cpu", gradient_dtype="fp32", comm_bytes_per_step=4.8e6, buckets=[
            {"bytes": 4.7e6, "complete_at": 0.1}, {"bytes": 0.1e6, "complete_at": 1.0}])  # fmt: skip
        run = summary(2, 1450.0, 1600.0, **told, description=fp32, communication_seconds=0.0384)
        network = calibrate([run])
        work = parsed(cnn_description(device="cpu"))
        assert work is not None
        asked = Case(work=work, batch=128.0, tflops=1e-12 * work.flop * 1600.0, gpus_per_node=1, nodes=2)
        step = predict(network.network_of(asked)).step_seconds
        self.assertAlmostEqual(step, 128 / 1600.0 + 0.0003, delta=0.0002)


class CalibratedProgramTest(FolderCase):
    def calibrated(self, records: list[dict[str, Any]], *options: str) -> str:
        return output("--calibrate", str(write_lines(self.folder / "metrics.jsonl", records)), *options)

    def planned(self, records: list[dict[str, Any]], device: str, *options: str) -> str:
        """For the CNN on this device, as ddptrain describes it."""
        with mock.patch.object(program, "describe", return_value=parsed(cnn_description(device=device))):
            return self.calibrated(records, "--nodes", "1", *options)

    def test_calibrated_run(self) -> None:
        run = summary(2, 7.5e6, 3.9e6, communication_seconds=2e-5)
        text = self.calibrated([run], "--model", "cnn", "--nodes", "1")
        self.assertIn("measured at this batch, 1 run)", text)
        self.assertRegex(text, r"within a node: measured, .* \(1 all-reduce of 2 ranks; more are extrapolated\)")

    def test_runs_of_a_loaded_machine_are_warned_of(self) -> None:
        quiet = summary(2, 7.5e6, 3.9e6, communication_seconds=2e-5, cpu_share_per_rank=[])
        loaded = quiet | {"cpu_share_per_rank": [0.97, 0.6]}
        noisy = quiet | {"scaling_efficiency_half_width": 0.2}
        self.assertEqual(warning_of([quiet, {"emulated": True, "summary": loaded}]), "")
        self.assertIn("1 of the 2 runs of --calibrate were disturbed (the interval of its efficiency is +- 20 points)",
                      warning_of([quiet, noisy]))  # fmt: skip
        for options in (["--model", "cnn", "--nodes", "1"], ["--model", "cnn", "--json"]):
            with contextlib.redirect_stderr(io.StringIO()) as errors:
                self.calibrated([loaded], *options)
            self.assertRegex(errors.getvalue(), "^ddpplan: warning: .* left a rank a core for 60% of its time")

    def of_files(self, *records: dict[str, Any]) -> str:
        """Planned with a file of each record."""
        files = [write_lines(self.folder / f"{i}.jsonl", [record]) for i, record in enumerate(records)]
        return output("--calibrate", *map(str, files), "--model", "cnn", "--nodes", "1", "--tflops", "400", "--link", "5")

    def test_runs_of_two_machines_are_refused(self) -> None:
        told = {"device": "cpu", "device_name": "Xeon", "communication_seconds": 0.01}
        gpus = summary(2, 7.5e6, 3.9e6, communication_seconds=2e-5, device_name="NVIDIA H200")
        cores = {"status": "ok", "summary": summary(2, 3e3, 1.6e3, **told), "machine": {"cpu": "Xeon", "cores": 2}}
        swept = {"status": "ok", "summary": gpus, "machine": {"gpus": ["NVIDIA H200"] * 4, "cpu": "Xeon", "cores": 64}}
        allreduce = bench(2, 1.0, 300.0) | {"device": "NVIDIA H100", "library": "NCCL"}
        for one, other, first, second in (
            (gpus, gpus | {"device_name": "NVIDIA H100"}, "GPU NVIDIA H200", "GPU NVIDIA H100"),
            (swept, allreduce, "GPU NVIDIA H200, processor Xeon", "GPU NVIDIA H100"),
            (swept, swept | {"machine": {"cpu": "EPYC"}}, "GPU NVIDIA H200, processor Xeon", "GPU NVIDIA H200, processor EPYC"),
            (cores, cores | {"machine": {"cores": 64}}, "processor Xeon, cores 2", "processor Xeon, cores 64"),
            (cores, summary(2, 3e3, 1.6e3, **told | {"device_name": "EPYC"}), "processor Xeon, cores 2", "processor EPYC"),
        ):
            with self.assertRaises(UsageError) as refused:
                self.of_files(one, one, other)
            two = f"{self.folder}/0.jsonl ({first}) and {self.folder}/2.jsonl ({second})"
            self.assertEqual(str(refused.exception), f"--calibrate: runs of two machines: {two}. A prediction is of one "
                             "machine: give the results of one of them")  # fmt: skip

    def test_parts_of_a_machine_are_no_other_one(self) -> None:
        gpus = summary(2, 7.5e6, 3.9e6, communication_seconds=2e-5, device_name="NVIDIA H200")
        swept = {"status": "ok", "summary": gpus, "machine": {"gpus": ["NVIDIA H200"] * 4, "cpu": "Xeon", "cores": 64}}
        part = {"gpus": ["NVIDIA H200"], "cpu": "Xeon", "cores": 16, "host": "b"}
        from_elsewhere = {"gpus": [], "cpu": "EPYC", "cores": 4, "hosts": ["a", "b"]}
        others = [swept | {"machine": part}, swept | {"machine": from_elsewhere}, gpus, {"summary": gpus}]
        failed = swept | {"status": "failed", "machine": {"cpu": "EPYC"}}
        self.assertIn("within a node: measured", self.of_files(swept, *others, failed))

    def test_communication_of_cpus_and_compute_of_gpus_are_not_combined(self) -> None:
        cores = bench(2, 1.0, 0.2) | {"library": "MPI", "device": "AMD EPYC"}
        cpu_run = summary(2, 3e3, 1.6e3, device="cpu", communication_seconds=0.01)
        row = {"compute_alone_us": 9.0, "compute_beside_us": 9.0, "communication_alone_us": 4.0}
        unnamed = cores | {"device": ""}
        for record in (cores, unnamed, cores | {"benchmark": "overlap", "results": [row]}, cpu_run):
            for options in (["--model", "cnn", "--tflops", "400"], ["--model", "cnn"], ["--params", "2B"]):
                with self.assertRaisesRegex(UsageError, "on CPU cores, and compute would be that of GPUs: .*--tflops N"):
                    self.planned([record], "cuda", *options)
        nccl = {"library": "NCCL"}
        for gpu in (nccl, {"library": "MPI", "device": "NVIDIA H200"}, {"device": "Tesla V100-SXM2-16GB"}):
            self.assertIn("busbw 300 GB/s", self.planned([bench(2, 1.0, 300.0) | gpu], "cuda", "--model", "cnn"))
            with self.assertRaisesRegex(UsageError, "on GPUs, and compute would be that of CPU cores"):
                self.planned([bench(2, 1.0, 300.0) | gpu], "cpu", "--model", "cnn", "--tflops", "0.1")
        with self.assertRaisesRegex(UsageError, "partly on CPU cores, partly on GPUs"):
            calibrate([cores, bench(2, 1.0, 300.0) | nccl])

    def test_cores_of_a_cpu_have_a_rate_that_was_measured_or_given(self) -> None:
        cores = bench(2, 1.0, 0.2) | {"library": "MPI", "device": "AMD EPYC"}
        with self.assertRaisesRegex(UsageError, "nothing tells how fast these cores compute: give --tflops"):
            self.planned([cores], "cpu", "--model", "cnn")
        told = cnn_description(device="cpu")
        runs = [summary(1, 1.6e3, device="cpu", description=told), cores]
        for records, options in ((runs, []), ([cores], ["--tflops", str(71_565_312 * 1.6e3 / 1e12)])):
            text = self.planned(records, "cpu", "--model", "cnn", "--gpus-per-node", "2", *options, "--json")
            (predicted,) = json.loads(text)["predictions"]
            self.assertAlmostEqual(predicted["compute_seconds"], 512 / 1.6e3)
            self.assertAlmostEqual(predicted["exposed_seconds"], predicted["communication_seconds"])  # they do the adding

    def test_cpus_have_the_network_that_is_given_or_measured(self) -> None:
        told = cnn_description(device="cpu", hierarchical="on")
        alone = summary(1, 1.6e3, device="cpu", description=told)
        on_one, on_two = (summary(4, 5e3, 1.6e3, nodes=nodes, device="cpu", description=told, communication_seconds=0.1)
                          for nodes in (1, 2))  # fmt: skip
        cnn, two_nodes = ["--model", "cnn", "--gpus-per-node", "2"], ["--nodes", "2", "--gpus-per-node", "2"]
        for records, options, missing in (
            ([alone], [*cnn, *two_nodes], "^--network: CPUs have no default: give the Gbit/s"),
            ([on_one], [*cnn, "--nodes", "1,2"], "^--network: "),
            ([on_one], ["--params", "2B", "--tflops", "1", *two_nodes], "^--network: "),
            ([alone], cnn, "^--calibrate .*: MPI has no default rate within a node: give --link, or "),
        ):
            with self.subTest(options=options), self.assertRaisesRegex(UsageError, missing):
                self.planned(records, "cpu", *options)
        for records, options in (([on_two], [*cnn, *two_nodes]), ([on_one], cnn), ([alone], [*cnn, "--link", "5"]),
                                 ([alone], ["--model", "cnn", "--gpus-per-node", "1"])):  # fmt: skip
            self.planned(records, "cpu", *options)
        self.assertIn("Left out: 1 nodes, because MPI has no default rate within a node: give --link",
                      self.planned([on_two], "cpu", *cnn, "--nodes", "1,2"))  # fmt: skip
        with mock.patch.object(program, "describe", return_value=parsed(told)), self.assertRaisesRegex(UsageError, "^MPI has no "):
            output(*cnn, "--tflops", "1", "--nodes", "1")
        text = self.planned([on_one], "cpu", *cnn, "--nodes", "1,4", "--network", "0.1", "--target", "0.9",
                            "--outer-groups", "2")  # fmt: skip
        self.assertRegex(text, r"between nodes: not measured; MPI's bytes without latency, 0.0100 GB/s of a node ")  # one adapter
        self.assertRegex(text, r"\n +4 +8 +512 +320 +360 +MPI ")  # 2 * 3 / 4 * 2.4 MB
        self.assertIn("the latency of MPI's messages", text)
        self.assertNotRegex(text, "GPU|NCCL")
        self.assertIn(", 0.0200 GB/s of a node", self.planned([alone], "cpu", *cnn, *two_nodes, "--network", "0.1", "--nics", "2"))

    def test_says_how_mpi_sums_between_nodes(self) -> None:
        said = {"on": "the ranks of a node add up first", "off": "each rank sends for itself"}
        for hierarchical, words in said.items():
            told = cnn_description(device="cpu", hierarchical=hierarchical)
            run = summary(4, 800.0, 400.0, nodes=2, device="cpu", description=told, communication_seconds=0.04)
            with mock.patch.object(program, "describe", return_value=parsed(told)):
                text = self.calibrated([run], "--model", "cnn", "--gpus-per-node", "2", "--nodes", "1,2")
            self.assertRegex(text, rf"\nNetwork +between nodes: measured, .* of 4 ranks\); {words}")
            self.assertEqual(text.count(words), 1)

    def test_the_answer_is_near_the_runs_that_it_was_given(self) -> None:
        folder = ROOT / "benchmarks" / "results" / "sweeps-4-h200-2026-11-21" / "scaling"
        for batch, measured in ((512, 15.25e6), (8192, 26.05e6)):
            text = output("--model", "cnn", "--batch", str(batch), "--calibrate", str(folder), "--nodes", "1",
                          "--gpus-per-node", "4", "--json")  # fmt: skip
            (predicted,) = json.loads(text)["predictions"]
            self.assertAlmostEqual(predicted["samples_per_second"] / measured, 1.0, delta=0.05)

    def test_batches_that_were_not_measured_are_refused_or_left_out(self) -> None:
        runs = [summary(1, rate, batch_per_rank=batch) for batch, rate in ((256, 3e6), (512, 4e6))]
        with self.assertRaisesRegex(UsageError, "metrics.jsonl: its runs of cnn .* from 256 to 512 per rank, not 64"):
            self.calibrated(runs, "--model", "cnn", "--batch", "64", "--nodes", "1")
        self.calibrated(runs, "--model", "cnn", "--batch", "64", "--nodes", "1", "--tflops", "200")
        text = self.calibrated(runs, "--model", "cnn", "--global-batch", "4096", "--nodes", "1,2,4")
        self.assertRegex(text, r"\n  1 +8 +512 .*\n  2 +16 +256 ")
        self.assertIn("Left out: 4 nodes, because its runs of cnn", text)

    def test_gradients_are_those_of_the_runs(self) -> None:
        runs = [summary(1, 4e6, description=cnn_description(gradient_dtype="fp32"))]
        with mock.patch.object(program, "describe", side_effect=[WORK, UsageError("asked again")]) as asked:
            with self.assertRaisesRegex(UsageError, "asked again"):
                self.calibrated(runs, "--model", "cnn", "--nodes", "1")
        self.assertEqual(asked.call_args.args[1]["comm-dtype"], "fp32")
        with mock.patch.object(program, "describe", return_value=WORK) as asked:
            self.calibrated(runs, "--model", "cnn", "--nodes", "1", "--gradients", "bf16")
        self.assertEqual({call.args[1]["comm-dtype"] for call in asked.call_args_list}, {"bf16"})
