"""Datasets on a server: sources, versions, packs, the store, and what a node caches of them.

Imports model and runtime.data only. The package itself can be called: `weft.data("faces")` is what a training script
writes (runtime/data/reader.py), and Python gives a package and a function of one name the same place.
"""

import sys
from types import ModuleType


class _Room(ModuleType):
    def __call__(self, name: str, **how: object) -> object:
        from weft.runtime.data.reader import data

        return data(name, **how)  # type: ignore[arg-type]


sys.modules[__name__].__class__ = _Room
