"""Weft: machine-learning jobs on one machine or on Kubernetes.

The public Python API is the list below, imported lazily: `import weft` also happens inside users'
training processes, whose interpreter has none of Weft's dependencies and where every millisecond counts.
"""

TYPE_CHECKING = False  # type checkers take it for true; importing typing would cost six times the rest
if TYPE_CHECKING:
    from weft import checkpoint, ps
    from weft.client.api import Client
    from weft.client.job import Job
    from weft.client.run import dry_run, run
    from weft.runtime.active import active
    from weft.runtime.announce import announce
    from weft.runtime.data.reader import data
    from weft.runtime.heartbeat import heartbeat
    from weft.runtime.metrics import log
    from weft.runtime.preempt import on_preempt, stopping
    from weft.runtime.shards import shards
    from weft.version import __version__

__all__ = [
    "Client",
    "Job",
    "__version__",
    "active",
    "announce",
    "checkpoint",
    "data",
    "dry_run",
    "heartbeat",
    "log",
    "on_preempt",
    "ps",
    "run",
    "shards",
    "stopping",
]

_HOMES = {
    "Client": "weft.client.api",
    "Job": "weft.client.job",
    "__version__": "weft.version",
    "active": "weft.runtime.active",
    "announce": "weft.runtime.announce",
    "checkpoint": "weft",
    "data": "weft",
    "dry_run": "weft.client.run",
    "heartbeat": "weft.runtime.heartbeat",
    "log": "weft.runtime.metrics",
    "on_preempt": "weft.runtime.preempt",
    "ps": "weft",
    "run": "weft.client.run",
    "shards": "weft.runtime.shards",
    "stopping": "weft.runtime.preempt",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'weft' has no attribute {name!r}; it offers {', '.join(__all__)}")
    from importlib import import_module

    value: object = import_module(f"weft.{name}") if home == "weft" else getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
