"""Who follows whom: what each side says now, and what both last agreed on. Nothing is done here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Turn(StrEnum):
    NOTHING = "nothing"
    DECLARE = "declare"
    """Weft takes what the cluster says."""
    WITHDRAW = "withdraw"
    """It is gone from the cluster, so it goes from Weft."""
    WRITE = "write"
    """The cluster gets what Weft says."""
    DELETE = "delete"
    """It is gone from Weft, so its resource goes."""
    REMEMBER = "remember"
    """Both say the same, and it is not what they agreed on before."""
    FORGET = "forget"


@dataclass(frozen=True, slots=True)
class Decision:
    turn: Turn
    both: bool = False
    """Both sides have changed, and Weft's change is lost."""


def decide(agreed: str | None, weft: str | None, cluster: str | None) -> Decision:
    """Only a side that changed is followed; if both did, the cluster is. None: it does not exist there."""
    if weft == cluster:
        if weft is None:
            return Decision(Turn.NOTHING if agreed is None else Turn.FORGET)
        return Decision(Turn.NOTHING if agreed == weft else Turn.REMEMBER)
    if agreed is None:  # never in step: what Weft alone has is not made a resource
        return Decision(Turn.NOTHING) if cluster is None else Decision(Turn.DECLARE, weft is not None)
    if cluster == agreed:
        return Decision(Turn.DELETE if weft is None else Turn.WRITE)
    return Decision(Turn.WITHDRAW if cluster is None else Turn.DECLARE, weft != agreed)


class JobTurn(StrEnum):
    FOLLOW = "follow"
    DELETE_JOB = "delete the job"
    DELETE_RESOURCE = "delete the resource"
    FORGET = "forget"


def of_a_pair(*, resource: bool, job: bool) -> JobTurn:
    """A job and its resource live and die together."""
    if resource:
        return JobTurn.FOLLOW if job else JobTurn.DELETE_RESOURCE
    return JobTurn.DELETE_JOB if job else JobTurn.FORGET


class Newcomer(StrEnum):
    CLAIM = "claim"
    """Nobody's yet: first it is marked as ours, which only one control plane can."""
    LINK = "link"
    SUBMIT = "submit"
    LEAVE = "leave"


def of_a_newcomer(*, claimed: bool, made_for_job: bool, had_a_job: bool) -> Newcomer:
    """A resource that belongs to no job yet, as far as is known."""
    if not claimed:
        return Newcomer.CLAIM
    if made_for_job:
        return Newcomer.LINK
    return Newcomer.LEAVE if had_a_job else Newcomer.SUBMIT
