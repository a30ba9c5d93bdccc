"""Numbers, times and settings in words."""

from collections.abc import Sequence

from ddptools.common.values import grouped


def without_controls(text: str) -> str:
    """A message without characters that control a terminal, which names of files may have. Line feeds and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t\u00a0" else "?" for c in text)


def one_line(text: str) -> str:
    """The same on one line: a name or a message that splits no other text."""
    return without_controls(text).translate({ord("\n"): "?", ord("\t"): "?"})


def number(value: float) -> str:
    """Four digits: 15.24 M, 349,600, 325.7; below 100, three."""
    magnitude = abs(value)
    if magnitude >= 999_950:
        return f"{value / 1e6:#.4g} M" if magnitude < 1e10 else f"{value:.4g}"
    if magnitude >= 1000:
        return f"{float(f'{value:.4g}'):,.0f}"
    return f"{value:.1f}" if magnitude >= 100 else f"{value:.3g}"


def measured(value: float, half_width: float | None = None, most_places: int = 2) -> str:
    """About four digits, with half of the 95% interval in as many decimal places: what is smaller is no measurement."""
    size = max(abs(value), half_width or 0.0)
    places = 0 if size >= 1000 else 1 if size >= 100 else most_places
    text = f"{round(value, places) + 0.0:,.{places}f}"  # + 0.0: no "-0.00"
    return text if half_width is None else f"{text} +- {half_width:,.{places}f}"


def percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}%"


def signed_percent(fraction: float) -> str:
    return f"{100 * fraction:+.1f}%"


def counted(count: int, noun: str) -> str:
    """1 run, 2 runs."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:g} s" if seconds == round(seconds) else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"


def setting_text(name: str, value: str) -> str:
    if name == "ranks":
        return f"{value} rank{'' if value == '1' else 's'}"
    if name in ("batch", "layout", "gpus", "cpus", "global-batch"):
        return f"{name} {value}"
    return f"{name}={value if value != '' else 'unset'}"


def size_text(size_bytes: float) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.4g} {unit}"
    return f"{size_bytes:.4g} B"


def ranges_text(numbers: Sequence[int]) -> str:
    """0-3, 7 of [0, 1, 2, 3, 7]."""
    parts = grouped((number - place, number) for place, number in enumerate(numbers)).values()
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
