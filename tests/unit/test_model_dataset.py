"""A dataset as it is written: what is refused, and how."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.model.dataset import Dataset
from weft.model.problems import Invalid, parse


def _told(source: Any) -> dict[str, str]:
    with pytest.raises(Invalid) as refusal:
        parse(
            Dataset,
            {"kind": "Dataset", "metadata": {"name": "faces"}, "spec": {"source": source}},
            "dataset faces",
        )
    return {problem.field: problem.message for problem in refusal.value.problems}


def test_rules_broken_inside_of_a_part_that_breaks_a_rule_are_told_with_it() -> None:
    told = _told(
        {
            "url": "file:///data",
            "code": {"command": ["make"], "code": {"git": "https://example.org/x", "path": "x"}},
        }
    )
    assert any(field == "spec.source" for field in told), told
    assert any(field.startswith("spec.source.code.code") for field in told), told


def test_an_image_that_no_job_could_run_in_is_refused_with_the_dataset() -> None:
    assert "spec.source.code.image" in _told({"code": {"command": ["make"], "image": "no such, image"}})


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("https://a:b@c/"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["url", "query", "command", "code", "git", "commit", "path", "package", "job"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["url", "sql", "code", "output", "endpoint", "x"]), _ANYTHING, max_size=5)
)
def test_no_source_is_too_strange_to_be_refused_in_words(source: Any) -> None:
    document = {"kind": "Dataset", "metadata": {"name": "faces"}, "spec": {"source": source}}
    try:
        parse(Dataset, document, "dataset faces")
    except Invalid as refusal:
        assert all(problem.message and "{" not in problem.field for problem in refusal.problems)  # noqa: PT017
