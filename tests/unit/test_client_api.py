"""The client and the job handle, against a server that answers from a script."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fake_server import Asked, FakeServer, Reply, fake_server
from weft.client import api
from weft.client.api import Client
from weft.client.errors import BadDocument, JobFailed, WeftError
from weft.client.job import Job


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as fake:
        yield fake


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    with Client(server.address, "t") as client:
        yield client


def job(state: str, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "a", "uid": "u1"},
        "spec": {},
        "status": {"state": state, "tasks": [{"name": "worker-0", "state": "RUNNING"}], **status},
    }


def sse(*events: tuple[str, Any]) -> bytes:
    return b"".join(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode() for name, data in events)


def submitted(server: FakeServer) -> None:
    server.on("POST", "/v1/jobs", lambda asked: Reply({**asked.json(), "status": {"state": "PENDING"}}, 201))


def test_a_submission_has_a_key_of_its_own(server: FakeServer, client: Client) -> None:
    submitted(server)
    for _ in range(2):
        client.submit({"metadata": {"name": "a"}, "spec": {"command": ["x"]}})
    keys = [asked.headers["Idempotency-Key"] for asked in server.asked]
    assert len(set(keys)) == 2


def test_code_is_packed_checked_uploaded_and_replaced(
    server: FakeServer, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("1")
    (tmp_path / "job.yaml").write_text(
        "metadata: {name: a}\nspec: {command: [x], code: {path: code, subdir: s}}\n"
    )
    submitted(server)
    server.on("PUT", "/v1/packages/any", Reply(status=201))
    checked = client.check(str(tmp_path / "job.yaml"))
    assert checked["spec"]["code"] == {"path": "code", "subdir": "s"}, "as it was written: it can be run"
    sent = json.loads(server.asked[-1].body)["spec"]["code"]
    digest = sent["package"]
    assert sent == {"package": digest, "subdir": "s"}
    server.asked.clear()
    server.on("PUT", f"/v1/packages/{digest}", Reply({}, 201))
    client.submit(tmp_path / "job.yaml")
    assert server.lines() == [
        f"HEAD /v1/packages/{digest}",
        "POST /v1/jobs",
        f"PUT /v1/packages/{digest}",
        "POST /v1/jobs",
    ]
    assert server.asked[1].query == {"dryRun": "true"}
    server.on("HEAD", f"/v1/packages/{digest}", Reply())
    server.asked.clear()
    client.submit(tmp_path / "job.yaml")
    assert server.lines() == [f"HEAD /v1/packages/{digest}", "POST /v1/jobs"]


def test_a_refused_file_is_named(server: FakeServer, client: Client, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("spec: {cpus: 1}\n")
    problem = {"field": "spec.cpus", "message": "unknown field"}
    server.on("POST", "/v1/jobs", Reply({"title": "Not valid", "problems": [problem]}, 422))
    with pytest.raises(BadDocument, match=r"job\.yaml:1:8: spec\.cpus: unknown field"):
        client.submit(tmp_path / "job.yaml")


def test_a_missing_code_folder_is_blamed_on_the_file(client: Client, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("spec: {code: {path: nope}}\n")
    with pytest.raises(
        BadDocument, match=r"job\.yaml:1:15: spec\.code\.path: cannot pack .*nope: there is no such folder"
    ):
        client.submit(tmp_path / "job.yaml")


def test_pages_are_followed_to_the_limit(server: FakeServer, client: Client) -> None:
    def page(asked: Asked) -> Reply:
        begin = int(asked.query.get("before", 0))
        count = int(asked.query["limit"])
        items = [{"name": f"j{n}"} for n in range(begin, min(begin + count, 2500))]
        return Reply(
            {"items": items, "total": 2500, "next": str(begin + count) if begin + count < 2500 else None}
        )

    server.on("GET", "/v1/jobs", page)
    assert sum(len(page["items"]) for page in client.pages()) == 2500
    server.asked.clear()
    assert sum(len(page["items"]) for page in client.pages(limit=1200)) == 1200
    assert [asked.query["limit"] for asked in server.asked] == ["1000", "200"]


def test_long_logs_of_several_tasks_are_merged_by_time(
    server: FakeServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "LOG_PAGE", 4)
    lines = {task: [{"task": task, "offset": n, "time": n * 2 + extra, "text": "x"} for n in range(9)]
             for extra, task in enumerate(("w-0", "w-1"))}  # fmt: skip

    def page(asked: Asked) -> Reply:
        begin, count = int(asked.query.get("offset", 0)), int(asked.query["limit"])
        tasks = [asked.query["task"]] if "task" in asked.query else list(lines)
        found = {task: lines[task][begin : begin + count] for task in tasks}
        after = {task: begin + len(items) for task, items in found.items()}
        return Reply({"items": [line for items in found.values() for line in items], "next": after})

    server.on("GET", "/v1/jobs/a/logs", page)
    assert [line["time"] for line in client.logs("a")] == list(range(18))


def test_following_logs_survives_a_restart_and_repeats_nothing(server: FakeServer, client: Client) -> None:
    def lines(*offsets: int) -> tuple[str, Any]:
        return "lines", {"items": [{"task": "w-0", "offset": o, "text": str(o)} for o in offsets]}

    server.on(
        "GET",
        "/v1/jobs/a/logs",
        Reply(chunks=[sse(lines(0, 5))]),  # breaks off without an end
        Reply(hang_up=True),
        Reply(chunks=[sse(lines(0, 5, 9)), sse(("end", {}))]),
    )
    assert [line["offset"] for batch in client.follow_logs("a", tail=2) for line in batch] == [0, 5, 9]


def test_metrics_are_points_or_pairs(server: FakeServer, client: Client) -> None:
    points = [
        {"id": 1, "task": "w", "name": "loss", "step": 1, "time": 0.0, "value": 0.5},
        {"id": 2, "task": "w", "name": "loss", "step": 2, "time": 0.0, "value": "inf"},
    ]
    server.on("GET", "/v1/jobs/a/metrics", Reply({"items": points, "next": 2}))
    handle = Job(client, job("COMPLETED"))
    assert handle.metrics("loss") == [(1, 0.5), (2, float("inf"))]
    assert [point["id"] for point in handle.metrics()] == [1, 2]


def test_waiting_returns_when_the_job_completes(server: FakeServer, client: Client) -> None:
    server.on("GET", "/v1/jobs/a", Reply(job("PROCESSING")), Reply(job("COMPLETED")))
    server.on(
        "GET",
        "/v1/jobs/a/events",
        Reply(chunks=[sse(("event", {"seq": 1, "state": "COMPLETED"}), ("end", {}))]),
    )
    assert client.get("a").wait(5).status["state"] == "COMPLETED"


def test_waiting_raises_the_failure_with_the_last_lines(server: FakeServer, client: Client) -> None:
    failure = {"code": "EXIT_CODE", "message": "worker-0 exited with code 3"}
    server.on("GET", "/v1/jobs/a", Reply(job("FAILED", failure=failure, logTail=["boom", "bang"])))
    with pytest.raises(JobFailed) as failed:
        client.get("a").wait()
    assert str(failed.value) == "job a is FAILED: worker-0 exited with code 3\n  | boom\n  | bang"
    assert failed.value.log_tail == ["boom", "bang"]
    assert client.get("a").wait(check=False).status["state"] == "FAILED"


def test_waiting_has_a_limit(server: FakeServer, client: Client) -> None:
    server.on("GET", "/v1/jobs/a", Reply(job("QUEUED")))
    server.on("GET", "/v1/jobs/a/events", Reply(chunks=[b": weft\n\n"]))
    with pytest.raises(TimeoutError, match="job a is still QUEUED"):
        client.get("a").wait(0.3)


def tarball(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return target.getvalue()


def test_results_are_unpacked_and_the_return_value_read(
    server: FakeServer, client: Client, tmp_path: Path
) -> None:
    server.on("GET", "/v1/jobs/a", Reply(job("COMPLETED")))
    content = tarball({"sub/x.txt": b"x" * 2000, "return.json": b'{"accuracy": 0.9}'})
    server.on("GET", "/v1/jobs/a/results.tar", Reply(content))
    handle = client.get("a")
    assert handle.result() == {"accuracy": 0.9}
    assert (handle.download(tmp_path / "out") / "sub" / "x.txt").read_text() == "x" * 2000


def test_results_cannot_leave_their_folder(server: FakeServer, client: Client, tmp_path: Path) -> None:
    server.on("GET", "/v1/jobs/a/results.tar", Reply(tarball({"../evil": b"x"})))
    with pytest.raises(WeftError, match="will not unpack"):
        Job(client, job("COMPLETED")).download(tmp_path / "out")
    assert not (tmp_path / "evil").exists()


def test_no_return_value_says_so(server: FakeServer, client: Client) -> None:
    server.on("GET", "/v1/jobs/a", Reply(job("COMPLETED")))
    server.on("GET", "/v1/jobs/a/results.tar", Reply(tarball({"x": b""})))
    with pytest.raises(WeftError, match="no return value"):
        client.get("a").result()


def test_a_backup_is_private_and_whole(server: FakeServer, client: Client, tmp_path: Path) -> None:
    server.on("GET", "/v1/backup", Reply(b"x" * 100))
    assert client.backup(tmp_path / "b.tar") == 100
    assert (tmp_path / "b.tar").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["b.tar"]


def test_a_card_for_notebooks_is_escaped(server: FakeServer, client: Client) -> None:
    server.on("GET", "/v1/jobs/a", Reply(job("FAILED", failure={"message": "<script>"})))
    assert "&lt;script&gt;" in client.get("a")._repr_html_()
