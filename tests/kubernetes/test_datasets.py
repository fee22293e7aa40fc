"""Datasets on a cluster: the node's agent as deploy/data installs it, and jobs that read through it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import Server, python, sh, until
from testbed.node import GATEWAY
from tests.support.web import web

from .conftest import ELSEWHERE, REAL, SHELL_IMAGE, WEFT_IMAGE, Kubectl, Town, arguments, in_a_namespace
from .test_deploy import as_list
from .test_jobs import small

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("images")]
DEPLOY = Path(__file__).parents[2] / "deploy" / "data"
HASHES = """
import hashlib, weft
def read(data):
    return hashlib.sha256(repr(sorted((s.name, hashlib.sha256(s.data).hexdigest()) for s in data)).encode()).hexdigest()
"""
READ = HASHES + 'data = weft.data("faces", shuffle=True, seed=3)\nprint(len(data), read(data))\n'
ASK = """
import json, urllib.request
shown = {"X-Weft-Token": open("/token/token").read().strip()}
asked = urllib.request.Request("http://127.0.0.1:8472/v1/ask", b'{"do": "status"}', shown)
print(json.dumps(sorted(json.load(urllib.request.urlopen(asked))["jobs"])))
"""


@dataclass(frozen=True)
class Library:
    """A server whose cluster has data agents, and a dataset."""

    server: Server
    kubectl: Kubectl
    """In the namespace of its jobs."""
    folder: Path
    """What the agent has on its node."""
    faces: Path

    @property
    def agents(self) -> str:
        return f"--namespace={self.kubectl.namespace}-data"

    def agent(self) -> dict[str, Any]:
        def running() -> dict[str, Any] | None:
            pods = self.kubectl.get("pods", self.agents, "-l", "app.kubernetes.io/name=weft-data")["items"]
            return next((pod for pod in pods if runs(pod) and owner_of(pod) == "DaemonSet"), None)

        found: dict[str, Any] = until(running, "an agent to run", every=0.2)
        return found

    def version(self, name: str = "faces") -> str:
        found: str = self.server.get(f"/v1/datasets/{name}").json["status"]["version"]
        return found

    def cached(self, name: str = "faces") -> dict[str, Any]:
        """What the one node that runs something holds of it."""
        nodes = self.server.get(f"/v1/datasets/{name}").json["status"]["cached"]
        return nodes[0] if nodes else {}


def runs(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") == "Running"


def owner_of(pod: dict[str, Any]) -> str:
    kind: str = pod["metadata"]["ownerReferences"][0]["kind"]
    return kind


def data_agents(kubectl: Kubectl, within: str, folder: Path) -> list[dict[str, Any]]:
    """deploy/data for jobs of this namespace; where there is no kube-scheduler, on the node that runs things."""
    text = kubectl("kustomize", str(DEPLOY)).replace("weft-system", within)
    objects = list(yaml.safe_load_all(text.replace("/var/lib/weft-data", str(folder))))
    for item in objects:
        if item["kind"] == "DaemonSet":
            pod = item["spec"]["template"]["spec"]
            if not ELSEWHERE:
                pod["nodeName"] = "real-0"
            for container in (*pod["initContainers"], *pod["containers"]):
                container["image"] = WEFT_IMAGE
            arguments = pod["containers"][0]["args"]  # a disk for tests may be fuller than one for jobs
            arguments[arguments.index("--reserve=20%")] = "--reserve=1Gi"
    return objects


def install(kubectl: Kubectl, objects: list[dict[str, Any]]) -> None:
    for where in dict.fromkeys(item["metadata"].get("namespace", "") for item in objects):
        own = [item for item in objects if item["metadata"].get("namespace", "") == where]
        kubectl("apply", "-f", "-", *([f"--namespace={where}"] if where else []), told=as_list(own))


def take_away(kubectl: Kubectl, within: str) -> None:
    kubectl("delete", "namespace", f"{within}-data", "--wait=false", "--ignore-not-found")
    kubectl("delete", "persistentvolume", f"weft-data-{within}", "--wait=false", "--ignore-not-found")


@pytest.fixture(scope="module")
def library(kubeconfig: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    folder, home = tmp_path_factory.mktemp("node") / "data", tmp_path_factory.mktemp("library")
    faces, r = home / "faces", random.Random(1)
    for number in range(60):
        place = faces / f"{number % 7}" / f"{number:04}.bin"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(r.randbytes(r.randrange(50_000)))
    (faces / "large.bin").write_bytes(r.randbytes(5 << 20))
    with in_a_namespace(kubeconfig) as kubectl:
        objects = data_agents(kubectl, kubectl.namespace, folder)
        server = Server(home / "home", arguments(kubeconfig, kubectl.namespace))
        try:
            server.start()
            install(kubectl, objects)
            made = Library(server, kubectl, folder, faces)
            server.weft("data", "add", "faces", str(faces))
            yield made
        finally:
            server.stop()
            kubectl("delete", "namespace", f"{kubectl.namespace}-data", "--wait=false", check=False)
            kubectl(
                "delete", "persistentvolume", f"weft-data-{kubectl.namespace}", "--wait=false", check=False
            )


def expected(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    read = sorted((str(f.relative_to(folder)), hashlib.sha256(f.read_bytes()).hexdigest()) for f in files)
    return f"{len(read)} {hashlib.sha256(repr(read).encode()).hexdigest()}"


def reads(name: str, command: dict[str, Any], *uses: dict[str, Any], **spec: Any) -> dict[str, Any]:
    datasets = list(uses) or [{"name": "faces"}]
    own = {"roles": small(), "placement": REAL, "datasets": datasets, **spec}
    return {**command, "metadata": {"name": name}, "spec": {**command["spec"], **own}}


def completed(library: Library, document: dict[str, Any]) -> list[str]:
    name = document["metadata"]["name"]
    ended = library.server.run(document)
    assert ended["status"]["state"] == "COMPLETED", library.server.story(name)
    assert ended["status"]["datasets"][0] == ["faces", library.version()]
    return library.server.text(name)


def test_a_job_reads_files_that_it_cannot_write_to(library: Library) -> None:
    script = """
find $DATA_DIR/faces -type f | wc -l
sha256sum < $DATA_DIR/faces/large.bin | cut -c-64
id -u
for it in $DATA_DIR/faces/new $DATA_DIR/faces/0/new $DATA_DIR/faces/large.bin /weft-data/data.sock; do
  (echo x > $it) 2>/dev/null && echo wrote $it
  rm $it 2>/dev/null && echo removed $it
done
ls /weft-data
"""
    said = completed(library, reads("files", sh(script, image=SHELL_IMAGE)))
    large = hashlib.sha256((library.faces / "large.bin").read_bytes()).hexdigest()
    assert said == ["61", large, "1000", "data.sock"]


def counted(node: dict[str, Any]) -> int:
    """Samples that jobs have read there."""
    return int(node.get("hits", 0) + node.get("misses", 0))


def test_samples_come_from_the_cache_of_the_node_shared_by_all_its_jobs(library: Library) -> None:
    use = {"name": "faces", "files": False}
    begun = counted(library.cached())
    assert completed(library, reads("first", python(READ), use)) == [expected(library.faces)]
    before = until(
        lambda: counted(now := library.cached()) >= begun + 61 and now, "the first to be counted", every=0.2
    )
    assert completed(library, reads("second", python(READ), use)) == [expected(library.faces)]
    after = until(
        lambda: (now := library.cached())["hits"] >= before["hits"] + 61 and now,
        "the second to be counted",
        every=0.2,
    )
    assert (after["misses"], after["remoteBytes"]) == (before["misses"], before["remoteBytes"])
    assert after["node"] == "real-0" or ELSEWHERE
    size = sum(path.stat().st_size for path in library.faces.rglob("*") if path.is_file())
    assert after["versions"] == {library.version(): size}
    assert "real-0" in library.server.weft("data", "show", "faces").stdout or ELSEWHERE


def test_every_rank_has_its_part_exactly_once(library: Library) -> None:
    source = 'import weft\nfor sample in weft.data("faces", shuffle=True):\n    print(sample.name)\n'
    use = {"name": "faces", "mode": "shard"}
    names = completed(library, reads("ranks", python(source), use, roles=small(2)))
    assert len(names) == 61
    assert sorted(names) == sorted(
        str(path.relative_to(library.faces)) for path in library.faces.rglob("*") if path.is_file()
    )


def test_what_a_job_makes_becomes_a_version_with_its_lineage(library: Library) -> None:
    script = "mkdir $RESULT_DIR/model; wc -c < $DATA_DIR/faces/large.bin > $RESULT_DIR/model/size"
    document = reads("makes", sh(script, image=SHELL_IMAGE), outputs=[{"dataset": "sizes", "path": "model"}])
    completed(library, document)
    made = library.version("sizes")
    drawn = library.server.weft("data", "lineage", "sizes").stdout
    assert f"faces@{library.version()[:12]}" in drawn
    assert "job/makes" in drawn
    use = {"name": "sizes", "as": "numbers"}
    ended = library.server.run(reads("uses", sh("cat $DATA_DIR/numbers/size", image=SHELL_IMAGE), use))
    assert ended["status"]["datasets"] == [["sizes", made]], library.server.story("uses")
    assert library.server.text("uses") == [str(5 << 20)]


def test_an_agent_that_is_killed_or_deleted_in_the_middle_comes_back_and_its_readers_go_on(
    library: Library,
) -> None:
    source = (
        HASHES
        + """
import os, time
data = weft.data("faces", shuffle=True)
for turn in range(3):
    print(turn, len(data), read(data), flush=True)
    while not os.path.exists(f"{os.environ['CHECKPOINT_DIR']}/{turn}") and turn < 2:
        time.sleep(0.05)
"""
    )
    server, agent = library.server, library.agent()
    server.submit(reads("goes-on", python(source), {"name": "faces", "mode": "stream"}))
    server.printed_line("goes-on", "0 61")
    for pid in agent_processes(library.folder):
        os.kill(pid, signal.SIGKILL)
    proceed(library, "goes-on", 0)
    server.printed_line("goes-on", "1 61")
    library.kubectl(
        "delete",
        "pod",
        library.agents,
        agent["metadata"]["name"],
        "--grace-period=0",
        "--force",
        "--wait=false",
    )
    proceed(library, "goes-on", 1)
    ended = server.wait_for("goes-on")
    assert ended["status"]["state"] == "COMPLETED", server.story("goes-on")
    assert ended["status"]["restarts"] == 0
    assert server.text("goes-on") == [f"{turn} {expected(library.faces)}" for turn in range(3)]
    assert library.agent()["metadata"]["uid"] != agent["metadata"]["uid"]
    uid = server.uid("goes-on")
    until(lambda: lends(library, uid) is False, "its lease to end", every=0.2)


def agent_processes(folder: Path) -> list[int]:
    """By the folder that they have mounted, whatever it is called inside."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
                mounts = (process / "mountinfo").read_text()
            except OSError:
                continue
            if b"weft.data.agent" in words and str(folder) in mounts:
                found.append(int(process.name))
    return found


def proceed(library: Library, job: str, turn: int) -> None:
    """A word to the task, by a file in its pod."""
    pod = library.kubectl.get("pods", "-l", f"weft.dev/job={job}")["items"][0]["metadata"]["name"]
    library.kubectl("exec", pod, "-c", "task", "--", "touch", f"/weft/checkpoints/{turn}")


def lends(library: Library, uid: str) -> bool | None:
    """Whether the agent says itself that it lends to a job; None if it cannot be asked now."""
    agent, where = library.agent()["metadata"]["name"], library.agents
    said = library.kubectl("exec", where, agent, "-c", "agent", "--", "python", "-c", ASK, check=False)
    return uid in json.loads(said) if said else None


def test_a_server_that_is_killed_finds_its_readers_and_ends_their_leases(library: Library) -> None:
    server = library.server
    script = "until [ -e $CHECKPOINT_DIR/0 ]; do sleep 0.1; done; sha256sum < $DATA_DIR/faces/large.bin | cut -c-64"
    server.submit(reads("outlives", sh(script, image=SHELL_IMAGE)))
    server.wait_for("outlives", "PROCESSING")
    uid = server.uid("outlives")
    until(lambda: lends(library, uid), "its lease", every=0.2)
    server.restart()
    proceed(library, "outlives", 0)
    ended = server.wait_for("outlives")
    assert ended["status"]["state"] == "COMPLETED", server.story("outlives")
    until(lambda: lends(library, uid) is False, "its lease to end", every=0.2)


@pytest.mark.usefixtures("kube_scheduler")
def test_where_the_cluster_places_a_job_its_data_comes_to_the_node_that_was_chosen(library: Library) -> None:
    """Files and samples; and the server that brings them may be another than the one that made the pods."""
    server, kubectl = library.server, library.kubectl
    mark = f"weft-test/{kubectl.namespace}"
    files = "import os, pathlib\nfolder = pathlib.Path(os.environ['DATA_DIR'], 'faces')\n"
    source = READ + files + "print(sum(path.is_file() for path in folder.rglob('*')))\n"
    roles = small(2, pod={"spec": {"nodeSelector": {mark: "yes"}}})
    try:
        server.submit(reads("theirs", python(source), roles=roles, scheduling="default"))
        until(lambda: "finds no place" in (server.status("theirs").get("reason") or ""), "it to wait")
        server.restart()
        kubectl("label", "node", "real-0", f"{mark}=yes")
        # others that run on the node may have its CPUs for a while, and kube-scheduler looks again every ten seconds only
        ended = server.wait_for("theirs", timeout=150)
    finally:
        kubectl("label", "node", "real-0", f"{mark}-")
    assert ended["status"]["state"] == "COMPLETED", server.story("theirs")
    assert sorted(server.text("theirs")) == sorted([expected(library.faces), "61"] * 2)
    assert ended["status"]["datasets"] == [["faces", library.version()]]
    uid = server.uid("theirs")
    until(lambda: lends(library, uid) is False, "its lease to end", every=0.2)


def test_data_is_brought_before_anybody_reads_it(library: Library) -> None:
    server = library.server
    letters = library.faces.with_name("letters")
    letters.mkdir()
    (letters / "a.bin").write_bytes(random.Random(2).randbytes(1 << 20))
    server.weft("data", "add", "letters", str(letters))
    server.weft("data", "warm", "letters", "--all")
    version = library.version("letters")
    until(
        lambda: library.cached("letters").get("versions") == {version: 1 << 20}, "it to be there", every=0.2
    )


@pytest.mark.usefixtures("testbed_only")
def test_a_node_reads_objects_that_stay_at_their_source_from_there(library: Library) -> None:
    """With the secret that the dataset names; in the control plane's store is nothing of it."""
    server = library.server
    with web(GATEWAY) as source:
        source.files["/far.bin"] = random.Random(3).randbytes(5 << 20)
        source.secret = "Bearer sesame-4711"
        assert server.call("PUT", "/v1/secrets/door", {"data": {"token": "sesame-4711"}}).status in (
            200,
            201,
            204,
        )
        server.weft("data", "add", "far", f"{source.url}/far.bin", "--secret", "door")
        job = reads(
            "far", sh("sha256sum < $DATA_DIR/far/far.bin | cut -c-64", image=SHELL_IMAGE), {"name": "far"}
        )
        assert server.run(job)["status"]["state"] == "COMPLETED", server.story("far")
        assert server.text("far") == [hashlib.sha256(source.files["/far.bin"]).hexdigest()]
        assert any("range" in headers for _, headers in source.asked)
    assert not list((server.home / "datasets" / "parts").rglob(part_of(server, "far")))
    for kind in ("pods", "secrets", "configmaps"):
        assert "sesame-4711" not in library.kubectl("get", kind, "-o", "yaml")


def part_of(server: Server, name: str) -> str:
    version = server.get(f"/v1/datasets/{name}").json["status"]["version"]
    about = json.loads((server.home / "datasets" / "versions" / version / "version.json").read_text())
    digest: str = about["parts"][0]["digest"]
    assert about["parts"][0]["place"]["kind"] == "source"
    return digest


def test_without_agents_a_job_that_reads_says_what_to_install(town: Town, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1")
    town.server.weft("data", "add", "lonely", str(tmp_path))
    ended = town.server.run(reads("lonely", sh("true", image=SHELL_IMAGE), {"name": "lonely"}))
    failure = ended["status"]["failure"]
    assert failure["code"] == "DATA"
    assert f"deploy/data, in namespace {town.kubectl.namespace}-data" in failure["message"]
