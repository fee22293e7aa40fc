"""The process behind the simulated nodes, against an API server that only remembers what it was told."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from testbed.api import Api, ApiError
from testbed.lives import timestamp
from testbed.simulated import Shape, Simulator


class Server:
    def __init__(self) -> None:
        self.told: list[tuple[str, str, str]] = []
        self.refuses: ApiError | OSError | None = None

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._note("post", path, body["metadata"]["name"])

    def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if "/leases/" in path and ("post", path.rpartition("/")[0], path.rpartition("/")[2]) not in self.told:
            raise ApiError(404, "no such lease")
        return self._note("patch", path, body.get("status", {}).get("phase", ""))

    def delete(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._note("delete", path, body["preconditions"]["uid"])

    def _note(self, *told: str) -> dict[str, Any]:
        if self.refuses is not None:
            raise self.refuses
        self.told.append(cast(tuple[str, str, str], told))
        return {}


class World:
    """One simulator, its server and a clock that only the test moves."""

    def __init__(self, nodes: int = 1) -> None:
        self.now = 1000.0
        self.server = Server()
        names = [f"sim-{index:04}" for index in range(nodes)]
        self.simulator = Simulator(cast(Api, self.server), names, clock=lambda: self.now)

    def sees(
        self, phase: str, node: str = "sim-0000", deleted: bool = False, uid: str = "u", **notes: str
    ) -> None:
        annotations = {f"testbed.weft.dev/{name.replace('_', '-')}": value for name, value in notes.items()}
        metadata: dict[str, Any] = {"name": "p", "namespace": "n", "uid": uid, "annotations": annotations}
        if deleted:
            metadata["deletionTimestamp"] = timestamp(self.now)
        spec = {"nodeName": node, "containers": [{"name": "main"}]}
        self.simulator.consider({"metadata": metadata, "spec": spec, "status": {"phase": phase}})

    def does(self, after: float = 0) -> list[str]:
        """What the server is told when so much time has passed."""
        self.now += after
        before = len(self.server.told)
        for uid, move, pod in self.simulator.due():
            self.simulator.carry_out(uid, move, pod)
        return [what or verb for verb, _, what in self.server.told[before:]]


def test_a_pod_runs_and_succeeds() -> None:
    world = World()
    world.sees("Pending", runs_for="5")
    assert world.does() == ["Running"]
    world.sees("Running", runs_for="5")
    assert world.does(after=4.9) == []
    assert world.does(after=0.2) == ["Succeeded"]


def test_what_is_seen_twice_is_done_once() -> None:
    world = World()
    world.sees("Pending")
    world.sees("Pending")
    assert world.does() == ["Running"]
    world.sees("Running")
    world.sees("Running")
    assert world.does(after=2) == ["Succeeded"]


def test_a_pod_deleted_while_it_runs_is_removed_and_never_ends() -> None:
    world = World()
    world.sees("Pending", runs_for="5")
    world.does()
    world.sees("Running", runs_for="5")
    world.sees("Running", deleted=True, runs_for="5")
    assert world.does(after=10) == ["u"]


def test_pods_of_other_and_of_lost_nodes_are_left_alone() -> None:
    world = World()
    world.sees("Pending", node="real-0")
    world.simulator.lost = frozenset({"sim-0000"})
    world.sees("Pending")
    assert world.does() == []


def test_a_move_that_did_not_reach_the_server_is_made_again() -> None:
    world = World()
    world.sees("Pending")
    world.server.refuses = OSError("connection refused")
    assert world.does() == []
    world.server.refuses = None
    assert world.does(after=1) == ["Running"]


def test_every_node_is_registered_with_its_lease() -> None:
    world = World(nodes=3)
    world.simulator.register(Shape())
    told = sorted((path.rpartition("/")[2], name) for _, path, name in world.server.told)
    names = ["sim-0000", "sim-0001", "sim-0002"]
    assert told == [*(("leases", name) for name in names), *(("nodes", name) for name in names)]
