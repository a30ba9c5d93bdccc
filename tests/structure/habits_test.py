"""Habits of the code: functions that fit a screen, files and folders that can be read, few places that catch."""

import ast
import re
import sys
import unittest
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOPS = ("runtime", "data", "models", "launch", "benchmarks", "tests")
MOST_LINES_OF_A_FUNCTION = 60
MOST_PARAMETERS = 10
MOST_LINES_OF_A_FILE = 600
MOST_FILES_OF_A_FOLDER = 25

# Kernels whose use of registers was measured as a whole.
LONG_KERNELS = {"backward_kernel", "backward_images", "head_kernel"}
# Folders of documents and not of code.
DOCUMENTS = {"benchmarks/results"}

# Where code below launch/ and benchmarks/ catches exceptions (CONTRIBUTING.md, "Style").
CATCHES = {
    "runtime/comm/world.cpp": "an error of one rank becomes the error of all: World::agree()",
    "runtime/core/files/json.cpp": "another library's exception",
    "runtime/core/files/safetensors.cpp": "another library's exception",
    "runtime/device/tuned_choices.cpp": "another library's exception",
    "runtime/train/checkpoint/manifest.cpp": "another library's exception",
    "runtime/core/flags.h": "the message gets the flag's name",
    "runtime/device/cpu/cpu_device.cpp": "no exception may leave a thread of OpenMP",
    "runtime/device/cuda/cuda_device.cpp": "undone and thrown again",
    "runtime/device/timeline.cpp": "a destructor may not throw",
    "runtime/train/step/gradient_reducer.cpp": "a destructor may not throw",
    "runtime/diagnostics/flight_record.cpp": "the process is ending already",
    "runtime/outer/log_client.cpp": "no exception may leave a thread, which connects again",
    "runtime/outer/log_faults.cpp": "the message gets the address",
    "runtime/outer/log_memory.cpp": "a server that does not tell has no limit",
    "runtime/outer/redis.cpp": "the connection is closed, and the exception thrown again",
    "runtime/outer/run_registry.cpp": "no exception may leave a thread, which connects again",
    "runtime/outer/snapshot.cpp": "damage is the answer",
    "runtime/outer/record.cpp": "the message gets the file's name",
    "runtime/train/groups/outer_loop.cpp": "a signal while the server is waited for is no error",
    "runtime/train/groups/outer_state.cpp": "another library's exception; a signal is no error",
    "runtime/train/checkpoint/checkpoint.cpp": "the fault of a file is the answer",
    "runtime/train/checkpoint/checkpoint_writer.cpp": "no exception may leave a thread; its text is the result",
}

CONTROL = re.compile(r"(?:if|for|while|switch|do|else|try|catch|return)\b")
CONTAINER = re.compile(r"(?:inline |export )*(?:namespace|class|struct|union|enum|extern)\b")
ATTRIBUTE = re.compile(r"__launch_bounds__\([^()]*\)|\[\[\w+\]\]")
TEMPLATE = re.compile(r"template\s*<[^<>]*(?:<[^<>]*>[^<>]*)*>\s*(?:requires .*)?")


@dataclass
class Function:
    name: str
    first: int  # line
    lines: int
    parameters: int


def without_comments_and_texts(source: str) -> str:
    """The same lines, with blanks in place of comments, texts and preprocessor lines."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    tokens = r'R"(\w*)\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|^[ \t]*#(?:\\\n|[^\n])*'
    return re.sub(tokens, blank, source, flags=re.DOTALL | re.MULTILINE)


def count_of_parameters(header: str) -> int:
    """Of the first pair of parentheses: the commas outside of other brackets, and 1."""
    depth, count, empty = 0, 0, True
    for character in header[header.index("(") :]:
        if character in "([{<":
            depth += 1
        elif character in ")]}>":
            depth -= 1
            if depth == 0:
                return 0 if empty else count + 1
        elif character == "," and depth == 1:
            count += 1
        if depth > 0 and character not in "( \n":
            empty = False
    return count + 1


def functions_in(source: str) -> Iterator[Function]:
    """Functions and methods with a body. A simple reading of code that clang-format has formatted: a body begins with a
    brace after a blank, directly within a file, namespace or class."""
    text = without_comments_and_texts(source)
    kinds: list[str] = []
    open_function: tuple[str, int] | None = None
    begin = 0  # of the statement
    for at, character in enumerate(text):
        if character == ";":
            begin = at + 1
        elif character == "{":
            header = ATTRIBUTE.sub("", TEMPLATE.sub("", text[begin:at].strip())).strip()
            is_body = text[at - 1] in " \n" and not header.endswith(("=", "(", ",", "return"))
            within = all(kind == "container" for kind in kinds)
            if CONTAINER.match(header) and "(" not in header.split("{")[0]:
                kinds.append("container")
            elif is_body and within and "(" in header and not CONTROL.match(header):
                kinds.append("function")
                open_function = (header, text.count("\n", 0, begin + len(text[begin:at]) - len(text[begin:at].lstrip())))
            else:
                kinds.append("other" if is_body or not within else "initializer")
                if kinds[-1] == "initializer":
                    continue
            begin = at + 1
        elif character == "}" and kinds:
            kind = kinds.pop()
            if kind == "function" and open_function is not None:
                header, first = open_function
                last = text.count("\n", 0, at)
                yield Function(" ".join(header.split())[:80], first + 1, last - first + 1, count_of_parameters(header))
            if kind != "initializer":
                begin = at + 1
        elif character == ":" and re.match(r"\s*(?:public|private|protected)\s*$", text[begin:at]):
            begin = at + 1


def files(*endings: str) -> list[Path]:
    return [path for top in TOPS for path in sorted((ROOT / top).rglob("*")) if path.suffix in endings and path.is_file()]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


CPP = (".h", ".cpp", ".cu", ".cuh")


class HabitsTest(unittest.TestCase):
    def test_functions_fit_a_screen(self) -> None:
        found = 0
        too_long, too_wide = [], []
        for path in files(*CPP):
            for function in functions_in(path.read_text(encoding="utf-8")):
                found += 1
                where = f"{name_of(path)}:{function.first}: {function.name}"
                is_kernel = path.suffix == ".cu" and any(f" {name}(" in function.name for name in LONG_KERNELS)
                if function.lines > MOST_LINES_OF_A_FUNCTION and not is_kernel:
                    too_long.append(f"{where}: {function.lines} lines")
                if function.parameters > MOST_PARAMETERS:
                    too_wide.append(f"{where}: {function.parameters} parameters")
        self.assertGreater(found, 5000)
        self.assertEqual(too_long, [], f"more than {MOST_LINES_OF_A_FUNCTION} lines")
        self.assertEqual(too_wide, [], f"more than {MOST_PARAMETERS} parameters")

    def test_functions_of_the_tools_fit_a_screen(self) -> None:
        for path in files(".py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef):
                    lines = (node.end_lineno or node.lineno) - node.lineno + 1
                    parameters = len(node.args.args) + len(node.args.kwonlyargs)
                    where = f"{name_of(path)}:{node.lineno}: {node.name}"
                    self.assertLessEqual(lines, MOST_LINES_OF_A_FUNCTION, where)
                    self.assertLessEqual(parameters, MOST_PARAMETERS, where)

    def test_files_and_folders_can_be_read(self) -> None:
        sources = files(*CPP, ".py")
        self.assertGreater(len(sources), 600)
        for path in sources:
            self.assertLessEqual(len(path.read_text(encoding="utf-8").splitlines()), MOST_LINES_OF_A_FILE, name_of(path))
        for folder in {path.parent for path in sources} - {ROOT / folder for folder in DOCUMENTS}:
            listed = [path.name for path in folder.iterdir() if path.is_file() and path.suffix in (*CPP, ".py", ".txt")]
            self.assertLessEqual(len(listed), MOST_FILES_OF_A_FOLDER, name_of(folder))

    def test_few_places_catch(self) -> None:
        catch = re.compile(r"\bcatch\s*\(")
        catching = {name_of(path) for path in files(*CPP)
                    if not name_of(path).startswith(("launch/", "benchmarks/", "tests/"))
                    and catch.search(without_comments_and_texts(path.read_text(encoding="utf-8")))}  # fmt: skip
        self.assertEqual(catching, set(CATCHES))


class FindingTest(unittest.TestCase):
    """That the simple reading of code finds functions."""

    def test_functions(self) -> None:
        source = """#include <x>
namespace a {
namespace {
template <class T, int N>
int f(int a, const std::map<int, int>& b = {}, int c[2]) {
  if (a) {
    return 1;
  }
  const auto g = [](int x) { return x; };
  // {
  return "{"[0];
}
}  // namespace
class C : public B {
 public:
  C(int x, int y) : x_{x}, y_(y) {
  }
  void m() const override { n(); }
  std::vector<int> v_ = {1, 2};
 private:
  enum class E { a, b };
  int x_;
};
constexpr std::array kA = {f(1), f(2)};
C::C(int x)
    : x_(x),
      y_(0) {
  go();
}
}  // namespace a
"""
        found = [(function.first, function.lines, function.parameters) for function in functions_in(source)]
        self.assertEqual(found, [(4, 9, 3), (16, 2, 2), (18, 1, 0), (25, 5, 1)])

    def test_what_is_too_much_is_found(self) -> None:
        lines = "\n".join(f"  f{i}();" for i in range(MOST_LINES_OF_A_FUNCTION))
        (function,) = functions_in(f"void f({', '.join('int' for _ in range(11))}) {{\n{lines}\n}}\n")
        self.assertGreater(function.lines, MOST_LINES_OF_A_FUNCTION)
        self.assertGreater(function.parameters, MOST_PARAMETERS)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
