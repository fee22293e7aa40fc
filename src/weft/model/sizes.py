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

_DEFAULTS = Size("", cpu=1000, memory=0, gpu=0, gpu_type=None)


def resolve(resources: Resources, field: str) -> tuple[Resources, list[Problem]]:
    """Resources with nothing left open: from the size first, then the defaults."""
    if resources.size is None:
        size = _DEFAULTS
    elif resources.size in SIZES:
        size = SIZES[resources.size]
    else:
        known = ", ".join(SIZES)
        return resources, [
            Problem(f"{field}.size", f"no such size; choose one of {known}", f'"{resources.size}"')
        ]
    filled = {
        "cpu": size.cpu if resources.cpu is None else resources.cpu,
        "memory": (size.memory or None) if resources.memory is None else resources.memory,
        "gpu": size.gpu if resources.gpu is None else resources.gpu,
        "gpu_type": size.gpu_type if resources.gpu_type is None else resources.gpu_type,
    }
    return resources.model_copy(update=filled), []
