"""What an engine tells of nodes that are not ours alone: they come, change and go, and others use them too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.backends.api import Lent
from weft.model.gang import Request
from weft.store.changes import Happened

if TYPE_CHECKING:
    from weft.control.control import Control


class Neighbourhood:
    """`backends.api.Surroundings`, for the books."""

    def __init__(self, control: Control):
        self._control = control

    def nodes_changed(self) -> None:
        control = self._control
        if control.books.renew(control.backend.nodes(), control.clock()):
            control.cordons.close_again()
        control.look_again()

    def occupied(self, who: str, node: str, request: Request) -> None:
        self._control.books.occupy(who, node, request)

    def vacated(self, who: str) -> None:
        self._control.books.vacate(who)
        self._control.wake_scheduler()

    def lent(self, dataset: str) -> Lent:
        return self._control.datasets.lent(dataset)

    def node_lost(self, node: str, reason: str) -> None:
        control = self._control
        told = Happened(control.clock(), "", node, "node", f"lost: {reason}", control.backend.name)
        control.store.write([told])
        control.cordons.leave_all(node, control.backend.name)
