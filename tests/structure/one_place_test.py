"""What is put together, decided or read in one place only: a replica, the plan of a run, the flags."""

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)

# The rooms of launch/app, and what each may include besides itself. Programs may include all.
ROOMS = {"flags": [], "plan": ["flags"], "job": ["flags", "plan"], "tasks": ["flags", "plan", "job"]}


def sources() -> dict[str, str]:
    """The code of every C++ file, without comments."""
    endings = {".h", ".cpp", ".cu", ".cuh"}
    return {path.relative_to(ROOT).as_posix(): COMMENT.sub("", path.read_text(encoding="utf-8"))
            for top in ("runtime", "data", "models", "launch", "benchmarks")
            for path in sorted((ROOT / top).rglob("*")) if path.suffix in endings}


class OnePlaceTest(unittest.TestCase):
    def setUp(self) -> None:
        self.sources = sources()
        self.assertGreater(len(self.sources), 300)

    def places_of(self, pattern: str, beside: tuple[str, ...] = ()) -> list[str]:
        """A file for each match, in files whose path does not begin with one of `beside`."""
        return [path for path, text in self.sources.items() if not path.startswith(beside)
                for _ in re.findall(pattern, text)]

    def test_model_arena_and_state_are_put_together_in_replica_only(self) -> None:
        made = r"\b(?:ParameterArena|TrainingState)(?:\s+\w+\s*[;({=]|>|\s*[({])"
        own = ("runtime/train/step/store/parameter_arena", "runtime/train/step/store/training_state")
        self.assertEqual(self.places_of(made, own), 2 * ["runtime/train/replica/replica.h"])
        self.assertEqual(self.places_of(r"(?:->|\.)bind\(\{\s*\w*arena", ()), 2 * ["runtime/train/replica/replica.cpp"])

    def test_the_mesh_is_planned_once(self) -> None:
        self.assertEqual(self.places_of(r"\bmesh_of\(", ("runtime/comm/mesh_shape",)), ["launch/app/plan/run_plan.cpp"])

    def test_names_of_formats_and_units_decide_nothing(self) -> None:
        name = r'"(?:fp8|tokens)"'
        compared = rf"[!=]=\s*{name}|{name}\s*[!=]=|\b(?:compare|starts_with|find|contains|strcmp)\([^()]*{name}"
        self.assertEqual(self.places_of(compared, ("launch/app/flags/", "runtime/train/report/")), [])
        of_a_run = [path for path in self.places_of(name, ("launch/app/flags/", "runtime/train/report/"))
                    if path.startswith(("launch/app/", "runtime/train/"))]
        self.assertEqual(of_a_run, [], "the plan of a run has the format as an enum")

    def test_flags_are_read_in_the_program_only(self) -> None:
        included = self.places_of(r'#include "launch/app/flags/options\.h"', ("launch/app/", "benchmarks/ddpbench/"))
        self.assertEqual(included, [])

    def test_rooms_of_the_program(self) -> None:
        include = re.compile(r'#include "launch/app/(\w+)/')
        count = 0
        for path, text in self.sources.items():
            room = path.removeprefix("launch/app/").split("/")[0]
            if not path.startswith("launch/app/") or room not in ROOMS:
                continue
            for other in include.findall(text):
                count += 1
                self.assertIn(other, [room, *ROOMS[room]], f"{path}: {room} may not include {other}")
        self.assertGreater(count, 50)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
