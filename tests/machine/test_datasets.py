"""Datasets on one machine, with a real server: declared, read, changed, proven, and made by jobs."""

from __future__ import annotations

import os
import pty
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Server, python, sh, until

from support.web import web

pytestmark = pytest.mark.machine

READ = """
import hashlib, os, weft
data = weft.data("faces", shuffle=True, seed=3)
read = {sample.name: hashlib.sha256(sample.data).hexdigest() for sample in data}
print(len(read), hashlib.sha256(repr(sorted(read.items())).encode()).hexdigest())
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "home")
    made.start()
    yield made
    for name in [job["metadata"]["name"] for job in made.get("/v1/jobs").json["items"]]:
        made.delete(name)
    until(lambda: made.get("/v1/jobs").json["total"] == 0, "all jobs to be gone", 60, every=0.1)
    made.stop()
    assert agents(made) == []


@pytest.fixture
def faces(tmp_path: Path) -> Path:
    folder = tmp_path / "faces"
    r = random.Random(1)
    for number in range(200):
        place = folder / f"{number % 7}" / f"{number:04}.bin"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(r.randbytes(r.randrange(50_000)))
    (folder / "large.bin").write_bytes(r.randbytes(5 << 20))
    return folder


def agents(server: Server) -> list[int]:
    """The data agents of this server, by their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"weft.data.agent" in words and f"{server.home}/datasets".encode() in words:
                found.append(int(entry.name))
    return found


def dataset(server: Server, name: str = "faces") -> dict[str, Any]:
    return server.get(f"/v1/datasets/{name}").json


def expected(folder: Path) -> str:
    import hashlib

    files = sorted(path for path in folder.rglob("*") if path.is_file())
    read = {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return f"{len(read)} {hashlib.sha256(repr(sorted(read.items())).encode()).hexdigest()}"


def reads(server: Server, name: str, command: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        **command,
        "metadata": {"name": name},
        "spec": {**command["spec"], "datasets": [{"name": "faces"}], **spec},
    }


def test_a_job_that_writes_to_its_files_changes_nothing_that_others_read(server: Server, faces: Path) -> None:
    """One that is a process of the server's user can change the files that were laid out for it, and no version."""
    server.weft("data", "add", "faces", str(faces))
    writes = (
        "import os\n"
        "for name in ('large.bin', '0/0000.bin'):\n"
        "    path = os.path.join(os.environ['DATA_DIR'], 'faces', name)\n"
        "    try:\n"
        "        os.chmod(path, 0o666)\n"
        "        with open(path, 'r+b') as file: file.write(b'changed')\n"
        "        print('written')\n"
        "    except OSError as problem: print(problem.strerror)\n"
    )
    for isolation, said in (("sandbox", "Read-only file system"), ("process", "written")):
        if isolation == "sandbox" and shutil.which("bwrap") is None:
            continue  # tests of sandboxes say that it is missing
        server.run(reads(server, isolation, python(writes), isolation=isolation))
        assert server.text(isolation) == [said] * 2, server.story(isolation)
    assert "all as they should be" in server.weft("data", "verify", "faces").stdout
    server.run(reads(server, "reader", python(READ)))
    assert server.text("reader") == [expected(faces)]


def test_a_folder_becomes_a_version_that_jobs_read_as_samples_and_as_files(
    server: Server, faces: Path
) -> None:
    added = server.weft("data", "add", "faces", str(faces))
    assert "201 samples" in added.stdout
    assert "weft run --data faces" in added.stderr
    version = dataset(server)["status"]["version"]
    assert server.run(reads(server, "samples", python(READ)))["status"]["state"] == "COMPLETED", server.story(
        "samples"
    )
    assert server.text("samples") == [expected(faces)]
    count = "find -L $DATA_DIR/faces -type f | wc -l; cmp $DATA_DIR/faces/large.bin " + str(
        faces / "large.bin"
    )
    ended = server.run(reads(server, "files", sh(count)))
    assert ended["status"]["state"] == "COMPLETED", server.story("files")
    assert server.text("files") == ["201"]
    assert ended["status"]["datasets"] == [["faces", version]]
    until(lambda: agents(server) == [], "the agent to end when nobody reads", 30, every=0.1)


def test_a_source_that_changes_makes_a_version_and_who_reads_keeps_to_its_own(
    server: Server, faces: Path
) -> None:
    server.weft("data", "add", "faces", str(faces))
    first, before = dataset(server)["status"]["version"], expected(faces)
    halfway = (
        READ
        + "import time\nwhile not os.path.exists(os.environ['CHECKPOINT_DIR'] + '/go'): time.sleep(0.05)\n"
    )
    again = (
        halfway + "again = {s.name: hashlib.sha256(s.data).hexdigest() for s in data}\nassert again == read\n"
    )
    server.submit(reads(server, "old", python(again)))
    server.printed_line("old", "201")
    (faces / "0" / "0000.bin").write_bytes(b"other")
    (faces / "new.bin").write_bytes(b"new")
    server.weft("data", "refresh", "faces")
    status = dataset(server)["status"]
    assert [each["version"] for each in status["versions"]] == [status["version"], first]
    assert status["versions"][1]["readers"] == ["old"]
    server.run(reads(server, "new", python(READ)))
    assert server.text("new") == [expected(faces)]
    server.run(reads(server, "pinned", python(READ), datasets=[{"name": "faces", "version": first[:12]}]))
    assert server.text("pinned") == [before]
    refused = server.weft("data", "rm", "faces", check=False)
    assert refused.returncode != 0
    assert "is in use: old" in refused.stderr
    Path(server.folder("old"), "checkpoints", "go").touch()
    assert server.wait_for("old")["status"]["state"] == "COMPLETED", server.story("old")
    server.weft("data", "rm", "faces")
    assert list((server.home / "datasets" / "versions").iterdir()) == []
    assert list((server.home / "datasets" / "parts").glob("*/*")) == []


def test_bytes_are_proven(server: Server, faces: Path) -> None:
    server.weft("data", "add", "faces", str(faces))
    assert "all as they should be" in server.weft("data", "verify", "faces").stdout
    part = max((server.home / "datasets" / "parts").glob("*/*"), key=lambda file: file.stat().st_size)
    part.chmod(0o600)
    with part.open("r+b") as file:
        file.seek(1000)
        byte = file.read(1)
        file.seek(1000)
        file.write(bytes([byte[0] ^ 1]))
    damaged = server.weft("data", "verify", "faces", check=False)
    assert damaged.returncode == 1
    assert "is damaged" in damaged.stderr


def test_pull_brings_every_file_back(server: Server, faces: Path, tmp_path: Path) -> None:
    server.weft("data", "add", "faces", str(faces))
    server.weft("data", "pull", "faces", str(tmp_path / "out"))
    assert expected(tmp_path / "out") == expected(faces)


def test_outputs_are_datasets_with_their_lineage(server: Server, faces: Path) -> None:
    server.weft("data", "add", "faces", str(faces))
    train = "mkdir $RESULT_DIR/model; ls $DATA_DIR/faces > $RESULT_DIR/model/classes.txt"
    document = reads(server, "train", sh(train), outputs=[{"dataset": "faces-model", "path": "model"}])
    assert server.run(document)["status"]["state"] == "COMPLETED", server.story("train")
    made = dataset(server, "faces-model")["status"]["versions"][0]
    assert made["lineage"]["job"] == "train"
    assert made["lineage"]["inputs"] == {"faces": dataset(server)["status"]["version"]}
    shown = server.weft("data", "lineage", "faces-model").stdout.splitlines()
    assert [line.strip(" └─◄").partition("@")[0] for line in shown] == ["faces", "job/train", "faces-model"]
    ended = server.run(
        sh("cat $DATA_DIR/m/classes.txt", name="use", datasets=[{"name": "faces-model", "as": "m"}])
    )
    assert ended["status"]["state"] == "COMPLETED", server.story("use")
    assert "large.bin" in server.text("use")


def test_a_dataset_outlives_the_job_that_made_it_but_is_not_made_again_without_it(server: Server) -> None:
    server.run(sh("echo 1 > $RESULT_DIR/x", name="prep"), "COMPLETED")
    server.weft("data", "add", "made", "--from-job", "prep")
    server.delete("prep")
    again = server.weft("data", "refresh", "made", check=False)
    assert again.returncode != 0
    assert "there is no job prep, whose results it is made of" in again.stderr
    assert "there is no job prep" in dataset(server, "made")["status"]["reason"]
    server.run(sh("cat $DATA_DIR/made/x", name="reads", datasets=[{"name": "made"}]), "COMPLETED")
    assert "Traceback" not in server.printed()


def test_a_command_can_be_a_source(server: Server) -> None:
    added = server.weft("data", "add", "made", "--command", "sh -c 'seq 5 > $RESULT_DIR/numbers.txt'")
    assert "1 samples" in added.stdout
    made = dataset(server, "made")["status"]["versions"][0]
    assert made["lineage"]["job"].startswith("data-made-")
    assert server.run(sh("cat $DATA_DIR/made/numbers.txt", name="r", datasets=[{"name": "made"}]))
    assert server.text("r") == ["1", "2", "3", "4", "5"]


def test_a_job_that_names_no_dataset_there_is_or_may_read_is_refused(server: Server, faces: Path) -> None:
    server.weft("data", "add", "faces", str(faces), "--project", "vision")
    for project, name in ((None, "faces"), ("speech", "faces"), ("vision", "face")):
        document = sh("true", name="x", datasets=[{"name": name}])
        document["metadata"] |= {"project": project} if project else {}
        answer = server.post("/v1/jobs", document)
        assert answer.status == 422
        assert "no such dataset" in answer.body.decode()
    shared = ("--project", "vision", "--share-with", "speech")
    server.weft("data", "add", "faces", str(faces), *shared)
    for project in ("vision", "speech"):
        document = sh("true", name=project, datasets=[{"name": "faces"}])
        document["metadata"]["project"] = project
        assert server.run(document)["status"]["state"] == "COMPLETED", server.story(project)
    server.weft(
        "data", "add", "faces", str(faces), "--project", "vision"
    )  # shared no longer: a late start is refused
    document = sh("true", name="late", datasets=[{"name": "faces"}])
    document["metadata"]["project"] = "speech"
    assert server.post("/v1/jobs", document).status == 422


def of(project: str, document: dict[str, Any]) -> dict[str, Any]:
    document["metadata"]["project"] = project
    return document


def test_what_is_another_projects_is_not_to_be_had_by_way_of_results(server: Server, faces: Path) -> None:
    """Neither read as a dataset's source, nor written to as a job's output."""
    server.weft("data", "add", "faces", str(faces), "--project", "vision")
    server.run(of("vision", sh("echo secret > $RESULT_DIR/x", name="prep")), "COMPLETED")
    taken = server.weft("data", "add", "taken", "--from-job", "prep", "--project", "speech", check=False)
    assert taken.returncode != 0
    assert "job prep is of project vision: its results are that project's" in taken.stderr
    server.weft("data", "add", "own", "--from-job", "prep", "--project", "vision")
    answer = server.post("/v1/jobs", of("speech", sh("true", name="x", outputs=[{"dataset": "faces"}])))
    assert answer.status == 422
    assert "spec.outputs[0].dataset" in answer.body.decode()
    assert len(server.get("/v1/datasets/faces").json["status"]["versions"]) == 1


def test_a_job_that_is_resumed_when_its_dataset_is_shared_no_longer_is_refused(
    server: Server, faces: Path
) -> None:
    where = ("data", "add", "faces", str(faces), "--project", "vision")
    server.weft(*where, "--share-with", "speech")
    server.submit(of("speech", sh("echo up; sleep 100", name="guest", datasets=[{"name": "faces"}])))
    server.printed_line("guest", "up")
    assert server.ask("guest", "halt").status == 200
    server.wait_for("guest", "HALTED")
    server.weft(*where)
    assert server.ask("guest", "resume").status == 200
    failure = server.wait_for("guest", "FAILED")["status"]["failure"]
    assert (failure["code"], "may read" in failure["message"]) == ("DATA", True)


def test_a_source_that_cannot_be_read_is_told_and_fails_the_job_that_needs_it(
    server: Server, tmp_path: Path
) -> None:
    failed = server.weft("data", "add", "none", str(tmp_path / "none"), check=False)
    assert failed.returncode != 0
    assert "dataset none cannot be read" in failed.stderr
    assert str(tmp_path / "none") in failed.stderr
    ended = server.run(sh("true", name="x", datasets=[{"name": "none"}]))
    assert ended["status"]["failure"]["code"] == "DATA"
    assert "dataset none cannot be read" in ended["status"]["failure"]["message"]


def test_reading_survives_a_kill_of_the_agent_and_of_the_server(server: Server, faces: Path) -> None:
    server.weft("data", "add", "faces", str(faces))
    slow = (
        "import hashlib, time, weft\n"
        "for epoch in range(30):\n"
        "    data = weft.data('faces', shuffle=True, epoch=epoch)\n"
        "    n = sum(1 for sample in data)\n"
        "    assert n == 201, n\n"
        "    print('epoch', epoch, flush=True)\n"
        "    time.sleep(0.1)\n"
    )
    server.submit(reads(server, "slow", python(slow)))
    server.printed_line("slow", "epoch 2")
    (agent,) = agents(server)
    os.kill(agent, signal.SIGKILL)
    server.printed_line("slow", "epoch 10")
    server.kill()
    (agent,) = until(lambda: agents(server), "an agent", 30, every=0.05)
    os.kill(agent, signal.SIGKILL)
    server.start()
    assert server.wait_for("slow")["status"]["state"] == "COMPLETED", server.story("slow")
    assert server.text("slow") == [f"epoch {n}" for n in range(30)]


def test_ranks_share_an_epoch(server: Server, faces: Path) -> None:
    server.weft("data", "add", "faces", str(faces))
    script = "import weft\nfor sample in weft.data('faces', shuffle=True): print(sample.name)\n"
    document = reads(
        server,
        "shared",
        python(script),
        datasets=[{"name": "faces", "mode": "shard"}],
        roles={"worker": {"replicas": 3, "resources": {"cpu": 0.5}}},
    )
    assert server.run(document)["status"]["state"] == "COMPLETED", server.story("shared")
    names = server.text("shared")
    assert sorted(names) == sorted(str(p.relative_to(faces)) for p in faces.rglob("*") if p.is_file())
    by_task = {line["task"] for line in server.logs("shared", limit=10_000)}
    assert len(by_task) == 3


def test_objects_that_stay_in_their_bucket_are_read_through_the_agent(server: Server, faces: Path) -> None:
    """The large one is never in the store: its bytes come by ranges, are cached once, and proven by their mark."""
    from support.s3 import s3

    with s3() as bucket:
        bucket.client().create_bucket(Bucket="bucket")
        for path in faces.rglob("*"):
            if path.is_file():
                bucket.put(f"faces/{path.relative_to(faces)}", path.read_bytes())
        keys = [f"{key}={value}" for key, value in bucket.credentials.items()]
        server.weft("secrets", "set", "s3-creds", *keys)
        added = server.weft(
            "data",
            "add",
            "faces",
            "s3://bucket/faces/",
            "--endpoint",
            bucket.url,
            "--secret",
            "s3-creds",
        )
        assert "201 samples" in added.stdout
        stored = sum(part.stat().st_size for part in (server.home / "datasets" / "parts").glob("*/*"))
        assert stored < (faces / "large.bin").stat().st_size + 4_000_000
        assert server.run(reads(server, "a", python(READ)))["status"]["state"] == "COMPLETED", server.story(
            "a"
        )
        assert server.text("a") == [expected(faces)]
        assert "1 of them at their source" in server.weft("data", "verify", "faces").stdout
        server.weft("data", "pull", "faces", str(faces.parent / "out"))
        assert expected(faces.parent / "out") == expected(faces)
        bucket.put("faces/large.bin", b"changed since")
        damaged = server.weft("data", "verify", "faces", check=False)
        assert damaged.returncode == 1
        assert "object large.bin" in damaged.stderr
        refused = server.weft("data", "pull", "faces", str(faces.parent / "again"), check=False)
        assert refused.returncode == 1
        assert "large.bin" in refused.stderr
        assert not (faces.parent / "again" / "large.bin").exists()
        ended = server.run(reads(server, "b", python(READ)))
        assert ended["status"]["state"] == "COMPLETED", server.story("b")  # it lies in the cache
        assert server.text("b") == [expected(faces)]
        everything = "".join(
            path.read_text(errors="replace")
            for path in server.home.rglob("*")
            if path.is_file() and path.suffix != ".json"
        )
        assert bucket.credentials["secretAccessKey"] not in everything


class Following:
    """`weft logs -f`, and what it shows besides the log."""

    def __init__(self, server: Server, job: str, terminal: bool):
        self._shown, theirs = pty.openpty() if terminal else os.pipe()
        command = [str(Path(sys.executable).parent / "weft"), "logs", "-f", job]
        environment = {**os.environ, "WEFT_HOME": str(server.home), "COLUMNS": "200"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs, env=environment
        )
        os.close(theirs)
        self._text = ""

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._shown)

    def until(self, text: str) -> str:
        while text not in self._text and (more := self._more()):
            self._text += more
        return self._text

    def rest(self) -> str:
        while more := self._more():
            self._text += more
        return self._text

    def _more(self) -> str:
        try:
            return os.read(self._shown, 4096).decode()
        except OSError:  # nobody has the terminal any more
            return ""


def test_a_job_that_waits_for_a_download_says_how_far_it_is(server: Server) -> None:
    """In its status, in lines, and as a bar where there is a terminal; then there is nothing left of it."""
    with web() as source:
        source.files = {f"/{number}": os.urandom(3 << 20) for number in range(4)}
        source.files["/SHA256SUMS"] = source.sums()
        source.rate, source.most = 4 << 20, 5 << 20  # some, then no more until it is told to
        server.weft("data", "add", "far", f"{source.url}/", "--detach")
        server.submit(sh("ls $DATA_DIR/far | wc -l", name="waits", datasets=[{"name": "far"}]))

        def far() -> dict[str, Any] | None:
            status = server.status("waits")
            told = status["state"] == "DOWNLOADING" and status.get("progress")
            return told if told and told["bytes"] else None

        begun = until(far, "some of it to have come")
        assert (begun["what"], begun["allBytes"]) == ("reading dataset far", 12 << 20)
        assert 0 < begun["bytes"] < 12 << 20
        assert 0 < begun["rate"] < 12 << 20
        source.most += 4 << 20
        until(lambda: (now := far()) and now["bytes"] > begun["bytes"], "more of it")
        text = r"reading dataset far: {}\d[\d.]* [KM]iB of 12 MiB \(\d+%\), \d[\d.]* [KM]iB/s"
        with Following(server, "waits", False) as lines, Following(server, "waits", True) as drawn:
            assert re.search(text.format(""), lines.until("iB/s"))
            assert re.search(text.format(r"\[#*-*\] "), drawn.until("iB/s"))
            source.hurry()
            assert server.wait_for("waits")["status"]["state"] == "COMPLETED", server.story("waits")
            assert drawn.rest().rpartition("iB/s")[2].startswith("\r\x1b[K"), "the bar is gone"
        assert server.text("waits") == ["4"]
        assert server.status("waits").get("progress") is None


def test_a_halted_job_keeps_its_version_and_reads_it_again_when_resumed(server: Server, faces: Path) -> None:
    server.weft("data", "add", "faces", str(faces))
    before = expected(faces)
    waits = (
        READ
        + "import time\nwhile not os.path.exists(os.environ['CHECKPOINT_DIR'] + '/go'): time.sleep(0.05)\n"
    )
    server.submit(reads(server, "old", python(waits)))
    server.printed_line("old", "201")
    server.ask("old", "halt")
    server.wait_for("old", "HALTED")
    (faces / "new.bin").write_bytes(b"new")
    server.weft("data", "refresh", "faces")
    refused = server.weft("data", "rm", "faces", check=False)
    assert "is in use: old" in refused.stderr
    assert server.ask("old", "resume").status == 200
    Path(server.folder("old"), "checkpoints", "go").touch()
    assert server.wait_for("old", "COMPLETED")["status"]["state"] == "COMPLETED"
    assert server.text("old") == [before, before]
    server.weft("data", "rm", "faces")


def mount_secret(folder: Path, moment: str, **keys: str) -> None:
    """As kubelet does, also when the Secret has changed: all keys at once, by one link."""
    (folder / f"..{moment}").mkdir(parents=True)
    for key, value in keys.items():
        (folder / f"..{moment}" / key).write_text(value)
        if not (folder / key).is_symlink():
            (folder / key).symlink_to(f"..data/{key}")
    (folder / "..new").symlink_to(f"..{moment}")
    (folder / "..new").replace(folder / "..data")


def test_a_secret_that_is_mounted_is_read_where_it_is_and_kept_nowhere(server: Server) -> None:
    folder = server.home / "secrets" / "door"
    mount_secret(folder, "1", token="sesame-1")
    assert server.get("/v1/secrets").json["items"] == [{"name": "door", "keys": ["token"]}]
    with web() as source:
        source.files["/far.bin"] = random.Random(3).randbytes(5 << 20)
        source.secret = "Bearer sesame-1"
        server.weft("data", "add", "far", f"{source.url}/far.bin", "--secret", "door")
        reads = {"datasets": [{"name": "far", "files": False}]}
        script = "import weft\nprint(sum(len(sample.data) for sample in weft.data('far')))\n"
        server.run(python(script, name="first", **reads))
        assert server.text("first") == [str(5 << 20)], server.story("first")
        source.secret = "Bearer sesame-2"
        mount_secret(folder, "2", token="sesame-2")
        server.weft("data", "verify", "far")
    for method, body in (("PUT", {"data": {"token": "x"}}), ("DELETE", None)):
        refused = server.call(method, "/v1/secrets/door", body)
        assert refused.status == 422
        assert "it is mounted" in refused.body.decode()
    assert (folder / "token").read_text() == "sesame-2"
    assert b"sesame" not in server.get("/v1/backup", files=True).body
    kept = [path for path in server.home.rglob("*") if path.is_file() and folder not in path.parents]
    assert not [path for path in kept if b"sesame" in path.read_bytes()]
