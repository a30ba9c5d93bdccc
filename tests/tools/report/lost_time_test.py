"""Where the time of a step went."""

import random
from typing import Any

from ddptools.report.sweeps.lost_time import losses, lost_time_table, lost_time_words
from tests.tools.report.support import ReportCase
from tests.tools.support import record


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
