"""A training state in one file: arrays as raw bytes, then a manifest in JSON that says what they are. No pickle.

    magic | arrays, each at a multiple of 64 | manifest | its length and checksum, magic

The manifest holds the tree of the state, and of each array its type, shape, place, size and CRC-32. It comes last, so
that arrays are written as they come, one at a time. A file that was cut short has no end, and one with a changed
byte has a checksum that is wrong. In the tree a JSON list is a container or a reference, by its first element;
everything else is itself. Nothing in the file becomes a name of a file, a type or a function.
"""

from __future__ import annotations

import json
import math
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

MAGIC = b"WEFTSTA1"
END = struct.Struct("<QI8s")
ALIGNMENT = 64
CHUNK = 1 << 24
MAX_DEPTH = 100
WIDE = 1 << 63
KEPT = "dict, list, tuple, numbers, strings, bytes, bool, None, numpy arrays and torch tensors"
NUMPY_KINDS = "biufcmMSU"
"""No objects, which are pointers, and no records."""


class Unkeepable(TypeError):
    """The state holds something that a checkpoint cannot hold."""


class Damaged(Exception):
    """The file is not what was written."""


# ── a state as a tree and arrays ──


class Array(NamedTuple):
    """Raw bytes to be written: what they are, how many, and how to get at them when their turn comes."""

    about: dict[str, Any]
    size: int
    memory: Callable[[], Any]
    """A context manager that gives a memoryview; what is on a GPU is copied only now."""


def flatten(state: Any) -> tuple[Any, list[Array]]:
    """The tree of a state and its arrays; Unkeepable names the place of what does not fit."""
    arrays: list[Array] = []
    return _flat(state, "state", arrays, []), arrays


def _flat(value: Any, path: str, arrays: list[Array], above: list[int]) -> Any:
    if value is None or type(value) in (bool, str, float):
        return value
    array = _array_of(value, path)
    if array is not None:
        arrays.append(array)
        return ["a", len(arrays) - 1]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value) if -WIDE <= value < WIDE else ["i", hex(value)]
    if isinstance(value, complex):
        return ["c", value.real, value.imag]
    if not isinstance(value, (dict, list, tuple)) or hasattr(value, "_fields"):
        raise Unkeepable(_refusal(value, path))
    if id(value) in above:
        raise Unkeepable(f"{path}: a {type(value).__name__} that contains itself cannot be kept")
    if len(above) >= MAX_DEPTH:
        raise Unkeepable(f"{path}: nested over {MAX_DEPTH} deep, which cannot be kept")
    above.append(id(value))
    if isinstance(value, dict):
        tree = ["d"]
        for key, item in value.items():
            tree += [_key(key, path, arrays, above), _flat(item, path + _step(key), arrays, above)]
    else:
        tree = ["t" if isinstance(value, tuple) else "l"]
        tree += [_flat(item, f"{path}[{i}]", arrays, above) for i, item in enumerate(value)]
    above.pop()
    return tree


def _key(key: Any, path: str, arrays: list[Array], above: list[int]) -> Any:
    if not isinstance(key, (str, int, float, bytes, tuple, type(None))):
        raise Unkeepable(
            f"{path}: a key of type {type(key).__name__} cannot be kept; use str, int, float, bytes or a tuple"
        )
    return _flat(key, f"{path}: the key {key!r}", arrays, above)


def _step(key: Any) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


def _refusal(value: Any, path: str) -> str:
    kind = type(value).__name__
    article = "an" if kind[:1].lower() in "aeiou" else "a"
    remedy = f"a checkpoint holds {KEPT}"
    if isinstance(value, (set, frozenset)):
        remedy = "use a sorted list"
    elif hasattr(value, "_asdict"):
        remedy = "use its _asdict()"
    elif callable(getattr(value, "state_dict", None)):
        remedy = "keep its state_dict()"
    elif hasattr(value, "__array__"):
        remedy = "use numpy.asarray(…)"
    elif type(value).__module__ == "torch":
        remedy = "use str(…)"
    return f"{path}: {article} {kind} cannot be kept; {remedy}"


def _array_of(value: Any, path: str) -> Array | None:
    if type(value) is bytes:
        return Array({"kind": "bytes"}, len(value), _lent(memoryview(value)))
    numpy = sys.modules.get("numpy")  # who has an array has imported it
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return _numpy(numpy, value, path)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _torch(value, path)
    return None


def _numpy(numpy: Any, value: Any, path: str) -> Array:
    if value.dtype.kind not in NUMPY_KINDS:
        raise Unkeepable(
            f"{path}: an array of dtype {value.dtype} cannot be kept; "
            "use numbers, bool, dates or strings of a fixed length, or a view as integers"
        )
    if hasattr(value, "mask"):
        raise Unkeepable(f"{path}: a masked array cannot be kept; keep its data and its mask")
    kind = "numpy" if isinstance(value, numpy.ndarray) else "scalar"
    about = {"kind": kind, "dtype": value.dtype.str, "shape": list(value.shape)}

    @contextmanager
    def memory() -> Iterator[memoryview]:
        yield _bytes_of(numpy, numpy.asarray(value, order="C"))

    return Array(about, int(value.nbytes), memory)


def _bytes_of(numpy: Any, array: Any) -> memoryview:
    return memoryview(array.reshape(-1).view(numpy.uint8)) if array.nbytes else memoryview(b"")


def _torch(value: Any, path: str) -> Array:
    """By address rather than through numpy, which knows neither bfloat16 nor the float8s."""
    if str(value.layout) != "torch.strided" or value.is_quantized or value.device.type == "meta":
        what = (
            "quantized"
            if value.is_quantized
            else f"{value.layout} {value.device.type}".removeprefix("torch.")
        )
        raise Unkeepable(f"{path}: a {what} tensor cannot be kept; use a dense one")
    if hasattr(value, "to_local"):
        raise Unkeepable(f"{path}: a {type(value).__name__} cannot be kept whole; save to_local() with rank=")
    about = {
        "kind": "torch",
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": [int(n) for n in value.shape],
    }

    @contextmanager
    def memory() -> Iterator[memoryview]:
        here = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        yield _memory_at(here.data_ptr(), here.numel() * here.element_size())

    return Array(about, int(value.numel() * value.element_size()), memory)


def _memory_at(address: int, size: int) -> memoryview:
    if not size:
        return memoryview(b"")
    import ctypes

    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def _lent(view: memoryview) -> Callable[[], Any]:
    @contextmanager
    def memory() -> Iterator[memoryview]:
        yield view

    return memory


# ── writing ──


def write(file: BinaryIO, tree: Any, arrays: list[Array], about: dict[str, Any]) -> None:
    """All of the file; `about` is what the manifest says besides."""
    file.write(MAGIC)
    at = len(MAGIC)
    table = []
    for array in arrays:
        at += file.write(bytes(-at % ALIGNMENT))
        checksum = 0
        with array.memory() as view:
            for begin in range(0, array.size, CHUNK):
                chunk = view[begin : begin + CHUNK]
                checksum = zlib.crc32(chunk, checksum)
                file.write(chunk)
        table.append({**array.about, "at": at, "size": array.size, "crc": checksum})
        at += array.size
    manifest = json.dumps({**about, "tree": tree, "arrays": table}, separators=(",", ":")).encode()
    file.write(manifest)
    file.write(END.pack(len(manifest), zlib.crc32(manifest), MAGIC))


# ── reading ──


def read_manifest(file: BinaryIO) -> dict[str, Any]:
    """The manifest, or Damaged; the arrays are not looked at, only that there is room for them."""
    size = file.seek(0, 2)
    if size < len(MAGIC) + END.size:
        raise Damaged(f"it is cut short, at {size} bytes")
    file.seek(size - END.size)
    length, checksum, magic = END.unpack(file.read(END.size))
    begin = size - END.size - length
    if magic != MAGIC or begin < len(MAGIC):
        raise Damaged("its end is missing")
    file.seek(begin)
    text = file.read(length)
    if zlib.crc32(text) != checksum:
        raise Damaged("the checksum of its manifest is wrong")
    try:
        manifest: dict[str, Any] = json.loads(text)
        if any(not 0 <= a["at"] <= a["at"] + a["size"] <= begin for a in manifest["arrays"]):
            raise Damaged("its arrays do not fit into it")
    except (ValueError, KeyError, TypeError) as problem:
        raise Damaged(f"its manifest cannot be read ({problem})") from None
    return manifest


def verify(file: BinaryIO, manifest: dict[str, Any]) -> None:
    """Damaged if an array has changed."""
    room = memoryview(bytearray(min(CHUNK, max((a["size"] for a in manifest["arrays"]), default=0))))
    for number, array in enumerate(manifest["arrays"]):
        file.seek(array["at"])
        checksum, left = 0, array["size"]
        while left:
            got = file.readinto(room[:left])  # type: ignore[attr-defined]
            if not got:
                raise Damaged("it is cut short")
            checksum = zlib.crc32(room[:got], checksum)
            left -= got
        _compare(number, array, checksum)


def read_state(file: BinaryIO, manifest: dict[str, Any]) -> Any:
    """The state, its checksums compared on the way."""
    try:
        arrays = [_read_array(file, number, array) for number, array in enumerate(manifest["arrays"])]
        return _grown(manifest["tree"], arrays)
    except (KeyError, IndexError, TypeError, ValueError) as problem:
        raise Damaged(f"its manifest makes no sense ({problem!r})") from None


def _read_array(file: BinaryIO, number: int, array: dict[str, Any]) -> Any:
    value, view = _room(array)
    if len(view) != array["size"]:
        raise ValueError(f"array {number} has {array['size']} bytes, its shape {len(view)}")
    file.seek(array["at"])
    done = checksum = 0
    while done < len(view):
        got = file.readinto(view[done : done + CHUNK])  # type: ignore[attr-defined]
        if not got:
            raise Damaged("it is cut short")
        checksum = zlib.crc32(view[done : done + got], checksum)
        done += got
    _compare(number, array, checksum)
    if array["kind"] == "bytes":
        return bytes(value)
    return value[()] if array["kind"] == "scalar" else value


def _compare(number: int, array: dict[str, Any], checksum: int) -> None:
    if checksum != array["crc"]:
        raise Damaged(f"the checksum of array {number} ({array['size']} bytes) is wrong")


def _room(array: dict[str, Any]) -> tuple[Any, memoryview]:
    """An array to be filled, and its memory. The size is checked first: a file cannot ask for more than it holds."""
    if array["kind"] == "bytes":
        room = bytearray(array["size"])
        return room, memoryview(room)
    count = math.prod(array["shape"])
    if array["kind"] == "torch":
        try:
            import torch  # type: ignore[import-not-found, unused-ignore]
        except ImportError as problem:
            raise ImportError(f"the checkpoint holds torch tensors: {problem}") from None
        dtype = getattr(torch, array["dtype"])
        if not isinstance(dtype, torch.dtype) or count * _width(torch, dtype) != array["size"]:
            raise ValueError(f"a tensor of {array['dtype']} {array['shape']} in {array['size']} bytes")
        tensor = torch.empty(array["shape"], dtype=dtype)
        return tensor, _memory_at(tensor.data_ptr(), array["size"])
    import numpy

    kind = numpy.dtype(array["dtype"])
    if kind.kind not in NUMPY_KINDS or count * kind.itemsize != array["size"]:
        raise ValueError(f"an array of {array['dtype']} {array['shape']} in {array['size']} bytes")
    made = numpy.empty(array["shape"], kind)
    return made, _bytes_of(numpy, made)


def _width(torch: Any, dtype: Any) -> int:
    return int(torch.empty(0, dtype=dtype).element_size())


def _grown(tree: Any, arrays: list[Any]) -> Any:
    if not isinstance(tree, list):
        return tree
    kind, *rest = tree
    if kind == "a":
        return arrays[rest[0]]
    if kind == "i":
        return int(rest[0], 16)
    if kind == "c":
        return complex(*rest)
    grown = [_grown(item, arrays) for item in rest]
    if kind == "d":
        return dict(zip(grown[::2], grown[1::2], strict=True))
    return tuple(grown) if kind == "t" else grown
