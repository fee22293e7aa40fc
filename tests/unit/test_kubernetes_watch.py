"""Watches and requests through what a real API server cannot be made to answer at the right moment."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support import virtual
from weft.backends.kubernetes.client import ApiError, Client, Document
from weft.backends.kubernetes.settings import Settings
from weft.backends.kubernetes.watch import Watch
from weft.operator import operator


def a_pod(name: str, version: str) -> Document:
    return {"metadata": {"uid": name, "name": name, "resourceVersion": version}}


class Moody:
    """Each list and each watch is what the next of its moods says."""

    def __init__(self, *moods: Any):
        self._moods = list(moods)
        self.lists = 0

    async def listing(self, *_: Any, **__: Any) -> tuple[list[Document], str]:
        self.lists += 1
        return [], str(self.lists)

    async def watch(self, *_: Any, **__: Any) -> Any:
        mood = self._moods.pop(0) if self._moods else None
        if isinstance(mood, Exception):
            raise mood
        if mood is not None:
            yield "ADDED", mood
        await asyncio.sleep(60)


@pytest.mark.parametrize("problem", [ValueError("not JSON"), KeyError("type"), RuntimeError("the plugin")])
def test_a_watch_goes_on_after_whatever_goes_wrong_and_says_so_meanwhile(problem: Exception) -> None:
    told: list[str] = []

    async def story() -> None:
        client: Any = Moody(problem, a_pod("later", "7"))
        watch = Watch(client, "Pod", lambda pod: told.append(pod["metadata"]["name"]), lambda _: None)
        work = asyncio.ensure_future(watch.run())
        await asyncio.sleep(0.01)
        assert watch.problem is not None
        assert str(problem) in watch.problem
        await asyncio.sleep(10)
        assert (told, watch.problem, client.lists) == (["later"], None, 2)
        work.cancel()

    virtual.run(story)


KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:%d"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
users: [{name: u, user: %s}]
"""


def asking(
    tmp_path: Path, answer: bytes, story: Callable[[Client], Awaitable[None]], user: str = "{}"
) -> None:
    """A server that gives everybody the same answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async def whole() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        path = tmp_path / "kubeconfig"
        path.write_text(KUBECONFIG % (server.sockets[0].getsockname()[1], user))
        client = Client(str(path))
        async with asyncio.timeout(20):
            await story(client)
        await client.close()
        server.close()

    asyncio.run(whole())


def answered(body: bytes, *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), b"Connection: close", *headers]
    return b"\r\n".join([*lines, b"", body])


@pytest.mark.parametrize(
    "answer",
    [answered(b"<html>please log in</html>"), answered(b"no gzip", b"Content-Encoding: gzip")],
    ids=["no JSON", "no gzip"],
)
def test_an_answer_that_cannot_be_read_is_the_servers_trouble(tmp_path: Path, answer: bytes) -> None:
    async def story(client: Client) -> None:
        with pytest.raises(ApiError) as problem:
            await client.get("Pod", "x", "ns")
        assert problem.value.passing

    asking(tmp_path, answer, story)


def test_credentials_that_cannot_be_made_are_told_as_such(tmp_path: Path) -> None:
    """By a program that the kubeconfig names, as those of cloud providers do."""
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable}
    user = json.dumps({"exec": {**plugin, "args": ["-c", "import sys; sys.exit('no network')"]}})

    async def story(client: Client) -> None:
        with pytest.raises(ApiError) as problem:
            await client.get("Pod", "x", "ns")
        assert problem.value.passing
        with pytest.raises(ApiError) as problem:
            async with client.stream("GET", "/api/v1/pods"):
                pass
        assert problem.value.passing

    asking(tmp_path, answered(b"{}"), story, user)


def test_what_is_read_as_it_comes_keeps_the_readers_own_errors(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        with pytest.raises(OSError, match="full"):
            async with client.stream("GET", "/api/v1/pods"):
                raise OSError("the disk is full")

    asking(tmp_path, answered(b"{}"), story)


def test_a_watch_reads_texts_that_python_would_break_into_lines(tmp_path: Path) -> None:
    """U+0085 is written as it is by the API server."""
    pods = [a_pod("one\u0085\u2028two", "1"), a_pod("three", "2")]
    lines = "".join(json.dumps({"type": "ADDED", "object": pod}, ensure_ascii=False) + "\n" for pod in pods)

    async def story(client: Client) -> None:
        assert [pod async for _, pod in client.watch("Pod", "0", 1)] == pods

    asking(tmp_path, answered(lines.encode()), story)


def test_the_operator_looks_again_after_whatever_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    async def definitions(_: Any) -> Any:
        looks.append(asyncio.get_running_loop().time())
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr(operator, "definitions", definitions)

    async def story() -> None:
        nobody: Any = SimpleNamespace()
        made = operator.Operator(nobody, nobody, Settings(), nobody)
        made.start()
        await asyncio.sleep(operator.RETRY * 2.5)
        assert len(looks) == 3
        assert "nobody thought of this" in made.notes()[0]
        await made.close()

    virtual.run(story)
