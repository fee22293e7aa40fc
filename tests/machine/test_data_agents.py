"""Agents as processes: killed and started again, two on one cache, three that divide a dataset."""

from __future__ import annotations

import json
import random
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.datasets import Agent, OriginServer, Store, agent, bytes_of, digest, files_below, until, whole
from weft.data.agent.peers import owner
from weft.runtime.data.errors import DataError
from weft.runtime.data.link import Link

pytestmark = pytest.mark.machine

SIZE = 50_000
SAMPLES = {f"{number:03}": bytes_of(number, SIZE) for number in range(40)}
NODES = ["a", "b", "c"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short name: a socket's path has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="weft-") as made:
        yield Path(made)


@pytest.fixture
def store(folder: Path) -> Store:
    return Store(folder / "store")


@pytest.fixture
def version(store: Store) -> str:
    return store.add(SAMPLES)


@pytest.fixture
def origin(store: Store) -> Iterator[OriginServer]:
    with OriginServer(store) as served:
        yield served


def check(folder: Path) -> int:
    """Every part in a cache is what its name says; how many there are."""
    found = [path for path in (folder / "parts").rglob("*") if path.is_file()]
    for path in found:
        assert digest(path.read_bytes()) == path.name
    return len(found)


def test_an_agent_that_is_killed_and_started_again_goes_on(
    folder: Path, origin: OriginServer, version: str
) -> None:
    """Its grants, its cache and its counts are there again; a reader in the middle of an epoch notices nothing."""
    with agent(folder / "n", "--origin-url", origin.url) as node:
        node.grant("job-1", "secret", version)
        link = Link(str(node.socket), "secret")
        for part in range(20):
            assert whole(link, version, part) == SAMPLES[f"{part:03}"]
        until(lambda: node.control(do="status")["counts"][0]["lacked"] == 20)
        before = node.control(do="status")["counts"][0]
        until(lambda: _written(node, 20))
        node.kill()
        node.start()
        for part in range(40):
            assert whole(link, version, part) == SAMPLES[f"{part:03}"]
        after = node.control(do="status")["counts"][0]
        assert (after["found"], after["lacked"], after["since"]) == (20, 40, before["since"])
        assert node.control(do="status")["jobs"] == {"job-1": [version]}
        assert sorted(origin.asked) == sorted(origin.store.parts(version))
        assert node.control(do="collect", all=True)["bytes"] == 0, "the lease has gone"
        link.close()


def _written(node: Agent, misses: int) -> bool:
    """The counts are in the books, where the next agent finds them."""
    with sqlite3.connect(node.folder / "books.sqlite") as books:
        rows = books.execute("select counted from counts").fetchall()
    return bool(rows) and json.loads(rows[0][0])["lacked"] == misses


def test_kill_9_at_random_moments_of_filling_leaves_only_good_parts(
    folder: Path, origin: OriginServer, version: str
) -> None:
    chance = random.Random(1)
    origin.delay = 0.003
    swept = 0
    with agent(folder / "n", "--origin-url", origin.url) as node:
        node.grant("job-1", "secret", version)
        link = Link(str(node.socket), "secret")
        for _ in range(12):
            link.ahead(version, chance.sample(range(40), 40))
            have = check(node.folder)
            goal = min(39, have + chance.randrange(4))
            until(lambda goal=goal: len(list((node.folder / "parts").glob("*/*"))) >= goal)
            node.kill()
            check(node.folder)
            node.start()
            status = node.control(do="status")
            swept += status["swept"]
            assert not list((node.folder / "tmp").iterdir())
            there = check(node.folder)
            assert status["datasets"].get("faces", {"bytes": 0}) == (
                {"bytes": there * SIZE, "inodes": there} if there else {"bytes": 0}
            )
        link.close()
    assert swept > 0, "it was never killed in the middle"


def test_a_killed_maker_of_a_tree_leaves_none(folder: Path, origin: OriginServer, version: str) -> None:
    origin.delay = 0.02
    with agent(folder / "n", "--origin-url", origin.url) as node:
        node.grant("job-1", "secret", version)
        link = Link(str(node.socket), "secret")
        made: list[str] = []
        asking = threading.Thread(target=lambda: made.append(link.tree(version)))
        asking.start()
        until(lambda: len(list((node.folder / "trees").glob(".*/*"))) > 5)
        node.kill()
        assert not (node.folder / "trees" / version).exists()
        node.start()
        asking.join(60)
        assert files_below(Path(made[0])) == SAMPLES
        link.close()


def test_two_agents_on_one_cache_fetch_each_part_once(
    folder: Path, origin: OriginServer, version: str
) -> None:
    """In a rolling restart, say: both know what one was told, and they share the quota."""
    origin.delay = 0.01
    with (
        agent(folder / "n", "--origin-url", origin.url) as one,
        agent(folder / "m", "--origin-url", origin.url, "--folder", str(one.folder)) as two,
    ):
        one.grant("job-1", "secret", version, quota=30 * SIZE)
        got: dict[Path, list[bool]] = {}

        def read(node: Agent) -> None:
            link = Link(str(node.socket), "secret")
            for part in range(40):
                data = whole(link, version, part)
                assert data in (None, SAMPLES[f"{part:03}"])
                got.setdefault(node.socket, []).append(data is not None)
            link.close()

        threads = [threading.Thread(target=read, args=(node,)) for node in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [len(found) for found in got.values()] == [40, 40]
        assert check(one.folder) == 30
        assert len(origin.asked) == len(set(origin.asked)) == 30
        two.control(do="collect", all=True)
        assert check(one.folder) == 30, "one agent collected what the other's job reads"
        one.control(do="revoke", job="job-1")
        one.control(do="holds")  # writes down what has arrived, as it does every second
        two.control(do="collect", all=True)
        assert check(one.folder) == 0, "one agent does not know of the other's revocation"


def start_three(stack: ExitStack, folder: Path, origin: OriginServer, version: str) -> dict[str, Agent]:
    key = folder / "key"
    key.write_text("shared")
    agents = {
        name: stack.enter_context(
            agent(
                folder / name, "--origin-url", origin.url, "--node", name, "--peer-listen", "127.0.0.1:0",
                "--peer-key-file", str(key),
            )
        )
        for name in NODES
    }  # fmt: skip
    addresses = {name: node.control(do="status")["peerAddress"] for name, node in agents.items()}
    for node in agents.values():
        assert node.control(do="peers", nodes=addresses) == {"ok": True}
        node.grant("job-1", "secret", version, share=NODES)
    return agents


def epoch(link: Link, version: str, seed: int = 0) -> None:
    for part in random.Random(seed).sample(range(40), 40):
        data = whole(link, version, part)
        if data is None:
            data = link.read(version, part, 0, SIZE, sample=part)
        assert data == SAMPLES[f"{part:03}"]


def test_three_nodes_hold_a_dataset_once_and_read_it_from_each_other(
    folder: Path, origin: OriginServer, version: str
) -> None:
    with ExitStack() as stack:
        agents = start_three(stack, folder, origin, version)
        links = {name: Link(str(node.socket), "secret") for name, node in agents.items()}
        for seed, link in enumerate(links.values()):
            epoch(link, version, seed)
        assert sorted(origin.asked) == sorted(origin.store.parts(version)), "each part left the origin once"
        owned = {name: [p for p in origin.store.parts(version) if owner(p, NODES) == name] for name in NODES}
        for name, node in agents.items():
            assert check(node.folder) == len(owned[name])
            counted = links[name].counts()
            assert counted["peerBytes"] == (40 - len(owned[name])) * SIZE
            links[name].close()


def test_when_one_of_three_is_killed_the_readers_of_the_others_go_on(
    folder: Path, origin: OriginServer, version: str
) -> None:
    with ExitStack() as stack:
        agents = start_three(stack, folder, origin, version)
        problems: list[BaseException] = []
        done: dict[str, int] = {"a": 0, "b": 0}
        enough = threading.Event()

        def read(name: str) -> None:
            link = Link(str(agents[name].socket), "secret")
            try:
                while not enough.is_set() or done[name] < 3:
                    epoch(link, version, done[name])
                    done[name] += 1
            except BaseException as problem:
                problems.append(problem)
            finally:
                link.close()

        threads = [threading.Thread(target=read, args=(name,)) for name in done]
        for thread in threads:
            thread.start()
        until(lambda: problems or min(done.values()) >= 1)
        agents["c"].kill()
        reached = dict(done)
        until(lambda: problems or all(done[name] > reached[name] + 1 for name in done))
        enough.set()
        for thread in threads:
            thread.join(60)
        assert problems == []
        remote = [node.control(do="status")["counts"] for name, node in agents.items() if name != "c"]
        assert all(line[-1]["remoteBytes"] > 0 for line in remote), "nobody went to the origin"


def test_a_peer_gives_nothing_to_who_has_another_key(
    folder: Path, origin: OriginServer, version: str
) -> None:
    with ExitStack() as stack:
        agents = start_three(stack, folder, origin, version)
        host, _, port = agents["a"].control(do="status")["peerAddress"].rpartition(":")
        part = origin.store.parts(version)[0]
        for authorization in ("", "Authorization: Bearer shareD\r\n", "Authorization: Basic shared\r\n"):
            with socket.create_connection((host, int(port)), 60) as sock:
                sock.sendall(f"GET /parts/{part}?version={version} HTTP/1.1\r\n{authorization}\r\n".encode())
                assert sock.recv(100).startswith(b"HTTP/1.1 401")


def test_an_agent_whose_options_make_no_sense_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "weft.data.agent"]
    long = tmp_path / ("x" * 100)
    for arguments, says in (
        (["--folder", "x"], "required"),
        (
            ["--folder", str(tmp_path), "--socket", str(long), "--control", "c", "--origin-folder", "s"],
            "cannot listen at",
        ),
    ):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode != 0
        assert says in done.stderr
        assert "Traceback" not in done.stderr


def test_the_origin_s_token_is_read_from_its_file_each_time(
    folder: Path, origin: OriginServer, version: str
) -> None:
    origin.token = "good"
    token = folder / "token"
    token.write_text("bad\n")
    arguments: Any = ("--origin-url", origin.url, "--origin-token-file", str(token))
    with agent(folder / "n", *arguments) as node:
        node.grant("job-1", "secret", version)
        link = Link(str(node.socket), "secret")
        with pytest.raises(DataError, match="token of this node is not accepted") as found:
            link.part(version, 0)
        assert found.value.code == "denied"
        token.write_text("good\n")
        assert whole(link, version, 0) == SAMPLES["000"]
        link.close()
