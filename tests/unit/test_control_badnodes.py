"""Nodes on which job after job fails, as whole stories on virtual time."""

from __future__ import annotations

from support.builders import a_node
from support.machine import Machine, Tell, workers
from support.simulated import Refuse, Run
from weft.model.failures import Code
from weft.model.status import Desire, State

TWO = [a_node("node-0", labels={"on": "0"}), a_node("node-1", labels={"on": "1"})]
KILLED = Run(seconds=5, code=None, signal=9)
BROKEN = Refuse(Code.CANNOT_START, "no space left on device")


async def runs(m: Machine, name: str, run: Run | Refuse, node: int = 0, **spec: object) -> State:
    """A job of one task on this node, to its end."""
    m.world.script(name, "worker-0", run)
    await m.submit(name, placement={"selector": {"on": str(node)}}, **spec)
    status = await m.until(name)
    await m.passes(1)
    return status.state


def closed(m: Machine) -> list[str]:
    return [name for name, room in m.control.books.cluster.rooms.items() if not room.node.schedulable]


def test_three_in_a_row_and_the_node_is_cordoned_with_their_names(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        assert await runs(m, "a", KILLED) is State.FAILED
        assert await runs(m, "b", BROKEN) is State.FAILED
        assert closed(m) == []
        await runs(m, "c", Run(seconds=1e9, speaks=0), stallTimeout="1m")
        assert closed(m) == ["node-0"]
        cordon = m.control.cordons.of("node-0")
        assert cordon is not None
        assert cordon.by == "weft"
        assert cordon.reason == "3 jobs in a row failed here: a (SIGNAL), b (CANNOT_START), c (STALLED)"

    on_a_machine(story, TWO)


def test_the_cordon_survives_a_killed_server_and_the_count_begins_anew(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        for name in ("a", "b", "c"):
            await runs(m, name, KILLED)
        for name in ("d", "e"):
            await runs(m, name, KILLED, node=1)
        m.kill()
        await m.up()
        assert closed(m) == ["node-0"]
        await m.control.cordons.uncordon("node-0", "ann")
        await runs(m, "f", KILLED, node=1)
        assert closed(m) == []

    on_a_machine(story, TWO)


def test_a_success_on_the_node_resets_its_count_and_one_elsewhere_does_not(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        for name in ("a", "b"):
            await runs(m, name, KILLED)
        assert await runs(m, "good", Run(seconds=5)) is State.COMPLETED
        for name in ("c", "d"):
            await runs(m, name, KILLED)
        assert closed(m) == []
        await runs(m, "elsewhere", Run(seconds=5), node=1)
        await runs(m, "e", KILLED)
        assert closed(m) == ["node-0"]

    on_a_machine(story, TWO)


def test_what_is_the_programs_own_does_not_count(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        own = [Run(seconds=1, code=1), Refuse(Code.COMMAND_NOT_FOUND), Refuse(Code.OUT_OF_MEMORY)]
        for index, run in enumerate(own * 2):
            assert await runs(m, f"own-{index}", run) is State.FAILED
        assert closed(m) == []

    on_a_machine(story, TWO)


def test_a_failure_that_is_no_fault_of_the_node_does_not_end_the_row(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        for name, run in (("a", KILLED), ("b", KILLED), ("own", Run(code=1)), ("c", KILLED)):
            await runs(m, name, run)
        assert closed(m) == ["node-0"]

    on_a_machine(story, TWO)


def test_one_job_that_is_resumed_and_fails_again_counts_once(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        await runs(m, "a", KILLED)
        for _ in range(4):
            await m.ask("a", Desire.RUN)
            await m.until("a", State.PROCESSING)
            await m.until("a")
        await runs(m, "b", KILLED)
        await m.control.remove("b", "ann")
        await m.passes(1)
        assert closed(m) == []

    on_a_machine(story, TWO)


def test_the_last_open_node_stays_open_until_another_is(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        await m.control.cordons.cordon("node-1", "ann")
        for name in ("a", "b", "c", "d"):
            await runs(m, name, KILLED)
        assert closed(m) == ["node-1"]
        await m.control.cordons.uncordon("node-1", "ann")
        await runs(m, "e", KILLED)
        assert closed(m) == ["node-0"]
        cordon = m.control.cordons.of("node-0")
        assert cordon is not None
        assert cordon.reason == "3 jobs in a row failed here: c (SIGNAL), d (SIGNAL), e (SIGNAL)"

    on_a_machine(story, TWO)


def test_of_two_nodes_that_go_bad_at_once_one_stays_open(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        for node in (0, 1):
            for name in ("a", "b", "c"):
                m.world.script(f"{name}{node}", "worker-0", KILLED)
                await m.submit(f"{name}{node}", placement={"selector": {"on": str(node)}})
        await m.passes(20)
        assert len(closed(m)) == 1

    on_a_machine(story, TWO)


def test_of_a_gang_the_node_of_the_task_that_failed_counts(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        for name in ("a", "b", "c"):
            m.world.script(name, "worker-0", Run(seconds=1000))
            m.world.script(name, "worker-1", KILLED)
            await m.submit(name, roles=workers(2), placement={"strategy": "spread"})
            status = await m.until(name)
            assert status.failure is not None
            assert status.failure.task == "worker-1"
            bad = status.task("worker-1").binding
            assert bad is not None
            await m.passes(1)
        assert closed(m) == [bad.node]

    on_a_machine(story, TWO)
