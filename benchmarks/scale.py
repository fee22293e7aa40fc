"""A server with 10,000 finished and 1,000 queued jobs: its memory, and how fast it is back after kill -9."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import history
from harness import (
    MEGABYTE,
    Claim,
    Connection,
    Server,
    arguments,
    clean_memory,
    folder_on_disk,
    job,
    print_table,
    processes_with,
    publish,
    spread,
    submit_all,
    until,
)

FINISHED = 10_000
QUEUED = 1_000


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    restarts = 2 if options.quick else 5
    clean_memory()
    with folder_on_disk() as folder:
        history.fill(folder / "home", FINISHED)
        with Server(folder / "home") as server:
            empty_queue = memory(server.pid)
            queue_up(server)
            after_submit = memory(server.pid)
            list_everything(server)
            after_listing = memory(server.pid)
            back = [restart(server) for _ in range(restarts)]
            after_restart = memory(server.pid)
            beside = sum(memory(pid)["pss"] for pid in processes_with(str(server.home)) if pid != server.pid)
    moments = {
        "10,000 finished, none queued": empty_queue,
        "and 1,000 queued": after_submit,
        "after a listing of all in full": after_listing,
        "after a restart with them": after_restart,
    }
    rows = [(what, f"{m['rss']:.0f}", f"{m['pss']:.0f}") for what, m in moments.items()]
    print_table(("server memory", "RSS MB", "PSS MB"), rows)
    most = max(found["rss"] for found in moments.values())
    claims = [
        Claim("Server memory with 10,000 finished and 1,000 queued jobs", most, 250.0, " MB", digits=0),
        Claim("Restart with them, from kill -9 to the whole queue", statistics.median(back), 2.0, " s"),
    ]
    details = {
        "megabytes": {
            what: {name: round(value, 1) for name, value in found.items()} for what, found in moments.items()
        },
        "megabytesOfLauncherSupervisorAndTask": round(beside, 1),
        "restartSeconds": spread(back, 3),
    }
    publish("scale", claims, details, options.quick)


def queue_up(server: Server) -> None:
    """A sleeper holds every CPU; the rest waits behind it."""
    with Connection(server) as connection:
        cpus = connection.get("/v1/nodes")["items"][0]["capacity"]["cpu"]
        everything = {"worker": {"resources": {"cpu": cpus}}}
        connection.submit(job("sleeper", ["sleep", "3600"], roles=everything))
        until(lambda: state_of(connection, "sleeper") == "PROCESSING", "the sleeper to run")
    documents = [job(f"waiting-{n:04d}", ["python", "train.py"], env={"SEED": str(n)}) for n in range(QUEUED)]
    submit_all(server, [server.request("POST", "/v1/jobs", document) for document in documents], 8)
    with Connection(server) as connection:
        if (waiting := len(connection.get("/v1/queue")["items"])) != QUEUED:
            raise SystemExit(f"{waiting} jobs wait in place of {QUEUED}")


def list_everything(server: Server) -> None:
    with Connection(server) as connection:
        for view in ("summary", "full"):
            found = connection.get(f"/v1/jobs?limit=100000&view={view}")["items"]
            if len(found) != FINISHED + QUEUED + 1:
                raise SystemExit(f"the list has {len(found)} jobs")


def restart(server: Server) -> float:
    begin = time.perf_counter()
    server.kill()
    server.start()
    with Connection(server) as connection:
        until(lambda: len(connection.get("/v1/queue")["items"]) == QUEUED, "the queue", 30, 0.002)
        seconds = time.perf_counter() - begin
        if (state := state_of(connection, "sleeper")) != "PROCESSING":
            raise SystemExit(f"the sleeper is {state} after a restart")
    return seconds


def state_of(connection: Connection, name: str) -> str:
    state: str = connection.get(f"/v1/jobs/{name}")["status"]["state"]
    return state


def memory(pid: int) -> dict[str, float]:
    """Resident and proportional megabytes (1,048,576 bytes) of a process."""
    found = {"rss": 0.0, "pss": 0.0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.lower() in found:
            found[name.lower()] = int(rest.split()[0]) * 1024 / MEGABYTE
    return found


if __name__ == "__main__":
    main()
