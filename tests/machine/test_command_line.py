"""What a person types, word for word, against a real server of their own."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.machine

WEFT = str(Path(sys.executable).parent / "weft")
ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
import os, sys, time
import weft
print("args", sys.argv[1:], "rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
for step in range(3):
    weft.log(step=step, loss=1 / (step + 1))
open(os.environ["RESULT_DIR"] + f"/out-{os.environ['RANK']}", "w").write("done")
"""

Weft = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("WEFT_", "COV_"))}
    return {**kept, "WEFT_HOME": str(tmp_path / "home")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text(TRAIN)
    return work


@pytest.fixture
def weft(environment: dict[str, str], folder: Path) -> Iterator[Weft]:
    def run(*arguments: str, ok: bool = True, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [WEFT, *arguments],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if ok:
            assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done

    yield run
    subprocess.run([WEFT, "down", "--halt"], env=environment, cwd=folder, capture_output=True, check=False)


def test_the_first_run_starts_a_server_and_says_where_it_is_and_how_to_stop_it(weft, environment):
    done = weft("run", "--name", "hello", "--", "sh", "-c", "echo hi")
    status = json.loads(weft("status", "-o", "json").stdout)
    assert f"started a server at {status['address']}" in done.stderr
    assert environment["WEFT_HOME"] in done.stderr
    assert "weft down" in done.stderr
    assert done.stdout == "hi\n"
    assert "hello COMPLETED" in done.stderr
    assert {"pid", "address", "version", "home"} <= status.keys()
    assert Path(f"/proc/{status['pid']}").exists()


def test_what_a_server_writes_is_for_its_owner_alone(weft, environment):
    """Whatever the umask of the shell that started it."""
    before = os.umask(0)
    try:
        weft("run", "--name", "hello", "--", "true")
    finally:
        os.umask(before)
    home = Path(environment["WEFT_HOME"])
    assert home.stat().st_mode & 0o777 == 0o700
    for name in ("server.log", "start.lock", "server.lock", "token", "weft.db", "weft.db-wal"):
        assert (home / name).stat().st_mode & 0o777 == 0o600, name
    assert [p.name for p in home.iterdir() if not p.is_symlink() and p.stat().st_mode & 0o077] == []


def test_a_script_with_replicas_and_arguments_after_two_dashes(weft):
    weft("up", "--cpu", "4")
    done = weft(
        "run",
        "train.py",
        "--name",
        "t",
        "--replicas",
        "4",
        "--cpu",
        "1",
        "--memory",
        "1Gi",
        "--",
        "--lr",
        "0.1",
    )
    for rank in range(4):
        assert f"[worker-{rank}] args ['--lr', '0.1'] rank {rank} of 4" in done.stdout
    assert "loss" in weft("metrics", "t").stdout
    assert "┤" in weft("metrics", "t", "--plot", "--name", "loss").stdout


def test_a_folder_that_holds_the_servers_home_can_be_run_in(weft, environment, folder):
    environment["WEFT_HOME"] = str(folder / "home")
    done = weft("run", "train.py", "--name", "t")
    assert "rank 0 of 1" in done.stdout
    code = next((folder / "home" / "jobs").glob("*/code"))
    assert sorted(path.name for path in code.iterdir()) == ["train.py"]


def test_detached_it_returns_at_once_and_tells_what_to_do_next(weft):
    done = weft("run", "--detach", "--name", "hello", "--", "sh", "-c", "echo hi")
    assert done.stdout == "hello\n"
    assert "weft logs -f hello" in done.stderr
    assert weft("logs", "-f", "hello").stdout == "hi\n"


def test_a_dry_run_prints_a_file_that_runs_the_same_job(weft, folder):
    printed = weft("run", "train.py", "--replicas", "2", "--cpu", "0.5", "--dry-run", "-o", "yaml").stdout
    document = yaml.safe_load(printed)
    assert document["kind"] == "TrainingJob"
    assert document["spec"]["roles"]["worker"]["replicas"] == 2
    assert document["spec"]["restart"]["policy"] == "never", "defaults are filled in"
    assert "status" not in document
    (folder / "job.yaml").write_text(printed)
    done = weft("run", "job.yaml")
    assert "rank 1 of 2" in done.stdout


def test_a_type_that_is_shown_can_be_applied_under_another_name(weft, folder):
    weft("up")
    document = yaml.safe_load(weft("show", "jobtype", "pytorch").stdout)
    document["metadata"]["name"] = "mine"
    (folder / "mine.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    assert weft("apply", "-f", "mine.yaml").stdout == "jobtype/mine created\n"
    made = {
        name: yaml.safe_load(weft("run", "train.py", "--type", name, "--dry-run").stdout)["spec"]
        for name in ("pytorch", "mine")
    }
    assert made["mine"] == {**made["pytorch"], "type": "mine"}


def test_files_and_folders_are_submitted_and_applied(weft, folder):
    jobs = folder / "jobs"
    jobs.mkdir()
    for name in ("one", "two"):
        spec = {"command": ["true"], "roles": {"worker": {"resources": {"cpu": 0.5}}}}
        document = {
            "apiVersion": "weft.dev/v1",
            "kind": "TrainingJob",
            "metadata": {"name": name},
            "spec": spec,
        }
        (jobs / f"{name}.yaml").write_text(yaml.safe_dump(document))
    assert {"one", "two"} <= set(weft("apply", "-f", "jobs/").stdout.split())
    assert "unchanged" in weft("apply", "-f", "jobs/").stdout
    (jobs / "bad.yaml").write_text("kind: TrainingJob\nmetadata: {name: bad}\nspec: {comand: ['true']}\n")
    refused = weft("apply", "-f", "jobs/", ok=False)
    assert refused.returncode == 1
    assert "bad.yaml" in refused.stderr
    assert "did you mean command?" in refused.stderr
    assert "submit" in weft("submit", "--help").stdout
    listed = json.loads(weft("ls", "-o", "json").stdout)
    items = listed if isinstance(listed, list) else listed["items"]
    assert {item["metadata"]["name"] for item in items} == {"one", "two"}
    assert all(item["spec"]["command"] == ["true"] for item in items), "full resources"


def test_every_list_has_its_forms_and_no_colours_in_a_pipe(weft):
    weft("run", "--name", "hello", "--", "true")
    for command in (
        ["ls"],
        ["nodes"],
        ["queue"],
        ["top"],
        ["events", "hello"],
        ["jobtypes"],
        ["sizes"],
        ["metrics", "hello"],
    ):
        assert yaml.safe_load(weft(*command, "-o", "yaml").stdout) is not None
        json.loads(weft(*command, "-o", "json").stdout)
        assert "\x1b" not in weft(*command, "-o", "wide").stdout
    assert "\x1b" not in weft("show", "hello").stdout


def test_a_size_is_declared_used_and_measured(weft):
    weft("up")
    weft("sizes", "set", "roomy", "--cpu", "1", "--memory", "1Gi")
    weft("run", "--name", "t", "--size", "roomy", "--", "python3", "-c", "x = bytearray(b'x') * (100 << 20)")
    weft("sizes", "rm", "roomy")
    found = json.loads(weft("sizes", "suggest", "t", "-o", "json").stdout)
    [worker] = found["items"]
    assert worker["asked"] == {"cpu": 1, "memory": "1Gi", "gpu": 0, "size": "roomy"}
    assert 100 << 20 < worker["used"]["memory"] < 200 << 20
    assert worker["size"] == "small"
    assert "# was 1Gi" in weft("sizes", "suggest", "t").stdout


def test_results_are_listed_and_fetched(weft, folder):
    weft("run", "train.py", "--name", "t", "--replicas", "2", "--cpu", "0.5")
    assert "out-0" in weft("results", "t").stdout
    weft("results", "t", "--get", "fetched")
    assert (folder / "fetched" / "out-1").read_text() == "done"


def test_halt_resume_cancel_delete(weft):
    weft("run", "--detach", "--name", "long", "--", "sleep", "600")
    _wait_for(weft, "long", "PROCESSING")
    weft("halt", "long")
    _wait_for(weft, "long", "HALTED")
    weft("resume", "long")
    _wait_for(weft, "long", "PROCESSING")
    weft("cancel", "long")
    _wait_for(weft, "long", "CANCELLED")
    history = [event.get("state") for event in _items(weft("events", "long", "-o", "json").stdout)]
    assert history.count("QUEUED") == 2
    weft("delete", "long", "--yes")
    gone = weft("show", "long", ok=False)
    assert gone.returncode == 1
    assert "there is no job long" in gone.stderr


def test_a_job_that_fails_says_why_and_shows_its_last_lines(weft):
    done = weft("run", "--name", "bad", "--", "sh", "-c", "echo the last words; exit 3", ok=False)
    assert done.returncode == 1
    assert "worker-0 exited with code 3" in done.stderr
    shown = weft("show", "bad").stdout
    assert "EXIT_CODE" in shown
    assert "the last words" in shown


def test_a_job_that_can_never_start_says_so_with_numbers_and_the_way_out(weft):
    weft("up", "--cpu", "2")
    weft("run", "--detach", "--name", "wide", "--replicas", "4", "--cpu", "1", "--", "true")
    explained = weft("explain", "wide")
    assert "needs 4 × (1 cpu); the node has 2 cpu" in explained.stdout
    assert "weft up --cpu 4" in explained.stderr


def test_mistakes_are_named_with_the_nearest_right_word(weft):
    weft("run", "--name", "hello", "--", "true")
    assert "did you mean hello?" in weft("show", "helo", ok=False).stderr
    assert "1x" in weft("run", "--cpu", "1x", "--", "true", ok=False).stderr
    usage = weft("run", "train.py", "--replica", "4", ok=False)
    assert usage.returncode == 2
    assert "weft run --help" in usage.stderr
    assert "Traceback" not in usage.stderr


BAD_JOB = """
kind: TrainingJob
metadata: {name: bad}
spec:
  type: comand
  grace: soon
  code: {path: nowhere}
  secrets: [{name: s3, key: token, env: TOKEN}]
  roles: {worker: {replcas: 2, resources: {size: huge, memory: 512MB}}}
  metrics: [{source: regex}]
"""
BAD_FIELDS = [
    "spec.code.path", "spec.command", "spec.type", "spec.grace", "spec.secrets[0]", "spec.roles.worker.replcas",
    "spec.roles.worker.resources.size", "spec.roles.worker.resources.memory", "spec.metrics[0].pattern",
]  # fmt: skip
BAD_LINES = ["7:10", "4:1", "5:3", "6:3", "8:13", "9:20", "9:44", "9:56", "10:13"]
"""Of these; the command is missing in `spec`, the pattern in the first of `metrics`."""


@pytest.mark.parametrize(
    "command", [("run", "bad.yaml"), ("submit", "bad.yaml"), ("apply", "-f", "bad.yaml")]
)
def test_all_mistakes_of_a_file_are_told_at_once(weft, folder, command):
    (folder / "bad.yaml").write_text(BAD_JOB)
    refused = weft(*command, ok=False)
    assert refused.returncode == 1
    told = [line.split(": ")[:2] for line in refused.stderr.splitlines() if ": spec." in line]
    expected = zip(BAD_LINES, BAD_FIELDS, strict=True)
    assert told == [[f"  bad.yaml:{line}", field] for line, field in expected]
    assert weft("ls", "-o", "json").stdout.split() == ["{", '"items":', "[]", "}"]


def test_all_mistakes_of_a_document_are_told_at_once_in_python(weft, folder, environment):
    (folder / "script.py").write_text(f"import weft, yaml; weft.run(yaml.safe_load({BAD_JOB!r}))")
    weft("up")
    refused = subprocess.run(
        [sys.executable, "script.py"],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert [field for field in BAD_FIELDS if f"{field}: " not in refused.stderr] == []


def test_without_a_server_other_commands_say_how_to_start_one(weft):
    done = weft("ls", ok=False)
    assert done.returncode == 1
    assert "weft up" in done.stderr


def _at_a_terminal() -> None:
    """As a person's shell starts it, however these tests were started: who runs in the background may ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.parametrize(("answer", "state"), [("h", "HALTED"), ("l", "PROCESSING")])
def test_ctrl_c_asks_whether_to_leave_it_or_halt_it(weft, environment, folder, answer, state):
    weft("up")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [WEFT, "run", "--name", "long", "--", "sleep", "600"],
        stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=folder, start_new_session=True,
        preexec_fn=_at_a_terminal,
    )  # fmt: skip
    os.close(theirs)
    try:
        _read_until(ours, rb"PROCESSING")
        os.write(ours, b"\x03")
        asked = _read_until(ours, rb"\)\?")
        assert b"[l]eave it running, [h]alt it" in asked
        os.write(ours, answer.encode() + b"\n")
        _drain(ours)
        process.wait(timeout=90)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    _wait_for(weft, "long", state)


def test_backup_and_restore(weft, environment, folder, tmp_path):
    weft("run", "--name", "hello", "--", "sh", "-c", "echo hi")
    weft("secrets", "set", "s3", "token=abc")
    weft("backup", "copy.tar")
    weft("down")
    refused = weft("restore", "copy.tar", ok=False)
    assert refused.returncode == 1
    environment["WEFT_HOME"] = str(tmp_path / "other")
    weft("restore", "copy.tar")
    weft("up")
    assert "hello" in weft("ls").stdout
    assert "s3" in weft("secrets", "ls").stdout
    assert "abc" not in weft("secrets", "ls", "-o", "json").stdout


def test_a_task_with_a_secret_gets_its_value_and_nobody_else_sees_it(weft, environment):
    weft("up")
    weft("secrets", "set", "s3", "token=hunter2")
    done = weft(
        "run", "--name", "s", "--secret", "s3:token=S3_TOKEN", "--", "sh", "-c", "test ${#S3_TOKEN} = 7"
    )
    assert "COMPLETED" in done.stderr
    seen = weft("show", "s", "-o", "json").stdout + weft("events", "s", "-o", "json").stdout
    assert "hunter2" not in seen
    home = Path(environment["WEFT_HOME"])
    assert not [
        f
        for f in home.rglob("*")
        if f.is_file() and f.parent.name != "secrets" and b"hunter2" in f.read_bytes()
    ]
    assert (home / "secrets" / "s3.json").stat().st_mode & 0o077 == 0


def test_the_version_is_told_without_loading_anything():
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", WEFT, "--version"],
        env={name: value for name, value in os.environ.items() if not name.startswith("COV")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.fullmatch(r"weft \d+\.\d+\.\d+\n", loaded.stdout)
    assert "cyclopts" not in loaded.stderr
    assert "json" not in loaded.stderr


def test_the_demo_trains_to_its_accuracy():
    done = subprocess.run(
        [sys.executable, "scripts/demo.py"], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False,
        env={k: v for k, v in os.environ.items() if not k.startswith("WEFT_")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = re.search(r"Accuracy on images it never saw: ([\d.]+)%", done.stdout)
    assert found, done.stdout[-2000:]
    assert float(found[1]) > 95


def _items(text: str) -> list[dict]:
    document = json.loads(text)
    return document if isinstance(document, list) else document["items"]


def _wait_for(weft: Weft, name: str, state: str, timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while True:
        found = json.loads(weft("show", name, "-o", "json").stdout)["status"]["state"]
        if found == state:
            return
        assert time.monotonic() < deadline, f"{name} is {found}, not {state}"


def _read_until(fd: int, pattern: bytes, timeout: float = 30) -> bytes:
    seen = b""
    deadline = time.monotonic() + timeout
    while not re.search(pattern, seen):
        left = deadline - time.monotonic()
        assert left > 0, seen
        if select.select([fd], [], [], left)[0]:
            seen += os.read(fd, 4096)
    return seen


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except OSError:
        return
