"""Gradients that wait in a worker for a server that is away: their sum, and which rows it touches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.runtime.ps.gradients import Part
from weft.runtime.ps.layout import Shard

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Gathered:
    def __init__(self, shard: Shard):
        import numpy as np

        self.count = 0
        self.lr = 0.0
        self._shard = shard
        self._sum = np.zeros(shard.size, dtype="<f4")
        self._touched: dict[int, NDArray[np.bool_] | None] = {}
        """By piece: the rows that were touched, or None for all."""

    def add(self, parts: list[Part], lr: float) -> None:
        """One more push; what was pushed with another rate is scaled, so that one rate will do for the sum."""
        import numpy as np

        if lr and self.lr != lr:
            self._sum *= np.float32(self.lr / lr)
            self.lr = lr
        weight = np.float32(1.0 if lr else 0.0)
        for part in parts:
            piece = self._shard.pieces[part.piece]
            table = self._sum[piece.start : piece.end].reshape(piece.rows, piece.parameter.width)
            values = part.values.reshape(-1, piece.parameter.width)
            if part.rows is None:
                table += weight * values
                self._touched[part.piece] = None
            else:
                table[part.rows] += weight * values
                touched = self._touched.setdefault(part.piece, np.zeros(piece.rows, dtype=bool))
                if touched is not None:
                    touched[part.rows] = True
        self.count += 1

    def parts(self) -> list[Part]:
        import numpy as np

        parts = []
        for number, touched in sorted(self._touched.items(), key=lambda item: item[0]):
            piece = self._shard.pieces[number]
            table = self._sum[piece.start : piece.end].reshape(piece.rows, piece.parameter.width)
            if touched is None:
                parts.append(Part(number, None, table))
            else:
                rows = np.flatnonzero(touched).astype("<u4")
                parts.append(Part(number, rows, table[rows]))
        return parts
