"""WEFT_HOME: held by one server, readable by its owner, sturdy when full, read-only or restored."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Server, package, sh, until

pytestmark = pytest.mark.machine


def start_again(*arguments: object) -> subprocess.CompletedProcess[str]:
    """A server that is expected to end by itself."""
    command = [sys.executable, "-m", "weft.server", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


def test_a_server_started_as_people_do_announces_itself_and_stops_cleanly(new_server):
    server = new_server(kind=Server)
    facts = server.facts()
    assert facts["pid"] == server.pid
    assert server.get("/v1/status").json["home"] == str(server.home)
    assert server.run(sh("echo hi", name="hello"))["status"]["state"] == "COMPLETED"
    port = facts["address"].rpartition(":")[2]
    server.stop()
    assert server.process.returncode == 0
    server.start()
    assert server.facts()["address"].rpartition(":")[2] == port  # bookmarks stay good


def test_a_second_server_on_the_same_home_is_refused_and_told_who_has_it(server: Server):
    refused = start_again("--home", server.home)
    assert refused.returncode == 1
    assert f"pid {server.pid}" in refused.stderr
    assert str(server.home) in refused.stderr
    assert "Traceback" not in refused.stderr
    assert server.get("/healthz").status == 200
    assert server.facts()["pid"] == server.pid


def test_a_lock_that_a_dead_server_left_with_a_child_for_a_moment_is_waited_for(new_server, tmp_path: Path):
    """A server killed between fork and exec of its launcher: the child has its open files for an instant."""
    home = tmp_path / "home"
    home.mkdir()
    with (home / "server.lock").open("a+") as lock:
        dead = subprocess.Popen(["true"])
        dead.wait()
        lock.write(str(dead.pid))
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = new_server("--cpu", "1", start=False)
        server.begin()
        until(lambda: _waits_for(server.pid, home / "server.lock"), "the server to try the lock")
        assert server.running()
    server.ready()
    assert server.facts()["pid"] == server.pid


def _waits_for(pid: int, file: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(os.readlink(fd) == str(file) for fd in Path(f"/proc/{pid}/fd").iterdir())
    return False


def test_everything_in_a_home_is_for_its_owner_alone(server: Server):
    assert server.home.stat().st_mode & 0o777 == 0o700
    assert (server.home / "token").stat().st_mode & 0o777 == 0o600
    assert (server.home / "weft.db").stat().st_mode & 0o077 == 0
    token = server.token
    server.stop()
    (server.home / "token").chmod(0o644)
    server.start()
    assert (server.home / "token").stat().st_mode & 0o777 == 0o600
    assert server.token == token


def test_only_loopback_is_listened_on(tmp_path: Path):
    for host in ("0.0.0.0", "192.0.2.1", "example.org"):
        refused = start_again("--home", tmp_path / "home", "--host", host)
        assert refused.returncode == 1
        assert host in refused.stderr
        assert "Traceback" not in refused.stderr


def test_a_port_that_is_taken_is_named(server: Server, tmp_path: Path):
    port = server.facts()["address"].rpartition(":")[2]
    refused = start_again("--home", tmp_path / "other", "--port", port)
    assert refused.returncode == 1
    assert port in refused.stderr


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / "ro"
    home.mkdir()
    if os.getuid() != 0:
        home.chmod(0o500)
        yield home
        home.chmod(0o700)
        return
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", home], check=False)
    if made.returncode != 0:
        pytest.skip("this machine does not let root mount a file system")
    yield home
    subprocess.run(["umount", home], check=True)


def test_a_read_only_home_is_refused_in_plain_words(read_only: Path):
    refused = start_again("--home", read_only)
    assert refused.returncode == 1
    assert str(read_only) in refused.stderr
    assert "WEFT_HOME" in refused.stderr
    assert "Traceback" not in refused.stderr


# ── a disk that is full ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.getuid() != 0:
        pytest.skip("a small file system can only be mounted by root")
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", place], check=False)
    if made.returncode != 0:
        pytest.skip("this machine does not let root mount a file system")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def fill(place: Path) -> Path:
    ballast = place / "ballast"
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
    return ballast


def test_a_full_disk_refuses_what_is_new_and_loses_nothing_that_runs(
    small_disk: Path, new_server, tmp_path: Path
):
    server = new_server("--cpu", "16", home=small_disk / "home")
    go = tmp_path / "go"
    waits = f"while [ ! -e {go} ]; do sleep 0.02; done; exit"
    for name, code in (("good", 0), ("bad", 6)):
        server.submit(sh(f"{waits} {code}", name=name))
        server.wait_for(name, "PROCESSING")
    before = server.run(sh("true", name="before"))
    ballast = fill(small_disk)

    refused = until(lambda: _refused(server), "a submit to be refused", 10)
    assert refused.headers["content-type"] == "application/problem+json"
    assert "room" in refused.json["detail"]
    assert "space" in refused.json["next"]
    _, data = package({"x": os.urandom(2 << 20).hex()})
    too_large = server.call("PUT", f"/v1/packages/sha256:{'0' * 64}", data)
    assert too_large.status == 507
    assert server.call("PUT", "/v1/secrets/big", {"data": {"k": "v" * 500_000}}).status == 507
    assert server.get("/healthz").status == 200
    assert server.job("before") == before
    assert any("full" in note for note in server.get("/v1/status").json["notes"])

    go.touch()
    until(lambda: server.task_processes() == [], "both tasks to end on the full disk")
    ballast.unlink()
    assert server.wait_for("good")["status"]["state"] == "COMPLETED"
    bad = server.wait_for("bad")["status"]
    assert (bad["state"], bad["failure"]["message"]) == ("FAILED", "worker-0 exited with code 6")
    assert server.run(sh("echo room again", name="after"))["status"]["state"] == "COMPLETED"


def _refused(server: Server):
    answer = server.post("/v1/jobs", sh("true", env={"PADDING": "x" * 20_000}))
    return answer if answer.status == 507 else None


def test_a_job_can_be_cancelled_on_a_full_disk(small_disk: Path, new_server):
    """It may be the very job that fills it."""
    server = new_server("--cpu", "16", home=small_disk / "home")
    server.submit(sh("echo on; sleep 1000", name="runs", grace=1))
    server.wait_for("runs", "PROCESSING")
    ballast = fill(small_disk)
    until(lambda: _refused(server), "the disk to be full", 10)
    answers: list[int] = []
    asking = threading.Thread(target=lambda: answers.append(server.ask("runs", "cancel").status))
    asking.start()
    until(lambda: server.task_processes() == [], "its processes to end although nothing can be written", 15)
    ballast.unlink()
    asking.join(20)
    assert answers
    assert answers[0] in (200, 507)
    assert server.wait_for("runs", "CANCELLED", "FAILED")["status"]["state"] == "CANCELLED"


def test_a_server_killed_on_a_full_disk_comes_back_when_there_is_room(
    small_disk: Path, new_server, tmp_path: Path
):
    server = new_server("--cpu", "16", home=small_disk / "home")
    go = tmp_path / "go"
    server.submit(sh(f"while [ ! -e {go} ]; do sleep 0.02; done; exit 6", name="runs"))
    server.wait_for("runs", "PROCESSING")
    ballast = fill(small_disk)
    until(lambda: _refused(server), "the disk to be full", 10)
    server.kill()
    go.touch()
    until(lambda: server.task_processes() == [], "the task to end")
    ballast.unlink()
    server.start()
    assert server.wait_for("runs")["status"]["failure"]["message"] == "worker-0 exited with code 6"


# ── backup and restore ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def backup(server: Server, tmp_path: Path) -> Path:
    digest = server.put_package(package({"words": "from the package"})[1])
    server.call("PUT", "/v1/secrets/hub", {"data": {"token": "s3cret"}})
    source = """echo '{"step":1,"time":1,"values":{"loss":0.5}}' >> $WEFT_METRICS_FILE; cat words"""
    server.run(sh(source, name="trained", code={"package": digest}, labels={"kind": "demo"}))
    server.run(sh("exit 3", name="broken"))
    answer = server.get("/v1/backup")
    assert answer.headers["content-type"] == "application/x-tar"
    file = tmp_path / "backup.tar"
    file.write_bytes(answer.body)
    return file


def test_a_backup_is_restored_into_a_new_home(server: Server, backup: Path, new_server, tmp_path: Path):
    restored = start_again("--restore", backup, "--home", tmp_path / "new")
    assert restored.returncode == 0, restored.stderr
    other = new_server("--cpu", "16", home="new")
    for name in ("trained", "broken"):
        assert other.job(name) == server.job(name)
        assert other.history(name) == server.history(name)
        assert other.metrics(name) == server.metrics(name)
    assert other.get("/v1/secrets").json == server.get("/v1/secrets").json
    assert (other.home / "secrets" / "hub.json").stat().st_mode & 0o777 == 0o600
    digest = other.job("trained")["spec"]["code"]["package"]
    assert other.call("HEAD", f"/v1/packages/{digest}").status == 200
    assert other.token != server.token
    env = [{"name": "hub", "key": "token", "env": "T"}]
    done = other.run(sh("cat words; echo $T", name="new", code={"package": digest}, secrets=env))
    assert done["status"]["state"] == "COMPLETED"
    assert other.text("new") == ["from the packages3cret"]


def test_a_backup_with_files_has_logs_and_results_too(server: Server, new_server, tmp_path: Path):
    server.run(sh("echo said; echo kept > $RESULT_DIR/out", name="full"))
    file = tmp_path / "full.tar"
    file.write_bytes(server.get("/v1/backup", files="true").body)
    assert start_again("--restore", file, "--home", tmp_path / "new").returncode == 0
    other = new_server("--cpu", "16", home="new")
    assert other.text("full") == ["said"]
    assert [item["path"] for item in other.get("/v1/jobs/full/results").json["items"]] == ["out"]


def test_a_backup_is_consistent_while_jobs_run(server: Server, tmp_path: Path):
    stop = threading.Event()

    def feed() -> None:
        while not stop.is_set():
            server.submit(sh("true"))

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        for number in range(5):
            file = tmp_path / f"{number}.tar"
            file.write_bytes(server.get("/v1/backup").body)
            home = tmp_path / f"restored-{number}"
            restored = start_again("--restore", file, "--home", home)
            assert restored.returncode == 0, restored.stderr
    finally:
        stop.set()
        feeder.join()
    until(lambda: server.reserved() == [], "the jobs to end")
    assert not list(server.home.glob("backup-*"))


def test_restore_refuses_a_home_with_data(server: Server, backup: Path):
    server.stop()
    refused = start_again("--restore", backup, "--home", server.home)
    assert refused.returncode == 1
    assert "already has data" in refused.stderr
    server.start()
    assert server.status("trained")["state"] == "COMPLETED"


def test_restore_refuses_a_home_in_use(server: Server, backup: Path):
    refused = start_again("--restore", backup, "--home", server.home)
    assert refused.returncode == 1
    assert f"pid {server.pid}" in refused.stderr


@pytest.mark.parametrize(
    "damage", ["empty", "cut", "garbage", "no database", "bad database", "absent", "outside"]
)
def test_restore_refuses_what_is_no_backup_and_leaves_the_home_empty(
    backup: Path, damage: str, tmp_path: Path
):
    file = tmp_path / "damaged.tar"
    data = backup.read_bytes()
    match damage:
        case "empty":
            file.write_bytes(b"")
        case "cut":
            file.write_bytes(data[: len(data) // 2 // 512 * 512 + 100])
        case "garbage":
            file.write_bytes(os.urandom(5000))
        case "no database":
            _archive(file, {"secrets/x.json": b"{}"})
        case "bad database":
            _archive(file, {"weft.db": os.urandom(9000)})
        case "outside":
            _archive(file, {"../escaped": b"evil", "weft.db": b""})
    home = tmp_path / "fresh" / "home"
    refused = start_again("--restore", file, "--home", home)
    assert refused.returncode == 1, damage
    assert str(file) in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (home / "weft.db").exists()
    assert not list(tmp_path.rglob("escaped"))
    assert (
        start_again("--restore", backup, "--home", home).returncode == 0
    )  # the home is still good for a real one


def _archive(file: Path, contents: dict[str, bytes]) -> None:
    with tarfile.open(file, "w") as tar:
        for name, data in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_a_damaged_database_is_named_with_what_to_do(server: Server):
    server.run(sh("true", name="one"))
    server.stop()
    database = server.home / "weft.db"
    good = server.home.parent / "good.db"
    shutil.copy(database, good)
    for file in server.home.glob("weft.db-*"):
        file.unlink()
    database.write_bytes(b"this is not a database" * 1000)
    refused = start_again("--home", server.home)
    assert refused.returncode == 1
    assert "damaged" in refused.stderr
    assert "weft restore" in refused.stderr
    assert "Traceback" not in refused.stderr
    shutil.copy(good, database)
    server.start()
    assert server.status("one")["state"] == "COMPLETED"


def test_sigint_stops_a_server_as_sigterm_does(new_server):
    server = new_server(kind=Server)
    os.kill(server.pid, signal.SIGINT)
    assert server.process.wait(15) == 0
    assert "Traceback" not in server.printed()


def test_a_killed_server_comes_back_with_the_machine_carved_as_it_was(new_server):
    server = new_server("--nodes", "2", "--gpus", "2", "--gpu-type", "v100")
    server.kill()
    server.arguments = ()
    server.start()
    nodes = server.get("/v1/nodes").json["items"]
    assert [(n["name"], n["capacity"]["gpu"], n["capacity"]["gpuType"]) for n in nodes] == [
        ("local-0", 1, "v100"),
        ("local-1", 1, "v100"),
    ]


def test_tasks_of_nodes_that_are_gone_still_count(new_server):
    server = new_server("--nodes", "2", "--cpu", "2")
    server.submit(sh("sleep 600", name="busy", roles={"worker": {"replicas": 2}}, grace="1s"))
    server.wait_for("busy", "PROCESSING")
    server.kill()
    server.arguments = ("--nodes", "1")
    server.start()
    [node] = server.get("/v1/nodes").json["items"]
    assert node["free"]["cpu"] == node["capacity"]["cpu"] - 2
    server.post("/v1/jobs/busy/cancel")
    server.wait_for("busy", "CANCELLED")
    [node] = server.get("/v1/nodes").json["items"]
    assert node["free"]["cpu"] == node["capacity"]["cpu"]


@pytest.mark.parametrize("wrong", [("--port", "99999"), ("--gpus", "-1"), ("--cpu", "0"), ("--nodes", "0")])
def test_nonsense_at_the_start_is_refused_in_a_sentence(tmp_path: Path, wrong: tuple[str, str]):
    command = [sys.executable, "-m", "weft.server", "--home", str(tmp_path / "home"), *wrong]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 2
    assert wrong[0] in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_whose_secret_is_not_there_is_refused(server: Server):
    secrets = [{"name": "nope", "key": "k", "env": "A"}]
    answer = server.post("/v1/jobs", sh("true", name="s", secrets=secrets))
    assert answer.status == 422
    assert "there is no secret nope" in answer.json["detail"]
    assert server.get("/v1/jobs/s").status == 404
