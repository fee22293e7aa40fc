"""Nodes by the hundred that are only objects: kept Ready by their leases, their pods led through a life.

python -m testbed.simulated KUBECONFIG NODES    (started by `up`; runs until it is ended)
"""

from __future__ import annotations

import datetime
import heapq
import http.client
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .api import Api, ApiError, Document
from .controlplane import GRACE
from .lives import Kind, Move, Pod, next_move, seconds, status, timestamp
from .node import LABEL

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
RENEW_EVERY = GRACE / 3
NODES_IN_A_RACK = 16
CALLERS = 8
RACK = "testbed.weft.dev/rack"
LOST = "testbed.weft.dev/lost"
"""A node with this label set to `true` is no longer kept up, as if its machine had died."""


@dataclass(frozen=True)
class Shape:
    """What each simulated node has."""

    cpu: int = 32
    memory: str = "256Gi"
    gpus: int = 8
    pods: int = 110


def name_of(index: int) -> str:
    return f"sim-{index:04}"


def node(index: int, shape: Shape, now: float) -> Document:
    name = name_of(index)
    room = {"cpu": str(shape.cpu), "memory": shape.memory, "pods": str(shape.pods)}
    room["ephemeral-storage"] = "100Gi"
    room["nvidia.com/gpu"] = str(shape.gpus)
    labels = {
        LABEL: "simulated",
        RACK: f"rack-{index // NODES_IN_A_RACK:02}",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    stamp = timestamp(now)
    ready = {"type": "Ready", "status": "True", "reason": "Simulated", "message": "kept up by the testbed"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": room,
            "allocatable": room,
            "addresses": [{"type": "Hostname", "address": name}],
            "conditions": [{**ready, "lastHeartbeatTime": stamp, "lastTransitionTime": stamp}],
            "nodeInfo": {"kubeletVersion": "simulated", "operatingSystem": "linux", "architecture": "amd64"},
        },
    }


def lease(name: str, now: float) -> Document:
    precise = datetime.datetime.fromtimestamp(now, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": name, "leaseDurationSeconds": GRACE, "renewTime": precise}
    metadata = {"name": name, "namespace": "kube-node-lease"}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


class Simulator:
    """One watch over all pods; a queue of what to do when; a few threads that tell the API server."""

    def __init__(self, api: Api, names: list[str], clock: Callable[[], float] = time.time) -> None:
        self.api = api
        self.clock = clock
        self.names = frozenset(names)
        self.callers = ThreadPoolExecutor(CALLERS)
        self.lost: frozenset[str] = frozenset()
        self._due: list[tuple[float, int, str, Move, Pod]] = []
        self._planned: dict[str, Move] = {}
        self._running: dict[str, float] = {}
        self._count = 0
        self._changed = threading.Condition()

    def register(self, shape: Shape) -> None:
        def one(index: int) -> None:
            document = node(index, shape, self.clock())
            try:
                self.api.post("/api/v1/nodes", document)
            except ApiError as problem:
                if problem.status != http.client.CONFLICT:
                    raise
                self.api.patch(f"/api/v1/nodes/{name_of(index)}/status", {"status": document["status"]})
            self.renew(name_of(index))

        list(self.callers.map(one, range(len(self.names))))

    def renew(self, name: str) -> None:
        document = lease(name, self.clock())
        try:
            self.api.patch(f"{LEASES}/{name}", {"spec": document["spec"]})
        except ApiError as problem:
            if problem.status != http.client.NOT_FOUND:
                raise
            self.api.post(LEASES, document)

    def renew_forever(self) -> None:
        """Spread over the time between two renewals: 300 at once would be felt by whoever measures."""
        names = sorted(self.names)
        while True:
            begun = time.monotonic()
            self._look_for_lost()
            for done, name in enumerate(names):
                if name not in self.lost:
                    _attempt(self.renew, name)
                time.sleep(max(0.0, begun + RENEW_EVERY * (done + 1) / len(names) - time.monotonic()))

    def _look_for_lost(self) -> None:
        def look() -> None:
            listed = self.api.get(f"/api/v1/nodes?labelSelector={LOST}%3Dtrue")
            self.lost = frozenset(item["metadata"]["name"] for item in listed["items"])

        _attempt(look)

    def watch_forever(self) -> None:
        while True:
            try:
                listed = self.api.get("/api/v1/pods?resourceVersion=0")
                for pod in listed["items"]:
                    self.consider(pod)
                for event in self.api.watch("/api/v1/pods", listed["metadata"]["resourceVersion"]):
                    if event["type"] == "ERROR":  # too old: list again
                        break
                    if event["type"] != "BOOKMARK":
                        self.consider(event["object"], gone=event["type"] == "DELETED")
            except (OSError, http.client.HTTPException, ApiError, ValueError) as problem:
                print(f"watching pods: {problem}; again in 1 s", flush=True)
                time.sleep(1)

    def consider(self, pod: Pod, gone: bool = False) -> None:
        """Plan the pod's next move, unless it is planned already."""
        where = pod["spec"].get("nodeName", "")
        if where not in self.names or where in self.lost:
            return
        uid = pod["metadata"]["uid"]
        with self._changed:
            if gone:
                self._planned.pop(uid, None)
                self._running.pop(uid, None)
                return
            began = self._running.get(uid)
            if began is None and (told := pod.get("status", {}).get("startTime")):
                began = seconds(told)
            move = next_move(pod, began, self.clock())
            planned = self._planned.get(uid)
            if move is None or (planned is not None and planned.kind is move.kind):
                return
            self._planned[uid] = move
            self._count += 1
            heapq.heappush(self._due, (move.at, self._count, uid, move, pod))
            self._changed.notify()

    def act_forever(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > self.clock():
                    self._changed.wait(self._due[0][0] - self.clock() if self._due else None)
            for uid, move, pod in self.due():
                self.callers.submit(self.carry_out, uid, move, pod)

    def due(self) -> list[tuple[str, Move, Pod]]:
        """What is to be done by now, without the moves that another one came before."""
        ready = []
        with self._changed:
            while self._due and self._due[0][0] <= self.clock():
                _, _, uid, move, pod = heapq.heappop(self._due)
                if self._planned.get(uid) is move:
                    ready.append((uid, move, pod))
        return ready

    def carry_out(self, uid: str, move: Move, pod: Pod) -> None:
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        now = self.clock()
        try:
            if move.kind is Kind.RUN:
                self._running[uid] = now
            if move.kind is Kind.REMOVE:
                self.api.delete(path, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
            else:
                # The uid makes the server refuse if another pod has the name by now.
                self.api.patch(f"{path}/status", {"metadata": {"uid": uid}, "status": status(pod, move, now)})
        except ApiError as problem:
            # Gone, or another pod by that name: nothing left to do.
            if problem.status not in (http.client.NOT_FOUND, http.client.CONFLICT):
                print(f"pod {path}: {move.kind.value}: {problem}", flush=True)
        except (OSError, http.client.HTTPException) as problem:
            print(f"pod {path}: {move.kind.value}: {problem}; again in 1 s", flush=True)
            with self._changed:
                self._count += 1
                heapq.heappush(self._due, (now + 1, self._count, uid, move, pod))
                self._changed.notify()


def _attempt(call: Any, *arguments: Any) -> None:
    try:
        call(*arguments)
    except (OSError, http.client.HTTPException, ApiError) as problem:
        print(f"{call.__name__}{arguments}: {problem}", flush=True)


def main() -> None:
    kubeconfig, count = Path(sys.argv[1]), int(sys.argv[2])
    simulator = Simulator(Api.of(kubeconfig), [name_of(index) for index in range(count)])
    begun = time.monotonic()
    simulator.register(Shape())
    print(f"{count} nodes registered in {time.monotonic() - begun:.1f} s", flush=True)
    threading.Thread(target=simulator.watch_forever, daemon=True).start()
    threading.Thread(target=simulator.renew_forever, daemon=True).start()
    simulator.act_forever()


if __name__ == "__main__":
    main()
