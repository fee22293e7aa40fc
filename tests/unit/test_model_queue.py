"""Queues as an operator writes them: what is accepted, what it means, and what holds among them."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.builders import GIB
from weft.control.queues import rule_of
from weft.model.problems import Invalid, parse
from weft.model.queue import Queue, QueueSpec, conflicts
from weft.scheduler.queues import Queues


def a_queue(**spec: Any) -> QueueSpec:
    return parse(Queue, {"metadata": {"name": "q"}, "spec": spec}, "queue q", "Queue").spec


def wrong(name: str, **queues: dict[str, Any]) -> list[str]:
    specs = {name: a_queue(**spec) for name, spec in queues.items()}
    return [str(problem) for problem in conflicts(name, specs)]


def test_the_scheduler_counts_in_thousandths_and_bytes() -> None:
    spec = a_queue(
        parent="lab", weight=2, guarantee={"gpu": 0.5}, limit={"cpu": "500m", "memory": "2Gi"}, closed=True
    )
    rule = rule_of("q", spec)
    assert (rule.name, rule.parent, rule.weight, rule.closed) == ("q", "lab", 2.0, True)
    assert (rule.guarantee, rule.limit, rule.user_limit) == (
        {"gpu": 500},
        {"cpu": 500, "memory": 2 * GIB},
        {},
    )


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"guarante": {}}, "spec.guarante: unknown field; did you mean guarantee?"),
        ({"limit": {"gpus": 1}}, "spec.limit.gpus: unknown field; did you mean gpu?"),
        (
            {"limit": {"gpu": "many"}},
            "spec.limit.gpu: write GPUs as a whole number such as 2, or a part of one",
        ),
        ({"limit": {"memory": "4GB"}}, "spec.limit.memory: unknown unit 'GB' (did you mean 4G?)"),
        ({"weight": 0}, "spec.weight: input should be greater than 0 (got 0)"),
        ({"parent": "The Lab"}, "spec.parent: not a name; use lower-case letters"),
        ({"closed": "maybe"}, "spec.closed: must be true or false"),
    ],
)
def test_each_refusal_names_the_field_and_what_would_be_right(spec: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Invalid) as refused:
        a_queue(**spec)
    assert any(str(problem).startswith(sentence) for problem in refused.value.problems), refused.value
    assert refused.value.kind == "Queue"


class TestAmongOthers:
    def test_a_parent_must_exist(self) -> None:
        assert wrong("a", a={"parent": "labs"}, lab={}) == [
            'spec.parent: no such queue; did you mean lab? (got "labs")'
        ]

    def test_no_queue_is_below_itself(self) -> None:
        (found,) = wrong("a", a={"parent": "b"}, b={"parent": "c"}, c={"parent": "a"})
        assert found.startswith("spec.parent: makes the queue a part of itself (a → b → c → a)")
        assert wrong("a", a={"parent": "a"})

    def test_a_guarantee_is_within_the_limit(self) -> None:
        assert wrong(
            "a", a={"guarantee": {"gpu": 4, "memory": "2Gi"}, "limit": {"gpu": 2, "memory": "1Gi"}}
        ) == [
            "spec.guarantee.memory: more than the limit, which is 1Gi (got 2Gi)",
            "spec.guarantee.gpu: more than the limit, which is 2 (got 4)",
        ]

    def test_children_share_what_their_parent_is_guaranteed(self) -> None:
        lab = {"guarantee": {"gpu": 4}}
        child = {"parent": "lab", "guarantee": {"gpu": 2}}
        assert wrong("a", lab=lab, a=child, b=child) == []
        (found,) = wrong("a", lab=lab, a={"parent": "lab", "guarantee": {"gpu": 3}}, b=child)
        assert found == (
            "spec.guarantee.gpu: the queues in lab are guaranteed 5 together, the parent has a guarantee of 4; "
            "lower this guarantee or raise that first"
        )

    def test_a_parent_keeps_what_its_children_are_guaranteed(self) -> None:
        (found,) = wrong("lab", lab={"limit": {"cpu": 1}}, a={"parent": "lab", "guarantee": {"cpu": 2}})
        assert found.startswith(
            "spec.limit.cpu: the queues in lab are guaranteed 2 together, this queue has a limit"
        )

    def test_what_a_parent_does_not_say_binds_nobody(self) -> None:
        assert wrong("a", lab={"guarantee": {"cpu": 1}}, a={"parent": "lab", "guarantee": {"gpu": 9}}) == []


AMOUNTS = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.integers(0, 10**6).map(lambda milli: milli / 1000),
        "memory": st.integers(0, 2**50),
        "gpu": st.integers(0, 10**6).map(lambda milli: milli / 1000),
    },
)
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "parent": st.sampled_from(["a", "b", "c", "absent"]),
        "weight": st.floats(0.001, 1000),
        "guarantee": AMOUNTS,
        "limit": AMOUNTS,
        "userLimit": AMOUNTS,
        "closed": st.booleans(),
    },
)
SCHEMA = jsonschema_rs.validator_for(Queue.model_json_schema(by_alias=True))


@given(SPECS)
def test_what_is_written_is_what_was_read_and_valid_by_the_schema(spec: dict[str, Any]) -> None:
    queue = parse(Queue, {"metadata": {"name": "q"}, "spec": spec}, "queue q")
    document = json.loads(queue.model_dump_json(by_alias=True, exclude_none=True))
    assert parse(Queue, document, "queue q") == queue
    assert [str(error) for error in SCHEMA.iter_errors(document)] == []


@given(st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), SPECS, min_size=1))
def test_queues_without_conflicts_are_queues_for_the_scheduler(queues: dict[str, dict[str, Any]]) -> None:
    specs = {name: a_queue(**spec) for name, spec in queues.items()}
    if not [problem for name in specs for problem in conflicts(name, specs)]:
        made = Queues(rule_of(name, spec) for name, spec in specs.items())
        assert {*made.accounts} == {*specs, "default"}
