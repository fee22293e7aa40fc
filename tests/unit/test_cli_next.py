"""Every command says what to do next, and only what makes sense; long work says how far it has come."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.fake_server import FakeServer, Reply, fake_server
from weft.cli import downloads
from weft.cli import meter as meters
from weft.cli.app import COMMANDS, GROUPS, build, dispatch
from weft.cli.commands import serve
from weft.client.api import Client

Captured = pytest.CaptureFixture[str]


def a_job(state: str, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "a", "uid": "u1", "created": 1.0},
        "spec": {"type": "command", "command": ["true"]},
        "status": {"state": state, "tasks": [{"name": "worker-0"}], **status},
    }


POINT = {"id": 1, "task": "worker-0", "name": "loss", "step": 1, "time": 1.0, "value": 0.5}
FILE = {"path": "model.bin", "size": 3, "modified": 1.0}


def stream(name: str, data: Any) -> Reply:
    ending = b"event: end\ndata: {}\n\n"
    return Reply(chunks=[f"event: {name}\ndata: {json.dumps(data)}\n\n".encode(), ending])


def fill(
    server: FakeServer, state: str = "COMPLETED", points: Any = (), files: Any = (), **more: Any
) -> None:
    """A server with one job, and with nothing else."""
    found = a_job(state, results={"files": len(files), "bytes": 3}, **more)
    line = {"task": "worker-0", "offset": 0, "time": 1.0, "text": "hi"}
    event = {"seq": 1, "time": 1.0, "type": "state", "state": state}

    def either(plain: Any, name: str, data: Any) -> Any:
        return lambda asked: stream(name, data) if asked.query.get("follow") else Reply(plain)

    server.on("POST", "/v1/jobs", Reply(found, 201))
    server.on("GET", "/v1/jobs", Reply({"items": [{"name": "a", "state": state}], "total": 1, "next": None}))
    server.on("GET", "/v1/jobs/a", Reply(found))
    server.on("DELETE", "/v1/jobs/a", Reply(status=204))
    for verb in ("halt", "resume", "scale", "cancel"):
        server.on("POST", f"/v1/jobs/a/{verb}", Reply(found))
    lines = {"items": [line]}
    server.on("GET", "/v1/jobs/a/logs", either({**lines, "next": {"worker-0": 3}}, "lines", lines))
    server.on("GET", "/v1/jobs/a/events", either({"items": [event]}, "event", event))
    measured = {"items": list(points), "next": 1}
    server.on("GET", "/v1/jobs/a/metrics", either(measured, "points", measured))
    server.on("GET", "/v1/jobs/a/explain", Reply({"state": state, "reason": "why"}))
    step = {"step": 200, "size": 3, "saved": 1.0, "here": True, "copied": True}
    server.on("GET", "/v1/jobs/a/checkpoints", Reply({"items": [step] if files else []}))
    server.on("GET", "/v1/jobs/a/results", Reply({"items": list(files), "bytes": 3}))
    for path in ("nodes", "queue", "queues", "top", "jobtypes", "sizes", "secrets", "clusters", "datasets"):
        server.on("GET", f"/v1/{path}", Reply({"items": []}))
    for verb in ("cordon", "uncordon", "lost"):
        server.on("POST", f"/v1/nodes/n/{verb}", Reply({"name": "n", "tasks": []}))
    server.on("GET", "/v1/schemas/TrainingJob", Reply({"type": "object"}))
    server.on("GET", "/v1/status", Reply({"address": "x", "version": "1", "pid": 1, "page": True}))
    server.on("POST", "/v1/session/codes", Reply({"code": "c", "expires": 1}, 201))
    server.on("GET", "/v1/backup", Reply(b"archive"))
    server.on("PUT", "/v1/sizes/z", Reply({"metadata": {"name": "z"}, "spec": {"cpu": 2}}))
    server.on("DELETE", "/v1/sizes/z", Reply(status=204))
    empty, version = Path(__file__).parent / "golden" / "empty-version", "0" * 32
    one = {
        "version": version,
        "created": 1.0,
        "samples": 0,
        "bytes": 0,
        "parts": 0,
        "lineage": {},
        "readers": [],
    }
    about = {
        "state": "READY",
        "reason": None,
        "version": version,
        "versions": [one],
        "readers": [],
        "cached": [],
    }
    data = {"metadata": {"name": "d"}, "spec": {"source": {"url": "file:///d"}}, "status": about}
    for method in ("GET", "PUT"):
        server.on(method, "/v1/datasets/d", Reply(data))
    server.on("DELETE", "/v1/datasets/d", Reply(status=204))
    server.on("POST", "/v1/datasets/d/refresh", Reply(data, 202))
    on_its_way = {"node": "n", "versions": {version: 1}, "warming": {version: 2}}
    warming = {**data, "status": {**about, "cached": [on_its_way]}}
    server.on("POST", "/v1/datasets/d/warm", Reply(warming, 202))
    server.on("POST", "/v1/datasets/d/verify", Reply({**one, "problems": []}))
    server.on("GET", "/v1/datasets/d/lineage", Reply({"of": "d@0", "nodes": {"d@0": {}}, "edges": []}))
    for file in empty.iterdir():
        server.on("GET", f"/v1/data/versions/{version}/{file.name}", Reply(file.read_bytes()))
    has = {"state": "READY", "reason": None, "nodes": 3, "gpus": 24, "jobs": 0}
    server.on("PUT", "/v1/clusters/c", Reply({"metadata": {"name": "c"}, "spec": {}, "status": has}))
    server.on("DELETE", "/v1/clusters/c", Reply(status=204))
    server.on("GET", "/v1/jobs/a/suggestion", Reply({"job": "a", "memoryHeadroom": 1.25, "items": []}))
    server.on("PUT", "/v1/secrets/s", Reply(status=204))
    server.on("DELETE", "/v1/secrets/s", Reply(status=204))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeServer]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEFT_HOME", str(tmp_path / "home"))
    Path("job.yaml").write_text("kind: TrainingJob\nmetadata: {name: a}\nspec: {command: ['true']}\n")
    Path("copy.tar").write_text("a backup")
    with fake_server() as fake:
        monkeypatch.setenv("WEFT_ADDRESS", fake.address)
        fill(fake)
        yield fake


LINES = {
    "run": ["run job.yaml", "run --detach job.yaml", "run --dry-run job.yaml"],
    "submit": ["submit job.yaml", "submit --dry-run job.yaml"],
    "apply": ["apply -f job.yaml"],
    "ls": ["ls", "ls --state FAILED", "ls --limit 1"],
    "show": ["show a"],
    "logs": ["logs a", "logs -f a"],
    "metrics": ["metrics a", "metrics a --plot", "metrics -f a"],
    "explain": ["explain a"],
    "events": ["events a", "events -f a"],
    "checkpoints": ["checkpoints a"],
    "results": ["results a"],
    "halt": ["halt a"],
    "resume": ["resume a"],
    "scale": ["scale a worker=2"],
    "cancel": ["cancel a"],
    "delete": ["delete --yes a"],
    "nodes": ["nodes"],
    "nodes cordon": ["nodes cordon n", "nodes cordon n --reason why"],
    "nodes uncordon": ["nodes uncordon n"],
    "nodes lost": ["nodes lost n"],
    "queue": ["queue"],
    "queues": ["queues"],
    "top": ["top"],
    "jobtypes": ["jobtypes"],
    "schema": ["schema"],
    "ui": ["ui --print"],
    "sim": ["sim --jobs 20 --nodes 2"],
    "up": ["up"],
    "down": ["down"],
    "status": ["status"],
    "backup": ["backup out.tar"],
    "restore": ["restore copy.tar"],
    "data": ["data"],
    "data ls": ["data ls"],
    "data add": ["data add d .", "data add d . --detach"],
    "data show": ["data show d"],
    "data refresh": ["data refresh d"],
    "data warm": ["data warm d --all", "data warm d --node n --detach"],
    "data verify": ["data verify d"],
    "data pull": ["data pull d out"],
    "data lineage": ["data lineage d"],
    "data rm": ["data rm d"],
    "clusters": ["clusters"],
    "clusters add": ["clusters add c"],
    "clusters rm": ["clusters rm c"],
    "sizes": ["sizes"],
    "sizes set": ["sizes set z --cpu 2"],
    "sizes rm": ["sizes rm z"],
    "sizes suggest": ["sizes suggest a"],
    "secrets ls": ["secrets ls"],
    "secrets set": ["secrets set s k=v"],
    "secrets rm": ["secrets rm s"],
}
DATA_ALONE = {
    "ls", "show a", "metrics a", "explain a", "events a", "checkpoints a", "results a", "nodes", "queue", "queues", "top",
    "jobtypes", "schema", "sim --jobs 3", "status", "secrets ls", "sizes", "sizes suggest a", "clusters", "data", "data ls", "data show d", "data verify d", "data lineage d",
}  # fmt: skip
"""With -o json: what other programs read has no hints beside it."""


def registered() -> list[str]:
    """Every command that the application knows, whichever table it came from."""

    def names(app: Any) -> list[str]:
        return [name for name in app if not name.startswith("-")]

    app = build([])
    groups = ("data", "nodes", "clusters", "sizes", "secrets")
    nested = {group: [f"{group} {name}" for name in names(app[group])] for group in groups}
    nested["nodes"].append("nodes")
    nested["sizes"].append("sizes")
    nested["clusters"].append("clusters")
    nested["data"].append("data")
    return [whole for name in names(app) for whole in nested.get(name, [name])]


def test_no_command_is_left_out_here() -> None:
    assert sorted(registered()) == sorted(LINES)
    assert len(LINES) == len(COMMANDS) + sum(map(len, GROUPS.values()))


@pytest.mark.parametrize("line", [line for name in registered() for line in LINES.get(name, ["-"])])
@pytest.mark.parametrize("points", [(), (POINT,)], ids=["empty", "measured"])
def test_every_command_says_what_to_do_next(
    server: FakeServer, capsys: Captured, monkeypatch: pytest.MonkeyPatch, line: str, points: Any
) -> None:
    fill(server, points=points)
    running = {"address": "http://x", "pid": 1}
    monkeypatch.setattr(serve, "ensure_server", lambda home, options: (running, True))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0))
    assert dispatch(line.split()) == 0
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("next: ")
    assert last.removeprefix("next: ").strip()


@pytest.mark.parametrize("line", sorted(DATA_ALONE))
@pytest.mark.parametrize("form", ["json", "yaml"])
def test_data_for_programs_has_no_hints_beside_it(
    server: FakeServer, capsys: Captured, line: str, form: str
) -> None:
    assert dispatch([*line.split(), "-o", form]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    if form == "json":
        json.loads(said.out)


# ── only what makes sense ──


def hint(capsys: Captured, *line: str) -> str:
    assert dispatch(line) == 0
    return capsys.readouterr().err.splitlines()[-1].removeprefix("next: ")


@pytest.mark.parametrize("command", ["show", "explain"])
@pytest.mark.parametrize(
    ("points", "files", "expected"),
    [
        ((), (), "weft logs a   weft delete a"),
        ((POINT,), (), "weft metrics a --plot"),
        ((), (FILE,), "weft results a --get DIR"),
        ((POINT,), (FILE,), "weft results a --get DIR   weft metrics a --plot"),
    ],
)
def test_a_completed_job_has_only_what_it_left_behind(
    server: FakeServer, capsys: Captured, command: str, points: Any, files: Any, expected: str
) -> None:
    fill(server, "COMPLETED", points, files)
    assert hint(capsys, command, "a") == expected


@pytest.mark.parametrize(
    ("state", "may"),
    [("COMPLETED", False), ("CANCELLED", False), ("PROCESSING", False), ("FAILED", True), ("HALTED", True)],
)
def test_only_what_can_be_resumed_is_said_to_be(
    server: FakeServer, capsys: Captured, state: str, may: bool
) -> None:
    fill(server, state)
    for command in ("show", "explain"):
        assert ("weft resume" in hint(capsys, command, "a")) is may


def test_a_running_job_has_curves_once_something_was_measured(server: FakeServer, capsys: Captured) -> None:
    fill(server, "PROCESSING")
    assert hint(capsys, "show", "a") == "weft logs -f a   weft halt a"
    fill(server, "PROCESSING", (POINT,))
    assert hint(capsys, "show", "a") == "weft logs -f a   weft metrics a --plot   weft halt a"


@pytest.mark.parametrize("state", ["PENDING", "QUEUED", "PREEMPTED"])
def test_who_has_read_the_explanation_is_not_sent_to_it(
    server: FakeServer, capsys: Captured, state: str
) -> None:
    fill(server, state)
    assert hint(capsys, "show", "a") == "weft explain a   weft queue   weft cancel a"
    assert hint(capsys, "explain", "a") == "weft queue   weft cancel a"


# ── how far long work has come ──


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error as a person sees it, with no patience: every report is drawn."""
    seen = Terminal()
    monkeypatch.setattr(sys, "stderr", seen)
    monkeypatch.setattr(meters, "PATIENCE", 0.0)
    monkeypatch.setattr(meters, "EVERY", 0.0)
    return seen


def test_packing_and_uploading_show_how_far_they_are(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = a_terminal(monkeypatch)
    Path("code").mkdir()
    Path("code/train.py").write_text("pass\n" * 1000)
    server.answers.update({("PUT", path): lambda asked: Reply(status=201) for path in packages(server)})
    with meters.meter() as progress:
        job = Client().submit({"spec": {"code": {"path": "code"}}}, progress=progress)
    assert job.name == "a"
    assert "packing" in terminal.getvalue()
    assert "uploading" in terminal.getvalue()
    assert "(100%)" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K"), "the line is gone at the end"


def packages(server: FakeServer) -> list[str]:
    from weft.client.package import pack

    package = pack("code")
    package.close()
    return [f"/v1/packages/{package.digest}"]


@pytest.mark.parametrize(
    ("line", "said"), [("backup out.tar", "writing 7 B"), ("results a --get out", "fetching")]
)
def test_fetching_shows_how_far_it_is(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    terminal = a_terminal(monkeypatch)

    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("model.bin"))
    server.on("GET", "/v1/jobs/a/results.tar", Reply(archive.getvalue()))
    assert dispatch(line.split()) == 0
    assert said in terminal.getvalue()


def test_a_pipe_gets_no_progress(server: FakeServer, capsys: Captured) -> None:
    with meters.meter() as progress:
        assert progress is None


def test_short_work_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Terminal()
    monkeypatch.setattr(sys, "stderr", seen)
    with meters.meter() as progress:
        assert progress is not None
        progress("packing", 5, None)
    assert seen.getvalue() == ""


FAR = {"what": "reading dataset faces", "bytes": 3 << 20, "allBytes": 12 << 20, "rate": 1024.0 * 1024}


def test_a_download_is_a_bar_on_a_terminal_and_lines_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    piped = downloads.Download()
    for _ in range(3):
        piped.show(FAR)
    piped.show(None)
    assert capsys.readouterr().err == "reading dataset faces: 3 MiB of 12 MiB (25%), 1 MiB/s\n"
    seen = Terminal()
    monkeypatch.setattr(sys, "stderr", seen)
    drawn = downloads.Download()
    drawn.show(FAR)
    assert (
        seen.getvalue()
        == f"\r\x1b[Kreading dataset faces: [{'#' * 6}{'-' * 18}] 3 MiB of 12 MiB (25%), 1 MiB/s"
    )
    drawn.show(None)
    assert seen.getvalue().endswith("\r\x1b[K")


def test_following_the_log_shows_the_data_that_the_job_waits_for(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """The log's stream is silent until the data is there."""
    monkeypatch.setattr(downloads, "WAIT_EVERY", 0.01)
    looked = threading.Event()
    fill(server, "DOWNLOADING", progress=FAR)
    lines = server.answers["GET", "/v1/jobs/a/logs"]

    def job(asked: Any) -> Reply:
        if server.lines().count("GET /v1/jobs/a") > 3:
            looked.set()
        return Reply(a_job("DOWNLOADING", progress=FAR))

    def later(asked: Any) -> Any:
        assert looked.wait(30)
        return lines(asked)

    server.answers["GET", "/v1/jobs/a"] = job
    server.answers["GET", "/v1/jobs/a/logs"] = later
    assert dispatch(["logs", "-f", "a"]) == 0
    shown = capsys.readouterr()
    assert "reading dataset faces: 3 MiB of 12 MiB (25%), 1 MiB/s" in shown.err
    assert shown.out == "hi\n"
