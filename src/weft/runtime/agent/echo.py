"""The task's output as the agent's own, for `kubectl logs`."""

from __future__ import annotations

import os
import threading

from weft.runtime.agent.output import Follower

TYPE_CHECKING = False
if TYPE_CHECKING:
    from weft.runtime.agent.settings import Settings
    from weft.runtime.agent.watch import Watch

PIECE = 1 << 16
THROTTLED = 0.05


class Echo(threading.Thread):
    """In a thread of its own: whoever does not read it keeps nobody else waiting.

    It begins with what is still there: `kubectl logs` shows nothing of an agent before this one.
    """

    def __init__(self, settings: Settings, watch: Watch, fd: int = 1):
        super().__init__(daemon=True)
        self._watch = watch
        self._follower = Follower(watch.output, watch.output.floor, settings.kept, settings.rate)
        self._fd = fd

    def run(self) -> None:
        change = -1
        while not self._watch.done.is_set() or self._behind():
            _, _, data = self._follower.take(PIECE, hurry=self._watch.finished or self._watch.done.is_set())
            if not data:
                change = self._watch.wait_for_change(change, THROTTLED if self._behind() else 1.0)
            try:
                while data:
                    data = data[os.write(self._fd, data) :]
            except OSError:
                return

    def _behind(self) -> bool:
        return self._follower.position < self._watch.output.look()
