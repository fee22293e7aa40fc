"""A node of a cluster that is lost with a task that reads data: the task has it where it runs next."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from harness import python, until
from testbed.api import Api
from testbed.node import GATEWAY
from testbed.simulated import LEASES, lease
from tests.support.datasets import Agent, agent, files_below

from .conftest import WEFT_IMAGE
from .test_datasets import READ, Library, expected, lends, library, reads

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("images", "testbed_only")]
__all__ = ["library"]


@dataclass(frozen=True)
class Spare:
    """A node that nobody runs, but with a data agent that does: a process of this machine."""

    name: str
    api: Api
    agent: Agent

    def runs(self, pod: str, namespace: str) -> None:
        """As its kubelet would say it of a pod."""
        state = {"name": "task", "state": {"running": {}}, "ready": True, "restartCount": 0}
        about = {"image": "x", "imageID": "x", "started": True}
        status = {"phase": "Running", "containerStatuses": [{**state, **about}]}
        self.api.patch(f"/api/v1/namespaces/{namespace}/pods/{pod}/status", {"status": status})

    def is_lost(self) -> None:
        self.agent.kill()
        self.api.patch(f"/api/v1/nodes/{self.name}/status", {"status": {"conditions": [ready("Unknown")]}})


def ready(status: str) -> dict[str, Any]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "Ready", "status": status, "reason": "Tested", "message": "", "lastHeartbeatTime": now}


@contextmanager
def kept_up(api: Api, node: str) -> Iterator[None]:
    """The cluster gives a node up of which it has heard nothing for 40 seconds."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(5):
            api.patch(f"{LEASES}/{node}", {"spec": lease(node, time.time())["spec"]})
        api.close()

    api.post(LEASES, lease(node, time.time()))
    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()
        api.delete(f"{LEASES}/{node}")


@pytest.fixture
def spare(library: Library, api: Api, tmp_path: Path) -> Iterator[Spare]:
    kubectl, where = library.kubectl, f"{library.kubectl.namespace}-data"
    name = f"spare-{kubectl.namespace}"
    library.agent()  # so the secret is there
    key = tmp_path / "token"
    shown = kubectl.get("secret", "weft-data", library.agents)["data"]["token"]
    key.write_bytes(base64.b64decode(shown))
    room = {"cpu": "4", "memory": "4Gi", "pods": "10"}
    labels = {"kubernetes.io/hostname": name, name: "yes"}
    conditions = [ready("True")]
    node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name, "labels": labels}}
    listens = ("--engine-listen", f"{GATEWAY}:8472", "--engine-token-file", str(key))
    peers = ("--peer-listen", f"{GATEWAY}:8473", "--peer-key-file", str(key))
    try:
        api.post("/api/v1/nodes", {**node, "status": {"allocatable": room, "capacity": room}})
        api.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": conditions}})
        kubectl("label", "node", name, f"{name}=yes", "--overwrite")
        with kept_up(api, name), agent(tmp_path / "node", *listens, *peers, "--node", name) as made:
            own = api.post(
                f"/api/v1/namespaces/{where}/configmaps",
                {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}},
            )
            about = {"apiVersion": "v1", "kind": "ConfigMap", "controller": True}
            owner = {
                **about,
                "name": name,
                "uid": own["metadata"]["uid"],
            }  # not the DaemonSet's, which would delete it
            metadata = {
                "name": name,
                "labels": {"app.kubernetes.io/name": "weft-data"},
                "ownerReferences": [owner],
            }
            spec = {"nodeName": name, "containers": [{"name": "agent", "image": WEFT_IMAGE}]}
            pod = {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec}
            api.post(f"/api/v1/namespaces/{where}/pods", pod)
            status = {"phase": "Running", "podIP": GATEWAY, "podIPs": [{"ip": GATEWAY}]}
            api.patch(f"/api/v1/namespaces/{where}/pods/{name}/status", {"status": status})
            yield Spare(name, api, made)
    finally:
        kubectl("label", "node", "real-0", f"{name}-")
        kubectl(
            "delete",
            "pod",
            library.agents,
            name,
            "--force",
            "--grace-period=0",
            "--ignore-not-found",
            check=False,
        )
        kubectl("delete", "node", name, "--ignore-not-found")


def test_a_task_whose_node_is_lost_has_its_data_on_the_next_one(library: Library, spare: Spare) -> None:
    server, kubectl = library.server, library.kubectl
    job = reads("moves", python(READ), placement={"selector": {spare.name: "yes"}})
    server.submit(job)
    pod = until(
        lambda: next(
            (
                each
                for each in kubectl.get("pods", "-l", "weft.dev/job=moves")["items"]
                if each["spec"].get("nodeName") == spare.name
            ),
            None,
        ),
        "its pod to be bound",
        every=0.2,
    )
    uid = server.uid("moves")
    assert list(spare.agent.control(do="status")["jobs"]) == [uid], "granted before it was bound"
    assert files_below(spare.agent.folder / "trees" / library.version()).keys() == names_of(library.faces)
    spare.runs(pod["metadata"]["name"], kubectl.namespace)
    server.wait_for("moves", "PROCESSING")
    kubectl("label", "node", "real-0", f"{spare.name}=yes")
    spare.is_lost()
    ended = server.wait_for("moves")
    assert ended["status"]["state"] == "COMPLETED", server.story("moves")
    assert ended["status"]["restarts"] == 0, "it was not its fault"
    assert [task["binding"]["node"] for task in ended["status"]["tasks"]] == ["real-0"]
    assert server.text("moves") == [expected(library.faces)]
    until(lambda: lends(library, uid) is False, "its lease to end", every=0.2)


def names_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
