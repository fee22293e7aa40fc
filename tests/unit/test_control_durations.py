"""How long jobs ran is known to the scheduler of the next server as well."""

from __future__ import annotations

import pytest

from support.machine import Machine, Tell, workers
from support.simulated import Run
from weft.control.live import LiveJob
from weft.model.status import State
from weft.scheduler.history import likeness
from weft.scheduler.pending import Waiting


def expected_of(machine: Machine, job: LiveJob) -> tuple[float, float]:
    """What an end of the next one is expected to cost, and how long it is expected to run."""
    like = likeness("ann", "train-99", 0)
    next_one = Waiting("next", "train-99", job.gang, 0, machine.loop.time(), owner="ann")
    books = machine.control.books
    assert next_one.like == like
    return books.kin.cost(next_one, 0.0), books.history.remaining(like, 0.0)


@pytest.mark.parametrize("code", [0, 1])
def test_what_ended_well_or_not_is_remembered_by_the_next_server(on_a_machine: Tell, code: int) -> None:
    async def story(m: Machine) -> None:
        fresh = None
        for number in range(10):
            m.world.script(f"train-{number}", "worker-0", Run(seconds=500.0, code=code))
            job = await m.submit(f"train-{number}", roles=workers(1))
            fresh = fresh or expected_of(m, job)
            await m.until(f"train-{number}", State.COMPLETED, State.FAILED, within=600)
        known = expected_of(m, job)
        await m.down()
        await m.up()
        await m.passes(5)
        assert expected_of(m, job) == (pytest.approx(known[0], rel=0.05), pytest.approx(known[1], rel=0.01))
        assert known[0] > 5 * fresh[0], "an end costs about as much as it did before"
        learned = 500.0 if code == 0 else fresh[1]  # how long a job that fails would have run is not known
        assert known[1] == pytest.approx(learned, rel=0.01)

    on_a_machine(story)
