"""The file that describes a sweep (TOML), read and checked.

name = "algo-proto"            default: the file's stem
description = "..."
repeats = 3                    runs of each case
timeout = 600                  seconds for one run
seed = 1                       of the order of the cases

[base]                         flags of ddptrain for every case, by their names without --
[environment]                  variables for every case; "" takes one away

[[product]]                    any number; each is the cross product of its lists
name = "weak"
program = "ddptrain"           or another program beside it, which then takes --json FILE
arguments = []                 what stands before the flags
ranks = [1, 2, 4, 8]           all of these keys: a value or a list of values
layout = ["1x4", "2x2"]        nodes x ranks per node
gpus = ["all", "best-pair", "worst-pair", "0,3"]
cpus = ["all", "0,1", "0-3"]   processors, as taskset takes them
global-batch = 4096            samples of a step on all ranks, in place of batch
<flag> = [...]                 any flag of the program
flags = [{ fused = "off" }, { graph = ["on", "off"] }]    tables of flags that are alternatives
environment = { NCCL_ALGO = ["", "Ring"] }    a table, or a list of tables that are alternatives

Where NCCL_* variables differ between the cases of ddptrain, all of them run with symmetric = "off": with some of these
variables, ddptrain does not use symmetric memory, and what that costs would look like the effect of the variable. A
product that sets symmetric, fused-sum or comm keeps its own setting.
"""

import dataclasses
import itertools
import pathlib
import re
import tomllib
from collections.abc import Collection
from typing import Any

from ddptools.errors import UsageError

Value = str | int | float

SWEEP_KEYS = {"name", "description", "repeats", "timeout", "seed", "base", "environment", "product"}
PLACEMENT_KEYS = ("ranks", "layout", "gpus", "cpus")
FLAG = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
VARIABLE = re.compile(r"[A-Z_][A-Za-z0-9_]*")
LAYOUT = re.compile(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})")
GPU_LIST = re.compile(r"[0-9]{1,4}(,[0-9]{1,4})*")
CPU_LIST = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")
FORBIDDEN_FLAGS = {"metrics", "json", "print-config", "version", "help", "fail-at"}
PATH_FLAGS = ("symmetric", "fused-sum", "comm")  # they decide how gradients are summed


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
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: the file cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not a TOML file: {error}") from error
    return _Reader(path).sweep(table, overrides or [])


class _Reader:
    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def error(self, where: str, what: str) -> UsageError:
        return UsageError(f"{self.path}: {where}: {what}" if where else f"{self.path}: {what}")

    def sweep(self, table: dict[str, Any], overrides: list[str]) -> Sweep:
        for key in table:
            if key not in SWEEP_KEYS:
                raise self.error(key, f"unknown key; there are {', '.join(sorted(SWEEP_KEYS))}")
        name = self.text(table, "name", self.path.stem)
        if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
            raise self.error(f"name = {name!r}", "give letters, digits and .-_")
        base = self.flags("base", self.table("base", table.get("base", {})))
        environment = self.one_environment("environment", table.get("environment", {}))
        products = table.get("product", [])
        if not isinstance(products, list) or not products or not all(isinstance(p, dict) for p in products):
            raise self.error("", "there is no [[product]]: give at least one")
        axes, variables = self.overrides(overrides)
        read = [self.product(p, i, base, environment, axes, variables) for i, p in enumerate(products)]
        names = [product.name for product in read]
        if len(set(names)) != len(names):
            raise self.error("product", f"two have the same name: {', '.join(names)}")
        notes = put_on_one_path(read)
        return Sweep(
            path=self.path,
            name=name,
            description=self.text(table, "description", ""),
            repeats=self.integer(table, "repeats", 3, 1, 10_000),
            timeout_seconds=float(self.integer(table, "timeout", 600, 1, 1_000_000)),
            seed=self.integer(table, "seed", 1, 0, 2**63 - 1),
            products=read,
            notes=notes,
        )

    def product(
        self,
        table: dict[str, Any],
        index: int,
        base: dict[str, list[Value]],
        environment: dict[str, list[str]],
        overriding_axes: dict[str, list[Value]],
        overriding_variables: dict[str, list[str]],
    ) -> Product:
        table = dict(table)
        name = self.text(table, "name", f"product{index + 1}" if index else "main")
        where = f"product {name}"
        program = self.text(table, "program", "ddptrain")
        if not re.fullmatch(r"[A-Za-z0-9._-]+", program):
            raise self.error(f"{where}: program = {program!r}", "give the name of a program beside ddptrain")
        arguments = table.get("arguments", [])
        if not isinstance(arguments, list) or not all(isinstance(a, str) for a in arguments):
            raise self.error(f"{where}: arguments", "give a list of texts")
        own_environments, own_alternatives = table.get("environment", {}), table.get("flags", [{}])
        for key in ("name", "program", "arguments", "environment", "flags"):
            table.pop(key, None)
        own = self.flags(where, table)
        lasting = {"min-seconds"} if program == "ddpbench" and "p2p" not in arguments else set()
        overriding = {
            k: v for k, v in overriding_axes.items() if program == "ddptrain" or k in PLACEMENT_KEYS or k in lasting
        }
        base = base if program == "ddptrain" else {}
        alternatives = self.alternatives(where, own_alternatives, base, own.keys(), overriding.keys())
        set_beside = {name for flags in alternatives for name in flags}
        axes = own | overriding
        replaced = axes.keys() | set_beside | ({"batch"} if "global-batch" in axes.keys() | set_beside else set())
        axes = {key: values for key, values in base.items() if key not in replaced} | axes
        if {"global-batch", "batch"} <= axes.keys() | set_beside:
            raise self.error(where, "give batch or global-batch, not both")
        environments = self.environments(where, own_environments, environment, overriding_variables)
        return Product(name, program, tuple(arguments), axes, alternatives, environments)

    def alternatives(
        self, where: str, tables: Any, base: dict[str, list[Value]], own: Collection[str], overridden: Collection[str]
    ) -> list[dict[str, Value]]:
        """What is overridden is left out of them; what is left alike then stands there once."""
        where = f"{where}: flags"
        if not isinstance(tables, list) or not tables:
            raise self.error(where, "give a list of tables")
        read = [self.flags(where, self.table(where, table)) for table in tables]
        names = dict.fromkeys(name for lists in read for name in lists)
        for name in names.keys() & set(own):
            raise self.error(f"{where}: {name}", "the product sets this flag itself")
        defaults = {name: base[name] for name in names if name in base}
        result: list[dict[str, Value]] = []
        for lists in read:
            kept = {name: values for name, values in (defaults | lists).items() if name not in overridden}
            made = (dict(zip(kept, values)) for values in itertools.product(*kept.values()))
            result += [flags for flags in made if flags not in result]
        return result

    def overrides(self, texts: list[str]) -> tuple[dict[str, list[Value]], dict[str, list[str]]]:
        axes: dict[str, list[Value]] = {}
        variables: dict[str, list[str]] = {}
        for text in texts:
            key, equals, value_text = text.partition("=")
            where = f"--set {text}"
            if not equals:
                raise UsageError(f"{where}: give KEY=VALUE")
            try:
                value = tomllib.loads(f"v = {value_text}")["v"]
            except tomllib.TOMLDecodeError:
                value = value_text
            if key.startswith("environment."):
                variables |= self.variables(where, {key.removeprefix("environment."): value})
            else:
                axes |= self.flags(where, {key: value})
        return axes, variables

    def environments(
        self, where: str, value: Any, base: dict[str, list[str]], overriding: dict[str, list[str]]
    ) -> list[dict[str, str]]:
        tables = value if isinstance(value, list) else [value]
        if not tables:
            raise self.error(f"{where}: environment", "the list is empty")
        result = []
        for table in tables:
            lists = base | self.one_environment(f"{where}: environment", table) | overriding
            result += [dict(zip(lists, values)) for values in itertools.product(*lists.values())]
        return result

    def one_environment(self, where: str, value: Any) -> dict[str, list[str]]:
        return self.variables(where, self.table(where, value))

    def variables(self, where: str, table: dict[str, Any]) -> dict[str, list[str]]:
        result = {}
        for key, value in table.items():
            if not VARIABLE.fullmatch(key):
                raise self.error(f"{where}: {key}", "not the name of an environment variable")
            values = value if isinstance(value, list) else [value]
            if not values or not all(isinstance(v, (str, int)) and not isinstance(v, bool) for v in values):
                raise self.error(f"{where}: {key}", 'give texts ("" takes the variable away)')
            result[key] = [str(v) for v in values]
            if any("\0" in v for v in result[key]):
                raise self.error(f"{where}: {key}", "a value holds a zero byte")
        return result

    def flags(self, where: str, table: dict[str, Any]) -> dict[str, list[Value]]:
        result = {}
        for key, value in table.items():
            if not FLAG.fullmatch(key):
                raise self.error(f"{where}: {key}", "not the name of a flag (without --) or of a key of a product")
            if key in FORBIDDEN_FLAGS:
                raise self.error(f"{where}: {key}", "ddpsweep gives this flag itself")
            values = value if isinstance(value, list) else [value]
            if not values:
                raise self.error(f"{where}: {key}", "the list is empty")
            result[key] = [self.value(f"{where}: {key}", key, v) for v in values]
            if len(set(map(str, result[key]))) != len(values):
                raise self.error(f"{where}: {key}", "a value stands there twice")
        return result

    def value(self, where: str, key: str, value: Any) -> Value:
        if isinstance(value, bool):
            value = "on" if value else "off"
        if not isinstance(value, (str, int, float)):
            raise self.error(where, f"{value!r} is not a text or a number")
        if key in ("ranks", "global-batch") and not (isinstance(value, int) and 1 <= value <= 1_000_000):
            raise self.error(f"{where} = {value!r}", "give a whole number from 1 to 1000000, without quotes")
        if key == "layout" and not LAYOUT.fullmatch(str(value)):
            raise self.error(f"{where} = {value!r}", "give NODESxRANKS, such as 2x4")
        if key == "gpus" and not self.is_gpu_selection(str(value)):
            raise self.error(f"{where} = {value!r}", 'give "all", "best-pair", "worst-pair" or a list such as "0,3"')
        if key == "cpus" and value != "all" and not CPU_LIST.fullmatch(str(value)):
            raise self.error(f"{where} = {value!r}", 'give "all" or processors such as "0,2" or "0-3"')
        if isinstance(value, str) and "\0" in value:
            raise self.error(where, "a value holds a zero byte")
        return str(value) if key in ("gpus", "cpus") else value

    @staticmethod
    def is_gpu_selection(text: str) -> bool:
        if text in ("all", "best-pair", "worst-pair"):
            return True
        numbers = text.split(",")
        return GPU_LIST.fullmatch(text) is not None and len(set(map(int, numbers))) == len(numbers)

    def table(self, where: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.error(where, "give a table")
        return value

    def text(self, table: dict[str, Any], key: str, default: str) -> str:
        value = table.get(key, default)
        if not isinstance(value, str):
            raise self.error(key, f"{value!r} is not a text")
        return value

    def integer(self, table: dict[str, Any], key: str, default: int, low: int, high: int) -> int:
        value = table.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.error(f"{key} = {value!r}", f"give a whole number from {low} to {high}")
        return value


def put_on_one_path(products: list[Product]) -> list[str]:
    """Sets symmetric = "off" where the NCCL_* variables of ddptrain's cases differ, and says so."""
    trained = [p for p in products if p.program == "ddptrain" and p.axes.get("device") != ["cpu"]]
    differing = _differing_nccl_variables(trained)
    changed = [p for p in trained if differing and not _sets_path(p)]
    for product in changed:
        product.axes["symmetric"] = ["off"]
    if not changed:
        return []
    which = "all of them" if len(changed) == len(trained) else f"those of {', '.join(p.name for p in changed)}"
    return [
        f"{' and '.join(differing)} differ{'s' if len(differing) == 1 else ''} between the cases: {which} run with "
        "--symmetric off, so that their gradients take the same path (to choose another, set "
        f"{', '.join(PATH_FLAGS[:-1])} or {PATH_FLAGS[-1]} in the sweep file)."
    ]


def _differing_nccl_variables(products: list[Product]) -> list[str]:
    environments = [environment for product in products for environment in product.environments]
    names = dict.fromkeys(name for e in environments for name in e if name.startswith("NCCL_"))
    return [name for name in names if len({e.get(name, "") for e in environments}) > 1]


def _sets_path(product: Product) -> bool:
    return any(name in flags for name in PATH_FLAGS for flags in (product.axes, *product.alternatives))
