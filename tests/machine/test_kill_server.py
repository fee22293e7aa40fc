"""Nothing depends on the server being alive: it is killed at hundreds of random moments, and no job minds.

A stream of small jobs is submitted (with idempotency keys, again whenever the answer was lost), deployed,
run and finished, while the server is killed with SIGKILL over and over: at work, while it starts, while it
takes over. Afterwards every job has the end that it would have had, its history is a path through the table
of states, and every task has run exactly once in each of its launches.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from harness import IDLE, UNREACHABLE, QuickServer, Server, package, sh, until

from weft.model.lifecycle import EDGES
from weft.model.status import State

pytestmark = [pytest.mark.machine, pytest.mark.timeout(240)]

SEED = int(os.environ.get("WEFT_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
KILLS = int(os.environ.get("WEFT_CHAOS_KILLS") or 130)
"""In each of the worlds."""
BACKLOG = 40


@pytest.fixture
def quick_server(new_server) -> QuickServer:
    return new_server("--cpu", "64", "--memory", "64Gi")


# ── the jobs and what must become of them ────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Kind:
    """A job to submit, its end, and which launches of which tasks must each have run once."""

    document: dict
    end: str = "COMPLETED"
    code: str | None = None
    runs: tuple[tuple[str, int, int], ...] = (("worker-0", 1, 0),)
    """Task, launch, restarts."""
    points: int = 0
    cancel: bool = False


def kinds(out: Path, digest: str) -> dict[str, Kind]:
    tell = f'echo "$WEFT_JOB $WEFT_TASK $WEFT_LAUNCH $WEFT_RESTARTS" | tee -a {out}'
    measure = """for i in 1 2 3 4 5; do echo '{"step":'$i',"time":1,"values":{"x":'$i'}}' >> $WEFT_METRICS_FILE; done"""
    small = {"roles": {"worker": {"resources": {"cpu": "500m"}}}}
    return {
        "quick": Kind(sh(tell)),
        "nap": Kind(sh(f"{tell}; sleep 0.3")),
        "three": Kind(sh(f"{tell}; exit 3"), "FAILED", "EXIT_CODE"),
        "killed": Kind(sh(f"{tell}; kill -9 $$"), "FAILED", "SIGNAL"),
        "limited": Kind(sh(f"{tell}; sleep 0.05", **small)),
        "gang": Kind(
            sh(f"{tell}; sleep 0.1", roles={"worker": {"replicas": 3}}),
            runs=tuple((f"worker-{i}", 1, 0) for i in range(3)),
        ),
        "second": Kind(
            sh(
                f'{tell}; [ "$WEFT_RESTARTS" = 1 ]',
                restart={"policy": "on-failure", "max": 2, "backoff": 0.05},
            ),
            runs=(("worker-0", 1, 0), ("worker-0", 2, 1)),
        ),
        "coded": Kind(sh(f"{tell}; ./run.sh", code={"package": digest})),
        "absent": Kind(
            {**sh(tell), "spec": {"command": ["no-such-command"]}}, "FAILED", "COMMAND_NOT_FOUND", runs=()
        ),
        "measured": Kind(sh(f"{tell}; {measure}"), points=5),
        "cancelled": Kind(sh(f"{tell}; exec sleep 1000", grace=5), "CANCELLED", cancel=True),
    }


@dataclass
class World:
    """One server, the jobs it was given, and what their tasks wrote outside of it."""

    server: QuickServer
    random: random.Random
    out: Path
    kinds: dict[str, Kind]
    submitted: dict[str, Kind] = field(default_factory=dict)
    expected: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    problems: list[str] = field(default_factory=list)
    retries: int = 0

    # ── the submitting side ──

    def feed(self) -> None:
        """Submit until told to stop, never far ahead of what has run."""
        names = list(self.kinds)
        number = 0
        try:
            while not self.stop.is_set():
                if self.expected - len(self.lines()) > BACKLOG:
                    self.stop.wait(0.01)
                    continue
                kind_name = names[number % len(names)]
                self._submit(f"{kind_name}-{number}", self.kinds[kind_name])
                number += 1
                self.stop.wait(self.random.uniform(0, 0.02))
        except AssertionError as problem:
            self.problems.append(str(problem))

    def _submit(self, name: str, kind: Kind) -> None:
        document = {**kind.document, "metadata": {"name": name}}
        answer = self.patiently("POST", "/v1/jobs", document, {"Idempotency-Key": f"key-of-{name}"})
        assert answer.status in (200, 201), f"{name}: {answer.status} {answer.body!r}"
        assert answer.json["metadata"]["name"] == name
        self.submitted[name] = kind
        self.expected += len(kind.runs)
        if kind.cancel:
            begun = f"{name} "
            until(lambda: any(line.startswith(begun) for line in self.lines()), f"{name} to run")
            answer = self.patiently("POST", f"/v1/jobs/{name}/cancel")
            assert answer.status == 200 or "CANCELLED" in answer.json["detail"], answer.body

    def patiently(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None):
        """Ask until there is an answer, as a client does whose server is restarted."""
        deadline = time.monotonic() + 60
        while True:
            try:
                return self.server.call(method, path, body, headers=headers, timeout=10)
            except (*UNREACHABLE, ValueError):
                self.retries += 1
            assert time.monotonic() < deadline, f"no answer to {method} {path}"
            time.sleep(0.005)

    def lines(self) -> list[str]:
        try:
            return self.out.read_text().splitlines()
        except FileNotFoundError:
            return []

    # ── the killing side ──

    def kill_often(self, times: int) -> None:
        """Kill and restart: mostly a server at work, now and then one that is still starting."""
        for _ in range(times):
            if self.random.random() < 0.2:
                time.sleep(self.random.uniform(0, 0.15))
            else:
                self.server.ready()
                time.sleep(self.random.uniform(0, 0.25))
            self.server.kill()
            self.server.begin()
            assert not self.problems, self.problems

    def settle(self) -> None:
        self.server.ready()
        states = {state for state in State if state.value not in IDLE}

        def idle() -> bool:
            counts = self.server.get("/v1/status").json["jobs"]
            return not any(counts.get(state.value) for state in states)

        try:
            until(idle, "every job to end", 60, every=0.05)
        except AssertionError:
            live = self.server.get("/v1/jobs", state=",".join(states), limit=1000).json["items"]
            stuck = {job["metadata"]["name"]: self.server.story(job["metadata"]["name"]) for job in live[:3]}
            raise AssertionError(f"{len(live)} jobs never ended: {stuck}") from None


# ── what must be true afterwards ─────────────────────────────────────────────────────────────────


def check_story(name: str, kind: Kind, job: dict, events: list[dict]) -> list[str]:
    """What is wrong with one job's end or its way there."""
    wrong = []
    status = job["status"]
    if status["state"] != kind.end:
        wrong.append(f"is {status['state']}, not {kind.end}: {status.get('reason')}")
    if status.get("failure", {}).get("code") != kind.code:
        wrong.append(f"failed with {status.get('failure')}, not {kind.code}")
    steps = [event for event in events if event["type"] == "state"]
    if not steps or steps[0]["state"] != "PENDING" or "previous" in steps[0]:
        return [*wrong, f"its history does not begin with PENDING: {steps[:1]}"]
    for before, after in itertools.pairwise(steps):
        if after["previous"] != before["state"]:
            wrong.append(f"its history has a gap: {before} … {after}")
        if State(after["state"]) not in EDGES[State(after["previous"])]:
            wrong.append(f"{after['previous']} → {after['state']} is not in the table")
    if steps[-1]["state"] != status["state"]:
        wrong.append(f"its history ends with {steps[-1]['state']}, its status is {status['state']}")
    launches = sum(step["state"] == "DEPLOYING" for step in steps)
    if launches != max([launch for _, launch, _ in kind.runs], default=1):
        wrong.append(f"was deployed {launches} times")
    return [f"{name} {problem}" for problem in wrong]


def all_events(server: Server) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    after = 0
    while items := server.get("/v1/events", after=after, limit=10_000).json["items"]:
        after = items[-1]["seq"]
        for event in items:
            found.setdefault(event["job"], []).append(event)
    return found


@pytest.mark.parametrize("world_number", [0, 1])
def test_killed_at_hundreds_of_random_moments_every_job_ends_as_it_would_have(
    quick_server: QuickServer, tmp_path: Path, world_number: int
):
    seed = SEED + world_number
    print(f"WEFT_CHAOS_SEED={SEED}")
    server = quick_server
    out = tmp_path / "ran"
    digest = server.put_package(package({"run.sh": "#!/bin/sh\ntrue\n"})[1])
    world = World(server, random.Random(seed), out, kinds(out, digest))
    feeder = threading.Thread(target=world.feed)
    feeder.start()
    try:
        world.kill_often(KILLS)
    finally:
        world.stop.set()
        feeder.join()
    assert not world.problems, world.problems
    world.settle()

    jobs = {j["metadata"]["name"]: j for j in server.get("/v1/jobs", limit=100_000).json["items"]}
    assert set(jobs) == set(world.submitted), "a job was lost, or appeared from nowhere"
    events = all_events(server)
    wrong = [p for n, kind in world.submitted.items() for p in check_story(n, kind, jobs[n], events[n])]
    ran = Counter(world.lines())
    wanted = Counter(
        f"{name} {task} {launch} {restarts}"
        for name, kind in world.submitted.items()
        for task, launch, restarts in kind.runs
    )
    wrong += [f"never ran: {line}" for line in wanted - ran]
    wrong += [f"ran once more than it should: {line}" for line in ran - wanted]
    for name, kind in world.submitted.items():
        told = Counter(server.text(name))
        if told != Counter({line: n for line, n in wanted.items() if line.startswith(f"{name} ")}):
            wrong.append(f"{name}: its log is {told}")
        if kind.points and sorted(p["value"] for p in server.metrics(name)) != [1, 2, 3, 4, 5]:
            wrong.append(f"{name}: its metrics are {server.metrics(name)}")
    assert not wrong, f"seed {seed}: " + "\n".join(wrong[:20])
    assert server.reserved() == []
    assert len(server.pids) > KILLS
    assert len(world.submitted) >= KILLS, "too few jobs to mean anything"
    print(
        f"{KILLS} kills, {len(world.submitted)} jobs, {sum(ran.values())} runs, {world.retries} calls repeated"
    )
