"""From a task to what a supervisor starts: its argument list, environment and isolation."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.backends.api import Assignment
from weft.backends.local.folders import JobFolder
from weft.jobtypes.render import render_env
from weft.model.failures import Code, Permanent
from weft.model.gang import Task
from weft.model.job import Role

INHERITED = frozenset(
    "HOME USER LOGNAME SHELL LANG LANGUAGE TZ LD_LIBRARY_PATH CUDA_HOME CUDA_PATH SSL_CERT_FILE SSL_CERT_DIR "  # noqa: SIM905
    "REQUESTS_CA_BUNDLE http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY".split()
)
"""What a task takes over from the server's environment; a server's other variables may be secrets."""

OF_THE_ENGINE = frozenset(
    [
        "XDG_RUNTIME_DIR",
        "DBUS_SESSION_BUS_ADDRESS",
        "CONTAINERS_CONF",
        "CONTAINERS_STORAGE_CONF",
        "CONTAINERS_REGISTRIES_CONF",
        "REGISTRY_AUTH_FILE",
        "DOCKER_HOST",
        "DOCKER_CONTEXT",
        "DOCKER_CONFIG",
    ]
)
"""What podman or docker take over from the server's environment; the container does not see it."""

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def base_environment(environ: Mapping[str, str], runtime: str) -> dict[str, str]:
    """What every task on this machine starts from.

    `python` is the interpreter that Weft runs in, and `import weft` works in any other one too: the
    folder `runtime` holds a link to this package and nothing else.
    """
    base = {
        name: value.encode(errors="replace").decode()  # what is no UTF-8 cannot travel as JSON
        for name, value in environ.items()
        if name in INHERITED or name.startswith("LC_")
    }
    own = str(Path(sys.executable).parent)
    base["PATH"] = f"{own}:{environ.get('PATH', DEFAULT_PATH)}"
    base["PYTHONPATH"] = runtime
    base["PYTHONUNBUFFERED"] = "1"
    return base


def task_environment(
    base: Mapping[str, str],
    job: Assignment,
    task: Task,
    folder: JobFolder,
    data: str,
    hosts: Mapping[str, list[str]],
    secrets: Mapping[str, str],
    node_has_gpus: bool,
    launch: int,
) -> dict[str, str]:
    """The variables of one task: Weft's own, the names people know, the job type's, the user's."""
    status = job.status.task(task.name)
    binding = status.binding
    assert binding is not None
    world = len(job.gang.tasks)
    beside = [t for t in job.status.tasks if t.binding and t.binding.node == binding.node]
    local_rank = next(i for i, t in enumerate(beside) if t.name == task.name)
    chief = next(t for t in job.gang.tasks if t.chief)
    address, _, port = hosts[chief.role][chief.index].rpartition(":")
    metrics = f"{folder.task(task.name)}/metrics.jsonl"
    own = {
        "WEFT_JOB": job.name,
        "WEFT_JOB_UID": job.uid,
        "WEFT_TASK": task.name,
        "WEFT_ROLE": task.role,
        "WEFT_INDEX": str(task.index),
        "WEFT_RANK": str(task.rank),
        "WEFT_WORLD_SIZE": str(world),
        "WEFT_HOSTS": json.dumps(hosts),
        "WEFT_RESTARTS": str(status.restarts),
        "WEFT_LAUNCH": str(launch),
        "WEFT_METRICS_FILE": metrics,
        "WEFT_NODE": binding.node,
        "WEFT_GPUS": ",".join(map(str, binding.gpus)),
        "DATA_DIR": data,
        "RESULT_DIR": folder.results,
        "CHECKPOINT_DIR": folder.checkpoints,
        "MODEL_DIR": folder.code,
        "LOG_DIR": folder.logs,
        "RANK": str(task.rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(local_rank),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "LEARNER_ID": str(task.rank + 1),
        "NUM_LEARNERS": str(world),
        "GPU_COUNT": str(len(binding.gpus)),
        "TRAINING_ID": job.name,
    }
    if node_has_gpus or binding.gpus:
        own["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, binding.gpus))
    role = job.spec.roles[task.role]
    users = {**job.spec.env, **role.env, **secrets}
    if "PYTHONPATH" in users:
        users["PYTHONPATH"] = f"{users['PYTHONPATH']}:{base['PYTHONPATH']}"
    return {**base, **own, **render_env(job.spec.type, own, hosts), **users}


def task_command(job: Assignment, role: Role) -> list[str]:
    command = role.command or job.spec.command
    assert command is not None, "completion refuses a job without a command"
    return [*command, *(job.spec.args if role.args is None else role.args)]


@dataclass(frozen=True, slots=True)
class Isolated:
    """An argv inside its isolation, and what to run once it has ended, however it ended."""

    argv: list[str]
    cleanup: list[list[str]]


def isolate(
    job: Assignment, task: Task, spec: dict[str, Any], home: str, folder: JobFolder, launch: int
) -> Isolated:
    """Wrap a task's command as its job asks: plain, in a sandbox, or in a container."""
    image = job.spec.roles[task.role].image or job.spec.image
    if image is not None:
        return _container(job, task, spec, image, folder, launch)
    if job.spec.isolation == "sandbox":
        return Isolated([*_sandbox(spec, home, folder), *spec["argv"]], [])
    return Isolated(spec["argv"], [])


def unavailable(job: Assignment) -> str | None:
    """Why this machine cannot isolate the job as asked, or None."""
    if job.spec.isolation == "sandbox" and shutil.which("bwrap") is None:
        return "isolation: sandbox needs bubblewrap, which is not installed here (apt-get install bubblewrap)"
    if (job.spec.image or any(r.image for r in job.spec.roles.values())) and engine() is None:
        return "an image needs podman or docker, and neither works here (apt-get install podman), or leave `image` out"
    return None


def engine() -> str | None:
    """podman, else docker where its engine can be reached."""
    if (podman := shutil.which("podman")) is not None:
        return podman
    docker = shutil.which("docker")
    return docker if docker is not None and Path("/var/run/docker.sock").exists() else None


def _writable(spec: dict[str, Any], folder: JobFolder) -> list[str]:
    """What an isolated task may change of its job's folder; not the journals of its launches."""
    return [folder.code, folder.results, folder.checkpoints, folder.logs, spec["dir"]]


def _sandbox(spec: dict[str, Any], home: str, folder: JobFolder) -> list[str]:
    """A read-only system, private /tmp and process ids; of WEFT_HOME only the job's own folder.

    The network is shared, since the tasks of a gang must reach each other.
    """
    bwrap = shutil.which("bwrap")
    assert bwrap is not None
    visible = []
    for prefix in dict.fromkeys((sys.prefix, sys.base_prefix)):
        if prefix.startswith("/tmp/"):
            visible += ["--ro-bind", prefix, prefix]
    runtime = f"{home}/runtime"
    package = str(Path(f"{runtime}/weft").resolve())
    if package.startswith("/tmp/"):
        visible += ["--ro-bind", package, package]
    devices = [d for d in ("/dev/shm", *map(str, Path("/dev").glob("nvidia*"))) if os.path.exists(d)]  # noqa: PTH110
    binds = [flag for device in devices for flag in ("--dev-bind", device, device)]
    spec["env"]["TMPDIR"] = "/tmp"
    writable = [flag for path in _writable(spec, folder) for flag in ("--bind", path, path)]
    return [
        bwrap, "--ro-bind", "/", "/", "--dev", "/dev", *binds, "--proc", "/proc", "--tmpfs", "/tmp",
        "--tmpfs", home, *visible, "--ro-bind", runtime, runtime, "--ro-bind", f"{home}/data", f"{home}/data", "--ro-bind", folder.root, folder.root, *writable,
        "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--chdir", spec["cwd"], "--",
    ]  # fmt: skip


def _container(
    job: Assignment, task: Task, spec: dict[str, Any], image: str, folder: JobFolder, launch: int
) -> Isolated:
    """`podman run` with the job's folder at the same path; variables by name, so that no value is in an argv."""
    tool = engine()
    if tool is None:
        raise Permanent(Code.ISOLATION_UNAVAILABLE, unavailable(job) or "no container engine", task.name)
    name = f"weft-{job.uid}-{task.name}-{launch}"
    request = task.request
    spec["env"]["TMPDIR"] = "/tmp"
    hidden = {"TMPDIR", "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH", "PYTHONPATH"}
    variables = [f"--env={key}" for key in sorted(spec["env"]) if key not in hidden]
    for key in OF_THE_ENGINE & os.environ.keys():
        spec["env"].setdefault(key, os.environ[key])
    limits = [f"--memory={request.memory}", f"--memory-swap={request.memory}"] if request.memory else []
    if spec["cpus"]:
        limits.append(f"--cpuset-cpus={','.join(map(str, spec['cpus']))}")
    if request.cpu and not request.whole_cpus:
        limits.append(f"--cpus={request.cpu / 1000:g}")
    argv = [
        tool, "run", "--rm", "--name", name, "--network=host", "--pull=missing", "--security-opt=no-new-privileges",
        *limits, *variables, f"--volume={folder.root}:{folder.root}:ro",
        *(f"--volume={path}:{path}" for path in _writable(spec, folder)),
        f"--volume={spec['env']['DATA_DIR']}:{spec['env']['DATA_DIR']}:ro", f"--workdir={spec['cwd']}", image, *spec["argv"],
    ]  # fmt: skip
    return Isolated(
        argv,
        [[tool, "rm", "--force", "--ignore", name]]
        if tool.endswith("podman")
        else [[tool, "rm", "-f", name]],
    )
