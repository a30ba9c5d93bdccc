"""What NCCL chose, and whether a setting changes the parameters that training ends with, in sentences."""

from collections.abc import Iterator

from ddptools.common.text import setting_text
from ddptools.common.values import finite, table_of
from ddptools.report.sweeps.answers import begin_of, limited
from ddptools.report.sweeps.experiment import SYMMETRIC, Case, Experiment
from ddptools.results.run import PLACEMENT

SETS_RANKS = ("ranks", "global-batch")  # of ddpsweep; with these, too, training ends with other parameters
NAMES = {"ranks": "the number of ranks", "global-batch": "the global batch"}
ROUNDS = ("tp",)  # by splitting layers, which adds in another order
UNEXPLAINED = "ddpreport does not know why"


def choices(experiment: Experiment) -> list[str]:
    """Which settings changed nothing that NCCL chose."""
    if not any(name.startswith("NCCL_") and name in experiment.variables for name in experiment.tuned):
        return []
    if not any(case.nccl() or case.path == "mpi" for case in experiment.measured):
        return ["The runs do not say what NCCL chose."]
    sentences = limited(_without_effect(experiment))
    return sentences or ["Every NCCL_* setting changed what NCCL chose (algorithm, protocol, channels or transport)."]


def _without_effect(experiment: Experiment) -> Iterator[str]:
    names = [name for name in experiment.tuned if name in experiment.variables]
    for context, cases in experiment.contexts(names):
        reference = experiment.reference(cases)
        for case in cases:
            same = (case.nccl(), case.choices()) == (reference.nccl(), reference.choices())
            ignored = _ignored_on_its_path(case, names)
            if ignored and case is not reference:
                yield f"{begin_of(context)}No effect: {ignored}."
            if ignored or case is reference or case.nccl() is None or not same:
                continue
            algorithm, protocol, channels, transport = case.nccl()
            yield (
                begin_of(context) + f"No effect on what NCCL chose: {experiment.label(case, names)}. It "
                f"took {algorithm}, {protocol}, {channels} channels, {transport}, as with "
                f"{experiment.label(reference, names)}."
            )


def _ignored_on_its_path(case: Case, names: list[str]) -> str:
    """Variables that the path of the gradients does not follow, and why; empty where there are none."""
    given = [name for name in names if name.startswith("NCCL_") and case.settings.get(name)]
    why = "the gradients went over MPI"
    if case.path in SYMMETRIC:
        given = [name for name in given if name in ("NCCL_ALGO", "NCCL_PROTO")]
        why = "NCCL's symmetric kernels, which the gradients used, do not follow it (symmetric=off avoids them)"
    elif case.path != "mpi":
        return ""
    settings = ", ".join(setting_text(name, case.settings[name]) for name in given)
    return f"{settings}, because {why}" if given else ""


def numerics(experiment: Experiment) -> list[str]:
    """Whether a setting changes the parameters that training ends with."""
    return limited(_numerics(experiment))


def _numerics(experiment: Experiment) -> Iterator[str]:
    yield from _deciding_flags(experiment)
    names = [name for name in experiment.varied if not _decides_parameters(experiment, name)]
    for context, cases in experiment.contexts(names):
        cases = [case for case in cases if case.hashes() and case.trains]
        for case in cases:
            if len(case.hashes()) > 1:
                yield (
                    f"{len(case.runs)} runs of {experiment.label(case)} ended with {len(case.hashes())} different "
                    f"sets of parameters: it is not reproducible bit by bit ({_why_runs_differ(case)})."
                )
        different = {frozenset(case.hashes()) for case in cases}
        if len(different) > 1:
            yield begin_of(context) + _changed_numerics(experiment, cases, names)
        elif len(cases) > 1:
            yield begin_of(context) + f"All {len(cases)} settings end with the same parameters, bit by bit."


def _decides_parameters(experiment: Experiment, name: str) -> bool:
    """Whether other parameters are what the setting is there for. Of a flag, the runs say it; else it may be so."""
    if name in experiment.variables or name in PLACEMENT:
        return False
    told = _told_deciding(experiment)
    return not told or name in (*SETS_RANKS, *ROUNDS) or name in told


def _told_deciding(experiment: Experiment) -> set[str]:
    descriptions = [table_of(run.summary.get("description")) for case in experiment.measured for run in case.runs]
    lists = [table.get("decides_parameters") for table in descriptions]
    return {str(flag) for flags in lists if isinstance(flags, list) for flag in flags}


def _deciding_flags(experiment: Experiment) -> Iterator[str]:
    """Names the settings with which training is meant to end with other parameters, where it does."""
    told = _told_deciding(experiment)
    for name in [name for name in experiment.varied if name in told or name in (*SETS_RANKS, *ROUNDS)]:
        groups = [[case for case in cases if case.hashes()] for _, cases in experiment.contexts([name])]
        if not any(len({frozenset(case.hashes()) for case in cases}) > 1 for cases in groups):
            continue
        if name in ROUNDS:
            yield f"{name} changes the parameters at the end by rounding: split layers add in another order."
        else:
            yield f"The final weights depend on {NAMES.get(name, name)}, as expected."


def _why_runs_differ(case: Case) -> str:
    if any(table_of(run.summary.get("configuration")).get("tune") == "on" for run in case.runs):
        return "--tune on chooses matrix products by timing, and other products round differently"
    return UNEXPLAINED


def _are_summed_in_one_order(case: Case, reference: Case) -> bool:
    """Whatever the hosts of the ranks: virtual ranks fix the order, and two ranks have one."""
    told = [finite(summary.get("virtual_ranks")) or 0 for each in (case, reference) for summary in each.summaries]
    return max(case.ranks, reference.ranks) <= 2 or min(told, default=0) > 0


def _hosts(case: Case) -> set[float | None]:
    """How many the runs had."""
    return {finite(summary.get("nodes")) for summary in case.summaries}


def _hierarchical(case: Case) -> set[str]:
    """How MPI reduced over several hosts; empty on one, where the flag changes nothing."""
    told = (table_of(summary.get("description")) for summary in case.summaries if (finite(summary.get("nodes")) or 1) > 1)
    return {str(table["hierarchical"]) for table in told if table.get("hierarchical")}


def _why_hosts_change_parameters(case: Case, reference: Case) -> str:
    """Empty if their hosts are no reason."""
    if _are_summed_in_one_order(case, reference):
        return ""
    if case.settings.get("layout", "") != reference.settings.get("layout", "") or _hosts(case) != _hosts(reference):
        return "ranks on other hosts: gradients are added in another order, which rounds differently"
    if _hierarchical(case) != _hierarchical(reference):
        return "hierarchical adds gradients in another order, which rounds differently"
    return ""


def _why_parameters_differ(case: Case, reference: Case) -> str:
    if case.path != reference.path:
        return f"gradients by another path, {case.path or 'not told'}, are summed in another order"
    if case.nccl() != reference.nccl() or case.choices() != reference.choices():
        return "NCCL chose otherwise, and sums in another order round differently"
    if why_hosts := _why_hosts_change_parameters(case, reference):
        return why_hosts
    if case.buckets() != reference.buckets():
        return "other buckets: each is summed in parts of its own, and sums in another order round differently"
    same = ", and NCCL chose the same" if case.nccl() else ""
    return f"no flag that decides parameters differs{same}: {UNEXPLAINED}"


def _changed_numerics(experiment: Experiment, cases: list[Case], names: list[str]) -> str:
    reference = experiment.reference(cases)
    changed = [case for case in cases if case.hashes() != reference.hashes()]
    labels = "; ".join(experiment.label(case, names) for case in changed[:8])
    more = f" and {len(changed) - 8} more" if len(changed) > 8 else ""
    reasons = "; ".join(dict.fromkeys(_why_parameters_differ(case, reference) for case in changed))
    return (
        f"The parameters at the end differ from those of {experiment.label(reference, names)} with: {labels}{more} "
        f"({reasons})."
    )
