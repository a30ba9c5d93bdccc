"""Files that the tools would overwrite."""

import os
import pathlib
import resource
import unittest

from ddptools.common.errors import UsageError
from ddptools.common.outputs import CSV, MARKDOWN, PAGE, PLAN, Input, Kind, Output, check_outputs
from tests.tools.support import BIN, FolderCase, run, run_tool, write_lines

RUN = [{"event": "start", "model": "cnn"}, {"event": "summary", "images_per_second": 5.0, "world_size": 1}]


class RuleTest(FolderCase):
    def message(self, outputs: dict[str, Kind], *inputs: str, force: bool = False) -> str:
        named = [Output(f"--{i}", self.folder / name, kind) for i, (name, kind) in enumerate(outputs.items())]
        try:
            check_outputs(named, [Input("--in", self.folder / name) for name in inputs], force)
        except UsageError as error:
            return str(error)
        return ""

    def write(self, name: str, text: str) -> pathlib.Path:
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_text(text)
        return self.folder / name

    def test_files_of_an_earlier_call_are_overwritten_and_others_with_force_alone(self) -> None:
        for kind, text in ((PAGE, '<html><meta name="generator" content="ddpreport">'), (CSV, "table,run,end\n"),
                           (MARKDOWN, "# x\n\n<!-- ddpreport -->\n"),
                           (PLAN, '{\n "case": {"work": {"model": "cnn"}}}')):  # fmt: skip
            self.write("own", text)
            self.assertEqual(self.message({"own": kind}), "")
            file = self.write("other", "words")
            self.assertEqual(self.message({"other": kind}), f"--0 {file}: the file exists, and was not written as --0 of an "
                             "earlier run. Give another name, or --force to overwrite it.")  # fmt: skip
            self.assertEqual(self.message({"other": kind}, force=True), "")
        self.write("empty", "")
        self.assertEqual(self.message({"empty": PAGE, "new": PAGE}), "")

    def test_inputs_and_other_outputs_are_kept_under_every_name(self) -> None:
        self.write("in", '<meta name="generator" content="ddpreport">')
        (self.folder / "link").symlink_to("in")
        os.link(self.folder / "in", self.folder / "name")
        (self.folder / "early").symlink_to("late")
        for name in ("in", "link", "name", "../" + self.folder.name + "/in"):
            self.assertIn("--in reads this file", self.message({name: PAGE}, "in", force=True))
        self.assertIn("--in reads this file", self.message({"in": PAGE}, "i*"))
        self.assertIn("--0 writes this file, too", self.message({"early": PAGE, "late": MARKDOWN}, force=True))
        self.write("folder/results.jsonl", "{}")
        self.assertIn("--in reads the folder of this file", self.message({"folder/results.jsonl": PAGE}, "folder", force=True))
        self.assertEqual(self.message({"folder/page.html": PAGE}, "folder"), "")

    def test_pipes_and_devices_may_be_written(self) -> None:
        os.mkfifo(self.folder / "pipe")
        reader = os.open(self.folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        self.assertEqual(self.message({"pipe": PAGE, "/dev/null": PAGE}, "pipe"), "")
        with self.assertRaises(BlockingIOError, msg="the pipe still has a writer, or its reader would end"):
            os.read(reader, 1)

    def test_pipes_that_would_wait_are_named(self) -> None:
        os.mkfifo(self.folder / "pipe")
        self.assertIn("no program reads this pipe", self.message({"pipe": PAGE}))
        for tool, *flags in (["ddpreport"], ["ddpreport", "--out", self.folder / "page"], ["ddpsweep", "--dry-run"]):
            said = run_tool(tool, self.folder / "pipe", *flags, code=2).stderr
            self.assertIn(f"{self.folder / 'pipe'}: is a pipe, and a file is needed", said)

    def test_devices_that_have_no_end_are_not_read(self) -> None:
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))  # noqa: E731  of what reads without end
        for tool, *words in (["ddpreport", "--trace"], ["ddpplan", "--calibrate"], ["ddpsweep"],
                              ["supervise", "mpirun", "--checkpoint", self.folder, "--hostfile"]):  # fmt: skip
            said = run_tool(tool, *words, "/dev/zero", code=2, preexec_fn=limit).stderr
            self.assertEqual(said, f"{tool}: /dev/zero: is a device, and a file is needed\n")


class ToolsTest(FolderCase):
    def test_ddpreport(self) -> None:
        runs = write_lines(self.folder / "r.jsonl", RUN)
        before = runs.read_bytes()
        self.assertIn(f"--out {runs}: RESULTS reads this file", run_tool("ddpreport", runs, "--out", runs, code=2).stderr)
        self.assertIn("--md", run_tool("ddpreport", runs, "--out", self.folder / "p", "--md", self.folder / "p", code=2).stderr)
        notes = self.folder / "notes.md"
        notes.write_text("mine")
        self.assertIn("--force", run_tool("ddpreport", runs, "--out", self.folder / "p", "--md", notes, code=2).stderr)
        self.assertEqual((runs.read_bytes(), notes.read_text()), (before, "mine"))
        for _ in range(2):  # the same command twice
            run_tool("ddpreport", runs, "--out", self.folder / "p", "--md", self.folder / "m", "--csv", self.folder / "c")
        run_tool("ddpreport", runs, "--out", notes, "--force")

    def test_ddpplan(self) -> None:
        out = self.folder / "plan.json"
        plan = ("ddpplan", "--params", "2B", "--nodes", "1", "--json", out)
        for _ in range(2):
            run_tool(*plan)
        out.write_text("mine")
        self.assertIn("--force", run_tool(*plan, code=2).stderr)
        run_tool(*plan, "--force")

    def test_names_of_files_do_not_control_the_terminal(self) -> None:
        for command in (["ddpreport", "\x1b[2J"], ["ddpsweep", "\x1b[2J.toml"], ["ddpplan", "--calibrate", "\x1b[2J"],
                        ["tensorboard-events", "\x1b[2J"]):  # fmt: skip
            done = run_tool(*command, code=2)
            self.assertNotIn("\x1b", done.stderr)
            self.assertIn("?[2J", done.stderr)
        for command in (["ddpreport", "a\nb"], ["ddpsweep", "a\nb.toml"], ["ddpplan", "--calibrate", "a\nb"],
                        ["tensorboard-events", "a\nb"], ["ddpreport", "--flag\nb"]):  # fmt: skip
            done = run_tool(*command, code=2)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertRegex(done.stderr, "(a|flag)\\?b")
        runs = write_lines(self.folder / "r\ns.jsonl", RUN)
        done = run_tool("ddpreport", runs, "--out", self.folder / "p\nq")
        self.assertEqual((done.stdout.count("\n"), "p?q" in done.stdout), (1, True), done.stdout)

    @unittest.skipUnless((BIN / "ddptrain").exists(), f"no ddptrain in {BIN}")
    def test_ddptrain_has_the_same_rule_and_words(self) -> None:
        notes = self.folder / "notes"
        notes.write_text("mine")
        told = [run([BIN / "ddptrain", "--data", "synthetic:64", "--metrics", notes], code=2).stderr,
                run_tool("ddpreport", write_lines(self.folder / "r.jsonl", RUN), "--out", notes, code=2).stderr]  # fmt: skip
        words = [text.partition(": ")[2].replace("--metrics", "--out") for text in told]
        self.assertEqual(*words)


if __name__ == "__main__":
    unittest.main()
