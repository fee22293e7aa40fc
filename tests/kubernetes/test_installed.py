"""A control plane in the cluster, as `kubectl apply -k deploy/` makes it: two pods, under the account made there."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import Answer, Server, package, sh, until
from testbed import controlplane, places
from testbed.node import NAME

from weft.server.page import BUILT

from .conftest import WEFT_IMAGE, Kubectl, in_a_namespace
from .test_datasets import data_agents, install, take_away
from .test_deploy import DEPLOY, WITHIN, as_list, for_this_server
from .test_jobs import BUSYBOX, COUNTS, REAL, small

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("testbed_only")]
COMMAND = str(Path(sys.executable).parent / "weft")
AUDIT = places.state() / "audit.log"
LEASE = ("get", "lease", "weft", WITHIN, "-o", "jsonpath={.spec.holderIdentity}")


class Reached(Server):
    """A server by way of a port that is passed on; its home is the volume."""

    address = ""

    def facts(self) -> dict[str, Any]:
        return {"address": self.address}

    def get(self, path: str, **query: Any) -> Answer:
        """kubectl loses one of many short connections now and then: what only asks is asked once more."""
        try:
            return super().get(path, **query)
        except TimeoutError:
            return super().get(path, **query)

    def weft(self, *words: str) -> str:
        env = {**os.environ, "WEFT_ADDRESS": self.address, "WEFT_TOKEN": self.token, "COLUMNS": "200"}
        done = subprocess.run(
            [COMMAND, *words], env=env, capture_output=True, text=True, check=False, timeout=30
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


class Installed:
    def __init__(self, kubectl: Kubectl, volume: Path) -> None:
        self.kubectl = kubectl
        """In a namespace for jobs."""
        self.volume = volume
        self.noted = AUDIT.stat().st_size if AUDIT.exists() else 0
        """Of the API server's notes, those before it was installed."""

    def leader(self) -> str:
        return self.kubectl(*LEASE, check=False)

    def pods(self) -> dict[str, dict[str, Any]]:
        found = self.kubectl.get("pods", WITHIN, "-l", "app.kubernetes.io/name=weft")["items"]
        return {pod["metadata"]["name"]: pod for pod in found}

    def says(self, pod: str, page: str) -> str:
        path = f"/api/v1/namespaces/weft-system/pods/{pod}:8471/proxy/{page}"
        return self.kubectl("get", "--raw", path, check=False)

    @contextmanager
    def reached(self) -> Iterator[Reached]:
        """As the page tells: by way of the pod that leads."""
        until(lambda: self.says(self.leader(), "readyz") == "leads\n", "a leader", every=0.2)
        said = self.volume.with_name("port-forward.log")
        with said.open("w") as output:
            passing = self.kubectl.begin(
                "port-forward", WITHIN, f"pod/{self.leader()}", ":8470", output=output
            )
        try:
            found = until(lambda: re.search(r"127\.0\.0\.1:\d+", said.read_text()), "a port")
            server = Reached(self.volume)
            server.address = f"http://{found[0]}"
            yield server
        finally:
            passing.terminate()
            passing.wait(10)

    def resource(self, kind: str, name: str, **spec: Any) -> None:
        made = {"apiVersion": "weft.dev/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        self.kubectl("apply", "-f", "-", told=made)

    def reaches(self, kind: str, name: str, state: str) -> None:
        asked = ("get", kind, name, "-o", "jsonpath={.status.state}")
        until(lambda: self.kubectl(*asked) == state, f"{kind} {name} to be {state}", every=0.2)

    def absent(self, kind: str, name: str) -> bool:
        return self.kubectl("get", kind, name, "--ignore-not-found") == ""


@pytest.fixture(scope="module")
def installed(
    kubeconfig: str, kube_scheduler: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    """With the testbed's image and a folder of the real node as the volume; nothing else is changed."""
    volume = tmp_path_factory.mktemp("volume")
    volume.chmod(0o777)
    copy = tmp_path_factory.mktemp("copy") / "deploy"
    shutil.copytree(DEPLOY, copy)
    told = yaml.safe_load((copy / "kustomization.yaml").read_text())
    repository, _, tag = WEFT_IMAGE.rpartition(":")
    told["images"] = [{"name": "weft", "newName": repository, "newTag": tag}]
    (copy / "kustomization.yaml").write_text(yaml.safe_dump(told))
    with in_a_namespace(kubeconfig) as kubectl:
        assert "weft-system" not in kubectl("get", "namespaces", "-o", "name"), "it is installed already"
        objects = for_this_server(kubectl, yaml.safe_load_all(kubectl("kustomize", str(copy))))
        made = Installed(kubectl, volume)
        try:
            kubectl.create(persistent(volume, "weft-system"))
            kubectl("apply", "-f", "-", WITHIN, told=as_list(objects))
            kubectl("rollout", "status", WITHIN, "deployment/weft", "--timeout=55s")
            yield made
        finally:
            kubectl("delete", "deployment", "weft", WITHIN, "--ignore-not-found", "--timeout=55s")
            # else the namespace waits for as long as its pods might take
            kubectl("delete", "pods", WITHIN, "--all", "--grace-period=0", "--force")
            mine = [item for item in objects if item["kind"] != "CustomResourceDefinition"]  # others use them
            kubectl("delete", "-f", "-", WITHIN, "--ignore-not-found", "--timeout=55s", told=as_list(mine))
            kubectl("delete", "persistentvolume", "weft-test", "--ignore-not-found", "--timeout=55s")


def persistent(folder: Path, namespace: str) -> dict[str, Any]:
    """It is only on the real node, and says so: that is why the pods are placed there."""
    there = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NAME]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "weft-test"},
        "spec": {
            "capacity": {"storage": "20Gi"},
            "accessModes": ["ReadWriteMany"],
            "claimRef": {"namespace": namespace, "name": "weft"},
            "hostPath": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [there]}]}},
        },
    }


def test_both_pods_run_and_one_of_them_leads(installed: Installed) -> None:
    leader, pods = installed.leader(), installed.pods()
    assert len(pods) == 2
    assert leader in pods
    (waits,) = pods.keys() - {leader}
    assert {pod["spec"]["serviceAccountName"] for pod in pods.values()} == {"weft"}
    until(lambda: installed.says(leader, "readyz") == "leads\n", "the leader to say so", every=0.2)
    assert installed.says(waits, "readyz") == "waits to lead\n"
    assert "weft_leads 1.0" in installed.says(leader, "metrics")


def test_a_job_of_kubectl_completes_and_the_command_line_shows_it(installed: Installed) -> None:
    spec = sh("echo hello from $WEFT_TASK", image=BUSYBOX, roles=small(), placement=REAL)["spec"]
    installed.resource("TrainingJob", "hello", **spec)
    installed.kubectl("wait", "--for=condition=Complete", "tj/hello", "--timeout=55s")
    with installed.reached() as server:
        (line,) = (line for line in server.weft("ls", "--all").splitlines() if "hello" in line)
        assert "COMPLETED" in line
        assert "hello from worker-0" in server.weft("logs", "hello")
        page = server.call("GET", "/", token=None)
        assert (b"<html" in page.body) == BUILT.exists(), "the page, by the same way, if this checkout has it"
    inside = installed.kubectl("exec", WITHIN, installed.leader(), "--", "weft", "ls", "--all")
    assert "hello" in inside


def test_when_the_leader_is_killed_the_other_one_goes_on_with_its_job(installed: Installed) -> None:
    spec = sh(COUNTS, image=BUSYBOX, roles=small(), placement=REAL)["spec"]
    installed.resource("TrainingJob", "count", **spec)
    with installed.reached() as server:
        server.printed_line("count", "50")
    leader, pods = installed.leader(), installed.pods()
    process = server_of(pods[leader]["metadata"]["uid"])
    installed.kubectl("delete", "pod", WITHIN, leader, "--grace-period=0", "--force", "--wait=false")
    os.kill(process, signal.SIGKILL)
    (other,) = pods.keys() - {leader}
    until(lambda: installed.leader() == other, "the other one to lead", every=0.1)
    until(lambda: installed.says(other, "readyz") == "leads\n", "it to have taken over", every=0.1)
    with installed.reached() as server:
        ended = server.wait_for("count")
        assert ended["status"]["state"] == "COMPLETED", server.story("count")
        assert ended["status"]["restarts"] == 0
        assert server.text("count", limit=100_000) == [str(n) for n in range(1, 401)]
    installed.kubectl("rollout", "status", WITHIN, "deployment/weft", "--timeout=55s")
    assert len(installed.pods()) == 2


def test_a_job_reads_a_dataset_by_way_of_its_nodes_agent(installed: Installed, tmp_path: Path) -> None:
    """Under the account as it is: no permission is for this alone."""
    kubectl, letters = installed.kubectl, installed.volume / "letters"
    letters.mkdir()
    (letters / "a.txt").write_text("from the control plane's volume")
    for path, mode in ((letters, 0o755), (letters / "a.txt", 0o644)):
        path.chmod(mode)
    try:
        install(kubectl, data_agents(kubectl, "weft-system", tmp_path / "data"))
        with installed.reached() as server:
            server.weft("data", "add", "letters", "file:///var/lib/weft/letters")
            job = sh(
                "cat $DATA_DIR/letters/a.txt", name="letters", image=BUSYBOX, roles=small(), placement=REAL
            )
            job["spec"]["datasets"] = [{"name": "letters"}]
            ended = server.run(job)
            assert ended["status"]["state"] == "COMPLETED", server.story("letters")
            assert server.text("letters") == ["from the control plane's volume"]
    finally:
        take_away(kubectl, "weft-system")


def server_of(pod: str) -> int:
    """The process of a control plane, seen from outside of its pod."""

    def runs(process: Path) -> bool:
        try:
            within = f"pod{pod}" in (process / "cgroup").read_text()
            return within and b"weft.server" in (process / "cmdline").read_bytes()
        except OSError:
            return False

    (found,) = (int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit() and runs(each))
    return found


def test_its_account_may_do_what_it_does_and_nothing_more(installed: Installed) -> None:
    """As the API server's audit log has it: no request was refused, and every permission was used."""
    with installed.reached() as server:
        everything_a_job_can(installed, server)
        everything_declared(installed, server)
    used, refused = audited(installed.noted)
    assert refused == []
    assert granted(installed.kubectl) - used == set()
    log = installed.kubectl("logs", WITHIN, installed.leader())
    assert "forbidden" not in log, log


def everything_a_job_can(installed: Installed, server: Reached) -> None:
    digest, data = package({"go.sh": "echo $(cat $CHECKPOINT_DIR/at 2>/dev/null || echo begun)"})
    assert server.call("PUT", f"/v1/packages/{digest}", data).status in (200, 201)
    script = ". ./go.sh; trap 'echo saved > $CHECKPOINT_DIR/at; exit 0' TERM; while true; do sleep 0.1; done"
    gang = sh(
        script,
        name="long",
        image=BUSYBOX,
        code={"package": digest},
        roles=small(2),
        placement=REAL,
        grace="5s",
    )
    gang["metadata"]["project"] = installed.kubectl.namespace
    server.submit(gang)
    server.printed_line("long", "begun")
    installed.reaches("tj", "long", "PROCESSING")
    installed.kubectl("delete", "pod", "-l", "weft.dev/job=long,weft.dev/task=worker-1", "--wait=false")
    until(lambda: server.status("long")["tasks"][1]["launch"] == 2, "a second launch", every=0.2)
    server.wait_for("long", "PROCESSING")
    assert server.ask("long", "halt").status == 200
    server.wait_for("long", "HALTED")
    assert server.ask("long", "resume").status == 200
    server.printed_line("long", "saved")
    server.delete("long")
    until(lambda: installed.absent("tj", "long"), "its resource to go", every=0.2)


def everything_declared(installed: Installed, server: Reached) -> None:
    """Claimed, changed by Weft, and deleted by it."""
    kinds = {"Queue": ("wq", {"weight": 2}, {"weight": 3}), "Size": ("sz", {"cpu": 2}, {"cpu": 3})}
    kinds["JobType"] = ("jt", {"description": "mine"}, {"description": "yours"})
    for kind, (short, first, second) in kinds.items():
        name, plural = f"mine-{installed.kubectl.namespace[-8:]}", f"{kind.lower()}s"
        installed.resource(kind, name, **first)
        installed.reaches(short, name, "ACCEPTED")
        told = {"apiVersion": "weft.dev/v1", "kind": kind, "metadata": {"name": name}, "spec": second}
        assert server.call("PUT", f"/v1/{plural}/{name}", told).status == 200
        until(
            lambda short=short, name=name, second=second: installed.kubectl.get(short, name)["spec"] == second,
            "it to follow", every=0.2,
        )  # fmt: skip
        assert server.call("DELETE", f"/v1/{plural}/{name}").status == 204
        until(lambda short=short, name=name: installed.absent(short, name), "it to go", every=0.2)


def audited(since: int) -> tuple[set[tuple[str, str, str]], list[str]]:
    """What the account asked for, by group, resource and verb; and what of it was refused."""
    used, refused = set(), []
    for line in AUDIT.read_bytes()[since:].splitlines():
        event = json.loads(line)
        assert event["user"]["username"] == controlplane.INSTALLED
        about = event.get("objectRef", {})
        parts = (about.get("resource", ""), about.get("subresource"))
        used.add((about.get("apiGroup", ""), "/".join(part for part in parts if part), event["verb"]))
        if event["annotations"]["authorization.k8s.io/decision"] != "allow":
            refused.append(f"{event['verb']} {event['requestURI']}")
    return used, refused


def granted(kubectl: Kubectl) -> set[tuple[str, str, str]]:
    rules = [*kubectl.get("clusterrole", "weft")["rules"], *kubectl.get(WITHIN, "role", "weft")["rules"]]
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
