"""Watches of a real API server: they keep their place by bookmarks, and list again when it was forgotten."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from testbed import places, processes

from weft.backends.kubernetes.client import Client, Document
from weft.backends.kubernetes.watch import Watch


@asynccontextmanager
async def following(watch: Watch) -> AsyncIterator[None]:
    work = asyncio.ensure_future(watch.run())
    try:
        yield
    finally:
        work.cancel()


async def soon(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


def forget(version: str) -> None:
    """Have etcd forget what was before, as the API server does every five minutes."""
    record = processes.read(places.state())
    assert record is not None
    keys = record.folder / "keys"
    tls = ssl.create_default_context(cafile=str(keys / "ca.crt"))
    tls.load_cert_chain(keys / "leaf.crt", keys / "leaf.key")
    connection = http.client.HTTPSConnection("127.0.0.1", record.ports["etcd"], context=tls, timeout=30)
    connection.request("POST", "/v3/kv/compaction", json.dumps({"revision": version}))
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    connection.close()


def happens(kubectl: Any, *names: str) -> None:
    """Events: of these the API server keeps none in its own memory."""
    for name in names:
        metadata = {"name": name, "labels": {"about": "watches"}}
        about = {"kind": "Pod", "name": "x", "namespace": kubectl.namespace}
        kubectl.create(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": metadata,
                "involvedObject": about,
                "type": "Normal",
            }
        )


@pytest.mark.usefixtures("testbed_only")
def test_a_watch_whose_place_was_forgotten_lists_once_and_tells_what_it_missed(
    kubeconfig: str, kubectl: Any
) -> None:
    told: list[tuple[str, str]] = []

    def telling(what: str) -> Callable[[Document], None]:
        return lambda document: told.append((what, document["metadata"]["name"]))

    async def story() -> None:
        client = Client(kubeconfig)
        watch = Watch(
            client, "Event", telling("there"), telling("gone"), kubectl.namespace, labels="about=watches"
        )
        happens(kubectl, "goes", "stays")
        async with following(watch):
            await soon(lambda: len(told) == 2)
        assert sorted(told) == [("there", "goes"), ("there", "stays")]
        told.clear()
        kubectl("delete", "event", "goes")
        happens(kubectl, "comes")
        _, now = await client.listing("Event", kubectl.namespace)
        forget(now)
        lists = client.calls["LIST events"]
        async with following(watch):
            await soon(lambda: len(told) == 3)
            await asyncio.to_thread(happens, kubectl, "after")
            await soon(lambda: len(told) == 4)
        assert told[0] == ("gone", "goes")
        assert sorted(told[1:3]) == [("there", "comes"), ("there", "stays")]
        assert told[3] == ("there", "after")
        assert client.calls["LIST events"] == lists + 1, "and it went on from there"
        await client.close()

    asyncio.run(story())


def happens_to_others(kubectl: Any) -> None:
    for number in range(3):  # one of them while the watch is there
        kubectl("create", "configmap", f"another-{number}")


def test_where_nothing_happens_bookmarks_keep_the_place(kubeconfig: str, kubectl: Any) -> None:
    """Told before the watch ends, if anything happened to others of the kind."""

    async def story() -> None:
        client = Client(kubeconfig)
        where = {"namespace": kubectl.namespace, "labels": "about=nothing"}
        _, version = await client.listing("ConfigMap", **where)
        events = client.watch("ConfigMap", version, 8, **where)
        others = asyncio.ensure_future(asyncio.to_thread(happens_to_others, kubectl))
        told = [(kind, int(document["metadata"]["resourceVersion"])) async for kind, document in events]
        await others
        assert {kind for kind, _ in told} == {"BOOKMARK"}
        assert told[-1][1] > int(version)
        await client.close()

    asyncio.run(story())
