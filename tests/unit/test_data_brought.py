"""An agent to which a control plane brings what it wants: it opens no connection, and has no token of anybody."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.datasets import SAMPLES, Agent, Carrier, Store, agent, files_below, until, whole
from weft.backends.kubernetes.datanodes import Store as Lending
from weft.data.agent.brought import Brought
from weft.data.cache.versions import Part
from weft.data.errors import DataError, Missing, Unreachable
from weft.runtime.data.link import Link

TOKEN = "of-the-agents"


@pytest.fixture
def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        number: int = found.getsockname()[1]
        return number


@pytest.fixture
def brought(fast_folder: Path, port: int) -> Iterator[Agent]:
    (fast_folder / "token").write_text(TOKEN + "\n")
    told = ("--engine-listen", f"127.0.0.1:{port}", "--engine-token-file", str(fast_folder / "token"))
    with agent(fast_folder / "node", *told) as made:
        yield made


def lending(store: Store, *versions: str) -> Callable[[dict[str, Any]], bytes]:
    """As the engine does, for what was granted."""
    lends = Lending(store.folder)

    def find(want: dict[str, Any]) -> bytes:
        path, offset, length = lends.wanted(want, {*versions})
        return path.read_bytes()[offset : offset + length]

    return find


def grant(carrier: Carrier, version: str, job: str = "job-1") -> None:
    about = {version: {"dataset": "faces", "bytes": 0}}
    assert carrier.ask(do="grant", job=job, token=f"of-{job}", versions=about) == {"ok": True}


@pytest.mark.slow
def test_what_a_reader_wants_is_brought_once_and_kept(
    brought: Agent, port: int, store: Store, version: str
) -> None:
    with Carrier(port, TOKEN, lending(store, version)) as carrier:
        grant(carrier, version)
        link = Link(str(brought.socket), "of-job-1", 30)
        assert [whole(link, version, number) for number in range(20)] == list(SAMPLES.values())
        assert whole(link, version, 3) == SAMPLES["003"]
        link.close()
        parts = [want["part"] for want in carrier.asked if "part" in want]
        assert sorted(parts) == sorted(store.parts(version))
        until(lambda: carrier.reports and carrier.reports[-1]["holds"] == {version: 20_000})
        last = carrier.reports[-1]
        assert last["jobs"] == ["job-1"]
        assert [line["remoteBytes"] for line in last["counts"]] == [20_000]


def test_files_are_laid_out_when_the_engine_asks_and_it_hears_how_far(
    brought: Agent, port: int, store: Store, version: str
) -> None:
    with Carrier(port, TOKEN, lending(store, version)) as carrier:
        grant(carrier, version)
        said = until(lambda: (now := carrier.ask(do="tree", job="job-1", version=version))["done"] and now)
        assert (said["bytes"], said["of"]) == (20_000, 20_000)
        assert files_below(brought.folder / "trees" / version) == SAMPLES
        refused = carrier.ask(do="tree", job="job-2", version=version)
        assert "job job-2 was not granted" in refused["message"]


def test_who_has_not_the_token_is_told_nothing(brought: Agent, port: int) -> None:
    carrier = Carrier(port, TOKEN, lambda want: b"")
    for method, path in (("GET", "/v1/wants"), ("POST", "/v1/ask"), ("PUT", "/v1/wants/1")):
        for token in ("", "of-the-agent", TOKEN + "x"):
            status, said = carrier.call(method, path, b'{"do": "status"}', token)
            assert status == 401
            assert "X-Weft-Token" in said["problem"]
    assert carrier.call("POST", "/v1/ask", b"[1]")[0] == 400


def test_what_was_not_granted_is_not_lent(store: Store, version: str) -> None:
    other = store.add({"secret": b"of another project"})
    lends = Lending(store.folder)
    (part,) = store.parts(other)
    asked: list[dict[str, Any]] = [
        {"version": other, "file": "version.json"},
        {"version": version, "file": "../../names/faces"},
        {"part": part, "offset": 0, "length": 1},
        {"part": "../../../../etc/passwd", "offset": 0, "length": 1},
        {"part": store.parts(version)[0], "offset": 0, "length": 1001},
        {"part": "0" * 64, "offset": 0, "length": 0},
    ]
    for want in asked:
        with pytest.raises(Missing):
            lends.wanted(want, {version})
    assert lends.wanted({"part": part, "offset": 0, "length": 0}, {version})[2] == 0, (
        "whether it can be had again may be asked"
    )
    assert lends.wanted({"version": version, "file": "names.txt"}, {version})[2] == 60


def test_what_breaks_off_is_asked_for_again_and_never_kept_in_part(
    brought: Agent, port: int, store: Store, version: str
) -> None:
    lend, cut = lending(store, version), []

    def half_at_first(want: dict[str, Any]) -> bytes:
        data = lend(want)
        if "part" in want and len(cut) < 3:
            cut.append(want)
            return data[: len(data) // 2]
        return data

    with Carrier(port, TOKEN, half_at_first) as carrier:
        grant(carrier, version)
        link = Link(str(brought.socket), "of-job-1", 30)
        assert [whole(link, version, number) for number in range(20)] == list(SAMPLES.values())
        link.close()
        assert len(cut) == 3
        assert any(want.get("offset") == 500 for want in carrier.asked), "it goes on where it broke"


def test_a_new_follower_is_told_what_is_still_wanted(
    brought: Agent, port: int, store: Store, version: str
) -> None:
    """A control plane that dies with everything unanswered, and the next one."""
    silent = threading.Event()

    def never(want: dict[str, Any]) -> bytes:
        silent.set()
        raise ConnectionError("it died")

    link = Link(str(brought.socket), "of-job-1", 30)
    with Carrier(port, TOKEN, never) as carrier:
        grant(carrier, version)
        assert silent.wait(30)
    with Carrier(port, TOKEN, lending(store, version)) as carrier:
        assert whole(link, version, 7) == SAMPLES["007"]
    link.close()


def test_a_killed_agent_knows_its_grants_and_what_it_keeps(
    brought: Agent, port: int, store: Store, version: str
) -> None:
    with Carrier(port, TOKEN, lending(store, version)) as carrier:
        grant(carrier, version)
        link = Link(str(brought.socket), "of-job-1", 30)
        assert whole(link, version, 0) == SAMPLES["000"]
        brought.kill()
        before = len(carrier.asked)
        brought.start()
        assert whole(link, version, 0) == SAMPLES["000"]
        assert not [want for want in carrier.asked[before:] if "part" in want]
        assert whole(link, version, 1) == SAMPLES["001"]
        link.close()


# ── the origin itself ──

PART = Part("ab" * 32, 10)


def test_nobody_there_is_unreachable_and_not_for_ever() -> None:
    with pytest.raises(Unreachable, match="did not bring part abababababab"):
        list(Brought(patience=0.01).read(PART, 0, 10))


def test_a_want_is_brought_by_one_and_no_more_is_taken_than_somebody_reads() -> None:
    origin = Brought(patience=30)
    got: list[bytes] = []
    reading = threading.Thread(target=lambda: got.extend(origin.read(PART, 0, 10)))
    reading.start()
    told = next(want for want in origin.follow(0.01) if want is not None)
    assert told == {"number": told["number"], "part": PART.digest, "offset": 0, "length": 10}
    want = origin.begin(told["number"])
    assert want is not None
    assert origin.begin(told["number"]) is None, "another is at it"
    assert origin.bring(want, b"01234")
    assert origin.bring(want, b"56789")
    origin.end(want)
    reading.join(30)
    assert b"".join(got) == b"0123456789"
    assert origin.begin(told["number"]) is None, "nobody waits any more"
    assert not origin.bring(want, b"more")


@pytest.mark.parametrize("problem", [Missing("gone"), DataError("no")])
def test_why_there_is_nothing_reaches_the_reader(problem: DataError) -> None:
    origin = Brought(patience=30)
    heard: list[str] = []

    def read() -> None:
        try:
            list(origin.version_file("0" * 32, "names.txt"))
        except DataError as found:
            heard.append(json.dumps([type(found).__name__, str(found)]))

    reading = threading.Thread(target=read)
    reading.start()
    told = next(want for want in origin.follow(0.01) if want is not None)
    want = origin.begin(told["number"])
    assert want is not None
    origin.end(want, problem)
    reading.join(30)
    assert heard == [json.dumps([type(problem).__name__, str(problem)])]


def test_only_the_newest_follower_is_told() -> None:
    origin = Brought(patience=30)
    first = origin.follow(0.01)
    assert next(first) is None
    second = origin.follow(0.01)
    assert next(second) is None
    assert list(first) == []
    origin.close()
    assert list(second) == []
