"""Nodes that divide a dataset: who owns a part, and what is read from whom."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.datasets import Here, OriginServer, Store, agent, bytes_of, digest, files_below, whole
from weft.data.agent.origins import Server
from weft.data.agent.peers import AVOIDED, PeerDoor, Peers, owner
from weft.data.cache.books import Books
from weft.data.cache.versions import Part
from weft.data.errors import Denied, Missing, Unreachable
from weft.runtime.data.link import Link

DIGESTS = [digest(str(number).encode()) for number in range(1000)]
nodes = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=6, unique=True)


# ── owners ──


@given(nodes, st.sampled_from(DIGESTS), st.randoms())
def test_all_agree_on_the_owner_in_whatever_order_they_know_the_nodes(
    names: list[str], part: str, chance: object
) -> None:
    found = owner(part, names)
    chance.shuffle(names)  # type: ignore[attr-defined]
    assert owner(part, names) == found
    assert found in names


@given(nodes.filter(lambda names: len(names) > 1))
def test_when_a_node_leaves_only_its_parts_move(names: list[str]) -> None:
    for part in DIGESTS[:100]:
        before, after = owner(part, names), owner(part, names[1:])
        assert after == before or before == names[0]


def test_each_node_owns_its_part_of_the_parts() -> None:
    counted = Counter(owner(part, ["a", "b", "c", "d"]) for part in DIGESTS)
    assert all(200 < count < 300 for count in counted.values()), counted


# ── asking ──


@pytest.fixture
def door(fast_folder: Path) -> Iterator[Callable[..., str]]:
    """Listens where one part can be read, and wrong bytes in place of any of 2,000, until the test ends."""
    (fast_folder / "part").write_bytes(bytes_of(1, 1000))
    (fast_folder / "wrong").write_bytes(bytes_of(2, 2000))
    wrong: set[str] = set()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def find(version: str, part: str) -> int:
        if part not in ("p", *wrong):
            raise Missing("not here")
        return os.open(fast_folder / ("part" if part == "p" else "wrong"), os.O_RDONLY)

    made = PeerDoor("key", find)
    asyncio.run_coroutine_threadsafe(made.listen("127.0.0.1:0"), loop).result(10)

    def address(*spoilt: str) -> str:
        wrong.update(spoilt)
        return made.address

    yield address
    asyncio.run_coroutine_threadsafe(made.close(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def peers(folder: Path, address: str, key: str = "key", now: Callable[[], float] = lambda: 0.0) -> Peers:
    made = Peers("me", key, Books(folder / "books.sqlite"), now)
    made.introduce({"other": address})
    return made


def ask(asking: Peers, part: str = "p", offset: int = 0, length: int = 1000) -> bytes:
    return b"".join(asking.read("v", Part(part, 1000), ["other"], offset, length))


def test_ranges_come_over_one_connection(fast_folder: Path, door: Callable[..., str]) -> None:
    asking = peers(fast_folder, door())
    assert ask(asking) == bytes_of(1, 1000)
    assert ask(asking, offset=10, length=5) == bytes_of(1, 1000)[10:15]
    with pytest.raises(Missing):
        ask(asking, "other")
    assert ask(asking, offset=999, length=1) == bytes_of(1, 1000)[999:]
    asking.close()


@pytest.mark.parametrize("key", ["", "kez", "keyy"])
def test_without_the_key_nothing_is_said(fast_folder: Path, door: Callable[..., str], key: str) -> None:
    with pytest.raises(Denied, match="401"):
        ask(peers(fast_folder, door(), key))


@given(st.binary(max_size=200) | st.binary(max_size=50).map(lambda text: b"GET " + text + b"\r\n\r\n"))
def test_whatever_is_sent_others_are_answered(
    fast_folder: Path, door: Callable[..., str], sent: bytes
) -> None:
    host, _, port = door().rpartition(":")
    with socket.create_connection((host, int(port)), 60) as sock:
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        said = sock.recv(65536)
    assert said == b"" or said.startswith(b"HTTP/1.1 4")
    asking = peers(fast_folder, door())
    assert ask(asking, length=3) == bytes_of(1, 1000)[:3]
    asking.close()


def test_a_peer_that_does_not_answer_is_left_alone_for_a_while(fast_folder: Path) -> None:
    clock = [100.0]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        asking = peers(fast_folder, f"127.0.0.1:{closed.getsockname()[1]}", now=lambda: clock[0])
        with pytest.raises(Unreachable, match="does not answer"):
            ask(asking)
        with pytest.raises(Unreachable, match="did not answer a moment ago"):
            ask(asking)
        clock[0] += AVOIDED
        with pytest.raises(Unreachable, match="does not answer"):
            ask(asking)


def test_a_node_that_nobody_introduced_is_no_error_but_not_asked(fast_folder: Path) -> None:
    asking = Peers("me", "key", Books(fast_folder / "books.sqlite"))
    with pytest.raises(Unreachable, match="nobody said where node other is"):
        ask(asking)


# ── dividing ──


def test_a_node_keeps_only_its_share_and_goes_to_the_origin_without_peers(fast_folder: Path) -> None:
    samples = {f"{number:02}": bytes_of(number, 500) for number in range(20)}
    store = Store(fast_folder / "store")
    version = store.add(samples)
    with OriginServer(store) as origin, Here(fast_folder, Server(origin.url), name="a") as node:
        link = node.grant(version, share=["a", "b"])
        mine = [owner(part, ["a", "b"]) == "a" for part in store.parts(version)]
        assert True in mine
        assert False in mine
        for number, data in enumerate(samples.values()):
            assert (whole(link, version, number) is not None) == mine[number]
            assert link.read(version, number, 0, 500, sample=number) == data
        link.ahead(version, range(20))
        assert node.control(do="holds")["versions"] == {version: 500 * sum(mine)}
        assert link.counts()["peerBytes"] == 0


def test_when_the_job_has_other_nodes_what_is_another_s_makes_room_for_what_is_mine(
    fast_folder: Path,
) -> None:
    samples = {f"{number:02}": bytes_of(number, 500) for number in range(40)}
    store = Store(fast_folder / "store")
    version = store.add(samples)
    before, after = ["a", "b", "c", "d"], ["a", "b"]
    owned = [[owner(part, nodes) == "a" for part in store.parts(version)] for nodes in (before, after)]
    quota = 500 * sum(owned[1])
    with OriginServer(store) as origin, Here(fast_folder, Server(origin.url), name="a") as node:
        link = node.grant(version, share=["a"], quota=quota)  # alone: all is its own, as far as there is room
        first = [whole(link, version, number) is not None for number in range(40)]
        assert first == [number < sum(owned[1]) for number in range(40)]
        for mine, nodes in zip(owned, (before, after), strict=True):
            link = node.grant(version, share=nodes, quota=quota)
            for _ in range(2):
                for number in range(40):
                    whole(link, version, number)
            held = node.held()
            assert {part for part, own in zip(store.parts(version), mine, strict=True) if own} <= held
            assert 500 * len(held) <= quota


@pytest.mark.parametrize("spoilt", [False, True])
def test_who_brings_a_part_to_all_that_hold_it_is_not_believed_and_not_waited_for(
    fast_folder: Path, door: Callable[..., str], spoilt: bool
) -> None:
    """It has other bytes for what is spoilt, and nothing else: then the origin is asked."""
    samples = {f"{number:02}": bytes_of(number, 1000) for number in range(8)}
    store = Store(fast_folder / "store")
    version = store.add(samples, 2)
    with OriginServer(store) as origin, Here(fast_folder, Server(origin.url), name="a", key="key") as node:
        node.control(do="peers", nodes={"b": door(*(store.parts(version) if spoilt else ()))})
        link = node.grant(version, together=["b"])
        parts = [whole(link, version, number) or b"" for number in range(4)]
        assert b"".join(parts) == b"".join(samples.values())
        assert link.counts()["peerBytes"] == (8000 if spoilt else 0)
        assert link.counts()["remoteBytes"] == 8000
        assert files_below(Path(link.tree(version))) == samples


def test_two_nodes_that_hold_all_of_a_version_ask_for_each_part_once(fast_folder: Path) -> None:
    samples = {f"{number:02}": bytes_of(number, 1000) for number in range(40)}
    store = Store(fast_folder / "store")
    version = store.add(samples, 4)
    key = fast_folder / "key"
    key.write_text("key")
    options = ("--peer-listen", "127.0.0.1:0", "--peer-key-file", str(key))
    with OriginServer(store) as origin, ExitStack() as ends:
        url = ("--origin-url", origin.url)
        nodes = {
            name: ends.enter_context(agent(fast_folder / name, *url, *options, "--node", name))
            for name in "ab"
        }
        addresses = {name: made.control(do="status")["peerAddress"] for name, made in nodes.items()}
        about = {"dataset": "faces", "bytes": 0, "together": ["a", "b"]}
        for made in nodes.values():
            made.control(do="peers", nodes=addresses)
            made.control(do="grant", job="job-1", token="t", versions={version: about})
        with ThreadPoolExecutor(2) as both:
            links = [Link(str(made.socket), "t", 60) for made in nodes.values()]
            trees = list(both.map(lambda link: link.tree(version), links))
        counts = [line for made in nodes.values() for line in made.control(do="status")["counts"]]
        for link, tree in zip(links, trees, strict=True):
            assert files_below(Path(tree)) == samples
            link.close()
    assert sorted(origin.asked) == sorted(store.parts(version))
    assert sum(each["remoteBytes"] for each in counts) == 40_000
    assert sum(each["peerBytes"] for each in counts) == 40_000


def test_a_peer_with_other_bytes_is_not_believed(fast_folder: Path, door: Callable[..., str]) -> None:
    """Its answer does not fit the sample's mark, so the origin is asked."""
    samples = {f"{number:02}": bytes_of(number + 50, 1000) for number in range(8)}
    store = Store(fast_folder / "store")
    version = store.add(samples, 2)
    with OriginServer(store) as origin, Here(fast_folder, Server(origin.url), name="a", key="key") as node:
        node.control(do="peers", nodes={"b": door(*store.parts(version))})
        link = node.grant(version, share=["b"])
        link.read(version, 0, 0, 500)
        assert link.counts()["peerBytes"] == 500, "without a mark nobody can tell"
        for number, data in enumerate(samples.values()):
            assert link.read(version, number // 2, number % 2 * 1000, 1000, sample=number) == data
        assert (link.counts()["remoteBytes"], link.counts()["peerBytes"]) == (8000, 500)
