"""What the benchmarks on Kubernetes share: a testbed with as many nodes as they ask for, a namespace of their own, and
an onlooker: one watch in a process of its own, so that whatever is measured is seen with the same eyes."""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from harness import BENCHMARKS, PYTHON, arguments, folder_on_disk, until

SCRIPTS = BENCHMARKS.parent / "scripts"
sys.path.insert(0, str(SCRIPTS))

from testbed import binaries, places, processes  # noqa: E402
from testbed.api import Api, ApiError  # noqa: E402

WEFT_IMAGE, BUSYBOX = "localhost/weft:testbed", "localhost/busybox:testbed"
REAL_NODE = "real-0"
SIMULATED = {"selector": {"testbed.weft.dev/kind": "simulated"}}
RUNS_FOR = "testbed.weft.dev/runs-for"
WIPING = 600.0
KUBE = "kube-bench"
"""What that one is called."""


def options_of(description: str) -> argparse.ArgumentParser:
    parser = arguments(description)
    parser.add_argument(
        "--nodes-as-is", action="store_true", help="use the testbed that runs, however many nodes it has"
    )
    return parser


class Testbed:
    """The one that runs."""

    def __init__(self) -> None:
        self.folder = places.state()
        self.kubeconfig = str(self.folder / "kubeconfig")
        if not Path(self.kubeconfig).exists():
            raise SystemExit("no testbed is running: make k8s-testbed, or leave --nodes-as-is out")
        self.api = Api.of(Path(self.kubeconfig))
        listed = self.api.get("/api/v1/nodes?resourceVersion=0")["items"]
        names = sorted(item["metadata"]["name"] for item in listed)
        self.nodes = [name for name in names if name.startswith("sim-")]
        self.programs = binaries.folder() / "bin"

    @contextlib.contextmanager
    def namespace(self) -> Iterator[str]:
        """Ready for pods; gone, with all in it, some time after the script."""
        name = f"weft-bench-{uuid.uuid4().hex[:8]}"
        self.api.post(
            "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        )
        until(lambda: self._has(f"/api/v1/namespaces/{name}/serviceaccounts/default"), "a service account")
        try:
            yield name
        finally:
            with contextlib.suppress(ApiError, OSError):
                self.wipe(name)
                self.api.delete(f"/api/v1/namespaces/{name}")

    def wipe(self, namespace: str) -> None:
        """Everything that a round left, so that the next finds the cluster as it was."""
        core = f"/api/v1/namespaces/{namespace}"
        self._delete_all(f"{core}/pods")
        self._delete_all(f"{core}/events")
        self._delete_all(f"{core}/secrets?fieldSelector=type%3DOpaque")
        self._delete_all(f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies")
        for service in self.api.get(f"{core}/services")["items"]:  # has no call for all at once
            self.api.delete(f"{core}/services/{service['metadata']['name']}")
        owners = f"{core}/configmaps?labelSelector=app.kubernetes.io/managed-by%3Dweft"
        self._delete_all(owners)  # last, or the controllers delete what they own beside us
        pods = f"/api/v1/namespaces/{namespace}/pods?limit=1"
        until(lambda: not self.api.get(pods)["items"], "its pods to be gone", WIPING, 0.2)

    def _delete_all(self, path: str) -> None:
        mark = "&" if "?" in path else "?"
        deadline = time.monotonic() + WIPING
        while self.api.get(f"{path}{mark}limit=1")["items"]:
            if time.monotonic() > deadline:
                raise SystemExit(f"waited {WIPING:g} s for {path} to be empty")
            with contextlib.suppress(
                ApiError, TimeoutError
            ):  # the API server gives up after a minute, and goes on
                self.api.delete(f"{path}{mark}gracePeriodSeconds=0")

    def _has(self, path: str) -> bool:
        try:
            return bool(self.api.get(path).get("secrets", True))
        except ApiError:
            return False

    def server_options(self, namespace: str) -> tuple[str, ...]:
        """What a Weft server is started with to use it."""
        where = ("--backend", "kubernetes", "--kubeconfig", self.kubeconfig, "--namespace", namespace)
        return (*where, "--image", WEFT_IMAGE, "--image-pull-policy", "Never")

    @contextlib.contextmanager
    def custom_resources(self) -> Iterator[None]:
        """Weft's own, as deploy/ installs them; they go again with what is in them, if they were not there before."""
        crds = str(BENCHMARKS.parent / "deploy" / "chart" / "crds")
        there = self._has("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainingjobs.weft.dev")
        self._kubectl("apply", "-f", crds)
        self._kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", crds)
        try:
            yield
        finally:
            if not there:
                self._kubectl("delete", "-f", crds)

    def _kubectl(self, *words: str) -> None:
        command = [str(self.programs / "kubectl"), "--kubeconfig", self.kubeconfig, *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def processor_seconds(self) -> dict[str, float]:
        """Used so far by each of its processes."""
        record = processes.read(self.folder)
        assert record is not None
        return {each.name: used(each.pid) for each in record.processes if processes.alive(each)}


def testbed(nodes: int, as_is: bool) -> Testbed:
    """One with so many simulated nodes: another one is taken down for it, unless it shall be used as it is."""
    if not as_is:
        record = processes.read(places.state())
        if record is None or not record.ready or record.options.get("nodes") != nodes:
            print(f"starting a testbed with {nodes} simulated nodes", flush=True)
            command = [PYTHON, "-m", "testbed", "up", "--nodes", str(nodes)]
            done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(SCRIPTS)}, check=False)
            if done.returncode:
                raise SystemExit(f"no testbed with {nodes} nodes could be started (docs/testbed.md)")
    found = Testbed()
    print(f"on a testbed with {len(found.nodes)} simulated nodes", flush=True)
    return found


def used(pid: int) -> float:
    """Processor seconds of a process."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def on_simulated(lasts: str = "forever", replicas: int = 1, **resources: Any) -> dict[str, Any]:
    """The roles of a job whose pods only seem to run."""
    worker = {
        "replicas": replicas,
        "resources": resources,
        "pod": {"metadata": {"annotations": {RUNS_FOR: lasts}}},
    }
    return {"worker": worker}


# ── kube-scheduler ─────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def kube_scheduler(where: Testbed) -> Iterator[int]:
    """One that places the pods of this script alone: those that name it."""
    with folder_on_disk() as folder:
        told = {
            "apiVersion": "kubescheduler.config.k8s.io/v1beta1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {
                "kubeconfig": str(where.folder / "keys" / "scheduler.kubeconfig"),
                "qps": 5000,
                "burst": 5000,
            },
            "leaderElection": {"leaderElect": False},
            "profiles": [{"schedulerName": KUBE}],
        }
        (folder / "scheduler.json").write_text(json.dumps(told))
        command = [
            str(where.programs / "kube-scheduler"),
            f"--config={folder / 'scheduler.json'}",
            "--port=0",
            "--secure-port=0",
        ]
        with (folder / "scheduler.log").open("wb") as output:
            running = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            yield running.pid
            if running.poll() is not None:
                raise SystemExit(f"kube-scheduler ended: {(folder / 'scheduler.log').read_text()[-2000:]}")
        finally:
            running.terminate()
            running.wait(30)


# ── the onlooker ─────────────────────────────────────────────────────────────────────────────────


class Onlooker:
    """Sees pods come and be bound. Times are this machine's, of the moment at which the watch told of it."""

    def __init__(self, kubeconfig: str, namespace: str, count: int):
        here, there = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._pipe = here
        self._process = context.Process(target=_look, args=(kubeconfig, namespace, count, there), daemon=True)
        self._process.start()
        if here.recv() != "looking":
            raise SystemExit("the onlooker sees nothing")

    def seen(self, timeout: float) -> dict[str, dict[str, float]]:
        """By `added` and `bound`, the moment for each pod, once all are bound."""
        if not self._pipe.poll(timeout):
            self._process.terminate()
            raise SystemExit(f"not all pods were bound within {timeout:g} s")
        found: dict[str, dict[str, float]] = self._pipe.recv()
        self._process.join()
        return found


def _look(kubeconfig: str, namespace: str, count: int, pipe: Connection) -> None:
    api = Api.of(Path(kubeconfig))
    path = f"/api/v1/namespaces/{namespace}/pods"
    listed = api.get(path)
    added = {item["metadata"]["name"]: time.time() for item in listed["items"]}
    bound: dict[str, float] = {}
    name = re.compile(rb'"metadata":\{"name":"([^"]+)"')
    lines = _lines(api, f"{path}?watch=1&resourceVersion={listed['metadata']['resourceVersion']}")
    pipe.send("looking")
    for line in lines:
        found = name.search(line)
        if found is None:
            continue
        pod = found[1].decode()
        added.setdefault(pod, time.time())
        if pod not in bound and b'"nodeName":"' in line:
            bound[pod] = time.time()
            if len(bound) == count:
                break
    pipe.send({"added": added, "bound": bound})


def _lines(api: Api, path: str) -> Iterator[bytes]:
    """Not parsed: whoever looks on must not be what is waited for."""
    connection = api._connect(timeout=600)
    connection.request("GET", path, headers=api._headers)
    answer = connection.getresponse()
    if answer.status != 200:
        raise SystemExit(f"watching: {answer.status} {answer.read()[:200]!r}")
    return iter(answer.readline, b"")


def metric_values(text: str, name: str) -> dict[str, float]:
    """Of one metric in Prometheus' format: by its label's value, or by nothing."""
    found = {}
    for line in text.splitlines():
        if matched := re.fullmatch(rf'{name}(?:\{{\w+="([^"]*)"\}})? (\S+)', line):
            found[matched[1] or ""] = float(matched[2])
    return found
