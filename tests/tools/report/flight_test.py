import contextlib
import io
from typing import Any

from ddptools.common.errors import UsageError
from ddptools.report.flight import first_difference, load
from ddptools.report.program import main
from tests.tools.support import FolderCase, write_lines

Line = dict[str, Any]


def collective(sequence: int, name: str = "all-reduce", finished: bool = True, bucket: int | None = 1) -> Line:
    times = {"queued": 100.0 + sequence, "started": 100.0 + sequence, "finished": 100.5 + sequence if finished else None}
    return {"event": "collective", "sequence": sequence, "name": name, "bucket": bucket, "bytes": 8, "step": 7} | times


def progress(waits: str = "", sequence: int = 0) -> Line:
    name = "all-reduce" if sequence else ""
    steps = {"steps_queued": 7, "steps_ended": 7}
    return {"phase": "training", "waiting_for": waits, "seconds": 3.0, "sequence": sequence, "collective": name,
            "bucket": 1 if sequence else None} | steps  # fmt: skip


def first(rank: int, ranks: int, reason: str = "asked", **more: Any) -> Line:
    known = {"event": "flight", "program": "ddptrain", "rank": rank, "world_size": ranks, "host": f"host{rank}"}
    known |= {"job": "cafe", "time": 200.0}
    return known | {"process": 40 + rank, "reason": reason, "message": f"rank {rank} tells"} | progress() | more


class FlightTest(FolderCase):
    def write(self, rank: int, lines: list[Line], rest: str = "") -> None:
        write_lines(self.folder / f"rank{rank}.jsonl", lines, rest)

    def difference(self, *ranks: list[Line], computing: int | None = None) -> str:
        """`computing`: the rank that does not wait although it has an open collective."""
        for earlier in self.folder.iterdir():
            earlier.unlink()
        for rank, collectives in enumerate(ranks):
            is_open = any(line["finished"] is None for line in collectives)
            waits = "all-reduce" if is_open and rank != computing else ""
            self.write(rank, [first(rank, len(ranks), waiting_for=waits), *collectives])
        return first_difference(load(self.folder))

    def report(self) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(main(["--flight", str(self.folder)]), 0)
        return out.getvalue()

    def test_the_first_difference(self) -> None:
        ended, waiting, long = [collective(5)], [collective(5, finished=False)], [collective(n) for n in range(1, 6)]
        ahead, later = [*ended, collective(6, finished=False)], "all-reduce of bucket 1 after 7 steps"
        other, bucket = "Collective 5 is not the same on all ranks:", "all-reduce of bucket"
        for ranks, text in (
            ([ahead, ahead, ended], f"Rank 2 never called collective 6, {later}, in which ranks 0, 1 waited."),
            ([long, long[3:]], "All these ranks called the same collectives, and all of them ended."),
            ([[collective(5, "barrier", False, None)], [collective(5, "gather", False, None)]],
             f"{other} rank 0 called barrier; rank 1 called gather."),
            ([[collective(5, bucket=0)], [collective(5, bucket=1)]],
             f"{other} rank 0 called {bucket} 0; rank 1 called {bucket} 1."),
            ([ended, waiting], f"Collective 5, {later}, ended on some ranks, and not on rank 1."),
            ([waiting, waiting], f"All these ranks waited in collective 5, {later}."),
        ):  # fmt: skip
            with self.subTest(text=text):
                self.assertEqual(self.difference(*ranks), text)
        waiting = [collective(5, finished=False)]
        text = self.difference(waiting, waiting, waiting, computing=1)
        self.assertEqual(text, "Collective 5, all-reduce of bucket 1 after 7 steps, ended on none of these ranks, "
                         "but rank 1 did not wait in it.")  # fmt: skip
        self.assertRegex(self.report(), r"\n +1 +host1 +training +nobody ")
        text = self.difference([collective(4)], waiting, waiting, computing=1)
        self.assertIn("Rank 0 never called collective 5", text)
        self.assertIn("in which rank 2 waited", text)

    def test_report(self) -> None:
        peer = {"event": "peer", "rank": 1, "host": "host1", "answers": False, "heard_seconds_ago": 3.4} | progress()
        silent = {"event": "peer", "rank": 2, "host": "host2", "answers": False, "heard_seconds_ago": None}
        told = first(0, 3, "timeout", **progress("all-reduce", 9))
        self.write(0, [told, peer, silent, collective(9, finished=False)], '{"event": "coll')
        text = self.report()
        self.assertIn("rank 0 tells", text)
        self.assertRegex(text, r"0 +host0 +training +all-reduce +3.0 s +7 of 7 +9 all-reduce of bucket 1 +its own record")
        self.assertRegex(text, r"1 +host1 +training +nobody +3.0 s +7 of 7 +none +rank 0, 3.4 s before")
        self.assertRegex(text, r"2 +host2 .* nobody")
        self.assertIn("no record of ranks 1, 2", text)
        self.assertIn("1 lines could not be read", text)

    def test_a_rank_that_woke_up_after_the_timeout(self) -> None:
        silent = {"event": "peer", "rank": 1, "host": "host1", "answers": False, "heard_seconds_ago": 8.2} | progress()
        answers = {"event": "peer", "rank": 0, "host": "host0", "answers": True, "heard_seconds_ago": 0.1} | progress()
        waits = progress("all-reduce", 5)
        self.write(0, [first(0, 2, "timeout", **waits), silent, collective(5, finished=False)])
        self.write(1, [first(1, 2, **waits), answers, collective(5, finished=False)])
        text = self.report()
        self.assertIn("Rank 1 did not answer rank 0, which last heard of it 8.2 s before. It wrote its record later.\n", text)
        self.assertNotIn("Rank 0 did not answer", text)

    def test_which_records_count(self) -> None:
        (self.folder / "metrics.jsonl").write_text('{"event": "start"}\n')
        with self.assertRaisesRegex(UsageError, "no flight record"):
            main(["--flight", str(self.folder)])
        self.write(0, [first(0, 1)])
        self.write(1, [first(1, 2, job="dead", time=100.0)])
        self.assertEqual([flight.rank for flight in load(self.folder)], [0])
