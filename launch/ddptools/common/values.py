"""Values of files that others wrote: whatever is damaged counts as missing."""

import re
import statistics
from collections.abc import Iterable
from typing import Any


# What a number without a unit means in the values of flags that are sizes: bytes.
SIZE_FLAGS = {"bucket-mb": 2**20, "last-bucket-kb": 2**10}
SIZE = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([kmgt]?)(i?)(b?)", re.ASCII | re.IGNORECASE)


def size_bytes(text: str, bare_unit: float) -> float | None:
    """Of a size such as 512k, 1.5M or 4GB, as the C++ programs read it (runtime/core/sizes.h); None for other texts."""
    found = SIZE.fullmatch(text)
    if not found:
        return None
    number, letter, binary, byte = found.groups()
    if binary and not (letter and byte):
        return None
    if not letter:
        return float(number) * (1 if byte else bare_unit)
    base = 1000 if byte and not binary else 1024
    return float(number) * base ** ("kmgt".index(letter.lower()) + 1)


def positive(value: Any) -> float | None:
    """A number above 0, else None."""
    number = finite(value)
    return number if number is not None and number > 1e-30 else None


def finite(value: Any) -> float | None:
    """A number of a size with which sums and products stay finite, else None: larger ones are mistakes."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e30 else None


def number_of(text: str) -> float:
    """A setting as a number; 0 where it is none."""
    try:
        return finite(float(text)) or 0.0
    except ValueError:
        return 0.0


def table_of(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def grouped(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    """Second values by their first, in the order in which they come."""
    found: dict[Any, list[Any]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def median_of(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def setting_value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
