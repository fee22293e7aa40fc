"""Who leads: what a candidate makes of a lease, in numbers. The elections themselves are in tests/kubernetes/test_election.py."""

from __future__ import annotations

from typing import Any

import pytest

from weft.server.leader import ANSWER, DURATION, MARGIN, RENEW, TRY, Standing


def a_lease(
    holder: str, version: int = 1, lasts: float = DURATION, moves: int = 0, **more: Any
) -> dict[str, Any]:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": lasts, "leaseTransitions": moves, **more}
    return {"metadata": {"resourceVersion": str(version)}, "spec": spec}


def test_a_lease_of_another_one_is_waited_for_until_it_is_over_and_not_a_moment_less() -> None:
    two = Standing("two", now=100.0)
    assert two.looked(a_lease("one"), 100.0) is None
    assert two.over(101.0) == DURATION - 1
    assert two.looked(a_lease("one"), 100.0 + DURATION - 0.001) is None
    assert two.looked(a_lease("one"), 100.0 + DURATION) == 1, "it moves for the first time"


def test_each_renewal_is_a_new_lease() -> None:
    two = Standing("two", now=0.0)
    for renewal in range(20):
        assert two.looked(a_lease("one", version=renewal), renewal * RENEW) is None
    last = 19 * RENEW
    assert two.looked(a_lease("one", version=19), last + DURATION - 0.01) is None
    assert two.looked(a_lease("one", version=19), last + DURATION + 0.01) == 1


def test_times_of_another_clock_are_not_believed() -> None:
    two = Standing("two", now=0.0)
    assert two.looked(a_lease("one", renewTime="1970-01-01T00:00:00.000000Z"), 0.0) is None
    assert two.over(0.0) == DURATION


def test_a_candidate_that_was_cut_off_does_not_take_a_lease_that_was_kept_meanwhile() -> None:
    two = Standing("two", now=0.0)
    assert two.looked(a_lease("one", version=1), 0.0) is None
    assert two.looked(a_lease("one", version=90), 60.0) is None, "it sees it as it is for the first time"


def test_a_lease_that_was_given_back_is_taken_at_once() -> None:
    two = Standing("two", now=0.0)
    assert two.looked(a_lease("one"), 0.0) is None
    assert two.looked(a_lease("", version=2, lasts=1, moves=3), 0.1) == 4


def test_a_leader_that_was_frozen_goes_on_if_nobody_took_its_place_and_stops_if_somebody_did() -> None:
    one = Standing("one", now=0.0)
    one.wrote(0.0)
    late = 10 * DURATION
    assert one.looked(a_lease("one"), late) == 0
    assert one.looked(a_lease("two", version=2), late) is None
    assert one.lost(late)
    assert one.holder == "two"


def test_a_leader_stops_trying_before_another_can_begin() -> None:
    one, two = Standing("one", now=0.0), Standing("two", now=0.0)
    one.wrote(asked=1.0)  # when it asked, however late the answer came
    assert two.looked(a_lease("one", version=1), 1.0) is None
    assert not one.lost(1.0 + DURATION - MARGIN - 0.001)
    assert one.lost(1.0 + DURATION - MARGIN)
    assert two.looked(a_lease("one", version=1), 1.0 + DURATION - MARGIN) is None


@pytest.mark.parametrize("patience", [ANSWER, TRY])
def test_there_is_time_to_ask_twice_before_a_lease_is_over(patience: float) -> None:
    assert RENEW + patience + TRY <= DURATION - MARGIN
