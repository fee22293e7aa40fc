"""What the server answers is what its OpenAPI document says, to the last field: the page's types are made from it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from harness import Server, python, sh, until

pytestmark = pytest.mark.machine

MEASURES = """
import time, weft, weft.checkpoint
for step in range(20):
    weft.log(step=step, loss=1 / (1 + step), progress=step / 20, odd=float("nan"))
weft.checkpoint.save({"step": 20}, step=20)
print("ready", flush=True)
time.sleep(600)
"""


def shut(schema: Any) -> Any:
    """No field that is not described: an object with properties has no others."""
    if isinstance(schema, list):
        return [shut(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: shut(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        found.setdefault("additionalProperties", False)
    return found


@pytest.fixture
def server(new_server: Callable[..., Server]) -> Server:
    return new_server("--nodes", "2", "--cpu", "16", "--gpus", "4", "--gpu-type", "a100", "--racks", "2")


@pytest.fixture
def document(server: Server) -> Any:
    return shut(server.get("/openapi.json").json)


def fits(document: Any, schema: Any, what: str, found: Any) -> None:
    whole = {**schema, "components": document["components"]}
    problems = [
        f"{what} {list(error.instance_path)}: {error.message}"
        for error in jsonschema_rs.validator_for(whole).iter_errors(found)
    ]
    assert not problems, "\n".join(problems[:5])


def answer_of(document: Any, path: str, media: str) -> Any:
    return document["paths"][path]["get"]["responses"]["200"]["content"][media]["schema"]


@pytest.fixture
def checked(server: Server, document: Any) -> tuple[Server, Callable[..., Any]]:
    def check(path: str, of: str, **query: Any) -> Any:
        answer = server.get(path, **query)
        assert answer.status == 200, answer.body
        fits(document, answer_of(document, of, "application/json"), path, json.loads(answer.body))
        return answer.json

    return server, check


def test_every_answer_about_jobs_and_nodes_is_as_described(
    checked: tuple[Server, Callable[..., Any]],
) -> None:
    server, check = checked
    gpu = {"worker": {"replicas": 2, "resources": {"cpu": 1, "gpu": 0.5, "memory": "64Mi"}}}
    server.submit(python(MEASURES, name="runs", roles=gpu, labels={"team": "vision"}))
    server.run(sh("echo hi; echo x > $RESULT_DIR/x", name="done"))
    server.run(sh("echo no >&2; exit 3", name="failed"))
    server.wait_for("runs", "PROCESSING")
    server.submit(sh("true", name="waits", roles={"worker": {"replicas": 2, "resources": {"gpu": 2}}}))
    server.submit(sh("true", name="never", roles={"worker": {"resources": {"gpu": 64}}}))
    node = check("/v1/nodes", "/v1/nodes")["items"][0]["name"]
    server.post(f"/v1/nodes/{node}/cordon?reason=test")
    until(lambda: server.text("runs").count("ready") == 2, "both tasks to have saved")

    assert check("/v1/jobs", "/v1/jobs", view="summary")["total"] == 5
    check("/v1/jobs", "/v1/jobs", view="full")
    check("/v1/nodes", "/v1/nodes")
    check("/v1/status", "/v1/status")
    check("/v1/events", "/v1/events")
    check("/v1/utilization", "/v1/utilization")
    check("/v1/top", "/v1/top")
    for name in ("runs", "done", "failed", "waits", "never"):
        check(f"/v1/jobs/{name}", "/v1/jobs/{name}")
        for part in ("events", "explain", "logs", "metrics", "curves", "usage", "checkpoints", "results"):
            check(f"/v1/jobs/{name}/{part}", f"/v1/jobs/{{name}}/{part}")
    assert check("/v1/jobs/done/suggestion", "/v1/jobs/{name}/suggestion")["items"]
    assert server.call("PUT", "/v1/secrets/store", {"data": {"key": "x"}}).status == 204
    assert check("/v1/secrets", "/v1/secrets")["items"] == [{"name": "store", "keys": ["key"]}]
    assert check("/v1/clusters", "/v1/clusters")["items"] == []
    assert check("/v1/jobs/runs/checkpoints", "/v1/jobs/{name}/checkpoints")["items"]
    assert check("/v1/jobs/runs/logs", "/v1/jobs/{name}/logs", find="ready")["items"]
    for name in ("runs", "waits", "never"):
        server.ask(name, "cancel")


def test_every_answer_about_what_is_declared_is_as_described(
    checked: tuple[Server, Callable[..., Any]], document: Any, tmp_path: Path
) -> None:
    server, check = checked
    spec = {"guarantee": {"gpu": 2, "memory": "1Gi"}, "limit": {"cpu": 0.5}, "userLimit": {"gpu": 1}}
    assert server.call("PUT", "/v1/queues/lab", {"spec": spec}).status == 201
    assert (
        server.call("PUT", "/v1/sizes/huge", {"spec": {"cpu": 2, "gpu": 4, "gpuType": "a100"}}).status == 201
    )
    (tmp_path / "faces").mkdir()
    (tmp_path / "faces" / "a.txt").write_text("a face")
    source = {"url": f"file://{tmp_path}/faces"}
    assert server.call("PUT", "/v1/datasets/faces", {"spec": {"source": source}}).status == 201
    until(lambda: server.get("/v1/datasets/faces").json["status"]["version"], "the data to be read")
    copies = sh("cp $DATA_DIR/faces/a.txt $RESULT_DIR/", name="copies", datasets=[{"name": "faces"}])
    copies["spec"]["outputs"] = [{"dataset": "copy"}]
    assert server.run(copies)["status"]["state"] == "COMPLETED"
    server.run(sh("sleep 600", name="runs", roles={"worker": {"resources": {"gpu": 2}}}), "PROCESSING")
    server.submit(sh("true", name="waits", roles={"worker": {"replicas": 2, "resources": {"gpu": 2}}}))
    server.submit(sh("true", name="never", roles={"worker": {"resources": {"gpu": 64}}}))

    assert [item["name"] for item in check("/v1/queue", "/v1/queue")["items"]] == ["waits", "never"]
    assert len(check("/v1/queues", "/v1/queues")["items"]) == 2
    assert check("/v1/jobtypes", "/v1/jobtypes")["items"]
    check("/v1/jobtypes/mpi", "/v1/jobtypes/{name}")
    assert check("/v1/sizes", "/v1/sizes")["items"]
    check("/v1/sizes/huge", "/v1/sizes/{name}")
    assert len(check("/v1/datasets", "/v1/datasets")["items"]) == 2
    check("/v1/datasets/copy", "/v1/datasets/{name}")
    for verb, status in (("verify", 200), ("refresh", 202)):
        answer = server.post(f"/v1/datasets/copy/{verb}")
        said = document["paths"][f"/v1/datasets/{{name}}/{verb}"]["post"]["responses"][str(answer.status)]
        assert answer.status == status
        fits(document, said["content"]["application/json"]["schema"], verb, answer.json)
    assert len(check("/v1/datasets/copy/lineage", "/v1/datasets/{name}/lineage")["nodes"]) == 3
    for name in ("runs", "waits", "never"):
        server.ask(name, "cancel")


def test_every_message_of_a_stream_is_as_described(server: Server, document: Any) -> None:
    def check(path: str, of: str, *kinds: str, **query: Any) -> None:
        """Read on until there was one of each kind."""
        schema = answer_of(document, of, "text/event-stream")
        described = {
            each["properties"]["event"]["const"]: each["properties"]["data"]["contentSchema"]
            for each in schema["oneOf"]
        }
        missing = {*kinds}
        for event in server.stream(path, **query):
            fits(document, described[event.event], f"{path} {event.event}", event.data)
            missing.discard(event.event)
            if not missing:
                return
        assert not missing, path

    server.run(python(MEASURES.replace("time.sleep(600)", ""), name="done"))
    check("/v1/events", "/v1/events", "event")
    for part, kind in (("events", "event"), ("logs", "lines"), ("metrics", "points")):
        check(f"/v1/jobs/done/{part}", f"/v1/jobs/{{name}}/{part}", kind, "end")
    declares = threading.Thread(target=_declare, args=(server,))
    declares.start()
    everything = ("hello", "jobs", "nodes", "status", "declared", "sample", "measured")
    check("/v1/watch", "/v1/watch", *everything, follow=None)
    check("/v1/watch", "/v1/watch", "reset", follow=None, headers={"Last-Event-ID": str(1 << 40)})
    declares.join()


def _declare(server: Server) -> None:
    """Until somebody has heard of it."""
    for number in range(100):
        server.call("PUT", "/v1/queues/lab", {"spec": {"weight": number + 1}})
        server.run(sh("true", name=f"job-{number}"))
        if server.call("DELETE", f"/v1/jobs/job-{number}").status == 204 and number > 5:
            return
