"""The arrows between folders: fails on an #include, or an import of Python, against them."""

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ["runtime/core", "runtime/device", "runtime/ops", "runtime/comm", "runtime/topology", "runtime/diagnostics",
           "runtime/outer", "runtime/train"]

# What each folder may include besides itself.
MAY_INCLUDE = {
    "runtime/core": [],
    "runtime/device": ["runtime/core"],
    "runtime/ops": ["runtime/core", "runtime/device"],
    "runtime/comm": ["runtime/core", "runtime/device"],
    "runtime/topology": ["runtime/core"],
    "runtime/diagnostics": ["runtime/core", "runtime/device", "runtime/comm"],
    "runtime/outer": ["runtime/core"],
    "runtime/train": ["runtime/core", "runtime/device", "runtime/ops", "runtime/comm", "runtime/diagnostics",
                      "runtime/outer"],
    "data": RUNTIME,
    "models": [*RUNTIME, "data"],
    "launch": [*RUNTIME, "data", "models"],
    "benchmarks": [*RUNTIME, "data", "models", "launch"],
}

# What each package of launch/ddptools may import besides itself: programs do not know each other.
MAY_IMPORT = {
    "common": [],
    "results": ["common"],
    "pictures": ["common"],
    "page": ["common", "pictures"],
    "report": ["common", "results", "pictures", "page"],
    "sweep": ["common", "results"],
    "plan": ["common", "results"],
    "supervise": ["common"],
    "nccl": ["common"],
}
# The rooms of runtime/train, and what each may include besides itself and the headers directly in runtime/train.
# step <- replica <- measure, checkpoint, report, groups <- run
STEP = ["step", "step/store", "step/sync", "step/whole"]
ROOMS = {
    "": [],  # dataset.h, model.h, split.h
    "results": [],  # plain structs
    "step/store": [],
    "step/sync": ["step/store"],
    "step/whole": ["step/store"],
    "step": ["results", "step/store", "step/sync", "step/whole"],
    "replica": ["results", *STEP],
    "measure": ["results", *STEP, "replica"],
    "checkpoint": ["results", *STEP, "replica"],
    "report": ["results", *STEP, "replica"],
    "groups": ["results", *STEP, "replica", "checkpoint"],
    "run": ["results", *STEP, "replica", "measure", "checkpoint", "report", "groups"],
}
MOST_FILES = 25  # in a folder of Python

# Headers of libraries, and where alone they may be included.
LIBRARIES = {
    r"cuda|cublas|cudnn|cub/|mma\.h": r"/cuda/|nccl|benchmarks/|\.cuh?$",
    r"nccl": r"nccl|comm/",
    r"mpi\.h": r"mpi|comm/",
    r"omp\.h": r"device/cpu/",
    r"hiredis|openssl": r"outer/redis\.cpp",
}

IMPORT = re.compile(r"^\s*(?:from|import) ddptools\.(\w+)", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#include\s+(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)


def folder_of(path: str) -> str | None:
    return next((folder for folder in MAY_INCLUDE if path.startswith(folder + "/")), None)


def sources() -> list[Path]:
    endings = {".h", ".cpp", ".cu", ".cuh"}
    return [path for top in ("runtime", "data", "models", "launch", "benchmarks")
            for path in sorted((ROOT / top).rglob("*")) if path.suffix in endings]


def room_of(path: str) -> str | None:
    """The room of a file of runtime/train: the longest of ROOMS that its folder begins with."""
    if not path.startswith("runtime/train/"):
        return None
    folder = path.removeprefix("runtime/train/").rpartition("/")[0]
    return max((room for room in ROOMS if f"{folder}/".startswith(f"{room}/") or room == ""), key=len)


def against_the_arrow(includes: list[tuple[str, str]]) -> list[str]:
    """Includes between rooms of runtime/train that ROOMS does not allow."""
    wrong = []
    for path, own in includes:
        source, target = room_of(path), room_of(own)
        if source is None or target is None or target in (source, ""):
            continue
        if target not in ROOMS[source]:
            wrong.append(f"{path} includes {own}: {source or 'runtime/train'} may not include {target}")
    return wrong


WORDS = {"mine"}  # the model of docs/tutorial/your-own-model.md, and a word of the runtime


def places_of_models(path: str, text: str, names: list[str]) -> list[str]:
    """Lines of a source that name one of the models."""
    found = []
    text = text.replace("llama.cpp", "")  # another program, whose files have a mark
    for name in names:
        alone = rf"|\b{name}\b" if name not in WORDS else ""
        of_folder = rf'models/{name}\b|"{name}"|--model[ =]{name}\b|\b{name}_?workload'
        naming = re.compile(rf"(?i:{of_folder}{alone})|\b{name.capitalize()}[A-Z(]")
        lines = enumerate(text.splitlines(), 1)
        found += [f"{path}:{i}: names the model {name}: {line.strip()}" for i, line in lines if naming.search(line)]
    return found


class IncludesTest(unittest.TestCase):
    def setUp(self) -> None:
        self.includes = [(path.relative_to(ROOT).as_posix(), own, library)
                         for path in sources() for own, library in INCLUDE.findall(path.read_text())]
        self.assertGreater(len(self.includes), 1000)

    def test_arrows_point_down(self) -> None:
        for path, own, _ in self.includes:
            source, target = folder_of(path), folder_of(own)
            if not own or source == target:
                continue
            self.assertIsNotNone(source, f"{path}: in no folder of this list")
            self.assertIsNotNone(target, f"{path} includes {own}, which is in no folder of this list")
            self.assertIn(target, MAY_INCLUDE[source], f"{path} includes {own}: {source} may not include {target}")

    def test_rooms_of_training(self) -> None:
        folders = {path.parent.relative_to(ROOT / "runtime/train").as_posix()
                   for path in (ROOT / "runtime/train").rglob("*.h")} - {"."}  # fmt: skip
        self.assertEqual(folders, set(ROOMS) - {""}, "a folder without a row of ROOMS")
        self.assertEqual(against_the_arrow([(path, own) for path, own, _ in self.includes]), [])

    def test_a_tree_broken_on_purpose_fails(self) -> None:
        train = "runtime/train"
        for source, target in (("step/trainer.cpp", "run/meter.h"), ("step/store/arena.h", "step/optimizer.h"),
                               ("step/sync/tree.cpp", "step/trainer.h"), ("measure/trace.h", "report/report.h"),
                               ("report/report.h", "measure/calibration.h"), ("checkpoint/a.h", "report/report.h"),
                               ("model.h", "step/trainer.h"), ("results/steps.h", "step/trainer.h"),
                               ("replica/trainer.cpp", "measure/trace.h")):  # fmt: skip
            self.assertEqual(len(against_the_arrow([(f"{train}/{source}", f"{train}/{target}")])), 1, (source, target))
            self.assertEqual(against_the_arrow([(f"{train}/run/run.cpp", f"{train}/{target}")]), [])
        self.assertEqual(against_the_arrow([("runtime/train/step/sync/a.cpp", "runtime/train/step/store/b.h")]), [])

    def test_packages_of_the_tools(self) -> None:
        for path in (ROOT / "launch" / "ddptools").rglob("*.py"):
            package = path.relative_to(ROOT / "launch" / "ddptools").parts[0]
            for imported in IMPORT.findall(path.read_text()):
                self.assertIn(imported, [package, *MAY_IMPORT[package]], f"{path} imports ddptools.{imported}")
        for top in ("launch/ddptools", "tests/tools"):
            for folder in {path.parent for path in (ROOT / top).rglob("*.py")}:
                files = [path for path in folder.iterdir() if path.is_file()]
                self.assertLessEqual(len(files), MOST_FILES, folder)

    def test_cpu_and_cuda_do_not_meet(self) -> None:
        for path, own, _ in self.includes:
            for mine, other in (("/cpu/", "/cuda/"), ("/cuda/", "/cpu/")):
                self.assertFalse(mine in path and other in own, f"{path} includes {own}")
        public = [(path, own) for path, own, _ in self.includes
                  if path.endswith(".h") and path.startswith("runtime") and not re.search("/(cpu|cuda)/", path)]
        for path, own in public:
            self.assertNotRegex(own, "/(cpu|cuda)/", f"{path} is for everybody")

    def test_libraries_stay_where_they_belong(self) -> None:
        for path, _, library in self.includes:
            for name, where in LIBRARIES.items():
                if re.match(name, library):
                    self.assertRegex(path, where, f"{path} includes <{library}>")

    def test_runtime_names_no_model(self) -> None:
        names = [path.parent.name for path in (ROOT / "models").glob("*/*_workload.cpp")]
        self.assertGreaterEqual(len(names), 2)
        for path in (path for path in sources() if path.is_relative_to(ROOT / "runtime")):
            found = places_of_models(path.relative_to(ROOT).as_posix(), path.read_text(), names)
            self.assertEqual(found, [], "the runtime must work for every model")

    def test_names_of_models_are_found_and_other_words_are_not(self) -> None:
        other = "Buffer mine;  // mine, not theirs\nmine(x); mine = miner_; use(\"mine and yours\", \"models/miner\");\n"
        self.assertEqual(places_of_models("a.h", other, ["mine"]), [])
        for naming in ('#include "models/mine/mine.h"', 'if (name == "mine") {', "const MineWorkload& workload;",
                       '"try --model mine"', 'if (name == "MINE") {', "MineShape shape;"):  # fmt: skip
            found = places_of_models("a.h", f"{other}{naming}\n", ["gpt", "mine"])
            self.assertEqual(found, [f"a.h:3: names the model mine: {naming}"])
        for naming in ("// as the CNN does", "CnnShape shape;", "bool is_faster(const Cnn(&)[2]);", "int cnn = 0;"):
            self.assertEqual(places_of_models("a.h", f"llama.cpp\n{naming}", ["cnn", "llama"]),
                             [f"a.h:2: names the model cnn: {naming}"])  # fmt: skip


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
