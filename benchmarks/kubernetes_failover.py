"""Two control planes on one home; the leader is killed with kill -9: how long until the other one places a job.

A job waits for a node that somebody else's pod fills. The leader is killed, that pod is deleted at once, and what counts is
the first decision of the other one: the moment at which the waiting job is no longer QUEUED but DEPLOYING. Nobody decides
before the lease has run out (3 s after its last renewal), so that is the least there is.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from harness import (
    PYTHON,
    Claim,
    Connection,
    Server,
    clean_memory,
    end_processes_with,
    folder_on_disk,
    job,
    publish,
    spread,
    table,
    until,
)
from kubernetes_start import moment, running_testbed
from testbeds import RUNS_FOR, ApiError, Testbed, on_simulated, options_of

LIMIT_S = 5.0


def main() -> None:
    parser = options_of(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=None, help="5 if not said")
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else 5)
    clean_memory()
    where = running_testbed(options)
    if not where.nodes:
        raise SystemExit("the testbed has no simulated nodes: make k8s-testbed")
    found: dict[str, list[float]] = {"lease": [], "answers": [], "decides": [], "running": []}
    with where.namespace() as namespace, folder_on_disk() as folder:
        pair = Pair(folder / "home", where.server_options(namespace))
        try:
            for number in range(rounds):
                for name, seconds in fail_over(where, namespace, pair, number).items():
                    found[name].append(seconds)
                print(f"  round {number}: {found['decides'][-1]:.2f} s", flush=True)
        finally:
            pair.end()
    names = {
        "lease": "the other one has the lease",
        "answers": "… answers requests",
        "decides": "… places the job that waits",
        "running": "… knows that its pod runs",
    }
    rows = [
        (what, f"{statistics.median(found[n]):.2f}", f"{min(found[n]):.2f} to {max(found[n]):.2f}")
        for n, what in names.items()
    ]
    shown = table(f"kill -9 of the leader, {rounds} times:", ("Until", "Median s", "all rounds"), rows)
    claim = Claim(
        "Kubernetes: kill -9 of the leading control plane to the other's next decision",
        statistics.median(found["decides"]),
        LIMIT_S,
        " s",
    )
    details = {"seconds": {name: spread(each, 3) for name, each in found.items()}, "tables": [shown]}
    publish("kubernetes_failover", [claim], details, options.quick)


class Pair:
    """A leader and who waits to be one. Whoever is killed is replaced by a new one that waits."""

    def __init__(self, home: Path, options: tuple[str, ...]):
        self.home, self.options = home, options
        home.mkdir(mode=0o700)
        self.leader = self._begin()
        until(lambda: self.leads(self.leader), "the first to lead", 60)
        self.other = self._begin()

    def _begin(self) -> subprocess.Popen[bytes]:
        with (self.home.parent / "servers.log").open("ab") as output:
            command = [PYTHON, "-m", "weft.server", "--home", str(self.home), "--leader", *self.options]
            environment = {**os.environ, "WEFT_HOME": str(self.home)}
            return subprocess.Popen(command, stdout=output, stderr=output, env=environment)

    def leads(self, process: subprocess.Popen[bytes]) -> bool:
        """It has told where it is, and answers there."""
        if process.poll() is not None:
            raise SystemExit(f"a server ended: {(self.home.parent / 'servers.log').read_text()[-2000:]}")
        try:
            return bool(
                json.loads((self.home / "server.json").read_bytes())["pid"] == process.pid
            ) and self.server()._answers(self.home / "server.json")
        except (OSError, ValueError, KeyError):
            return False

    def server(self) -> Server:
        """Who leads, to be spoken to."""
        found = Server(self.home)
        found._answers(self.home / "server.json")
        return found

    def waits(self) -> bool:
        lines = (self.home.parent / "servers.log").read_text().splitlines()
        return any(f"-{self.leader.pid} leads; waiting" in line for line in lines)

    def kill_leader(self) -> None:
        self.leader.send_signal(signal.SIGKILL)

    def follow(self) -> None:
        self.leader.wait(30)
        self.leader, self.other = self.other, self._begin()

    def end(self) -> None:
        end_processes_with(str(self.home))


def fail_over(where: Testbed, namespace: str, pair: Pair, number: int) -> dict[str, float]:
    """Seconds from the kill."""
    node, name = where.nodes[number % len(where.nodes)], f"waits-{number}"
    foreign = their_pod(where, namespace, node)
    with Connection(pair.server()) as connection:
        until(lambda: free_gpus(connection, node) == 0, "their pod to be seen", 60, 0.1)
        here = {"selector": {"kubernetes.io/hostname": node}}
        connection.submit(job(name, ["true"], roles=on_simulated("forever", cpu=1, gpu=1), placement=here))
        until(lambda: state(connection, name) == "QUEUED", f"{name} to wait", 10)
    until(pair.waits, "the other one to wait", 60, 0.05)
    time.sleep(1 + 0.17 * number)  # at another moment between two renewals each time
    killed = time.time()
    pair.kill_leader()
    where.api.delete(foreign, {"gracePeriodSeconds": 0})
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/weft"
    until(lambda: holder(where, lease).endswith(f"-{pair.other.pid}"), "the lease to move", 60, 0.02)
    moved = time.time()
    pair.follow()
    until(lambda: pair.leads(pair.leader), "the other one to answer", 60, 0.02)
    answered = time.time()
    with Connection(pair.server()) as connection:
        until(lambda: state(connection, name) == "PROCESSING", f"{name} to run", 60, 0.05)
        connection.post(f"/v1/jobs/{name}/cancel")
        until(lambda: state(connection, name) == "CANCELLED", f"{name} to end", 60, 0.1)
        events = connection.get(f"/v1/jobs/{name}/events")["items"]
    at = {event["state"]: moment(event) for event in events if event.get("state")}
    return {
        "lease": moved - killed,
        "answers": answered - killed,
        "decides": at["DEPLOYING"] - killed,
        "running": at["PROCESSING"] - killed,
    }


def their_pod(where: Testbed, namespace: str, node: str) -> str:
    """Of nobody that Weft knows, with all GPUs of a node; its path."""
    name = f"theirs-{node}"
    container = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {RUNS_FOR: "forever"}},
        "spec": {"nodeName": node, "containers": [container]},
    }
    where.api.post(f"/api/v1/namespaces/{namespace}/pods", pod)
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def holder(where: Testbed, lease: str) -> str:
    try:
        return str(where.api.get(lease)["spec"].get("holderIdentity") or "")
    except ApiError:
        return ""


def free_gpus(connection: Connection, node: str) -> int:
    found: dict[str, Any] = {item["name"]: item for item in connection.get("/v1/nodes")["items"]}
    return int(found[node]["free"]["gpu"])


def state(connection: Connection, name: str) -> str:
    found: str = connection.get(f"/v1/jobs/{name}")["status"]["state"]
    return found


if __name__ == "__main__":
    main()
