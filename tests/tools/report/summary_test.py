"""What a page begins with, what it warns of, what stands out on it, and where the time of a step went."""

import pathlib
import random
import re
from typing import Any

from ddptools.common.files import short_names
from ddptools.report.sweeps.experiment import load
from ddptools.report.sweeps.lost_time import losses, lost_time_table, lost_time_words
from ddptools.report.sweeps.page import measured_on, title_of, titles_of
from ddptools.report.sweeps.plots import lost_time_pictures
from ddptools.report.sweeps.warnings import disturbed_cases, warnings_of
from ddptools.sweep.machine import Machine
from tests.tools.report.support import ReportCase, algo, over, runs
from tests.tools.support import record, write_results


class SummaryTest(ReportCase):
    def test_the_title_has_machine_and_date(self) -> None:
        records = runs("a", [1, 2], {"ranks": 2}, started="2026-11-21T18:36:12+00:00")
        self.assertEqual(title_of([self.experiment(records)]), "made-up on 2 x G, 2026-11-21")
        records[1]["started"] = "2026-11-22T01:00:00+00:00"
        self.assertEqual(measured_on([self.experiment(records)]), "2 x G, 2026-11-21 to 2026-11-22")
        machine = {"cpu": "AMD EPYC", "gpus": []}
        other = self.experiment(runs("a", [1], {"ranks": 2}, machine=machine))
        days = "2026-11-21 to 2026-11-22"
        self.assertEqual(title_of([self.experiment(records), other]), f"made-up on 2 x G and AMD EPYC, {days}")
        self.assertEqual(title_of([]), "Measurements")

    def test_folders_of_the_same_name_are_told_apart(self) -> None:
        old, new, loss = map(pathlib.Path, ("/x/old/scaling", "/x/new/scaling", "/x/old/loss"))
        for paths, names in (([old, new], ["old/scaling", "new/scaling"]), ([old, loss], ["scaling", "loss"]), ([], []),
                             ([old, old], ["/x/old/scaling (1)", "/x/old/scaling (2)"])):  # fmt: skip
            self.assertEqual(short_names(paths), names)
        folders = [write_results(self.folder / name / "s", algo("", [1.0])) for name in ("old", "new")]
        self.assertEqual(titles_of(load(folders).experiments), ["made-up in old/s", "made-up in new/s"])


class WarningsTest(ReportCase):
    def warnings(self, records: list[dict[str, Any]]) -> list[str]:
        return warnings_of(self.experiment(records))

    def test_runs_of_several_machines(self) -> None:
        fast, slow = {"cpu": "Fast", "cores": 8, "gpus": []}, {"cpu": "Slow", "cores": 2, "gpus": []}
        one = runs("1", [100], {"ranks": 1}, machine=slow)
        self.assertEqual(self.warnings(one + runs("2", [190], {"ranks": 2}, machine=slow | {"host": "b"})), [])
        first, *_ = self.warnings(one + runs("2", [900], {"ranks": 2}, machine=fast))
        self.assertEqual(first, "The runs are of 2 machines (Slow, 2 cores, GPUs: none; Fast, 8 cores, GPUs: none). Compare "
                         "only runs of the same machine.")  # fmt: skip
        vague = runs("0", [90], {"ranks": 1}, machine={"cpu": "Fast"})  # may be of the kind of either
        both = runs("2", [900], {"ranks": 2}, machine=fast) + runs("3", [300], {"ranks": 3}, machine=fast | {"cores": 2})
        self.assertIn("of 2 machines", self.warnings(vague + both)[0])

    def test_what_ddpsweep_takes_for_one_machine(self) -> None:
        here = {"cpu": "C", "cores": 8, "gpus": ["A", "B", "A"]}
        known = runs("1", [100], {"ranks": 1}, machine=here)
        failed = runs("2", [None], {"ranks": 2}, machine=here | {"cores": 2})  # it gave no numbers
        self.assertEqual(self.warnings([*known, *failed]), [])
        for same in ({"gpus": ["B", "A", "A"]}, {"cpu": None}, {"gpus": None, "cores": None}):
            machine = here | same
            self.assertEqual(self.warnings(known + runs("2", [190], {"ranks": 2}, machine=machine)), [], machine)
            self.assertEqual(Machine("C", 8, "", ["A", "B", "A"], []).differences([{"status": "ok", "machine": machine}]), [])
        first, *_ = self.warnings(known + runs("2", [190], {"ranks": 2}, machine=here | {"gpus": ["B", "A"]}))
        self.assertIn("(C, 8 cores, GPUs: 2 x A, 1 x B; C, 8 cores, GPUs: 1 x A, 1 x B)", first)

    def test_efficiencies_above_all_by_more_than_the_noise(self) -> None:
        def scaling(rate: float, in_job: float, **more: Any) -> list[dict[str, Any]]:
            summary = {"scaling_efficiency": in_job} | more
            return runs("1", [100], {"ranks": 1}) + runs("2", [rate], {"ranks": 2}, summary=summary)

        self.assertEqual(self.warnings(scaling(199, 0.99)), [])
        self.assertEqual(self.warnings(scaling(200, 1.0)), [])
        self.assertEqual(self.warnings(scaling(210, 0.99, shared_gpus=1)), [], "there is no efficiency")
        (line,) = self.warnings(scaling(210, 0.99))
        self.assertIn("An efficiency above 100%: 105.0% of 2 ranks.", line)
        (line,) = self.warnings(scaling(199, 1.02))
        self.assertIn("An efficiency in the job above 100%: 102.0% of 2 ranks.", line)
        (line,) = self.warnings(scaling(199, 1.02, scaling_efficiency_half_width=0.01))
        self.assertIn("102.0% of 2 ranks (95% interval 101.0% to 103.0%).", line)
        self.assertEqual(self.warnings(scaling(199, 1.02, scaling_efficiency_half_width=0.03)), [])  # it may be 100%
        wide = {"scaling_efficiency_low": 1.02, "scaling_efficiency_high": 1.18}
        self.assertIn("110.0% of 2 ranks (95% interval 102.0% to 118.0%).", self.warnings(scaling(199, 1.1, **wide))[0])
        self.assertEqual(self.warnings(scaling(199, 1.1, disturbed="busy", **wide)), [])
        for rates, lines in (([202, 207, 199], 0), ([232, 237, 229], 1)):
            self.assertEqual(len(self.warnings(over("ranks", {1: [100, 103, 98], 2: rates}))), lines)

    def test_disturbed_cases(self) -> None:
        def told(**summary: Any) -> list[str]:
            return disturbed_cases(self.experiment(runs("2", [1, 2], {"ranks": 2}, summary=summary)))

        for usable in ({}, {"cpu_share_per_rank": [0.9, 1.0]}, {"scaling_efficiency_half_width": 0.05},
                       {"cpu_share_per_rank": [None, "x"], "scaling_efficiency_half_width": "x"},
                       {"disturbed": "", "cpu_share_per_rank": [0.1]}):  # fmt: skip
            self.assertEqual(told(**usable), [], usable)
        (line,) = told(cpu_share_per_rank=[0.98, 0.53])
        self.assertRegex(line, "^Do not trust the numbers of 2 of 2 runs of main: .* 53% of its time")
        (line,) = told(scaling_efficiency_half_width=0.14)
        self.assertIn("the interval of its efficiency is +- 14 points. Repeat them on an idle machine", line)
        (line,) = told(disturbed="other programs took 52% of the cores", calibration_limit_seconds=30.0, scaling_efficiency=0.9)
        self.assertIn("Do not trust the efficiency and the parts of a step in 2 of 2 runs of main", line)
        self.assertIn("took 52% of the cores. Repeat them on an idle machine, with --calibration-seconds 90.", line)

    def test_each_reason_of_disturbed_runs_is_told_once(self) -> None:
        records = runs("2", [1, 2, 3], {"ranks": 2})
        for made, share in zip(records, (51, 67, 67)):
            made["summary"] = made["summary"] | {"disturbed": f"other programs took {share}% of the cores"}
        (line,) = disturbed_cases(self.experiment(records))
        self.assertIn("3 of 3 runs of main: other programs took 51% of the cores; other programs took 67% of the cores.", line)

    def test_disturbed_runs_are_marked_everywhere(self) -> None:
        why = "other programs took 52% of the cores"
        told = {"scaling_efficiency": 0.9, "scaling_efficiency_low": 0.85, "scaling_efficiency_high": 0.93, "disturbed": why}
        told |= {"step_seconds": 1e-3, "step_seconds_without_communication": 9e-4}
        told |= {"step_seconds_without_communication_mean": 9e-4}
        records = runs("1", [100], {"ranks": 1}) + runs("2", [180], {"ranks": 2}, summary=told)
        markdown = self.report_of(records)
        first = self.page.partition("</h1>")[2].strip().partition("\n")[0]
        self.assertTrue(first.startswith('<div class="disturbed"><p>Disturbed: 1 of 2 runs (' + why), first)
        self.assertIn("| 2 | 180.0 | 90.0%, disturbed | 1 | 1 | 90.0% (85.0 to 93.0), disturbed |", markdown)
        self.assertIn("| 2 ranks, disturbed | 1.00 | 0.90 | 0.10 | 0.00 | 0.00 | 90.0% |", markdown)
        self.assertIn("- 2 ranks: 1.80 times one rank, efficiency 90.0%, disturbed (", markdown)  # not bold
        self.assertIn("efficiency in the job, without waits for other programs, 90.0% (85.0 to 93.0), disturbed)", markdown)
        self.assertIn("\nRates, and the efficiency against the run of one rank, count waits for other programs.", markdown)
        self.assertNotRegex(self.page, r'class="(answer|warnings)"')
        for cell in re.findall(r"<td[^>]*>[^<]*disturbed</td>", self.page):
            self.assertIn("marked", cell)  # not bold in the row of the best case

    def test_a_disturbed_run_of_one_rank_is_marked_at_its_rate(self) -> None:
        records = runs("1", [100], {"ranks": 1}, summary={"disturbed": "x"}) + runs("2", [180], {"ranks": 2})
        self.assertIn("| 1 | 100.0, disturbed |  |", self.report_of(records))

    def test_undisturbed_runs_have_no_word_of_other_programs(self) -> None:
        told = {"scaling_efficiency": 0.9, "scaling_efficiency_low": 0.85, "scaling_efficiency_high": 0.93, "disturbed": ""}
        for why in ("", "4 threads share 2 cores"):  # which count their waits
            markdown = self.report_of(over("ranks", {1: [100], 2: [180]}, summary=told | {"disturbed": why}))
            self.assertNotIn("other programs", markdown.partition("## How to read")[0])

    def test_no_bold_efficiency_stands_above_a_warning(self) -> None:
        self.report_of(over("ranks", {1: [100], 2: [230]}))
        self.assertIn('efficiency 115.0% <span class="mark">above 100%</span>', self.page)
        self.assertNotIn('class="answer"', self.page)

    def test_they_stand_on_the_page(self) -> None:
        markdown = self.report_of(over("ranks", {1: [100], 2: [230]}))
        self.assertIn('<div class="warnings"><p>An efficiency above 100%: 115.0%', self.page)
        self.assertIn("> **Warning**: An efficiency above 100%: 115.0%", markdown)


class WinnerTest(ReportCase):
    def test_the_best_row_stands_out_if_it_differs(self) -> None:
        self.report_of(algo("", [100, 101, 102]) + algo("Ring", [200, 201, 202]) + algo("Tree", [50, 51, 52]))
        (row,) = re.findall(r'<tr class="winner">(.*?)</tr>', self.page)
        self.assertIn(">Ring</td>", row)
        self.report_of(algo("", [100, 110, 90]) + algo("Ring", [102, 112, 89]))
        body, _ = self.page.split("<body>")[1].split("How to read this page</h2>")
        self.assertNotIn("winner", body)
        self.assertNotRegex(re.sub(r'style="[^"]*"', "", body), r"\d%")
        self.assertIn(">no difference</td>", body)

    def test_parameters_that_differ_without_a_reason_are_red(self) -> None:
        records = algo("", [1, 2], summary={"parameter_hash": "a"})
        records[1]["summary"] = records[1]["summary"] | {"parameter_hash": "b"}
        self.report_of(records)
        self.assertIn('<div class="warnings"><p>2 runs of main ended with 2 different sets', self.page)


def told(step: float, efficiency: float, silent: float, mean: float, **more: Any) -> dict[str, Any]:
    """A summary of ddptrain, times in seconds: `silent` of a step without communication, and `mean` of the ranks."""
    silent_seconds = {"step_seconds_without_communication": silent, "step_seconds_without_communication_mean": mean}
    return {"step_seconds": step, "scaling_efficiency": efficiency} | silent_seconds | more


class LostTimeTest(ReportCase):
    def test_parts_add_up(self) -> None:
        rng = random.Random(5)
        for _ in range(100):
            limits = ((1, 2), (0.3, 1.1), (0.5, 2), (0.5, 2))
            summaries = [told(*(rng.uniform(*limit) for limit in limits)) for _ in range(3)]
            made = [record("c", i, 1.0, {"ranks": 4}, summary=s) for i, s in enumerate(summaries)]
            (loss,) = losses(self.experiment(made))
            self.assertAlmostEqual(sum(loss.part_seconds.values()), loss.step_seconds - loss.useful_seconds)

    def bars(self, *summaries: dict[str, Any]) -> list[dict[str, float]]:
        """What the picture shows of steps: the names of their parts and the shares in percent."""
        made = [record(f"c{i}", 0, 1.0, {"ranks": 2, "batch": i}, summary=each) for i, each in enumerate(summaries)]
        drawn = [picture.chart for picture in lost_time_pictures(losses(self.experiment(made)))]
        return [
            {name: share for share, color in bar.parts for name, used in chart.legend.items() if used == color}
            for chart in drawn for bar in chart.bars
        ]  # fmt: skip

    def test_bars_are_as_long_as_the_step(self) -> None:
        negative = told(3.93e-3, 3.19 / 3.93, 3.62e-3, 3.4e-3, slowed_down_us=-3100)
        usual = told(4e-3, 0.75, 3.5e-3, 3.25e-3, slowed_down_us=250)
        faster = told(4e-3, 0.75, 4.4e-3, 3.25e-3, slowed_down_us=100)  # than without communication
        first, second, third = self.bars(negative, usual, faster)
        self.assertEqual({name: round(share, 1) for name, share in first.items()},
                         {"single-rank baseline": 81.2, "exposed communication": 7.9, "contention": 5.3, "stragglers": 5.6})  # fmt: skip
        self.assertEqual({name: round(share, 2) for name, share in second.items()},
                         {"single-rank baseline": 75.0, "compute slowed down by communication": 6.25,
                          "waiting for communication": 6.25, "contention": 6.25, "stragglers": 6.25})  # fmt: skip
        self.assertEqual({name: round(share, 2) for name, share in third.items()},
                         {"single-rank baseline": 65.0, "exposed communication": 0.0, "contention": 6.25,
                          "stragglers": 28.75})  # fmt: skip
        self.assertEqual(self.bars(told(1.0, 0.1, 2.0, 1.5)), [])  # more below 0 than the baseline has
        self.assertEqual(len(self.bars(told(1.0, 0.1, 2.0, 1.5), usual)), 1)

    def test_what_is_exposed_is_told_apart_where_it_was_measured(self) -> None:
        summary = told(110e-6, 100 / 110, 102e-6, 101e-6, slowed_down_us=3.0)
        (loss,) = losses(self.experiment([record("c", 0, 1.0, {"ranks": 2}, summary=summary)]))
        expected = {"compute slowed down by communication": 3, "waiting for communication": 5}
        expected |= {"contention": 1, "stragglers": 1}
        self.assertEqual({name: round(1e6 * part, 6) for name, part in loss.part_seconds.items()}, expected)

    def test_the_slowest_rank_is_named_by_how_often_it_is(self) -> None:
        def words(*per_rank: Any) -> str:
            summaries = [told(1.0, 0.5, 0.9, 0.85, step_seconds_without_communication_per_rank=r) for r in per_rank]
            made = [record("c", i, 1.0, {"ranks": 2}, summary=summary) for i, summary in enumerate(summaries)]
            return lost_time_words(losses(self.experiment(made)))

        self.assertIn("slowest rank is rank 1, 20.0% above the mean", words([0.4, 0.6]))
        self.assertIn("rank 0 in 2 of 3 runs, 15.0% above the mean", words([0.6, 0.4], [0.55, 0.45], [0.4, 0.6]))
        self.assertNotIn("slowest", words([0.4, 0.6], [0.6, 0.4]))
        self.assertNotIn("slowest", words([0.49, 0.51]), "0.05 s of stragglers: ranks are slowest by turns")
        for nothing in (None, [], [0.5], [0.5, None], [0.5, "x"], [0.5, -1.0], {"0": 1.0}, [0.5, 1e400]):
            self.assertNotIn("slowest", words(nothing))

    def causes(self, *summaries: dict[str, Any]) -> str:
        made = [record("c", i, 1.0, {"ranks": 2}, summary=each) for i, each in enumerate(summaries)]
        return lost_time_words(losses(self.experiment(made)))

    def test_causes_within_the_noise_are_not_named(self) -> None:
        each = [0.02285, 0.02307]
        times = told(0.02599, 0.883, 0.02456, 0.02445, step_seconds_without_communication_per_rank=each)
        noise = {"slowed_down_us": -320, "slowed_down_us_half_width": 2060, "waiting_us_half_width": 2840,
                 "exposed_comm_us_half_width": 2034, "stragglers_us_half_width": 480}  # fmt: skip
        limits = {"scaling_efficiency_low": 0.80, "scaling_efficiency_high": 0.95}
        most = "Most is lost with main: 11.7% of 25.99 ms"
        contention = {"together_us_half_width": 1400}
        self.assertEqual(self.causes(times | noise | limits | contention), f"{most} (contention 5.8%).")
        self.assertEqual(self.causes(times | noise | limits | {"together_us_half_width": 1600}),
                         f"{most}. No single cause is more than the noise.")  # fmt: skip
        exposed = noise | limits | contention | {"exposed_comm_us_half_width": 900}  # the sum is known, the halves are not
        self.assertEqual(self.causes(times | exposed), f"{most} (exposed communication 5.5%, contention 5.8%).")
        slowest = noise | limits | contention | {"stragglers_us_half_width": 100}
        self.assertIn("stragglers 0.4%). Its slowest rank is rank 1, 0.5% above the mean.", self.causes(times | slowest))
        self.assertIn("slowed down by communication -1.2%", self.causes(times | {"slowed_down_us": -320}))  # no interval

    def test_a_loss_within_the_noise_has_no_causes(self) -> None:
        nothing = "No step takes longer than its reference (single-rank baseline) by more than the noise."
        limits = {"scaling_efficiency_low": 0.82, "scaling_efficiency_high": 1.02}
        self.assertEqual(self.causes(told(1.0, 0.9, 0.95, 0.92) | limits), nothing)

    def test_other_programs_hide_the_causes(self) -> None:
        limits = {"scaling_efficiency_low": 0.8, "scaling_efficiency_high": 0.93}
        limits["step_seconds_without_communication_per_rank"] = [0.85, 0.99]
        reasons = ({"disturbed": "other programs took 52% of the cores"}, {"disturbed": "rank 1 waited 12% of its time for a core"},
                   {"disturbed": "busy", "disturbed_by_others": True}, {"disturbed": "4 threads share 2 cores"},
                   {"disturbed": "more threads than other programs", "disturbed_by_others": False})  # fmt: skip
        *others, crowd, own = (self.causes(told(1.0, 0.9, 0.95, 0.92) | limits | why) for why in reasons)
        self.assertEqual(own, crowd)
        for words in others:
            self.assertEqual(words, "Other programs disturbed all of these measurements, so what is lost, and why, is not known.")
        self.assertIn("(exposed communication 5.0%, contention 2.0%, stragglers 3.0%). Its slowest rank is rank 1", crowd)

    def test_most_is_lost_with_a_case_that_nobody_disturbed(self) -> None:
        def words(**of_worse: Any) -> str:
            summaries = {8: told(1.0, 0.9, 0.95, 0.92), 16: told(1.0, 0.6, 0.95, 0.92) | of_worse}
            made = [record(f"{n}", 0, 1.0, {"ranks": 2, "batch": n}, summary=summary) for n, summary in summaries.items()]
            found = losses(self.experiment(made))
            marked = ["disturbed" in bar.label for picture in lost_time_pictures(found) for bar in picture.chart.bars]
            self.assertEqual(marked, ["disturbed" in row[0] for row in lost_time_table(found).rows])
            self.assertEqual(sum(marked), len(of_worse))
            return lost_time_words(found)

        left_out = "Measurements that other programs disturbed are left out."
        self.assertRegex(words(), "^Most is lost with batch 16: 40.0% ")
        self.assertRegex(words(disturbed="other programs took 52% of the cores"), f"^Most is lost with batch 8: 10.0% .* {left_out}$")
        self.assertRegex(words(disturbed="4 threads share 2 cores"), r"^Most is lost with batch 16: 40.0% .*\)\.$")

    def test_a_wide_efficiency_is_marked_beside_the_parts(self) -> None:
        for why, label in (("", "main"), ("busy", "main, disturbed")):
            wide = {"scaling_efficiency_low": 0.6, "scaling_efficiency_high": 1.2, "disturbed": why}
            (row,) = lost_time_table(losses(self.experiment([record("c", 0, 1.0, {"ranks": 2},
                                     summary=told(1.0, 0.9, 0.95, 0.92) | wide)]))).rows  # fmt: skip
            self.assertEqual((row[0], row[-1]), (label, "90.0%, too noisy"))

    def test_short_steps_are_read_in_microseconds(self) -> None:
        summary = told(134e-6, 0.93, 126e-6, 125.93e-6)
        found = losses(self.experiment([record("c", 0, 1.0, {"ranks": 2}, summary=summary)]))
        self.assertIn("7.0% of 134.0 us", lost_time_words(found))
        self.assertEqual(lost_time_table(found).rows[0], ["main", "134.0", "124.6", "8.00", "1.31", "0.07", "93.0%"])
        self.assertEqual(lost_time_table(found).header[1:3], ["step, us", "single-rank baseline, us"])
        summary |= {"stragglers_us_half_width": 0.05, "exposed_comm_us_half_width": 1.234}
        found = losses(self.experiment([record("c", 0, 1.0, {"ranks": 2}, summary=summary)]))
        self.assertEqual(lost_time_table(found).rows[0][3:6], ["8.00 +- 1.23", "1.31", "0.07 +- 0.05"])
        found = losses(self.experiment([record("c", 0, 1.0, {"ranks": 2}, summary=told(1.0, 1.1, 0.95, 0.95))]))
        self.assertEqual(lost_time_words(found), "No step takes longer than its reference (single-rank baseline).")

    def test_damaged_records_are_left_out(self) -> None:
        for damaged in (told(1.0, 1e20, 0.9, 0.9), told(1.0, 0.9, 1e20, 0.9), told(-1.0, 0.9, 0.9, 0.9)):
            made = [record("c", 0, 1.0, {"ranks": 2}, summary=damaged)]
            self.assertEqual(losses(self.experiment(made)), [])
