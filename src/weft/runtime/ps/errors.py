"""What can go wrong between a worker and its parameter servers."""

from __future__ import annotations


class ParameterServerError(Exception):
    """Something that trying again would not mend."""


class Refused(ParameterServerError):
    """A server, or this end on its behalf, did not take what it was given."""


class Unreachable(ParameterServerError):
    """A server was away for longer than the worker's patience."""


class BadMessage(Exception):
    """The other end does not speak as agreed: its connection is closed."""
