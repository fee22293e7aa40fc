"""What others do to a job's pods: each time a sentence at once, and the job ends as it would have."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness import Server, sh, until
from testbed.api import Api

from .conftest import WEFT_IMAGE, Town, arguments
from .latewatch import LateWatches
from .test_jobs import BUSYBOX, REAL, SIMULATED, free_gpus, simulated, small
from .watching import Watched
from .webhooks import patched, refused, webhook

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("testbed_only")]
SOON = 2.0
UP = "echo up $WEFT_LAUNCH; sleep 1000"


class Seen:
    """When the API server first told of a pod that it is as asked for, by the clock of this machine."""

    def __init__(self) -> None:
        self.at: float | None = None


@contextmanager
def seeing(
    api: Api, namespace: str, true: Callable[[dict[str, Any]], Any], seconds: float = 60, kind: str = "pods"
) -> Iterator[Seen]:
    seen, path = Seen(), f"/api/v1/namespaces/{namespace}/{kind}"
    version = api.get(path)["metadata"]["resourceVersion"]

    def watch() -> None:
        for event in api.watch(path, version, 60):
            if event["type"] != "BOOKMARK" and true(event["object"]):
                seen.at = time.time()
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield seen
    thread.join(seconds)
    assert seen.at is not None, "it never was"


def told(server: Server, job: str, words: str, code: str) -> float:
    """When the job's history first had it, and with which code."""

    def found() -> list[dict[str, Any]]:
        return [event for event in server.history(job) if words in event.get("cause", "")]

    first = until(found, f"{words!r} to be told of {job}", 30)[0]
    assert first.get("code") == code, first
    at: float = first["time"]
    return at


def reason_of(pod: dict[str, Any]) -> set[str]:
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return {each["state"].get("waiting", {}).get("reason", "") for each in statuses}


def going(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def test_an_agent_that_ends_again_and_again_is_told_with_its_image(
    cluster: Callable[..., Server], kubectl: Any, api: Api
) -> None:
    server = cluster()
    broken = {
        "spec": {"containers": [{"name": "weft", "env": [{"name": "PYTHONHOME", "value": "/nowhere"}]}]}
    }
    with seeing(api, kubectl.namespace, lambda pod: "CrashLoopBackOff" in reason_of(pod)) as seen:
        server.submit(sh("true", name="loop", image=BUSYBOX, roles=small(pod=broken), placement=REAL))
        ended = server.wait_for("loop")
    assert ended["status"]["failure"]["code"] == "CRASH_LOOP", server.story("loop")
    assert WEFT_IMAGE in ended["status"]["failure"]["message"]
    assert seen.at is not None
    assert told(server, "loop", "ends again and again", "CRASH_LOOP") - seen.at < SOON


ABSENT = {
    "volumes": [{"name": "data", "configMap": {"name": "no-such-map"}}],
    "containers": [{"name": "task", "volumeMounts": [{"name": "data", "mountPath": "/mnt"}]}],
}


@pytest.mark.parametrize(
    ("code", "job", "event", "words"),
    [
        ("IMAGE_PULL", {"image": "localhost/no-such-image:1"}, '"Err', "localhost/no-such-image:1"),
        ("VOLUME_MOUNT", {"roles": small(pod={"spec": ABSENT})}, '"FailedMount"', "no-such-map"),
        (
            "SECRET_MISSING",
            {"secrets": [{"name": "no-such-secret", "key": "x", "env": "X"}]},
            '"CreateContainerConfigError"',
            "no-such-secret",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_code_at_once(
    town: Town, api: Api, code: str, job: dict[str, Any], event: str, words: str
) -> None:
    server, name = town.server, code.lower().replace("_", "-")
    about = {"image": BUSYBOX, "roles": small(), "placement": REAL, **job}
    where = "events" if "Mount" in event else "pods"
    with seeing(api, town.kubectl.namespace, lambda it: event in json.dumps(it), kind=where) as seen:
        server.submit(sh("true", name=name, **about))
    ended = server.wait_for(name)
    assert ended["status"]["failure"]["code"] == code, server.story(name)
    assert words in ended["status"]["failure"]["message"]
    assert told(server, name, words, code) - (seen.at or 0) < SOON
    until(lambda: town.nothing_left(name), "everything of it to be gone from the cluster")


def test_a_pull_that_fails_is_told_at_once_and_given_up_when_it_has_failed_twice(
    town: Town, api: Api
) -> None:
    """Nobody answers where the image should come from: that may pass."""
    server, image = town.server, "localhost/no-such-image:2"
    pulls = {"spec": {"containers": [{"name": "task", "imagePullPolicy": "IfNotPresent"}]}}
    job = sh("true", name="pulls", image=image, roles=small(pod=pulls), placement=REAL)
    with seeing(api, town.kubectl.namespace, lambda pod: "ErrImagePull" in reason_of(pod)) as seen:
        server.submit(job)
        words = f"image {image} cannot be pulled"
        until(lambda: words in (server.status("pulls").get("reason") or ""), "it to be told")
        told_at = time.time()
        assert server.status("pulls")["reasonCode"] == "IMAGE_PULL"
    assert told_at - (seen.at or 0) < SOON
    ended = server.wait_for("pulls", timeout=120)
    assert ended["status"]["failure"]["code"] == "IMAGE_PULL", server.story("pulls")
    assert words in ended["status"]["failure"]["message"]
    until(lambda: town.nothing_left("pulls"), "everything of it to be gone from the cluster")


def test_a_task_that_reaches_its_limit_of_memory_is_told_before_its_pod_has_ended(town: Town) -> None:
    server = town.server
    script = "tail /dev/zero; echo killed; exit 1"
    ended = server.run(sh(script, name="grows", image=BUSYBOX, roles=small(), placement=REAL))
    assert ended["status"]["failure"]["code"] == "OUT_OF_MEMORY", server.story("grows")
    assert "its limit of 64 MiB" in ended["status"]["failure"]["message"]
    [killed] = [line["time"] for line in server.logs("grows") if line["text"] == "killed"]
    assert told(server, "grows", "its limit of 64 MiB", "OUT_OF_MEMORY") - killed < SOON


def test_a_pod_that_is_evicted_by_the_api_is_told_at_once_and_runs_again(town: Town, api: Api) -> None:
    """As `kubectl drain` does. The task does not mind the signal, and has its whole grace."""
    server, kubectl = town.server, town.kubectl
    server.submit(
        sh(f"trap '' TERM; {UP}", name="drained", image=BUSYBOX, roles=small(), placement=REAL, grace="6s")
    )
    server.printed_line("drained", "up 1")
    name = kubectl("get", "pods", "-l", "weft.dev/job=drained", "-o", "jsonpath={.items[0].metadata.name}")
    with seeing(api, kubectl.namespace, lambda pod: pod["metadata"]["name"] == name and going(pod)) as seen:
        evict(api, kubectl.namespace, name)
    assert seen.at is not None
    assert told(server, "drained", "deleted", "POD_DELETED") - seen.at < SOON
    server.printed_line("drained", "up 2")
    assert server.status("drained")["restarts"] == 0
    server.delete("drained")
    until(lambda: town.nothing_left("drained"), "everything of it to be gone from the cluster")


@pytest.fixture
def late(kubeconfig: str, kubectl: Any, tmp_path: Path) -> Iterator[tuple[Server, LateWatches]]:
    """A server that hears of its pods when we let it."""
    between = LateWatches(kubeconfig)
    told = tmp_path / "kubeconfig"
    told.write_text(between.kubeconfig)
    server = Server(tmp_path / "home", arguments(str(told), kubectl.namespace)).start()
    yield server, between
    server.stop()
    between.close()


@pytest.mark.parametrize("how", [("--force", "--grace-period=0"), ("--grace-period=5",)])
@pytest.mark.parametrize("code", [0, 1])
def test_a_task_that_ends_with_its_pod_is_lost_also_where_that_is_heard_before_the_pod_s_end(
    late: tuple[Server, LateWatches], kubectl: Any, code: int, how: tuple[str, ...]
) -> None:
    """With exit code 0, too: it may have saved, and has not finished."""
    server, watches = late
    script = f"trap 'exit {code}' TERM; echo up $WEFT_LAUNCH; while true; do sleep 0.1; done"
    server.submit(sh(script, name="late", image=BUSYBOX, roles=small(), placement=REAL))
    server.printed_line("late", "up 1")
    with watches.held():
        kubectl("delete", "pod", "-l", "weft.dev/job=late", *how, "--wait=false")
        told(server, "late", "deleted", "POD_DELETED")
    server.printed_line("late", "up 2")
    assert server.status("late")["restarts"] == 0
    server.delete("late")


def evict(api: Api, namespace: str, name: str) -> None:
    document = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": name}}
    api.post(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", document)


def test_a_task_that_fills_its_disk_is_put_out_by_kubelet_and_says_so_at_once(town: Town, api: Api) -> None:
    server = town.server
    roles = small(pod={"spec": {"volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Mi"}}]}})
    script = "dd if=/dev/zero of=/tmp/x bs=1M count=9; sleep 1000"
    with seeing(api, town.kubectl.namespace, evicted_of("fills"), 60) as seen:
        server.submit(sh(script, name="fills", image=BUSYBOX, roles=roles, placement=REAL))
    words = '"tmp" exceeds the limit'
    assert told(server, "fills", words, "EVICTED") - (seen.at or 0) < SOON
    ended = server.wait_for("fills")
    assert ended["status"]["failure"]["code"] == "EVICTED", server.story("fills")
    assert words in ended["status"]["failure"]["message"]


def test_a_task_with_more_in_dev_shm_than_half_of_its_memory_is_put_out_and_says_so(
    town: Town, api: Api
) -> None:
    """Before 1.22, where /dev/shm is as large as kubelet makes any; later ones make it no larger (test_kill)."""
    server = town.server
    script = "dd if=/dev/zero of=/dev/shm/x bs=1M count=40; sleep 1000"
    with seeing(api, town.kubectl.namespace, evicted_of("heaps"), 120) as seen:
        server.submit(sh(script, name="heaps", image=BUSYBOX, roles=small(), placement=REAL))
    words = '"shm" exceeds the limit "32Mi"'
    assert told(server, "heaps", words, "EVICTED") - (seen.at or 0) < SOON
    ended = server.wait_for("heaps")
    assert ended["status"]["failure"]["code"] == "EVICTED", server.story("heaps")
    assert words in ended["status"]["failure"]["message"]


def evicted_of(job: str) -> Callable[[dict[str, Any]], bool]:
    def found(pod: dict[str, Any]) -> bool:
        own = pod["metadata"]["labels"].get("weft.dev/job") == job
        return own and pod["status"].get("reason") == "Evicted"

    return found


def test_who_takes_a_pod_away_is_told_where_the_cluster_says_so(town: Town, api: Api) -> None:
    """Newer clusters write it into the pod before they delete it; a task that then ends well has not finished."""
    server, kubectl = town.server, town.kubectl
    script = "trap 'exit 0' TERM; echo up $WEFT_LAUNCH; while true; do sleep 0.1; done"
    server.submit(sh(script, name="taken", image=BUSYBOX, roles=small(), placement=REAL, grace="2s"))
    server.printed_line("taken", "up 1")
    name = kubectl("get", "pods", "-l", "weft.dev/job=taken", "-o", "jsonpath={.items[0].metadata.name}")
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods/{name}"
    why = "default-scheduler: preempting to accommodate a higher priority pod"
    conditions = api.get(path)["status"]["conditions"]
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": why}
    api.patch(f"{path}/status", {"status": {"conditions": [*conditions, target]}})
    with seeing(api, kubectl.namespace, lambda pod: pod["metadata"]["name"] == name and going(pod)) as seen:
        api.delete(path)
    assert seen.at is not None
    assert told(server, "taken", why, "PREEMPTED") - seen.at < SOON
    server.printed_line("taken", "up 2")
    server.delete("taken")


def test_a_pod_of_higher_priority_that_the_cluster_prefers(
    town: Town, api: Api, kube_scheduler: None, pod: Callable[..., dict[str, Any]]
) -> None:
    """Ours gives way, waits while the other one is there, and runs again after it."""
    server, kubectl = town.server, town.kubectl
    here = {"selector": {"kubernetes.io/hostname": "sim-0014"}}
    server.submit(sh("true", name="lower", roles=simulated(gpu=8), placement=here))
    server.wait_for("lower", "PROCESSING")
    high = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": kubectl.namespace},
    }
    kubectl.create({**high, "value": 1000})
    theirs = pod("higher", "", BUSYBOX, "true", runs_for="forever")
    del theirs["spec"]["nodeName"]
    theirs["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "8"}}
    theirs["spec"] |= {"priorityClassName": kubectl.namespace, "nodeSelector": here["selector"]}
    try:
        with seeing(
            api, kubectl.namespace, lambda pod: pod["metadata"]["name"] != "higher" and going(pod)
        ) as seen:
            kubectl.create(theirs)
        assert seen.at is not None
        assert told(server, "lower", "deleted", "POD_DELETED") - seen.at < SOON
        kubectl.await_phase("higher", "Running")
        until(lambda: free_gpus(server, "sim-0014") == 0, "the other one to be in the books")
        assert server.status("lower")["state"] == "RESTARTING", server.story("lower")
        assert server.status("lower")["restarts"] == 0
        kubectl("delete", "pod", "higher", "--wait=false")
        server.wait_for("lower", "PROCESSING")
    finally:
        kubectl("delete", "priorityclass", kubectl.namespace)
        server.delete("lower")
    until(lambda: town.nothing_left("lower"), "everything of it to be gone from the cluster")


def launches(server: Server, job: str) -> int:
    return server.states(job).count("DEPLOYING")


def test_a_pod_that_somebody_else_bound_first_sends_the_whole_gang_back(
    cluster: Callable[..., Server], kubectl: Any
) -> None:
    server = cluster()

    def hijack(asked: dict[str, Any]) -> dict[str, Any] | None:
        labels = asked["object"]["metadata"].get("labels", {})
        if labels.get("weft.dev/task") != "worker-1" or labels.get("weft.dev/launch") != "1":
            return None
        return patched({"op": "add", "path": "/spec/nodeName", "value": "sim-0015"})

    placement = {**SIMULATED, "strategy": "spread"}
    placement["selector"] = {**SIMULATED["selector"], "testbed.weft.dev/rack": "rack-00"}
    with webhook(kubectl, "pods", "Mutating", hijack):
        server.submit(sh("true", name="pair", roles=simulated(2, "1"), placement=placement))
        ended = server.wait_for("pair")
    assert ended["status"]["state"] == "COMPLETED", server.story("pair")
    assert ended["status"]["restarts"] == 0
    assert launches(server, "pair") == 2, server.story("pair")
    assert any("already assigned to node" in event.get("cause", "") for event in server.history("pair"))
    until(lambda: kubectl.get("pods,configmaps", "-l", "weft.dev/job=pair")["items"] == [], "nothing to stay")


def test_a_bind_that_is_refused_takes_the_whole_gang_back_and_it_is_tried_elsewhere(
    cluster: Callable[..., Server], kubectl: Any, api: Api
) -> None:
    """Again and again, while other nodes would do: three of them refuse it here."""
    server = cluster()
    pods = Watched(api, f"/api/v1/namespaces/{kubectl.namespace}/pods")
    forbidden: list[str] = []

    def deny(asked: dict[str, Any]) -> dict[str, Any] | None:
        node = asked["object"]["target"]["name"]
        if len(forbidden) < 3 and node not in forbidden:
            forbidden.append(node)
        return refused("this node is being looked at") if node in forbidden else None

    with webhook(kubectl, "pods/binding", "Validating", deny):
        server.submit(sh("true", name="pair", roles=simulated(2, "1", gpu=8), placement=SIMULATED))
        ended = server.wait_for("pair")
    assert ended["status"]["state"] == "COMPLETED", server.story("pair")
    assert ended["status"]["restarts"] == 0
    assert not {*forbidden} & {task["binding"]["node"] for task in ended["status"]["tasks"]}
    first_last = {task["launch"] for task in ended["status"]["tasks"]}
    assert first_last in ({3}, {4}), "taken back whole, and bound anew"
    first = [pod for pod in pods.seen() if pod["metadata"]["labels"]["weft.dev/launch"] == "1"]
    assert {pod["metadata"]["labels"]["weft.dev/task"] for pod in first} == {"worker-0", "worker-1"}
    assert any("this node is being looked at" in event.get("cause", "") for event in server.history("pair"))
    until(lambda: kubectl.get("pods,configmaps", "-l", "weft.dev/job=pair")["items"] == [], "nothing to stay")
