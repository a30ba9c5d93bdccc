"""The table of ddpreport that compares the same cases on several machines."""

from typing import Any

from tests.tools.report.support import ReportCase, over
from tests.tools.support import write_results

TITLE = "## The same cases on several machines"
SLOW, FAST = {"cpu": "Slow", "cores": 2, "gpus": []}, {"cpu": "Fast", "cores": 8, "gpus": []}
STEADY = [99, 100, 101]


def steady(rate: float) -> list[float]:
    return [rate * part / 100 for part in STEADY]


class MachinesTest(ReportCase):
    def rows(self, *results: list[dict[str, Any]]) -> list[list[str]]:
        """Head and rows of the table on a page of a folder for each of `results`; empty without the table."""
        folders = [write_results(self.folder / f"{i}" / "scaling", records) for i, records in enumerate(results)]
        _, _, text = self.report(*folders).partition(TITLE)
        self.assertEqual(TITLE.removeprefix("## ") in self.page, bool(text))
        lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("| ") and "---" not in line]
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]

    def test_a_ratio_is_to_the_first_machine(self) -> None:
        slow = over("batch", {8: steady(100), 16: steady(200)}, machine=SLOW)
        fast = over("batch", {8: steady(250), 16: steady(150)}, machine=FAST)
        head, *rows = self.rows(slow, fast)
        self.assertEqual(head, ["case", "unit", "Slow", "Fast", "ratio, Fast"])
        self.assertEqual(rows[0], ["made-up, batch 8", "images/s", "100.0 (99 to 101.0)", "250.0 (247.5 to 252.5)", "2.500"])
        self.assertEqual(rows[1][-1], "0.750")
        head, *rows = self.rows(fast, slow)
        self.assertEqual((head[2:], rows[0][-1]), (["Fast", "Slow", "ratio, Slow"], "0.400"))

    def test_only_cases_of_two_machines_are_compared(self) -> None:
        slow = over("batch", {8: steady(100), 16: steady(200)}, machine=SLOW)
        fast = over("batch", {16: steady(300), 32: steady(400)}, machine=FAST)
        other = over("batch", {32: steady(200)}, machine=FAST | {"cores": 64, "cpu": "Third"})
        self.assertEqual([row[0] for row in self.rows(slow, fast)[1:]], ["made-up, batch 16"])
        head, both, later = self.rows(slow, fast, other)
        self.assertEqual(head[2:], ["Slow", "Fast", "Third", "ratio, Fast", "ratio, Third"])
        self.assertEqual(both[4:], ["", "1.500", ""])
        self.assertEqual((later[0], later[2:3], later[5:]), ("made-up, batch 32", [""], ["", ""]))
        lone = over("batch", {64: steady(100)}, machine=FAST)
        self.assertEqual(self.rows(slow, lone), [])
        faster = [made | {"sweep": "another"} for made in over("batch", {8: steady(300)}, machine=FAST)]
        self.assertEqual(self.rows(slow, faster), [])

    def test_emulated_nodes_are_not_compared_with_real_ones(self) -> None:
        real, emulated = over("batch", {8: steady(100)}, machine=SLOW), over("batch", {8: steady(300)}, machine=FAST)
        emulated = [made | {"emulated": True} for made in emulated]
        self.assertEqual(self.rows(real, emulated), [])

    def test_results_of_one_machine_are_not_compared(self) -> None:
        slow, again = (over("batch", {8: steady(rate)}, machine=SLOW) for rate in (100, 200))
        fast = over("batch", {8: steady(300)}, machine=FAST)
        for same in (SLOW | {"host": "b"}, {}, {"cpu": "Slow"}):
            self.assertEqual(self.rows(slow, over("batch", {8: steady(200)}, machine=same)), [], same)
        self.assertEqual(self.rows(slow, again, fast)[1][-1], "3.000", "the first result counts")
        self.assertEqual(self.rows(slow, over("batch", {4: steady(1)}, machine=FAST) + again), [], "a sweep of two machines")

    def test_what_tells_no_difference_is_marked(self) -> None:
        def ratio(rates: list[float], *reference: float, **changes: Any) -> str:
            slow = over("batch", {8: list(reference) or STEADY}, machine=SLOW)
            return self.rows(slow, over("batch", {8: rates}, machine=FAST, **changes))[1][-1]

        self.assertEqual(ratio([98, 102, 103]), "1.020, no difference")
        self.assertEqual(ratio([150], 100), "1.500, too few runs")
        disturbed = {"disturbed": "other programs took 52% of the cores"}
        self.assertEqual(ratio(steady(150), summary=disturbed), "1.500, disturbed")
        slow, fast = over("batch", {8: STEADY}, machine=SLOW, summary=disturbed), over("batch", {8: STEADY}, machine=FAST)
        self.assertEqual(self.rows(slow, fast)[1][2:],
                         ["100.0 (99 to 101.0), disturbed", "100.0 (99 to 101.0)", "1.000, no difference, disturbed"])  # fmt: skip

    def test_machines_of_one_name_are_told_apart(self) -> None:
        head = self.rows(*(over("batch", {8: STEADY}, machine=SLOW | {"cores": cores}) for cores in (2, 4)))[0]
        self.assertEqual(head[2:4], ["Slow, 2 cores, GPUs: none", "Slow, 4 cores, GPUs: none"])
