"""What a pod's status means: each way of not getting on has a code and a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from weft.backends.kubernetes import reasons
from weft.model.failures import Code


def a_pod(phase: str = "Pending", *, ip: str | None = None, **states: Any) -> dict[str, Any]:
    """Statuses by container, `_` for `-`."""
    containers = [{"name": name, "image": f"{name}:1", "state": state} for name, state in states.items()]
    status = {"phase": phase, "containerStatuses": containers} | ({"podIP": ip} if ip else {})
    return {
        "metadata": {},
        "spec": {"containers": [{"name": "weft", "image": "w"}, {"name": "task", "image": "t"}]},
        "status": status,
    }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


RUNNING: dict[str, Any] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


@pytest.mark.parametrize(
    ("state", "code", "certain", "words"),
    [
        (waiting("ErrImageNeverPull", "Container image x is not present"), Code.IMAGE_PULL, True, "cannot be used"),
        (waiting("InvalidImageName", "couldn't parse image reference"), Code.IMAGE_PULL, True, "couldn't parse"),
        (waiting("ErrImagePull", "rpc error: code = NotFound desc = manifest unknown"), Code.IMAGE_PULL, True, "cannot be pulled"),
        (waiting("ErrImagePull", "dial tcp: i/o timeout"), Code.IMAGE_PULL, False, "i/o timeout"),
        (waiting("ImagePullBackOff", 'Back-off pulling image "x"'), Code.IMAGE_PULL, False, "Back-off"),
        (waiting("CreateContainerConfigError", 'secret "s" not found'), Code.SECRET_MISSING, True, 'secret "s"'),
        (waiting("CreateContainerConfigError", "couldn't find key k in Secret ns/s"), Code.SECRET_MISSING, True, "key k"),
        (waiting("CreateContainerError", "no command specified"), Code.CANNOT_START, True, "no command"),
    ],
)  # fmt: skip
def test_a_container_that_does_not_start_is_explained(
    state: Any, code: Code, certain: bool, words: str
) -> None:
    found = reasons.stuck(a_pod(weft=RUNNING, task=state))
    assert found is not None
    assert (found.code, found.certain) == (code, certain)
    assert words in found.message


def test_the_cluster_finds_no_place_only_for_a_pod_that_has_none() -> None:
    """A scheduler that looked a moment before another one placed the pod writes its sentence after that."""
    pod = a_pod()
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    pod["status"]["conditions"] = [said]
    found = reasons.stuck(pod)
    assert found is not None
    assert (found.code, found.certain) == (Code.UNSCHEDULABLE, False)
    pod["spec"]["nodeName"] = "n1"
    assert reasons.stuck(pod) is None


def test_an_agent_that_crashes_again_and_again_is_named_as_such() -> None:
    pod = a_pod(weft=waiting("CrashLoopBackOff"), task=RUNNING)
    pod["status"]["containerStatuses"][0]["lastState"] = {
        "terminated": {"exitCode": 1, "message": "no module"}
    }
    found = reasons.stuck(pod)
    assert found is not None
    assert found.code is Code.CRASH_LOOP
    assert "Weft's own part" in found.message
    assert "exit code 1" in found.message


def test_a_pod_that_waits_for_its_data_is_not_stuck_but_one_whose_waiting_container_cannot_be_had_is() -> (
    None
):
    others = {"weft": waiting("PodInitializing"), "task": waiting("PodInitializing")}
    pod = a_pod(**others)
    pod["spec"]["initContainers"] = [{"name": "weft-data", "image": "w"}]
    pod["status"]["initContainerStatuses"] = [{"name": "weft-data", "state": RUNNING}]
    assert reasons.stuck(pod) is None
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not reasons.stopped(pod)
    pod["status"]["initContainerStatuses"] = [{"name": "weft-data", "state": waiting("ErrImageNeverPull")}]
    found = reasons.stuck(pod)
    assert found is not None
    assert (found.code, found.message) == (
        Code.IMAGE_PULL,
        "image w cannot be used: ErrImageNeverPull",
    )
    assert reasons.stopped(pod)


def test_what_only_takes_its_time_is_not_stuck() -> None:
    assert reasons.stuck(a_pod(weft=waiting("ContainerCreating"), task=waiting("ContainerCreating"))) is None
    assert reasons.stuck(a_pod()) is None


def test_a_pod_that_the_node_put_out_is_over_with_the_nodes_own_words() -> None:
    pod = a_pod("Failed")
    pod["status"] |= {"reason": "Evicted", "message": "The node was low on resource: memory. "}
    found = reasons.over(pod)
    assert found is not None
    assert not found.refused
    assert found.not_there, "until it says itself that it has some again"
    assert found.reason == "evicted: The node was low on resource: memory."


@pytest.mark.parametrize(
    "reason", ["OutOfcpu", "OutOfmemory", "OutOfnvidia.com/gpu", "NodeAffinity", "UnexpectedAdmissionError"]
)
def test_a_pod_that_the_node_did_not_take_may_go_elsewhere(reason: str) -> None:
    pod = a_pod("Failed")
    pod["status"] |= {"reason": reason, "message": "Node didn't have enough resource"}
    found = reasons.over(pod)
    assert found is not None
    assert found.refused
    assert found.not_there


def test_how_it_ended_is_told_where_there_is_nobody_else_to_tell() -> None:
    done = reasons.over(a_pod("Succeeded", task={"terminated": {"exitCode": 0}}))
    failed = reasons.over(a_pod("Failed", task={"terminated": {"exitCode": 3}}))
    killed = reasons.over(a_pod("Failed", task={"terminated": {"exitCode": 137, "reason": "OOMKilled"}}))
    assert done == reasons.Over(0)
    assert failed == reasons.Over(3)
    assert killed == reasons.Over(137, oom=True)
    assert reasons.over(a_pod("Running", task=RUNNING)) is None


def test_an_agent_can_be_asked_when_it_runs_and_has_an_address() -> None:
    assert not reasons.reachable(a_pod("Running", weft=RUNNING))
    assert not reasons.reachable(a_pod("Pending", ip="10.0.0.1", weft=waiting("ContainerCreating")))
    assert reasons.reachable(a_pod("Running", ip="10.0.0.1", weft=RUNNING))


def test_a_pod_whose_agent_outlives_a_task_that_ended_well_may_be_handing_out_shards() -> None:
    def ended(code: int) -> dict[str, Any]:
        return a_pod("Running", ip="10.0.0.1", weft=RUNNING, task={"terminated": {"exitCode": code}})

    assert reasons.hands_out(ended(0))
    assert not reasons.hands_out(ended(1))
    assert not reasons.hands_out(a_pod("Running", ip="10.0.0.1", weft=RUNNING, task=RUNNING))
    assert not reasons.hands_out(
        a_pod("Failed", weft={"terminated": {}}, task={"terminated": {"exitCode": 0}})
    )


def test_out_of_memory_is_seen_also_after_kubelet_started_the_container_again() -> None:
    pod = a_pod("Running", task=RUNNING)
    assert not reasons.oom_killed(pod)
    pod["status"]["containerStatuses"][0]["lastState"] = {
        "terminated": {"reason": "OOMKilled", "exitCode": 137}
    }
    assert reasons.oom_killed(pod)


def test_volumes_are_told_by_events() -> None:
    told = reasons.cannot_mount({"reason": "FailedMount", "message": 'configmap "x"\n not found'})
    assert told == reasons.Stuck(Code.VOLUME_MOUNT, 'a volume cannot be mounted: configmap "x" not found')
    assert reasons.cannot_mount({"reason": "Unhealthy", "message": "no"}) is None


def test_a_namespace_without_a_claim_on_data_is_told_what_to_apply() -> None:
    said = (
        "Unable to attach or mount volumes: unmounted volumes=[weft-data], unattached volumes=[weft-data weft shm tmp]: "
        'error processing PVC a/weft-data: failed to fetch PVC from API server: persistentvolumeclaims "weft-data" not found'
    )
    told = reasons.cannot_mount({"reason": "FailedMount", "message": said})
    assert told == reasons.Stuck(Code.VOLUME_MOUNT, reasons.NO_CLAIM)
    assert "deploy/data/project.yaml" in reasons.NO_CLAIM


def test_a_mount_that_kubelet_tries_again_is_no_failure_until_it_has_tried_often() -> None:
    event = {
        "reason": "FailedMount",
        "message": "failed to sync secret cache: timed out waiting for the condition",
    }
    once, often = reasons.cannot_mount(event), reasons.cannot_mount({**event, "count": 9})
    assert once is not None
    assert not once.certain
    assert often is not None
    assert often.certain


@pytest.mark.parametrize(
    ("message", "own"),
    [
        ("The node was low on resource: memory.", False),
        ('Usage of EmptyDir volume "tmp" exceeds the limit "1Mi".', True),
        ("Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.", True),
    ],
)
def test_a_pod_that_was_put_out_for_its_own_doing_is_told_apart(message: str, own: bool) -> None:
    pod = a_pod("Failed")
    pod["status"] |= {"reason": "Evicted", "message": message}
    found = reasons.over(pod)
    assert found is not None
    assert found.own is own
    assert found.not_there is not own


def test_a_pod_has_stopped_when_none_of_its_containers_runs() -> None:
    ended = {"terminated": {"exitCode": 0}}
    assert not reasons.stopped(a_pod("Running", weft=RUNNING, task=ended))
    going = a_pod("Running", weft=RUNNING, task=ended)
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not reasons.stopped(going)
    gone = a_pod("Running", weft=ended, task=ended)
    assert not reasons.stopped(gone), "kubelet may start its agent again"
    gone["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert reasons.stopped(gone)
    assert reasons.stopped(a_pod("Succeeded", weft=ended, task=ended))


@pytest.mark.parametrize(
    ("code", "ended", "said"),
    [(0, 99.9, False), (0, 100.0, True), (0, None, True), (1, 99.9, True), (None, 120.0, True)],
)
def test_only_a_task_that_had_ended_well_before_its_pod_was_deleted_has_finished(
    code: int | None, ended: float | None, said: bool
) -> None:
    metadata = {"deletionTimestamp": "1970-01-01T00:02:10Z", "deletionGracePeriodSeconds": 30}
    assert reasons.cut_short({"metadata": metadata}, code, ended) is said
    assert not reasons.cut_short({"metadata": {}}, code, ended)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("Evicted", Code.EVICTED),
        ("NodeLost", Code.NODE_LOST),
        ("Preempting", Code.PREEMPTED),
        ("OutOfcpu", Code.CANNOT_START),
        ("NodeAffinity", Code.CANNOT_START),
    ],
)
def test_who_was_put_out_or_not_taken_has_a_code(reason: str, code: Code) -> None:
    pod = a_pod("Failed")
    pod["status"]["reason"] = reason
    found = reasons.over(pod)
    assert found is not None
    assert found.why is code


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("EvictionByEvictionAPI", Code.EVICTED),
        ("PreemptionByScheduler", Code.PREEMPTED),
        ("DeletionByTaintManager", Code.NODE_LOST),
    ],
)
def test_who_takes_a_pod_away_has_a_code_where_the_cluster_says_so(reason: str, code: Code) -> None:
    pod = a_pod("Running", weft=RUNNING, task=RUNNING)
    assert reasons.disturbed(pod, "deleted") == reasons.Disturbance(Code.POD_DELETED, "deleted")
    said = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "its words"}
    pod["status"]["conditions"] = [said]
    assert reasons.disturbed(pod, "deleted") == reasons.Disturbance(code, "its words")
