"""Messages: what is sent arrives, what is cut short or lies about its size does no harm."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.runtime.ps.errors import BadMessage
from weft.runtime.ps.framing import HEAD, MAGIC, MAX_HEADER, Kind, fill, receive, send
from weft.runtime.ps.gradients import Part, contents_of, decode, encode
from weft.runtime.ps.layout import layout_of

SHARD = layout_of({"a": (3, 2), "b": (4,)}, 1).shards[0]
JSON = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9) | st.none(), max_size=4)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        there.settimeout(10)
        yield here, there


@given(st.sampled_from(Kind), st.integers(0, 2**64 - 1), JSON, st.lists(st.binary(max_size=50), max_size=6))
def test_what_is_sent_arrives(kind: Kind, request: int, header: dict[str, Any], payload: list[bytes]) -> None:
    here, there = socket.socketpair()
    with here, there:
        send(here, kind, request, header, [memoryview(part) for part in payload])
        message = receive(there)
        body = bytearray(message.payload)
        fill(there, memoryview(body))
    assert (message.kind, message.request, message.header) == (kind, request, header)
    assert bytes(body) == b"".join(payload)


def test_more_buffers_than_the_kernel_takes_at_once(ends: tuple[socket.socket, socket.socket]) -> None:
    here, there = ends
    parts = [memoryview(bytes([i % 256]) * 997) for i in range(5000)]
    sending = threading.Thread(target=send, args=(here, Kind.PUSH, 1, {}, parts))
    sending.start()
    body = bytearray(receive(there).payload)
    fill(there, memoryview(body))
    sending.join()
    assert body == b"".join(parts)


@given(st.data())
def test_a_message_cut_short_is_a_lost_connection(data: st.DataObject) -> None:
    text = json.dumps({"number": 7}).encode()
    whole = HEAD.pack(MAGIC, Kind.PUSH, 1, len(text), 0) + text
    here, there = socket.socketpair()
    with here, there:
        here.sendall(whole[: data.draw(st.integers(0, len(whole) - 1))])
        here.close()
        with pytest.raises(ConnectionResetError):
            receive(there)


@given(st.binary(max_size=90) | st.binary(max_size=60).map(lambda b: HEAD.pack(MAGIC, 6, 1, len(b), 0) + b))
def test_strangers_do_no_harm(data: bytes) -> None:
    here, there = socket.socketpair()
    with here, there:
        here.sendall(data)
        here.close()
        try:
            assert isinstance(receive(there, most=4096).header, dict)
        except (BadMessage, ConnectionResetError):
            pass


@pytest.mark.parametrize(
    "head",
    [
        HEAD.pack(MAGIC, Kind.PUSH, 1, MAX_HEADER + 1, 0),
        HEAD.pack(MAGIC, Kind.PUSH, 1, 2**32 - 1, 2**64 - 1),
        HEAD.pack(b"GET ", Kind.PUSH, 1, 2, 0) + b"{}",
        HEAD.pack(MAGIC, 99, 1, 2, 0) + b"{}",
        HEAD.pack(MAGIC, Kind.PUSH, 1, 2, 0) + b"[]",
        HEAD.pack(MAGIC, Kind.PUSH, 1, 11, 0) + b'{"lr": NaN}',
        HEAD.pack(MAGIC, Kind.PUSH, 1, 100_000, 0) + b"[" * 100_000,
    ],
)
def test_nonsense_is_refused_before_anything_is_allocated(
    ends: tuple[socket.socket, socket.socket], head: bytes
) -> None:
    here, there = ends
    here.sendall(head)
    with pytest.raises(BadMessage):
        receive(there)


# ── what a push may say of itself ──


@pytest.mark.parametrize(
    "parts",
    [
        [[2, None]], [[-1, None]], [[0, 4]], [[0, -1]], [[1, None], [0, None]], [[0, 1], [0, 1]], [[0, None]] * 3,
        [0], "ab", {"a": 1}, [[0, 1 << 70]], [[0, 1.5]], [["0", 1]], [[True, 9]],
    ],
)  # fmt: skip
def test_parts_that_cannot_be_are_refused(parts: Any) -> None:
    with pytest.raises(BadMessage):
        contents_of(SHARD, {"parts": parts, "half": False, "scale": 1.0})


@pytest.mark.parametrize("rows", [[3], [2**32 - 1], [1, 1], [2, 0]])
def test_rows_that_cannot_be_are_refused(rows: list[int]) -> None:
    values = np.zeros((len(rows), 2), dtype="f4")
    header, payload = encode(SHARD, [Part(0, np.array(rows, dtype="<u4"), values)], half=False)
    contents = contents_of(SHARD, header)
    with pytest.raises(BadMessage):
        decode(SHARD, contents, np.frombuffer(b"".join(payload), dtype="u1"))


@given(
    rows=st.none() | st.lists(st.integers(0, 2), unique=True).map(sorted),
    with_b=st.booleans(),
    half=st.booleans(),
    size=st.sampled_from([1.0, 1e-9, 1e9]),
)
def test_gradients_arrive_as_they_were(rows: list[int] | None, with_b: bool, half: bool, size: float) -> None:
    random = np.random.default_rng(0)
    count = 3 if rows is None else len(rows)
    chosen = None if rows is None else np.array(rows, dtype="<u4")
    parts = [Part(0, chosen, np.float32(size) * random.normal(size=(count, 2)).astype("f4"))]
    if with_b:
        parts.append(Part(1, None, np.float32(size) * random.normal(size=4).astype("f4")))
    header, payload = encode(SHARD, parts, half)
    contents = contents_of(SHARD, json.loads(json.dumps(header)))
    body = np.frombuffer(b"".join(payload), dtype="u1")
    assert body.size == contents.size
    arrived, _ = decode(SHARD, contents, body)
    assert [part.piece for part in arrived] == [part.piece for part in parts]
    for one, other in zip(arrived, parts, strict=True):
        assert (one.rows is None) == (other.rows is None)
        assert one.rows is None or one.rows.tolist() == other.rows.tolist()
        np.testing.assert_allclose(
            one.values, other.values.reshape(-1), rtol=1e-3 if half else 0, atol=size * 1e-4 if half else 0
        )
