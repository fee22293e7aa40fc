"""Tell a job's story event by event, and read it back."""

from __future__ import annotations

from typing import Any

from weft.model.events import Admitted, Event, Exited, Fetched, Launched, Placed, Provisioned, Woke
from weft.model.gang import Gang
from weft.model.lifecycle import advance, next_wake, submitted
from weft.model.status import Binding, Exit, State, TaskState


class Story:
    """A status and everything that was instructed on the way to it."""

    def __init__(self, gang: Gang, now: float = 1000.0):
        self.gang = gang
        self.now = now
        self.status = submitted(gang)
        self.states = [State.PENDING]
        self.instructions: list[Any] = []

    def hears(self, *events: Event) -> Story:
        for event in events:
            outcome = advance(self.status, event, self.gang, self.now)
            self.status = outcome.status
            self.instructions += outcome.instructions
            if self.states[-1] is not self.status.state:
                self.states.append(self.status.state)
        return self

    def told_now(self, *events: Event) -> list[Any]:
        """What these events alone instruct."""
        known = len(self.instructions)
        self.hears(*events)
        return self.instructions[known:]

    # ── the common way ──

    def queued(self) -> Story:
        return self.hears(Admitted())

    def deploying(self) -> Story:
        return self.queued().hears(self.place())

    def place(self) -> Placed:
        return Placed(tuple(Binding(task.name, "node-0") for task in self.gang.tasks))

    def downloading(self) -> Story:
        return self.deploying().hears(Provisioned())

    def running(self) -> Story:
        self.deploying().hears(Provisioned())
        if self.gang.needs_fetch:
            self.hears(Fetched())
        return self.hears(self.launched())

    def launched(self) -> Launched:
        starting = [t.name for t in self.status.tasks if t.state is TaskState.STARTING]
        return Launched(self.status.launch, tuple((name, 100 + i) for i, name in enumerate(starting)))

    def ends(self, task: str, code: int | None = 0, signal: int | None = None) -> Story:
        return self.hears(self.exit(task, code, signal))

    def exit(self, task: str, code: int | None = 0, signal: int | None = None) -> Exited:
        exit = Exit(code=None if signal is not None else code, signal=signal)
        return Exited(task, self.status.task(task).launch, exit)

    def wakes(self) -> Story:
        """Time goes on to the moment the job waits for."""
        moment = next_wake(self.status, self.gang)
        assert moment is not None, f"{self.status.state} waits for no moment"
        self.now = max(self.now, moment)
        return self.hears(Woke())

    def restarts(self) -> Story:
        return self.wakes().hears(Provisioned(), self.launched())

    def task_states(self) -> dict[str, str]:
        return {task.name: task.state.value for task in self.status.tasks}
