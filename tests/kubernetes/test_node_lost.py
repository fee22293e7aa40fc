"""A node that is lost with a task on it: what the task told is kept, and it goes on elsewhere from its checkpoint."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from harness import sh, until
from testbed.api import Api
from testbed.node import GATEWAY
from tests.support.pod import Pod

from .conftest import SHELL_IMAGE, Kubectl, Town
from .test_data_lost import kept_up, ready
from .test_jobs import small

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("images", "testbed_only")]
STEP = "step-000000000001"
GOES_ON = f"""
from=$(cat $CHECKPOINT_DIR/{STEP}/state 2>/dev/null || echo 0)
echo from $from
echo "{{\\"step\\": $from, \\"loss\\": 1}}" >> $LOG_DIR/metrics.jsonl
[ $from = 0 ] || exit 0
mkdir $CHECKPOINT_DIR/.new; echo 1 > $CHECKPOINT_DIR/.new/state; mv $CHECKPOINT_DIR/.new $CHECKPOINT_DIR/{STEP}
while true; do sleep 0.1; done
"""


class Machine:
    """A node that nobody runs: what is bound to it, we run here as its kubelet would, agent and task."""

    def __init__(self, name: str, api: Api, kubectl: Kubectl, pod: Pod):
        self.name = name
        self._api = api
        self._kubectl = kubectl
        self._pod = pod

    def run(self, job: str) -> None:
        def bound() -> dict[str, Any] | None:
            pods = self._kubectl.get("pods", "-l", f"weft.dev/job={job}")["items"]
            return next((pod for pod in pods if pod["spec"].get("nodeName") == self.name), None)

        document = until(bound, "its pod to be bound", every=0.1)
        spec = {each["name"]: each for each in document["spec"]["containers"]}
        [secret] = [
            each["secret"]["secretName"]
            for each in document["spec"]["volumes"]
            if each["name"] == "weft-token"
        ]
        shown = self._kubectl.get("secret", secret)["data"]["token"]
        (self._pod.token / "token").write_bytes(base64.b64decode(shown))
        told = json.loads(spec["weft"]["env"][0]["value"])
        self._pod.port = told.pop("port")
        self._pod.agent(**told)
        environ = {
            each["name"]: each["value"].replace("/weft", str(self._pod.root), 1)
            for each in spec["task"]["env"]
            if each.get("value", "").startswith("/weft/")
        }
        command = [part.replace("$$", "$") for part in spec["task"]["command"][4:]]
        self._pod.start(*command, environ=environ)
        about = {"image": "x", "imageID": "x", "started": True, "ready": True, "restartCount": 0}
        states = [{**about, "name": name, "state": {"running": {}}} for name in spec]
        where = {"podIP": GATEWAY, "podIPs": [{"ip": GATEWAY}]}
        path = f"/api/v1/namespaces/{self._kubectl.namespace}/pods/{document['metadata']['name']}/status"
        self._api.patch(path, {"status": {"phase": "Running", "containerStatuses": states, **where}})

    def is_lost(self) -> None:
        self._pod.close()
        self._api.patch(f"/api/v1/nodes/{self.name}/status", {"status": {"conditions": [ready("Unknown")]}})


@pytest.fixture
def machine(town: Town, api: Api, tmp_path: Path) -> Iterator[Machine]:
    name = f"machine-{town.kubectl.namespace}"
    room = {"cpu": "4", "memory": "4Gi", "pods": "10"}
    node = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name, "labels": {name: "yes"}}}
    pod = Pod(tmp_path)
    with ExitStack() as stack:
        stack.callback(town.kubectl, "delete", "node", name, "--ignore-not-found")
        stack.callback(town.kubectl, "label", "node", "real-0", f"{name}-")
        stack.callback(pod.close)
        api.post("/api/v1/nodes", {**node, "status": {"allocatable": room, "capacity": room}})
        api.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [ready("True")]}})
        stack.enter_context(kept_up(api, name))
        yield Machine(name, api, town.kubectl, pod)


def test_what_it_told_is_kept_and_it_goes_on_elsewhere_from_its_checkpoint(
    town: Town, machine: Machine
) -> None:
    server, kubectl = town.server, town.kubectl
    where = {"selector": {machine.name: "yes"}}
    metrics = [{"source": "file"}]
    server.submit(
        sh(GOES_ON, name="lives", image=SHELL_IMAGE, roles=small(), placement=where, metrics=metrics)
    )
    machine.run("lives")
    server.printed_line("lives", "from 0")
    saved = server.folder("lives") / "checkpoints" / STEP / "state"
    until(lambda: saved.exists() and len(server.metrics("lives")) == 1, "what it left to be here", every=0.1)
    kubectl("label", "node", "real-0", f"{machine.name}=yes")
    machine.is_lost()
    ended = server.wait_for("lives")["status"]
    assert (ended["state"], ended["restarts"]) == ("COMPLETED", 0), server.story("lives")
    assert [task["binding"]["node"] for task in ended["tasks"]] == ["real-0"]
    assert server.text("lives") == ["from 0", "from 1"]
    assert [point["step"] for point in server.metrics("lives")] == [0, 1]
    assert "NODE_LOST" in [event.get("code") for event in server.history("lives")]
    until(lambda: town.nothing_left("lives"), "everything of it to be gone from the cluster")
