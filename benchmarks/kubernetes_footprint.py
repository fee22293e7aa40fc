"""What the control plane itself costs with 1,000 queued and 300 running jobs on Kubernetes: processor, memory, API calls.

The jobs run on simulated nodes. At first nothing happens for a minute; then for a minute five jobs a second end, five of the
queue take their places, and five new ones are submitted. A job's pod is ended by its annotation, so it ends by itself.
What is counted is the one process of the control plane, between the two ends of each minute. Weft's custom resources are
installed, so each job is also shown as a TrainingJob, with its status and events.
"""

from __future__ import annotations

import contextlib
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

from harness import (
    Claim,
    Connection,
    Server,
    clean_memory,
    folder_on_disk,
    job,
    publish,
    submit_all,
    table,
    until,
)
from scale import memory
from testbeds import RUNS_FOR, SIMULATED, Testbed, metric_values, on_simulated, options_of, testbed, used

QUEUED, RUNNING, NODES = 1_000, 300, 300
PER_SECOND = 5.0
SECONDS = 60.0
GPUS = 8


def main() -> None:
    parser = options_of(__doc__ or "")
    parser.add_argument("--queued", type=int, default=None, help=f"{QUEUED} if not said")
    parser.add_argument("--seconds", type=float, default=None, help=f"{SECONDS:g} if not said")
    options = parser.parse_args()
    queued = options.queued or (100 if options.quick else QUEUED)
    seconds = options.seconds or (10.0 if options.quick else SECONDS)
    clean_memory()
    where = testbed(NODES, options.nodes_as_is or options.quick)
    gpus = next(g for g in (8, 4, 2, 1) if len(where.nodes) * (GPUS // g) >= RUNNING or g == 1)
    running = min(RUNNING, len(where.nodes) * (GPUS // gpus))
    with where.custom_resources(), where.namespace() as namespace, folder_on_disk() as folder:
        with Server(
            folder / "home", *where.server_options(namespace), "--health", "127.0.0.1:8499"
        ) as server:
            work = Work(where, namespace, server, gpus)
            empty = work.watched(seconds, ends=False)
            work.fill(running, queued)
            quiet = work.watched(seconds, ends=False)
            busy = work.watched(seconds, ends=True)
        where.wipe(namespace)
    phases = {"no job": empty, "nothing happens": quiet, f"{PER_SECOND:g} jobs a second end and start": busy}
    rows = [
        (
            what,
            f"{found['cores']:.3f}",
            f"{found['rss']:.0f}",
            f"{found['pss']:.0f}",
            f"{found['callsPerSecond']:.1f}",
        )
        for what, found in phases.items()
    ]
    caption = f"The control plane with {queued:,} queued and {running:,} running jobs on {len(where.nodes):,} nodes:"
    shown = table(caption, ("While", "Cores", "RSS MB", "PSS MB", "API calls a second"), rows)
    calls = [(call, f"{count:.2f}") for call, count in sorted(busy["callsPerJob"].items()) if count >= 0.005]
    counted = table("API calls a job, from its place to its end:", ("Call", "a job"), calls)
    lists = sum(found["calls"].get("LIST pods", 0) for found in phases.values())
    most = max(found["rss"] for found in phases.values())
    with_jobs = f"Kubernetes: control plane with {queued:,} queued and {running:,} running jobs"
    claims = [
        Claim(f"{with_jobs}, {PER_SECOND:g} a second ending and starting, cores", busy["cores"], 1.0),
        Claim("… its memory", most, 400.0, " MB", digits=0),
        Claim("… lists of pods after its start", lists, 0, digits=0),
    ]
    details = {"phases": phases, "queued": queued, "running": running, "tables": [shown, counted]}
    publish("kubernetes_footprint", claims, details, options.quick)


class Work:
    """Jobs that run, jobs that wait, and one that looks at what it costs."""

    def __init__(self, where: Testbed, namespace: str, server: Server, gpus: int):
        self.where, self.namespace, self.server, self.gpus = where, namespace, server, gpus
        self.made = 0

    def fill(self, running: int, queued: int) -> None:
        requests = [self._request() for _ in range(running + queued)]
        submit_all(self.server, requests, 8)
        until(lambda: self._states().get("PROCESSING") == running, f"{running} jobs to run", 300, 0.5)
        until(lambda: self._states().get("QUEUED") == queued, f"{queued} jobs to wait", 60, 0.5)
        time.sleep(5)

    def watched(self, seconds: float, *, ends: bool) -> dict[str, Any]:
        before, processor, began = self._calls(), used(self.server.pid), time.monotonic()
        ended = 0
        if ends:
            with Connection(self.server) as connection:
                pods = self._pods()
                while time.monotonic() - began < seconds:
                    name = next(pods)
                    self.where.api.patch(
                        f"/api/v1/namespaces/{self.namespace}/pods/{name}",
                        {"metadata": {"annotations": {RUNS_FOR: "0"}}},
                    )
                    status, body = connection.exchange(self._request())
                    if status != 201:
                        raise SystemExit(f"a submission was answered {status}: {body[:300]!r}")
                    ended += 1
                    time.sleep(max(0.0, began + ended / PER_SECOND - time.monotonic()))
        else:
            time.sleep(seconds)
        passed = time.monotonic() - began
        calls = {call: count - before.get(call, 0) for call, count in self._calls().items()}
        return {
            "seconds": round(passed, 2),
            "cores": round((used(self.server.pid) - processor) / passed, 4),
            **{name: round(value, 1) for name, value in memory(self.server.pid).items()},
            "callsPerSecond": round(sum(calls.values()) / passed, 2),
            "calls": {call: count for call, count in calls.items() if count},
            "jobsEnded": ended,
            "callsPerJob": {call: count / ended for call, count in calls.items() if ended},
        }

    def _request(self) -> bytes:
        self.made += 1
        roles = on_simulated("forever", cpu=1, memory="1Gi", gpu=self.gpus)
        document = job(f"bench-{self.made:05}", ["true"], roles=roles, placement=SIMULATED)
        return self.server.request("POST", "/v1/jobs", document)

    def _pods(self) -> Iterator[str]:
        """Those that run, the oldest first, and those that came after them."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        told: set[str] = set()
        while True:
            items = self.where.api.get(f"{path}?resourceVersion=0")["items"]
            running = [item["metadata"] for item in items if item["status"]["phase"] == "Running"]
            fresh = [pod for pod in running if pod["name"] not in told]
            if not fresh:
                raise SystemExit("no pod runs that could end")
            for pod in sorted(fresh, key=lambda pod: pod["creationTimestamp"]):
                told.add(pod["name"])
                yield pod["name"]

    def _metrics(self) -> str:
        with contextlib.closing(
            urllib.request.urlopen("http://127.0.0.1:8499/metrics", timeout=10)
        ) as answer:
            found: str = answer.read().decode()
        return found

    def _states(self) -> dict[str, float]:
        return metric_values(self._metrics(), "weft_jobs")

    def _calls(self) -> dict[str, float]:
        return metric_values(self._metrics(), "weft_api_calls_total")


if __name__ == "__main__":
    main()
