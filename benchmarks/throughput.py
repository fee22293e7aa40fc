"""1,000 no-op jobs, one call each, until the last COMPLETED is on disk; against bare fork, exec and reap."""

from __future__ import annotations

import statistics
import subprocess
import time
from typing import Any

import peers
from harness import (
    WAYS,
    Claim,
    Connection,
    Server,
    arguments,
    clean_memory,
    folder_on_disk,
    job,
    print_table,
    publish,
    spread,
    submit_all,
    timed,
)

OVER_DECLARED = ("--cpu", "16")
POLL_SECONDS = 0.02


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--no-peers", action="store_true", help="leave Slurm and Ray out")
    parser.add_argument("--install-peers", action="store_true", help="install Slurm and Ray first")
    options = parser.parse_args()
    if options.install_peers:
        peers.install()
    jobs = options.jobs or (300 if options.quick else 1000)
    rounds = options.rounds or (2 if options.quick else 7)
    clean_memory()

    bare = [bare_rate(jobs)]
    weft: list[float] = []
    for _ in range(rounds):
        weft.append(weft_rate(jobs, 8, OVER_DECLARED))
        bare.append(bare_rate(jobs))
    ratios = [2 * rate / (bare[i] + bare[i + 1]) for i, rate in enumerate(weft)]
    others = 1 if options.quick else 3
    one_by_one = [weft_rate(jobs, 1, OVER_DECLARED) for _ in range(others)]
    as_it_is = [weft_rate(jobs, 8, ()) for _ in range(others)]
    beside = [] if options.no_peers else peers.rates(options.quick)

    median = statistics.median
    table = [
        ("fork, exec, reap `sh -c true`, one after the other", f"{median(bare):.0f}"),
        ("Weft, 16 CPUs declared, 8 connections", f"{median(weft):.0f}"),
        ("Weft, 16 CPUs declared, one connection", f"{median(one_by_one):.0f}"),
        ("Weft, the machine's own CPUs, 8 connections", f"{median(as_it_is):.0f}"),
        *((peer.what, f"{peer.rate:.2f}" if peer.rate else peer.note) for peer in beside),
    ]
    print_table((f"{jobs} no-op jobs", "jobs/s"), table)
    claim = Claim(
        "1,000 no-op jobs, one call each, 8 connections, 16 CPUs declared: rate against bare fork, exec and reap",
        median(ratios),
        0.5,
        "×",
        at_most=False,
    )
    details = {
        "jobs": jobs,
        "perSecond": {
            "bare": spread(bare, 1),
            "weft": spread(weft, 1),
            "weftOneConnection": spread(one_by_one, 1),
            "weftOwnCpus": spread(as_it_is, 1),
        },
        "ratio": spread(ratios, 4),
        "peers": [peer.dump() for peer in beside],
    }
    publish("throughput", [claim], details, options.quick)


def bare_rate(count: int) -> float:
    def spawn() -> None:
        for _ in range(count):
            subprocess.Popen(("sh", "-c", "true")).wait()

    return count / timed(spawn)


def weft_rate(count: int, connections: int, options: tuple[str, ...]) -> float:
    """Jobs a second on a server that has just started on an empty home."""
    with folder_on_disk() as folder, Server(folder / "home", *options) as server:
        documents = [job(f"noop-{n:04d}", ["true"]) for n in range(count)]
        requests = [server.request("POST", "/v1/jobs", document) for document in documents]

        def run() -> None:
            submit_all(server, requests, connections)
            await_completed(server, count)

        seconds = timed(run)
        check_histories(server, count)
    return count / seconds


def await_completed(server: Server, count: int) -> None:
    """The counts come from the database: what is counted is on disk."""
    with Connection(server) as connection:
        while True:
            states = connection.get("/v1/status")["jobs"]
            if states.get("COMPLETED", 0) == count:
                return
            if unexpected := set(states) - set(WAYS):
                raise SystemExit(f"jobs that should complete are {unexpected}")
            time.sleep(POLL_SECONDS)


def check_histories(server: Server, count: int) -> None:
    """Every job's whole way is in the event log, and its process ended with 0."""
    with Connection(server) as connection:
        events = connection.get("/v1/events?limit=100000")["items"]
        jobs = connection.get("/v1/jobs?limit=100000")["items"]
    ways: dict[str, list[Any]] = {}
    for event in events:
        if event["type"] == "state":
            ways.setdefault(event["job"], []).append(event["state"])
    wrong = [name for name, way in ways.items() if way != WAYS]
    codes = {task["exit"]["code"] for document in jobs for task in document["status"]["tasks"]}
    if len(ways) != count or wrong or codes != {0}:
        raise SystemExit(
            f"{len(ways)} of {count} jobs, {len(wrong)} with holes in their history, exits {codes}"
        )


if __name__ == "__main__":
    main()
