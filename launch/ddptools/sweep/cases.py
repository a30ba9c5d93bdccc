"""The cases of a sweep, and the order in which they run."""

import dataclasses
import difflib
import functools
import hashlib
import itertools
import json
import math
import random
import typing

from ddptools.common.errors import UsageError
from ddptools.common.values import grouped
from ddptools.results.run import PLACEMENT_KEYS, Value, varied
from ddptools.sweep.sweep_file import Product, Sweep


class Layout(typing.NamedTuple):
    nodes: int
    ranks_per_node: int

    def __str__(self) -> str:
        return f"{self.nodes}x{self.ranks_per_node}"


@dataclasses.dataclass(frozen=True)
class Case:
    """One setting of everything; run once per repeat."""

    sweep: str
    product: str
    program: str
    arguments: tuple[str, ...]
    ranks: int
    layout: Layout | None
    gpus: str
    cpus: str
    flags: dict[str, Value]
    environment: dict[str, str]
    global_batch: int | None = None
    groups: int = 0  # jobs that share a log; 0: one job without

    def settings(self) -> dict[str, Value]:
        """Everything in one flat table; variables that are taken away have the value ""."""
        placement = {"ranks": self.ranks, "layout": str(self.layout or ""), "gpus": self.gpus, "cpus": self.cpus}
        if self.global_batch is not None:
            placement["global-batch"] = self.global_batch
        if self.groups:
            placement["groups"] = self.groups
        return placement | self.flags | self.environment

    @functools.cached_property
    def key(self) -> str:
        """The same for the same settings, in whatever order they were written."""
        identity = [self.sweep, self.product, self.program, self.arguments, self.settings()]
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


def expand(sweep: Sweep) -> list[Case]:
    cases = [case for product in sweep.products for case in _expand_product(sweep, product)]
    if len({case.key for case in cases}) != len(cases):
        raise UsageError(f"{sweep.path}: two cases are the same: a table of environment stands there twice")
    return cases


def _expand_product(sweep: Sweep, product: Product) -> list[Case]:
    lists = (*product.axes.values(), product.alternatives, product.environments)
    count = math.prod(map(len, lists))
    if count > 100_000:
        raise UsageError(f"{sweep.path}: product {product.name}: {count} cases; 100000 is the most")
    made = []
    for *values, flags, environment in itertools.product(*lists):
        made.append(_make_case(sweep, product, dict(zip(product.axes, values)) | flags, environment))
    return made


def _make_case(sweep: Sweep, product: Product, axes: dict[str, Value], environment: dict[str, str]) -> Case:
    where = f"{sweep.path}: product {product.name}"
    layout = Layout(*map(int, str(axes["layout"]).split("x"))) if "layout" in axes else None
    gpus = str(axes.get("gpus", "all"))
    ranks = _ranks(where, axes, layout, gpus)
    flags = {k: v for k, v in axes.items() if k not in PLACEMENT_KEYS and k != "global-batch"}
    global_batch = axes.get("global-batch")
    if global_batch is not None:
        if global_batch % ranks:
            raise UsageError(f"{where}: global-batch = {global_batch} does not divide by ranks = {ranks}")
        flags["batch"] = global_batch // ranks
    groups = int(axes.get("groups", 0))
    if groups:
        _check_groups(f"{where}: groups = {groups}", groups, product.program, flags)
    return Case(
        sweep=sweep.name,
        product=product.name,
        program=product.program,
        arguments=product.arguments,
        ranks=ranks,
        layout=layout,
        gpus=gpus,
        cpus=str(axes.get("cpus", "all")),
        flags=flags,
        environment=environment,
        global_batch=global_batch,
        groups=groups,
    )


def _check_groups(where: str, groups: int, program: str, flags: dict[str, Value]) -> None:
    """UsageError for what launch/local-groups cannot start."""
    if program != "ddptrain":
        raise UsageError(f"{where}: {program} has no groups. Leave groups out")
    if named := next((name for name in ("outer", "group") if name in flags), None):
        raise UsageError(f"{where} with {named} = {flags[named]!r}: groups of a sweep have a log of their own. Leave {named} out")
    if (rounds := str(flags.get("outer-groups", 0))) not in ("0", str(groups)):
        raise UsageError(f"{where} with outer-groups = {rounds}: a round waits for all groups. Give outer-groups = {groups} or 0")


def _ranks(where: str, axes: dict[str, Value], layout: Layout | None, gpus: str) -> int:
    given = axes.get("ranks")
    if layout is not None:
        ranks = layout.nodes * layout.ranks_per_node
        if given is not None and given != ranks:
            raise UsageError(f"{where}: layout = {layout} has {ranks} ranks, but ranks = {given}; give one of the two")
        return ranks
    if given is not None:
        return int(given)
    if gpus in ("best-pair", "worst-pair"):
        return 2
    if gpus != "all":
        return len(gpus.split(","))
    others = [name for name in axes if name not in PLACEMENT_KEYS and difflib.get_close_matches(name, PLACEMENT_KEYS)]
    hint = f" ({others[0]} is none of them)" if others else ""
    raise UsageError(f"{where}: give ranks, layout or a list of gpus{hint}")


def interleaved(cases: list[Case], repeats: int, seed: int) -> list[tuple[Case, int]]:
    """Runs in rounds, each with every case once, in an order of its own: drift of the machine favours no setting."""
    order = []
    for repeat in range(repeats):
        round_ = list(cases)
        random.Random(f"{seed}/{repeat}").shuffle(round_)
        order += [(case, repeat) for case in round_]
    return order


def varied_settings(cases: list[Case]) -> dict[str, list[str]]:
    """Per product, the names of the settings that differ between its cases."""
    by_product = grouped((case.product, case.settings()) for case in cases)
    return {product: varied(tables) for product, tables in by_product.items()}


def label(case: Case, varied: dict[str, list[str]]) -> str:
    """The case in words: its product, where there are several, and what differs within it."""
    settings = case.settings()
    values = {name: settings.get(name, "") for name in varied[case.product]}
    text = " ".join(f"{name}={'unset' if value == '' else value}" for name, value in values.items())
    if text and len(varied) > 1:
        return f"{case.product}: {text}"
    return text or case.product
