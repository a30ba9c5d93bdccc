"""What a report makes of runs that summed their gradients by different paths."""

from typing import Any

from ddptools.report.sweeps.numerics import choices
from tests.tools.report.support import RING, ReportCase, runs

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
