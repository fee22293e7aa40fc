"""Why there is no testbed: what it is about, the cause, and what to do next."""

from __future__ import annotations


class Refused(Exception):
    """Told to the user as it is; never a bug."""

    def __init__(self, what: str, cause: str, next_step: str) -> None:
        super().__init__(f"{what}: {cause.strip().rstrip('.')}\n  next: {next_step}")
        self.what = what
        self.cause = cause
        self.next_step = next_step


ELSEWHERE = "point the tests at any cluster instead: WEFT_TEST_KUBECONFIG=~/.kube/config"
