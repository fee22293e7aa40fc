"""What tasks cannot see or touch: sandboxes, containers, other tasks' CPUs and GPUs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import Server, alive, python, sh, until

pytestmark = pytest.mark.machine

ON_AFFINITY = "import os; print(sorted(os.sched_getaffinity(0)))"
CPUS = len(os.sched_getaffinity(0))


@pytest.fixture
def sandbox() -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed (apt-get install bubblewrap)")
    probe = ["bwrap", "--ro-bind", "/", "/", "--unshare-pid", "--proc", "/proc", "true"]
    tried = subprocess.run(probe, capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"this kernel does not let bubblewrap work: {tried.stderr.strip()}")


# ── sandbox ──────────────────────────────────────────────────────────────────────────────────────


def test_a_sandbox_has_a_private_tmp_its_own_pids_and_a_read_only_system(
    server: Server, sandbox, tmp_path: Path
):
    beside = tmp_path / "beside"  # under /tmp, like everything of a test
    beside.write_text("secret")
    script = (
        "ls -A /tmp | wc -l; echo x > /tmp/$WEFT_JOB_UID && echo wrote tmp; echo $TMPDIR; [ $$ -lt 20 ] && echo own pids;"
        "touch /etc/weft-was-here 2>/dev/null || echo read-only; cat $BESIDE 2>/dev/null || echo unseen;"
        "ls /proc | grep -c '^[0-9]*$' | xargs test 20 -gt && echo alone"
    )
    done = server.run(sh(script, name="boxed", isolation="sandbox", env={"BESIDE": str(beside)}))
    assert done["status"]["state"] == "COMPLETED", server.text("boxed")
    lines = server.text("boxed")
    assert lines[1:] == ["wrote tmp", "/tmp", "own pids", "read-only", "unseen", "alone"]
    assert not Path("/etc/weft-was-here").exists()
    assert not Path("/tmp", server.uid("boxed")).exists()


def test_a_sandbox_sees_of_weft_only_its_own_folder(server: Server, sandbox):
    server.run(sh("echo private > $RESULT_DIR/theirs", name="other"))
    script = (
        "cat $H/token 2>/dev/null || echo no token; cat $H/weft.db >/dev/null 2>&1 || echo no database;"
        "cat $OTHER/results/theirs 2>/dev/null || echo no other job; ls $H/secrets 2>/dev/null || echo no secrets;"
        "echo mine > $RESULT_DIR/mine; echo kept > $CHECKPOINT_DIR/kept; cat $RESULT_DIR/mine; pwd; ls $H/jobs | wc -l"
    )
    env = {"H": str(server.home), "OTHER": str(server.folder("other"))}
    server.run(sh(script, name="boxed", isolation="sandbox", env=env))
    assert server.text("boxed") == [
        "no token", "no database", "no other job", "no secrets", "mine", f"{server.folder('boxed')}/code", "1",
    ]  # fmt: skip
    assert (server.folder("boxed") / "results" / "mine").read_text() == "mine\n"


def test_python_and_weft_work_in_a_sandbox(server: Server, sandbox):
    done = server.run(python("import weft; weft.log(step=1, loss=0.5)", name="boxed", isolation="sandbox"))
    assert done["status"]["state"] == "COMPLETED", server.text("boxed")
    assert [(p["name"], p["step"], p["value"]) for p in server.metrics("boxed")] == [("loss", 1, 0.5)]


def test_a_sandboxed_job_hears_sigterm_and_has_its_grace(server: Server, sandbox):
    script = "trap 'echo saving; sleep 0.3; echo saved > $CHECKPOINT_DIR/c; exit 0' TERM; echo on; while :; do sleep 0.05; done"
    name = server.submit(sh(script, name="boxed", isolation="sandbox", grace=10))
    server.printed_line(name, "on")
    server.ask(name, "halt")
    server.wait_for(name, "HALTED", timeout=8)
    assert "saving" in server.text(name)
    assert (server.folder(name) / "checkpoints" / "c").read_text() == "saved\n"


def test_a_deaf_sandbox_is_killed_after_the_grace(server: Server, sandbox):
    script = "trap '' TERM; echo on; while :; do sleep 0.05; done"
    name = server.submit(sh(script, name="boxed", isolation="sandbox", grace=0.4))
    server.printed_line(name, "on")
    pid = server.pid_of(name)
    server.ask(name, "cancel")
    server.wait_for(name, "CANCELLED", timeout=8)
    until(lambda: not alive(pid) and server.task_processes() == [], "the sandbox to be gone", 5)


def test_a_sandbox_tells_exit_codes(server: Server, sandbox):
    failed = server.run(sh("exit 42", name="boxed", isolation="sandbox"))
    assert failed["status"]["failure"]["message"] == "worker-0 exited with code 42"


def test_without_bubblewrap_a_sandbox_is_refused_in_plain_words(new_server, tmp_path: Path):
    server = new_server("--cpu", "2", PATH=str(tmp_path))
    failed = server.run(sh("true", name="boxed", isolation="sandbox"))
    assert failed["status"]["failure"]["code"] == "ISOLATION_UNAVAILABLE"
    assert "bubblewrap" in failed["status"]["failure"]["message"]
    assert server.reserved() == []
    failed = server.run(sh("true", name="imaged", image="debian:12"))
    assert failed["status"]["failure"]["code"] == "ISOLATION_UNAVAILABLE"
    assert "podman" in failed["status"]["failure"]["message"]


# ── containers ───────────────────────────────────────────────────────────────────────────────────

IMAGE = f"localhost/weft-test:{os.getpid()}"


@dataclass(frozen=True)
class Engine:
    """podman or docker as it works here, and the settings with which a server uses it."""

    tool: str
    settings: dict[str, str]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **{k: v for k, v in self.settings.items() if k != "PATH"}}
        return subprocess.run([self.tool, *arguments], env=env, capture_output=True, text=True, check=False)

    def works(self, archive: Path) -> bool:
        """Import a small image of this machine's busybox and run it."""
        self.run("import", str(archive), IMAGE)
        return self.run("run", "--rm", "--network=host", IMAGE, "/bin/true").returncode == 0


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("busybox-static is not installed (apt-get install busybox-static)")
    root = tmp_path_factory.mktemp("image") / "root"
    (root / "bin").mkdir(parents=True)
    shutil.copy(busybox, root / "bin" / "busybox")
    for tool in ("sh", "cat", "echo", "sleep", "touch", "env", "ls", "true"):
        (root / "bin" / tool).symlink_to("busybox")
    subprocess.run(["tar", "-C", str(root), "-cf", f"{root}.tar", "."], check=True)
    return root.with_suffix(".tar")


@pytest.fixture(scope="module", params=["podman", "docker"])
def containers(request, tmp_path_factory, archive: Path) -> Iterator[Engine]:
    tool = shutil.which(request.param)
    if tool is None:
        pytest.skip(f"{request.param} is not installed")
    place = tmp_path_factory.mktemp(request.param)
    with (_podman if request.param == "podman" else _docker)(tool, place, archive) as engine:
        yield engine
        engine.run("rmi", "--force", IMAGE)


@contextlib.contextmanager
def _podman(tool: str, place: Path, archive: Path) -> Iterator[Engine]:
    engine = Engine(tool, {"CONTAINERS_CONF": f"{place}/containers.conf"})
    for runtime in filter(None, map(shutil.which, ("crun", "runc"))):
        (place / "containers.conf").write_text(
            '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
            f'[engine]\nruntime = "{runtime}"\n'
        )
        if engine.works(archive):
            break
    else:
        pytest.skip("podman is installed but can run containers with neither crun nor runc on this machine")
    yield engine


@contextlib.contextmanager
def _docker(tool: str, place: Path, archive: Path) -> Iterator[Engine]:
    """A dockerd of the test's own: no network, no registry, nothing of it outside of `place`."""
    dockerd = shutil.which("dockerd")
    if dockerd is None or os.getuid() != 0:
        pytest.skip("dockerd is not installed, or not for this user (apt-get install docker.io, as root)")
    (place / "bin").mkdir()
    (place / "bin" / "docker").symlink_to(tool)
    parent, socket = f"/weft-test-{os.getpid()}", place / "d.sock"
    # on a PATH without podman, which a server would take first
    engine = Engine(tool, {"DOCKER_HOST": f"unix://{socket}", "PATH": f"{place}/bin"})
    with (place / "log").open("wb") as log:
        daemon = subprocess.Popen(
            [dockerd, "--iptables=false", "--bridge=none", "--storage-driver=vfs", f"--cgroup-parent={parent}",
             f"--data-root={place}/data", f"--exec-root={place}/exec", f"--pidfile={place}/pid", "--host", f"unix://{socket}"],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        until(
            lambda: daemon.poll() is not None or engine.run("version").returncode == 0, "dockerd", every=0.1
        )
        if daemon.poll() is not None or not engine.works(archive):
            pytest.skip(f"docker cannot run containers here: {(place / 'log').read_text()[-300:]}")
        yield engine
    finally:
        daemon.terminate()
        daemon.wait(30)
        subprocess.run(["umount", f"{place}/exec/netns/default"], capture_output=True, check=False)
        for group in Path("/sys/fs/cgroup").glob(f"*{parent}"):
            group.rmdir()


def test_a_container_runs_the_image_with_the_jobs_folder(new_server, containers: Engine):
    server = new_server("--cpu", "4", **containers.settings)
    script = "/bin/ls /; echo $WEFT_TASK $MINE; echo out > $RESULT_DIR/out; pwd; env"
    done = server.run(sh(script, name="imaged", image=IMAGE, env={"MINE": "yes"}), timeout=60)
    lines = server.text("imaged")
    assert done["status"]["state"] == "COMPLETED", lines
    assert "worker-0 yes" in lines
    assert f"{server.folder('imaged')}/code" in lines
    assert "usr" not in lines  # the image's own root, not this machine's
    assert not any("CONTAINERS_CONF" in line for line in lines)
    assert (server.folder("imaged") / "results" / "out").read_text() == "out\n"


def test_a_container_that_runs_out_of_memory_says_so(new_server, containers: Engine):
    server = new_server("--cpu", "4", **containers.settings)
    script = "x=$(/bin/busybox yes | /bin/busybox head -c 100000000); echo survived"
    resources = {"cpu": 0.5, "memory": "16Mi"}
    done = server.run(
        sh(script, name="hungry", image=IMAGE, roles={"worker": {"resources": resources}}), timeout=60
    )
    assert done["status"]["failure"]["code"] == "OUT_OF_MEMORY", server.text("hungry")
    assert "it reached its limit of 16 MiB (peak 16 MiB)" in done["status"]["failure"]["message"]


def test_what_a_container_used_is_known(new_server, containers: Engine):
    """Of the container, not of the program that started it."""
    server = new_server("--cpu", "4", **containers.settings)
    script = "x=$(/bin/busybox yes | /bin/busybox head -c 20000000); i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo done"
    resources = {"cpu": 0.5, "memory": "200Mi"}
    done = server.run(
        sh(script, name="eats", image=IMAGE, roles={"worker": {"resources": resources}}), timeout=60
    )
    assert done["status"]["state"] == "COMPLETED", server.text("eats")
    [task] = done["status"]["tasks"]
    assert 20_000_000 < task["exit"]["peakMemory"] < 200 << 20
    assert task["exit"]["cpuSeconds"] > 0.2


def test_an_image_that_cannot_be_pulled_is_named_with_the_reason(new_server, containers: Engine):
    server = new_server("--cpu", "4", **containers.settings)
    done = server.run(sh("true", name="nowhere", image="localhost:1/none:1"), timeout=60)
    failure = done["status"]["failure"]
    assert failure["code"] == "CANNOT_START", server.text("nowhere")
    assert "image localhost:1/none:1 could not be pulled: " in failure["message"]
    assert "refused" in failure["message"]


def test_a_container_may_exit_with_the_code_that_engines_use(new_server, containers: Engine):
    server = new_server("--cpu", "4", **containers.settings)
    done = server.run(sh("exit 125", name="own", image=IMAGE), timeout=60)
    assert done["status"]["failure"]["code"] == "EXIT_CODE"


def test_a_container_keeps_to_its_exclusive_cpus(new_server, containers: Engine):
    server = new_server(**containers.settings)
    done = server.run(sh("cat /proc/self/status", name="pinned", image=IMAGE), timeout=60)
    [cpu] = done["status"]["tasks"][0]["binding"]["cpus"]
    assert f"Cpus_allowed_list:\t{cpu}" in server.text("pinned")


def test_a_container_hears_sigterm_and_leaves_nothing(new_server, containers: Engine):
    server = new_server("--cpu", "4", **containers.settings)
    script = "trap 'echo saving; exit 0' TERM; echo on; while :; do sleep 0.1; done"
    name = server.submit(sh(script, name="imaged", image=IMAGE, grace=20))
    server.printed_line(name, "on", timeout=60)
    server.ask(name, "halt")
    server.wait_for(name, "HALTED", timeout=18)
    assert "saving" in server.text(name)
    left = containers.run(
        "ps", "--all", "--format", "{{.Names}}", "--filter", f"name=weft-{server.uid(name)}"
    )
    assert left.stdout.strip() == ""


def test_a_deaf_container_is_removed_after_the_grace(new_server, containers: Engine):
    server = new_server("--cpu", "4", **containers.settings)
    script = "trap '' TERM; echo on; while :; do sleep 0.1; done"
    name = server.submit(sh(script, name="imaged", image=IMAGE, grace=0.5))
    server.printed_line(name, "on", timeout=60)
    server.ask(name, "cancel")
    server.wait_for(name, "CANCELLED", timeout=40)
    until(lambda: server.task_processes() == [], "the container to be gone", 10)


# ── CPUs and GPUs ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(CPUS < 2, reason="pinning apart needs two CPUs")
def test_tasks_of_a_whole_cpu_have_it_alone(new_server):
    server = new_server()
    server.run(python(ON_AFFINITY, name="pinned", roles={"worker": {"replicas": 2, "resources": {"cpu": 1}}}))
    first, second = server.text("pinned")
    assert first != second
    assert first.count(",") == second.count(",") == 0


@pytest.mark.skipif(CPUS < 2, reason="pinning apart needs two CPUs")
def test_a_task_of_half_a_cpu_moves_away_from_exclusive_ones_and_back(new_server):
    server = new_server()
    roles = {"worker": {"resources": {"cpu": "500m"}}}
    half = server.submit(sh("echo on; sleep 1000 & wait", name="half", roles=roles, grace=1))
    server.printed_line(half, "on")
    everything = os.sched_getaffinity(0)
    pids = lambda: [server.pid_of(half), *_children(server.pid_of(half))]  # noqa: E731
    assert all(os.sched_getaffinity(pid) == everything for pid in pids())
    whole = server.submit(
        sh("echo on; exec sleep 1000", name="whole", roles={"worker": {"resources": {"cpu": 1}}})
    )
    server.printed_line(whole, "on")
    own = os.sched_getaffinity(server.pid_of(whole))
    assert len(own) == 1
    until(lambda: all(os.sched_getaffinity(pid) == everything - own for pid in pids()), "the move away", 5)
    server.ask(whole, "cancel")
    server.wait_for(whole)
    until(lambda: all(os.sched_getaffinity(pid) == everything for pid in pids()), "the move back", 5)
    server.ask(half, "cancel")
    server.wait_for(half)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(os.getuid() != 0, reason="CPU limits need a cgroup, which only root can make here")
def test_a_fraction_of_a_cpu_is_a_limit(new_server):
    server = new_server()
    burn = "import time, os; t = time.monotonic()\nwhile time.monotonic() - t < 1: pass\nprint(sum(os.times()[:2]))"
    server.run(python(burn, name="slow", roles={"worker": {"resources": {"cpu": "200m"}}}))
    assert float(server.text("slow")[0]) < 0.6


def test_virtual_gpus_are_handed_out_by_index(new_server):
    server = new_server("--cpu", "16", "--gpus", "4", "--gpu-type", "v100")
    (node,) = server.nodes()
    assert (node["capacity"]["gpu"], node["capacity"]["gpuType"]) == (4, "v100")
    roles = {"worker": {"replicas": 3, "resources": {"gpu": 1, "gpuType": "v100"}}}
    server.run(sh("echo $CUDA_VISIBLE_DEVICES $WEFT_GPUS $GPU_COUNT", name="cuda", roles=roles))
    seen = [line.split() for line in server.text("cuda")]
    assert len({devices for devices, _, _ in seen}) == 3
    assert all(devices == gpus and count == "1" for devices, gpus, count in seen)
    server.run(sh("echo [$CUDA_VISIBLE_DEVICES]", name="none"))
    assert server.text("none") == ["[]"]
    server.submit(sh("true", name="wrong", roles={"worker": {"resources": {"gpu": 1, "gpuType": "a100"}}}))
    assert "a100" in server.get("/v1/jobs/wrong/explain").json["reason"]
    server.ask("wrong", "cancel")


@pytest.mark.parametrize(
    ("placement", "nodes"),
    [({"strategy": "spread"}, 4), ({"strategy": "pack"}, 2), ({"strategy": "spread", "nodes": "one"}, 1)],
)
def test_placement_on_virtual_nodes(new_server, placement, nodes):
    server = new_server("--nodes", "4", "--cpu", "8")
    assert [node["name"] for node in server.nodes()] == [f"local-{i}" for i in range(4)]
    tasks = 2 if placement.get("nodes") == "one" else 4
    server.run(
        sh("echo $WEFT_NODE", name="placed", roles={"worker": {"replicas": tasks}}, placement=placement)
    )
    assert len(set(server.text("placed"))) == nodes
    assert server.reserved() == []


def test_one_node_that_is_not_large_enough_is_explained(new_server):
    server = new_server("--nodes", "4", "--cpu", "8")
    document = sh("true", name="big", roles={"worker": {"replicas": 3}}, placement={"nodes": "one"})
    server.submit(document)
    explained = server.get("/v1/jobs/big/explain").json
    assert explained["possible"] is False
    assert "3" in explained["reason"]
    assert "2" in explained["reason"]
    server.ask("big", "cancel")


def test_a_selector_chooses_the_node(new_server):
    server = new_server("--nodes", "4", "--cpu", "8")
    placement = {"selector": {"weft.dev/node": "local-2"}}
    server.run(sh("echo $WEFT_NODE", name="chosen", placement=placement))
    assert server.text("chosen") == ["local-2"]
