"""HTTP against a server that behaves, and one that does not."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from support.fake_server import FakeServer, Reply, fake_server
from weft.client.errors import ApiError, NoServer, Unreachable
from weft.client.home import Endpoint, find_endpoint, home_folder, running_server
from weft.client.transport import Transport, segment


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as fake:
        yield fake


@pytest.fixture
def http(server: FakeServer) -> Iterator[Transport]:
    transport = Transport(lambda: Endpoint(server.address, "t0ken"), timeout=5.0)
    yield transport
    transport.close()


def test_json_goes_there_and_back_with_the_token(server: FakeServer, http: Transport) -> None:
    server.on("POST", "/v1/jobs", Reply({"ok": True}, 201))
    assert http.request("POST", "/v1/jobs", query={"dryRun": True, "x": None}, json_body={"ä": 1}) == {
        "ok": True
    }
    asked = server.asked[0]
    assert (asked.query, asked.json()) == ({"dryRun": "true"}, {"ä": 1})
    assert asked.headers["Authorization"] == "Bearer t0ken"


def test_one_connection_serves_many_requests(server: FakeServer, http: Transport) -> None:
    server.on("GET", "/a", Reply({}))
    server.on("DELETE", "/a", Reply(status=204))
    server.on("HEAD", "/a", Reply())
    for method in ("GET", "DELETE", "HEAD", "GET"):
        http.request(method, "/a")
    assert len({asked.connection for asked in server.asked}) == 1


def test_a_refusal_is_an_error_with_everything_the_server_said(server: FakeServer, http: Transport) -> None:
    problem = {
        "title": "Not valid",
        "detail": "job a has 1 problem",
        "problems": [{"field": "spec.cpu", "message": "unknown field", "value": "1"}],
        "next": "weft schema TrainingJob",
    }
    server.on("POST", "/v1/jobs", Reply(problem, 422))
    with pytest.raises(ApiError) as refused:
        http.request("POST", "/v1/jobs", json_body={})
    assert (refused.value.status, refused.value.next) == (422, "weft schema TrainingJob")
    assert str(refused.value) == "Not valid: job a has 1 problem\n  spec.cpu: unknown field (got 1)"


def test_a_refusal_that_is_no_problem_document_still_reads(server: FakeServer, http: Transport) -> None:
    server.on("GET", "/x", Reply(b"<html>teapot</html>", 502))
    with pytest.raises(ApiError, match="502 Bad Gateway: <html>teapot"):
        http.request("GET", "/x")


def test_an_answer_that_is_not_json_is_no_weft_server(server: FakeServer, http: Transport) -> None:
    server.on("GET", "/x", Reply(b"hello"))
    with pytest.raises(Unreachable, match="not a Weft server"):
        http.request("GET", "/x")


def test_a_stale_connection_is_noticed_before_it_is_used(server: FakeServer, http: Transport) -> None:
    server.on("POST", "/v1/act", Reply({}, close=True))
    http.request("POST", "/v1/act")
    threading.Event().wait(0.05)  # the server's FIN is on its way
    http.request("POST", "/v1/act")
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("method", "headers", "again"),
    [("GET", {}, True), ("PUT", {}, True), ("POST", {"Idempotency-Key": "k"}, True), ("POST", {}, False)],
)
def test_a_broken_connection_is_tried_again_only_if_that_does_no_harm(
    server: FakeServer, http: Transport, method: str, headers: dict[str, str], again: bool
) -> None:
    server.on("GET", "/warm", Reply({}))
    http.request("GET", "/warm")
    server.on(method, "/x", Reply(hang_up=True), Reply({"n": 2}))
    if again:
        assert http.request(
            method, "/x", body=BytesIO(b"body") if method == "PUT" else b"{}", headers=headers
        ) == {"n": 2}
        assert server.asked[-1].body == server.asked[-2].body
    else:
        with pytest.raises(Unreachable, match="went away"):
            http.request(method, "/x", headers=headers)
        assert server.lines().count("POST /x") == 1


def test_a_new_connection_that_breaks_is_not_tried_again(server: FakeServer, http: Transport) -> None:
    server.on("GET", "/x", Reply(hang_up=True))
    with pytest.raises(Unreachable):
        http.request("GET", "/x")
    assert len(server.asked) == 1


def test_no_server_says_where_and_what_to_do() -> None:
    transport = Transport(lambda: Endpoint("http://127.0.0.1:9"), timeout=2.0)
    with pytest.raises(
        NoServer, match=r"no server runs at http://127\.0\.0\.1:9: connection refused"
    ) as missing:
        transport.request("GET", "/healthz")
    assert missing.value.next == "weft up"


def test_an_unfinished_stream_gives_its_connection_up(server: FakeServer, http: Transport) -> None:
    server.on("GET", "/s", Reply(chunks=[b"one", b"two"]))
    with http.exchange("GET", "/s") as answer:
        assert answer.read_some() == b"one"
    with http.exchange("GET", "/s") as answer:
        assert answer.read() == b"onetwo"
    assert server.asked[0].connection != server.asked[1].connection


def test_an_error_of_the_caller_stays_what_it_is(server: FakeServer, http: Transport) -> None:
    server.on("GET", "/s", Reply(chunks=[b"one"]))
    with pytest.raises(BrokenPipeError), http.exchange("GET", "/s"):
        raise BrokenPipeError


def test_threads_share_a_transport(server: FakeServer, http: Transport) -> None:
    server.on("GET", "/a", lambda asked: Reply({"n": asked.query["n"]}))
    wrong: list[str] = []

    def work(n: int) -> None:
        for _ in range(20):
            if http.request("GET", "/a", query={"n": n}) != {"n": str(n)}:
                wrong.append(str(n))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_name_is_one_segment() -> None:
    assert segment("a/../b?c") == "a%2F..%2Fb%3Fc"


# ── homes ──


def test_the_home_is_the_given_one_then_the_variable_then_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WEFT_HOME", "/x/y")
    assert home_folder("/a") == Path("/a")
    assert home_folder() == Path("/x/y")
    monkeypatch.delenv("WEFT_HOME")
    assert home_folder() == Path.home() / ".weft"


def test_a_server_is_found_by_its_home(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEFT_ADDRESS", raising=False)
    with pytest.raises(NoServer, match="no server"):
        find_endpoint(tmp_path)
    assert running_server(tmp_path) is None
    (tmp_path / "server.json").write_text(json.dumps({"address": server.address, "pid": 1}))
    (tmp_path / "token").write_text("abc\n")
    assert find_endpoint(tmp_path) == Endpoint(server.address, "abc")
    assert running_server(tmp_path) is None  # something answers there, but 404
    server.on("GET", "/healthz", Reply({"status": "ok"}))
    assert running_server(tmp_path) == {"address": server.address, "pid": 1}
    (tmp_path / "server.json").write_text("{ half")
    assert running_server(tmp_path) is None


def test_an_address_of_the_environment_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_ADDRESS", "http://far:1")
    monkeypatch.setenv("WEFT_TOKEN", "t")
    assert find_endpoint(tmp_path) == Endpoint("http://far:1", "t")
