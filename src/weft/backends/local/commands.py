"""What of a task's start is this machine's: the environment that it begins with, and its isolation."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.backends.api import Assignment
from weft.backends.folders import JobFolder
from weft.backends.local.containergroups import ContainerGroups
from weft.backends.tasks import Gathering, image_of
from weft.model.failures import Code, Permanent
from weft.model.gang import Request, Task

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
class Isolated:
    """An argv inside its isolation, and what to run once it has ended, however it ended."""

    argv: list[str]
    cleanup: list[list[str]]


def isolate(
    shared: Gathering,
    folder: JobFolder,
    task: Task,
    spec: dict[str, Any],
    home: str,
    devices: Sequence[int],
    groups: ContainerGroups,
) -> Isolated:
    """Wrap a task's command as its job asks: plain, in a sandbox, or in a container. `devices` are real GPUs."""
    image = image_of(shared.job, task)
    if image is not None:
        return _container(shared, folder, task, spec, image, devices, groups)
    if shared.job.spec.isolation == "sandbox":
        return Isolated([*_sandbox(spec, home, folder), *spec["argv"]], [])
    return Isolated(spec["argv"], [])


def unavailable(job: Assignment) -> str | None:
    """Why this machine cannot isolate the job as asked, or None."""
    if job.spec.isolation == "sandbox" and shutil.which("bwrap") is None:
        return "isolation: sandbox needs bubblewrap, which is not installed here (apt-get install bubblewrap)"
    if _has_images(job) and engine() is None:
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
    visible += [flag for path in spec.get("reads", ()) for flag in ("--ro-bind", path, path)]
    writable = [flag for path in _writable(spec, folder) for flag in ("--bind", path, path)]
    return [
        bwrap, "--ro-bind", "/", "/", "--dev", "/dev", *binds, "--proc", "/proc", "--tmpfs", "/tmp",
        "--tmpfs", home, *visible, "--ro-bind", runtime, runtime, "--ro-bind", f"{home}/data", f"{home}/data", "--ro-bind", folder.root, folder.root, *writable,
        "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--chdir", spec["cwd"], "--",
    ]  # fmt: skip


def _container(
    shared: Gathering,
    folder: JobFolder,
    task: Task,
    spec: dict[str, Any],
    image: str,
    devices: Sequence[int],
    groups: ContainerGroups,
) -> Isolated:
    """`podman run` with the job's folder at the same path; variables by name, so that no value is in an argv."""
    tool = engine()
    if tool is None:
        why = unavailable(shared.job) or "no container engine"
        raise Permanent(Code.ISOLATION_UNAVAILABLE, why, task.name)
    name = f"weft-{shared.job.uid}-{task.name}-{shared.launch}"
    env, root = spec["env"], folder.root
    env["TMPDIR"] = "/tmp"
    if devices:  # a container counts the GPUs that it was given from 0; WEFT_GPUS has the machine's numbers
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(len(devices))))
    hidden = {"TMPDIR", "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LD_LIBRARY_PATH", "PYTHONPATH"}
    variables = [f"--env={key}" for key in sorted(env) if key not in hidden]
    for key in OF_THE_ENGINE & os.environ.keys():
        env.setdefault(key, os.environ[key])
    spec["cgroups"] = groups.plan(name) if _takes_groups(tool, groups) else None
    manager, into = below(tool, groups.parent(name)) if spec["cgroups"] else ([], [])
    argv = [
        tool, *manager, "run", *into, "--rm", "--name", name, "--network=host", "--pull=missing", "--security-opt=no-new-privileges",
        *_limits(task.request, spec["cpus"]), *_gpus(tool, devices), *variables, f"--volume={root}:{root}:ro",
        *(f"--volume={path}:{path}" for path in _writable(spec, folder)),
        *(f"--volume={path}:{path}:ro" for path in spec.get("reads", ())),
        f"--volume={env['DATA_DIR']}:{env['DATA_DIR']}:ro", f"--workdir={spec['cwd']}", image, *spec["argv"],
    ]  # fmt: skip
    remove = ["rm", "--force", "--time=0", "--ignore", name] if _is_podman(tool) else ["rm", "-f", name]
    return Isolated(argv, [[tool, *manager, *remove]])


def _takes_groups(tool: str, groups: ContainerGroups) -> bool:
    return os.geteuid() == 0 if _is_podman(tool) else groups.dockers.takes_a_parent(tool)


def to_be_asked(job: Assignment, groups: ContainerGroups) -> str | None:
    """The docker that has to say how it makes groups before the job's containers start."""
    tool = engine() if _has_images(job) else None
    return None if tool is None or _is_podman(tool) or tool in groups.dockers.drivers else tool


def _has_images(job: Assignment) -> bool:
    return bool(job.spec.image or any(role.image for role in job.spec.roles.values()))


def below(tool: str, parent: str) -> tuple[list[str], list[str]]:
    """What an engine is told before and after `run` to put a container, and nothing of its own, into a group."""
    if _is_podman(tool):
        return ["--cgroup-manager=cgroupfs"], ["--cgroups=no-conmon", f"--cgroup-parent={parent}"]
    return [], [f"--cgroup-parent={parent}"]


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
