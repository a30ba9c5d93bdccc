"""Clocks, power and temperatures of GPUs during a run."""

import datetime
import pathlib
import statistics
import subprocess
from typing import Any

SENSORS = ("index", "clocks.sm", "power.draw", "temperature.gpu")


class Readings:
    """nvidia-smi beside a run, four times a second; nothing where there is none."""

    def __init__(self, gpus: list[str], file: pathlib.Path) -> None:
        self.gpus, self.file = gpus, file
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Readings":
        command = ["nvidia-smi", f"--query-gpu=timestamp,{','.join(SENSORS)}", "--format=csv,noheader,nounits",
                   "-lms", "250", "-i", ",".join(self.gpus)]  # fmt: skip
        if self.gpus:
            try:
                with self.file.open("wb") as out:
                    self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
            except OSError:
                self.process = None
        return self

    def __exit__(self, *_: object) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait()

    def between(self, begin: float, end: float) -> dict[str, float] | None:
        """Means over the GPUs and the time, and the lowest clock; None where nothing was read."""
        text = self.file.read_text(encoding="utf-8", errors="replace") if self.file.exists() else ""
        return summarize(parse_readings(text), begin, end)


def parse_readings(text: str) -> list[tuple[float, float, float, float]]:
    """Unix time, MHz, W, degrees Celsius of every complete line."""
    found = []
    for line in text.splitlines():
        try:
            stamp, _, clock, power, temperature = (word.strip() for word in line.split(","))
            moment = datetime.datetime.strptime(stamp, "%Y/%m/%d %H:%M:%S.%f").timestamp()
            found.append((moment, float(clock), float(power), float(temperature)))
        except ValueError:  # cut off, or [N/A]
            continue
    return found


def summarize(readings: list[tuple[float, ...]], begin: float, end: float) -> dict[str, float] | None:
    within = [reading for reading in readings if begin <= reading[0] <= end]
    if not within:
        return None
    _, clocks, powers, temperatures = zip(*within)
    return {"sm_mhz": statistics.mean(clocks), "sm_mhz_min": min(clocks), "watts": statistics.mean(powers),
            "celsius_max": max(temperatures), "readings": len(within)}  # fmt: skip


def own_sensors(summary: dict[str, Any]) -> dict[str, float] | None:
    """The same from the sensors that ddptrain itself reads."""
    gpus = [gpu for gpu in summary.get("gpus") or [] if gpu.get("readings") and gpu.get("sm_mhz") is not None]
    if not gpus:
        return None
    mean = lambda field: statistics.mean(values) if (values := [gpu[field] for gpu in gpus if gpu[field]]) else None
    return {"sm_mhz": mean("sm_mhz"), "sm_mhz_min": min(gpu["sm_mhz_min"] for gpu in gpus), "watts": mean("watts"),
            "celsius_max": max(gpu["celsius_max"] or 0 for gpu in gpus),
            "readings": sum(gpu["readings"] for gpu in gpus)}  # fmt: skip
