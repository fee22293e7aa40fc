"""`Queue`: who may have how much of the cluster, as an operator writes it.

`conflicts` are the rules that hold among queues: what one queue says can only be judged next to its parent,
its sisters and its children.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import Field

from weft.model.problems import Problem
from weft.model.quantities import Cpu, Gpu, Memory, format_cpu, format_memory
from weft.model.resource import Metadata, Name, Strict

DEFAULT = "default"
"""The queue of jobs that name none. It is always there."""


class Amounts(Strict):
    """So much of each resource. What is left out is not meant."""

    cpu: Cpu | None = None
    memory: Memory | None = None
    gpu: Gpu | None = None

    def given(self) -> dict[str, int]:
        """CPUs and GPUs in thousandths, memory in bytes."""
        return {name: value for name in FIELDS if (value := getattr(self, name)) is not None}


FIELDS = tuple(Amounts.model_fields)
_NO_AMOUNTS = Amounts()


class QueueSpec(Strict):
    parent: Name | None = None
    """The queue that this one is a part of: what it uses counts there too."""
    weight: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] = 1.0
    """Its share beside its sisters, of what nobody is guaranteed."""
    guarantee: Amounts = Field(default_factory=lambda: _NO_AMOUNTS)
    """Its own whenever it wants it; others may borrow it meanwhile."""
    limit: Amounts = Field(default_factory=lambda: _NO_AMOUNTS)
    """Never more than this, borrowed or not."""
    user_limit: Amounts = Field(default_factory=lambda: _NO_AMOUNTS)
    """Never more than this for one user of the queue."""
    closed: bool = False
    """Nothing of it starts; what runs goes on."""


class Queue(Strict):
    api_version: Literal["weft.dev/v1"] = "weft.dev/v1"
    kind: Literal["Queue"] = "Queue"
    metadata: Metadata = Field(default_factory=Metadata)
    spec: QueueSpec = Field(default_factory=QueueSpec)
    status: dict[str, Any] | None = None
    """Written by the server; ignored in what is sent."""


def conflicts(name: str, queues: Mapping[str, QueueSpec]) -> Iterator[Problem]:
    """What is wrong with a queue among all queues, itself included."""
    spec = queues[name]
    yield from _own(spec)
    if spec.parent is not None:
        if spec.parent not in queues:
            near = get_close_matches(spec.parent, queues, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the queues are {', '.join(sorted(queues))}"
            yield Problem("spec.parent", f"no such queue; {hint}", f'"{spec.parent}"')
            return
        above = _above(name, queues)
        if name in above:
            way = " → ".join([name, *above])
            yield Problem(
                "spec.parent", f"makes the queue a part of itself ({way}); choose another", f'"{spec.parent}"'
            )
            return
        yield from _divided(spec.parent, queues, "the parent", "lower this guarantee or raise that first")
    yield from _divided(name, queues, "this queue", "raise this or lower theirs first")


def _own(spec: QueueSpec) -> Iterator[Problem]:
    limit = spec.limit.given()
    for resource, amount in spec.guarantee.given().items():
        if amount > limit.get(resource, amount):
            most = show(resource, limit[resource])
            yield Problem(
                f"spec.guarantee.{resource}", f"more than the limit, which is {most}", show(resource, amount)
            )


def _divided(parent: str, queues: Mapping[str, QueueSpec], called: str, remedy: str) -> Iterator[Problem]:
    """A queue's children share what it has: their guarantees together are no more than that."""
    spec = queues[parent]
    for resource, together in guaranteed(parent, queues).items():
        for field, most in (("guarantee", spec.guarantee.given()), ("limit", spec.limit.given())):
            if together > most.get(resource, together):
                yield Problem(
                    f"spec.{'guarantee' if called == 'the parent' else field}.{resource}",
                    f"the queues in {parent} are guaranteed {show(resource, together)} together, {called} has "
                    f"a {field} of {show(resource, most[resource])}; {remedy}",
                )
                break


def guaranteed(parent: str | None, queues: Mapping[str, QueueSpec]) -> dict[str, int]:
    """What the children of a queue (None: the queues at the top) are guaranteed together."""
    total: dict[str, int] = {}
    for spec in queues.values():
        if spec.parent == parent:
            for resource, amount in spec.guarantee.given().items():
                total[resource] = total.get(resource, 0) + amount
    return total


def _above(name: str, queues: Mapping[str, QueueSpec]) -> list[str]:
    """The parent, its parent and so on; ends where it comes around."""
    found: list[str] = []
    parent = queues[name].parent
    while parent is not None and parent in queues and parent not in found:
        found.append(parent)
        parent = queues[parent].parent
    return found


def show(resource: str, amount: int) -> str:
    """As it would be written: `2` GPUs, `16Gi`."""
    return format_memory(amount) if resource == "memory" else format_cpu(amount)
