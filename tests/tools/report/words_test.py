"""What a report says in words, of different paths of the gradients, and when a difference is more than the noise."""

import itertools
import json
import unittest
from typing import Any

from ddptools.common.text import measured, number
from ddptools.report.sweeps.noise import NO_DIFFERENCE, TOO_FEW, Effects, welch_p
from ddptools.report.sweeps.numerics import choices, numerics
from tests.tools.report.support import RING, TREE, ReportCase, algo, over, runs
from tests.tools.support import write_results


class NoiseTest(unittest.TestCase):
    def test_welch(self) -> None:
        # By hand: means 2 and 5, variances 1 and 1, n = 3: t = 3 / sqrt(2/3) = 3.674, 4 degrees: p = 0.0213
        self.assertAlmostEqual(welch_p([1, 2, 3], [4, 5, 6]), 0.0213, delta=0.0002)
        # Means 2 and 7, variances 1 and 32/3, n = 3 and 4: t = 5 / sqrt(1/3 + 8/3) = 2.887, 3.71 degrees: p = 0.0489
        self.assertAlmostEqual(welch_p([1, 2, 3], [3, 7, 7, 11]), 0.0489, delta=0.0002)
        self.assertEqual(welch_p([1, 1], [1, 1]), 1.0)
        self.assertEqual(welch_p([1, 1], [2, 2]), 0.0)


class EffectTest(ReportCase):
    def effects(self, *of_cases: list[float]) -> list[str]:
        """Of each case but the first, against the first."""
        records: list[dict[str, Any]] = []
        for i, rates in enumerate(of_cases):
            records += algo(f"a{i}" if i else "", rates)
        experiment = self.experiment(records)
        effects = Effects(experiment)
        return [effects.of(case).text for case in experiment.measured[1:]]

    def test_only_more_than_the_noise_has_a_percentage(self) -> None:
        self.assertEqual(self.effects([100, 101, 102], [200, 201, 202], [50, 51, 52]), ["+99.0%", "-49.5%"])
        self.assertEqual(self.effects([100, 110, 90], [102, 112, 89]), [NO_DIFFERENCE])
        self.assertEqual(self.effects([100], [120]), [TOO_FEW])
        self.assertEqual(self.effects([100, 110], [50, 70]), [TOO_FEW])
        self.assertEqual(self.effects([100, 100.1], [50, 50.1]), ["-50.0%"])
        first, near = [1, 2, 3], [4, 5, 6]  # p = 0.0213
        self.assertEqual(self.effects(first, near, near), ["+150.0%"] * 2)
        self.assertEqual(self.effects(first, near, near, near), [NO_DIFFERENCE] * 3)

    def test_jobs_with_the_same_choices_show_the_noise_of_the_machine(self) -> None:
        def effects(*cases: tuple[list[float], dict]) -> list[str]:
            records = [made for i, (rates, nccl) in enumerate(cases)
                       for made in algo("" if i == 0 else f"a{i}", rates, summary={"nccl": nccl})]  # fmt: skip
            experiment = self.experiment(records)
            return [Effects(experiment).of(case).text for case in experiment.measured[1:]]

        near, far = [103, 103.1, 103.2], [101.5, 101.6, 101.7]
        self.assertEqual(effects(([100, 100.1, 100.2], RING), (near, RING)), [NO_DIFFERENCE])
        self.assertEqual(effects(([100, 100.1, 100.2], RING), (near, TREE)), ["+3.0%"])
        self.assertEqual(effects(([100, 100.1, 100.2], RING), (near, RING), (far, TREE)), [NO_DIFFERENCE] * 2)
        self.assertEqual(effects(([100, 100.1, 100.2], RING), (near, RING), ([106, 106.1, 106.2], TREE)),
                         [NO_DIFFERENCE, "+6.0%"])  # fmt: skip

    def test_only_variables_that_act_by_the_choice_show_it(self) -> None:
        for name in ("NCCL_BUFFSIZE", "bucket-mb"):
            records = runs("a", [100, 100.1, 100.2], {"ranks": 4, name: ""}, summary={"nccl": RING})
            records += runs("b", [103, 103.1, 103.2], {"ranks": 4, name: "1"}, summary={"nccl": RING})
            self.assertRegex(self.words(records), r"(1: \+3.0%|unset: -2.9%)")


class WordsTest(ReportCase):
    def test_numbers(self) -> None:
        for value, text in ((15_238_925, "15.24 M"), (6_899_693, "6.900 M"), (349_568, "349,600"), (999_999, "1.000 M"),
                            (2043, "2,043"), (325.68, "325.7"), (48.51, "48.5"), (-1_500_000, "-1.500 M"),
                            (0, "0")):  # fmt: skip
            self.assertEqual(number(value), text)
        for numbers, text in (((12.345, 40014.3), "12 +- 40,014"), ((0.071, 0.05), "0.07 +- 0.05"), ((-2.04, 123.44, 1),
                              "-2.0 +- 123.4"), ((1234.6,), "1,235"), ((123.44,), "123.4"), ((0.0, 0.0), "0.00 +- 0.00")):  # fmt: skip
            self.assertEqual(measured(*numbers), text)

    def test_the_reference_is_the_first_that_trains(self) -> None:
        rates = {"25": [110, 111, 112], "5": [100, 101, 102], "50": [120, 121, 122]}
        records = over("bucket-mb", rates)
        write_results(self.folder / "results", records)
        plan = {"cases": [{"case": f"bucket-mb-{value}"} for value in rates]}
        (self.folder / "results" / "plan.json").write_text(json.dumps(plan))
        self.assertIn("(against bucket-mb=25, 111.0 images/s)", self.words(records))
        overlap = self.experiment(over("overlap", {"none": [130], "off": [100], "on": [110]}))
        self.assertEqual(overlap.reference(overlap.measured).key, "overlap-off")

    def test_differences_by_size_and_what_does_not_differ(self) -> None:
        text = self.words(algo("", [100, 101, 102]) + algo("Ring", [130, 131, 132]) + algo("Tree", [50, 51, 52]))
        self.assertEqual(text, "Tree: -49.5%; Ring: +29.7% (against NCCL_ALGO=unset, 101.0 images/s).")
        same = algo("Ring", [102, 112, 89]) + algo("Tree", [99, 109, 91]) + algo("NVLS", [50, 51, 52])
        text = self.words(algo("", [100, 110, 90]) + same)
        self.assertTrue(text.startswith("NVLS: -49.0%; Ring, Tree: no difference (against"), text)
        self.assertNotIn("2.0%", text)

    def test_contexts_with_the_same_answer_share_it(self) -> None:
        records = []
        for batch in (8, 16, 32):
            for value in ("", "Ring"):
                settings = {"ranks": 2, "batch": batch, "NCCL_ALGO": value}
                records += runs(f"{batch}{value}", [100, 101, 102], settings)
        self.assertIn("Ring: no difference (in 3 of 3 comparisons).", self.words(records))

    def test_of_several_settings_those_that_differ_are_named(self) -> None:
        records = []
        for algorithm, protocol, rate in (("", "", 100), ("Ring", "", 50), ("Ring", "LL", 25)):
            settings = {"ranks": 2, "NCCL_ALGO": algorithm, "NCCL_PROTO": protocol}
            records += runs(algorithm + protocol, [rate, rate * 1.001, rate * 1.002], settings)
        self.assertIn("NCCL_ALGO=Ring + NCCL_PROTO=LL: -75.0%; NCCL_ALGO=Ring: -50.0% (", self.words(records))

    def test_what_does_not_communicate_is_no_winner(self) -> None:
        text = self.words(over("overlap", {"none": [200, 201], "off": [100, 101], "on": [150, 151]}))
        self.assertIn("on: +49.8% (against overlap=off, 100.5 images/s)", text)
        self.assertIn("overlap=none, which trains nothing together) 200.5 images/s", text)
        self.assertIn("reaches 75.1% of that", text)

    def test_scaling(self) -> None:
        rates = {1: [100, 101], 2: [190, 192], 8: [700, 707]}
        text = self.words(over("ranks", rates, summary={"scaling_efficiency": 0.9}))
        about = "703.5 images/s; efficiency in the job 90.0%"
        self.assertEqual(text, f"8 ranks: 7.00 times one rank, efficiency 87.5% ({about}).")

    def two_efficiencies(self, rates: list[float], batch: int = 32, one: int = 32, **summary: Any) -> tuple[str, str]:
        """The headline of two ranks, and the text below the table of cases; 90% (88 to 92) in the job."""
        told = {"scaling_efficiency": 0.9, "scaling_efficiency_low": 0.88, "scaling_efficiency_high": 0.92, "grad_accum": 1}
        records = over("ranks", {1: [99, 100, 101]}, summary={"batch_per_rank": one, "grad_accum": 1})
        markdown = self.report_of(records + over("ranks", {2: rates}, summary=told | {"batch_per_rank": batch} | summary))
        (headline,) = [line for line in markdown.splitlines() if "times one rank" in line]
        return headline, next((line for line in markdown.splitlines() if line.startswith("Efficiency compares")), "")

    def test_two_efficiencies_are_told_apart(self) -> None:
        headline, below = self.two_efficiencies([179, 180, 181])
        self.assertTrue(headline.endswith("(180.0 images/s; efficiency in the job 90.0% (88.0 to 92.0))"), headline)
        self.assertTrue(below.endswith("alone, measured in the same job after training."), below)
        headline, below = self.two_efficiencies([140, 141, 142], 16)
        self.assertIn("efficiency in the job, against the same batch per rank, 90.0% (88.0 to 92.0))", headline)
        self.assertTrue(below.endswith("efficiency in the job does not."), below)
        virtual = self.two_efficiencies([140, 141, 142], 32, 64, virtual_ranks=4)[0]  # of two ranks: 64 samples of each
        self.assertIn("the two disagree", virtual)
        self.assertEqual(self.two_efficiencies([180], scaling_efficiency=None)[1], "")

    def test_two_efficiencies_that_disagree_say_so(self) -> None:
        for rates in ([162, 163, 164], [198, 199, 200]):
            headline, below = self.two_efficiencies(rates)
            self.assertTrue(headline.endswith("90.0% (88.0 to 92.0): the two disagree, repeat the runs)"), headline)
            self.assertIn("The two disagree by more than their noise with 2 ranks. Usually the clocks", below)
        # Ranges that overlap, fewer runs, another batch, a batch that is not known, and a disturbed run.
        for rates, changes in (([172, 175, 179], {}), ([163, 164], {}), ([162, 163, 164], {"batch": 16}),
                               ([162, 163, 164], {"batch_per_rank": None}), ([162, 163, 164], {"disturbed": "busy"}),
                               ([162, 163, 164], {"scaling_efficiency_low": None})):  # fmt: skip
            self.assertNotIn("disagree", "".join(self.two_efficiencies(rates, **changes)), (rates, changes))

    def test_saturation_with_the_batch(self) -> None:
        rates = {32: 1050, 64: 1498, 256: 2192, 512: 2450, 1024: 2529, 1280: 2458}
        single = self.words(over("batch", {batch: [rate] for batch, rate in rates.items()}))
        self.assertIn("One run of each batch has no spread, so it tells no best batch: 1,050 images/s at batch 32", single)
        self.assertNotIn("highest rate", single)
        text = self.words(over("batch", {batch: [rate, rate] for batch, rate in rates.items()}))
        self.assertIn("The highest rate is at batch 1024", text)
        self.assertIn("from batch 512 on it is within 5.0%", text)

    def test_emulated_numbers_say_so(self) -> None:
        records = over("layout", {"1x4": [100, 101]})
        records += over("layout", {"2x2": [10, 11]}, emulated=True, emulation="NCCL_HOSTID")
        self.assertEqual(self.words(records), "2x2 (emulated): -89.6% (against layout 1x4, 100.5 images/s).")
        markdown = self.report_of(records)
        self.assertIn("| 2x2 emulated | 10.5 (10 to 11) emulated |", markdown)
        self.assertIn("Nodes were emulated on one machine (NCCL_HOSTID)", markdown)

    def test_cases_that_nothing_compares_are_listed(self) -> None:
        text = self.words(over("ranks", {2: [10, 12], 4: [20]}))
        self.assertEqual(text, "2 ranks: 11 images/s (10 to 12 over 2 runs); 4 ranks: 20 images/s (one run).")

    def test_settings_without_effect(self) -> None:
        records = algo("", [100], summary={"nccl": RING}) + algo("Ring", [101], summary={"nccl": RING})
        records += algo("Tree", [90], summary={"nccl": TREE})
        text = "\n".join(choices(self.experiment(records)))
        self.assertIn("No effect on what NCCL chose: NCCL_ALGO=Ring. It took Ring, LL128, 24 channels, P2P/CUMEM", text)
        self.assertNotIn("Tree", text)
        self.assertIn(
            "do not say what NCCL chose", "\n".join(choices(self.experiment(algo("", [1]) + algo("Ring", [1]))))
        )
        def chosen(value: str, *protocols: str) -> list[dict[str, Any]]:
            rows = [{"bytes": 1024 << i, "in_place": True, "busbw_gbs": 1.0, "algorithm": "Ring", "protocol": protocol}
                    for i, protocol in enumerate(protocols)]  # fmt: skip
            told = {"benchmark": "allreduce", "nccl": {"channels": 4, "transport": "SHM"}, "results": rows}
            return runs(value, [1.0], {"ranks": 4, "NCCL_PROTO": value}, bench=told, variables=["NCCL_PROTO"])

        records = chosen("", "LL", "LL", "Simple") + chosen("^LL128", "LL", "LL", "Simple")
        records += chosen("^LL", "LL", "Simple", "Simple")
        text = "\n".join(choices(self.experiment(records)))
        self.assertIn("NCCL_PROTO=^LL128. It took Ring, LL+Simple, 4 channels, SHM, as with NCCL_PROTO=unset", text)
        self.assertNotIn("^LL.", text)  # other sizes
        markdown = self.report_of(records)
        self.assertIn("What NCCL chose, by size.", markdown)
        self.assertIn("| 2 KiB | Ring LL | Ring Simple | Ring LL |", markdown)

    def test_a_reason_for_other_parameters_is_what_the_runs_tell(self) -> None:
        def why(value: str, **changes: Any) -> str:
            usual = {"parameter_hash": "a", "nccl": RING, "gradient_path": "plain"}
            usual["description"] = {"decides_parameters": ["lr"], "buckets": [{"bytes": 1}]}
            other = usual | {"parameter_hash": "b"} | changes
            records = runs("a", [1], {"ranks": 2, "x": ""}, summary=usual)
            return "\n".join(numerics(self.experiment(records + runs("b", [1], {"ranks": 2, "x": value}, summary=other))))

        self.assertIn("NCCL chose otherwise, and sums in another order", why("Tree", nccl=TREE))
        self.assertIn("gradients by another path, symmetric, are summed", why("on", gradient_path="symmetric"))
        self.assertIn("other buckets", why("4", description={"decides_parameters": ["lr"], "buckets": [{"bytes": 2}]}))
        self.assertIn("and NCCL chose the same: ddpreport does not know why", why("odd"))
        self.assertNotIn("round differently", why("odd"))

    def test_other_hosts_are_a_reason_for_other_parameters(self) -> None:
        def why(layout: str, ranks: int = 4, **changes: Any) -> str:
            told = {"parameter_hash": "a", "gradient_path": "mpi", "nodes": 2, "virtual_ranks": 0}
            told["description"] = {"decides_parameters": ["lr"], "hierarchical": "on"}
            records = runs("a", [1], {"ranks": ranks, "layout": "2x2", "x": ""}, summary=told)
            other = told | {"parameter_hash": "b"} | changes
            records += runs("b", [1], {"ranks": ranks, "layout": layout, "x": "y"}, summary=other)
            return "\n".join(numerics(self.experiment(records)))

        hosts = "ranks on other hosts: gradients are added in another order, which rounds differently"
        off = {"description": {"decides_parameters": ["lr"], "hierarchical": "off"}}
        unexplained = "no flag that decides parameters differs: ddpreport does not know why"
        self.assertIn(hosts, why("1x4"))
        self.assertIn(hosts, why("2x2", nodes=4))  # launch/emulate-hosts
        self.assertIn("hierarchical adds gradients in another order, which rounds differently", why("2x2", **off))
        self.assertIn(unexplained, why("2x2"))
        self.assertIn(unexplained, why("1x2", ranks=2), "two numbers have one sum")

    def test_virtual_ranks_end_with_the_same_parameters_on_any_hosts(self) -> None:
        told = {"virtual_ranks": 4, "nodes": 2, "description": {"decides_parameters": ["lr"]}}
        records = []
        for layout, found in (("2x2", "a"), ("4x1", "b")):
            records += runs(layout, [1], {"ranks": 4, "layout": layout}, summary=told | {"parameter_hash": found})
        self.assertIn("ddpreport does not know why", "\n".join(numerics(self.experiment(records))))

    def test_settings_that_change_the_numerics(self) -> None:
        same = {"summary": {"parameter_hash": "a"}}
        other = {"summary": {"parameter_hash": "b"}}
        text = "\n".join(numerics(self.experiment(algo("", [1, 2], **same) + algo("Ring", [1, 2], **same))))
        self.assertIn("All 2 settings end with the same parameters", text)
        text = "\n".join(numerics(self.experiment(algo("", [1], **same) + algo("Tree", [1], **other))))
        self.assertIn("differ from those of NCCL_ALGO=unset with: NCCL_ALGO=Tree", text)
        records = algo("", [1], **same) + algo("Ring", [1], **same)
        records.append(records[0] | {"repeat": 1, "summary": records[0]["summary"] | {"parameter_hash": "c"}})
        self.assertIn("not reproducible bit by bit (ddpreport does not know why)", "\n".join(numerics(self.experiment(records))))
        for record in records:
            record["summary"]["configuration"] = {"tune": "on"}
        self.assertIn("not reproducible bit by bit (--tune on chooses", "\n".join(numerics(self.experiment(records))))

    def test_flags_that_decide_parameters_are_not_compared(self) -> None:
        def flag(name: str, values: tuple, decides: list[str] | None) -> str:
            told = {} if decides is None else {"description": {"decides_parameters": decides}}
            summaries = {value: {"parameter_hash": str(value)} | told for value in values}
            made = (over(name, {value: [1]}, summary=summary) for value, summary in summaries.items())
            return "\n".join(numerics(self.experiment(list(itertools.chain(*made)))))

        for name in ("lr", "momentum"):
            named = flag(name, (0.1, 0.2), ["lr", "momentum", "batch"])
            self.assertEqual(named, f"The final weights depend on {name}, as expected.")
            self.assertIn("no flag that decides parameters differs: ddpreport does not know why", flag(name, (0.1, 0.2), ["batch"]))
            self.assertEqual(flag(name, (0.1, 0.2), None), "")  # of a version that does not say
        for name, words in (("ranks", "the number of ranks"), ("global-batch", "the global batch")):
            self.assertEqual(flag(name, (2, 4), []), f"The final weights depend on {words}, as expected.")
        self.assertEqual(flag("tp", (1, 2), ["lr"]),
                         "tp changes the parameters at the end by rounding: split layers add in another order.")  # fmt: skip
        self.assertIn("differ from those of", flag("gpus", ("0,1", "0,2"), None))


FUSED, PLAIN = {"gradient_path": "symmetric+fused"}, {"gradient_path": "plain"}
SYMMETRIC_KERNELS = RING | {"algorithm": "Symmetric", "protocol": "Simple"}


def case(settings: dict[str, Any], rates: list[float], told: dict[str, Any], **changes: Any) -> list[dict[str, Any]]:
    name = "-".join(map(str, settings.values()))
    return runs(name, rates, {"ranks": 2} | settings, summary=told, **changes)


def proto(value: str, rates: list[float], told: dict[str, Any], **settings: Any) -> list[dict[str, Any]]:
    return case({"NCCL_PROTO": value} | settings, rates, told)


class GradientPathTest(ReportCase):
    def test_paths_that_differ_are_a_column(self) -> None:
        markdown = self.report_of(proto("", [100], FUSED) + proto("LL", [60], PLAIN))
        self.assertIn("| NCCL_PROTO | images/s | against reference | runs | gradient path |", markdown)
        self.assertIn("| unset | 100.0 | reference | 1 | symmetric+fused |", markdown)
        self.assertIn("| LL | 60 | too few runs | 1 | plain |", markdown)
        for told in (PLAIN, {}, {"gradient_path": 3}):
            markdown = self.report_of(proto("", [100], told) + proto("LL", [60], told))
            self.assertIn("| LL | 60 | too few runs | 1 |\n", markdown)
            self.assertNotIn("gradient path |", markdown)

    def test_what_sends_nothing_has_no_path(self) -> None:
        none = {"gradient_path": "none"}
        records = case({"overlap": "none"}, [120], none) + case({"overlap": "on"}, [100], FUSED)
        self.assertNotIn("gradient path |", self.report_of(records))
        records += case({"overlap": "off"}, [90], {"gradient_path": "symmetric"})
        self.assertIn("| none | 120.0 | too few runs | 1 |  |", self.report_of(records))

    def test_variables_that_a_path_does_not_follow(self) -> None:
        told = FUSED | {"nccl": SYMMETRIC_KERNELS}
        text = "\n".join(choices(self.experiment(proto("", [1], told) + proto("LL", [1], told))))
        why = "NCCL's symmetric kernels, which the gradients used, do not follow it (symmetric=off avoids them)"
        self.assertEqual(text, f"No effect: NCCL_PROTO=LL, because {why}.")
        level = [case({"NCCL_P2P_LEVEL": value}, [1], told) for value in ("", "SYS")]
        self.assertIn("No effect on what NCCL chose: NCCL_P2P_LEVEL=SYS.", choices(self.experiment(sum(level, [])))[0])
        told = {"gradient_path": "mpi", "nccl": None}
        (text,) = choices(self.experiment(proto("", [1], told) + proto("LL", [1], told)))
        self.assertEqual(text, "No effect: NCCL_PROTO=LL, because the gradients went over MPI.")

    def test_notes_of_the_sweep_stand_above_the_numbers(self) -> None:
        markdown = self.report_of([made | {"notes": ["All on one path."]} for made in proto("", [1, 2], PLAIN)])
        self.assertIn("\n> All on one path.\n\n### Measured", markdown)
