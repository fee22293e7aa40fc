"""What was given away and used over time: sampled, thinned out, kept over restarts."""

from __future__ import annotations

from pathlib import Path

from support.machine import Machine, Tell
from support.simulated import FOREVER
from weft.control import utilization as module
from weft.control.utilization import KEPT, RECORD, Sample, Utilization
from weft.model.status import State


def at(time: float, cpu: float = 0.0) -> Sample:
    return Sample(time, cpu, 4.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0)


def kept(m: Machine) -> Utilization:
    return Utilization(m.control, m.path.with_name("utilization.bin"))


def test_it_is_what_the_books_say(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        m.world.script("train", "worker-0", FOREVER)
        utilization = kept(m)
        assert utilization.now().cpu == 0
        await m.submit("train")
        await m.until("train", State.PROCESSING)
        now = utilization.now()
        assert (now.cpu, now.cpu_total, now.running, now.waiting) == (1.0, 4.0, 1, 0)
        assert now.document()["cpu"] == {"used": 1.0, "total": 4.0}
        assert now.memory_total == sum(node.memory for node in m.control.books.cluster.nodes)

    on_a_machine(story)


def test_samples_outlive_the_server(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        first = kept(m)
        for moment in range(3):
            first._keep(at(moment))
        assert list(kept(m).samples) == [at(0), at(1), at(2)]
        with m.path.with_name("utilization.bin").open("ab") as file:
            file.write(b"half a record")
        again = kept(m)
        assert list(again.samples) == [at(0), at(1), at(2)]
        again._keep(at(3))
        assert list(kept(m).samples)[-1] == at(3), "what was cut off does not shift what comes"

    on_a_machine(story)


def test_the_file_stays_small(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        file = m.path.with_name("utilization.bin")
        file.write_bytes(RECORD.pack(*[1.0] * (RECORD.size // 8)) * (2 * KEPT + 1))
        utilization = kept(m)
        assert len(utilization.samples) == KEPT
        utilization.samples.append(at(2))
        utilization._keep(at(2))
        assert file.stat().st_size == KEPT * RECORD.size
        assert kept(m).samples[-1] == at(2)

    on_a_machine(story)


def test_a_disk_that_cannot_be_written_costs_only_the_memory_of_it(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        utilization = Utilization(m.control, Path("/proc/nowhere/utilization.bin"))
        utilization._keep(at(1))
        assert list(utilization.samples) == []

    on_a_machine(story)


def test_few_points_are_means_of_their_neighbours(on_a_machine: Tell) -> None:
    async def story(m: Machine) -> None:
        utilization = kept(m)
        utilization.samples.extend(at(float(moment), cpu=float(moment % 2)) for moment in range(100))
        assert len(utilization.since(0, 100)) == 100
        thin = utilization.since(50, 5)
        assert [sample.cpu for sample in thin] == [0.5] * 5
        assert [sample.time for sample in thin] == [54.5, 64.5, 74.5, 84.5, 94.5]

    on_a_machine(story)


def test_it_is_sampled_and_told_again_and_again(on_a_machine: Tell) -> None:
    import asyncio

    async def story(m: Machine) -> None:
        utilization = kept(m)
        heard: list[Sample] = []
        utilization.heard = heard.append
        sampling = asyncio.ensure_future(utilization.run())
        await m.passes(10 * module.INTERVAL + 1)
        sampling.cancel()
        assert len(heard) == 11
        assert list(utilization.samples) == heard

    on_a_machine(story)
