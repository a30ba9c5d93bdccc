import pathlib
import textwrap
from typing import Any

from ddptools.common.errors import UsageError
from ddptools.sweep.cases import expand, interleaved, label, varied_settings
from ddptools.sweep.sweep_file import load_sweep
from tests.tools import support

GOOD = pathlib.Path(__file__).with_name("good.toml").read_text()


class SweepFile(support.FolderCase):
    def load(self, text: str, overrides: list[str] | None = None):
        path = self.folder / "s.toml"
        path.write_text(textwrap.dedent(text))
        return load_sweep(path, overrides)

    def cases(self, text: str, overrides: list[str] | None = None):
        return expand(self.load(text, overrides))

    def test_products_have_every_combination_once(self) -> None:
        cases = [case for case in self.cases(GOOD) if case.product == "weak"]
        found = {
            (c.ranks, c.flags["bucket-mb"], c.environment["NCCL_ALGO"], c.environment["NCCL_PROTO"]) for c in cases
        }
        self.assertEqual(len(cases), 16)
        self.assertEqual(
            found, {(r, b, a, p) for r in (1, 2) for b in (1, 2.5) for a in ("", "Ring") for p in ("", "LL")}
        )
        self.assertEqual({c.flags["model"] for c in cases}, {"cnn"})
        self.assertEqual({c.flags["graph"] for c in cases}, {"off"})
        self.assertEqual({c.environment["NCCL_DEBUG"] for c in cases}, {"WARN"})
        cases = [case for case in self.cases(GOOD) if case.product == "strong" and case.ranks == 1]
        found = [(c.environment.get("NCCL_ALGO"), c.environment.get("NCCL_PROTO")) for c in cases]
        self.assertEqual(found, [("Ring", None), (None, "LL"), (None, "Simple")])

    def test_a_byte_order_mark_is_no_text(self) -> None:
        self.assertEqual(self.cases("\ufeff" + GOOD), self.cases(GOOD))

    def test_global_batch_is_divided_among_the_ranks(self) -> None:
        cases = [case for case in self.cases(GOOD) if case.product == "strong"]
        self.assertEqual({(c.ranks, c.flags["batch"]) for c in cases}, {(1, 128), (2, 64)})
        with self.assertRaisesRegex(UsageError, "does not divide"):
            self.cases("[[product]]\nranks = 3\nglobal-batch = 128\n")

    def test_ranks_come_from_what_is_given(self) -> None:
        def ranks(line: str) -> int:
            return self.cases(f"[[product]]\n{line}\n")[0].ranks

        self.assertEqual(ranks('layout = "2x3"'), 6)
        self.assertEqual(ranks('gpus = "best-pair"'), 2)
        self.assertEqual(ranks('gpus = "4,5,6"'), 3)
        with self.assertRaisesRegex(UsageError, "give ranks"):
            ranks("batch = 1")
        with self.assertRaisesRegex(UsageError, "has 4 ranks, but ranks = 3"):
            ranks('layout = "2x2"\nranks = 3')

    def test_placement_of_all_products_is_in_base(self) -> None:
        text = '[base]\nlayout = "2x1"\n[[product]]\nname = "a"\n[[product]]\nname = "b"\nlayout = "1x2"\n'
        text += '[[product]]\nname = "c"\nprogram = "ddpbench"\nranks = 4\n'
        self.assertEqual([str(case.layout) for case in self.cases(text)], ["2x1", "1x2", "None"])

    def test_groups_that_cannot_start_are_refused(self) -> None:
        product = "[[product]]\nranks = 1\n"
        for lines, says in (("groups = 2000", "groups = 2000: give a whole number from 1 to 1000"),
                            ("groups = 0", "groups = 0: give a whole number from 1 to 1000"),
                            ('groups = 2\nouter = "redis://x/y"', "groups = 2 with outer = 'redis://x/y': .*Leave outer out"),
                            ('groups = [2]\ngroup = "q"', "groups = 2 with group = 'q': .*Leave group out"),
                            ("groups = 2\nouter-groups = [0, 3]", "groups = 2 with outer-groups = 3: .*outer-groups = 2 or 0"),
                            ('groups = 2\nprogram = "ddpbench"', "groups = 2: ddpbench has no groups")):  # fmt: skip
            with self.subTest(lines), self.assertRaisesRegex(UsageError, f"product main: {says}"):
                self.cases(product + lines)
        groups = [case.groups for case in self.cases(f"{product}groups = [1, 1000]\nouter-steps = 5\n")]
        self.assertEqual(len(self.cases(f'{product}groups = 2\nouter-groups = ["0", "2"]\n')), 2)
        self.assertEqual(groups, [1, 1000])

    def test_flags_may_be_alternatives(self) -> None:
        text = pathlib.Path(__file__).with_name("alternatives.toml").read_text()

        def found(*overrides: str) -> list[tuple]:
            cases = self.cases(text, list(overrides))
            return [(c.ranks, c.flags["batch"], c.flags["graph"], c.flags["bucket-mb"]) for c in cases]

        once = [("on", 25), ("off", 1), ("off", 4)]
        self.assertEqual(found(), [(ranks, 8, *flags) for ranks in (1, 2) for flags in once])
        self.assertEqual(found("ranks=1", "graph=on"), [(1, 8, "on", bucket) for bucket in (25, 1, 4)])
        self.assertEqual(found("ranks=1", "bucket-mb=2"), [(1, 8, "on", 2), (1, 8, "off", 2)])

    def test_cases_that_differ_in_nccl_variables_take_the_same_path(self) -> None:
        def symmetric(text: str, *overrides: str) -> tuple[list[object], list[str]]:
            sweep = self.load(text, list(overrides))
            return [case.flags.get("symmetric") for case in expand(sweep)], sweep.notes

        product = '[[product]]\nranks = 2\nenvironment = { NCCL_PROTO = ["", "LL"], NCCL_DEBUG = "WARN" }\n'
        found, (note,) = symmetric(product)
        self.assertEqual(found, ["off", "off"])
        self.assertTrue(note.startswith("NCCL_PROTO differs between the cases: all of them run with --symmetric off"))
        for flag in ("symmetric = 'auto'", "fused-sum = ['on', 'off']", "comm = 'nccl'", "flags = [{ comm = 'mpi' }]"):
            found, notes = symmetric(product + flag)
            self.assertEqual((set(found) <= {None, "auto"}, notes), (True, []), flag)
            if not flag.startswith("flags"):
                self.assertEqual(symmetric(f"[base]\n{flag}\n{product}")[1], [], flag)
        self.assertEqual(symmetric(product, "symmetric=on"), (["on", "on"], []))
        self.assertEqual(symmetric(product, "environment.NCCL_PROTO=LL"), ([None], []))
        plain = "[[product]]\nranks = [1, 2]\n"
        self.assertEqual(symmetric(plain), ([None, None], []))
        self.assertEqual(symmetric(plain, "environment.NCCL_ALGO=Ring"), ([None, None], []))
        self.assertEqual(symmetric(plain, 'environment.OMPI_MCA_btl=["", "tcp"]')[1], [])
        self.assertEqual(symmetric(plain, 'environment.NCCL_ALGO=["", "Ring"]', "device=cpu")[1], [])

    def test_cases_of_several_products_take_the_same_path(self) -> None:
        sweep = load_sweep(pathlib.Path(__file__).with_name("several_products.toml"))
        found = {case.product: case.flags.get("symmetric") for case in expand(sweep)}
        self.assertEqual(found, {"unset": "off", "LL": "off", "MPI": None, "alone": None})
        self.assertRegex(sweep.notes[0], "^NCCL_PROTO differs between the cases: those of unset, LL run with")

    def test_min_seconds_reach_programs_that_have_them(self) -> None:
        text = '[[product]]\nname = "a"\nranks = 1\n[[product]]\nname = "b"\nprogram = "ddpbench"\n'
        text += 'arguments = ["memory"]\nranks = 1\n[[product]]\nname = "c"\nprogram = "ddpbench"\n'
        text += 'arguments = ["p2p"]\nranks = 1\n'
        cases = self.cases(text, ["min-seconds=60", "batch=8"])
        self.assertEqual([case.flags.get("min-seconds") for case in cases], [60, 60, None])
        self.assertEqual([case.flags.get("batch") for case in cases], [8, None, None])

    def test_overrides_win(self) -> None:
        overrides = ["batch=[8, 16]", "model=gpt", "environment.NCCL_DEBUG=INFO", "ranks=4"]
        cases = self.cases('[base]\nbatch = 1\n[[product]]\nranks = [1, 2]\nmodel = "cnn"\n', overrides)
        found = {(c.ranks, c.flags["batch"], c.flags["model"], c.environment["NCCL_DEBUG"]) for c in cases}
        self.assertEqual(found, {(4, 8, "gpt", "INFO"), (4, 16, "gpt", "INFO")})
        for bad in ("batch", "Batch=1", "metrics=x", "environment.a b=1", "batch=[]", "ranks=0"):
            with self.assertRaises(UsageError, msg=bad):
                self.load(GOOD, [bad])

    def test_what_is_wrong_is_told_with_its_place(self) -> None:
        product = "[[product]]\nranks = 1\n"
        mistakes = {
            "repaets = 3\n" + product: "repaets.*unknown key",
            "repeats = 0\n" + product: "repeats = 0",
            "repeats = true\n" + product: "repeats = True",
            "timeout = 'x'\n" + product: "timeout = 'x'",
            "name = 'a/b'\n" + product: "name = 'a/b'",
            "name = '.'\n" + product: "name = '.': give letters",
            "name = '..'\n" + product: "name = '..': .*, not dots alone",
            "": r"no \[\[product\]\]",
            "model = 'cnn'\nbatch = 8": r"it has no \[\[product\]\], so it is no sweep. ddptrain --config .* takes a file of flags",
            "repeat = 2\n[base]\nbatch = 8": "repeat: unknown key; there are base",
            "repeats = 2\n[[products]]\nbatch = 8": "products: unknown key; there are base",
            "product = 3": r"no \[\[product\]\]",
            "x = ": "not a TOML file",
            "[base]\nbatch = []\n" + product: "base: batch.*empty",
            "[base]\nbatch = [1, 1]\n" + product: "base: batch.*twice",
            "[base]\nbatch = [{}]\n" + product: "base: batch.*not a text or a number",
            "[base]\nBatch = 1\n" + product: "base: Batch.*not the name of a flag",
            "[base]\nmetrics = 'x'\n" + product: "ddpsweep gives this flag itself",
            "base = 1\n" + product: "base: give a table",
            "[environment]\nNCCL_ALGO = 1.5\n" + product: "environment: NCCL_ALGO.*give texts",
            "[environment]\n'A=B' = 'x'\n" + product: "not the name of an environment variable",
            "[base]\nrank = [1, 2]\n[[product]]\nbatch = 1\n": r"give ranks, layout or a list of gpus \(rank is none of them\)",
            "[[product]]\nbatch = 1\n": "give ranks, layout or a list of gpus$",
            product + "layout = '2by2'": "product main: layout = '2by2'",
            product + "layout = '0x2'": "layout = '0x2'",
            product + "gpus = 'fastest'": "gpus = 'fastest'",
            product + "gpus = '0,0'": "gpus = '0,0'",
            product + "cpus = 'one'": "cpus = 'one'",
            product + "global-batch = 0": "global-batch = 0",
            product + "global-batch = 8\nbatch = 8": "batch or global-batch",
            product + "arguments = 'x'": "arguments.*list of texts",
            product + "program = '../x'": "program = '../x'",
            product + "program = '..'": "program = '..'",
            product + "flags = 3": "flags: give a list of tables",
            product + "flags = []": "flags: give a list of tables",
            product + "flags = [3]": "flags: give a table",
            product + "flags = [{A = 1}]": "flags: A.*not the name of a flag",
            product + "flags = [{ranks = 2}]": "flags: ranks: the product sets this flag itself",
            product + "flags = [{global-batch = 2}]\nbatch = 1": "batch or global-batch",
            product + "environment = []": "environment.*empty",
            product + "environment = [{A = '1'}, {A = '1'}]": "two cases are the same",
            "[[product]]\nname='a'\nranks=1\n[[product]]\nname='a'\nranks=2": "same name",
        }
        for text, message in mistakes.items():
            with self.assertRaisesRegex(UsageError, message, msg=text):
                self.cases(text)

    def test_too_many_cases_are_refused(self) -> None:
        axes = "".join(f"f{i} = {list(range(100))}\n" for i in range(4))
        with self.assertRaisesRegex(UsageError, "100000000 cases"):
            self.cases("[[product]]\nranks = 1\n" + axes)

    def test_keys_and_labels(self) -> None:
        one = self.cases("[[product]]\nranks = 1\nbatch = 2\nmodel = 'cnn'\n")[0]
        same = self.cases("[base]\nmodel = 'cnn'\n[[product]]\nbatch = 2\nranks = [1, 2]\n")[0]
        other = self.cases("[base]\nmodel = 'cnn'\n[[product]]\nbatch = 3\nranks = [1, 2]\n")[0]
        self.assertEqual(one.key, same.key)
        self.assertNotEqual(one.key, other.key)
        cases = self.cases("[[product]]\nranks = [1, 2]\nbatch = 4\nlast-bucket-kb = [0, 1]\n")
        self.assertEqual(label(cases[0], varied_settings(cases)), "ranks=1 last-bucket-kb=0")
        several = self.cases("[[product]]\nname='a'\nranks=1\n[[product]]\nname='b'\nranks=1\nbatch=[1, 2]\n")
        self.assertEqual([label(c, varied_settings(several)) for c in several], ["a", "b: batch=1", "b: batch=2"])

    def test_rounds_hold_every_case_in_an_order_of_their_own(self) -> None:
        cases = self.cases(GOOD)
        order = interleaved(cases, 4, seed=1)
        rounds = [order[i * len(cases) : (i + 1) * len(cases)] for i in range(4)]
        for number, round_ in enumerate(rounds):
            self.assertEqual({case.key for case, _ in round_}, {case.key for case in cases})
            self.assertEqual({repeat for _, repeat in round_}, {number})
        self.assertEqual(len({tuple(case.key for case, _ in round_) for round_ in rounds}), 4)
        self.assertEqual(order, interleaved(cases, 4, seed=1))
        self.assertNotEqual(order, interleaved(cases, 4, seed=2))

    def test_sizes_have_units_in_any_case(self) -> None:
        def found(values: str) -> list[Any]:
            cases = self.cases(f"[[product]]\nranks = 2\nbatch = 4\n{values}\n")
            return [next(value for name, value in case.flags.items() if "bucket" in name) for case in cases]

        self.assertEqual(found('bucket-mb = [1, "25M", "512k", "2MiB", "4"]'), [1, 25, 0.5, 2, 4])
        self.assertEqual(found('last-bucket-kb = ["1m", "64KiB", "128"]'), [1024, 64, 128])
        with self.assertRaisesRegex(UsageError, "bucket-mb = '25X': give a number, or a size such as 512K or 4M"):
            found('bucket-mb = "25X"')
        with self.assertRaisesRegex(UsageError, "twice"):
            found('bucket-mb = [25, "25M"]')

    def test_the_sweeps_that_come_with_it(self) -> None:
        files = sorted((support.ROOT / "configs" / "sweeps").glob("*.toml"))
        names = {"scaling", "p2p-level", "gpu-pairs", "algo-proto", "node-layout", "batch-size", "bucket-size"}
        names |= {"overlap-ablation", "lost-time", "mesh", "large-batch"}
        twins = {f"{name}-cpu" for name in names}
        alone = {"gradient-path", "memory-format", "node-layout-network", "groups-cpu"}  # of GPUs, hosts, groups
        self.assertEqual({f.stem for f in files}, names | twins | alone)
        for file in files:
            sweep = load_sweep(file)
            self.assertEqual(sweep.name, file.stem)
            self.assertTrue(sweep.description, file)
            for case in expand(sweep):
                self.assertTrue(not file.stem.endswith("-cpu") or case.ranks <= 2, file)
        cases = expand(load_sweep(support.ROOT / "configs" / "sweeps" / "gradient-path.toml"))
        found = [tuple(case.flags[name] for name in ("symmetric", "fused-sum", "comm")) for case in cases]
        paths = [("on", "on", "nccl"), ("on", "off", "nccl"), ("off", "off", "nccl"), ("off", "off", "mpi")]
        self.assertEqual(found, paths)
        self.assertEqual({(c.ranks, c.flags["model"], c.flags["batch"]) for c in cases}, {(2, "cnn", 512)})
