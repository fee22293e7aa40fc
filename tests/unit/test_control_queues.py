"""Queues that an operator declares, from the store to the scheduler: kept, obeyed, shown, and never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from support.builders import a_gang, a_node, a_request
from support.machine import Machine, told_in
from support.simulated import FOREVER
from weft.control.nosuch import NoQueue
from weft.model.lifecycle import Refused
from weft.model.problems import Invalid
from weft.model.queue import QueueSpec
from weft.model.resource import Metadata
from weft.model.status import Desire, State
from weft.scheduler.line import line
from weft.scheduler.pending import Waiting
from weft.scheduler.policy import NAMED
from weft.scheduler.queues import QueueRule
from weft.scheduler.schedule import schedule
from weft.scheduler.state import State as Books

Story = Callable[[Machine], Awaitable[None]]
Tell = Callable[[Story], None]
GPUS = 4


@pytest.fixture
def with_gpus(fast_folder: Path) -> Tell:
    """A machine of 8 CPUs and 4 GPUs."""

    tell = told_in(fast_folder)
    return lambda story: tell(story, [a_node(cpu=8, gpus=GPUS)])


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [True, False])
def test_what_a_queue_has_had_lately_outlives_the_server(with_gpus: Tell, stopped: bool) -> None:
    async def story(m: Machine) -> None:
        await declare(m, "greedy")
        await declare(m, "modest")
        await runs_on(m, "long", "greedy", gpu=4)
        await m.passes(8 * 3600)
        await m.control.ask("long", Desire.CANCEL, "ann")
        await m.until("long", State.CANCELLED)
        await m.passes(61)
        before = shown(m, "greedy")["share"]
        assert before > 0.5
        if stopped:
            await m.down()
        else:
            m.kill()
        await m.up()
        assert shown(m, "greedy")["share"] == pytest.approx(before, abs=0.01)
        assert shown(m, "modest")["share"] == 0
        await runs_on(m, "first", "greedy", gpu=4)
        for name, queue in (("second", "greedy"), ("third", "modest")):
            await m.submit(name, queue=queue, grace="1s", roles={"worker": {"resources": {"gpu": 4}}})
        assert [job.name for job in line(m.control.books, m.loop.time())] == ["third", "second"]

    with_gpus(story)


async def declare(m: Machine, name: str, **spec: Any) -> bool:
    return await m.control.queues.put(name, QueueSpec.model_validate(spec), Metadata(), "ann")


async def runs_on(m: Machine, name: str, queue: str = "default", gpu: float = 1) -> None:
    m.world.script(name, "worker-0", FOREVER)
    await m.submit(name, queue=queue, grace="1s", roles={"worker": {"resources": {"gpu": gpu}}})
    await m.passes(1)


def running(m: Machine, *names: str) -> bool:
    return all(m.status(name).state is State.PROCESSING for name in names)


def shown(m: Machine, name: str) -> dict[str, Any]:
    document = m.control.queues.document(name, m.control.books, m.control.asking()[name], m.loop.time())
    status: dict[str, Any] = document["status"]
    return status


def test_a_limit_holds_from_the_moment_it_is_declared(with_gpus: Tell) -> None:
    async def story(m: Machine) -> None:
        assert await declare(m, "small", limit={"gpu": 2})
        for name in ("a", "b", "c"):
            await runs_on(m, name, "small")
        assert running(m, "a", "b")
        reason = m.control.explain(m.control.find("c")).reason
        assert reason == "queue small is limited to 2 gpu: 2 gpu in use, 1 gpu asked"
        assert not await declare(m, "small", limit={"gpu": 3})
        await m.passes(1)
        assert running(m, "a", "b", "c")

    with_gpus(story)


def test_jobs_that_ask_alike_in_two_queues_wait_for_reasons_of_their_own(with_gpus: Tell) -> None:
    async def story(m: Machine) -> None:
        await declare(m, "small", limit={"gpu": 1})
        await declare(m, "shut", closed=True)
        await runs_on(m, "a", "small")
        for name, queue in (("b", "small"), ("c", "shut")):
            await runs_on(m, name, queue)
        reasons = [m.control.why_waiting(m.control.find(name)) for name in ("b", "c")]
        assert reasons == [
            "queue small is limited to 1 gpu: 1 gpu in use, 1 gpu asked",
            "queue shut is closed",
        ]

    with_gpus(story)


def test_a_guarantee_is_lent_and_taken_back(with_gpus: Tell) -> None:
    async def story(m: Machine) -> None:
        await declare(m, "own", guarantee={"gpu": 2})
        for number in range(GPUS):
            await runs_on(m, f"lent-{number}")
        await runs_on(m, "mine", "own", gpu=2)
        await m.passes(5)
        assert running(m, "mine")
        away = [f"lent-{n}" for n in range(GPUS) if m.status(f"lent-{n}").preemptions]
        assert len(away) == 2
        assert m.history(away[0])[-2:] == ["PREEMPTED", "QUEUED"]
        assert shown(m, "own")["used"]["gpu"] == 2
        assert shown(m, "own")["borrowed"] == {"gpu": 0}
        await m.ask("mine", Desire.CANCEL)
        await m.passes(5)
        assert running(m, *(f"lent-{n}" for n in range(GPUS)))

    with_gpus(story)


def test_a_server_that_was_killed_comes_back_with_its_queues(with_gpus: Tell) -> None:
    async def story(m: Machine) -> None:
        await declare(m, "lab", guarantee={"gpu": 2})
        await declare(m, "vision", parent="lab", limit={"gpu": 1})
        await declare(m, "default", weight=3)
        await runs_on(m, "a", "vision")
        await runs_on(m, "b", "vision")
        m.kill()
        await m.up()
        assert list(m.control.queues) == ["default", "lab", "vision"]
        assert m.control.queues.specs["default"].weight == 3
        assert (shown(m, "vision")["running"], shown(m, "vision")["waiting"]) == (1, 1)
        assert shown(m, "lab")["used"]["gpu"] == 1
        await m.passes(1)
        assert m.status("b").state is State.QUEUED

    with_gpus(story)


def test_a_change_that_was_not_written_did_not_happen(with_gpus: Tell) -> None:
    async def story(m: Machine) -> None:
        await declare(m, "lab", limit={"gpu": 1})
        m.crash_after(1, keep=False)
        with pytest.raises(asyncio.CancelledError):
            await declare(m, "lab", limit={"gpu": 4})
        await m.up()
        assert m.control.queues.specs["lab"].limit.gpu == 1000

    with_gpus(story)


def test_a_queue_in_use_is_not_deleted(with_gpus: Tell) -> None:
    async def story(m: Machine) -> None:
        await declare(m, "lab")
        await declare(m, "vision", parent="lab")
        await runs_on(m, "a", "vision")
        remove = m.control.queues.remove
        for name, cause in (
            ("lab", r"has queues in it \(vision\); delete them first"),
            ("vision", "is in use: 0 waiting and 1 running"),
            ("default", "can be changed, not deleted"),
        ):
            with pytest.raises(Refused, match=cause):
                await remove(name, m.control.asking, "ann")
        with pytest.raises(NoQueue) as absent:
            await remove("visin", m.control.asking, "ann")
        assert absent.value.near == ["vision"]
        await m.ask("a", Desire.HALT)
        await m.until("a")
        await remove("vision", m.control.asking, "ann")
        assert "vision" not in m.control.queues
        with pytest.raises(Refused, match="belongs to queue vision, which no longer exists"):
            await m.ask("a", Desire.RUN)
        await declare(m, "vision")
        await m.ask("a", Desire.RUN)

    with_gpus(story)


def test_what_contradicts_other_queues_changes_nothing(with_gpus: Tell) -> None:
    async def story(m: Machine) -> None:
        await declare(m, "lab", guarantee={"gpu": 2})
        with pytest.raises(Invalid, match="guaranteed 3 together, the parent has a guarantee of 2"):
            await declare(m, "vision", parent="lab", guarantee={"gpu": 3})
        assert list(m.control.queues) == ["default", "lab"]
        assert list(m.control.queues.notes(m.control.books)) == []
        await declare(m, "lab", guarantee={"gpu": 9})
        (note,) = m.control.queues.notes(m.control.books)
        assert note.startswith("queues are guaranteed 9 gpu together, all nodes have 4")

    with_gpus(story)


def test_a_start_is_foreseen_also_for_who_came_this_moment(with_gpus: Tell) -> None:
    async def story(m: Machine) -> None:
        await runs_on(m, "now", gpu=GPUS)
        await runs_on(m, "next", gpu=1)
        first = await m.control.estimates()
        assert await m.control.estimates() is first
        found = first[m.control.find("next").uid]
        assert found.earliest is not None
        assert found.likely is not None
        assert m.loop.time() < found.earliest <= found.likely
        await runs_on(m, "later", gpu=1)
        assert m.control.find("later").uid in await m.control.estimates(m.control.find("later").uid)
        await m.passes(10)
        assert await m.control.estimates() is not first

    with_gpus(story)


# ── the line ──


def waiting_books(policy: str, rules: list[QueueRule], *jobs: tuple[str, str]) -> Books:
    books = Books([a_node(cpu=64, gpus=16)], rules, NAMED[policy])
    for number, (name, queue) in enumerate(jobs):
        books.submit(Waiting(name, name, a_gang(a_request(1, gpu=1)), 0, float(number), queue))
    return books


JOBS = [(f"{queue}{number}", queue) for queue in ("a", "b") for number in range(4)]


@pytest.mark.parametrize("policy", sorted(NAMED))
@pytest.mark.parametrize(
    "rules",
    [
        [QueueRule("a"), QueueRule("b")],
        [QueueRule("a", weight=3), QueueRule("b")],
        [QueueRule("a"), QueueRule("b", guarantee={"gpu": 2000})],
        [QueueRule("lab"), QueueRule("a", "lab"), QueueRule("b", "lab"), QueueRule("c")],
    ],
)
def test_the_line_is_the_order_in_which_all_would_start(policy: str, rules: list[QueueRule]) -> None:
    books = waiting_books(policy, rules, *JOBS)
    before = {name: account.used for name, account in books.queues.accounts.items()}
    expected = [placement.uid for placement in schedule(books.snapshot(100.0), books.policy).placements]
    assert [job.uid for job in line(books, 100.0)] == expected
    assert len(expected) == len(JOBS)
    assert {name: account.used for name, account in books.queues.accounts.items()} == before


def test_queues_take_turns_in_the_line() -> None:
    books = waiting_books("fair", [QueueRule("a"), QueueRule("b")], *JOBS)
    assert [job.uid for job in line(books, 100.0)] == ["a0", "b0", "a1", "b1", "a2", "b2", "a3", "b3"]
