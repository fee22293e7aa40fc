"""Arrays as users have them: numpy, torch (when a tensor is handed in), numbers, or only some rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.runtime.ps.errors import Refused
from weft.runtime.ps.optimizers import blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from weft.runtime.ps.layout import Parameter

    Floats = NDArray[np.float32]
    Indices = NDArray[np.uint32]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Some rows of a parameter: `values[i]` belongs to row `indices[i]`. A row that comes twice counts twice."""

    indices: Any
    values: Any


def float32(value: Any) -> Floats:
    """A C-ordered float32 array, without a copy if it is one; a torch tensor shares its memory."""
    import numpy as np

    if hasattr(value, "detach"):
        value = value.detach().cpu().float().numpy()
    return np.asarray(value, dtype="<f4", order="C")


def gradient_of(parameter: Parameter, value: Any) -> Floats | tuple[Indices, Floats]:
    """A gradient in the shape of its parameter: whole, or as ascending indices and their rows."""
    if getattr(value, "is_sparse", False):  # of torch
        value = value.coalesce()
        value = Rows(value.indices()[0].cpu().numpy(), value.values())
    if isinstance(value, Rows):
        return _ascending(parameter, value)
    array = float32(value)
    if array.shape != parameter.shape:
        raise Refused(
            f"gradient {parameter.name!r} has shape {array.shape}, the parameter is {parameter.shape}"
        )
    return array


def indices_of(parameter: Parameter, rows: Any) -> NDArray[np.int64]:
    import numpy as np

    if hasattr(rows, "detach"):
        rows = rows.detach().cpu().numpy()
    indices = np.asarray(rows)
    if not indices.size:
        return np.zeros(0, dtype=np.int64)
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise Refused(
            f"rows of {parameter.name!r} are a list of integers, not {indices.dtype} {indices.shape}"
        )
    least, most = int(indices.min()), int(indices.max())
    if least < 0 or most >= parameter.rows or parameter.rows >= 1 << 32:
        raise Refused(f"rows {least} to {most} of {parameter.name!r}, which has {parameter.rows}")
    return indices.astype(np.int64, copy=False)


def _ascending(parameter: Parameter, rows: Rows) -> tuple[Indices, Floats]:
    import numpy as np

    indices, values = indices_of(parameter, rows.indices), float32(rows.values)
    if values.shape != (len(indices), *parameter.shape[1:]):
        raise Refused(
            f"{len(indices)} rows of {parameter.name!r} have shape {values.shape}, the parameter is {parameter.shape}"
        )
    if len(indices) > 1 and not (np.diff(indices) > 0).all():
        order = np.argsort(indices, kind="stable")
        indices, first = np.unique(indices[order], return_index=True)
        values = np.add.reduceat(values[order], first, axis=0)
    return indices.astype("<u4"), np.ascontiguousarray(values, dtype="<f4")


def put(target: Any, value: Floats) -> None:
    """Copy a value into the user's own array or tensor."""
    if hasattr(target, "detach"):
        import torch  # type: ignore[import-not-found, unused-ignore]  # the caller has it

        target.detach().copy_(torch.from_numpy(value))
    else:
        target[...] = value


# ── float16 on the wire ──────────────────────────────────────────────────────────────────────────


def halved(arrays: Sequence[Floats]) -> tuple[list[NDArray[np.float16]], float]:
    """Half the bytes, and the power of two by which they are too large: small gradients keep their digits."""
    import numpy as np

    flats = [array.reshape(-1) for array in arrays]
    ends = [abs(float(end)) for flat in flats if flat.size for end in (flat.max(), flat.min())]
    largest = max(ends, default=0.0)
    scale = 1.0
    if 0 < largest < np.inf:
        scale = 2.0 ** min(max(int(np.floor(np.log2(32768 / largest))), -120), 120)
    halves = [np.empty(flat.size, dtype="<f2") for flat in flats]
    for flat, half in zip(flats, halves, strict=True):
        for block in blocks(flat.size):
            half[block] = flat[block] * np.float32(scale)
    return halves, scale


def widened(half: NDArray[np.float16], scale: float, out: Floats) -> None:
    import numpy as np

    for block in blocks(half.size):
        out[block] = half[block]
        np.multiply(out[block], np.float32(1 / scale), out=out[block])


def bytes_of(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view("u1").data if array.size else memoryview(b"")
