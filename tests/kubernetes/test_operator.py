"""kubectl and Weft, each as good as the other: what one says, the other shows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Server, sh, until
from testbed.api import Api

from .conftest import REAL, SHELL_IMAGE
from .test_jobs import SIMULATED
from .watching import Watched

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("testbed_only", "installed")]
CRDS = Path(__file__).parents[2] / "deploy" / "chart" / "crds"
MINE = "weft.dev/instance"
BUSYBOX = SHELL_IMAGE
SMALL = {"worker": {"resources": {"cpu": 0.1, "memory": "64Mi"}}}


@pytest.fixture
def installed(kubectl: Any) -> None:
    """They stay: others may use them, too."""
    kubectl("apply", "-f", str(CRDS))
    kubectl.established("-f", str(CRDS))


@pytest.fixture
def swept(kubectl: Any) -> Iterator[list[tuple[str, str]]]:
    """What belongs to the cluster goes when the test ends."""
    made: list[tuple[str, str]] = []
    yield made
    for kind, name in made:
        kubectl("delete", kind, name, "--ignore-not-found", "--wait=false")


def lives(seconds: str = "forever", count: int = 1) -> dict[str, Any]:
    notes = {"testbed.weft.dev/runs-for": seconds}
    resources = {"cpu": 1, "memory": "64Mi"}
    return {
        "worker": {"replicas": count, "resources": resources, "pod": {"metadata": {"annotations": notes}}}
    }


def instance(server: Server) -> str:
    return json.loads((server.home / "instance.json").read_text())["id"]


def resource(server: Server, kind: str, name: str, **spec: Any) -> dict[str, Any]:
    """Meant for this server: there may be others in the cluster."""
    metadata = {"name": name, "labels": {MINE: instance(server)}}
    return {"apiVersion": "weft.dev/v1", "kind": kind, "metadata": metadata, "spec": spec}


def job(server: Server, name: str, **spec: Any) -> dict[str, Any]:
    command = {"command": ["true"], "placement": SIMULATED, "roles": lives()}
    return resource(server, "TrainingJob", name, **{**command, **spec})


def status(kubectl: Any, name: str, kind: str = "tj") -> dict[str, Any]:
    found = kubectl("get", kind, name, "--ignore-not-found", "-o", "json")
    return (json.loads(found).get("status") or {}) if found else {}


def reaches(kubectl: Any, name: str, state: str, kind: str = "tj") -> dict[str, Any]:
    until(lambda: status(kubectl, name, kind).get("state") == state, f"{name} to be {state}", every=0.2)
    return status(kubectl, name, kind)


def events(kubectl: Any, name: str) -> list[tuple[str, str]]:
    found = kubectl.get("events", "--field-selector", f"involvedObject.name={name}")["items"]
    found.sort(key=lambda item: int(item["metadata"]["resourceVersion"]))
    return [(item["type"], item["reason"]) for item in found]


def absent(kubectl: Any, name: str, kind: str = "tj") -> bool:
    return kubectl("get", kind, name, "--ignore-not-found", "-o", "name") == ""


def nothing_left(kubectl: Any) -> bool:
    kinds = "pods,configmaps,secrets,services,networkpolicies"
    return kubectl.get(kinds, "-l", "app.kubernetes.io/managed-by=weft")["items"] == []


def test_an_applied_job_runs_and_is_told_of(
    cluster: Callable[..., Server], kubectl: Any, tmp_path: Path
) -> None:
    server = cluster()
    command = ["sh", "-c", "echo hi; sleep 1"]
    asked = job(server, "greet", command=command, image=BUSYBOX, roles=SMALL, placement=REAL)
    asked["metadata"]["annotations"] = {"weft.dev/owner": "ada", "note": "kept"}
    kubectl("apply", "-f", "-", told=job(server, "other"))
    watched = tmp_path / "watched"
    with watched.open("w") as shown:
        watching = kubectl.begin("get", "trainingjobs", "-w", output=shown)
    try:
        until(lambda: "other" in watched.read_text(), "kubectl to watch", every=0.2)
        kubectl("apply", "-f", "-", told=asked)
        until(lambda: "COMPLETED" in watched.read_text(), "kubectl to show its end", every=0.2)
    finally:
        watching.terminate()
        watching.wait(30)
    rows = [line.split() for line in watched.read_text().splitlines()]
    assert [word for row in rows if row[0] == "greet" for word in row if word == "PROCESSING"], rows
    kubectl("wait", "--for=condition=Complete", "--timeout=30s", "tj/greet")
    told = status(kubectl, "greet")
    found = server.job("greet")
    assert (told["state"], told["tasks"], told["jobUid"]) == ("COMPLETED", "1/1", found["metadata"]["uid"])
    assert told["started"] <= told["finished"]
    assert told["observedGeneration"] == 1
    assert found["metadata"]["owner"] == "ada"
    assert found["metadata"]["project"] == kubectl.namespace
    assert found["metadata"]["annotations"]["note"] == "kept"
    assert server.text("greet") == ["hi"]
    states = ["Pending", "Queued", "Deploying", "Processing", "Storing", "Completed"]
    until(lambda: len(events(kubectl, "greet")) >= len(states), "its events", every=0.2)
    assert events(kubectl, "greet") == [("Normal", state) for state in states]
    line = kubectl("get", "tj", "greet").splitlines()[1].split()
    assert line[:3] == ["greet", "COMPLETED", "1/1"]


def test_a_job_that_fails_says_why(cluster: Callable[..., Server], kubectl: Any) -> None:
    server = cluster()
    kubectl("apply", "-f", "-", told=job(server, "bad", roles=_fails(), command=["true"]))
    told = reaches(kubectl, "bad", "FAILED")
    assert told["failure"]["code"] == "EXIT_CODE"
    assert "3" in told["failure"]["message"]
    until(lambda: ("Warning", "Failed") in events(kubectl, "bad"), "its event", every=0.2)


def _fails() -> dict[str, Any]:
    roles = lives("0.2")
    roles["worker"]["pod"]["metadata"]["annotations"]["testbed.weft.dev/exit-code"] = "3"
    return roles


def test_what_is_refused_says_why_and_is_tried_again(
    cluster: Callable[..., Server], kubectl: Any, swept: list[tuple[str, str]]
) -> None:
    server = cluster()
    queue = f"q-{kubectl.namespace[-8:]}"
    kubectl("apply", "-f", "-", told=job(server, "wrong", queue=queue, code={"path": "."}))
    told = reaches(kubectl, "wrong", "REFUSED")
    assert "no such queue" in told["reason"]
    assert "code.git" in told["reason"]
    assert server.gone("wrong")
    until(lambda: ("Warning", "Refused") in events(kubectl, "wrong"), "its event", every=0.2)
    corrected = job(server, "wrong", queue=queue)
    kubectl("apply", "-f", "-", told=corrected)
    until(lambda: "code" not in status(kubectl, "wrong")["reason"], "it to be read again", every=0.2)
    swept.append(("wq", queue))
    kubectl("apply", "-f", "-", told=resource(server, "Queue", queue, weight=2))
    assert reaches(kubectl, "wrong", "PROCESSING")["tasks"] == "1/1"
    assert server.job("wrong")["spec"]["queue"] == queue


def test_deleting_the_resource_deletes_the_job(cluster: Callable[..., Server], kubectl: Any) -> None:
    server = cluster()
    kubectl("apply", "-f", "-", told=job(server, "going", roles=lives(count=2)))
    assert reaches(kubectl, "going", "PROCESSING")["tasks"] == "2/2"
    kubectl("delete", "tj", "going", "--timeout=30s")
    until(lambda: server.gone("going"), "the job to go", every=0.1)
    until(lambda: nothing_left(kubectl), "everything of it to be gone from the cluster", every=0.2)
    # deleted and applied at once: the new one waits for the old one's end, and runs
    kubectl("apply", "-f", "-", told=job(server, "going"))
    first = reaches(kubectl, "going", "PROCESSING")["jobUid"]
    kubectl("delete", "tj", "going", "--wait=false")
    kubectl("apply", "-f", "-", told=job(server, "going"))
    until(lambda: status(kubectl, "going").get("jobUid") not in (None, first), "a new job", every=0.2)
    reaches(kubectl, "going", "PROCESSING")


def test_deletions_are_found_by_the_next_server(cluster: Callable[..., Server], kubectl: Any) -> None:
    server = cluster()
    kubectl("apply", "-f", "-", told=job(server, "theirs"))
    server.submit(sh("true", name="ours", roles=lives(), placement=SIMULATED))
    server.submit(sh("true", name="stays", roles=lives(), placement=SIMULATED))
    for name in ("theirs", "ours", "stays"):
        reaches(kubectl, name, "PROCESSING")
    server.kill()
    kubectl("delete", "tj", "theirs", "ours", "--timeout=30s")
    server.start()
    until(lambda: server.gone("theirs") and server.gone("ours"), "both to go", every=0.1)
    assert server.status("stays")["state"] == "PROCESSING"
    assert status(kubectl, "stays")["state"] == "PROCESSING"


def test_a_server_that_is_killed_again_and_again_submits_once(
    cluster: Callable[..., Server], kubectl: Any
) -> None:
    server = cluster()
    names = [f"once-{number}" for number in range(6)]
    for round_ in range(3):
        for name in names[2 * round_ : 2 * round_ + 2]:
            kubectl("apply", "-f", "-", told=job(server, name, roles=lives("1")))
        time.sleep(0.05 * round_)
        server.kill()
        server.start()
    for name in names:
        reaches(kubectl, name, "COMPLETED")
    found = server.get("/v1/jobs", limit=100).json["items"]
    assert sorted(item["metadata"]["name"] for item in found) == names
    for name in names:
        assert server.states(name).count("PENDING") == 1
        assert [reason for _, reason in events(kubectl, name)].count("Completed") == 1


def test_jobs_of_weft_are_seen_by_kubectl(cluster: Callable[..., Server], kubectl: Any, api: Api) -> None:
    server = cluster()
    told = Watched(api, f"/apis/weft.dev/v1/namespaces/{kubectl.namespace}/trainingjobs")
    document = sh("true", name="seen", labels={"team": "vision"}, roles=lives(), placement=SIMULATED)
    server.submit(document)
    reaches(kubectl, "seen", "PROCESSING")
    found = kubectl.get("tj", "seen")
    assert found["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "weft"
    assert found["metadata"]["labels"]["team"] == "vision"
    assert found["metadata"]["annotations"]["weft.dev/mirrored"] == "true"
    assert found["spec"] == server.job("seen")["spec"]
    server.delete("seen")
    until(lambda: absent(kubectl, "seen"), "its resource to go", every=0.2)
    server.submit(sh("true", name="short", roles=lives("0.2"), placement=SIMULATED, ttlAfterFinished="1s"))
    until(
        lambda: told.states("short")[-2:] == ["COMPLETED", None],
        "it to be told, and to go with its job",
        every=0.2,
    )
    assert absent(kubectl, "short")
    server.submit(sh("true", name="theirs", roles=lives(), placement=SIMULATED))
    reaches(kubectl, "theirs", "PROCESSING")
    kubectl("delete", "tj", "theirs", "--timeout=30s")
    until(lambda: server.gone("theirs"), "the job to go", every=0.1)


def test_a_wish_is_followed_once(cluster: Callable[..., Server], kubectl: Any) -> None:
    server = cluster()
    kubectl("apply", "-f", "-", told=job(server, "long", grace="1s"))
    reaches(kubectl, "long", "PROCESSING")
    kubectl("annotate", "tj", "long", "weft.dev/desire=halt")
    reaches(kubectl, "long", "HALTED")
    assert server.ask("long", "resume").status == 200
    reaches(kubectl, "long", "PROCESSING")  # and not halted again
    server.restart()
    kubectl("apply", "-f", "-", told=job(server, "later"))
    reaches(kubectl, "later", "PROCESSING")  # by then it has looked at all that there were
    assert server.status("long")["state"] == "PROCESSING"
    kubectl("annotate", "--overwrite", "tj", "long", "weft.dev/desire=fly")
    until(lambda: ("Warning", "WishRefused") in events(kubectl, "long"), "a refusal", every=0.2)
    kubectl("annotate", "--overwrite", "tj", "long", "weft.dev/desire=cancel")
    reaches(kubectl, "long", "CANCELLED")


def test_a_changed_spec_is_ignored_and_left_alone(cluster: Callable[..., Server], kubectl: Any) -> None:
    server = cluster()
    asked = job(server, "fixed")
    kubectl("apply", "-f", "-", told=asked)
    reaches(kubectl, "fixed", "PROCESSING")
    before = server.job("fixed")["spec"]
    asked["spec"]["priority"] = 7
    kubectl("apply", "-f", "-", told=asked)
    until(lambda: status(kubectl, "fixed")["observedGeneration"] == 2, "it to be noticed", every=0.2)
    told = status(kubectl, "fixed")
    assert [each["type"] for each in told["conditions"]] == ["SpecIgnored"]
    assert "delete the job" in told["reason"]
    until(lambda: ("Warning", "SpecIgnored") in events(kubectl, "fixed"), "its event", every=0.2)
    assert kubectl.get("tj", "fixed")["spec"]["priority"] == 7
    assert server.job("fixed")["spec"] == before
    del asked["spec"]["priority"]
    kubectl("apply", "-f", "-", told=asked)
    until(lambda: status(kubectl, "fixed")["conditions"] == [], "it to be as it was", every=0.2)


def test_namespaces_are_projects(cluster: Callable[..., Server], kubectl: Any) -> None:
    server = cluster()
    other = f"{kubectl.namespace}-b"
    kubectl("create", "namespace", other)
    try:
        asked = job(server, "apart")
        asked["metadata"]["namespace"] = other
        kubectl("apply", "-n", other, "-f", "-", told=asked)
        until(lambda: not server.gone("apart"), "the job", every=0.1)
        server.wait_for("apart", "PROCESSING")
        assert kubectl.get("pods")["items"] == []
        pods = kubectl.get("pods", "-n", other, "-l", "weft.dev/job=apart")["items"]
        assert [pod["metadata"]["namespace"] for pod in pods] == [other]
        document = sh("true", name="by-weft", roles=lives(), placement=SIMULATED)
        document["metadata"]["project"] = other
        server.submit(document)
        server.wait_for("by-weft", "PROCESSING")
        until(lambda: "by-weft" in kubectl("get", "tj", "-n", other), "its resource", every=0.2)
    finally:
        kubectl("delete", "namespace", other, "--wait=false")


def test_the_same_name_in_two_namespaces_is_two_jobs(cluster: Callable[..., Server], kubectl: Any) -> None:
    """For kubectl both have it; in Weft, where names are unique, the second one's says its namespace, too."""
    server = cluster()
    other = f"{kubectl.namespace}-b"
    second = f"twice-{other}"
    kubectl("create", "namespace", other)
    there = ("-n", other)
    try:
        kubectl("apply", "-f", "-", told=job(server, "twice"))
        assert reaches(kubectl, "twice", "PROCESSING")["job"] == "twice"
        kubectl("apply", *there, "-f", "-", told=job(server, "twice"))
        until(lambda: not server.gone(second), "the second job", every=0.1)
        server.wait_for(second, "PROCESSING")
        until(lambda: told(kubectl, *there).get("state") == "PROCESSING", "its resource to say so", every=0.2)
        assert told(kubectl, *there)["job"] == second
        kubectl("apply", "-f", "-", told=job(server, second))  # whose own name is the second one's
        assert reaches(kubectl, second, "PROCESSING")["job"] == f"{second}-{kubectl.namespace}"
        kubectl("delete", "tj", second, "--timeout=30s")
        pods = kubectl.get("pods", *there)["items"]
        assert [pod["metadata"]["labels"]["weft.dev/job"] for pod in pods] == [second]
        assert server.status("twice")["state"] == "PROCESSING"
        kubectl("annotate", "tj", "twice", *there, "weft.dev/desire=halt")
        server.wait_for(second, "HALTED")
        assert server.status("twice")["state"] == "PROCESSING"
        server.restart()
        kubectl("delete", "tj", "twice", "--timeout=30s")
        until(lambda: server.gone("twice"), "the first to go", every=0.1)
        assert server.status(second)["state"] == "HALTED"
        kubectl("annotate", "tj", "twice", *there, "weft.dev/desire=run", "--overwrite")
        server.wait_for(second, "PROCESSING")
        kubectl("apply", "-f", "-", told=job(server, "twice"))
        assert reaches(kubectl, "twice", "PROCESSING")["job"] == "twice"  # its name was free again
        kubectl("delete", "tj", "twice", *there, "--timeout=30s")
        until(lambda: server.gone(second), "the second to go", every=0.1)
        assert server.status("twice")["state"] == "PROCESSING"
    finally:
        kubectl("delete", "namespace", other, "--wait=false")


def told(kubectl: Any, *where: str) -> dict[str, Any]:
    return kubectl.get("tj", "twice", *where).get("status") or {}


def test_a_project_without_a_namespace_fails_with_what_to_do(cluster: Callable[..., Server]) -> None:
    server = cluster()
    document = sh("true", name="nowhere", roles=lives(), placement=SIMULATED)
    document["metadata"]["project"] = "no-such-project"
    ended = server.run(document)
    assert "kubectl create namespace" in ended["status"]["failure"]["message"], server.story("nowhere")


def test_queues_and_sizes_are_the_same_on_both_sides(
    cluster: Callable[..., Server], kubectl: Any, swept: list[tuple[str, str]]
) -> None:
    server = cluster()
    queue, size = f"q-{kubectl.namespace[-8:]}", f"s-{kubectl.namespace[-8:]}"
    swept += [("wq", queue), ("sz", size)]
    asked = resource(server, "Queue", queue, weight=2, limit={"gpu": 4})
    kubectl("apply", "-f", "-", told=asked)
    kubectl("apply", "-f", "-", told=resource(server, "Size", size, cpu=2, memory="1Gi"))
    reaches(kubectl, queue, "ACCEPTED", "wq")
    reaches(kubectl, size, "ACCEPTED", "sz")
    assert declared(server, "queues", queue)["weight"] == 2
    # Weft changes it: the resource follows
    put = {"kind": "Queue", "apiVersion": "weft.dev/v1", "spec": {"weight": 3}}
    assert server.call("PUT", f"/v1/queues/{queue}", put).status == 200
    until(lambda: kubectl.get("wq", queue)["spec"] == {"weight": 3}, "the resource to follow", every=0.2)
    assert server.call("DELETE", f"/v1/sizes/{size}").status == 204
    until(lambda: absent(kubectl, size, "sz"), "its resource to go", every=0.2)
    # both change while nobody looks: the cluster wins
    server.stop()
    arguments = server.arguments
    server.arguments = (*arguments, "--custom-resources", "none")
    server.start()
    put["spec"] = {"weight": 4}
    assert server.call("PUT", f"/v1/queues/{queue}", put).status == 200
    server.kill()
    asked["spec"] = {"weight": 5}
    kubectl("apply", "-f", "-", told=asked)
    server.arguments = (*arguments, "--custom-resources", "all")
    server.start()
    until(lambda: declared(server, "queues", queue)["weight"] == 5, "Weft to follow", every=0.1)
    assert "changed on both sides" in server.printed()
    # a wrong one is refused, and Weft goes on with what it had
    asked["spec"] = {"parent": "no-such-queue"}
    kubectl("apply", "-f", "-", told=asked)
    assert "no such queue" in reaches(kubectl, queue, "REFUSED", "wq")["reason"]
    assert declared(server, "queues", queue)["weight"] == 5
    # in use: it goes when nothing uses it
    server.submit(sh("true", name="user", queue=queue, roles=lives(), placement=SIMULATED, grace="1s"))
    server.wait_for("user", "PROCESSING")
    kubectl("delete", "wq", queue, "--timeout=30s")
    until(lambda: ("Warning", "Kept") in events(told_of_default(kubectl), queue), "an event", every=0.2)
    assert declared(server, "queues", queue) is not None
    server.ask("user", "cancel")
    until(lambda: declared(server, "queues", queue) is None, "the queue to go", every=0.1)


def test_both_sides_that_change_at_the_same_time_agree_and_nobody_writes_any_more(
    cluster: Callable[..., Server], kubectl: Any, swept: list[tuple[str, str]]
) -> None:
    server = cluster()
    name = f"q-{kubectl.namespace[-8:]}"
    swept += [("wq", name), ("sz", name)]
    kubectl("apply", "-f", "-", told=resource(server, "Queue", name, weight=1))
    reaches(kubectl, name, "ACCEPTED", "wq")
    for number in range(2, 10):
        put = {"kind": "Queue", "apiVersion": "weft.dev/v1", "spec": {"weight": 100 + number}}
        assert server.call("PUT", f"/v1/queues/{name}", put).status == 200
        kubectl("apply", "-f", "-", told=resource(server, "Queue", name, weight=number))

    def settled() -> dict[str, Any] | None:
        found = kubectl.get("wq", name)
        seen = found["status"]["observedGeneration"] == found["metadata"]["generation"]
        own = declared(server, "queues", name)
        return found if seen and own is not None and own["weight"] == found["spec"]["weight"] else None

    agreed = until(settled, "both to agree", every=0.2)
    kubectl("apply", "-f", "-", told=resource(server, "Size", name, cpu=1))
    reaches(kubectl, name, "ACCEPTED", "sz")  # whatever there was to write was written before
    assert kubectl.get("wq", name) == agreed


def declared(server: Server, kind: str, name: str) -> dict[str, Any] | None:
    found = [
        item["spec"] for item in server.get(f"/v1/{kind}").json["items"] if item["metadata"]["name"] == name
    ]
    return found[0] if found else None


def told_of_default(kubectl: Any) -> Any:
    """Events on what belongs to the cluster are in the namespace `default`."""

    class InDefault:
        def get(self, *arguments: str) -> dict[str, Any]:
            return kubectl.get(*arguments, "-n", "default")

    return InDefault()
