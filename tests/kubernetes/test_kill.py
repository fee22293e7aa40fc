"""Kill anything, at any moment: jobs end as they would have, and nothing of them stays behind."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from harness import Server, sh, until
from testbed import places, processes
from testbed.api import Api

from .test_faults import SOON, evicted_of, seeing, told
from .test_jobs import BUSYBOX, REAL, SIMULATED, processes_of, simulated, small

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("testbed_only")]
GO = b"/tmp/go"
WAITS = "until [ -e /tmp/go ]; do sleep 0.1; done"
COUNTS = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo $i; sleep 0.03; done; echo ok > $RESULT_DIR/ok"


@pytest.fixture
def daemons() -> Iterator[processes.Record]:
    """The testbed's processes; whoever ended meanwhile is started again."""
    record = processes.read(places.state())
    assert record is not None
    yield record
    api = Api.of(record.folder / "kubeconfig")
    for process in record.processes:
        if not processes.alive(process):
            processes.start_again(record, process.name)
    until(api.healthy, "the testbed to be well again")
    api.close()


def nothing_left(kubectl: Any) -> bool:
    kinds = "pods,configmaps,secrets,services,networkpolicies"
    return kubectl.get(kinds, "-l", "app.kubernetes.io/managed-by=weft")["items"] == []


HELD = {
    "name": "first",
    "image": BUSYBOX,
    "imagePullPolicy": "Never",
    "command": ["sh", "-c", "until [ -e /tmp/begin ] || [ $LAUNCH != 1 ]; do sleep 0.1; done"],
    "env": [
        {"name": "LAUNCH", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['weft.dev/launch']"}}}
    ],
    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
}
"""Keeps a job DEPLOYING, in its first launch, until it is let go."""
LARGE = 16
LEAVES = f"""
echo up $WEFT_LAUNCH
until [ -e /tmp/go ] || [ $WEFT_LAUNCH != 1 ]; do sleep 0.1; done
dd if=/dev/zero of=$RESULT_DIR/large bs=1M count={LARGE} 2>/dev/null
echo over $WEFT_LAUNCH
"""


@pytest.mark.parametrize("victim", ["the pod", "the control plane"])
@pytest.mark.parametrize("doing", ["DEPLOYING", "PROCESSING", "STORING"])
def test_in_the_middle_of_deploying_running_and_finishing(
    cluster: Callable[..., Server], kubectl: Any, doing: str, victim: str
) -> None:
    server = cluster()
    pod = {"spec": {"initContainers": [HELD]}} if doing == "DEPLOYING" else {}
    server.submit(sh(LEAVES, name="job", image=BUSYBOX, roles=small(pod=pod), placement=REAL))
    if doing == "DEPLOYING":
        held = "jsonpath={.items[0].status.initContainerStatuses[0].state.running}"
        until(lambda: kubectl("get", "pods", "-o", held, check=False), "its pod to be held", every=0.1)
        assert server.status("job")["state"] == "DEPLOYING"
    else:
        server.printed_line("job", "up 1")
    if doing == "STORING":  # what it leaves is on its way
        let(kubectl, "task", "go")
        server.printed_line("job", "over")
    if victim == "the pod":
        kubectl("delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false")
    else:
        server.restart()
        if doing == "DEPLOYING":
            let(kubectl, "first", "begin")
            server.printed_line("job", "up 1")
        if doing != "STORING":
            let(kubectl, "task", "go")
    ended = server.wait_for("job")
    assert (ended["status"]["state"], ended["status"]["restarts"]) == ("COMPLETED", 0), server.story("job")
    assert ended["status"]["results"] == {"files": 1, "bytes": LARGE << 20}
    if victim == "the control plane":
        assert server.text("job") == ["up 1", "over 1"], "it ran once, and was told of once"
    until(lambda: nothing_left(kubectl), "everything to be gone from the cluster")


def let(kubectl: Any, container: str, what: str) -> None:
    name = kubectl("get", "pods", "-o", "jsonpath={.items[0].metadata.name}")
    kubectl("exec", name, "-c", container, "--", "touch", f"/tmp/{what}")


@pytest.mark.parametrize("name", ["etcd", "kubelet", "kube-controller-manager"])
def test_a_daemon_that_is_killed_harms_no_job(
    cluster: Callable[..., Server], kubectl: Any, daemons: processes.Record, name: str
) -> None:
    """In the middle of a job's run, of another's end, and of a deployment; one more comes while it is away."""
    server = cluster()
    for job, script in (("runs", COUNTS), ("ends", f"echo up; {WAITS}; echo ok > $RESULT_DIR/ok")):
        server.submit(sh(script, name=job, image=BUSYBOX, roles=small(), placement=REAL))
    server.submit(sh("true", name="far", roles=simulated(2, "8"), placement=SIMULATED))
    server.printed_line("ends", "up")
    server.printed_line("runs", "50")
    server.wait_for("far", "PROCESSING")
    waiting = processes_of(kubectl, "ends", GO)
    server.submit(sh("echo begun", name="deploys", image=BUSYBOX, roles=small(2), placement=REAL))
    processes.kill(daemons, name)
    Path(f"/proc/{waiting[0]}/root{GO.decode()}").touch()
    until(lambda: not any(map(processes.birth, waiting)), "the task to end while nobody looks after it")
    server.submit(sh("echo begun", name="comes", image=BUSYBOX, roles=small(), placement=REAL))
    processes.start_again(daemons, name)
    for job in ("runs", "ends", "far", "deploys", "comes"):
        assert server.wait_for(job, timeout=180)["status"]["state"] == "COMPLETED", server.story(job)
        assert server.status(job)["restarts"] == 0
    assert server.text("runs", limit=100_000) == [str(n) for n in range(1, 301)]
    assert (server.text("deploys"), server.text("comes")) == (["begun"] * 2, ["begun"])
    for job in ("runs", "ends"):
        assert (server.folder(job) / "results" / "ok").exists()
    until(lambda: nothing_left(kubectl), "everything to be gone from the cluster", 120)


def test_what_kubelet_puts_out_because_its_node_runs_out_of_memory_runs_again_when_it_has_some(
    cluster: Callable[..., Server], kubectl: Any, daemons: processes.Record, api: Api
) -> None:
    """No fault of the job's own: it is told at once, costs it no restart, and nothing goes there meanwhile."""
    server = cluster()
    server.submit(
        sh("echo up $WEFT_LAUNCH; sleep 1000", name="put-out", image=BUSYBOX, roles=small(), placement=REAL)
    )
    server.printed_line("put-out", "up 1")
    greedy = {
        "evictionSoft": {"memory.available": "100000Gi"},
        "evictionSoftGracePeriod": {"memory.available": "1s"},
    }
    with ExitStack() as meanwhile:
        with seeing(api, kubectl.namespace, evicted_of("put-out")) as seen:
            meanwhile.enter_context(configured(daemons, **greedy))
        assert told(server, "put-out", "low on resource: memory", "EVICTED") - (seen.at or 0) < SOON
        assert server.status("put-out")["state"] == "RESTARTING", "it waits: no other node may have it"
    server.printed_line("put-out", "up 2")
    assert server.status("put-out")["restarts"] == 0
    server.delete("put-out")


@contextmanager
def configured(daemons: processes.Record, **settings: Any) -> Iterator[None]:
    """A kubelet with other settings, for a while."""
    file = daemons.folder / "node" / "kubelet.json"
    before = file.read_text()

    def with_settings(text: str) -> None:
        processes.kill(daemons, "kubelet")
        file.write_text(text)
        # it would not go on with the notes of another policy
        (daemons.folder / "node" / "kubelet" / "cpu_manager_state").unlink(missing_ok=True)
        processes.start_again(daemons, "kubelet")

    with_settings(json.dumps({**json.loads(before), **settings}))
    try:
        yield
    finally:
        with_settings(before)


def test_dev_shm_is_half_of_a_tasks_memory_where_kubelet_sizes_it(
    cluster: Callable[..., Server], daemons: processes.Record
) -> None:
    """As every kubelet does from 1.22 on."""
    server = cluster()
    script = "df -k /dev/shm | tail -n 1 | tr -s ' ' | cut -d ' ' -f 2; dd if=/dev/zero of=/dev/shm/x bs=1M count=40"
    with configured(daemons, featureGates={"SizeMemoryBackedVolumes": True}):
        ended = server.run(
            sh(script, name="sized", image=BUSYBOX, roles=small(), placement=REAL), timeout=120
        )
    assert ended["status"]["failure"]["code"] == "EXIT_CODE", server.story("sized")
    assert server.text("sized")[0] == str(32 << 10)
    assert "No space left on device" in " ".join(server.text("sized"))


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="the static CPU manager keeps one CPU for all others")
def test_a_task_with_whole_cpus_is_pinned_to_them_by_the_static_cpu_manager(
    cluster: Callable[..., Server], daemons: processes.Record
) -> None:
    """Also one that asks for no memory: it has some all the same, or its pod would not be Guaranteed."""
    server = cluster("--memory-per-cpu", "64Mi")
    script = "grep Cpus_allowed_list /proc/self/status | cut -f 2"
    roles = {"worker": {"resources": {"cpu": 1}}}
    with configured(daemons, cpuManagerPolicy="static", kubeReserved={"cpu": "500m"}):
        ended = server.run(sh(script, name="pinned", image=BUSYBOX, roles=roles, placement=REAL), timeout=120)
    assert ended["status"]["state"] == "COMPLETED", server.story("pinned")
    assert server.text("pinned")[0].isdigit(), "one CPU, for itself"


def test_an_api_server_that_is_away_for_a_minute_harms_no_job(
    cluster: Callable[..., Server], kubectl: Any, daemons: processes.Record, api: Api
) -> None:
    """One job that runs all the while, one that ends meanwhile, one that is being deployed, one that comes."""
    server = cluster()
    counts = "i=0; while [ $i -lt {} ]; do i=$((i+1)); echo $i; sleep 0.1; done; echo ok > $RESULT_DIR/ok"
    for name, count in (("runs", 650), ("ends", 100)):
        server.submit(sh(counts.format(count), name=name, image=BUSYBOX, roles=small(), placement=REAL))
        server.printed_line(name, "1")
    server.submit(sh("echo begun", name="deploys", image=BUSYBOX, roles=small(2), placement=REAL))
    processes.kill(daemons, "kube-apiserver")
    away = time.monotonic()
    # where it holds a lease it ends by itself, and does not take everybody's silence for the death of all nodes
    processes.kill(daemons, "kube-controller-manager")
    server.submit(sh("echo begun", name="comes", image=BUSYBOX, roles=small(), placement=REAL))
    assert server.status("runs")["state"] == "PROCESSING"
    time.sleep(max(0.0, 60 - (time.monotonic() - away)))
    processes.start_again(daemons, "kube-apiserver")
    until(api.healthy, "the API server")
    processes.start_again(daemons, "kube-controller-manager")
    for name in ("runs", "ends", "deploys", "comes"):
        assert server.wait_for(name, timeout=120)["status"]["state"] == "COMPLETED", server.story(name)
        assert server.status(name)["restarts"] == 0, server.story(name)
    for name, count in (("runs", 650), ("ends", 100)):
        assert server.text(name, limit=100_000) == [str(n) for n in range(1, count + 1)]
        assert (server.folder(name) / "results" / "ok").exists()
    assert (server.text("deploys"), server.text("comes")) == (["begun"] * 2, ["begun"])
    until(lambda: nothing_left(kubectl), "everything to be gone from the cluster", 120)


def test_a_server_killed_at_any_moment_runs_each_job_once_and_leaves_nothing(
    cluster: Callable[..., Server], kubectl: Any
) -> None:
    server = cluster()
    r = Random(5)
    names = []
    for number in range(8):
        name = f"job-{number}"
        names.append(name)
        script = "echo run $WEFT_TASK $WEFT_LAUNCH; sleep 1; echo end"
        real = number % 2 == 0
        roles = small(2) if real else simulated(2, "2")
        place = REAL if real else SIMULATED
        server.submit(sh(script, name=name, image=BUSYBOX, roles=roles, placement=place))
        time.sleep(r.uniform(0, 2.5))
        server.restart()
    for number, name in enumerate(names):
        ended = server.wait_for(name)
        assert ended["status"]["state"] == "COMPLETED", server.story(name)
        if number % 2 == 0:
            ran = sorted(line for line in server.text(name) if line.startswith("run"))
            assert ran == ["run worker-0 1", "run worker-1 1"], server.story(name)
    until(lambda: nothing_left(kubectl), "everything to be gone from the cluster", 120)


def test_a_job_that_is_cancelled_while_no_server_can_hear_its_pods_leaves_nothing(
    cluster: Callable[..., Server], kubectl: Any, daemons: processes.Record
) -> None:
    server = cluster()
    server.submit(sh("sleep 1000", name="long", image=BUSYBOX, roles=small(2), placement=REAL, grace="1s"))
    server.wait_for("long", "PROCESSING")
    processes.kill(daemons, "kube-apiserver")
    assert server.ask("long", "cancel").status == 200
    until(lambda: "does not answer" in server.printed(), "it to have tried")
    server.kill()
    processes.start_again(daemons, "kube-apiserver")
    server.start()
    server.wait_for("long", "CANCELLED")
    until(lambda: nothing_left(kubectl), "everything to be gone from the cluster", 120)


def test_a_job_resumed_before_the_cluster_has_collected_what_it_had_gets_objects_of_its_own(
    cluster: Callable[..., Server], kubectl: Any, daemons: processes.Record
) -> None:
    """Those of before have the same names; they go with an owner that is gone already."""
    server = cluster()
    script = "echo from $WEFT_LAUNCH; sleep 1000"
    server.submit(sh(script, name="again", image=BUSYBOX, roles=small(), placement=REAL, grace="1s"))
    server.printed_line("again", "from 1")
    processes.kill(daemons, "kube-controller-manager")
    assert server.ask("again", "halt").status == 200
    server.wait_for("again", "HALTED")
    assert server.ask("again", "resume").status == 200

    def belonging() -> tuple[set[str], set[str]]:
        """The uids of the job's owner, and those that its other objects name."""
        kinds = "configmaps,secrets,networkpolicies,pods"
        found = kubectl.get(kinds, "-l", "app.kubernetes.io/managed-by=weft")["items"]
        heads = [each["metadata"] for each in found]
        return (
            {head["uid"] for head in heads if "ownerReferences" not in head},
            {own["uid"] for head in heads for own in head.get("ownerReferences", ())},
        )

    until(lambda: len(belonging()[0]) == 1 and belonging()[0] != belonging()[1], "it to have a new owner")
    processes.start_again(daemons, "kube-controller-manager")
    server.printed_line("again", "from 2")
    owner, named = belonging()
    assert owner == named
    assert server.status("again")["state"] == "PROCESSING"


def test_what_a_crash_left_is_found(cluster: Callable[..., Server], kubectl: Any) -> None:
    """A pod and an owner of a job that nobody knows: the server's own label makes them its business."""
    server = cluster()
    instance = (server.home / "instance.json").read_text().split('"')[3]
    labels = {
        "app.kubernetes.io/managed-by": "weft",
        "weft.dev/instance": instance,
        "weft.dev/uid": "f00",
        "weft.dev/task": "worker-0",
        "weft.dev/launch": "1",
    }
    kubectl.create(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "weft-x-f00", "labels": labels}}
    )
    container = {"name": "task", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sleep", "100"]}
    spec = {"nodeName": "sim-0001", "containers": [container]}
    kubectl.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "weft-x", "labels": labels}, "spec": spec}
    )
    server.restart()
    until(lambda: nothing_left(kubectl), "what nobody knows to be removed", 30)
