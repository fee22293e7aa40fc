"""Who may ask the agent what, what becomes of bad frames, and the reader's end of the line."""

from __future__ import annotations

import os
import socket
import stat
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.datasets import (
    SAMPLES,
    Here,
    Store,
    exchange,
    frame,
    receive,
    until,
    whole,
)
from weft.runtime.data import arrival
from weft.runtime.data.errors import DataError
from weft.runtime.data.link import Link

# ── who may ──


def test_a_token_reads_what_was_granted_to_it_and_nothing_else(
    node: Here, store: Store, version: str
) -> None:
    other = store.add({"other": b"secret"})
    node.grant(version)
    link = node.grant(other, "job-2", "2")
    with pytest.raises(DataError, match="job job-2 may not read version") as found:
        link.part(version, 0)
    assert found.value.code == "denied"
    for ask in (link.open, link.tree, lambda v: link.read(v, 0, 0, 1), lambda v: link.ahead(v, [0])):
        with pytest.raises(DataError, match="may not read"):
            ask(version)
    with pytest.raises(DataError, match="the token is of no job"):
        Link(str(node.socket), "secre", patience=1).counts()


def test_without_a_hello_nothing_is_said(node: Here, version: str) -> None:
    node.grant(version)
    answer = exchange(node.socket, {"do": "part", "version": version, "part": 0})
    assert (answer["code"], "say who you are first" in answer["message"]) == ("denied", True)
    answer = exchange(node.socket, {"do": "hello", "protocol": 2, "token": "secret"})
    assert "speaks protocol 1" in answer["message"]
    assert exchange(node.socket, {"do": "grant", "job": "x"})["code"] == "denied"


def test_who_waits_for_data_goes_on_when_it_was_lent_and_its_files_are_there(
    node: Here, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = Link(str(node.socket), "secret", patience=5)
    with closing(waiting), ThreadPoolExecutor(1) as aside:
        gone_on = aside.submit(arrival.wait, waiting, [version], 0.01)
        until(lambda: "the token is of no job" in capsys.readouterr().err, "it to be refused")
        node.grant(version)
        until(lambda: waiting.job == "job-1", "it to be lent to")
        assert not waiting.has_tree(version)
        assert not gone_on.done(), "its files are not there"
        asked = node.control(do="tree", job="job-1", version=version)
        assert asked["ok"], asked
        gone_on.result(60)
    assert (node.folder / "trees" / version / "000").exists()


def test_a_new_token_ends_the_old_one(node: Here, version: str) -> None:
    old = node.grant(version)
    old.counts()
    new = node.grant(version, token="new")
    assert new.counts()["found"] == 0
    with pytest.raises(DataError, match="any more"):
        old.counts()


def test_who_says_hello_again_and_again_is_one_reader_of_the_job_that_it_named_last(
    node: Here, version: str
) -> None:
    node.grant(version)
    node.grant(version, "job-2", "2")
    readers = node._engine._desk._readers
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(node.socket))
        for token, job in [("secret", "job-1")] * 5 + [("2", "job-2")] * 5:
            sock.sendall(frame({"do": "hello", "protocol": 1, "token": token}))
            assert receive(sock)["job"] == job
            ((only, (connection,)),) = readers.items()
            assert only == job
            assert len(connection.ended._callbacks) == 1
    until(lambda: not readers, "it to have left")


def test_only_this_user_reaches_the_control_socket(node: Here) -> None:
    assert stat.S_IMODE(node.control_path.stat().st_mode) == 0o600
    assert stat.S_IMODE(node.socket.stat().st_mode) == 0o666


@pytest.mark.parametrize(
    "request_",
    [
        {"do": "part", "part": -1},
        {"do": "part", "part": 20},
        {"do": "part", "part": "0"},
        {"do": "part", "part": True},
        {"do": "read", "part": 0, "offset": 0, "length": 1001},
        {"do": "read", "part": 0, "offset": -1, "length": 5},
        {"do": "read", "part": 0, "offset": 5, "length": -1},
        {"do": "read", "part": 0},
        {"do": "read", "part": 0, "offset": 0, "length": 5, "sample": 2.5},
        {"do": "ahead", "parts": "all"},
        {"do": "ahead", "parts": [0, None]},
        {"do": "dance"},
        {"do": ["part"]},
        {},
    ],
)
def test_a_request_that_makes_no_sense_is_refused_and_the_next_is_answered(
    node: Here, version: str, request_: dict[str, Any]
) -> None:
    link = node.grant(version)
    with pytest.raises(DataError) as found:
        link._ask({"version": version, **request_})
    assert found.value.code == "refused"
    assert whole(link, version, 0) == SAMPLES["000"]


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (struct.pack("<I", 1 << 30) + b"x", "a header of 1073741824 bytes"),
        (struct.pack("<I", 4) + b"nope", "not JSON"),
        (struct.pack("<I", 2) + b"[]", "not an object"),
        (struct.pack("<I", 200_000) + b"[" * 200_000, "not JSON"),
    ],
)
def test_a_bad_frame_is_told_so_and_ends_its_connection(node: Here, sent: bytes, says: str) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(60)
        sock.connect(str(node.socket))
        sock.sendall(sent)
        answer = receive(sock)
        assert answer["code"] == "refused"
        assert says in answer["message"]
        assert sock.recv(1) == b""


hello = frame({"do": "hello", "protocol": 1, "token": "secret"})


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60),
            st.binary(max_size=60).map(lambda text: struct.pack("<I", len(text)) + text),
            st.just(hello),
            st.just(hello[: len(hello) // 2]),
            st.just(struct.pack("<I", 0xFFFFFFFF)),
            st.recursive(
                st.none()
                | st.booleans()
                | st.integers()
                | st.text(max_size=8)
                | st.sampled_from(["part", "read", "open"]),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.dictionaries(st.sampled_from(["do", "version", "part", "offset"]), inner, max_size=4)
                ),
                max_leaves=6,
            ).map(frame),
        ),
        max_size=6,
    ),
    st.sampled_from(["socket", "control_path"]),
)
def test_whatever_is_sent_others_are_answered(node: Here, version: str, sent: list[bytes], door: str) -> None:
    link = node.grant(version)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(60)
        sock.connect(str(getattr(node, door)))
        with suppress(BrokenPipeError, ConnectionResetError):
            for piece in sent:
                sock.sendall(piece)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
    assert whole(link, version, 0) == SAMPLES["000"]
    link.close()


def test_answers_of_one_connection_come_in_order(node: Here, version: str) -> None:
    node.grant(version)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(60)
        sock.connect(str(node.socket))
        sock.sendall(hello + frame({"do": "counts"}) + frame({"do": "dance"}) + frame({"do": "counts"}))
        sock.shutdown(socket.SHUT_WR)
        data = b""
        while chunk := sock.recv(65536):
            data += chunk
    assert [b"job-1" in data, data.count(b'"hits"'), data.index(b"dance") < data.rindex(b'"hits"')] == [
        True,
        2,
        True,
    ]


# ── the reader's end ──


def test_a_child_after_a_fork_has_a_connection_of_its_own(node: Here, version: str) -> None:
    link = node.grant(version)
    assert whole(link, version, 0) == SAMPLES["000"]
    child = os.fork()
    if child == 0:
        os._exit(0 if whole(link, version, 1) == SAMPLES["001"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert whole(link, version, 2) == SAMPLES["002"]


def test_where_there_is_no_agent_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the data agent of this node did not answer") as found:
        Link(str(tmp_path / "none.sock"), "t", patience=0.05).counts()
    assert found.value.code == "unreachable"


def test_the_environment_says_where_the_agent_is(
    node: Here, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEFT_DATA_SOCKET", raising=False)
    assert Link.of_this_job() is None
    node.grant(version)
    (tmp_path / "token").write_text("secret\n")
    monkeypatch.setenv("WEFT_DATA_SOCKET", str(node.socket))
    monkeypatch.setenv("WEFT_DATA_TOKEN_FILE", str(tmp_path / "token"))
    link = Link.of_this_job()
    assert link is not None
    assert link.counts()["found"] == 0
    assert link.job == "job-1"
    link.close()
