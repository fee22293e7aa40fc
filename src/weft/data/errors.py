"""What can go wrong with data: the same errors on a server as in a job."""

from weft.runtime.data.errors import (
    BY_CODE,
    Changed,
    Corrupt,
    DataError,
    Denied,
    Missing,
    NoRoom,
    Refused,
    Unreachable,
)

__all__ = [
    "BY_CODE",
    "Changed",
    "Corrupt",
    "DataError",
    "Denied",
    "Missing",
    "NoRoom",
    "Refused",
    "Unreachable",
]
