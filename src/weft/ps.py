"""A parameter server for numpy and torch: `weft.ps.serve` in the servers' tasks, `weft.ps.Client` in the workers'."""

from weft.runtime.ps.arrays import Rows
from weft.runtime.ps.client import Client, Pulled, Pushed
from weft.runtime.ps.errors import ParameterServerError, Refused, Unreachable
from weft.runtime.ps.job import hosts
from weft.runtime.ps.optimizers import SGD, Adam, Momentum
from weft.runtime.ps.server import serve

__all__ = [
    "SGD",
    "Adam",
    "Client",
    "Momentum",
    "ParameterServerError",
    "Pulled",
    "Pushed",
    "Refused",
    "Rows",
    "Unreachable",
    "hosts",
    "serve",
]
