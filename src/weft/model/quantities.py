"""Quantities as people write them: `500m` CPUs, `1Gi` of memory, `2h` of time.

A quantity that does not parse is an error that shows the right form; there is no silent default.
Inside Weft a CPU quantity is whole thousandths of a CPU, memory is bytes and a duration is seconds.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_NUMBER = re.compile(r"(\d{1,19}(?:\.\d{1,9})?)([A-Za-z]*)", re.ASCII)
_DURATION = re.compile(r"(?:\d{1,9}(?:\.\d{1,6})?(?:ms|s|m|h|d))+", re.ASCII)
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)

MEMORY_UNITS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
}
DURATION_UNITS = {
    "d": Decimal(86400),
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
}

MAX_CPU = 10**9
MAX_GPU = 10**6
MAX_TASK_GPU = 1024
MAX_MEMORY = 2**60
MAX_DURATION = 10 * 365 * 86400

CPU_HELP = "write CPUs as a number such as 2 or 0.5, or in thousandths such as 500m"
GPU_HELP = "write GPUs as a whole number such as 2, or a part of one such as 0.5"
MEMORY_HELP = "write bytes with a unit: 512Mi, 1Gi, 1.5Gi (powers of 1024) or 500M, 2G (powers of 1000)"
DURATION_HELP = "write a duration with a unit: 30s, 5m, 2h, 1h30m, 7d"


def parse_cpu(value: Any) -> int:
    """Thousandths of a CPU from `2`, `0.5`, `"500m"`."""
    number, unit = _split(value, CPU_HELP)
    if unit not in ("", "m"):
        raise ValueError(f"unknown unit {unit!r}; {CPU_HELP}")
    milli = number if unit == "m" else number * 1000
    if milli != milli.to_integral_value():
        raise ValueError(f"finer than a thousandth of a CPU; {CPU_HELP}")
    if milli > MAX_CPU:
        raise ValueError(f"more than {MAX_CPU // 1000} CPUs; {CPU_HELP}")
    return int(milli)


def format_cpu(milli: int) -> str:
    """The shortest form that parses back to the same number."""
    whole, rest = divmod(milli, 1000)
    return f"{whole}" if not rest else f"{whole}.{rest:03d}".rstrip("0")


def plain_cpu(milli: int) -> int | float:
    """How a CPU quantity is written into YAML and JSON: a plain number."""
    return milli // 1000 if milli % 1000 == 0 else milli / 1000


def parse_gpu(value: Any) -> int:
    """Thousandths of a GPU from `2` or `0.5`."""
    number, unit = _split(value, GPU_HELP)
    if unit:
        raise ValueError(f"unknown unit {unit!r}; {GPU_HELP}")
    if number * 1000 != (number * 1000).to_integral_value():
        raise ValueError(f"finer than a thousandth of a GPU; {GPU_HELP}")
    if number > MAX_GPU:
        raise ValueError(f"more than {MAX_GPU} GPUs; {GPU_HELP}")
    return int(number * 1000)


def parse_task_gpu(value: Any) -> int | float:
    """The GPUs of one task: whole ones, or a part of a single one that others may use too."""
    milli = parse_gpu(value)
    if milli > 1000 and milli % 1000:
        raise ValueError(
            f"a task has whole GPUs or a part of one; write {milli // 1000}, {milli // 1000 + 1} or 0.5"
        )
    if milli > MAX_TASK_GPU * 1000:
        raise ValueError(f"more than {MAX_TASK_GPU} GPUs for one task; {GPU_HELP}")
    return plain_cpu(milli)


def parse_memory(value: Any) -> int:
    """Bytes from `"1Gi"`, `"512Mi"`, `"2G"` or a whole number of bytes."""
    number, unit = _split(value, MEMORY_HELP)
    if unit not in MEMORY_UNITS:
        near = {u.lower(): u for u in MEMORY_UNITS if u} | {
            "kb": "k",
            "mb": "M",
            "gb": "G",
            "tb": "T",
            "gib": "Gi",
            "mib": "Mi",
        }
        guess = near.get(unit.lower())
        hint = f" (did you mean {format_plain(number)}{guess}?)" if guess else ""
        raise ValueError(f"unknown unit {unit!r}{hint}; {MEMORY_HELP}")
    size = number * MEMORY_UNITS[unit]
    if size != size.to_integral_value():
        raise ValueError(f"not a whole number of bytes; {MEMORY_HELP}")
    if size > MAX_MEMORY:
        raise ValueError(f"more than 1024Pi; {MEMORY_HELP}")
    return int(size)


def format_memory(size: int) -> str:
    """The largest binary unit that divides it, so that it parses back to the same number."""
    for unit in ("Pi", "Ti", "Gi", "Mi", "Ki"):
        if size and size % MEMORY_UNITS[unit] == 0:
            return f"{size // MEMORY_UNITS[unit]}{unit}"
    return str(size)


def show_bytes(size: float) -> str:
    """For people: three significant digits, never to be parsed back."""
    for unit in ("Pi", "Ti", "Gi", "Mi", "Ki"):
        if size >= MEMORY_UNITS[unit]:
            return f"{size / MEMORY_UNITS[unit]:.3g} {unit}B"
    return f"{size:.0f} B"


def parse_duration(value: Any) -> float:
    """Seconds from `"30s"`, `"1h30m"`, `"250ms"` or a plain number of seconds."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(DURATION_HELP)
    if isinstance(value, str):
        text = value.strip()
        if not _DURATION.fullmatch(text):
            raise ValueError(DURATION_HELP)
        total = sum((Decimal(n) * DURATION_UNITS[u] for n, u in _DURATION_PART.findall(text)), Decimal(0))
    else:
        total = Decimal(str(value)) if math.isfinite(value) else Decimal(-1)
    if total < 0:
        raise ValueError(f"must not be negative; {DURATION_HELP}")
    if total > MAX_DURATION:
        raise ValueError(f"more than ten years; {DURATION_HELP}")
    return float(total.quantize(Decimal("0.001")))


@lru_cache(maxsize=4096)
def format_duration(seconds: float) -> str:
    """`5400` → `1h30m`; parses back to the same number of milliseconds."""
    left = Decimal(str(seconds)).quantize(Decimal("0.001"))
    if left == 0:
        return "0s"
    parts = []
    for unit in ("d", "h", "m"):
        count = int(left // DURATION_UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
            left -= count * DURATION_UNITS[unit]
    if left:
        parts.append(f"{format_plain(left)}s")
    return "".join(parts)


def format_plain(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _split(value: Any, help_text: str) -> tuple[Decimal, str]:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(help_text)
    text = value.strip() if isinstance(value, str) else format_plain(Decimal(str(value)))
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(help_text)
    return Decimal(match[1]), match[2]


def _schema(pattern: str, description: str, examples: list[Any]) -> WithJsonSchema:
    return WithJsonSchema(
        {
            "anyOf": [{"type": "string", "pattern": pattern}, {"type": "number", "minimum": 0}],
            "description": description,
            "examples": examples,
        }
    )


Cpu = Annotated[
    int,
    BeforeValidator(parse_cpu),
    PlainSerializer(plain_cpu),
    _schema(r"^\d{1,19}(\.\d{1,9})?m?$", "CPUs: 2, 0.5 or 500m", [1, "500m"]),
]
Gpu = Annotated[
    int,
    BeforeValidator(parse_gpu),
    PlainSerializer(plain_cpu),
    _schema(r"^\d{1,7}(\.\d{1,3})?$", "GPUs: 2 or 0.5", [8, 0.5]),
]
"""An amount of GPUs, in thousandths."""
TaskGpu = Annotated[
    int | float,
    BeforeValidator(parse_task_gpu),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": MAX_TASK_GPU},
                {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            ],
            "description": "GPUs of a task: 2, or a part of one such as 0.5",
            "examples": [1, 0.5],
        }
    ),
]
Memory = Annotated[
    int,
    BeforeValidator(parse_memory),
    PlainSerializer(format_memory, return_type=str),
    _schema(r"^\d{1,19}(\.\d{1,9})?([kMGTP]|[KMGTP]i)?$", "Memory: 512Mi, 1Gi, 2G", ["1Gi", "512Mi"]),
]
Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    _schema(r"^(\d{1,9}(\.\d{1,6})?(ms|s|m|h|d))+$", "A duration: 30s, 5m, 1h30m, 7d", ["30s", "2h"]),
]
