"""The small tools that the model's objects are made with."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from weft.model.changed import changed
from weft.model.lazy import lazy
from weft.model.status import JobStatus, State


def test_a_changed_record_is_what_replace_would_make() -> None:
    status = JobStatus(State.QUEUED, ())
    other = changed(status, state=State.DEPLOYING, reason="why")
    assert other == replace(status, state=State.DEPLOYING, reason="why")
    assert status == JobStatus(State.QUEUED, ()), "the record itself stays as it was"


def test_a_field_that_a_record_does_not_have_cannot_be_changed() -> None:
    with pytest.raises(TypeError, match="JobStatus has no reasn, staet"):
        changed(JobStatus(State.QUEUED, ()), staet=State.FAILED, reasn="")


def test_what_is_lazy_is_worked_out_once_for_each_object() -> None:
    asked: list[int] = []

    @dataclass(frozen=True)
    class Number:
        value: int

        @lazy
        def square(self) -> int:
            """Of the value."""
            asked.append(self.value)
            return self.value**2

    two, three = Number(2), Number(3)
    assert [two.square, two.square, three.square] == [4, 4, 9]
    assert asked == [2, 3]
    assert Number.square.__doc__ == "Of the value."
