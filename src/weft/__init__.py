"""Weft: machine-learning jobs on one machine or on Kubernetes.

The public Python API is the list below, imported lazily: `import weft` also happens inside users'
training processes, whose interpreter has none of Weft's dependencies and where every millisecond counts.
"""

TYPE_CHECKING = False  # type checkers take it for true; importing typing would cost six times the rest
if TYPE_CHECKING:
    from weft.client.api import Client
    from weft.client.job import Job
    from weft.client.run import run
    from weft.runtime.metrics import log
    from weft.version import __version__

__all__ = ["Client", "Job", "__version__", "log", "run"]

_HOMES = {
    "Client": "weft.client.api",
    "Job": "weft.client.job",
    "__version__": "weft.version",
    "log": "weft.runtime.metrics",
    "run": "weft.client.run",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'weft' has no attribute {name!r}; it offers {', '.join(__all__)}")
    from importlib import import_module

    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
