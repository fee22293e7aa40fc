"""Times and sizes as people say them."""

from __future__ import annotations

import time


def span(seconds: float | None) -> str:
    """A duration in at most two units: `850ms`, `4.2s`, `3m10s`, `5h2m`, `12d3h`."""
    if seconds is None:
        return "-"
    seconds = max(seconds, 0.0)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    for unit, size, smaller, smaller_size in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "m", 60),
        ("m", 60, "s", 1),
    ):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size}{unit}" + (f"{rest}{smaller}" if rest else "")
    return f"{whole}s"


def rough(seconds: float) -> str:
    """A duration that nobody knows exactly: `12m`, `1h10m`; what is due is `now`."""
    if seconds < 0.5:
        return "now"
    if seconds < 90:
        return f"{max(round(seconds), 1)}s"
    step = 60 if seconds < 3600 else 600 if seconds < 86400 else 3600
    return span(round(seconds / step) * step)


def about(seconds: float) -> str:
    """The same in a sentence: `12 min`, `3 h`."""
    for limit, unit, size in ((90, "s", 1), (90 * 60, "min", 60), (36 * 3600, "h", 3600)):
        if seconds < limit:
            return f"{max(round(seconds / size), 0)} {unit}"
    return f"{round(seconds / 86400)} days"


def age(moment: float | None, now: float | None = None) -> str:
    return "-" if moment is None else span((time.time() if now is None else now) - moment)


def clock(moment: float | None) -> str:
    """Local date and time."""
    return "-" if moment is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def instant(moment: float) -> str:
    """Local time with milliseconds, as RFC 3339 has it: sorts as text, and other programs can read it."""
    from datetime import datetime

    return datetime.fromtimestamp(moment).astimezone().isoformat(timespec="milliseconds")


def size(count: float | None) -> str:
    """Bytes with three digits: `1.5 GiB`. As `weft.model.quantities.show_bytes`, without its imports."""
    if count is None:
        return "-"
    for unit in ("PiB", "TiB", "GiB", "MiB", "KiB"):
        scale = 1024 ** ("KiB", "MiB", "GiB", "TiB", "PiB").index(unit) * 1024
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
