"""What is expected of a job, from how long jobs like it ran."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from support.world import known
from weft.scheduler.history import ENOUGH, YOUNG, History, likeness

seconds = st.floats(1.0, 1e6, allow_nan=False)


def test_jobs_are_alike_by_owner_name_without_its_number_and_size() -> None:
    assert likeness("ann", "train-17", 8) == likeness("ann", "train-18", 8)
    assert likeness("ann", "train_3f2a9", 8)[0] == ("ann", "train", 8)
    assert likeness("ann", "train", 8) != likeness("ann", "eval", 8)


def test_the_narrowest_class_that_knows_enough_answers() -> None:
    history = known(("train", 8, 100.0), ("eval", 8, 10.0), owner="ann")
    assert history.remaining(likeness("ann", "train-9", 8), 0.0) == 100.0
    assert history.remaining(likeness("ann", "other", 8), 0.0) in (10.0, 100.0)


def test_too_few_are_not_believed() -> None:
    history = known(("train", 8, 100.0), times=ENOUGH - 1)
    assert history.remaining(likeness("", "train", 8), 0.0) == YOUNG


def test_where_nothing_is_known_a_job_is_expected_to_run_as_long_again() -> None:
    assert History().remaining(likeness("", "new", 1), 5000.0) == 5000.0


@given(st.lists(seconds, min_size=ENOUGH, max_size=40), seconds)
def test_time_left_is_never_negative_and_grows_with_the_quantile(durations: list[float], age: float) -> None:
    history, like = History(), likeness("", "job", 1)
    for duration in durations:
        history.record(like, duration)
    low, middle, high = (history.remaining(like, age, q) for q in (0.25, 0.5, 0.9))
    assert 0.0 <= low <= middle <= high
