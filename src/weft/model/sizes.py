"""T-shirt sizes: the CPU and memory that keep a number of GPUs busy, by GPU type."""

from __future__ import annotations

from dataclasses import dataclass

from weft.model.job import Resources
from weft.model.problems import Problem

GiB = 2**30


@dataclass(frozen=True, slots=True)
class Size:
    name: str
    cpu: int
    """Thousandths of a CPU."""
    memory: int
    gpu: int
    gpu_type: str | None


def _gpus(gpu_type: str, gpu: int, cpu: int, memory: int) -> Size:
    return Size(f"{gpu_type}-{gpu}", cpu * 1000, memory * GiB, gpu, gpu_type)


SIZES: dict[str, Size] = {
    size.name: size
    for size in (
        Size("small", 1000, 2 * GiB, 0, None),
        Size("medium", 4000, 8 * GiB, 0, None),
        Size("large", 16000, 32 * GiB, 0, None),
        _gpus("k80", 1, 4, 24),
        _gpus("k80", 2, 8, 48),
        _gpus("k80", 4, 16, 96),
        _gpus("p100", 1, 8, 24),
        _gpus("p100", 2, 16, 48),
        _gpus("v100", 1, 26, 24),
        _gpus("v100", 2, 42, 48),
    )
}

DEFAULT_CPU = 1000


def resolve(resources: Resources, field: str) -> tuple[Resources, list[Problem]]:
    """Resources with nothing left open: from the size first, then the defaults."""
    size = None
    if resources.size is not None:
        size = SIZES.get(resources.size)
        if size is None:
            return resources, [Problem(f"{field}.size", f"no such size; choose one of {', '.join(SIZES)}", f'"{resources.size}"')]
    return (
        resources.model_copy(
            update={
                "cpu": _first(resources.cpu, size and size.cpu, DEFAULT_CPU),
                "memory": _first(resources.memory, size and size.memory, None),
                "gpu": _first(resources.gpu, size and size.gpu, 0),
                "gpu_type": _first(resources.gpu_type, size and size.gpu_type, None),
            }
        ),
        [],
    )


def _first(*values: int | str | None) -> int | str | None:
    return next((value for value in values if value is not None), None)
