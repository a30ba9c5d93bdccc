"""Relative links in Markdown files lead to files, and to headings, that exist."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[(?:[^\]]|\n)*?\]\(([^()\s]+(?:\([^()]*\))?)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.*?) *$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def pages() -> list[pathlib.Path]:
    folders = [ROOT / name for name in ("docs", "benchmarks", "tests", "configs")]
    return [*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))]


def anchors(page: pathlib.Path) -> set[str]:
    """The names that GitHub gives headings."""
    names: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = sum(1 for other in names if re.fullmatch(re.escape(name) + r"(-\d+)?", other))
        names.add(f"{name}-{number}" if number else name)
    return names


def broken_links(page: pathlib.Path) -> list[str]:
    broken = []
    for target in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            broken.append(f"{target}: there is no such file")
        elif anchor and anchor not in anchors(file):
            broken.append(f"{target}: {file.name} has no such heading")
    return broken


class LinksTest(unittest.TestCase):
    def test_links(self) -> None:
        found = pages()
        self.assertGreater(len(found), 20)
        for page in found:
            with self.subTest(page=str(page.relative_to(ROOT))):
                self.assertEqual(broken_links(page), [])


class ReadingOrderTest(unittest.TestCase):
    """docs/README.md lists the tutorials in order. README names the first one, and each page ends with the next one."""

    def test_each_page_names_the_next_one(self) -> None:
        docs = ROOT / "docs"
        listed = (docs / "README.md").read_text(encoding="utf-8").partition("\n## Tutorials, in order\n")[2]
        listed = listed.partition("\n## ")[0]
        order = [docs / path for path in re.findall(r"^\d+\. \[[^\]]*\]\(([^)]*)\)", listed, re.MULTILINE)]
        self.assertEqual({*(docs / "tutorial").glob("*.md")} - {*order}, set(), "not in the list")
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        start = re.search(r"To learn, begin with \[[^\]]*\]\(([^)]*)\)", readme)
        self.assertEqual(ROOT / start[1], order[0])
        for page, following in zip(order, [*order[1:], docs / "README.md"]):
            with self.subTest(page=page.name):
                end = re.search(r"\n\nNext: \[[^\]]*\]\(([^)#]*)[^\n]*\n\Z", page.read_text(encoding="utf-8"))
                self.assertIsNotNone(end, "the last line must be Next: [title](page).")
                self.assertEqual((page.parent / end[1]).resolve(), following)


class WhereThingsGoTest(unittest.TestCase):
    """Each change has a file to open first. test_links() has found that the files exist."""

    def test_each_row_names_files_of_the_source(self) -> None:
        text = (ROOT / "docs/where-things-go.md").read_text(encoding="utf-8")
        rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and "---" not in line][1:]
        self.assertGreater(len(rows), 15)
        for what, first, _ in rows:
            (link,) = LINK.findall(first)
            self.assertRegex(link, r"^\.\./.*\.(h|cpp|py|toml)$", what)
        topics = " ".join(row[0] for row in rows)
        for topic in ("family of transformers", "a layer", "an operation", "element-wise optimizer", "whole matrices",
                      "communication path", "with state", "a flag", "a sweep", "figure in the summary", "message"):  # fmt: skip
            self.assertIn(topic, topics)
        self.assertRegex(text, r"(?s)Reading plans.*30 minutes.*Two hours")


if __name__ == "__main__":
    unittest.main()
