"""Where the time of a step went."""

import random
from typing import Any
from unittest import mock

from ddptools.pictures import figures
from ddptools.report.sweeps import plots
from ddptools.report.sweeps.lost_time import losses, lost_time_table, lost_time_words
from ddptools.report.sweeps.plots import lost_time_picture
from tests.tools.report.support import ReportCase
from tests.tools.support import record


def bench(ranks: int, benchmark: str, results: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """A record of ddpbench."""
    made = {"benchmark": benchmark, "ranks": ranks, "results": results} | fields
    return record(f"{benchmark}{ranks}", 0, None, {"ranks": ranks}, status="ok", bench=made)


def step_bench(ranks: int, parts: dict[str, float | None], **fields: Any) -> dict[str, Any]:
    """Of ddpbench step; `parts` in us."""
    rows = [{"part": name, "time_us": time} for name, time in parts.items()]
    rows.append({"part": "step", "time_us": sum(time or 0.0 for time in parts.values())})
    return bench(ranks, "step", rows, **{"model": "cnn", "batch_per_rank": 32, "grad_accum": 1} | fields)


def told(step: float, efficiency: float, silent: float, mean: float, **more: Any) -> dict[str, Any]:
    """A summary of ddptrain, times in seconds: `silent` of a step without communication, and `mean` of the ranks."""
    silent_seconds = {"step_seconds_without_communication": silent, "step_seconds_without_communication_mean": mean}
    return {"step_seconds": step, "scaling_efficiency": efficiency} | silent_seconds | more


ONE = {"data": 10.0, "forward": 200.0, "backward": 400.0, "exposed_communication": 2.0, "optimizer": 50.0}
ONE |= {"launch_gaps": 30.0}
FOUR = {"data": 25.0, "forward": 220.0, "backward": 440.0, "exposed_communication": 102.0, "optimizer": 48.0}
FOUR |= {"launch_gaps": 70.0}


class LostTimeTest(ReportCase):
    def test_parts_add_up(self) -> None:
        rng = random.Random(5)
        for _ in range(100):
            limits = ((1, 2), (0.3, 1.1), (0.5, 2), (0.5, 2))
            summaries = [told(*(rng.uniform(*limit) for limit in limits)) for _ in range(3)]
            made = [record("c", i, 1.0, {"ranks": 4}, summary=s) for i, s in enumerate(summaries)]
            (loss,) = losses(self.experiment(made))
            self.assertAlmostEqual(sum(loss.part_seconds.values()), loss.step_seconds - loss.useful_seconds)

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
        for nothing in (None, [], [0.5], [0.5, None], [0.5, "x"], [0.5, -1.0], {"0": 1.0}, [0.5, 1e400]):
            self.assertNotIn("slowest", words(nothing))

    def test_step_of_ddpbench(self) -> None:
        experiment = self.experiment([step_bench(1, ONE), step_bench(4, FOUR, stragglers_us=12.0)])
        self.assertEqual(experiment.unit, "samples/s")
        self.assertAlmostEqual(experiment.measured[1].rate, 4 * 32 / 905e-6)
        (loss,) = losses(experiment)
        expected = {"exposed communication": 100, "contention": 46, "stragglers": 12, "input": 15}
        expected |= {"launch gaps": 40}
        self.assertEqual({name: round(1e6 * part, 6) for name, part in loss.part_seconds.items()}, expected)
        self.assertEqual((round(1e6 * loss.step_seconds, 6), round(1e6 * loss.useful_seconds, 6)), (905, 692))
        graph = {"data": None, "launch_gaps": 0.0}
        (loss,) = losses(self.experiment([step_bench(1, ONE | graph), step_bench(4, FOUR | graph, stragglers_us=12.0)]))
        self.assertEqual(list(loss.part_seconds), ["exposed communication", "contention", "stragglers"])
        self.assertAlmostEqual(sum(loss.part_seconds.values()), loss.step_seconds - loss.useful_seconds)
        damaged = {"bucket_bytes": 4, "compute_alone_us": 1.0, "compute_beside_us": 1e20, "together_us": 1.0}
        for records in ([step_bench(4, FOUR)], [step_bench(1, ONE, batch_per_rank=128), step_bench(4, FOUR)],
                        [step_bench(1, ONE | {"forward": -1e6, "other": 2e6}), step_bench(4, FOUR)],
                        [bench(2, "overlap", [damaged])]):  # fmt: skip
            self.assertEqual(losses(self.experiment(records)), [])

    def test_overlap_of_ddpbench_tells_slow_compute_from_waiting(self) -> None:
        rows = [{"bucket_bytes": 2**size, "compute_alone_us": 900.0, "compute_beside_us": 950.0 + size,
                 "together_us": 1000.0} for size in (20, 18)]  # fmt: skip
        experiment = self.experiment([bench(2, "overlap", rows)])
        self.assertEqual((experiment.unit, experiment.measured[0].rate), ("backward passes/s", 1000.0))
        first, second = losses(experiment)
        self.assertEqual((first.label, second.label), ("main, buckets of 256 KiB", "main, buckets of 1 MiB"))
        expected = {"compute slowed down by communication": 68, "waiting for communication": 32}
        self.assertEqual({name: round(1e6 * part, 6) for name, part in first.part_seconds.items()}, expected)
        self.assertEqual(lost_time_table([first]).header[2], "without communication, ms")

    def test_short_steps_are_read_in_microseconds(self) -> None:
        summary = told(134e-6, 0.93, 126e-6, 125.93e-6)
        found = losses(self.experiment([record("c", 0, 1.0, {"ranks": 2}, summary=summary)]))
        self.assertIn("7.0% of 134.0 us", lost_time_words(found))
        self.assertEqual(lost_time_table(found).rows[0], ["main", "134.0", "124.6", "8.00", "1.31", "0.07", "93.0%"])
        self.assertEqual(lost_time_table(found).header[1:3], ["step, us", "single-rank baseline, us"])
        summary |= {"stragglers_us_half_width": 0.05, "exposed_comm_us_half_width": 1.234}
        found = losses(self.experiment([record("c", 0, 1.0, {"ranks": 2}, summary=summary)]))
        self.assertEqual(lost_time_table(found).rows[0][3:6], ["8.00 +- 1.23", "1.31", "0.07 +- 0.05"])

    def test_the_legend_is_not_cut_off(self) -> None:
        rows = [{"bucket_bytes": 1, "compute_alone_us": 900, "compute_beside_us": 950, "together_us": 1000}]
        for made in ([bench(2, "overlap", rows)], [step_bench(1, ONE), step_bench(4, FOUR, stragglers_us=12.0)]):
            experiment = self.experiment(made)
            with mock.patch.object(figures, "finish", lambda figure, *_: figure):
                figure = lost_time_picture(experiment, losses(experiment))
            figure.canvas.draw()
            box = figure.axes[0].get_legend().get_window_extent()
            self.assertGreaterEqual(box.x0, 0)
            self.assertLessEqual(box.x1, figure.bbox.x1)

    def test_long_names_leave_room_for_the_bars(self) -> None:
        settings = {f"OMPI_MCA_btl_vader_{name}": "x" for name in ("single_copy_mechanism", "eager_limit", "flags")}
        summary = told(1.0, 0.9, 0.95, 0.95)
        made = [record(v, 0, 1.0, dict.fromkeys(settings, v) | {"ranks": 2}, summary=summary) for v in ("x", "y")]
        experiment = self.experiment(made)
        drawn: list[Any] = []
        with mock.patch.object(figures, "finish", lambda figure, *_: drawn.append(figure)):
            lost_time_picture(experiment, losses(experiment))
            plots.pictures(experiment)
        self.assertGreaterEqual(len(drawn), 2)
        for figure in drawn:
            figure.canvas.draw()
            self.assertGreater(figure.axes[0].get_position().width, 0.4)

    def test_nothing_lost(self) -> None:
        found = losses(self.experiment([record("c", 0, 1.0, {"ranks": 2}, summary=told(1.0, 1.1, 0.95, 0.95))]))
        self.assertEqual(lost_time_words(found), "No step takes longer than its reference (single-rank baseline).")
