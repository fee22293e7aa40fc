"""A person's own part of a pod: what may be written, and how it is merged."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.builders import a_complete_job, a_job
from weft.backends.kubernetes.patch import merged
from weft.model.problems import Invalid

scalars = st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["a", "b"])
keys = st.sampled_from(["name", "spec", "env", "containers", "tolerations", "ports", "value", "other"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
documents = st.dictionaries(keys, values, max_size=4)


def mounts(path: str) -> dict[str, Any]:
    return {
        "spec": {"containers": [{"name": "task", "volumeMounts": [{"name": "shared", "mountPath": path}]}]}
    }


class TestMerging:
    @given(documents)
    def test_nothing_changes_nothing(self, document: dict[str, Any]) -> None:
        assert merged(document, {}) == document

    @given(documents, documents)
    @example({}, {"env": [{"name": None}]})
    @example({}, {"env": [{"name": {"value": None}}]})
    def test_twice_is_as_once_and_neither_side_is_changed(
        self, document: dict[str, Any], patch: dict[str, Any]
    ) -> None:
        before = copy.deepcopy((document, patch))
        once = merged(document, patch)
        assert merged(once, patch) == once
        assert (document, patch) == before

    def test_fields_are_merged_and_null_removes_one(self) -> None:
        document = {"a": {"b": 1, "c": 2}, "d": 3}
        assert merged(document, {"a": {"b": None, "e": 4}, "d": None}) == {"a": {"c": 2, "e": 4}}

    def test_named_things_are_merged_by_their_names(self) -> None:
        document = {
            "containers": [
                {"name": "weft", "image": "w"},
                {"name": "task", "env": [{"name": "A", "value": "1"}]},
            ]
        }
        patch = {
            "containers": [
                {"name": "task", "env": [{"name": "A", "valueFrom": {"x": 1}}, {"name": "B", "value": "2"}]}
            ]
        }
        assert merged(document, patch) == {
            "containers": [
                {"name": "weft", "image": "w"},
                {"name": "task", "env": [{"name": "A", "valueFrom": {"x": 1}}, {"name": "B", "value": "2"}]},
            ]
        }

    def test_other_lists_are_replaced(self) -> None:
        assert merged({"drop": ["ALL"]}, {"drop": ["NET_RAW"]}) == {"drop": ["NET_RAW"]}

    def test_tolerations_are_added(self) -> None:
        gpu, spot = {"key": "gpu"}, {"key": "spot"}
        assert merged({"tolerations": [gpu]}, {"tolerations": [spot, gpu]}) == {"tolerations": [gpu, spot]}


class TestRefusals:
    @pytest.mark.parametrize(
        ("patch", "words"),
        [
            ({"kind": "Job"}, "kind: a pod has `metadata` and `spec` to change"),
            ({"spec": None}, "spec: must be a mapping"),
            ({"metadata": {"name": "x"}}, "metadata.name is Weft's: Weft knows the pod by it"),
            ({"metadata": {"namespace": "x"}}, "metadata.namespace is Weft's"),
            ({"metadata": {"ownerReferences": None}}, "metadata.ownerReferences is Weft's"),
            ({"metadata": {"labels": {"weft.dev/uid": "x"}}}, "metadata.labels.weft.dev/uid is Weft's"),
            ({"metadata": {"labels": None}}, "metadata.labels: must be a mapping"),
            ({"spec": {"schedulerName": "x"}}, "write `scheduling: default`"),
            ({"spec": {"containers": None}}, "spec.containers: must be a list of mappings"),
            ({"spec": {"containers": [{"image": "x"}]}}, "each with a `name`"),
            ({"spec": {"containers": [{"name": "task", "command": ["x"]}]}}, "write `command`"),
            (mounts("/weft/checkpoints"), "/weft/checkpoints is Weft's: it fetches from there"),
            (mounts("//weft/"), "mount it elsewhere"),
        ],
    )
    def test_what_weft_needs_is_not_for_a_patch(self, patch: dict[str, Any], words: str) -> None:
        with pytest.raises(Invalid) as refusal:
            a_job(roles={"worker": {"pod": patch}})
        [problem] = refusal.value.problems
        assert problem.field == "spec.roles.worker.pod"
        assert words in problem.message

    def test_all_that_is_wrong_is_said_at_once(self) -> None:
        with pytest.raises(Invalid, match=r"metadata\.name is .*; spec\.hostname is "):
            a_job(roles={"worker": {"pod": {"metadata": {"name": "x"}, "spec": {"hostname": "y"}}}})

    def test_the_rest_is_a_persons_own(self) -> None:
        patch = {
            "metadata": {"labels": {"team": "a"}},
            "spec": {"dnsPolicy": None, **mounts("/weft-own")["spec"]},
        }
        job = a_complete_job(roles={"worker": {"pod": patch}})
        assert job.spec.roles["worker"].pod == patch

    def test_a_null_outlives_being_stored(self) -> None:
        job = a_complete_job(roles={"worker": {"pod": {"spec": {"dnsPolicy": None}}}})
        kept = type(job).model_validate_json(job.model_dump_json(by_alias=True, exclude_none=True))
        assert kept.spec.roles["worker"].pod == {"spec": {"dnsPolicy": None}}
