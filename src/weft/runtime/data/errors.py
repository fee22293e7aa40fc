"""What can go wrong with data: on a server, on a node, in a job. Each message names object, cause and next step."""

from __future__ import annotations


class DataError(Exception):
    """The data cannot be given; `code` is how an agent says so to a reader."""

    code = "refused"


class Changed(DataError):
    """The source has other content than when it was listed."""

    code = "changed"


class Unreachable(DataError):
    """Perhaps later: a source, a node or a server does not answer."""

    code = "unreachable"


class Denied(DataError):
    """The credentials do not allow it."""

    code = "denied"


class Missing(DataError):
    """There is no such thing."""

    code = "missing"


class Corrupt(DataError):
    """The bytes are not those that were stored."""

    code = "corrupt"


class NoRoom(DataError):
    """A disk or a quota is full."""

    code = "noroom"


class Refused(DataError):
    """It is there, and will not be taken or given: a link, a bad name, a version of another format."""

    code = "refused"


BY_CODE: dict[str, type[DataError]] = {
    kind.code: kind for kind in (Changed, Unreachable, Denied, Missing, Corrupt, NoRoom, Refused)
}
