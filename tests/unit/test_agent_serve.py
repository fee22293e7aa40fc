"""What the agent answers, and what it refuses; one agent for most of it."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from support.pod import TOKEN, Pod, archive, until


@pytest.fixture(scope="module")
def pod() -> Iterator[Pod]:
    with tempfile.TemporaryDirectory(prefix="weft-test-") as folder:
        made = Pod(Path(folder))
        made.agent()
        yield made
        made.close()


ROUTES = [
    ("GET", "/v1/stream"),
    ("GET", "/v1/files?folder=results"),
    ("GET", "/v1/file?folder=results&path=a"),
    ("PUT", "/v1/folder?folder=code"),
    ("PUT", "/v1/hosts"),
    ("POST", "/v1/done"),
]


class TestTokens:
    @pytest.mark.parametrize("token", [None, "", "wrong", f"{TOKEN}x", "\xe9"])
    @pytest.mark.parametrize(("method", "path"), ROUTES)
    def test_nothing_is_answered_without_the_right_one(
        self, pod: Pod, method: str, path: str, token: str | None
    ) -> None:
        body = archive({}) if method == "PUT" else None
        status, said = pod.ask(method, path, body, token=token)
        assert status == 401
        assert "X-Weft-Token" in json.loads(said)["problem"]

    def test_without_a_token_file_nobody_is_right(self, pod: Pod) -> None:
        file = pod.token / "token"
        for content in ("", None):
            file.write_text("")
            if content is None:
                file.unlink()
            assert pod.ask("GET", "/v1/files?folder=results", token="")[0] == 401
        file.write_text(TOKEN)


class TestFiles:
    def test_files_are_listed_with_hidden_ones_and_without_links(self, pod: Pod) -> None:
        results = pod.root / "results"
        (results / "deep/.hidden").mkdir(parents=True)
        (results / "deep/.hidden/b").write_bytes(b"bb")
        (results / ".a").write_bytes(b"a")
        (results / os.fsdecode(b"\xff")).write_bytes(b"raw")
        (results / "link").symlink_to("/etc/passwd")
        (results / "outside").symlink_to(pod.token)
        os.mkfifo(results / "pipe")
        status, said = pod.ask("GET", "/v1/files?folder=results")
        assert status == 200
        found = {file["path"]: file for file in json.loads(said)["files"]}
        assert {path: file["size"] for path, file in found.items()} == {
            ".a": 1,
            "deep/.hidden/b": 2,
            "\udcff": 3,
        }
        assert found[".a"]["modified"] == (results / ".a").stat().st_mtime
        assert pod.ask("GET", "/v1/file?folder=results&path=deep/.hidden/b") == (200, b"bb")
        raw = quote(b"\xff")
        assert pod.ask("GET", f"/v1/file?folder=results&path={raw}") == (200, b"raw")

    def test_large_and_empty_files_arrive(self, pod: Pod) -> None:
        large = os.urandom(3 << 20)
        (pod.root / "checkpoints/large").write_bytes(large)
        (pod.root / "checkpoints/empty").touch()
        assert pod.ask("GET", "/v1/file?folder=checkpoints&path=large") == (200, large)
        assert pod.ask("GET", "/v1/file?folder=checkpoints&path=empty") == (200, b"")

    @pytest.mark.parametrize(
        "path",
        ["../task/output", "/etc/passwd", "a/../../task/output", "", ".", "..", "a//b", "a/", "%00", "a%00b"],
    )
    def test_a_path_that_leads_outside_is_refused(self, pod: Pod, path: str) -> None:
        status, said = pod.ask("GET", f"/v1/file?folder=results&path={path}")
        assert (status, list(json.loads(said))) == (400, ["problem"])

    def test_links_and_what_is_no_file_are_not_there(self, pod: Pod) -> None:
        checkpoints = pod.root / "checkpoints"
        (checkpoints / "link").symlink_to(pod.token / "token")
        (checkpoints / "outside").symlink_to(pod.token)
        (checkpoints / "folder").mkdir()
        os.mkfifo(checkpoints / "pipe")
        for path in ("gone", "link", "outside/token", "folder", "pipe", "gone/gone"):
            status, said = pod.ask("GET", f"/v1/file?folder=checkpoints&path={path}")
            assert (status, list(json.loads(said))) == (404, ["problem"]), path

    @pytest.mark.parametrize("folder", ["code", "task", "..", "results/..", "", "/etc"])
    def test_other_folders_are_refused(self, pod: Pod, folder: str) -> None:
        assert pod.ask("GET", f"/v1/files?folder={folder}")[0] == 400
        assert pod.ask("GET", f"/v1/file?folder={folder}&path=a")[0] == 400
        if folder != "code":
            assert pod.ask("PUT", f"/v1/folder?folder={folder}", archive({"a": b""}))[0] == 400


class TestBadRequests:
    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [
            ("GET", "/", 404),
            ("GET", "/v1/done", 404),
            ("POST", "/v1/hosts", 404),
            ("DELETE", "/v1/hosts", 501),
            ("GET", "/v1/stream?log=-1", 400),
            ("GET", "/v1/stream?log=x", 400),
            ("GET", "/v1/stream?metrics=99999999999999999999", 400),
        ],
    )
    def test_each_is_told_what_is_wrong(self, pod: Pod, method: str, path: str, status: int) -> None:
        got, said = pod.ask(method, path)
        assert (got, list(json.loads(said))) == (status, ["problem"])

    @pytest.mark.parametrize(
        "sent",
        [
            b"nonsense\r\n\r\n",
            b"GET " + b"x" * 70000,
            b"\0\xff\r\n\r\n",
            b"PUT /v1/hosts HTTP/1.1\r\nX-Weft-Token: right\r\nContent-Length: 9\r\n\r\nhalf",
            b"PUT /v1/hosts HTTP/1.1\r\nX-Weft-Token: right\r\nContent-Length: -9\r\n\r\n",
            b"PUT /v1/hosts HTTP/1.1\r\nX-Weft-Token: right\r\n\r\n",
            b"PUT /v1/hosts HTTP/1.1\r\nX-Weft-Token: right\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"",
        ],
    )
    def test_noise_ends_its_own_connection_and_nothing_else(self, pod: Pod, sent: bytes) -> None:
        with socket.create_connection(("127.0.0.1", pod.port), timeout=30) as raw:
            raw.sendall(sent)
            raw.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := raw.recv(1 << 16):
                answer += piece
        assert not answer or b"problem" in answer
        assert pod.ask("GET", "/v1/files?folder=results")[0] == 200

    def test_one_connection_serves_many_requests(self, pod: Pod) -> None:
        request = b"GET /v1/files?folder=code HTTP/1.1\r\nX-Weft-Token: right\r\n\r\n"
        with socket.create_connection(("127.0.0.1", pod.port), timeout=30) as raw:
            raw.sendall(3 * request)
            raw.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := raw.recv(1 << 16):
                answer += piece
        assert answer.count(b"HTTP/1.1 400") == 3


def test_a_new_stream_ends_the_older_one(pod: Pod) -> None:
    with pod.stream() as old:
        old.until(lambda stream: stream.states)
        with pod.stream() as new:
            new.until(lambda stream: stream.states)
            until(lambda: _over(old), "the old stream ends")


def _over(stream: object) -> bool:
    try:
        return stream.next() is None  # type: ignore[attr-defined]
    except OSError:
        return True
    except Exception as problem:
        return type(problem).__name__ == "IncompleteRead"
