import collections
import json
import os
import pathlib
import select
import signal
import tempfile

from ddptools.common.text import counted
from tests.tools.support import FakeSweep, FolderCase, is_alive, wait_for

HERE = pathlib.Path(__file__).parent
SIX_CASES = (HERE / "six_cases.toml").read_text()
ONE_HANGS = (HERE / "one_hangs.toml").read_text()


class SweepTest(FolderCase):
    def sweep(self, text: str) -> FakeSweep:
        folder = tempfile.mkdtemp(dir=self.folder)
        return FakeSweep(pathlib.Path(folder), text)

    def assert_every_run_once(self, sweep: FakeSweep, runs: int) -> None:
        counts = collections.Counter((r["case"], r["repeat"]) for r in sweep.records())
        self.assertEqual(len(counts), runs)
        self.assertEqual(set(counts.values()), {1})

    def test_all_runs_are_recorded(self) -> None:
        sweep = self.sweep(SIX_CASES)
        sweep.environment |= {"NCCL_ALGO": "Tree"}
        done = sweep.run()
        self.assert_every_run_once(sweep, 12)
        self.assertEqual([r["repeat"] for r in sweep.records()], [0] * 6 + [1] * 6)
        ring = next(r for r in sweep.records() if r["settings"]["NCCL_ALGO"] == "Ring")
        self.assertEqual(ring["environment"]["NCCL_ALGO"], "Ring")
        self.assertEqual(ring["versions"], "ddptrain fake")
        self.assertEqual(ring["summary"]["parameter_hash"], "abc")
        self.assertTrue((sweep.out / ring["log"]).exists())
        for run in sweep.executed():
            self.assertNotEqual(run["environment"].get("NCCL_ALGO"), "Tree")
        self.assertIn("[12/12]", done.stderr)
        table = done.stderr.partition("[12/12]")[2].splitlines()[1:]
        self.assertRegex(table[0], r"^  case +rate +efficiency +test accuracy$")
        self.assertRegex(table[1], r"^  batch=1 NCCL_ALGO=unset +1,0\d\d images/s +90.0% +87.50%$")
        self.assertEqual(len(table), 8)  # six cases, and what is said at the end

    def test_a_disturbed_run_is_marked_in_its_line(self) -> None:
        for disturbed in ("", "other programs took 52% of the cores"):
            sweep = self.sweep("repeats = 1\n[[product]]\nranks = 2\n")
            sweep.environment |= {"FAKE_SUMMARY": json.dumps({"disturbed": disturbed})}
            done = sweep.run()
            self.assertEqual(", disturbed: other programs took 52% of the cores" in done.stderr, bool(disturbed))
            self.assertEqual([r["summary"]["disturbed"] for r in sweep.records()], [disturbed])
            sweep = self.sweep("repeats = 1\n[[product]]\nranks = 1\n")  # which measures no efficiency
            sweep.environment |= {"FAKE_SUMMARY": json.dumps({"disturbed": disturbed, "scaling_efficiency": None})}
            table = sweep.run().stderr.partition("rate")[2]
            self.assertEqual("images/s, disturbed" in table, bool(disturbed))

    def test_the_case_is_named_before_it_runs(self) -> None:
        sweep = self.sweep("repeats = 1\n[[product]]\nranks = 1\nbatch = [1, 2]\n")
        hold = sweep.hold_after(0)
        process = sweep.start()
        wait_for(lambda: bool(sweep.executed()))
        readable, _, _ = select.select([process.stderr], [], [], 0)
        told = os.read(process.stderr.fileno(), 1000).decode() if readable else ""
        hold.unlink()
        self.assertRegex(told, r"^\[1/2\] batch=[12], run 1/1: $")
        _, rest = process.communicate(timeout=300)
        self.assertRegex(rest.splitlines()[0], r"^1,0\d\d images/s in .*left\)$")

    def test_more_ranks_than_cores_are_told(self) -> None:
        sweep = self.sweep("repeats = 1\n[[product]]\nranks = [1, 9999]\ndevice = 'cpu'\nbatch = 0\n")
        cores = counted(len(os.sched_getaffinity(0)), "core")
        warning = f"ddpsweep: warning: a case has 9999 ranks, and this machine has {cores} for them: "
        for options in ((), ("--dry-run",)):  # ddptrain refuses this batch before a run begins
            self.assertEqual(sweep.run(*options, code=2).stderr.count(warning), 1)
            self.assertNotIn("warning", sweep.run(*options, "--set", "ranks=1", code=2).stderr)

    def test_what_was_added_to_the_settings_is_said(self) -> None:
        sweep = self.sweep(SIX_CASES)
        for options in (("--dry-run",), ()):
            done = sweep.run(*options)
            self.assertIn("ddpsweep: NCCL_ALGO differs between the cases: all of them run with", done.stderr)
        (note,) = json.loads((sweep.out / "plan.json").read_text())["notes"]
        self.assertIn("--symmetric off", note)
        self.assertEqual({tuple(r["notes"]) for r in sweep.records()}, {(note,)})
        self.assertEqual({run["flags"]["symmetric"] for run in sweep.executed()}, {"off"})
        plain = sweep.run("--set", "symmetric=auto", "--dry-run")
        self.assertEqual((plain.stderr, "--symmetric=off" in plain.stdout), ("", False))

    def test_results_are_not_overwritten_nor_mixed_with_those_of_another_sweep(self) -> None:
        sweep = self.sweep("repeats = 1\n[[product]]\nranks = 1\n")
        sweep.run("--set", "steps=5")
        again = sweep.run(code=2)
        self.assertIn("--resume", again.stderr)
        sweep.run("--resume", "--set", "steps=5")
        self.assertEqual(len(sweep.executed()), 1)
        sweep.run("--resume", "--set", "steps=5", "--repeats", "3")
        self.assertEqual(len(sweep.executed()), 3)
        before = {file.name: file.read_bytes() for file in sweep.out.iterdir() if file.is_file()}
        sweep.file.write_text('name = "other"\n' + sweep.file.read_text())
        done = sweep.run("--resume", code=2)
        self.assertIn("holds results of fake, not of other: give another --out", done.stderr)
        sweep.file.write_text(sweep.file.read_text().replace('name = "other"\n', ""))
        for other in ((), ("--set", "steps=6")):
            self.assertIn("(steps = 5): give another --out", sweep.run("--resume", *other, code=2).stderr)
        self.assertEqual({file.name: file.read_bytes() for file in sweep.out.iterdir() if file.is_file()}, before)

    def test_what_cannot_be_written_is_one_message(self) -> None:
        sweep = self.sweep("repeats = 1\n[[product]]\nranks = 1\n")
        (sweep.out / "plan.json").mkdir(parents=True)
        done = sweep.run("--resume", code=2)
        self.assertEqual(done.stderr, f"ddpsweep: {sweep.out}/plan.json: Is a directory\n")

    def test_files_of_others_are_kept(self) -> None:
        sweep = self.sweep("repeats = 1\n[[product]]\nranks = 1\n")
        sweep.out.mkdir()
        for name, text in (("plan.json", '{"cases": "of holidays"}'), ("topology.json", "[]")):
            (sweep.out / name).write_text(text)
            done = sweep.run(code=2)
            self.assertEqual(done.stderr, f"ddpsweep: --out {sweep.out}: its {name} was not written by ddpsweep: give another folder\n")
            self.assertEqual((sweep.out / name).read_text(), text)
            (sweep.out / name).unlink()
        before = sweep.file.read_text()
        done = sweep.run("--out", str(sweep.file), code=2)
        self.assertEqual(done.stderr, f"ddpsweep: --out {sweep.file}: it is a file: give a folder\n")
        self.assertEqual((sweep.file.read_text(), sweep.executed()), (before, []))
        sweep.run()
        (sweep.out / "results.jsonl").unlink()
        sweep.run()  # a plan of ddpsweep may be replaced

    def test_resume_after_a_kill(self) -> None:
        sweep = self.sweep(SIX_CASES)
        hold = sweep.hold_after(3)
        process = sweep.start()
        wait_for(lambda: len(sweep.executed()) == 4)
        process.kill()
        process.communicate()
        self.assertEqual(len(sweep.records()), 3)
        wait_for(lambda: not any(is_alive(run["pid"]) for run in sweep.executed()))
        hold.unlink()
        sweep.environment["AFTER_THE_KILL"] = "yes"
        done = sweep.run("--resume")
        self.assertIn("3 of 12 runs are done", done.stderr)
        self.assert_every_run_once(sweep, 12)
        after = [run for run in sweep.executed() if "AFTER_THE_KILL" in run["environment"]]
        self.assertEqual(len(after), 9)

    def test_a_line_that_a_crash_has_cut(self) -> None:
        sweep = self.sweep("repeats = 2\n[[product]]\nranks = 1\nbatch = [1, 2]\n")
        sweep.run()
        file = sweep.out / "results.jsonl"
        data = file.read_bytes()
        file.write_bytes(data[:-40])
        done = sweep.run("--resume")
        self.assertIn("results.jsonl: 1 line could not be read and left out (line 4): their runs are made again", done.stderr)
        self.assert_every_run_once(sweep, 4)
        file.write_bytes(data[:-1])  # whole, but for the end of the line
        sweep.run("--resume")
        self.assert_every_run_once(sweep, 4)
        self.assertEqual(len(sweep.executed()), 5)

    def test_a_line_of_no_run(self) -> None:
        sweep = self.sweep("repeats = 1\n[[product]]\nranks = 1\n")
        sweep.run()
        file = sweep.out / "results.jsonl"
        for line in ("{}", '{"sweep": null, "case": null}', '{"sweep": "fake"}'):
            file.write_text(f"{line}\n{file.read_text()}")
        done = sweep.run("--resume")
        told = "results.jsonl: 3 lines could not be read and left out (line 1, 2, 3): their runs are made again\n"
        self.assertIn(told, done.stderr)
        self.assertIn("1 of 1 runs are done", done.stderr)

    def test_runs_of_another_machine_are_told(self) -> None:
        sweep = self.sweep("repeats = 1\n[[product]]\nranks = 1\nbatch = [1, 2]\n")
        sweep.run()
        file = sweep.out / "results.jsonl"
        records = [json.loads(line) for line in file.read_text().splitlines()]

        def resume(**changes: object) -> list[str]:
            first = records[0] | {"status": changes.pop("status", "ok"), "machine": records[0]["machine"] | changes}
            file.write_text(f"{json.dumps(first)}\n")
            return [line for line in sweep.run("--resume").stderr.splitlines() if "another machine" in line]

        here = records[0]["machine"]
        self.assertEqual(resume(), [])
        self.assertEqual(resume(host="another of the kind"), [])
        self.assertEqual(resume(cores=9999, status="failed"), [])  # it gave no numbers
        line, again = resume(gpus=["A", "B", "A"], cpu="C", cores=9999)
        told = rf"other machine: GPUs 2 x A, 1 x B \(here .+\); processor C \(here .+\); cores 9999 \(here {here['cores']}\)\. "
        self.assertRegex(line, rf"\Addpsweep: warning: .*{told}Runs of both ")
        self.assertEqual(line, again)  # at the end, too
        file.write_text(file.read_text() + json.dumps(records[1]) + "\n")
        self.assertNotIn("another machine", sweep.run("--resume").stderr)  # nothing is left to run here

    def test_ctrl_c_leaves_valid_files_and_no_job(self) -> None:
        sweep = self.sweep(
            'repeats = 1\n[[product]]\nranks = 2\nbatch = [1, 2]\n[[product]]\nranks = 2\nmode = "hang"\n'
        )
        sweep.file.write_text(sweep.file.read_text() + "batch = [1, 2]\n")
        process = sweep.start()
        hanging = lambda: [r for r in sweep.executed() if r["flags"].get("mode") == "hang"]  # noqa: E731
        wait_for(lambda: bool(hanging()))
        recorded = len(sweep.records())
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn("--resume", errors)
        self.assertEqual(len(sweep.records()), recorded)
        self.assertIn((sweep.out / "results.jsonl").read_text()[-1:], ("", "\n"))  # no line is cut
        self.assertFalse(any(is_alive(run["pid"]) for run in sweep.executed()))

    def test_a_case_that_hangs(self) -> None:
        for seconds in (2, 8, 32, 64):  # on a slow machine two seconds are not enough to start a run that is well
            sweep = self.sweep(ONE_HANGS)
            done = sweep.run("--timeout", str(seconds), code=None)
            by_mode = {r["settings"]["mode"]: r for r in sweep.records()}
            if len(sweep.executed()) == 2 and by_mode["ok"]["status"] == "ok":
                break
        self.assertEqual(done.returncode, 1)
        self.assertEqual(by_mode["ok"]["status"], "ok")
        self.assertEqual(by_mode["hang"]["status"], "timeout")
        self.assertIn(f"no end after {seconds} s", by_mode["hang"]["reason"])
        self.assertFalse(any(is_alive(run["pid"]) for run in sweep.executed()))
        sweep.run("--resume")
        self.assertEqual(len(sweep.records()), 2)
        sweep.run("--retry-failed", "--timeout", "1", code=1)
        self.assertEqual(len(sweep.records()), 3)
        self.assertEqual(sweep.records()[-1]["settings"]["mode"], "hang")

    def test_a_case_that_fails(self) -> None:
        sweep = self.sweep('repeats = 1\n[[product]]\nranks = 2\nmode = ["fail", "silent", "ok"]\n')
        sweep.run(code=1)
        by_mode = {r["settings"]["mode"]: r for r in sweep.records()}
        self.assertEqual(by_mode["ok"]["status"], "ok")
        self.assertEqual((by_mode["fail"]["status"], by_mode["fail"]["exit_code"]), ("failed", 1))
        self.assertEqual(
            by_mode["fail"]["reason"], "exit code 1: ddptrain: error on rank 0 (h): the loss is not finite"
        )
        self.assertEqual(by_mode["silent"]["status"], "failed")
        self.assertIn("left no result", by_mode["silent"]["reason"])

    def test_a_case_that_is_impossible_here(self) -> None:
        sweep = self.sweep('repeats = 1\n[[product]]\nranks = 2\ndevice = ["cuda", "cpu"]\n')
        sweep.environment["CUDA_VISIBLE_DEVICES"] = ""
        sweep.run()
        status = {r["settings"]["device"]: r["status"] for r in sweep.records()}
        self.assertEqual(status, {"cuda": "skipped", "cpu": "ok"})
        self.assertIn("no GPU", next(r["reason"] for r in sweep.records() if r["status"] == "skipped"))
        self.assertEqual(len(sweep.executed()), 1)
        sweep.run("--resume")
        self.assertEqual(len(sweep.records()), 2)
        sweep.run("--retry-failed", code=1)  # here they may be possible
        self.assertEqual(len(sweep.records()), 3)

    def test_a_sweep_of_gpus_names_its_cpu_version_in_one_line(self) -> None:
        sweep = self.sweep('[[product]]\nranks = 2\ndevice = "cuda"\nbatch = [1, 2, 3]\n')
        sweep.environment["CUDA_VISIBLE_DEVICES"] = ""
        noted = self.sweep(SIX_CASES + 'device = "cuda"\n')  # which tells what is added to the settings, if it runs
        noted.environment["CUDA_VISIBLE_DEVICES"] = ""
        self.assertEqual(noted.run(code=2).stderr.count("\n"), 1)
        line = f"ddpsweep: {sweep.file} needs GPUs, and this machine has none. "
        self.assertEqual(sweep.run(code=2).stderr, f"{line}It has no CPU version\n")
        (sweep.folder / "fake-cpu.toml").touch()
        line += f"Its CPU version: ddpsweep {sweep.folder / 'fake-cpu.toml'}\n"
        self.assertEqual(sweep.run(code=2).stderr, line)
        self.assertFalse(sweep.out.exists())
        dry = sweep.run("--dry-run")
        self.assertEqual((dry.stderr, dry.stdout.count("skipped")), (line, 0))

    def test_flags_that_ddptrain_refuses_are_told_before_the_first_run(self) -> None:
        sweep = self.sweep("[[product]]\nranks = 1\nbatch = [1, 0]\n")
        done = sweep.run(code=2)
        self.assertIn("product main: ddptrain: --batch 0: give at least 1", done.stderr)
        self.assertFalse(sweep.out.exists())
        dry = sweep.run("--dry-run", code=2)
        self.assertEqual((dry.stderr, dry.stdout.count("mpirun")), (done.stderr, 2))

    def test_a_flag_under_two_names_is_refused(self) -> None:
        for one, other in (("steps", "max-steps"), ("max-steps", "steps"), ("iters", "max-steps")):
            sweep = self.sweep(f"[base]\n{one} = 24\n[[product]]\nranks = 1\n{other} = 4\n")
            for options in ((), ("--dry-run",)):
                said = sweep.run(*options, code=2).stderr
                self.assertRegex(said, r"product main: [a-z-]+ and [a-z-]+ are the same flag. Give steps alone")
            self.assertEqual(sweep.executed(), [])
        for flags in ("max-steps = 4", 'bf16 = false\nprecision = "fp32"', "bf16 = false\nfp32 = true"):
            self.assertEqual(self.sweep(f"[[product]]\nranks = 1\n{flags}\n").run("--dry-run").stderr, "")

    def test_one_writer_at_a_time(self) -> None:
        sweep = self.sweep(ONE_HANGS)
        process = sweep.start()
        wait_for(lambda: bool(sweep.executed()))
        other = sweep.run("--resume", code=2)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=300)
        self.assertIn("another ddpsweep", other.stderr)
        self.assertEqual(process.returncode, 130)

    def test_dry_run_and_mistakes(self) -> None:
        sweep = self.sweep(SIX_CASES)
        dry = sweep.run("--dry-run")
        self.assertEqual(dry.stdout.count("mpirun"), 6)
        self.assertEqual(sweep.executed(), [])
        self.assertFalse(sweep.out.exists())
        for options in (["--repeats", "0"], ["--timeout", "x"], ["--set", "x"], ["--bin", "none"]):
            done = sweep.run(*options, code=2)
            self.assertIn(options[0], done.stderr)
        (sweep.programs / "ddptrain").unlink()
        self.assertIn("there is no ddptrain", sweep.run(code=2).stderr)
