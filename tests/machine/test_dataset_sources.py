"""What a Dataset declares, with a real server: where its data comes from, how often it is looked at, what is kept and cached."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Server, nothing_left, sh, until

from support.postgres import PASSWORD, NotInstalled, postgres

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
