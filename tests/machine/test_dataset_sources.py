"""What a Dataset declares, with a real server: where its data comes from, how often it is looked at, what is kept and cached."""

from __future__ import annotations

import hashlib
import json
import random
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Server, nothing_left, python, sh, until

from support.postgres import PASSWORD, NotInstalled, postgres
from support.s3 import KEYS, s3
from support.web import web

pytestmark = pytest.mark.machine

DECLARED = """
apiVersion: weft.dev/v1
kind: Dataset
metadata: {{name: notes}}
spec:
  source: {{url: "file://{folder}"}}
  refresh: 1s
  keep: 2
  cache: {{policy: lru, quota: 1Mi}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("sources") / "home"
    made = Server(home, ("--nodes", "1", "--cpu", "2", "--memory", "2Gi", "--cache", "8Mi"))
    made.start()
    yield made
    for name in [job["metadata"]["name"] for job in made.get("/v1/jobs").json["items"]]:
        made.delete(name)
    until(lambda: made.get("/v1/jobs").json["total"] == 0, "all jobs to be gone", 60, every=0.1)
    made.stop()
    assert nothing_left(made) == []


def versions(server: Server, name: str) -> list[str]:
    return [each["version"] for each in server.get(f"/v1/datasets/{name}").json["status"]["versions"]]


def test_a_file_says_how_often_to_look_how_much_to_keep_and_how_to_cache(
    server: Server, tmp_path: Path
) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a").write_text("one\n")
    (tmp_path / "notes.yaml").write_text(DECLARED.format(folder=folder))
    server.weft("apply", "-f", str(tmp_path / "notes.yaml"))
    first = until(lambda: versions(server, "notes"), "it to be read")
    (folder / "a").write_text("two\n")
    second = until(lambda: len(found := versions(server, "notes")) == 2 and found, "a new version by itself")
    assert second[1:] == first
    (folder / "a").write_text("three\n")
    third = until(
        lambda: (found := versions(server, "notes"))[1:] == second[:1] and found,
        "another, of which two are kept",
    )
    assert "lru, at most 1Mi" in server.weft("data", "show", "notes").stdout
    wait = "while ! test -e $CHECKPOINT_DIR/go; do sleep 0.02; done"
    wants = [{"name": "notes", "version": third[1]}]
    server.submit(sh(f"cat $DATA_DIR/notes/a; {wait}", name="reads", datasets=wants))
    server.printed_line("reads", "two")
    (file,) = (server.home / "datacache").glob("*/books.sqlite")
    with sqlite3.connect(file) as books:
        ((granted,),) = books.execute("select versions from grants").fetchall()
    (terms,) = json.loads(granted).values()
    assert (terms["policy"], terms["quota"]) == ("lru", 1 << 20)
    Path(server.folder("reads"), "checkpoints", "go").touch()
    assert server.wait_for("reads")["status"]["state"] == "COMPLETED", server.story("reads")
    server.weft("data", "rm", "notes")


def of_git(server: Server, folder: Path) -> Iterator[tuple[str, ...]]:
    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q")
    (folder / "a").write_text("one\n")
    git("add", "a")
    git("commit", "-qm", "a")
    commit = git("rev-parse", "HEAD")
    (folder / "a").write_text("since\n")
    git("commit", "-qam", "b")
    yield (f"git+file://{folder}@{commit}",)


def of_sql(server: Server, folder: Path) -> Iterator[tuple[str, ...]]:
    try:
        with postgres() as database:
            server.weft("secrets", "set", "db", "user=postgres", f"password={PASSWORD}")
            query = "select 1 as one union all select 2 order by one"
            yield "--sql", database.url, "--query", query, "--secret", "db"
    except NotInstalled as problem:
        pytest.skip(str(problem))


def of_a_command(server: Server, folder: Path) -> Iterator[tuple[str, ...]]:
    yield "--command", "sh -c 'echo made > $RESULT_DIR/a'", "--policy", "lru", "--quota", "1Mi"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (of_git, ["one"]),
        (of_sql, ['{"one":1}', '{"one":2}']),
        (of_a_command, ["made"]),
    ],
    ids=["git", "sql", "command"],
)
def test_a_source_is_read_by_the_server_and_given_to_a_job(
    server: Server,
    tmp_path: Path,
    source: Callable[[Server, Path], Iterator[tuple[str, ...]]],
    says: list[str],
) -> None:
    name = f"of-{source.__name__.rpartition('_')[2]}"
    for words in source(server, tmp_path):
        server.weft("data", "add", name, *words)
        spec: dict[str, Any] = server.get(f"/v1/datasets/{name}").json["spec"]
        if "--quota" in words:
            assert spec["cache"] == {"policy": "lru", "quota": "1Mi"}
        server.run(sh(f"cat $DATA_DIR/{name}/*", name=name, datasets=[{"name": name}]))
        assert [line.replace(" ", "") for line in server.text(name)] == says, server.story(name)


def test_a_dataset_in_place_leaves_nothing_in_the_store_and_is_read_and_cached_by_nodes(
    server: Server, tmp_path: Path
) -> None:
    """So it may be larger than the server's disk: small objects, too, stay in their bucket."""
    chance = random.Random(4)
    content = {f"{number % 3}/{number:03}": chance.randbytes(20_000 + number) for number in range(120)}
    with s3() as bucket:
        bucket.client().create_bucket(Bucket="bucket")
        for name, data in content.items():
            bucket.put(f"films/{name}", data)
        server.weft("secrets", "set", "s3", *(f"{key}={value}" for key, value in KEYS.items()))
        url = ("s3://bucket/films/", "--endpoint", bucket.url, "--secret", "s3")
        server.weft("data", "add", "films", *url, "--in-place", "--quota", "1Mi")
        about = server.get("/v1/datasets/films").json
        assert about["spec"]["inPlace"] is True
        version = about["status"]["version"]
        table = json.loads((server.home / "datasets/versions" / version / "version.json").read_text())
        kept = [
            server.home / "datasets/parts" / part["digest"][:2] / part["digest"] for part in table["parts"]
        ]
        assert [path for path in kept if path.exists()] == []
        script = (
            "import hashlib, weft\n"
            "for epoch in range(2):\n"
            "    data = weft.data('films', shuffle=True, epoch=epoch)\n"
            "    print(hashlib.sha256(b''.join(s.data for s in sorted(data))).hexdigest(), flush=True)\n"
            "print(hashlib.sha256(weft.data('films')['1/004'].data).hexdigest())\n"
        )
        whole = hashlib.sha256(b"".join(content[name] for name in sorted(content))).hexdigest()
        one = hashlib.sha256(content["1/004"]).hexdigest()
        server.run(python(script, name="watches", datasets=[{"name": "films", "mode": "stream"}]))
        assert server.text("watches") == [whole, whole, one], server.story("watches")
        (node,) = server.get("/v1/datasets/films").json["status"]["cached"]
        assert sum(node["versions"].values()) <= 1 << 20
        server.weft("data", "pull", "films", str(tmp_path / "pulled"))
        pulled = {
            str(path.relative_to(tmp_path / "pulled")): path for path in (tmp_path / "pulled").rglob("*/*")
        }
        assert {name: path.read_bytes() for name, path in pulled.items()} == content
        assert (
            "120 of them at their source, by size and mark), all as they should be"
            in server.weft("data", "verify", "films").stdout
        )
        bucket.put("films/1/004", bytes(20_004))
        damaged = server.weft("data", "verify", "films", check=False)
        assert damaged.returncode != 0
        assert "1/004" in damaged.stdout + damaged.stderr
        script = "import weft\nweft.data('films')['1/004']"
        server.run(python(script, name="late", datasets=[{"name": "films", "mode": "stream"}]), "FAILED")
        assert "films/1/004" in server.text("late")[-1]
        assert "changed since it was listed" in server.text("late")[-1]
    server.delete("late")
    server.delete("watches")
    refused = server.weft("data", "add", "local", str(tmp_path), "--in-place", check=False)
    assert "spec.inPlace: is for s3:// and https:// sources" in refused.stderr


def test_a_dataset_that_is_declared_otherwise_is_read_again(server: Server, tmp_path: Path) -> None:
    """In place or by another secret: what is read then is another version, or can be read only then."""
    with s3() as bucket:
        bucket.client().create_bucket(Bucket="bucket")
        bucket.put("clips/a", b"one")
        server.weft("secrets", "set", "s3", *(f"{key}={value}" for key, value in KEYS.items()))
        url = ("data", "add", "clips", "s3://bucket/clips/", "--endpoint", bucket.url)
        refused = server.weft(*url, "--secret", "nobody", check=False)
        assert "there is no secret nobody" in refused.stderr
        copied = server.weft(*url, "--secret", "s3").stdout
        assert "1 samples" in copied
        assert "1 samples" in server.weft(*url, "--secret", "s3", "--in-place").stdout
        newest, before = versions(server, "clips")
        assert before[:12] in copied
        table = json.loads((server.home / "datasets/versions" / newest / "version.json").read_text())
        assert [part["place"]["kind"] for part in table["parts"]] == ["source"]
    server.weft("data", "rm", "clips")


def test_what_could_not_be_read_is_read_when_it_is_declared_again(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "late"
    assert str(folder) in server.weft("data", "add", "late", str(folder), check=False).stderr
    folder.mkdir()
    (folder / "a").write_text("here\n")
    assert "1 samples" in server.weft("data", "add", "late", str(folder)).stdout
    server.weft("data", "rm", "late")


def test_a_dataset_that_is_declared_otherwise_while_it_is_read_is_read_again_after_that(
    server: Server, tmp_path: Path
) -> None:
    (tmp_path / "near").write_text("near\n")
    with web() as source:
        source.files = {"/far": bytes(1 << 20)}
        source.rate, source.most = 4 << 20, 1 << 10
        server.weft("data", "add", "moved", f"{source.url}/far", "--detach")
        server.weft("data", "add", "moved", str(tmp_path / "near"), "--detach")
        assert server.get("/v1/datasets/moved").json["status"]["state"] == "READING"
        source.hurry()
        newest, _ = until(lambda: len(found := versions(server, "moved")) == 2 and found, "both to be read")
    table = json.loads((server.home / "datasets/versions" / newest / "version.json").read_text())
    assert table["bytes"] == len("near\n")
    server.weft("data", "rm", "moved")
