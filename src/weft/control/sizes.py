"""The sizes that there are: those that come with Weft, and those that an operator declared in their place or besides.

A job carries the numbers that its size stood for, so that a size can be changed while jobs of it run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from weft.control.declared import Declared
from weft.control.nosuch import NoSize
from weft.model.lifecycle import Refused
from weft.model.problems import Invalid
from weft.model.resource import Metadata
from weft.model.sizes import BUILT_IN, Size, SizeSpec, wrong_with
from weft.store.store import Store

KIND = "Size"


class OperatorSizes:
    def __init__(self, store: Store, clock: Callable[[], float], new_uid: Callable[[float], str]):
        self._own = Declared(KIND, Size, store, clock, new_uid)

    def load(self) -> None:
        """As they were when the last server ended."""
        self._own.load()

    @property
    def specs(self) -> dict[str, SizeSpec]:
        """All of them by name: what jobs are completed with."""
        return {**BUILT_IN, **{name: size.spec for name, size in self._own.by_name.items()}}

    @property
    def own(self) -> Mapping[str, Size]:
        """Those that an operator declared."""
        return self._own.by_name

    def __iter__(self) -> Iterator[Size]:
        """Those without a GPU first, then by type and number of GPUs."""
        yield from sorted(map(self.get, self.specs), key=_order)

    def get(self, name: str) -> Size:
        if name in self._own.by_name:
            return self._own.by_name[name]
        if name in BUILT_IN:
            return Size(metadata=Metadata(name=name), spec=BUILT_IN[name])
        raise NoSize(name, self.specs)

    async def settled(self) -> None:
        await self._own.settled()

    async def put(self, name: str, given: Size, actor: str) -> tuple[Size, bool]:
        """Declare a size, or change it, also one that comes with Weft; True if it is new."""
        async with self._own.one:
            if problems := list(wrong_with(given.spec)):
                raise Invalid(f"size {name}", problems, KIND)
            new = name not in self.specs
            return await self._own.put(name, given, actor), new

    async def remove(self, name: str, actor: str) -> None:
        """One that comes with Weft is as it was again. Jobs of the size have its numbers, and go on."""
        async with self._own.one:
            self.get(name)
            if name not in self._own.by_name:
                raise Refused(f"size {name} comes with Weft as it is; it can be changed, not deleted")
            await self._own.remove(name, actor)


def _order(size: Size) -> tuple[Any, ...]:
    spec = size.spec
    return spec.gpu_type or "", spec.per_gpu, spec.gpu or 0, spec.cpu or 0, size.metadata.name


def document(size: Size) -> dict[str, Any]:
    found: dict[str, Any] = size.model_dump(mode="json", by_alias=True, exclude_none=True)
    built_in = size.metadata.uid is None
    found["status"] = {"builtIn": built_in, "overrides": not built_in and size.metadata.name in BUILT_IN}
    return found
