"""What an end is expected to cost, from jobs of the same kind that came near."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.scheduler import kin as module
from weft.scheduler.history import Likeness, likeness
from weft.scheduler.kin import (
    EDGES,
    ENOUGH,
    LEAST,
    LENGTHS,
    MOST,
    REMEMBERED,
    SPANS,
    Kin,
    Life,
    chances_of,
    cost_of,
    span_of,
)

SHORT, LONG = 100.0, 100_000.0
seconds = st.floats(1.0, 1e7)


@dataclass(frozen=True)
class A:
    """A job, as far as it matters here."""

    came: float
    uid: str = "me"
    name: str = "train-1"
    owner: str = "ann"
    gpus: float = 8

    @property
    def like(self) -> Likeness:
        return likeness(self.owner, self.name, self.gpus)


def lived(*runs: tuple[float, float], kin: Kin | None = None, **about: object) -> Kin:
    """Jobs of which each came then and ended after so long."""
    kin = kin or Kin()
    for came, took in runs:
        kin.ended(A(came, f"job-{came}-{about}", **about), took)  # type: ignore[arg-type]
    return kin


def crowd(count: int, took: float, begin: float = 0.0) -> list[tuple[float, float]]:
    return [(begin + number, took) for number in range(count)]


class TestWhoIsAsked:
    def test_the_nearest_in_time_say_more_than_all_that_ever_ran(self) -> None:
        kin = lived(*crowd(100, LONG), *crowd(5, SHORT, 1000.0))
        assert kin.cost(A(1010.0), 0.0) < 5 * SHORT
        assert kin.cost(A(50.5), 0.0) > LONG / 5

    def test_also_those_that_came_later_and_ended_before(self) -> None:
        kin = lived(*crowd(8, SHORT, 1000.0))
        assert kin.cost(A(10.0), 0.0) < 5 * SHORT

    def test_of_kin_that_still_run_it_counts_that_they_do(self) -> None:
        kin = lived(*crowd(3, SHORT))
        before = kin.cost(A(100.0), 0.0)
        for number in range(8):
            kin.ran(A(50.0 + number, f"runs-{number}"), LONG)
        assert kin.cost(A(100.0), 0.0) > 2 * before

    def test_a_job_is_not_its_own_kin(self) -> None:
        kin = lived(*crowd(8, LONG))
        fresh = kin.cost(A(4.5), 40.0)
        kin.ran(A(4.5), 40.0)
        assert kin.cost(A(4.5), 40.0) == fresh

    def test_namesakes_before_others_of_the_owner_where_there_are_enough(self) -> None:
        kin = lived(*crowd(20, LONG), name="train-1")
        lived(*crowd(ENOUGH, SHORT, 0.5), kin=kin, name="eval-1")
        assert kin.cost(A(30.0, name="eval-9"), 0.0) < 5 * SHORT
        assert kin.cost(A(30.0), 0.0) > 50 * SHORT

    def test_too_few_namesakes_leave_it_to_all_of_the_owner_and_size(self) -> None:
        kin = lived(*crowd(20, LONG), name="train-1")
        lived((3.5, SHORT), kin=kin, name="eval-1")
        assert kin.cost(A(30.0, name="eval-9"), 0.0) > LONG / 5

    def test_others_and_other_sizes_of_the_owner_are_not_kin(self) -> None:
        kin = lived(*crowd(20, SHORT))
        assert kin.cost(A(10.0, owner="bob", gpus=4), 0.0) == kin.cost(A(10.0, owner="cid", gpus=4), 0.0)

    def test_without_kin_jobs_of_the_same_size_say_something(self) -> None:
        kin = lived(*crowd(200, SHORT), owner="ann", gpus=2)
        lived(*crowd(200, LONG), kin=kin, owner="ann", gpus=8)
        assert kin.cost(A(0.0, owner="bob", gpus=2), 0.0) < SHORT * 5
        assert kin.cost(A(0.0, owner="bob", gpus=8), 0.0) > 50 * SHORT


class TestWhatItCosts:
    @given(st.lists(st.floats(30.0, 1e7), min_size=2, max_size=2))
    def test_where_nothing_is_known_who_has_had_less_goes_first(self, ages: list[float]) -> None:
        kin, (less, more) = Kin(), sorted(ages)
        if more > 1.5 * 1.5 * less:  # apart by more than a span
            assert kin.cost(A(0.0), less) < kin.cost(A(0.0), more)

    def test_who_has_outlived_the_quick_ones_stands_behind_a_new_one(self) -> None:
        kin = lived(*[(float(n), SHORT if n % 2 else LONG) for n in range(40)])
        assert kin.cost(A(20.5), 10 * SHORT) > 5 * kin.cost(A(20.5), 0.0)

    def test_who_is_about_to_end_as_all_of_its_kin_did_goes_before_a_new_one(self) -> None:
        kin = lived(*crowd(40, LONG))
        assert kin.cost(A(20.5), 0.9 * LONG) < kin.cost(A(20.5), 0.0) / 2

    @given(
        st.lists(st.floats(LEAST, MOST), min_size=SPANS, max_size=SPANS),
        st.floats(0.0, EDGES[-2]),
    )
    def test_it_is_the_least_over_all_times_to_look_ahead(
        self, chances: list[float], attained: float
    ) -> None:
        first = span_of(attained)
        alive, served, costs = 1.0, 0.0, []
        for span in range(first, SPANS):
            stays = 1.0 - chances[span]
            length = LENGTHS[span]
            if span == first:
                length = max(EDGES[span + 1] - attained, 1.0)
                stays **= length / LENGTHS[span]
            served += length * (alive + alive * stays) / 2
            alive *= stays
            costs.append(served / (1.0 - alive))
        assert cost_of(chances, attained) == pytest.approx(min(costs))

    @given(
        st.lists(st.tuples(st.floats(0.01, 1.0), seconds, st.booleans()), max_size=40),
        st.lists(st.floats(LEAST, MOST), min_size=SPANS, max_size=SPANS),
    )
    def test_no_chance_is_certain(self, lives: list[tuple[float, float, bool]], usual: list[float]) -> None:
        near = [(weight, Life((0.0, ""), took, span_of(took), ended)) for weight, took, ended in lives]
        chances = chances_of(near, usual)
        assert len(chances) == SPANS
        assert LEAST <= min(chances) <= max(chances) <= MOST

    @given(st.lists(st.tuples(st.floats(0, 1e6), seconds, st.booleans()), max_size=60), st.floats(0, 1e8))
    def test_it_is_positive_and_finite_whatever_happened(
        self, lives: list[tuple[float, float, bool]], attained: float
    ) -> None:
        kin = Kin()
        for number, (came, took, ended) in enumerate(lives):
            job = A(came, f"job-{number}")
            (kin.ended if ended else kin.ran)(job, took)
        assert 0 < kin.cost(A(5e5), attained) < 1e14


class TestWhatIsRemembered:
    def lives(self, kin: Kin) -> list[str]:
        return [life.place[1] for life in kin._kinds["ann", "train", 8].lives]

    def test_so_many_of_each_kind_the_latest(self) -> None:
        kin = lived(*crowd(REMEMBERED + 3, SHORT))
        assert len(self.lives(kin)) == REMEMBERED
        assert self.lives(kin)[0].startswith("job-3.0")

    def test_one_that_was_forgotten_while_it_ran_does_not_come_twice(self) -> None:
        kin = Kin()
        kin.ran(A(0.0, "old"), 50.0)
        lived(*crowd(REMEMBERED, SHORT, 1.0), kin=kin)
        kin.ran(A(0.0, "old"), 60.0)
        kin.ended(A(0.0, "old"), 70.0)
        assert "old" not in self.lives(kin)

    def test_a_job_that_ran_in_several_turns_is_one(self) -> None:
        kin = Kin()
        for had in (10.0, 20.0, 30.0):
            kin.ran(A(5.0, "me"), had)
        kin.ended(A(7.0, "me"), 40.0)  # where it came is known from its first turn
        assert self.lives(kin) == ["me"]
        assert kin._kinds["ann", "train", 8].lives[0].place == (5.0, "me")

    def test_kinds_and_jobs_without_an_end_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "KINDS", 10)
        monkeypatch.setattr(module, "UNENDED", 5)
        kin = Kin()
        for number in range(50):
            kin.ran(A(float(number), f"job-{number}", owner=f"owner-{number}"), 10.0)
        assert len(kin._kinds) == 10
        assert list(kin._unended) == [f"job-{number}" for number in range(45, 50)]

    def test_one_that_is_only_looked_at_keeps_nothing_that_it_is_told(self) -> None:
        kin = lived(*crowd(8, SHORT))
        still, before = kin.still(), kin.cost(A(4.5), 0.0)
        still.ended(A(4.0, "other"), LONG)
        still.ran(A(4.2, "another"), LONG)
        assert still.cost(A(4.5), 0.0) == before == kin.cost(A(4.5), 0.0)

    def test_what_was_worked_out_is_not_believed_after_news(self) -> None:
        kin = lived(*crowd(8, SHORT))
        before = kin.cost(A(4.5), 0.0)
        for number in range(6):
            kin.ended(A(4.4, f"new-{number}"), LONG)
        assert kin.cost(A(4.5), 0.0) > before
