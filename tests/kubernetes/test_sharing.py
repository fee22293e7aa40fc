"""What the tasks of a job share on a cluster, where they have no folder in common."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from harness import python, sh, until

from weft.runtime import books, leases

from .conftest import REAL, SHELL_IMAGE, Town
from .test_jobs import small

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("images")]
SHARES = """
import time, weft
print("begins", flush=True)
for shard in weft.shards(300, epoch=0, size=2, shuffle=False):
    print("has", shard.number, flush=True)
    time.sleep(0.05)
    if shard.done():
        print("did", shard.number, flush=True)
print("over", flush=True)
"""
EVERY = {str(number) for number in range(150)}


def told(town: Town, job: str, what: str) -> Counter[str]:
    lines = (line.split() for line in town.server.text(job, limit=100_000))
    return Counter(line[1] for line in lines if line[0] == what)


def had_at_first(town: Town, job: str, task: str) -> list[int]:
    """What the task was given before its pod was lost, as far as it was told."""
    lines = [line.split() for line in town.server.text(job, task=task, limit=100_000)]
    assert lines[0] == ["begins"]
    again = lines.index(["begins"], 1)
    return [int(line[1]) for line in lines[:again] if line[0] == "has"]


def kept(town: Town, job: str) -> leases.Books:
    """The books as the control plane has them: the next pod gets these."""
    place = town.server.folder(job) / "checkpoints/.weft/shards/train"
    if not place.exists():
        return leases.Books()
    with place.open("rb") as file:
        return leases.from_json(json.loads(books.newest(file.fileno(), str(place))[1]))


def done(found: leases.Books) -> set[str]:
    epoch = found.epochs.get(0)
    if epoch is None:
        return set()
    open_ = {*epoch.back, *(held.shard for held in epoch.leases.values())}
    return {str(number) for number in range(epoch.next) if number not in open_}


def test_tasks_share_out_an_epoch(town: Town) -> None:
    server = town.server
    ended = server.run(python(SHARES, name="shares", roles=small(3), placement=REAL), timeout=120)
    assert ended["status"]["state"] == "COMPLETED", server.story("shares")
    assert told(town, "shares", "did") == Counter(EVERY)
    assert server.text("shares", limit=100_000).count("over") == 3
    for task in range(3):
        assert "has" in " ".join(server.text("shares", task=f"worker-{task}")), "each had some"
    until(lambda: town.nothing_left("shares"), "everything of it to be gone from the cluster")


@pytest.mark.parametrize("lost", [1, 0])
def test_the_shards_of_a_pod_that_is_lost_go_to_others(town: Town, lost: int) -> None:
    """Also where it is the first task's pod, which hands them out: what it told of its books before is not done again."""
    server, job = town.server, f"loses-{lost}"
    server.submit(python(SHARES, name=job, roles=small(2), placement=REAL, grace="1s"))
    until(lambda: len(done(kept(town, job))) > 40, "the control plane to hear of shards that are done", 120)
    before = done(kept(town, job))
    labels = f"weft.dev/job={job},weft.dev/task=worker-{lost}"
    town.kubectl("delete", "pod", "-l", labels, "--force", "--grace-period=0", "--wait=false")
    ended = server.wait_for(job, timeout=120)
    assert ended["status"]["state"] == "COMPLETED", server.story(job)
    assert ended["status"]["restarts"] == 0, server.story(job)
    assert kept(town, job).complete == [0]
    handed, did = told(town, job, "has"), told(town, job, "did")
    assert [number for number in before if handed[number] > 1] == []
    if lost:  # the books went on
        assert [number for number, times in did.items() if times > 1] == []
    last = max(had_at_first(town, job, f"worker-{lost}"))
    untold = [number for number in EVERY - {*handed} if int(number) < last]
    assert untold == [], "only what a pod printed at its very end may be lost with it"
    until(lambda: town.nothing_left(job), "everything of it to be gone from the cluster")


def test_a_folder_that_all_tasks_share_is_a_claim(town: Town, tmp_path: Path) -> None:
    """As docs/job-file.md has it."""
    server, kubectl = town.server, town.kubectl
    tmp_path.chmod(0o777)
    about = {"accessModes": ["ReadWriteMany"], "storageClassName": kubectl.namespace}
    room = {"storage": "1Mi"}
    volume = {**about, "capacity": room, "hostPath": {"path": str(tmp_path)}}
    claim = {**about, "resources": {"requests": room}}
    for kind, name, spec in (
        ("PersistentVolume", kubectl.namespace, volume),
        ("PersistentVolumeClaim", "scratch", claim),
    ):
        kubectl.create({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
    mount = [{"name": "task", "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}]
    volumes = [{"name": "shared", "persistentVolumeClaim": {"claimName": "scratch"}}]
    roles = small(3, pod={"spec": {"containers": mount, "volumes": volumes}})
    script = "touch /shared/$WEFT_TASK; until [ -e /shared/worker-0 -a -e /shared/worker-1 -a -e /shared/worker-2 ]; do sleep 0.1; done"
    try:
        ended = server.run(sh(script, name="meets", image=SHELL_IMAGE, roles=roles, placement=REAL))
        assert ended["status"]["state"] == "COMPLETED", server.story("meets")
    finally:
        kubectl("delete", "pvc", "scratch", "--wait=false")
        kubectl("delete", "pv", kubectl.namespace, "--wait=false")


def test_metrics_in_files_come_from_every_task(town: Town) -> None:
    """Each has a LOG_DIR of its own."""
    script = 'echo "{\\"step\\": 1, \\"loss\\": $RANK}" > $LOG_DIR/metrics.jsonl'
    job = sh(
        script, name="files", image=SHELL_IMAGE, roles=small(2), placement=REAL, metrics=[{"source": "file"}]
    )
    ended = town.server.run(job)
    assert ended["status"]["state"] == "COMPLETED", town.server.story("files")
    points = town.server.get("/v1/jobs/files/metrics").json["items"]
    assert sorted((point["task"], point["value"]) for point in points) == [("worker-0", 0), ("worker-1", 1)]
