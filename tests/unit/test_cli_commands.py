"""Whole commands against a server that answers from a script: what is printed, where, and the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

import weft
from support.fake_server import Asked, FakeServer, Reply, fake_server
from weft.cli.app import dispatch

SOURCE = str(Path(weft.__file__).parent.parent)
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with fake_server() as fake:
        monkeypatch.setenv("WEFT_ADDRESS", fake.address)
        monkeypatch.setenv("WEFT_TOKEN", "t")
        yield fake


def job(name: str, state: str, **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "weft.dev/v1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "uid": "u1", "owner": "me", "created": 1000.0},
        "spec": {"type": "command", "command": ["python", "a.py"], "queue": "default", "priority": 0},
        "status": {"state": state, "tasks": [{"name": "worker-0", "state": "RUNNING"}], **status},
    }


def sse(*events: tuple[str, Any]) -> list[bytes]:
    return [f"event: {name}\ndata: {json.dumps(data)}\n\n".encode() for name, data in events]


def states(*names: str) -> list[bytes]:
    events = [
        ("event", {"seq": n, "time": float(n), "state": name, "cause": "why"}) for n, name in enumerate(names)
    ]
    return sse(*events, ("end", {}))


def runnable(server: FakeServer, end: str, **status: Any) -> None:
    """A server on which job `a` runs to its end as soon as it is submitted."""
    server.on("POST", "/v1/jobs", Reply(job("a", "PENDING"), 201))
    server.on("GET", "/v1/jobs/a", Reply(job("a", end, **status)))
    server.on("GET", "/v1/jobs/a/events", Reply(chunks=states("PENDING", "QUEUED", "PROCESSING", end)))
    line = {"task": "worker-0", "offset": 0, "time": 1.0, "text": "hello"}
    server.on("GET", "/v1/jobs/a/logs", Reply(chunks=sse(("lines", {"items": [line]}), ("end", {}))))


# ── run ──


def test_run_follows_to_the_end(server: FakeServer, capsys: Captured) -> None:
    runnable(server, "COMPLETED", started=1.0, finished=3.5)
    assert dispatch(["run", "--name", "a", "--", "true"]) == 0
    said = capsys.readouterr()
    assert said.out == "hello\n"
    assert said.err.splitlines() == [
        "job a submitted",
        "QUEUED: why",
        "PROCESSING: why",
        "job a COMPLETED after 2.5s",
        "next: weft show a",
    ]


def test_run_says_where_the_job_can_be_reached_as_soon_as_it_can(
    server: FakeServer, capsys: Captured
) -> None:
    runnable(server, "COMPLETED")
    looked = threading.Event()

    def answer(_: Asked) -> Reply:
        looked.set()
        return Reply(job("a", "PROCESSING", urls={"worker-0": "http://127.0.0.1:9/?token=t"}))

    def history() -> Iterator[bytes]:
        yield from sse(("event", {"seq": 1, "time": 1.0, "state": "PROCESSING", "cause": "why"}))
        assert looked.wait(10)
        yield from states("COMPLETED")

    server.on("GET", "/v1/jobs/a", answer, Reply(job("a", "COMPLETED")))
    server.on("GET", "/v1/jobs/a/events", Reply(chunks=history()))
    assert dispatch(["run", "--name", "a", "--", "true"]) == 0
    assert capsys.readouterr().err.splitlines().count("open http://127.0.0.1:9/?token=t") == 1


def test_what_a_type_runs_is_run_by_the_active_interpreter(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    server.on("POST", "/v1/jobs", Reply(job("a-1", "PENDING")))
    server.on("GET", "/v1/jobtypes/notebook", Reply({"spec": {"command": ["python", "-m", "jupyterlab"]}}))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    assert dispatch(["run", "--type", "notebook", "--dry-run"]) == 0
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    assert dispatch(["run", "--type", "notebook", "--dry-run"]) == 0
    sent = [asked.json()["spec"] for asked in server.asked if asked.method == "POST"]
    assert sent == [
        {"type": "notebook"},
        {"type": "notebook", "command": [str(python), "-m", "jupyterlab"]},
    ]


@pytest.mark.parametrize(
    ("urls", "shown"),
    [
        ({"worker-0": "http://127.0.0.1:9/"}, ["  url      http://127.0.0.1:9/"]),
        (
            {"worker-0": "http://127.0.0.1:9/", "board-0": "http://127.0.0.1:8/"},
            ["  url      worker-0: http://127.0.0.1:9/", "           board-0: http://127.0.0.1:8/"],
        ),
        ({}, []),
    ],
)
def test_show_tells_where_a_job_can_be_reached(
    server: FakeServer, capsys: Captured, urls: dict[str, str], shown: list[str]
) -> None:
    server.on("GET", "/v1/jobs/a", Reply(job("a", "PROCESSING", urls=urls)))
    server.on("GET", "/v1/jobs/a/events", Reply({"items": []}))
    assert dispatch(["show", "a"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "http://" in line] == shown


def test_run_fails_when_the_job_fails(server: FakeServer, capsys: Captured) -> None:
    runnable(server, "FAILED", failure={"code": "EXIT_CODE", "message": "worker-0 exited with code 3"})
    assert dispatch(["run", "--name", "a", "--", "false"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[-2:] == ["job a FAILED: worker-0 exited with code 3", "next: weft show a   weft logs a"]


def test_run_detached_prints_the_name_alone(server: FakeServer, capsys: Captured) -> None:
    runnable(server, "COMPLETED")
    server.on("GET", "/v1/jobs/a/explain", Reply({"state": "QUEUED", "reason": "waits", "possible": True}))
    assert dispatch(["run", "--detach", "--", "true"]) == 0
    assert capsys.readouterr().out == "a\n"
    assert server.lines() == ["POST /v1/jobs", "GET /v1/jobs/a/explain"]


def test_run_detached_warns_of_what_can_never_start(server: FakeServer, capsys: Captured) -> None:
    runnable(server, "COMPLETED")
    explained = {
        "state": "QUEUED",
        "reason": "can never start here: needs 9 cpu",
        "possible": False,
        "advice": "ask for less",
        "next": "weft cancel a",
    }
    server.on("GET", "/v1/jobs/a/explain", Reply(explained))
    assert dispatch(["run", "--detach", "--", "true"]) == 0
    said = capsys.readouterr()
    assert said.out == "a\n"
    assert "can never start here: needs 9 cpu" in said.err
    assert "ask for less" in said.err
    assert "next: weft cancel a\n" in said.err


@pytest.mark.parametrize("option", ["--gpu", "--replicas"])
def test_one_and_a_half_is_not_rounded(server: FakeServer, capsys: Captured, option: str) -> None:
    assert dispatch(["run", option, "1.5", "--", "true"]) == 2
    assert "1.5" in capsys.readouterr().err
    assert server.asked == []


def test_a_dry_run_submits_nothing(server: FakeServer, capsys: Captured) -> None:
    server.on("POST", "/v1/jobs", Reply(job("a-1", "PENDING")))
    assert dispatch(["run", "--dry-run", "-o", "json", "--", "true"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["metadata"] == {"generateName": "true-"}
    assert "status" not in shown
    assert [asked.query for asked in server.asked] == [{"dryRun": "true"}]


@pytest.mark.parametrize("command", [["run"], ["submit"]])
def test_a_dry_run_shows_what_a_job_would_be_on_a_cluster(
    server: FakeServer, capsys: Captured, tmp_path: Path, command: list[str]
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("kind: TrainingJob\nmetadata: {name: a}\nspec: {command: ['true']}\n")
    objects = [{"kind": "Pod", "data": "one\ntwo\n", "uid": "019e7"}, {"kind": "Secret"}]
    answers = {"kubernetes": Reply({"items": objects}), None: Reply(job("a", "PENDING"))}
    server.on("POST", "/v1/jobs", lambda asked: answers[asked.query.get("objects")])
    assert dispatch([*command, str(file), "--dry-run", "-o", "kubernetes"]) == 0
    shown = capsys.readouterr().out
    assert list(yaml.safe_load_all(shown)) == objects
    assert shown.startswith("kind: Pod\ndata: |\n  one\n  two\nuid: '019e7'\n---\n")
    assert all(asked.query["dryRun"] == "true" for asked in server.asked)


def test_submit_shows_every_job_of_a_dry_run(server: FakeServer, capsys: Captured, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("kind: TrainingJob\nmetadata: {name: a}\nspec: {command: ['true']}\n")
    server.on("POST", "/v1/jobs", Reply(job("a", "PENDING")), Reply(job("b", "PENDING")))
    assert dispatch(["submit", str(file), str(file), "--dry-run"]) == 0
    names = [shown["metadata"]["name"] for shown in yaml.safe_load_all(capsys.readouterr().out)]
    assert names == ["a", "b"]
    assert [asked.query for asked in server.asked] == [{"dryRun": "true"}] * 2


@pytest.mark.parametrize(
    "command", [["run", "-o", "kubernetes", "--", "true"], ["submit", "a.yaml", "-o", "kubernetes"]]
)
def test_what_it_would_be_is_only_for_a_dry_run(
    server: FakeServer, capsys: Captured, command: list[str]
) -> None:
    assert dispatch(command) == 2
    assert "add --dry-run" in capsys.readouterr().err
    assert server.asked == []


# ── lists ──


def summaries(asked: Asked) -> Reply:
    finished = "COMPLETED" in asked.query.get("state", "")
    item = {"type": "command", "tasks": 2, "restarts": 0, "created": 1.0}
    old, new = (
        {"name": "old", "state": "COMPLETED"},
        {"name": "new", "state": "QUEUED", "reason": "needs 8 gpu"},
    )
    return Reply({"items": [item | (old if finished else new)], "total": 60 if finished else 1, "next": None})


def test_ls_shows_what_lives_and_the_newest_of_the_rest(server: FakeServer, capsys: Captured) -> None:
    server.on("GET", "/v1/jobs", summaries)
    assert dispatch(["ls"]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0].split() == ["NAME", "STATE", "TYPE", "TASKS", "RESTARTS", "AGE", "RAN", "REASON"]
    assert lines[1].split()[:2] == ["new", "QUEUED"]
    assert lines[1].endswith("needs 8 gpu")
    assert lines[2].split()[:2] == ["old", "COMPLETED"]
    assert said.err == "and 59 more\nnext: weft ls --all   weft show new\n"
    assert [asked.query["limit"] for asked in server.asked] == ["1000", "50"]


def test_ls_shows_how_large_an_elastic_job_is(server: FakeServer, capsys: Captured) -> None:
    item = {"name": "a", "state": "PROCESSING", "tasks": 4, "size": {"now": 3, "least": 2, "most": 8}}
    server.on("GET", "/v1/jobs", Reply({"items": [item], "total": 1, "next": None}))
    assert dispatch(["ls", "--all"]) == 0
    assert "3 of 2–8" in capsys.readouterr().out


def test_ls_as_json_has_the_full_resources(server: FakeServer, capsys: Captured) -> None:
    server.on("GET", "/v1/jobs", Reply({"items": [job("a", "QUEUED")], "total": 1, "next": None}))
    assert dispatch(["ls", "--state", "queued", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"items": [job("a", "QUEUED")]}
    assert server.asked[0].query == {"state": "QUEUED", "view": "full", "limit": "1000"}


# ── one job ──


def test_show_is_a_readable_page(server: FakeServer, capsys: Captured) -> None:
    failure = {"code": "OUT_OF_MEMORY", "message": "worker-0 ran out of memory", "task": "worker-0"}
    failed = job("a", "FAILED", failure=failure, logTail=["x", "Killed"])
    task = {"name": "worker-0", "state": "FAILED", "restarts": 1}
    place, end = {"node": "n0", "cpus": [0, 1, 2, 5]}, {"signal": 9, "peakMemory": 2**30}
    failed["status"]["tasks"] = [{**task, "binding": place, "exit": end}]
    server.on("GET", "/v1/jobs/a", Reply(failed))
    events = [
        {"seq": 1, "time": 1000.0, "state": "QUEUED", "cause": "admitted"},
        {"seq": 2, "time": 1002.5, "state": "PROCESSING", "previous": "QUEUED", "cause": "1 task started"},
        {"seq": 3, "time": 1100.0, "state": "FAILED", "previous": "PROCESSING", "cause": "out of memory"},
    ]
    server.on("GET", "/v1/jobs/a/events", Reply({"items": events}))
    server.on(
        "GET",
        "/v1/jobs/a/results",
        Reply({"items": [{"path": "m.bin", "size": 2048, "modified": 1}], "bytes": 2048}),
    )
    assert dispatch(["show", "a"]) == 0
    said = capsys.readouterr()
    for part in (
        "state    FAILED: worker-0 ran out of memory",
        "QUEUED           2.5s  admitted",
        "PROCESSING      1m38s  1 task started",
        "worker-0  FAILED  n0    0-2,5  -            1  signal 9        1 GiB",
        "failure OUT_OF_MEMORY: worker-0 ran out of memory",
        "last log lines of worker-0:\n  | x\n  | Killed",
        "results: 1 file, 2 KiB",
    ):
        assert part in said.out
    assert said.err == "next: weft logs a   weft resume a   weft delete a\n"


def test_an_unknown_job_is_an_error_with_a_next_step(server: FakeServer, capsys: Captured) -> None:
    detail = "there is no job mnits; did you mean mnist?"
    server.on(
        "GET", "/v1/jobs/mnits", Reply({"title": "No such job", "detail": detail, "next": "weft ls"}, 404)
    )
    server.on("GET", "/v1/jobs", Reply({"items": [{"name": "mnist"}], "total": 1, "next": None}))
    assert dispatch(["show", "mnits"]) == 1
    assert capsys.readouterr().err == f"weft: No such job: {detail}\nnext: weft ls\n"


def test_several_jobs_are_changed_and_a_refusal_stops_no_other(server: FakeServer, capsys: Captured) -> None:
    server.on("POST", "/v1/jobs/a/halt", Reply({"title": "Not now", "detail": "it has ended"}, 409))
    server.on("POST", "/v1/jobs/b/halt", Reply(job("b", "PROCESSING")))
    assert dispatch(["halt", "a", "b"]) == 1
    said = capsys.readouterr()
    assert said.out == "b is being halted (now PROCESSING)\n"
    assert said.err == "weft: a: Not now: it has ended\n"


def test_logs_of_several_tasks_are_prefixed(server: FakeServer, capsys: Captured) -> None:
    two = job("a", "PROCESSING")
    two["status"]["tasks"] = [{"name": "w-0"}, {"name": "w-1"}]
    server.on("GET", "/v1/jobs/a", Reply(two))
    items = [{"task": f"w-{n}", "offset": 0, "time": n, "text": f"line {n}"} for n in range(2)]
    server.on("GET", "/v1/jobs/a/logs", Reply({"items": items, "next": {"w-0": 7, "w-1": 7}}))
    assert dispatch(["logs", "a"]) == 0
    assert capsys.readouterr().out == "[w-0] line 0\n[w-1] line 1\n"


def test_metrics_as_a_table_and_a_curve(server: FakeServer, capsys: Captured) -> None:
    points = [
        {"id": n, "task": "w-0", "name": "loss", "step": n, "time": 0.0, "value": 1 / (n + 1)}
        for n in range(5)
    ]
    server.on("GET", "/v1/jobs/a/metrics", Reply({"items": points, "next": 4}))
    assert dispatch(["metrics", "a"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["loss", "0.2", "0.2", "1", "4", "5", "1"]
    assert dispatch(["metrics", "a", "--plot"]) == 0
    assert "loss (w-0, last 0.2)" in capsys.readouterr().out


def test_logs_with_the_time_of_each_line(server: FakeServer, capsys: Captured) -> None:
    server.on("GET", "/v1/jobs/a", Reply(job("a", "COMPLETED")))
    moment = datetime(2026, 1, 2, 3, 4, 5, 678000).astimezone()
    line = {"task": "worker-0", "offset": 0, "time": moment.timestamp(), "text": "hi"}
    server.on("GET", "/v1/jobs/a/logs", Reply({"items": [line], "next": {"worker-0": 3}}))
    assert dispatch(["logs", "a", "--timestamps"]) == 0
    stamp, text = capsys.readouterr().out.split()
    assert (datetime.fromisoformat(stamp), text) == (moment, "hi")
    assert stamp.startswith("2026-01-02T03:04:05.678")


def test_show_says_what_each_role_asks_for(server: FakeServer, capsys: Captured) -> None:
    two = job("a", "QUEUED")
    two["spec"]["roles"] = {
        "ps": {"replicas": 1, "resources": {"cpu": 0.5}},
        "worker": {
            "replicas": 4,
            "resources": {"cpu": 8, "memory": "24Gi", "gpu": 1, "gpuType": "p100", "size": "p100-1"},
        },
    }
    server.on("GET", "/v1/jobs/a", Reply(two))
    server.on("GET", "/v1/jobs/a/events", Reply({"items": []}))
    assert dispatch(["show", "a"]) == 0
    assert (
        "  asks for 1 × ps: 0.5 cpu\n           4 × worker: 8 cpu, 24Gi memory, 1 p100 gpu (size p100-1)\n"
    ) in capsys.readouterr().out


# ── the beginning of a name ──


def named(server: FakeServer, *names: str) -> None:
    items = [{"name": name, "state": "COMPLETED"} for name in names]
    server.on("GET", "/v1/jobs", Reply({"items": items, "total": len(items), "next": None}))
    for name in names:
        server.on("GET", f"/v1/jobs/{name}/results", Reply({"items": [], "bytes": 0}))


def test_the_beginning_of_a_name_is_enough_if_only_one_job_begins_so(
    server: FakeServer, capsys: Captured
) -> None:
    named(server, "mnist-3", "cifar")
    assert dispatch(["results", "mni"]) == 0
    assert capsys.readouterr().err.endswith("next: weft show mnist-3\n")


def test_a_whole_name_is_never_taken_for_a_beginning(server: FakeServer, capsys: Captured) -> None:
    named(server, "mnist", "mnist-3")
    assert dispatch(["results", "mnist"]) == 0
    assert capsys.readouterr().err.endswith("next: weft show mnist\n")


def test_a_beginning_that_several_jobs_share_is_refused_with_their_names(
    server: FakeServer, capsys: Captured
) -> None:
    named(server, "mnist-3", "mnist-4", "cifar")
    assert dispatch(["results", "mni"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("weft: there is no job mni: 2 jobs begin with it: mnist-3, mnist-4\nnext: ")


@pytest.mark.parametrize("verb", ["halt", "resume", "cancel"])
def test_what_changes_a_job_wants_its_whole_name(server: FakeServer, verb: str) -> None:
    named(server, "mnist-3")
    server.on("POST", f"/v1/jobs/mnist-3/{verb}", Reply(job("mnist-3", "QUEUED")))
    assert dispatch([verb, "mni"]) == 1
    assert dispatch(["delete", "mni", "--yes"]) == 1
    assert server.lines() == [f"POST /v1/jobs/mni/{verb}", "DELETE /v1/jobs/mni"]


# ── apply ──


def document(name: str, folder: Path, command: str = "x") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(f"kind: TrainingJob\nmetadata: {{name: {name}}}\nspec: {{command: [{command}]}}\n")
    return path


def test_apply_creates_what_is_missing_and_leaves_the_rest(
    server: FakeServer, capsys: Captured, tmp_path: Path
) -> None:
    document("a", tmp_path)
    document("b", tmp_path)
    server.on("POST", "/v1/jobs", lambda asked: Reply({**asked.json(), "status": {}}))
    server.on("GET", "/v1/jobs/a", Reply({"metadata": {"name": "a"}, "spec": {"command": ["x"]}}))
    assert dispatch(["apply", "-f", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "a unchanged\nb created\n"
    submitted = [
        asked.json()["metadata"]["name"]
        for asked in server.asked
        if asked.method == "POST" and not asked.query
    ]
    assert submitted == ["b"]


def test_apply_changes_nothing_when_one_job_is_another_one(
    server: FakeServer, capsys: Captured, tmp_path: Path
) -> None:
    document("a", tmp_path, "changed")
    document("b", tmp_path)
    server.on("POST", "/v1/jobs", lambda asked: Reply({**asked.json(), "status": {}}))
    server.on("GET", "/v1/jobs/a", Reply({"metadata": {"name": "a"}, "spec": {"command": ["x"]}}))
    assert dispatch(["apply", "-f", str(tmp_path)]) == 1
    assert "a.yaml: job a exists with another command" in capsys.readouterr().err
    assert all(asked.query == {"dryRun": "true"} for asked in server.asked if asked.method == "POST")


def test_apply_reports_every_refused_file_and_submits_none(
    server: FakeServer, capsys: Captured, tmp_path: Path
) -> None:
    document("a", tmp_path)
    document("b", tmp_path)
    problem = {
        "title": "Not valid",
        "detail": "…",
        "problems": [{"field": "spec.command", "message": "is bad"}],
    }
    server.on("POST", "/v1/jobs", Reply(problem, 422))
    assert dispatch(["apply", "-f", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "2 of 2 jobs are refused" in said
    assert "a.yaml:3:8: spec.command: is bad" in said
    assert "b.yaml:3:8: spec.command: is bad" in said


# ── datasets ──


def test_a_dataset_that_nobody_has_read_yet_says_so(server: FakeServer, capsys: Captured) -> None:
    status = {"state": "EMPTY", "reason": None, "progress": None, "versions": []}
    server.on("POST", "/v1/datasets/none/refresh", Reply({"metadata": {"name": "none"}, "status": status}))
    assert dispatch(["data", "refresh", "none"]) == 1
    assert "dataset none has no version" in capsys.readouterr().err


# ── secrets ──


def test_a_secret_can_be_read_from_standard_input(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    server.on("PUT", "/v1/secrets/hub", Reply(status=204))
    monkeypatch.setattr("sys.stdin", io.StringIO("s3cret\n"))
    assert dispatch(["secrets", "set", "hub", "TOKEN", "USER=me"]) == 0
    assert server.asked[0].json() == {"data": {"USER": "me", "TOKEN": "s3cret"}}


# ── the process ──


def command(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weft.cli.entry", *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": SOURCE, "HOME": "/nonexistent", **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_version() -> None:
    assert command("--version").stdout == f"weft {weft.__version__}\n"


def test_no_server_says_what_to_do(tmp_path: Path) -> None:
    done = command("ls", WEFT_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"weft: no server runs: there is no server of {tmp_path}\nnext: weft up\n"


def test_a_closed_pipe_shows_no_traceback(server: FakeServer) -> None:
    items = [{"name": f"j{n}", "state": "QUEUED", "reason": "x" * 100} for n in range(2000)]
    server.on("GET", "/v1/jobs", Reply({"items": items, "total": 2000, "next": None}))
    shell = f"{sys.executable} -m weft.cli.entry ls --all | head -1"
    env = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(["sh", "-c", shell], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("NAME")
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_the_command_line_never_imports_the_server() -> None:
    code = (
        "import sys, pkgutil, importlib, weft.cli, weft.client\n"
        "for room in (weft.cli, weft.client):\n"
        "    for module in pkgutil.walk_packages(room.__path__, room.__name__ + '.'):\n"
        "        importlib.import_module(module.name)\n"
        "rooms = {m.split('.')[1] for m in sys.modules if m.startswith('weft.')}\n"
        "print(sorted(rooms), 'rich' in sys.modules, 'pydantic' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": SOURCE}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "['cli', 'client', 'runtime', 'version'] False False\n"
