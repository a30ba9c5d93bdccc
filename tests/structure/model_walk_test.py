"""What a model touches outside of its folder: the walk of CONTRIBUTING.md, "Adding a model", with models/mlp."""

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = {".h", ".cpp", ".cu", ".cuh", ".txt", ".cmake", ".toml"}
WALK = {"models/registry.cpp", "configs/mlp.toml", "tests/models/mlp/mlp_test.cpp"}


def files_that_name(model: str) -> set[str]:
    """Files outside of its folder that know the model. Not prose and the tools, which take any name, nor sweeps and tests
    of programs, which train some model as an example."""
    name = re.compile(rf'models/{model}\b|\bmake_{model}\b|"{model}"|\({model}\)|--model[ =]{model}\b')
    folders = ("runtime", "data", "models", "launch", "configs", "tests/models", "benchmarks")
    files = [ROOT / "CMakeLists.txt", *(path for top in folders for path in (ROOT / top).rglob("*"))]
    return {path.relative_to(ROOT).as_posix() for path in files
            if path.suffix in CODE and path.is_file() and path != Path(__file__).resolve()
            and not path.is_relative_to(ROOT / "models" / model) and not path.is_relative_to(ROOT / "configs" / "sweeps")
            and name.search(path.read_text(encoding="utf-8", errors="replace"))}


class ModelWalkTest(unittest.TestCase):
    def test_a_model_is_a_folder_a_line_a_config_and_a_test(self) -> None:
        self.assertEqual(files_that_name("mlp"), WALK)
        registry = (ROOT / "models/registry.cpp").read_text(encoding="utf-8")
        self.assertEqual([line for line in registry.splitlines() if "mlp" in line], ["  model(mlp) \\"])

    def test_contributing_walks_through_it(self) -> None:
        text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
        walk = text[text.index("## Adding a model") :]
        walk = walk[: walk.index("\n## ", 1)]
        for path in ("models/mlp/", *WALK):
            self.assertIn(f"`{path}`", walk)

    def test_the_tutorial_shows_a_sublayer_that_is_tested(self) -> None:
        page = (ROOT / "docs/tutorial/your-own-model.md").read_text(encoding="utf-8")
        tested = (ROOT / "tests/models/layers/relu_feed_forward.h").read_text(encoding="utf-8")
        (shown,) = re.findall(r"^```cpp\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        for function in shown.split("\n\n"):
            self.assertIn(function.strip("\n"), tested)

    def test_the_decoder_reads_from_top_to_bottom(self) -> None:
        for file, most in (("decoder.cpp", 150), ("block.cpp", 80)):
            lines = (ROOT / "models/decoder" / file).read_text(encoding="utf-8").splitlines()
            self.assertLessEqual(len(lines), most, file)
        for path in (path for folder in ("decoder", "layers") for path in (ROOT / "models" / folder).iterdir()):
            self.assertNotRegex(path.read_text(encoding="utf-8"), r"std::(swap|exchange)", f"{path}: buffers have names")

    def test_a_family_of_decoders_is_a_table(self) -> None:
        families = [path.parent for path in (ROOT / "models").glob("*/*_workload.cpp")
                    if "decoder_workload.h" in path.read_text(encoding="utf-8") and path.parent.name != "decoder"]
        self.assertIn("gpt2", [family.name for family in families])
        for path in (path for family in families for path in family.iterdir()):
            self.assertNotRegex(path.read_text(encoding="utf-8"), r"TensorGroup|StageBoundary|Fp8Scale|Checkpoint",
                                f"{path}: the decoder does this for all families")

    def test_files_to_open_first_exist(self) -> None:
        text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
        table = text[text.index("### A family of transformers") :]
        table = table[: table.index("\n## ")]
        named = re.findall(r"`((?:models|tests)/[\w./]+)`", table)
        self.assertGreater(len(named), 8)
        for path in named:
            self.assertTrue((ROOT / path).exists(), path)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
