"""From a submission to the user's process running in a container on a real kubelet, against a bare pod of the same image.

Against one with `nodeName` set, and one that kube-scheduler places; all on the same node and in turn. The process says itself when it began, by the kernel's clock since boot (a kubelet tells
whole seconds only): reading it is the first thing it does. What Weft adds is the control plane, and in the pod its
agent, a second container that is started beside the task and lets it go.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from harness import (
    Claim,
    Connection,
    Server,
    clean_memory,
    expect_created,
    folder_on_disk,
    job,
    publish,
    spread,
    table,
    until,
)
from testbeds import BUSYBOX, KUBE, REAL_NODE, ApiError, Testbed, kube_scheduler, options_of, testbed

LIMIT_MS = 500.0
SAYS = "read up idle < /proc/uptime; echo began $up"
HERE = {"selector": {"testbed.weft.dev/kind": "real"}}
SMALL = {"cpu": 0.1, "memory": "64Mi"}


def main() -> None:
    parser = options_of(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=None, help="10 if not said")
    options = parser.parse_args()
    rounds = options.rounds or (2 if options.quick else 10)
    clean_memory()
    where = running_testbed(options)
    times: dict[str, list[float]] = {
        name: [] for name in ("bare", "placed", "weft", "processing", "answered")
    }
    with (
        where.namespace() as namespace,
        folder_on_disk() as folder,
        Server(folder / "home", *where.server_options(namespace)) as server,
        Connection(server) as connection,
        kube_scheduler(where),
    ):
        bare_pod(where, namespace, "warm-up")
        bare_pod(where, namespace, "warm-up-placed", placed=True)
        weft_job(server, connection, "warm-up")
        for number in range(rounds):
            times["bare"].append(bare_pod(where, namespace, f"bare-{number}"))
            times["placed"].append(bare_pod(where, namespace, f"placed-{number}", placed=True))
            for name, value in weft_job(server, connection, f"weft-{number}").items():
                times[name].append(value)
            print(
                f"  round {number}: bare {times['bare'][-1]:.0f} ms, placed {times['placed'][-1]:.0f} ms, "
                f"Weft {times['weft'][-1]:.0f} ms",
                flush=True,
            )
    middle = {name: statistics.median(found) for name, found in times.items()}
    names = {
        "bare": "a bare pod with `nodeName` set: its process runs",
        "placed": "a bare pod that kube-scheduler places: its process runs",
        "weft": "a job: its process runs",
        "processing": "… Weft says PROCESSING",
        "answered": "… the submission is answered (committed)",
    }
    rows = [
        (what, f"{middle[n]:.0f}", f"{min(times[n]):.0f} to {max(times[n]):.0f}") for n, what in names.items()
    ]
    shown = table(
        f"On a real kubelet, {rounds} times in turn:",
        ("From the call until", "Median ms", "all rounds"),
        rows,
    )
    extra = middle["weft"] - middle["bare"]
    claim = Claim(
        "Kubernetes: submit to user process started, more than a bare pod", extra, LIMIT_MS, " ms", digits=0
    )
    details = {"milliseconds": {name: spread(found, 1) for name, found in times.items()}, "tables": [shown]}
    publish("kubernetes_start", [claim], details, options.quick)


def running_testbed(options: Any) -> Testbed:
    """Any will do: the real node is what is measured."""
    try:
        return testbed(0, as_is=True)
    except SystemExit:
        if options.nodes_as_is:
            raise
        return testbed(20, as_is=False)


def since_boot() -> float:
    """What /proc/uptime tells, in hundredths only."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def began(lines: str) -> float:
    return float(lines.split("began ")[1].split(maxsplit=1)[0])


def bare_pod(where: Testbed, namespace: str, name: str, *, placed: bool = False) -> float:
    """Milliseconds until its process ran. `placed`: by kube-scheduler, as everybody else's pods are."""
    limits = {"cpu": "100m", "memory": "64Mi"}
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", SAYS],
        "resources": {"limits": limits},
    }
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    where_to = (
        {"schedulerName": KUBE, "nodeSelector": HERE["selector"]} if placed else {"nodeName": REAL_NODE}
    )
    pod["spec"] |= where_to
    path = f"/api/v1/namespaces/{namespace}/pods"
    begin = since_boot()
    where.api.post(path, pod)
    until(lambda: where.api.get(f"{path}/{name}")["status"]["phase"] == "Succeeded", f"pod {name}", 60, 0.1)
    line = log_of(where, f"{path}/{name}/log")
    where.api.delete(f"{path}/{name}", {"gracePeriodSeconds": 0})
    until(lambda: not there(where, f"{path}/{name}"), f"pod {name} to be gone", 60, 0.1)
    time.sleep(2)  # kubelet is still tidying up
    return 1000 * (began(line) - begin)


def log_of(where: Testbed, path: str) -> str:
    connection = where.api._connect()
    connection.request("GET", path, headers=where.api._headers)
    return connection.getresponse().read().decode()


def there(where: Testbed, path: str) -> bool:
    try:
        where.api.get(path)
    except ApiError:
        return False
    return True


def weft_job(server: Server, connection: Connection, name: str) -> dict[str, float]:
    """Milliseconds until its process ran, until Weft said so, and until the submission was answered."""
    document = job(
        name, ["sh", "-c", SAYS], image=BUSYBOX, placement=HERE, roles={"worker": {"resources": SMALL}}
    )
    request = server.request("POST", "/v1/jobs", document)
    wall, begin = time.time(), since_boot()
    answer = connection.exchange(request)
    answered = since_boot()
    expect_created(answer)
    path = f"/v1/jobs/{name}"
    until(lambda: connection.get(path)["status"]["state"] == "COMPLETED", f"{name} to complete", 60, 0.1)
    (line,) = connection.get(f"{path}/logs")["items"]
    events = connection.get(f"{path}/events")["items"]
    processing = next(moment(event) for event in events if event.get("state") == "PROCESSING")
    time.sleep(2)
    return {
        "weft": 1000 * (began(line["text"]) - begin),
        "processing": 1000 * (processing - wall),
        "answered": 1000 * (answered - begin),
    }


def moment(event: dict[str, Any]) -> float:
    at: float = event["time"]
    return at


if __name__ == "__main__":
    main()
