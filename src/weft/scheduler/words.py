"""Requests in words."""

from __future__ import annotations

from weft.model.gang import Request
from weft.model.quantities import format_cpu, show_bytes


def request_words(request: Request) -> str:
    """`1 cpu, 2 GiB, 1 gpu of 40 GiB or more, 1 rdma`."""
    parts = [f"{format_cpu(request.cpu)} cpu"]
    if request.memory:
        parts.append(show_bytes(request.memory))
    if request.gpus:
        parts.append(f"{request.gpus:g} {gpu_words(request)}")
    parts += [f"{count} {name}" for name, count in request.devices]
    return ", ".join(parts)


def gpu_words(request: Request, noun: str = "gpu") -> str:
    """`v100 gpu of 40 GiB or more and generation 8 or later`."""
    kind = f"{request.gpu_type} " if request.gpu_type else ""
    least = []
    if request.gpu_memory:
        least.append(f"{show_bytes(request.gpu_memory)} or more")
    if request.gpu_generation:
        least.append(f"generation {request.gpu_generation} or later")
    return f"{kind}{noun}" + (f" of {' and '.join(least)}" if least else "")
