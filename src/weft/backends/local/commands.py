"""From a task to what a supervisor starts: its argument list, environment and isolation."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.backends.api import Assignment
from weft.backends.local.folders import JobFolder, replace_file
from weft.jobtypes.render import render_command, render_env
from weft.model.failures import Code, Permanent
from weft.model.gang import Request, Task
from weft.model.status import TaskStatus
from weft.model.template import Facts, RoleFacts
from weft.runtime.hosts import INLINE

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


@dataclass(frozen=True, slots=True)
class Gathering:
    """What the tasks of one launch share, worked out once: per task it would grow with the gang's square."""

    job: Assignment
    launch: int
    folder: JobFolder
    data: str
    hosts: Mapping[str, list[str]]
    places: Mapping[str, str]
    """host:port by task."""
    variables: Mapping[str, str]
    """Where to meet."""
    secrets: Mapping[str, str]
    statuses: Mapping[str, TaskStatus]
    ranks: Mapping[str, int]
    """Among the tasks that run: an elastic gang has more than those."""
    local_ranks: Mapping[str, int]


def gather(
    job: Assignment, launch: int, folder: JobFolder, data: str, ports: list[int], secrets: Mapping[str, str]
) -> Gathering:
    """Work that out. The addresses of a wide gang are written to its folder."""
    hosts = hosts_of(job, ports)
    places = {task.name: _address(port) for task, port in zip(job.gang.tasks, ports, strict=True)}
    chief = next(t for t in job.gang.tasks if t.chief)
    address, _, port_of_chief = hosts[chief.role][0].rpartition(":")
    variables = {"MASTER_ADDR": address, "MASTER_PORT": port_of_chief}
    if len(job.gang.tasks) <= INLINE:
        variables["WEFT_HOSTS"] = json.dumps(hosts)
    if len(job.gang.tasks) > INLINE or job.gang.elastic:
        replace_file(folder.hosts, json.dumps(hosts))
        variables["WEFT_HOSTS_FILE"] = folder.hosts
    beside: Counter[str] = Counter()
    local_ranks = {}
    for status in job.status.tasks:
        if status.binding is not None:
            local_ranks[status.name] = beside[status.binding.node]
            beside[status.binding.node] += 1
    statuses = {status.name: status for status in job.status.tasks}
    ranks = {task.name: rank for rank, task in enumerate(taking_part(job))}
    return Gathering(
        job, launch, folder, data, hosts, places, variables, secrets, statuses, ranks, local_ranks
    )


def taking_part(job: Assignment) -> list[Task]:
    """The tasks that have a place and keep it: all of them, unless the gang is elastic."""
    staying = {t.name for t in job.status.tasks if t.binding is not None and not t.leaving}
    return [task for task in job.gang.tasks if task.name in staying]


def hosts_of(job: Assignment, ports: list[int]) -> dict[str, list[str]]:
    """The addresses of those, by role."""
    staying = {task.name for task in taking_part(job)}
    hosts: dict[str, list[str]] = {task.role: [] for task in job.gang.tasks}
    for task, port in zip(job.gang.tasks, ports, strict=True):
        if task.name in staying:
            hosts[task.role].append(_address(port))
    return hosts


def _address(port: int) -> str:
    return f"127.0.0.1:{port}"


def task_environment(
    base: Mapping[str, str], shared: Gathering, task: Task, node_has_gpus: bool
) -> dict[str, str]:
    """The variables of one task: Weft's own, the names people know, the job type's, the user's."""
    job, folder = shared.job, shared.folder
    status = shared.statuses[task.name]
    binding = status.binding
    assert binding is not None
    world = str(len(shared.ranks))
    rank = str(shared.ranks[task.name])
    gpus = ",".join(map(str, binding.gpus))
    own = {
        "WEFT_JOB": job.name,
        "WEFT_JOB_UID": job.uid,
        "WEFT_TASK": task.name,
        "WEFT_ROLE": task.role,
        "WEFT_INDEX": str(task.index),
        "WEFT_RANK": rank,
        "WEFT_WORLD_SIZE": world,
        **shared.variables,
        "WEFT_RESTARTS": str(status.restarts),
        "WEFT_LAUNCH": str(shared.launch),
        "WEFT_METRICS_FILE": f"{folder.task(task.name)}/metrics.jsonl",
        "WEFT_ACTIVITY_FILE": folder.activity(task.name),
        "WEFT_URL_FILE": folder.url(task.name, shared.launch),
        "WEFT_NODE": binding.node,
        "WEFT_GPUS": gpus,
        "DATA_DIR": shared.data,
        "RESULT_DIR": folder.results,
        "CHECKPOINT_DIR": folder.checkpoints,
        "MODEL_DIR": folder.code,
        "LOG_DIR": folder.logs,
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": str(shared.local_ranks[task.name]),
        "LEARNER_ID": str(shared.ranks[task.name] + 1),
        "NUM_LEARNERS": world,
        "GPU_COUNT": str(len(binding.gpus)),
        "TRAINING_ID": job.name,
    }
    if job.status.checkpoint is not None:
        own["WEFT_CHECKPOINT_STEP"] = job.status.checkpoint
    if job.spec.idle_timeout:
        own["WEFT_IDLE_TIMEOUT"] = f"{job.spec.idle_timeout:g}"
    if task.request.gpu_share:
        own["WEFT_GPU_SHARE"] = f"{task.request.gpu_share / 1000:g}"
    if node_has_gpus or binding.gpus:
        own["CUDA_VISIBLE_DEVICES"] = gpus
    role = job.spec.roles[task.role]
    users = {**job.spec.env, **role.env, **shared.secrets}
    if "PYTHONPATH" in users:
        users["PYTHONPATH"] = f"{users['PYTHONPATH']}:{base['PYTHONPATH']}"
    template = job.spec.template
    of_the_type = render_env(template, task.role, facts(shared, task, own)) if template is not None else {}
    return {**base, **own, **of_the_type, **users}


def facts(shared: Gathering, task: Task, own: Mapping[str, str]) -> Facts:
    """What templates are filled from. A wide role is not listed: WEFT_HOSTS_FILE has it."""
    job, status = shared.job, shared.statuses[task.name]
    host, _, port = shared.places[task.name].rpartition(":")
    gpus = len(status.binding.gpus) if status.binding is not None else 0
    command = (job.spec.roles[task.role].command or job.spec.command or [""])[0]
    plain = {
        "job": job.name,
        "task": task.name,
        "role": task.role,
        "index": str(task.index),
        "rank": str(shared.ranks[task.name]),
        "localRank": str(shared.local_ranks[task.name]),
        "world": str(len(shared.ranks)),
        "launch": str(shared.launch),
        "restarts": str(status.restarts),
        "host": host,
        "port": port,
        "gpus": str(gpus),
        "processes": str(max(1, gpus)),
        "python": command if re.match(r"python[\d.]*$", os.path.basename(command)) else "python",  # noqa: PTH119
        "chief": "true" if task.chief else "false",
        "chief.host": shared.variables["MASTER_ADDR"],
        "chief.port": shared.variables["MASTER_PORT"],
    }
    roles = {}
    for name, places in shared.hosts.items():
        role = job.spec.roles[name]
        least = role.replicas if role.min_replicas is None else role.min_replicas
        narrow = places if len(places) <= INLINE else ()
        roles[name] = RoleFacts(narrow, least, role.max_replicas or role.replicas)
    return Facts(plain, roles, own)


def task_command(shared: Gathering, task: Task) -> list[str]:
    job = shared.job
    role = job.spec.roles[task.role]
    command = role.command or job.spec.command
    assert command is not None, "completion refuses a job without a command"
    own = [*command, *(job.spec.args if role.args is None else role.args)]
    if job.spec.template is None:
        return own
    return render_command(job.spec.template, task.role, own, facts(shared, task, {}))


@dataclass(frozen=True, slots=True)
class Isolated:
    """An argv inside its isolation, and what to run once it has ended, however it ended."""

    argv: list[str]
    cleanup: list[list[str]]


def isolate(
    shared: Gathering, task: Task, spec: dict[str, Any], home: str, devices: Sequence[int]
) -> Isolated:
    """Wrap a task's command as its job asks: plain, in a sandbox, or in a container. `devices` are real GPUs."""
    image = image_of(shared.job, task)
    if image is not None:
        return _container(shared, task, spec, image, devices)
    if shared.job.spec.isolation == "sandbox":
        return Isolated([*_sandbox(spec, home, shared.folder), *spec["argv"]], [])
    return Isolated(spec["argv"], [])


def image_of(job: Assignment, task: Task) -> str | None:
    return job.spec.roles[task.role].image or job.spec.image


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
    scheme, _, place = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").partition("://")
    return docker if docker is not None and (scheme != "unix" or Path(place).exists()) else None


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
    shared: Gathering, task: Task, spec: dict[str, Any], image: str, devices: Sequence[int]
) -> Isolated:
    """`podman run` with the job's folder at the same path; variables by name, so that no value is in an argv."""
    tool = engine()
    if tool is None:
        why = unavailable(shared.job) or "no container engine"
        raise Permanent(Code.ISOLATION_UNAVAILABLE, why, task.name)
    name = f"weft-{shared.job.uid}-{task.name}-{shared.launch}"
    env, root = spec["env"], shared.folder.root
    env["TMPDIR"] = "/tmp"
    if devices:  # a container counts the GPUs that it was given from 0; WEFT_GPUS has the machine's numbers
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(len(devices))))
    hidden = {"TMPDIR", "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH", "PYTHONPATH"}
    variables = [f"--env={key}" for key in sorted(env) if key not in hidden]
    for key in OF_THE_ENGINE & os.environ.keys():
        env.setdefault(key, os.environ[key])
    argv = [
        tool, "run", "--rm", "--name", name, "--network=host", "--pull=missing", "--security-opt=no-new-privileges",
        *_limits(task.request, spec["cpus"]), *_gpus(tool, devices), *variables, f"--volume={root}:{root}:ro",
        *(f"--volume={path}:{path}" for path in _writable(spec, shared.folder)),
        f"--volume={env['DATA_DIR']}:{env['DATA_DIR']}:ro", f"--workdir={spec['cwd']}", image, *spec["argv"],
    ]  # fmt: skip
    remove = ["rm", "--force", "--time=0", "--ignore", name] if _is_podman(tool) else ["rm", "-f", name]
    return Isolated(argv, [[tool, *remove]])


def _limits(request: Request, cpus: Sequence[int]) -> list[str]:
    flags = [f"--memory={request.memory}", f"--memory-swap={request.memory}"] if request.memory else []
    if cpus:
        flags.append(f"--cpuset-cpus={','.join(map(str, cpus))}")
    if request.cpu and not request.whole_cpus:
        flags.append(f"--cpus={request.cpu / 1000:g}")
    return flags


def _gpus(tool: str, devices: Sequence[int]) -> list[str]:
    if _is_podman(tool):
        return [f"--device=nvidia.com/gpu={index}" for index in devices]
    # docker reads the value as a line of CSV: without the quotes the second index would be an option of its own
    return [f'--gpus="device={",".join(map(str, devices))}"'] if devices else []


def _is_podman(tool: str) -> bool:
    return Path(tool).name == "podman"


ENGINES_ERROR = re.compile(r"(?:Error: |docker: (?:Error response from daemon: )?)(.+)")
PULLING = re.compile(
    r"^Trying to pull |^Unable to find image |short-name |initializing source |image not known", re.M
)


def engines_complaint(image: str, lines: Sequence[str]) -> str | None:
    """Why podman or docker never started the image, from what they printed; None if it was the task's own doing."""
    why = next((found[1] for line in reversed(lines) if (found := ENGINES_ERROR.match(line))), None)
    if why is None:
        return None
    what = "pulled" if PULLING.search("\n".join(lines)) else "started"
    return f"image {image} could not be {what}: {why}"
