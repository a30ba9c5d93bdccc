"""What groups that share a log (ddptrain --outer) send, and what that costs."""

import dataclasses

from ddptools.common.table import Table
from ddptools.common.text import counted
from ddptools.plan.hardware import GBS_PER_GBIT
from ddptools.plan.prediction import Case, Prediction

# Bytes per value: int8 and int4 have a scale of two bytes for each 64 values.
BYTES = {"int8": 1.0 + 2.0 / 64, "int4": 0.5 + 2.0 / 64, "bf16": 2.0, "fp32": 4.0}


@dataclasses.dataclass(frozen=True)
class Groups:
    count: int
    steps: int  # between two exchanges
    delay: int  # steps of training while a difference travels
    dtype: str
    gbit: float  # Gbit/s of a group's connection and of the server's, one way


@dataclasses.dataclass(frozen=True)
class Exchange:
    """Of a group; each group has the GPUs of the case."""

    gpus: int
    sent_bytes: float  # by a group
    received_bytes: float  # by a group: the differences of all
    server_bytes: float  # that the server sends: to all groups
    wire_seconds: float
    still_seconds: float  # that training waits
    efficiency: float  # throughput, relative to groups without exchange
    fewer: float  # bytes that a host sends and receives, of synchronous fp32 training with a rank on each, by those here


def exchange_of(groups: Groups, case: Case, prediction: Prediction) -> Exchange:
    sent = BYTES[groups.dtype] * case.work.parameters
    received, server = groups.count * sent, groups.count**2 * sent
    wire = server / (1e9 * GBS_PER_GBIT * groups.gbit)  # the busiest connection is the server's
    still = max(0.0, wire - groups.delay * prediction.step_seconds)
    training = groups.steps * prediction.step_seconds
    synchronous = 4.0 * case.work.parameters * 2 * 2 * (groups.count - 1) / groups.count * groups.steps
    return Exchange(prediction.gpus, sent, received, server, wire, still, training / (training + still),
                    synchronous / (sent + received))  # fmt: skip


def groups_table(groups: Groups, exchanges: list[Exchange], worker: str) -> Table:
    rows = [
        [str(each.gpus), *(f"{1e-6 * size:.3g}" for size in (each.sent_bytes, each.received_bytes, each.server_bytes)),
         f"{each.wire_seconds:.3g}", f"{each.still_seconds:.3g}", f"{100 * each.efficiency:.1f}%", f"{each.fewer:.0f}"]
        for each in exchanges
    ]  # fmt: skip
    every = f"every {groups.steps} steps" if groups.steps > 1 else "every step"
    caption = f"{counted(groups.count, 'group')}, an exchange {every}, {groups.dtype}, {groups.gbit:g} Gbit/s:"
    header = [f"{worker}s of a group", "sent MB", "received MB", "sent by the server MB", "wire s", "waits s",
              "throughput", "times fewer bytes"]  # fmt: skip
    footnote = ("Fewer bytes: than fp32 all-reduces of every step over these connections.\n"
                "Throughput is relative to groups that exchange nothing.")  # fmt: skip
    return Table(caption, header, rows, footnote)
