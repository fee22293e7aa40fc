"""Shards for tasks that share no folder: the agent of the first one hands them out."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.pod import TOKEN, Pod, until
from weft.runtime.agent.desk import LEFT, Desk, word
from weft.runtime.agent.settings import Settings
from weft.runtime.books import LEASE_SECONDS, FileBooks
from weft.runtime.leases import Holder, Plan

SOURCE = Path(__file__).parents[2] / "src"
PLAN = Plan(6, 1, False, 0)


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    made = Pod(tmp_path)
    yield made
    made.close()


def task(pod: Pod, script: str, *arguments: str, **environ: str) -> subprocess.Popen[str]:
    about = {"PYTHONPATH": str(SOURCE), "WEFT_SHARDS_FILE": str(pod.task / "shards.json"), **environ}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(
        command, env={**os.environ, **about}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


WORKER = """
import os, sys, time, weft
log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def note(what, shard):
    os.write(log, "".join(f"{what} {shard.epoch} {i}\\n" for i in shard).encode())
for epoch in range(2):
    for shard in weft.shards(300, epoch=epoch, size=3, seed=5):
        note("begun", shard)
        time.sleep(0.004)
        assert shard.done()
        note("done", shard)
"""


@pytest.mark.slow
def test_every_sample_once_while_workers_and_the_agent_are_killed_at_random(pod: Pod, tmp_path: Path) -> None:
    log, choose = tmp_path / "samples", random.Random(7)
    agent = pod.agent()
    workers = [task(pod, WORKER, str(log), WEFT_TASK=f"worker-{number}") for number in range(3)]
    killed = 0
    for turn in range(8):
        time.sleep(choose.uniform(0.02, 0.2))
        if turn % 2:
            agent.kill()
            agent.wait()
            agent = pod.agent()
        else:
            victim = workers.pop(choose.randrange(3))
            victim.kill()
            victim.communicate()
            killed += victim.returncode == -signal.SIGKILL
            workers.append(task(pod, WORKER, str(log), WEFT_TASK=f"worker-{turn}"))
    for worker in workers:
        errors = worker.communicate(timeout=60)[1]
        assert worker.returncode == 0, errors
    seen = Counter(log.read_text().splitlines())
    everything = {f"{epoch} {i}" for epoch in range(2) for i in range(300)}
    begun = {line.removeprefix("begun ") for line in seen if line.startswith("begun")}
    done = {line.removeprefix("done "): times for line, times in seen.items() if line.startswith("done")}
    assert begun == everything, "no sample is left out"
    assert set(done.values()) == {1}, "none is done twice"
    assert len(everything) - len(done) <= 3 * killed, "but for one shard of each that was killed, all said so"


SAVES = """
import sys, weft
weft.on_preempt(lambda: print("saved", flush=True))
for shard in weft.shards(100, size=1):
    print("has", flush=True)
    sys.stdin.readline() if shard.number else None
"""


@pytest.mark.slow
def test_a_task_that_is_told_to_stop_does_not_wait_for_an_agent_that_is_gone(pod: Pod) -> None:
    agent = pod.agent()
    running = task(pod, SAVES)
    assert running.stdout is not None
    assert running.stdout.readline() == "has\n"
    agent.kill()
    agent.wait()
    running.send_signal(signal.SIGTERM)
    said, errors = running.communicate(timeout=60)
    assert "saved" in said, errors
    assert running.returncode == 143


FORKS = """
import os, weft
from weft.runtime import shards
loop = iter(weft.shards(10, size=1, shuffle=False))
mine = next(loop)
[keeper] = shards._keepers.values()
with keeper._lock:  # as a thread of the parent may have it at that moment
    child = os.fork()
if not child:
    print("child", [next(iter(weft.shards(10, epoch=0, size=1, shuffle=False))).number], flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("parent", mine.done(), flush=True)
"""


def test_a_forked_child_asks_for_itself(pod: Pod) -> None:
    pod.agent()
    said, errors = task(pod, FORKS).communicate(timeout=60)
    assert said.splitlines() == ["child [1]", "parent True"], errors


# ── the desk itself, and holders in pods of their own ──


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Asker:
    """A process in some pod."""

    def __init__(self, desk: Desk, task: str, launch: int = 1):
        self.desk = desk
        self.holder = Holder(task, launch, 0, f"machine of {task} {launch}", 7, 7)
        self.number = 0
        self.held: list[int] = []
        self.ask("begin", epoch=0, plan=PLAN, otherwise=PLAN)

    def question(self, what: str, **about: Any) -> dict[str, Any]:
        self.number += 1
        told = {"name": "train", "holder": self.holder, "number": self.number, "held": self.held}
        return json.loads(json.dumps({**told, "what": what, **about}))

    def ask(self, what: str, **about: Any) -> dict[str, Any]:
        return self.desk.answer(self.question(what, **about))

    def take(self, done: list[int] | None = None) -> dict[str, Any]:
        answer = self.ask("step", epoch=0, done=done or [], back=[], want=True)
        self.held = [number for number in self.held if number not in (done or [])]
        self.held += [answer["lease"][0]] if answer["lease"] else []
        return answer


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def desk(tmp_path: Path, clock: Clock) -> Desk:
    return made(tmp_path, clock)


def made(folder: Path, clock: Clock) -> Desk:
    (folder / "task").mkdir(exist_ok=True)
    told = json.dumps({"task": "worker-0", "token": str(folder)})
    return Desk(Settings({"WEFT_AGENT": told, "WEFT_ROOT": str(folder)}), clock)


def test_a_question_that_is_asked_again_has_the_same_answer(desk: Desk) -> None:
    one = Asker(desk, "worker-1")
    question = one.question("step", epoch=0, done=[], back=[], want=True)
    first = desk.answer(question)
    assert desk.answer(question) == first
    assert Asker(desk, "worker-2").take()["lease"][1] == first["lease"][1] + 1


def test_a_lease_whose_holder_never_heard_of_it_is_handed_out_again(desk: Desk) -> None:
    """Its answer was lost together with the agent that gave it."""
    one = Asker(desk, "worker-1")
    lost = one.ask("step", epoch=0, done=[], back=[], want=True)["lease"]
    assert one.take()["lease"][1] == lost[1]


def test_who_did_not_hear_that_its_shard_is_done_hears_so_of_the_next_agent(
    desk: Desk, tmp_path: Path, clock: Clock
) -> None:
    one = Asker(desk, "worker-1")
    lease = one.take()["lease"][0]
    lost = one.question("step", epoch=0, done=[lease], back=[], want=False)
    assert desk.answer(lost)["counted"] == [lease]
    again = made(tmp_path, clock)
    assert again.answer(lost)["counted"] == [lease]
    other = Asker(again, "worker-2")
    assert other.ask("step", epoch=0, done=[lease], back=[], want=False)["counted"] == []


def test_the_shard_of_one_whose_connection_is_closed_is_given_to_others_after_a_while(
    desk: Desk, clock: Clock
) -> None:
    one, two = Asker(desk, "worker-1"), Asker(desk, "worker-2")
    first = one.take()["lease"]
    desk.leave([one.holder])
    others = [two.take()["lease"] for _ in range(5)]
    assert first[1] not in [shard for _, shard in others]
    clock.now += LEFT / 2
    assert two.take()["lease"] is None
    clock.now += LEFT
    assert two.take()["lease"][1] == first[1]


def test_who_connects_again_keeps_its_shard(desk: Desk, clock: Clock) -> None:
    one, two = Asker(desk, "worker-1"), Asker(desk, "worker-2")
    number = one.take()["lease"][0]
    desk.leave([one.holder])
    one.ask("beat")
    clock.now += 2 * LEFT
    two.take()
    assert one.take(done=[number])["counted"] == [number]


def test_who_is_silent_for_too_long_loses_its_shard_and_who_starts_anew_has_it_back_at_once(
    desk: Desk, clock: Clock
) -> None:
    one, two = Asker(desk, "worker-1"), Asker(desk, "worker-2")
    taken = [one.take()["lease"][1], *(two.take()["lease"][1] for _ in range(5))]
    assert sorted(taken) == list(range(6))
    assert two.take(done=list(two.held))["lease"] is None
    again = Asker(desk, "worker-1", launch=2)
    assert again.take()["lease"][1] == taken[0]
    assert two.take()["lease"] is None
    clock.now += 2 * LEASE_SECONDS
    assert two.take()["lease"][1] == taken[0]


def test_leases_that_were_given_since_books_were_copied_are_never_taken_for_others(
    desk: Desk, tmp_path: Path, clock: Clock
) -> None:
    """The pod is lost, and its books come back as they were a second before."""
    one, two = Asker(desk, "worker-1"), Asker(desk, "worker-2")
    before = desk.copy("train")
    number, shard = one.take()["lease"]
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "checkpoints/.weft/shards").mkdir(parents=True)
    (tmp_path / "checkpoints/.weft/shards/train").write_bytes(before)
    again = made(tmp_path, clock)
    one.desk = two.desk = again
    assert two.take()["lease"][1] == shard, "handed out once more"
    assert one.take(done=[number])["counted"] == [], "the other one's is not marked done"
    assert two.take(done=list(two.held))["counted"] != []


def test_books_of_the_desk_are_those_of_a_file(desk: Desk, tmp_path: Path) -> None:
    one = Asker(desk, "worker-1")
    one.take()
    (tmp_path / "copy/.weft/shards").mkdir(parents=True)
    (tmp_path / "copy/.weft/shards/train").write_bytes(desk.copy("train"))
    with FileBooks(str(tmp_path / "copy"), "train").change() as books:
        assert [held.shard for held in books.epochs[0].leases.values()] == [0]


# ── over HTTP ──


def ask(pod: Pod, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    status, said = pod.ask("POST", "/v1/shards", json.dumps(body).encode(), None, **headers)
    return status, json.loads(said)


def test_only_the_job_s_own_tasks_are_answered(pod: Pod) -> None:
    pod.agent(task="worker-0")
    told = until(
        lambda: (pod.task / "shards.json").exists() and json.loads((pod.task / "shards.json").read_text())
    )
    assert told == {"host": "127.0.0.1", "port": pod.port, "token": word(TOKEN.encode())}
    beat = {"name": "train", "holder": ["worker-1", 1, 0, "", 1, 1], "number": 1, "held": [], "what": "beat"}
    for headers in ({}, {"X-Weft-Token": TOKEN}, {"X-Weft-Shards": TOKEN}):
        status, said = ask(pod, beat, **headers)
        assert (status, "X-Weft-Shards" in said["problem"]) == (401, True)
    right = {"X-Weft-Shards": told["token"]}
    assert ask(pod, beat, **right) == (200, {})
    assert pod.ask("GET", "/v1/files?folder=results", token=told["token"])[0] == 401, "good for nothing else"
    for bad in ({**beat, "name": "../x"}, {**beat, "holder": 5}, {}, [], {**beat, "held": None, "number": 2}):
        assert ask(pod, bad, **right)[0] == 400, bad
    assert ask(pod, {**beat, "what": "dance", "number": 3}, **right)[0] == 409


def test_the_books_are_told_by_the_stream_and_not_as_files(pod: Pod) -> None:
    """They change all the time: as files they would never be settled."""
    pod.agent(task="worker-0")
    with pod.stream() as stream:
        running = task(pod, "import weft\nfor _ in weft.shards(10, size=1): pass", WEFT_TASK="worker-1")
        stream.until(lambda each: "train" in each.books and each.states[-1]["desk"])
        errors = running.communicate(timeout=60)[1]
        assert running.returncode == 0, errors
    found = json.loads(pod.ask("GET", "/v1/files?folder=checkpoints")[1])["files"]
    assert (pod.root / "checkpoints/.weft/shards/train").exists()
    assert found == []
