"""An attribute that is worked out at its first use and then kept in the object.

As `functools.cached_property`, which takes a lock at each first use until Python 3.12: the scheduler makes and
asks so many small objects that this was a tenth of a cycle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class lazy(Generic[T]):
    def __init__(self, work_out: Callable[[Any], T]):
        self._work_out = work_out
        self.__doc__ = work_out.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._work_out(instance)  # found there from now on
        return value
