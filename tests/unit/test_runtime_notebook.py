"""The part that starts Jupyter, with a stand-in for it: its files, its token, its URL and what counts as activity."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import weft
from support.fake_server import FakeServer, Reply, fake_server
from weft.runtime.announce import announced
from weft.runtime.notebook import Jupyter, Watch, bring, found, last_active, settings, token_file

SOURCE = str(Path(weft.__file__).parent.parent)
NOW = 2_000_000_000.0


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as fake:
        for what in ("status", "kernels", "terminals", "sessions"):
            fake.on("GET", f"/api/{what}", Reply([]))
        yield fake


@pytest.fixture
def jupyter(server: FakeServer, work: Path) -> Jupyter:
    return Jupyter(f"{server.address}/", "a b", str(work))


# ── before it starts ──


def test_a_token_is_made_once_and_only_its_user_reads_it(tmp_path: Path) -> None:
    path = Path(token_file(str(tmp_path)))
    token = path.read_text()
    assert len(token) > 40
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Path(token_file(str(tmp_path))).read_text() == token


def test_the_jobs_files_are_copied_once_and_nothing_of_a_persons_is_lost(tmp_path: Path, work: Path) -> None:
    code, mark = tmp_path / "code", tmp_path / "mark"
    (code / "sub" / "__pycache__").mkdir(parents=True)
    (code / "a.ipynb").write_text("theirs")
    (code / "sub" / "b.py").write_text("b")
    (code / "sub" / "__pycache__" / "b.pyc").write_text("")
    (work / "a.ipynb").write_text("a person's")
    bring(str(code), str(work), str(mark))
    assert (work / "a.ipynb").read_text() == "a person's"
    assert [path.name for path in (work / "sub").iterdir()] == ["b.py"]
    (work / "sub" / "b.py").unlink()
    bring(str(code), str(work), str(mark))
    assert not (work / "sub" / "b.py").exists()


def test_where_home_is_read_only_its_settings_are_kept_with_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings("/kept") == {}
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    assert settings("/kept")["JUPYTER_DATA_DIR"] == "/kept/data"


# ── what it tells of itself ──


def test_its_own_description_is_found_once_it_is_whole(tmp_path: Path) -> None:
    assert found(str(tmp_path)) is None
    description = tmp_path / "jpserver-7.json"
    description.write_text('{"url": "http://127')
    assert found(str(tmp_path)) is None
    description.write_text(
        json.dumps({"url": "http://127.0.0.1:9/", "token": "a b", "root_dir": "/w", "pid": 7})
    )
    there = found(str(tmp_path))
    assert there == Jupyter("http://127.0.0.1:9/", "a b", "/w")
    assert there.shown == "http://127.0.0.1:9/?token=a%20b"
    assert Jupyter("http://127.0.0.1:9/", "", "/w").shown == "http://127.0.0.1:9/"


def stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(seconds))


def test_kernels_that_are_at_work_count_as_now(server: FakeServer, jupyter: Jupyter) -> None:
    idle = {"execution_state": "idle", "last_activity": stamp(NOW - 500)}
    server.on("GET", "/api/kernels", Reply([idle]))
    assert last_active(jupyter, NOW) == NOW - 500
    server.on(
        "GET", "/api/kernels", Reply([idle, {"execution_state": "busy", "last_activity": stamp(NOW - 900)}])
    )
    assert last_active(jupyter, NOW) == NOW
    assert {asked.headers["Authorization"] for asked in server.asked} == {"token a b"}
    assert all(asked.query == {"no_track_activity": "1"} for asked in server.asked)


def test_terminals_count_when_they_speak_and_may_be_missing(server: FakeServer, jupyter: Jupyter) -> None:
    server.on("GET", "/api/terminals", Reply([{"name": "1", "last_activity": stamp(NOW - 60)}]))
    assert last_active(jupyter, NOW) == NOW - 60
    server.on("GET", "/api/terminals", Reply({}, 404))
    assert last_active(jupyter, NOW) == 0.0


def test_what_is_saved_counts_but_not_what_comes_from_the_future(
    server: FakeServer, jupyter: Jupyter, work: Path
) -> None:
    def written(path: str, when: float) -> None:
        (work / path).parent.mkdir(exist_ok=True)
        (work / path).write_text("")
        os.utime(work / path, (when, when))

    written("sub/open.ipynb", NOW - 70)
    os.utime(work / "sub", (NOW - 400, NOW - 400))
    written("notes.md", NOW - 100)
    written("odd", NOW + 1e6)
    assert last_active(jupyter, NOW) == NOW - 100
    server.on("GET", "/api/sessions", Reply([{"path": "sub/open.ipynb"}, {"path": "gone.ipynb"}]))
    assert last_active(jupyter, NOW) == NOW - 70


def test_it_is_announced_when_it_answers_and_not_before(
    server: FakeServer, jupyter: Jupyter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, activity = tmp_path / "url", tmp_path / "active"
    monkeypatch.setenv("WEFT_URL_FILE", str(url))
    monkeypatch.setenv("WEFT_ACTIVITY_FILE", str(activity))
    watch = Watch(str(tmp_path), idle_timeout=40)
    assert (watch.look(), announced(str(url))) == (0.1, None)
    about = {"url": jupyter.url, "token": "t", "root_dir": jupyter.root}
    (tmp_path / "jpserver-1.json").write_text(json.dumps(about))
    server.on("GET", "/api/status", Reply({}, 503), Reply({}))
    assert (watch.look(), announced(str(url))) == (0.1, None)
    assert (watch.look(), announced(str(url))) == (2.0, f"{jupyter.url}?token=t")
    answered = activity.stat().st_mtime
    assert answered > time.time() - 60
    idle = {"execution_state": "idle", "last_activity": stamp(1_000_000)}
    server.on(
        "GET",
        "/api/kernels",
        Reply([idle]),
        Reply(hang_up=True),
        Reply([{**idle, "execution_state": "busy"}]),
    )
    times = []
    for _ in range(3):
        assert watch.look() == 2.0
        times.append(activity.stat().st_mtime)
    assert times[:2] == [answered, answered]
    assert times[2] > answered


# ── from its start to its end ──

STAND_IN = """
import json, os, sys, time
print(json.dumps([sys.argv[1:], os.getcwd(), "JUPYTER_TOKEN" in os.environ]), flush=True)
print(oct(os.stat(os.environ["JUPYTER_TOKEN_FILE"]).st_mode & 0o777), flush=True)
exec(os.environ["THEN"])
"""


def jupyter_that(then: str, tmp_path: Path) -> subprocess.Popen[str]:
    for name in ("results", "checkpoints", "tmp", "code"):
        (tmp_path / name).mkdir()
    (tmp_path / "code" / "a.ipynb").write_text("{}")
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": SOURCE,
        "RESULT_DIR": str(tmp_path / "results"),
        "CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
        "TMPDIR": str(tmp_path / "tmp"),
        "THEN": then,
    }
    command = [sys.executable, "-m", "weft.runtime.notebook", "127.0.0.1:9", sys.executable, "-c", STAND_IN]
    return subprocess.Popen(
        command, env=env, cwd=tmp_path / "code", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_it_is_started_where_its_files_stay(tmp_path: Path) -> None:
    process = jupyter_that("sys.exit(0)", tmp_path)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    told, mode = out.splitlines()
    arguments, folder, in_environment = json.loads(told)
    assert {"--ServerApp.ip=127.0.0.1", "--ServerApp.port=9", "--no-browser"} <= {*arguments}
    assert f"--ServerApp.root_dir={folder}" in arguments
    assert (folder, in_environment, mode) == (str(tmp_path / "results"), False, "0o600")
    assert (tmp_path / "results" / "a.ipynb").read_text() == "{}"


def test_one_that_never_answered_says_what_to_do_and_is_not_tried_again(tmp_path: Path) -> None:
    process = jupyter_that("sys.exit(1)", tmp_path)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "ended before it answered; is Jupyter installed for it?" in out
    assert f"({sys.executable} -m pip install jupyterlab)" in out


def test_one_that_was_killed_is_worth_another_try(tmp_path: Path) -> None:
    process = jupyter_that("os.kill(os.getpid(), 9)", tmp_path)
    process.communicate(timeout=30)
    assert process.returncode == 137


def test_sigterm_reaches_it_and_its_own_end_is_waited_for(tmp_path: Path) -> None:
    then = """
import signal
signal.signal(15, lambda *_: (os.write(1, b"saved\\n"), os._exit(0)))
os.write(1, b"up\\n")
time.sleep(60)
"""
    process = jupyter_that(then, tmp_path)
    assert process.stdout is not None
    while "up" not in process.stdout.readline():
        assert process.poll() is None
    process.terminate()
    out, _ = process.communicate(timeout=30)
    assert (out, process.returncode) == ("saved\n", 143)
