"""Datasets on three virtual nodes, each with a cache of its own: placed by, brought to, divided among and mounted on them."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Server, nothing_left, parent_of, python, sh, until

from weft.model.status import State

pytestmark = pytest.mark.machine

NODES = [f"local-{number}" for number in range(3)]
GO = "import os, time\nwhile not os.path.exists(os.environ['CHECKPOINT_DIR'] + '/go'): time.sleep(0.02)\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("nodes")
    made = Server(folder / "home", ("--nodes", "3", "--cpu", "6", "--memory", "6Gi", "--cache", "64Mi"))
    made.start()
    made.weft("data", "add", "faces", str(faces(folder / "faces")), "--pack", "none")
    yield made
    for name in [job["metadata"]["name"] for job in made.get("/v1/jobs").json["items"]]:
        made.delete(name)
    until(lambda: made.get("/v1/jobs").json["total"] == 0, "all jobs to be gone", 60, every=0.1)
    made.stop()
    assert mounts(made) == []
    assert nothing_left(made) == []


def faces(folder: Path) -> Path:
    r = random.Random(1)
    for number in range(60):
        place = folder / f"{number % 7}" / f"{number:04}.bin"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(r.randbytes(10_000 + r.randrange(50_000)))
    return folder


def folder_of(server: Server) -> Path:
    return server.home.parent / "faces"


def expected(server: Server) -> str:
    files = sorted(path for path in folder_of(server).rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def mounts(server: Server) -> list[str]:
    return [
        line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if str(server.home) in line
    ]


def cached(server: Server) -> dict[str, dict[str, Any]]:
    status = server.get("/v1/datasets/faces").json["status"]
    return {each["node"]: each for each in status["cached"]}


def held(server: Server) -> dict[str, int]:
    return {node: sum(each["versions"].values()) for node, each in cached(server).items()}


def size(server: Server) -> int:
    return int(server.get("/v1/datasets/faces").json["status"]["versions"][0]["bytes"])


def node_of(server: Server, name: str) -> str:
    return str(server.status(name)["tasks"][0]["binding"]["node"])


def go(server: Server, name: str) -> None:
    Path(server.folder(name), "checkpoints", "go").touch()


def completed(server: Server, name: str) -> None:
    ended = server.wait_for(name)
    assert ended["status"]["state"] == State.COMPLETED, (server.story(name), server.text(name))


def test_a_dataset_is_brought_to_a_node_and_jobs_go_there_but_do_not_wait_for_it(server: Server) -> None:
    warmed = server.weft("data", "warm", "faces", "--node", "local-1")
    assert warmed.stdout.startswith("local-1 holds ")
    assert "no room" not in warmed.stdout
    assert held(server) == {"local-1": size(server)}
    reads: dict[str, Any] = {
        "datasets": [{"name": "faces", "files": False}],
        "roles": {"worker": {"resources": {"cpu": 2, "memory": "1Gi"}}},
    }
    script = "import weft\nprint(sum(len(sample.data) for sample in weft.data('faces')), flush=True)\n"
    server.submit(python(script + GO, name="there", **reads))
    server.printed_line("there", str(size(server)))
    assert node_of(server, "there") == "local-1"
    reading = cached(server)["local-1"]
    assert (reading["hits"], reading["misses"]) == (60, 0)
    assert reading["remoteBytes"] == size(server)  # it came once, before the job
    shown = server.weft("data", "show", "faces").stdout
    (line,) = (line.split() for line in shown.splitlines() if line.startswith("local-1 "))
    assert "100.0%" in line
    (line,) = (line.split() for line in shown.splitlines() if "its source" in line)
    assert (line[0], line[-1]) == (server.status("there")["datasets"][0][1][:12], "there")
    server.submit(python(script, name="elsewhere", **reads))  # the node is full now
    completed(server, "elsewhere")
    assert node_of(server, "elsewhere") != "local-1"
    go(server, "there")
    completed(server, "there")


def test_warm_says_what_is_wrong(server: Server) -> None:
    nowhere = server.weft("data", "warm", "faces", check=False)
    assert "--node NODE or --all" in nowhere.stderr
    unknown = server.weft("data", "warm", "faces", "--node", "local-9", check=False)
    assert unknown.returncode != 0
    assert "there is no node local-9" in unknown.stderr
    assert server.post("/v1/datasets/faces/warm", {"nodes": [], "all": False}).status == 422
    assert server.post("/v1/datasets/faces/warm", {"nodes": 3}).status == 422
    assert server.post("/v1/datasets/none/warm", {"all": True}).status == 404


def test_a_dataset_is_divided_among_the_nodes_of_a_job_and_anew_when_there_are_fewer_or_more(
    server: Server,
) -> None:
    """Whoever begins an epoch divides it among those who are there: none of a task's samples go with it."""
    parts = folder_of(server).with_name("parts")
    for path in sorted(faces(parts).rglob("*.bin")):  # no part of it is in a cache yet
        path.write_bytes(path.read_bytes() + b"!")
    server.weft("data", "add", "parts", str(parts), "--pack", "none")
    script = (
        "import os, time, weft\n"
        "epochs = os.environ['CHECKPOINT_DIR']\n"
        "data = weft.data('parts', shuffle=True, epoch=len(os.listdir(epochs)))\n"
        "while data.current_epoch < 3:\n"
        "    epoch = data.current_epoch\n"
        "    print(f'before {epoch}', flush=True)\n"
        "    while not os.path.exists(f'{epochs}/{epoch}'): time.sleep(0.02)\n"
        "    for sample in data: print(epoch, sample.name, flush=True)\n"
    )
    each = {"cpu": 2, "memory": "1Gi"}
    roles = {"worker": {"replicas": 3, "minReplicas": 1, "maxReplicas": 3, "resources": each}}
    wants = [{"name": "parts", "mode": "shard"}]
    server.submit(python(script, name="divided", datasets=wants, roles=roles, resize="live"))
    names = sorted(str(path.relative_to(parts)) for path in parts.rglob("*") if path.is_file())

    def run(epoch: int, tasks: int) -> None:
        """Every sample comes once, to one of so many tasks."""

        def lines(begin: str) -> list[dict[str, Any]]:
            told = server.logs("divided", limit=10_000)
            return [line for line in told if line["text"].startswith(begin)]

        staying = {task["name"] for task in server.status("divided")["tasks"] if task["state"] == "RUNNING"}
        until(lambda: staying <= {line["task"] for line in lines(f"before {epoch}")}, "all to be there")
        Path(server.folder("divided"), "checkpoints", str(epoch)).touch()
        until(lambda: len(lines(f"{epoch} ")) >= len(names), f"epoch {epoch}")
        assert sorted(line["text"].removeprefix(f"{epoch} ") for line in lines(f"{epoch} ")) == names
        assert {line["task"] for line in lines(f"{epoch} ")} == staying
        assert len(staying) == tasks

    def running() -> int:
        status = server.status("divided")
        tasks = [task for task in status["tasks"] if task["state"] == "RUNNING"]
        return len(tasks) if status["state"] == State.PROCESSING else 0

    until(lambda: running() == 3, "three tasks")
    run(0, tasks=3)
    whole = server.get("/v1/datasets/parts").json["status"]["versions"][0]["bytes"]

    def held_by_each() -> list[int]:
        status = server.get("/v1/datasets/parts").json["status"]
        assert sum(each["remoteBytes"] for each in status["cached"]) == whole  # each part left the store once
        assert sum(each["peerBytes"] for each in status["cached"]) > 0  # and went from node to node
        return [sum(each["versions"].values()) for each in status["cached"]]

    until(lambda: sum(held_by_each()) == whole, "all nodes together to hold it once")
    assert min(held_by_each()) > 0
    assert shares(server, "local-0") == [NODES]
    assert server.post("/v1/jobs/divided/scale", {"roles": {"worker": 2}}).status == 200
    until(lambda: shares(server, "local-0") in ([NODES[:2]], [NODES[::2]]), "two nodes to share")
    until(lambda: running() == 2, "two tasks")
    run(1, tasks=2)
    assert server.post("/v1/jobs/divided/scale", {"roles": {"worker": 3}}).status == 200
    until(lambda: running() == 3 and shares(server, "local-0") == [NODES], "three tasks again")
    run(2, tasks=3)
    completed(server, "divided")
    assert server.weft("data", "rm", "parts").returncode == 0


def test_a_stream_ten_times_as_large_as_the_cache_comes_whole_and_nothing_leaves_for_it(
    tmp_path: Path,
) -> None:
    films, chance = tmp_path / "films", random.Random(3)
    films.mkdir()
    for number in range(100):
        (films / f"{number:03}").write_bytes(chance.randbytes(80_000 + chance.randrange(50_000)))
    server = Server(tmp_path / "home", ("--nodes", "1", "--cpu", "2", "--memory", "2Gi", "--cache", "1Mi"))
    server.start()
    try:
        server.weft("data", "add", "films", str(films), "--pack", "none")
        script = (
            "import hashlib, weft\n"
            "data = weft.data('films', shuffle=True)\n"
            "for epoch in range(2):\n"
            "    every = sorted(data)\n"
            "    print(epoch, hashlib.sha256(b''.join(sample.data for sample in every)).hexdigest(), flush=True)\n"
        )
        go_on = "".join(f"    {line}\n" for line in GO.splitlines())
        whole = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(films.iterdir()))).hexdigest()
        wants = [{"name": "films", "mode": "stream"}]
        server.submit(python(script + go_on, name="watches", datasets=wants))
        server.printed_line("watches", f"0 {whole}")

        def kept() -> dict[int, int]:
            """Inode and bytes of each part that the node has."""
            files = [path.stat() for path in (server.home / "datacache").glob("*/parts/*/*")]
            return {about.st_ino: about.st_size for about in files}

        first = kept()
        assert 800_000 < sum(first.values()) <= 1 << 20
        go(server, "watches")
        completed(server, "watches")
        assert server.text("watches") == [f"0 {whole}", f"1 {whole}"]
        assert kept() == first
    finally:
        server.stop()
    assert nothing_left(server) == []


def shares(server: Server, node: str) -> list[list[str] | None]:
    """Among whom the jobs that read there divide what they read."""
    with sqlite3.connect(server.home / "datacache" / node / "books.sqlite") as books:
        rows = books.execute("select versions from grants").fetchall()
    return [terms["share"] for (text,) in rows for terms in json.loads(text).values()]


def test_the_hit_ratio_of_an_epoch_is_what_the_cache_holds_of_the_dataset(server: Server) -> None:
    """From the second epoch on, to within 0.5 %, whatever was kept open, looked ahead for or asked for twice."""
    partly = folder_of(server).with_name("partly")
    partly.mkdir()
    chance = random.Random(2)
    for number in range(300):
        (partly / f"{number:03}").write_bytes(chance.randbytes(500 + chance.randrange(3000)))
    whole = sum(path.stat().st_size for path in partly.iterdir())
    server.weft("data", "add", "partly", str(partly), "--pack", "none", "--quota", str(whole * 65 // 100))
    script = (
        "import weft\n"
        "data = weft.data('partly', shuffle=True)\n"
        "for epoch in range(4):\n"
        "    print(epoch, sum(len(sample.data) for sample in data), flush=True)\n"
        "    if not epoch:\n"
    )
    go_on = "".join(f"        {line}\n" for line in GO.splitlines())
    wants = [{"name": "partly", "mode": "stream"}]
    server.submit(python(script + go_on + GO.replace("/go", "/end"), name="again", datasets=wants))

    def told(hits: int) -> float:
        """What the node says once it has heard of a whole epoch."""

        def heard() -> dict[str, Any] | None:
            cached = server.get("/v1/datasets/partly").json["status"]["cached"]
            whole = (each for each in cached if each["hits"] + each["misses"] == 300)
            return next((each for each in whole if each["hits"] >= hits), None)

        return float(until(heard, "an epoch to be counted", every=0.1)["hitRatio"])

    assert told(hits=0) == 0
    go(server, "again")
    server.printed_line("again", f"3 {whole}")
    assert told(hits=1) == pytest.approx(0.65, abs=0.005)

    def counted() -> dict[str, Any] | None:
        """What a node holds is counted a moment after it came."""
        (node,) = server.get("/v1/datasets/partly").json["status"]["cached"]
        held = node["heldRatio"] or 0.0
        return node if abs(held - node["hitRatio"]) < 0.0001 else None

    node = until(counted, "what is held to be what was hit", every=0.1)
    assert node["stallSeconds"] > 0
    assert node["peerBytes"] == 0
    (line,) = (
        line
        for line in server.weft("data", "show", "partly").stdout.splitlines()
        if line.startswith("local-")
    )
    assert re.search(r"\b6[45]\.\d%", line), line
    Path(server.folder("again"), "checkpoints", "end").touch()
    completed(server, "again")
    assert server.weft("data", "rm", "partly").returncode == 0


# ── mounted ──


def mountable() -> bool:
    return os.access("/dev/fuse", os.R_OK | os.W_OK) and os.geteuid() == 0


MOUNTED = (
    "import hashlib, os, time\n"
    "from pathlib import Path\n"
    "folder = Path(os.environ['DATA_DIR'], 'faces')\n"
    "def all():\n"
    "    files = sorted(path for path in folder.rglob('*') if path.is_file())\n"
    "    return hashlib.sha256(b''.join(path.read_bytes() for path in files)).hexdigest()\n"
    "print(all(), flush=True)\n"
)
needs_fuse = pytest.mark.skipif(not mountable(), reason="mounting needs /dev/fuse and root")


@needs_fuse
@pytest.mark.parametrize("isolation", ["process", "sandbox"])
def test_a_job_sees_a_mounted_dataset_as_files_and_leaves_no_mount(server: Server, isolation: str) -> None:
    if isolation == "sandbox" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed (apt-get install bubblewrap)")
    name = f"mounted-{isolation}"
    wrong = "try:\n    (folder / 'new').write_text('x')\nexcept OSError as problem: print(problem.errno)\n"
    server.run(
        python(MOUNTED + wrong, name=name, isolation=isolation, datasets=[{"name": "faces", "mode": "mount"}])
    )
    completed(server, name)
    assert server.text(name) == [expected(server), "30"]
    until(lambda: mounts(server) == [], "the mount to be gone")


@needs_fuse
def test_what_is_read_of_a_mount_is_fetched_then_and_stays_in_the_cache(server: Server) -> None:
    films = folder_of(server).with_name("films")
    for path in sorted(faces(films).rglob("*.bin")):  # no part of it is in a cache yet
        path.write_bytes(path.read_bytes() + b"?")
    server.weft("data", "add", "films", str(films), "--pack", "none")
    script = "import os\nfrom pathlib import Path\nprint(len(Path(os.environ['DATA_DIR'], 'films/0/0000.bin').read_bytes()))\n"
    server.run(python(script, name="watches", datasets=[{"name": "films", "mode": "mount"}]))
    completed(server, "watches")
    one = (films / "0" / "0000.bin").stat().st_size
    assert server.text("watches") == [str(one)]

    def held_of_it() -> list[int]:
        nodes = server.get("/v1/datasets/films").json["status"]["cached"]
        return [sum(each["versions"].values()) for each in nodes]

    until(lambda: held_of_it() == [one], "its one file to be held, and no other")
    assert server.weft("data", "rm", "films").returncode == 0


@needs_fuse
def test_a_mount_outlives_kills_and_ends_with_its_job(server: Server) -> None:
    again = (
        "for turn in ('mount', 'server', 'agent'):\n"
        "    while not os.path.exists(f'{os.environ[\"CHECKPOINT_DIR\"]}/{turn}'): time.sleep(0.02)\n"
        "    while True:\n"
        "        try: print(turn, all(), flush=True)\n"
        "        except OSError: time.sleep(0.05)\n"
        "        else: break\n"
    )
    server.submit(python(MOUNTED + again, name="killed", datasets=[{"name": "faces", "mode": "mount"}]))
    server.printed_line("killed", expected(server))

    def tell(turn: str) -> None:
        Path(server.folder("killed"), "checkpoints", turn).touch()
        server.printed_line("killed", f"{turn} {expected(server)}")

    (mount,) = (server.home / "datacache" / "mounts").glob("*/*.json")
    pid = json.loads(mount.read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: json.loads(mount.read_text())["pid"] != pid if mount.exists() else False, "another mount")
    tell("mount")
    server.kill()
    server.start()
    tell("server")
    agent = next(pid for pid, line in server.others().items() if "weft.data.agent" in line)
    os.kill(agent, signal.SIGKILL)
    tell("agent")
    completed(server, "killed")
    until(lambda: mounts(server) == [], "the mount to be gone")


@needs_fuse
def test_a_job_whose_supervisor_is_killed_leaves_no_mount(server: Server) -> None:
    server.submit(python(MOUNTED + GO, name="lost", datasets=[{"name": "faces", "mode": "mount"}]))
    server.printed_line("lost", expected(server))
    supervisor = parent_of(server.pid_of("lost"))
    os.kill(supervisor, signal.SIGKILL)
    server.wait_for("lost")
    until(lambda: mounts(server) == [], "the mount to be gone")


def without_fuse() -> tuple[str, ...]:
    """A command that hides /dev/fuse from what it runs. Who may not hide it may not mount either."""
    own = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    private = ("unshare", *own, "--mount", "--propagation", "private")
    hides = (*private, "sh", "-c", 'mount --bind /dev/null /dev/fuse && exec "$@"', "sh")
    done = subprocess.run([*hides, "true"], capture_output=True, check=False)
    return hides if done.returncode == 0 else ()


def test_where_nothing_can_be_mounted_a_job_is_told_so(tmp_path: Path) -> None:
    server = Server(tmp_path / "home", within=without_fuse())
    server.start()
    try:
        server.weft("data", "add", "faces", str(faces(tmp_path / "faces")))
        ended = server.run(sh("true", name="refused", datasets=[{"name": "faces", "mode": "mount"}]))
        assert ended["status"]["state"] == State.FAILED, server.story("refused")
        failure = ended["status"]["failure"]
        assert failure["code"] == "DATA"
        assert "mode: mount is not possible here" in failure["message"]
        assert re.search("needs (/dev/fuse|mfusepy)", failure["message"])
        assert mounts(server) == []
        server.run(sh("ls $DATA_DIR/faces | wc -l", name="as-files", datasets=[{"name": "faces"}]))
        assert server.text("as-files") == ["7"], server.story("as-files")
    finally:
        server.stop()
    assert nothing_left(server) == []
