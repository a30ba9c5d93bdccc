"""The file that describes a sweep (docs/reference/sweep-files.md), read and checked."""

import dataclasses
import itertools
import pathlib
import re
import tomllib
from typing import Any

from ddptools.common.errors import UsageError
from ddptools.common.files import no_pipe
from ddptools.common.log_server import MOST_GROUPS
from ddptools.common.values import SIZE_FLAGS, size_bytes
from ddptools.results.run import PATH_FLAGS, PLACEMENT_KEYS, Value

SWEEP_KEYS = {"name", "description", "repeats", "timeout", "seed", "base", "environment", "product"}
FLAG = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
VARIABLE = re.compile(r"[A-Z_][A-Za-z0-9_]*")
LAYOUT = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})")
GPU_LIST = re.compile(r"[0-9]{1,4}(,[0-9]{1,4})*")
CPU_LIST = re.compile(r"all|[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")
FORBIDDEN_FLAGS = {"metrics", "json", "print-config", "version", "help", "fail-at"}


@dataclasses.dataclass(frozen=True)
class Product:
    name: str
    program: str
    arguments: tuple[str, ...]
    axes: dict[str, list[Value]]  # placement and flags, base flags included, in the order of the file
    alternatives: list[dict[str, Value]]  # flags beside those of the axes
    environments: list[dict[str, str]]  # "": the variable is taken away


@dataclasses.dataclass(frozen=True)
class Sweep:
    path: pathlib.Path
    name: str
    description: str
    repeats: int
    timeout_seconds: float
    seed: int
    products: list[Product]
    notes: list[str]  # what was added to the file's settings, and why


def load_sweep(path: pathlib.Path, overrides: list[str] | None = None) -> Sweep:
    """Reads the file; `overrides` are KEY=VALUE of --set, which win over base and products."""
    try:
        table = tomllib.loads(no_pipe(path).read_bytes().decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not a TOML file: {error}") from error
    return _Reader(path, table, overrides or []).sweep()


def _is_count(value: Value, most: int = 1_000_000) -> bool:
    return isinstance(value, int) and 1 <= value <= most


def _is_gpu_selection(value: Value) -> bool:
    numbers = str(value).split(",")
    listed = GPU_LIST.fullmatch(str(value)) is not None and len(set(map(int, numbers))) == len(numbers)
    return listed or value in ("all", "best-pair", "worst-pair")


CHECKS = {
    "ranks": (_is_count, "give a whole number from 1 to 1000000, without quotes"),
    "groups": (lambda value: _is_count(value, MOST_GROUPS), f"give a whole number from 1 to {MOST_GROUPS}, without quotes"),
    "global-batch": (_is_count, "give a whole number from 1 to 1000000, without quotes"),
    "layout": (lambda value: LAYOUT.fullmatch(str(value)), "give NODESxRANKS, such as 2x4"),
    "gpus": (_is_gpu_selection, 'give "all", "best-pair", "worst-pair" or a list such as "0,3"'),
    "cpus": (lambda value: CPU_LIST.fullmatch(str(value)), 'give "all" or processors such as "0,2" or "0-3"'),
}


class _Reader:
    def __init__(self, path: pathlib.Path, table: dict[str, Any], overrides: list[str]) -> None:
        self.path = path
        self.table = table
        self.base = self.flags("base", table.get("base", {}))
        self.environment = self.variables("environment", table.get("environment", {}))
        self.axes_set: dict[str, list[Value]] = {}  # by --set, like the next
        self.variables_set: dict[str, list[str]] = {}
        for text in overrides:
            self.override(text)

    def need(self, is_right: object, where: str, what: str) -> None:
        if not is_right:
            raise UsageError(": ".join(filter(None, (str(self.path), where, what))))

    def sweep(self) -> Sweep:
        table = self.table
        has_tables = any(isinstance(value, (dict, list)) for value in table.values())
        is_of_flags = table and not has_tables and not table.keys() & SWEEP_KEYS
        program = f"ddptrain --config {self.path}"
        self.need(not is_of_flags, "", f"it has no [[product]], so it is no sweep. {program} takes a file of flags")
        for key in table:
            self.need(key in SWEEP_KEYS, key, f"unknown key; there are {', '.join(sorted(SWEEP_KEYS))}")
        products = table.get("product", [])
        are_tables = isinstance(products, list) and products and all(isinstance(p, dict) for p in products)
        self.need(are_tables, "", "there is no [[product]]: give at least one")
        read = [self.product(p, f"product{i}" if i > 1 else "main") for i, p in enumerate(products, 1)]
        names = [product.name for product in read]
        self.need(len(set(names)) == len(names), "product", f"two have the same name: {', '.join(names)}")
        return Sweep(
            path=self.path,
            name=self.name("name", table.get("name", self.path.stem), "give letters, digits and .-_, not dots alone"),
            description=self.text("description", table.get("description", "")),
            repeats=self.integer("repeats", 3, 1, 10_000),
            timeout_seconds=float(self.integer("timeout", 600, 1, 1_000_000)),
            seed=self.integer("seed", 1, 0, 2**63 - 1),
            products=read,
            notes=put_on_one_path(read),
        )

    def product(self, table: dict[str, Any], default_name: str) -> Product:
        own = dict(table)
        name = self.text("name", own.pop("name", default_name))
        where = f"product {name}"
        program = own.pop("program", "ddptrain")
        self.name(f"{where}: program", program, "give the name of a program beside ddptrain")
        arguments = own.pop("arguments", [])
        are_texts = isinstance(arguments, list) and all(isinstance(a, str) for a in arguments)
        self.need(are_texts, f"{where}: arguments", "give a list of texts")
        environments = self.environments(f"{where}: environment", own.pop("environment", {}))
        tables = own.pop("flags", [{}])
        axes = self.flags(where, own)
        base, overriding = self.base, self.axes_set
        if program != "ddptrain":
            lasting = {"min-seconds"} if program == "ddpbench" and "p2p" not in arguments else set()
            base, overriding = {}, {k: v for k, v in overriding.items() if k in {*PLACEMENT_KEYS, *lasting}}
        alternatives = self.alternatives(f"{where}: flags", tables, base, axes, overriding)
        axes |= overriding
        given = axes.keys() | {name for flags in alternatives for name in flags}
        replaced = given | ({"batch"} if "global-batch" in given else set())
        axes = {k: v for k, v in base.items() if k not in replaced} | axes
        is_one = not {"global-batch", "batch"} <= axes.keys() | given
        self.need(is_one, where, "give batch or global-batch, not both")
        return Product(name, program, tuple(arguments), axes, alternatives, environments)

    def alternatives(
        self, where: str, tables: Any, base: dict[str, Any], own: dict[str, Any], overridden: dict[str, Any]
    ) -> list[dict[str, Value]]:
        """What is overridden is left out of them; what is left alike then stands there once."""
        self.need(isinstance(tables, list) and tables, where, "give a list of tables")
        read = [self.flags(where, table) for table in tables]
        names = dict.fromkeys(name for lists in read for name in lists)
        for name in names:
            self.need(name not in own, f"{where}: {name}", "the product sets this flag itself")
        defaults = {name: base[name] for name in names if name in base}
        result: list[dict[str, Value]] = []
        for lists in read:
            kept = {name: values for name, values in (defaults | lists).items() if name not in overridden}
            result += [flags for flags in _combinations(kept) if flags not in result]
        return result

    def override(self, text: str) -> None:
        key, equals, value_text = text.partition("=")
        where = f"--set {text}"
        if not equals:
            raise UsageError(f"{where}: give KEY=VALUE")
        try:
            value = tomllib.loads(f"v = {value_text}")["v"]
        except tomllib.TOMLDecodeError:
            value = value_text
        if key.startswith("environment."):
            self.variables_set |= self.variables(where, {key.removeprefix("environment."): value})
        else:
            self.axes_set |= self.flags(where, {key: value})

    def environments(self, where: str, value: Any) -> list[dict[str, str]]:
        read = [self.variables(where, table) for table in (value if isinstance(value, list) else [value])]
        self.need(read, where, "the list is empty")
        return [made for lists in read for made in _combinations(self.environment | lists | self.variables_set)]

    def variables(self, where: str, table: Any) -> dict[str, list[str]]:
        result = {}
        for key, values in self.lists(where, table).items():
            place = f"{where}: {key}"
            self.need(VARIABLE.fullmatch(key), place, "not the name of an environment variable")
            are_texts = values and all(isinstance(v, (str, int)) and not isinstance(v, bool) for v in values)
            self.need(are_texts, place, 'give texts ("" takes the variable away)')
            result[key] = [self.without_zero(place, str(v)) for v in values]
        return result

    def flags(self, where: str, table: Any) -> dict[str, list[Value]]:
        result = {}
        for key, values in self.lists(where, table).items():
            place = f"{where}: {key}"
            self.need(FLAG.fullmatch(key), place, "not the name of a flag (without --) or of a key of a product")
            self.need(key not in FORBIDDEN_FLAGS, place, "ddpsweep gives this flag itself")
            self.need(values, place, "the list is empty")
            result[key] = [self.value(place, key, v) for v in values]
            self.need(len(set(map(str, result[key]))) == len(values), place, "a value stands there twice")
        return result

    def lists(self, where: str, table: Any) -> dict[str, list[Any]]:
        self.need(isinstance(table, dict), where, "give a table")
        return {key: value if isinstance(value, list) else [value] for key, value in table.items()}

    def value(self, where: str, key: str, value: Any) -> Value:
        if isinstance(value, bool):
            value = "on" if value else "off"
        self.need(isinstance(value, (str, int, float)), where, f"{value!r} is not a text or a number")
        if key in CHECKS:
            is_right, what = CHECKS[key]
            self.need(is_right(value), f"{where} = {value!r}", what)
        if key in SIZE_FLAGS and isinstance(value, str):
            found = size_bytes(value, SIZE_FLAGS[key])
            self.need(found is not None, f"{where} = {value!r}", "give a number, or a size such as 512K or 4M")
            value = whole_if_possible(found / SIZE_FLAGS[key])
        self.without_zero(where, str(value))
        return str(value) if key in ("gpus", "cpus") else value

    def without_zero(self, where: str, value: str) -> str:
        self.need("\0" not in value, where, "a value holds a zero byte")
        return value

    def name(self, where: str, value: Any, what: str) -> str:
        is_right = re.fullmatch(r"[A-Za-z0-9._-]+", self.text(where, value)) and value.strip(".")  # "..": another folder
        self.need(is_right, f"{where} = {value!r}", what)
        return value

    def text(self, where: str, value: Any) -> str:
        self.need(isinstance(value, str), where, f"{value!r} is not a text")
        return value

    def integer(self, key: str, default: int, low: int, high: int) -> int:
        value = self.table.get(key, default)
        is_right = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        self.need(is_right, f"{key} = {value!r}", f"give a whole number from {low} to {high}")
        return value


def whole_if_possible(number: float) -> int | float:
    return int(number) if number.is_integer() else number


def _combinations(lists: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Every one with a value of each list."""
    return [dict(zip(lists, values)) for values in itertools.product(*lists.values())]


def put_on_one_path(products: list[Product]) -> list[str]:
    """Sets symmetric = "off" where the NCCL_* variables of ddptrain's cases differ, and says so."""
    trained = [p for p in products if p.program == "ddptrain" and p.axes.get("device") != ["cpu"]]
    environments = [environment for product in trained for environment in product.environments]
    names = dict.fromkeys(name for e in environments for name in e if name.startswith("NCCL_"))
    differing = [name for name in names if len({e.get(name, "") for e in environments}) > 1]
    set_by = [{*product.axes, *itertools.chain(*product.alternatives)} for product in trained]
    changed = [p for p, flags in zip(trained, set_by) if differing and not flags & set(PATH_FLAGS)]
    if not changed:
        return []
    for product in changed:
        product.axes["symmetric"] = ["off"]
    which = "all of them" if len(changed) == len(trained) else f"those of {', '.join(p.name for p in changed)}"
    return [
        f"{' and '.join(differing)} differ{'s' if len(differing) == 1 else ''} between the cases: {which} run with "
        "--symmetric off, so that their gradients take the same path (to choose another, set "
        f"{', '.join(PATH_FLAGS[:-1])} or {PATH_FLAGS[-1]} in the sweep file)."
    ]
