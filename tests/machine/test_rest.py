"""The REST interface: its token, its problems, its promises, and what schemathesis thinks of it."""

from __future__ import annotations

import concurrent.futures
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from harness import Server, job, python, sh, until

pytestmark = pytest.mark.machine

PROBLEM = "application/problem+json"


def operations(server: Server) -> list[tuple[str, str, bool]]:
    """Method, a path to try, and whether it is public."""
    paths = server.call("GET", "/openapi.json", token=None).json["paths"]
    filled = {"{name}": "x", "{digest}": f"sha256:{'0' * 64}"}
    found = []
    for path, methods in paths.items():
        place = path
        for hole, value in filled.items():
            place = place.replace(hole, value)
        found += [(m.upper(), place, described.get("security") == []) for m, described in methods.items()]
    return found


def test_every_operation_but_the_public_ones_wants_the_token(server: Server):
    tried = operations(server)
    assert sum(not public for _, _, public in tried) >= 20
    for method, path, public in tried:
        for token in (None, "wrong", server.token[:-1], server.token + "x", "ü"):
            headers = {} if token is None else {"Authorization": f"Bearer {token}".encode().decode("latin-1")}
            answer = server.call(method, path, headers=headers, token=None)
            if public:
                assert answer.status == (403 if method == "POST" else 200)  # signing in: only for the page
                continue
            assert answer.status == 401, (method, path, token)
            assert answer.headers["www-authenticate"] == "Bearer"
            if method != "HEAD":
                assert answer.headers["content-type"] == PROBLEM
                assert server.token not in answer.body.decode()
    basic = server.call("GET", "/v1/jobs", headers={"Authorization": f"Basic {server.token}"}, token=None)
    assert basic.status == 401


def test_problems_have_the_form_of_rfc_9457(server: Server):
    for method, path, body, status in (
        ("GET", "/v1/jobs/nothing", None, 404),
        ("GET", "/nowhere", None, 404),
        ("PATCH", "/v1/jobs", None, 405),
        ("POST", "/v1/jobs", b"{not json", 400),
        ("POST", "/v1/jobs", {"kind": "TrainingJob"}, 422),
        ("GET", "/v1/jobs?limit=many", None, 422),
        ("GET", "/v1/jobs?limt=1", None, 422),
        ("PUT", f"/v1/packages/sha256:{'0' * 64}", b"other bytes", 422),
        ("PUT", "/v1/secrets/UPPER_case!", {"data": {"a": "b"}}, 422),
        ("DELETE", "/v1/secrets/absent", None, 404),
    ):
        answer = server.call(method, path, body)
        assert (answer.status, answer.headers["content-type"]) == (status, PROBLEM), (method, path)
        assert answer.json["status"] == status
        assert answer.json["title"]
        assert answer.json["detail"]


def test_all_mistakes_of_a_job_are_told_at_once(server: Server):
    document = sh("true", name="Bad Name", comand=["x"], priority="urgent", roles={"worker": {"replicas": 0}})
    answer = server.post("/v1/jobs", document)
    assert answer.status == 422
    fields = {problem["field"] for problem in answer.json["problems"]}
    assert {"metadata.name", "spec.comand", "spec.priority", "spec.roles.worker.replicas"} <= fields
    unknown = next(p for p in answer.json["problems"] if p["field"] == "spec.comand")
    assert "command" in unknown["message"]


def test_mistakes_of_fields_of_meaning_and_of_what_is_stored_are_one_refusal(server: Server):
    document = job(
        name="j",
        type="comand",
        grace="soon",
        code={"package": f"sha256:{'0' * 64}"},
        secrets=[{"name": "s3", "key": "k", "env": "K"}],
        roles={"worker": {"resources": {"size": "huge", "cpu": "much"}}},
        metrics=[{"source": "regex"}],
    )
    answer = server.post("/v1/jobs", document)
    assert (answer.status, answer.headers["content-type"]) == (422, PROBLEM)
    assert [problem["field"] for problem in answer.json["problems"]] == [
        "spec.command",
        "spec.type",
        "spec.grace",
        "spec.code.package",
        "spec.secrets[0]",
        "spec.roles.worker.resources.size",
        "spec.roles.worker.resources.cpu",
        "spec.metrics[0].pattern",
    ]
    assert all(problem["message"] in answer.json["detail"] for problem in answer.json["problems"])


def test_a_key_submits_once_however_often_it_is_sent(server: Server, tmp_path: Path):
    ran = tmp_path / "ran"
    document = sh(f"echo once >> {ran}")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(
                lambda _: server.post("/v1/jobs", document, headers={"Idempotency-Key": "k1"}), range(24)
            )
        )
    assert {a.json["metadata"]["name"] for a in answers} == {answers[0].json["metadata"]["name"]}
    assert sorted(a.status for a in answers) == [200] * 23 + [201]
    server.wait_for(answers[0].json["metadata"]["name"])
    server.restart()
    again = server.post("/v1/jobs", document, headers={"Idempotency-Key": "k1"})
    assert again.status == 200
    assert again.json["status"]["state"] == "COMPLETED"
    assert ran.read_text() == "once\n"
    other = server.submit(document, key="k2")
    server.wait_for(other)
    assert ran.read_text() == "once\nonce\n"


def test_a_name_is_given_once(server: Server):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: server.post("/v1/jobs", sh("true", name="same")), range(16)))
    assert sorted(a.status for a in answers) == [201] + [409] * 15
    assert "weft delete same" in next(a for a in answers if a.status == 409).json["next"]
    server.wait_for("same")
    assert server.post("/v1/jobs", sh("true", name="same")).status == 409


def test_a_missing_job_suggests_those_that_are_near(server: Server):
    server.run(sh("true", name="mnist-train"))
    answer = server.get("/v1/jobs/mnist-trian")
    assert answer.status == 404
    assert "mnist-train" in answer.json["detail"]


def test_a_dry_run_shows_every_default_and_keeps_nothing(server: Server):
    answer = server.post("/v1/jobs?dryRun=true", sh("true"))
    assert answer.status == 200
    spec = answer.json["spec"]
    assert spec["roles"]["worker"]["replicas"] == 1
    assert spec["grace"] == "30s"
    assert server.get("/v1/jobs").json["total"] == 0


def test_lists_have_pages_states_and_labels(server: Server):
    for number in range(7):
        server.submit(sh("true", name=f"j{number}", labels={"parity": str(number % 2)}))
    for number in range(7):
        server.wait_for(f"j{number}")
    server.run(sh("exit 1", name="bad"))
    seen, before = [], None
    while True:
        page = server.get("/v1/jobs", limit=3, view="summary", **({"before": before} if before else {})).json
        seen += [item["name"] for item in page["items"]]
        before = page["next"]
        if before is None:
            break
    assert seen == ["bad", *(f"j{n}" for n in reversed(range(7)))]
    assert [j["metadata"]["name"] for j in server.get("/v1/jobs", state="FAILED").json["items"]] == ["bad"]
    assert len(server.get("/v1/jobs", label="parity=1").json["items"]) == 3


def test_everything_that_happens_is_streamed_and_can_be_taken_up_again(server: Server):
    stream = server.stream("/v1/events")
    server.submit(sh("true", name="one"))
    seen = []
    for event in stream:
        seen.append(event)
        if event.data.get("state") == "COMPLETED":
            break
    assert seen[0].data["state"] == "PENDING"
    assert [int(e.id) for e in seen] == [e.data["seq"] for e in seen]
    rest = server.get("/v1/events", after=seen[2].id).json["items"]
    assert rest == [e.data for e in seen[3:]]


def test_a_stream_goes_on_after_the_last_event_that_its_reader_has(server: Server):
    """As a browser reconnects: the address it began with, and the last id that it saw."""
    server.run(python("import weft\nfor i in range(5): weft.log(step=i, loss=i)", name="one"))
    for path, kind in (("/v1/jobs/one/events", "event"), ("/v1/jobs/one/metrics", "points")):
        ids = [e.id for e in server.stream(path) if e.event == kind]
        last = ids[-2] if len(ids) > 1 else ids[-1]
        rest = list(server.stream(path, headers={"Last-Event-ID": last}, after=0))
        assert [e.id for e in rest if e.event == kind] == ids[ids.index(last) + 1 :]
        assert rest[-1].event == "end"
        late = server.stream(path, headers={"Last-Event-ID": "0"}, after=ids[-1])
        assert [e.event for e in late] == ["end"], "the later of the two counts"
    everything = server.get("/v1/events").json["items"]
    first = next(server.stream("/v1/events", headers={"Last-Event-ID": str(everything[2]["seq"])}))
    assert first.data == everything[3]


STREAMS = ("/v1/events", "/v1/jobs/x/events", "/v1/jobs/x/logs", "/v1/jobs/x/metrics")


def test_whoever_follows_a_job_hears_of_its_end_whenever_he_came(server: Server):
    """Also while its last event is being written."""

    def followed(name: str, after: float) -> str:
        time.sleep(after)
        events = [each for each in server.stream(f"/v1/jobs/{name}/events") if each.event == "event"]
        return events[-1].data["state"]

    with concurrent.futures.ThreadPoolExecutor(24) as aside:
        for round_ in range(6):
            name = server.submit(sh("sleep 0.1", name=f"followed-{round_}"))
            ends = [aside.submit(followed, name, 0.08 + 0.003 * number) for number in range(24)]
            assert {end.result() for end in ends} == {"COMPLETED"}


def test_streams_are_described_guarded_and_refused_like_everything_else(server: Server):
    server.run(sh("echo hi", name="x"))
    described = server.get("/openapi.json").json["paths"]
    for path in STREAMS:
        operation = described[path.replace("/x/", "/{name}/")]["get"]
        assert set(operation["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
        names = {p["name"] for p in operation["parameters"]}
        assert "follow" in names
        assert ("Last-Event-ID" in names) != path.endswith("/logs")  # its `after` is a place in several files
        assert {"401", "422"} <= set(operation["responses"])
        assert server.call("GET", f"{path}?follow=true", token=None).status == 401
        for query in ("follow=perhaps", "follow=true&folow=true", "follow=true&limit=-1"):
            refused = server.call("GET", f"{path}?{query}")
            assert (refused.status, refused.headers["content-type"]) == (422, PROBLEM), (path, query)
            assert refused.json["problems"][0]["field"].startswith("query.")
        if "Last-Event-ID" in names:
            refused = server.call("GET", f"{path}?follow=true", headers={"Last-Event-ID": "x"})
            assert (refused.status, refused.headers["content-type"]) == (422, PROBLEM)
            assert refused.json["problems"] == [
                {"field": "header.Last-Event-ID", "message": "must be a whole number", "value": '"x"'}
            ]
        if "{name}" in path.replace("/x/", "/{name}/"):
            missing = server.call("GET", path.replace("/x/", "/absent/") + "?follow=true")
            assert (missing.status, missing.headers["content-type"]) == (404, PROBLEM)
            assert [e.event for e in server.stream(path)][-1] == "end"
    assert server.call("GET", "/v1/jobs/x/logs?follow=true&task=nobody-0").status == 404


def test_a_backup_is_described_guarded_and_a_whole_archive(server: Server):
    server.run(sh("echo x > $RESULT_DIR/model.bin", name="x"))
    operation = server.get("/openapi.json").json["paths"]["/v1/backup"]["get"]
    assert set(operation["responses"]["200"]["content"]) == {"application/x-tar"}
    assert {"401", "422", "507"} <= set(operation["responses"])
    assert [p["name"] for p in operation["parameters"]] == ["files"]
    for files, has in (("false", False), ("true", True)):
        answer = server.get("/v1/backup", files=files)
        assert (answer.status, answer.headers["content-type"]) == (200, "application/x-tar")
        with tarfile.open(fileobj=io.BytesIO(answer.body)) as tar:
            names = tar.getnames()
        assert "weft.db" in names
        assert any(name.endswith("model.bin") for name in names) is has
        assert "token" not in names
    assert server.call("GET", "/v1/backup", token=None).status == 401
    for query in ("files=perhaps", "file=true", "files="):
        refused = server.call("GET", f"/v1/backup?{query}")
        assert (refused.status, refused.headers["content-type"]) == (422, PROBLEM), query
    assert server.post("/v1/backup").status == 405
    assert not list(server.home.glob("backup-*")), "the copy that was sent is removed"


TRAVERSALS = [
    "..%2f..%2ftoken",
    "%2e%2e%2ftoken",
    "..",
    "a%00b",
    "%00",
    "a%2fb",
    "a%0a",
    "%ff%fe",
    "A",
    "x" * 300,
    "%2e",
]


@pytest.mark.parametrize("evil", TRAVERSALS)
def test_no_name_digest_or_task_leads_out_of_its_folder(server: Server, evil: str):
    (server.home.parent / "evil.json").write_text('{"k": "leaked"}')
    server.run(sh("echo hi", name="there"))
    tries = [
        *(
            ("GET", f"/v1/jobs/{evil}{part}", None)
            for part in ("", "/logs", "/results", "/results.tar", "/metrics")
        ),
        ("GET", f"/v1/jobs/there/logs?task={evil}", None),
        ("DELETE", f"/v1/jobs/{evil}", None),
        ("PUT", f"/v1/packages/{evil}", b"data"),
        ("PUT", f"/v1/packages/sha256:{evil}", b"data"),
        ("HEAD", f"/v1/packages/{evil}", None),
        ("PUT", f"/v1/secrets/{evil}", {"data": {"k": "v"}}),
        ("DELETE", f"/v1/secrets/{evil}", None),
        ("POST", "/v1/jobs", sh("true", code={"package": f"sha256:{evil}"})),
        ("POST", "/v1/jobs", sh("true", code={"package": f"sha256:{'0' * 64}", "subdir": "../../.."})),
        ("POST", "/v1/jobs", sh("true", metrics=[{"source": "file", "path": "../../x"}])),
        ("POST", "/v1/jobs", sh("true", secrets=[{"name": "../evil", "key": "k", "env": "K"}])),
    ]
    before = sorted(p for p in server.home.rglob("*") if "db" not in p.name)
    for method, path, body in tries:
        if evil == "A" and "secrets" in path:
            continue
        answer = server.call(method, path, body)
        assert 400 <= answer.status < 500, (method, path, answer.status, answer.body[:300])
        assert server.token not in answer.body.decode("utf-8", "replace")
    assert sorted(p for p in server.home.rglob("*") if "db" not in p.name) == before
    assert (server.home.parent / "evil.json").exists()


def test_a_body_that_is_too_large_is_refused_without_being_kept(server: Server):
    answer = server.call("POST", "/v1/jobs", b'{"spec": "' + b"x" * (9 << 20) + b'"}')
    assert answer.status == 413
    assert server.get("/healthz").status == 200


def test_a_client_that_goes_away_in_a_stream_does_no_harm(server: Server):
    name = server.submit(sh("while :; do echo x; sleep 0.01; done", name="talk", grace=1))
    for _ in range(20):
        for event in server.stream(f"/v1/jobs/{name}/logs"):
            if event.data["items"]:
                break
    assert server.get("/healthz").status == 200
    server.ask(name, "cancel")
    server.wait_for(name)
    assert "Traceback" not in server.printed()


HOOKS = """
import schemathesis

@schemathesis.hook
def filter_case(context, case):
    # a stream that is silent for long is no answer to wait for; test_answers looks at what they say
    return "true" not in str((case.query or {}).get("follow")).lower()

@schemathesis.serializer("application/gzip")
def packed(context, value):
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
"""


@pytest.mark.timeout(200)
def test_schemathesis_finds_no_crash_and_no_undocumented_answer(server: Server, tmp_path: Path):
    server.run(sh("echo hi; echo x > $RESULT_DIR/x", name="a"))
    (tmp_path / "hooks.py").write_text(HOOKS)
    (tmp_path / "schemathesis.toml").write_text("max-stream-events = 3\n")  # of streams that go on for ever
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.facts()['address']}/openapi.json",
        "--header", f"Authorization: Bearer {server.token}",
        "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
        "response_headers_conformance,ignored_auth,unsupported_method",
        "--exclude-path", "/v1/backup", "--max-examples", "8", "--request-timeout", "10",
        "--max-time", "60", "--no-color", "--seed", "1",
    ]  # fmt: skip
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "SCHEMATHESIS_HOOKS": str(tmp_path / "hooks.py")},
        capture_output=True,
        text=True,
        check=False,
    )
    tail = ran.stdout[-6000:]
    assert ran.returncode == 0, tail
    assert server.printed().partition("Traceback")[2] == ""
    counted = re.search(r"(\d+) generated", ran.stdout) or re.search(r"(\d+) test cases", ran.stdout)
    assert counted is None or int(counted[1]) > 200, tail
    running = [j["metadata"]["name"] for j in server.get("/v1/jobs", limit=10_000).json["items"]]
    for name in running:
        server.delete(name)
    until(lambda: server.reserved() == [] and server.task_processes() == [], "all its jobs to be gone")
    assert json.loads(server.get("/healthz").body)["status"] == "ok"
