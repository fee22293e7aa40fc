"""Jobs on a real cluster: what they do on one machine, they do here."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from harness import Server, package, python, sh, until
from testbed.api import Api

from .conftest import REAL, SHELL_IMAGE, WEFT_IMAGE, Town

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("images")]
SMALL = {"cpu": 0.1, "memory": "64Mi"}
BUSYBOX = SHELL_IMAGE
SIMULATED = {"selector": {"testbed.weft.dev/kind": "simulated"}}


def small(count: int = 1, **role: Any) -> dict[str, Any]:
    return {"worker": {"replicas": count, "resources": SMALL, **role}}


def simulated(count: int = 1, lives: str = "forever", **resources: Any) -> dict[str, Any]:
    notes = {"testbed.weft.dev/runs-for": lives}
    asked = {"cpu": 1, "memory": "64Mi", **resources}
    return {"worker": {"replicas": count, "resources": asked, "pod": {"metadata": {"annotations": notes}}}}


def test_a_job_in_an_image_that_has_a_shell_and_nothing_of_weft(town: Town) -> None:
    server = town.server
    digest, data = package({"greet.sh": "echo hello $1 from $WEFT_TASK; echo kept > $RESULT_DIR/out.txt"})
    assert server.call("PUT", f"/v1/packages/{digest}", data).status in (200, 201)
    ended = server.run(
        sh(". ./greet.sh world; id -u", name="greet", image=BUSYBOX, code={"package": digest}, roles=small(), placement=REAL)
    )  # fmt: skip
    assert ended["status"]["state"] == "COMPLETED", server.story("greet")
    assert server.text("greet") == ["hello world from worker-0", "1000"]
    assert server.states("greet") == [
        "PENDING",
        "QUEUED",
        "DEPLOYING",
        "DOWNLOADING",
        "PROCESSING",
        "STORING",
        "COMPLETED",
    ]
    assert ended["status"]["results"] == {"files": 1, "bytes": 5}
    until(lambda: town.nothing_left("greet"), "everything of it to be gone from the cluster")


def test_a_dry_run_shows_what_this_cluster_would_be_sent(town: Town) -> None:
    document = python("pass", name="planned", roles=small(2), placement=REAL)
    answer = town.server.call("POST", "/v1/jobs?dryRun=true&objects=kubernetes", document)
    objects = answer.json["items"]
    assert {thing["metadata"]["namespace"] for thing in objects} == {town.kubectl.namespace}
    images = {c["image"] for thing in objects if thing["kind"] == "Pod" for c in thing["spec"]["containers"]}
    assert images == {WEFT_IMAGE}
    everything = {"apiVersion": "v1", "kind": "List", "items": objects}
    taken = town.kubectl("create", "--dry-run=server", "-o", "name", "-f", "-", told=everything).split()
    assert len(taken) == len(objects)


def test_a_gang_meets_by_name(town: Town) -> None:
    meet = """
import os, socket, time
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if rank == 0:
    door = socket.create_server(("", port))
    met = sorted(door.accept()[0].recv(10).decode() for _ in range(world - 1))
    print("met", *met)
else:
    while True:
        try:
            with socket.create_connection((host, port), 1) as door:
                door.sendall(str(rank).encode())
            break
        except OSError:
            time.sleep(0.1)
"""
    server = town.server
    ended = server.run(python(meet, name="meet", roles=small(3), placement=REAL))
    assert ended["status"]["state"] == "COMPLETED", server.story("meet")
    assert server.text("meet", task="worker-0") == ["met 1 2"]


def test_a_task_that_ends_at_once_does_not_keep_those_waiting_who_start_later(town: Town) -> None:
    """Each waits until it knows the others by name, and a pod that has ended has none."""
    wait = {"name": "late", "image": BUSYBOX, "command": ["sleep", "6"], "imagePullPolicy": "IfNotPresent"}
    roles = {
        "worker": {"replicas": 1, "resources": SMALL},
        "late": {"replicas": 1, "resources": SMALL, "pod": {"spec": {"initContainers": [wait]}}},
    }
    server = town.server
    document = sh("echo was here", name="soon", image=BUSYBOX, roles=roles, placement=REAL)
    ended = server.run(document, timeout=120)
    assert ended["status"]["state"] == "COMPLETED", server.story("soon")
    assert server.text("soon") == ["was here", "was here"]


def test_results_that_cannot_be_fetched_are_told_and_the_others_are_here(town: Town) -> None:
    leave = r"""
cd $RESULT_DIR
echo 1 > closed; chmod 0 closed
echo 2 > "$(printf 'caf\351')"
echo 3 > .incoming
echo 4 > model
"""
    server = town.server
    ended = server.run(sh(leave, name="odd", image=BUSYBOX, roles=small(), placement=REAL), timeout=120)
    assert ended["status"]["state"] == "COMPLETED", server.story("odd")
    assert ended["status"]["results"] == {"files": 1, "bytes": 2}
    notes = ended["status"]["tasks"][0]["exit"]["notes"]
    assert [note.partition(" was not fetched: ")[0] for note in notes] == [
        ".incoming",
        r"caf\udce9",
        "closed",
    ]


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (["sh", "-c", "echo oh; exit 3"], "EXIT_CODE", "3"),
        (["sh", "-c", "kill -9 $$"], "SIGNAL", "SIGKILL"),
        (["no-such-program"], "COMMAND_NOT_FOUND", "no-such-program"),
    ],
)
def test_a_job_that_fails_says_why(town: Town, command: list[str], code: str, words: str) -> None:
    server = town.server
    name = f"bad-{code.lower().replace('_', '-')}"
    document = sh("", name=name, image=BUSYBOX, roles=small(), placement=REAL)
    document["spec"]["command"] = command
    ended = server.run(document)
    assert ended["status"]["state"] == "FAILED"
    assert ended["status"]["failure"]["code"] == code, server.story(name)
    assert words in ended["status"]["failure"]["message"]
    until(lambda: town.nothing_left(name), "everything of it to be gone from the cluster")


def test_secrets_are_the_clusters_own(town: Town) -> None:
    server, kubectl = town.server, town.kubectl
    kubectl("create", "secret", "generic", "door", "--from-literal=key=sesame-9f2")
    wanted = [{"name": "door", "key": "key", "env": "DOOR"}]
    ended = server.run(
        sh("test ${#DOOR} = 10 && echo open", name="open", image=BUSYBOX, secrets=wanted, roles=small(), placement=REAL)
    )  # fmt: skip
    assert ended["status"]["state"] == "COMPLETED", server.story("open")
    absent = [{"name": "window", "key": "key", "env": "DOOR"}]
    failed = server.run(sh("true", name="shut", image=BUSYBOX, secrets=absent, roles=small(), placement=REAL))
    assert failed["status"]["failure"]["code"] == "SECRET_MISSING"
    assert "window" in failed["status"]["failure"]["message"]
    everything = b"".join(path.read_bytes() for path in server.home.rglob("*") if path.is_file())
    assert b"sesame-9f2" not in everything + server.output.read_bytes()


def test_a_rendered_dry_run_has_the_names_of_secrets_and_nothing_that_is_secret(
    town: Town, tmp_path: Path
) -> None:
    server, kubectl = town.server, town.kubectl
    kubectl("create", "secret", "generic", "gate", "--from-literal=key=sesame-7c1")
    document = sh(
        "true", name="shown", secrets=[{"name": "gate", "key": "key", "env": "GATE"}], roles=small()
    )
    (tmp_path / "job.yaml").write_text(json.dumps(document))
    shown = server.weft("run", "--dry-run", "-o", "kubernetes", str(tmp_path / "job.yaml")).stdout
    objects = list(yaml.safe_load_all(shown))
    [pod] = [each for each in objects if each["kind"] == "Pod"]
    [task] = [each for each in pod["spec"]["containers"] if each["name"] == "task"]
    reference = {"secretKeyRef": {"name": "gate", "key": "key"}}
    assert {"name": "GATE", "valueFrom": reference} in task["env"]
    assert "sesame-7c1" not in shown
    assert base64.b64encode(b"sesame-7c1").decode() not in shown
    tokens = [each["stringData"] for each in objects if each["kind"] == "Secret"]
    assert tokens == [{"token": "made when it is submitted"}]
    assert server.gone("shown")


def test_a_task_is_confined_as_its_pod_says(town: Town) -> None:
    """Not root, no capability, no way to more, system calls filtered, and no token of the cluster."""
    script = "id -u; grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status | tr -s '\\t' ' '; " \
        "ls /var/run/secrets/kubernetes.io 2>/dev/null | wc -l"  # fmt: skip
    server = town.server
    ended = server.run(sh(script, name="confined", image=BUSYBOX, roles=small(), placement=REAL))
    assert ended["status"]["state"] == "COMPLETED", server.story("confined")
    none = "0" * 16
    assert server.text("confined") == [
        "1000",
        f"CapEff: {none}",
        f"CapBnd: {none}",
        "NoNewPrivs: 1",
        "Seccomp: 2",
        "0",
    ]


def test_halted_with_a_checkpoint_and_resumed_from_it_in_another_pod(town: Town) -> None:
    server = town.server
    server.submit(sh("step=$(cat $CHECKPOINT_DIR/step 2>/dev/null || echo 0); echo from $step; "
                     "trap 'echo $step > $CHECKPOINT_DIR/step; exit 0' TERM; "
                     "while true; do step=$((step+1)); sleep 0.1; done",
                     name="long", image=BUSYBOX, roles=small(), placement=REAL, grace="5s"))  # fmt: skip
    server.printed_line("long", "from 0")
    assert server.ask("long", "halt").status == 200
    server.wait_for("long", "HALTED")
    saved = int((server.folder("long") / "checkpoints" / "step").read_text())
    assert saved > 0
    assert server.ask("long", "resume").status == 200
    server.printed_line("long", f"from {saved}")
    assert server.ask("long", "cancel").status == 200
    server.wait_for("long", "CANCELLED")


def test_what_all_tasks_save_at_the_same_moment_comes_together(town: Town) -> None:
    """In a folder of the same name, and in a file of its own, each."""
    server = town.server
    server.submit(sh("trap 'mkdir $CHECKPOINT_DIR/last; echo $WEFT_TASK > $CHECKPOINT_DIR/last/$WEFT_TASK; "
                     "echo $WEFT_TASK > $CHECKPOINT_DIR/$WEFT_TASK; exit 0' TERM; "
                     "echo up; while true; do sleep 0.1; done",
                     name="save", image=BUSYBOX, roles=small(3), placement=REAL, grace="5s"))  # fmt: skip
    until(lambda: server.text("save") == ["up"] * 3, "all to be up")
    assert server.ask("save", "halt").status == 200
    server.wait_for("save", "HALTED", timeout=30)
    kept = server.folder("save") / "checkpoints"
    names = [f"worker-{n}" for n in range(3)]
    assert {name: (kept / name).read_text().strip() for name in names} == {name: name for name in names}
    assert sorted(path.name for path in (kept / "last").iterdir()) == names
    assert sorted(path.name for path in kept.iterdir()) == ["last", *names]
    server.delete("save")


COUNTS = "i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo $i; sleep 0.02; done"


def pod_of(kubectl: Any, job: str) -> str:
    return kubectl("get", "pods", "-l", f"weft.dev/job={job}", "-o", "jsonpath={.items[0].metadata.name}")


def test_a_server_that_is_killed_finds_its_jobs_again_and_misses_no_line(
    cluster: Callable[..., Server], kubectl: Any
) -> None:
    server = cluster()
    server.submit(sh(COUNTS, name="count", image=BUSYBOX, roles=small(), placement=REAL))
    server.printed_line("count", "50")
    server.kill()
    until(
        lambda: "100" in kubectl("logs", pod_of(kubectl, "count")).split(), "it to go on meanwhile", every=0.1
    )
    server.start()
    server.printed_line("count", "200")
    server.restart()
    ended = server.wait_for("count")
    assert ended["status"]["state"] == "COMPLETED", server.story("count")
    assert ended["status"]["restarts"] == 0
    assert server.text("count", limit=100_000) == [str(n) for n in range(1, 401)]


def test_a_job_that_ended_while_no_server_was_there(cluster: Callable[..., Server], kubectl: Any) -> None:
    server = cluster()
    server.submit(
        sh(
            "echo done > $RESULT_DIR/x; sleep 2; echo end",
            name="alone",
            image=BUSYBOX,
            roles=small(),
            placement=REAL,
        )
    )
    server.wait_for("alone", "PROCESSING")
    server.kill()
    ended = ("jsonpath={.status.containerStatuses[?(@.name=='task')].state.terminated.exitCode}",)
    until(lambda: kubectl("get", "pod", pod_of(kubectl, "alone"), "-o", *ended) == "0", "its end", every=0.2)
    server.start()
    ended = server.wait_for("alone")
    assert ended["status"]["state"] == "COMPLETED", server.story("alone")
    assert server.text("alone") == ["end"]
    assert (server.folder("alone") / "results" / "x").read_text() == "done\n"


MEASURES = """
import time, weft
for n in range(1, 401):
    print(n, flush=True)
    weft.log(step=n, n=n)
    time.sleep(0.02)
"""


@pytest.mark.usefixtures("testbed_only")
def test_an_agent_that_is_killed_is_started_again_and_no_line_or_metric_is_missed(
    cluster: Callable[..., Server], kubectl: Any
) -> None:
    """Twice: the second time kubelet waits for ten seconds, and the task ends meanwhile."""
    server = cluster()
    server.submit(python(MEASURES, name="count", roles=small(), placement=REAL))
    for line in ("100", "200"):
        server.printed_line("count", line)
        (agent,) = processes_of(kubectl, "count", b"weft.runtime.agent")
        os.kill(agent, signal.SIGKILL)
    ended = server.wait_for("count")
    assert ended["status"]["state"] == "COMPLETED", server.story("count")
    assert ended["status"]["restarts"] == 0
    every = list(range(1, 401))
    assert server.text("count", limit=100_000) == [str(n) for n in every]
    points = server.metrics("count")
    assert [(point["step"], point["value"]) for point in points] == [(n, n) for n in every]


def processes_of(kubectl: Any, job: str, word: bytes) -> list[int]:
    """Those of the job's one pod whose command has this, as this machine knows them."""
    uid = kubectl("get", "pods", "-l", f"weft.dev/job={job}", "-o", "jsonpath={.items[0].metadata.uid}")

    def meant(process: Path) -> bool:
        try:
            return (
                word in (process / "cmdline").read_bytes() and f"pod{uid}" in (process / "cgroup").read_text()
            )
        except OSError:
            return False

    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit() and meant(each)]


def test_a_pod_that_somebody_deletes_is_replaced(town: Town) -> None:
    server, kubectl = town.server, town.kubectl
    server.submit(
        sh(
            "echo up $WEFT_LAUNCH; sleep 1000",
            name="again",
            image=BUSYBOX,
            roles=small(),
            placement=REAL,
            grace="1s",
        )
    )
    server.printed_line("again", "up 1")
    kubectl("delete", "pod", "-l", "weft.dev/job=again", "--wait=false")
    server.printed_line("again", "up 2")
    status = server.status("again")
    assert status["state"] == "PROCESSING"
    assert status["restarts"] == 0, "it was not the job's fault"
    assert any("deleted" in event.get("cause", "") for event in server.history("again"))
    server.delete("again")
    until(lambda: server.gone("again"), "it to be deleted")
    until(lambda: town.nothing_left("again"), "everything of it to be gone from the cluster")


@pytest.mark.usefixtures("testbed_only")
def test_what_others_use_is_not_given_away(town: Town, pod: Callable[..., dict[str, Any]]) -> None:
    server, kubectl = town.server, town.kubectl
    until(lambda: server.get("/v1/nodes").json["items"], "nodes")
    theirs = pod("theirs", "sim-0000", BUSYBOX, "true", runs_for="forever")
    theirs["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "8"}}
    kubectl.create(theirs)
    here = {"selector": {"kubernetes.io/hostname": "sim-0000"}}
    until(lambda: free_gpus(server, "sim-0000") == 0, "their pod to be seen")
    server.submit(sh("true", name="ours", roles=simulated(gpu=1), placement=here))
    waits = server.wait_for("ours", "QUEUED")
    assert waits["status"]["state"] == "QUEUED"
    kubectl("delete", "pod", "theirs", "--wait=false")
    server.wait_for("ours", "PROCESSING")
    server.delete("ours")


def free_gpus(server: Server, node: str) -> int:
    found = {item["name"]: item for item in server.get("/v1/nodes").json["items"]}
    return found[node]["free"]["gpu"]


@pytest.mark.usefixtures("testbed_only")
def test_a_gang_that_the_cluster_takes_only_in_part_is_taken_back_whole_and_tried_again(town: Town) -> None:
    server, kubectl = town.server, town.kubectl
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "one"},
        "spec": {"hard": {"pods": "1"}},
    }
    kubectl.create(quota)
    until(lambda: kubectl.get("resourcequota", "one").get("status", {}).get("hard"), "the quota to hold")
    try:
        server.submit(sh("true", name="pair", roles=simulated(2, "1"), placement=SIMULATED))
        until(lambda: server.states("pair").count("DEPLOYING") >= 2, "a second attempt")
        assert any("exceeded quota" in event.get("cause", "") for event in server.history("pair"))
    finally:
        kubectl("delete", "resourcequota", "one")
    ended = server.wait_for("pair")
    assert ended["status"]["state"] == "COMPLETED", server.story("pair")
    assert ended["status"]["restarts"] == 0


@pytest.mark.usefixtures("testbed_only")
def test_what_ran_on_a_lost_node_runs_again_elsewhere_and_the_rest_goes_on(town: Town, api: Api) -> None:
    server = town.server
    spread = {**SIMULATED, "strategy": "spread"}
    server.submit(sh("true", name="apart", roles=simulated(2), placement=spread))
    status = server.wait_for("apart", "PROCESSING")["status"]
    stays, goes = (task["binding"]["node"] for task in status["tasks"])
    begun = {task["name"]: task["started"] for task in status["tasks"]}
    at = time.time()
    set_ready(api, goes, "Unknown")
    try:
        lost = until(
            lambda: [e["time"] for e in server.history("apart") if e.get("code") == "NODE_LOST"],
            "the loss to be told",
        )
        assert lost[0] - at < 2
        until(lambda: server.status("apart")["tasks"][1]["launch"] == 2, "it to start again")
        server.wait_for("apart", "PROCESSING")
        tasks = {task["name"]: task for task in server.status("apart")["tasks"]}
        assert tasks["worker-1"]["binding"]["node"] not in (goes, None)
        assert tasks["worker-0"]["binding"]["node"] == stays
        assert tasks["worker-0"]["started"] == begun["worker-0"], "repair replaces only what was lost"
        assert server.status("apart")["restarts"] == 0
    finally:
        set_ready(api, goes, "True")
        server.delete("apart")
    until(lambda: town.nothing_left("apart"), "everything of it to be gone from the cluster")


def set_ready(api: Api, node: str, state: str) -> None:
    """As the controllers do when a node's lease has run out; they would take a minute."""
    told = {
        "type": "Ready",
        "status": state,
        "reason": "Test",
        "message": "Kubelet stopped posting node status.",
    }
    api.patch(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [told]}})


def test_metrics_come_from_any_python_without_weft_being_installed_in_it(town: Town) -> None:
    server = town.server
    source = "import weft\nfor step in range(1, 6): weft.log(step=step, loss=1 / step)\nprint(weft.__file__)"
    ended = server.run(python(source, name="measures", roles=small(), placement=REAL))
    assert ended["status"]["state"] == "COMPLETED", server.story("measures")
    points = server.get("/v1/jobs/measures/metrics").json["items"]
    assert [(point["step"], point["value"]) for point in points] == [(n, 1 / n) for n in range(1, 6)]
    assert server.text("measures")[-1].startswith("/weft/lib/")


def test_what_a_task_used_is_known_at_its_end(town: Town) -> None:
    server = town.server
    source = "import time; x = bytearray(100 << 20); begun = time.process_time()\nwhile time.process_time() - begun < 0.5: pass"
    roles = {"worker": {"resources": {"cpu": 0.5, "memory": "256Mi"}}}
    ended = server.run(python(source, name="uses", roles=roles, placement=REAL))
    exit = ended["status"]["tasks"][0]["exit"]
    assert 100 << 20 <= exit["peakMemory"] <= 256 << 20
    assert 0.5 <= exit["cpuSeconds"] < 10


def test_code_that_is_too_large_for_an_object_is_brought_by_way_of_the_agent(town: Town) -> None:
    server = town.server
    digest, data = package({"big": Random(1).randbytes(3_000_000).hex(), "go.sh": "wc -c < big"})
    assert len(data) > 1_500_000
    assert server.call("PUT", f"/v1/packages/{digest}", data).status in (200, 201)
    job = sh(". ./go.sh", name="big", image=BUSYBOX, code={"package": digest}, roles=small(), placement=REAL)
    ended = server.run(job)
    assert ended["status"]["state"] == "COMPLETED", server.story("big")
    assert server.text("big") == ["6000000"]


def test_a_task_whose_node_is_gone_goes_on_from_the_checkpoint_that_was_fetched(town: Town) -> None:
    server, kubectl = town.server, town.kubectl
    script = """
step=$(cat $CHECKPOINT_DIR/step-*/state 2>/dev/null | tail -1); step=${step:-0}; echo from $step
while true; do step=$((step+1)); mkdir $CHECKPOINT_DIR/.new; echo $step > $CHECKPOINT_DIR/.new/state
mv $CHECKPOINT_DIR/.new $CHECKPOINT_DIR/step-$(printf %012d $step); sleep 3; done"""
    server.submit(sh(script, name="goes-on", image=BUSYBOX, roles=small(), placement=REAL, grace="1s"))
    server.printed_line("goes-on", "from 0")
    kept = server.folder("goes-on") / "checkpoints"
    until(lambda: kept.exists() and any(kept.glob("step-*")), "a checkpoint to be fetched")
    kubectl("delete", "pod", "-l", "weft.dev/job=goes-on", "--force", "--grace-period=0", "--wait=false")
    until(lambda: len([line for line in server.text("goes-on") if "from" in line]) == 2, "a second start")
    again = [line for line in server.text("goes-on") if "from" in line][1]
    assert int(again.split()[1]) >= 1
    server.delete("goes-on")
    until(lambda: server.gone("goes-on"), "it to be deleted")


def test_in_a_sandbox_only_the_jobs_own_folders_can_be_written(town: Town) -> None:
    tried = "for place in / /usr /tmp /dev/shm $RESULT_DIR $CHECKPOINT_DIR $HOME; do " \
        "(echo x > $place/x) 2>/dev/null && echo yes || echo no; done"  # fmt: skip
    document = sh(tried, name="boxed", isolation="sandbox", roles=small(), placement=REAL)
    ended = town.server.run(document)
    assert ended["status"]["state"] == "COMPLETED", town.server.story("boxed")
    assert town.server.text("boxed") == ["no", "no", "yes", "yes", "yes", "yes", "yes"]


HANGS = """
import os, threading, time, weft
def stuck_in_the_collective():
    threading.Event().wait()
def working_on():
    for _ in range(1000):
        weft.heartbeat()
        time.sleep(0.1)
print("begun", flush=True)
working_on() if os.environ["RANK"] == "0" else stuck_in_the_collective()
"""


def test_what_a_hanging_task_and_the_others_are_doing_is_kept(town: Town) -> None:
    server = town.server
    roles = {"worker": {"replicas": 2, "resources": {"cpu": 0.3, "memory": "64Mi"}}}
    ended = server.run(python(HANGS, name="hangs", roles=roles, placement=REAL, stallTimeout="6s"))
    assert ended["status"]["failure"]["code"] == "STALLED", server.story("hangs")
    where = "stalls/worker-1-launch-1.txt"
    assert where in ended["status"]["failure"]["message"]
    assert where in [item["path"] for item in server.get("/v1/jobs/hangs/results").json["items"]]
    text = (server.folder("hangs") / "results" / where).read_text()
    first, _, second = text.partition("════ worker-1 ════")
    assert "working_on (<string>" in first.partition("════ worker-0 ════")[2]
    assert "stuck_in_the_collective (<string>" in second
    assert "weft.runtime.agent" not in text
