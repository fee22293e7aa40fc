"""`Size`: CPU, memory and GPUs under one name (T-shirt sizes), so that a job need not know what keeps a GPU busy.

A size per GPU, `a100`, is asked for with a number: `a100-2` is twice what it says. A size of that very name goes
before it, for where twice the GPUs do not want twice the CPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field

from weft.model.job import GpuType, Resources
from weft.model.problems import Problem
from weft.model.quantities import MAX_CPU, MAX_MEMORY, MAX_TASK_GPU, Cpu, Memory, TaskGpu, format_memory
from weft.model.resource import Metadata, Strict, Text

GiB = 2**30
DEFAULT_CPU = 1000
_SO_MANY = re.compile(r"(?P<each>.+)-(?P<gpus>[1-9]\d{0,3})", re.ASCII)


class SizeSpec(Strict):
    description: Text = ""
    cpu: Cpu | None = None
    """CPUs of each task of this size. Left out: as without a size."""
    memory: Memory | None = None
    """Memory limit of each task of it. Left out: no limit."""
    gpu: TaskGpu | None = None
    """GPUs of each task of it."""
    gpu_type: GpuType | None = None
    """Only GPUs of this type."""
    per_gpu: bool = False
    """`cpu` and `memory` are for each GPU: jobs ask for NAME-1, NAME-2 and so on."""


class Size(Strict):
    api_version: Literal["weft.dev/v1"] = "weft.dev/v1"
    kind: Literal["Size"] = "Size"
    metadata: Metadata = Field(default_factory=Metadata)
    spec: SizeSpec = Field(default_factory=SizeSpec)
    status: dict[str, Any] | None = None
    """Written by the server; ignored in what is sent."""


Sizes = Mapping[str, SizeSpec]


def _of(gpu_type: str, gpu: int, cpu: int, memory: int) -> tuple[str, SizeSpec]:
    return f"{gpu_type}-{gpu}", SizeSpec(cpu=cpu, memory=memory * GiB, gpu=gpu, gpu_type=gpu_type)


BUILT_IN: Sizes = MappingProxyType(
    {
        "small": SizeSpec(cpu=1, memory=2 * GiB),
        "medium": SizeSpec(cpu=4, memory=8 * GiB),
        "large": SizeSpec(cpu=16, memory=32 * GiB),
        **dict(
            (
                _of("k80", 1, cpu=4, memory=24),
                _of("k80", 2, cpu=8, memory=48),
                _of("k80", 4, cpu=16, memory=96),
                _of("p100", 1, cpu=8, memory=24),
                _of("p100", 2, cpu=16, memory=48),
                _of("v100", 1, cpu=26, memory=24),
                _of("v100", 2, cpu=42, memory=48),
            )
        ),
    }
)


def wrong_with(spec: SizeSpec) -> Iterator[Problem]:
    """All that makes no sense in a size."""
    if spec.cpu is None and spec.memory is None and not spec.gpu:
        yield Problem("spec", "says nothing; give at least one of cpu, memory and gpu")
    if spec.per_gpu and spec.gpu is not None:
        cause = "leave it out with perGpu: whoever asks says how many GPUs (NAME-2)"
        yield Problem("spec.gpu", cause, f"{spec.gpu:g}")
    if spec.gpu_type is not None and not spec.gpu and not spec.per_gpu:
        cause = "asks for a GPU type but for no GPU; add gpu: 1, or perGpu: true"
        yield Problem("spec.gpuType", cause, f'"{spec.gpu_type}"')
    if spec.per_gpu:
        if (spec.cpu or 0) * MAX_TASK_GPU > MAX_CPU:
            yield Problem("spec.cpu", f"more than {MAX_CPU // MAX_TASK_GPU // 1000} CPUs for each GPU")
        if (spec.memory or 0) * MAX_TASK_GPU > MAX_MEMORY:
            yield Problem(
                "spec.memory", f"more than {format_memory(MAX_MEMORY // MAX_TASK_GPU)} for each GPU"
            )


def with_gpus(each: SizeSpec, gpus: int) -> SizeSpec:
    """So many times a size per GPU."""
    amounts = {
        "cpu": None if each.cpu is None else each.cpu * gpus,
        "memory": None if each.memory is None else each.memory * gpus,
    }
    return each.model_copy(update={**amounts, "gpu": gpus, "per_gpu": False})


def find(name: str, table: Sizes) -> SizeSpec | None:
    """What a job gets that asks for this size."""
    if (spec := table.get(name)) is not None:
        return None if spec.per_gpu else spec
    many = _SO_MANY.fullmatch(name)
    each = table.get(many["each"]) if many is not None else None
    if many is None or each is None or not each.per_gpu or (gpus := int(many["gpus"])) > MAX_TASK_GPU:
        return None
    return with_gpus(each, gpus)


def resolve(resources: Resources, field: str, table: Sizes = BUILT_IN) -> tuple[Resources, list[Problem]]:
    """Resources with nothing left open: from the size first, then the defaults."""
    size = SizeSpec() if resources.size is None else find(resources.size, table)
    if size is None:
        return resources, [_no_such(resources.size or "", field, table)]
    of_size = DEFAULT_CPU if size.cpu is None else size.cpu
    filled = {
        "cpu": of_size if resources.cpu is None else resources.cpu,
        "memory": size.memory if resources.memory is None else resources.memory,
        "gpu": (size.gpu or 0) if resources.gpu is None else resources.gpu,
        "gpu_type": size.gpu_type if resources.gpu_type is None else resources.gpu_type,
    }
    return resources.model_copy(update=filled), []


def _no_such(name: str, field: str, table: Sizes) -> Problem:
    if name in table:
        return Problem(
            f"{field}.size", f"is for each GPU: write {name}-1 for one, {name}-2 for two", f'"{name}"'
        )
    known = ", ".join(f"{known}-N" if spec.per_gpu else known for known, spec in table.items())
    return Problem(f"{field}.size", f"no such size; choose one of {known}", f'"{name}"')
