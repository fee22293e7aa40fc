"""The job around a server or a worker: where its tasks are, who this task is, and the token that they share."""

from __future__ import annotations

import hashlib
import hmac
import os

from weft.runtime.hosts import hosts as hosts_of_the_job
from weft.runtime.ps.errors import ParameterServerError


def hosts() -> dict[str, list[str]]:
    """The addresses of all tasks by role."""
    try:
        return hosts_of_the_job()
    except KeyError:
        raise ParameterServerError("WEFT_HOSTS is not set: run this in a job, or give an address") from None


def job_token() -> str:
    """WEFT_PS_TOKEN if the job sets it (from a secret), else one derived from the job's uid.

    The latter keeps tasks of other jobs away that meet here by mistake; it is no defence against a person who can see
    the job.
    """
    if token := os.environ.get("WEFT_PS_TOKEN"):
        return token
    return hashlib.sha256(f"weft parameters {os.environ.get('WEFT_JOB_UID', '')}".encode()).hexdigest()


def proof(token: str, role: str, nonce: str) -> str:
    """Shows that one knows the token, without sending it; `role` keeps an answer from being sent back as its own."""
    return hmac.new(token.encode(), f"{role} {nonce}".encode(), hashlib.sha256).hexdigest()


def same(one: str, other: object) -> bool:
    return hmac.compare_digest(one.encode(), str(other).encode())


def split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
