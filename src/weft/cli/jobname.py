"""The beginning of a job's name for the whole of it, where only one job begins so."""

from __future__ import annotations

from weft.client.api import Client
from weft.client.errors import ApiError, WeftError

MOST_NAMED = 8


def only_job(beginning: str, refusal: ApiError) -> str:
    """The one job whose name begins like this; with several, an error that names them; with none, the
    server's own refusal."""
    names: list[str] = sorted(
        item["name"]
        for page in Client().pages()
        for item in page["items"]
        if beginning and item["name"].startswith(beginning)
    )
    if not names:
        raise refusal
    if len(names) > 1:
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        cause = f"{len(names)} jobs begin with it: {', '.join(names[:MOST_NAMED])}{more}"
        raise WeftError(f"there is no job {beginning}", cause, "type enough of the name to tell them apart")
    return names[0]
