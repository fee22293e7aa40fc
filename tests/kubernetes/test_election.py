"""One leader among several control planes: elections by leases of a real API server, which may be away.

Nothing here is asked to be quick: how long who waits for what is in tests/unit/test_server_leader.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from weft.backends.kubernetes.client import Client
from weft.server.leader import DURATION, Election, Lost

from .conftest import Kubectl

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("testbed_only")]
PATIENCE = 60.0


class Wire:
    """Between a candidate and the API server: whatever passes can be cut off, or held up without a word."""

    def __init__(self, kubeconfig: str, folder: Path):
        self._said: dict[str, Any] = json.loads(Path(kubeconfig).read_text())
        self._cluster = self._said["clusters"][0]["cluster"]
        self._target = urlsplit(self._cluster["server"])
        self._file = folder / "kubeconfig"
        self._free = asyncio.Event()
        self._free.set()
        self._open: set[asyncio.StreamWriter] = set()
        self._refuses = False

    async def lay(self) -> Client:
        self._door = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self._cluster["server"] = f"https://127.0.0.1:{self._door.sockets[0].getsockname()[1]}"
        self._file.write_text(json.dumps(self._said))
        return Client(str(self._file), None)

    def cut(self) -> None:
        self._refuses = True
        for each in self._open:
            each.close()

    def take_away(self) -> None:
        self.cut()
        self._door.close()

    def mend(self) -> None:
        self._refuses = False

    def hold_up(self) -> None:
        self._free.clear()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.close()
            return
        there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
        self._open |= {writer, back}
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                await self._free.wait()
                target.write(data)
        except OSError:
            pass
        finally:
            target.close()


class Candidates:
    def __init__(self, kubeconfig: str, kubectl: Kubectl):
        self._kubeconfig = kubeconfig
        self._kubectl = kubectl
        self._clients: list[Client] = []

    def new(self, name: str, client: Client | None = None) -> Election:
        self._clients.append(client or Client(self._kubeconfig, None))
        return Election(self._clients[-1], self._kubectl.namespace, "weft", name)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    async def lease(self) -> dict[str, Any]:
        found: dict[str, Any] = await asyncio.to_thread(self._kubectl.get, "lease", "weft")
        return found["spec"]

    async def forget(self) -> None:
        await asyncio.to_thread(self._kubectl, "delete", "lease", "weft")


Tell = Callable[[Callable[[Candidates], Awaitable[None]]], None]


@pytest.fixture
def tell(kubeconfig: str, kubectl: Kubectl) -> Tell:
    def told(story: Callable[[Candidates], Awaitable[None]]) -> None:
        async def whole() -> None:
            candidates = Candidates(kubeconfig, kubectl)
            async with asyncio.timeout(PATIENCE):
                await story(candidates)
            await candidates.close()

        asyncio.run(whole())

    return told


async def stops(holding: asyncio.Future[None]) -> str:
    with pytest.raises(Lost) as lost:
        await holding
    return str(lost.value)


def test_of_two_that_come_at_once_one_leads_and_the_other_follows_when_it_dies(tell: Tell) -> None:
    async def story(candidates: Candidates) -> None:
        both = [candidates.new(name) for name in ("one", "two")]
        winning = [asyncio.ensure_future(each.win()) for each in both]
        await asyncio.wait(winning, return_when=asyncio.FIRST_COMPLETED)
        [leader] = [each for each in both if each.leads]
        [other] = [each for each in both if each is not leader]
        holding = asyncio.ensure_future(leader.hold())
        await asyncio.sleep(DURATION + 0.5)
        assert (leader.leads, other.leads, holding.done()) == (True, False, False)
        assert (await candidates.lease())["holderIdentity"] == leader.identity
        holding.cancel()
        await asyncio.gather(*winning)
        lease = await candidates.lease()
        assert (lease["holderIdentity"], lease["leaseTransitions"]) == (other.identity, 1)
        assert "may lead" in await stops(asyncio.ensure_future(leader.hold())), (
            "as one that was frozen learns"
        )
        await leader.resign()
        assert (await candidates.lease())["holderIdentity"] == other.identity, "nothing was taken from it"

    tell(story)


def test_a_leader_that_resigns_is_followed_and_a_lease_that_somebody_deletes_is_made_again(
    tell: Tell,
) -> None:
    async def story(candidates: Candidates) -> None:
        one, two = candidates.new("one"), candidates.new("two")
        await one.win()
        await one.resign()
        assert (await candidates.lease())["holderIdentity"] == ""
        await two.win()
        holding = asyncio.ensure_future(two.hold())
        await candidates.forget()
        await asyncio.sleep(DURATION)
        assert (await candidates.lease())["holderIdentity"] == "two"
        assert not holding.done()
        holding.cancel()

    tell(story)


@pytest.mark.parametrize("trouble", ["cut", "hold_up"])
def test_a_leader_that_cannot_reach_the_api_server_stops(
    tell: Tell, kubeconfig: str, tmp_path: Path, trouble: str
) -> None:
    """And one for which it was away for a moment goes on."""

    async def story(candidates: Candidates) -> None:
        wire = Wire(kubeconfig, tmp_path)
        one = candidates.new("one", await wire.lay())
        await one.win()
        holding = asyncio.ensure_future(one.hold())
        wire.cut()
        await asyncio.sleep(0.1)
        wire.mend()
        await asyncio.sleep(DURATION)
        assert (one.leads, holding.done()) == (True, False)
        getattr(wire, trouble)()
        assert "another may lead" in await stops(holding)
        assert not one.leads
        two = candidates.new("two")
        await two.win()
        assert (await candidates.lease())["holderIdentity"] == "two"
        wire.take_away()

    tell(story)
