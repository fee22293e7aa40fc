"""How a task ended, from what its agent and its pod say: a code, a signal, and a reason where one is known."""

from __future__ import annotations

import signal

from weft.backends.kubernetes.tracked import TaskPod
from weft.model.failures import Code, Failure
from weft.model.quantities import show_bytes
from weft.model.status import Exit

SIGNALLED = 128
NOT_FOUND = 127


def exit_of(
    one: TaskPod, status: int | None, oom: bool, lines: list[str], unknown: Failure | None = None
) -> Exit:
    """`lines`: the last of its log. `unknown`: what is said where nothing else is known."""
    failure = one.failure or unknown
    code, number = status, None
    if status is not None and SIGNALLED < status <= SIGNALLED + signal.NSIG:
        code, number = None, status - SIGNALLED
    if oom and status != 0 and failure is None:
        failure = _out_of_memory(one)
    elif status == NOT_FOUND and failure is None:
        failure = _not_found(one, lines)
    told = one.told
    return Exit(
        code, number, failure if status != 0 else None, told.peak, told.seconds, (*told.notes, *one.notes)
    )


def _out_of_memory(one: TaskPod) -> Failure:
    limit = f" of {show_bytes(one.memory)}" if one.memory else ""
    return Failure(
        Code.OUT_OF_MEMORY,
        f"{one.task} ran out of memory: it reached its limit{limit}; ask for more with resources.memory",
        one.task,
    )


def _not_found(one: TaskPod, lines: list[str]) -> Failure | None:
    """The shell's 127 is a command that is not there only if nothing else was run."""
    if lines and "not found" in lines[-1]:
        return Failure(Code.COMMAND_NOT_FOUND, f"{one.task}: {lines[-1].strip()}", one.task)
    return None
