"""`weft up`, `down`, `status`, `backup` and `restore`: the server of this machine."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any, Literal

from weft.cli import moments, terminal
from weft.cli.meter import meter
from weft.cli.output import PageForm, print_whole
from weft.client.api import Client
from weft.client.errors import ApiError, NoServer, WeftError
from weft.client.home import home_folder, running_server, server_document
from weft.client.job import IDLE
from weft.client.start import (
    ensure_server,
    is_server_process,
    process_alive,
    server_command,
    server_environment,
    stop_server,
)

PolicyName = Literal["default", "expected", "fifo", "fifo-backfill", "shortest", "least-attained", "fair"]
"""As in `weft.scheduler.policy`, which the command line does not import."""


def up(
    *,
    nodes: int | None = None,
    cpu: str | None = None,
    memory: str | None = None,
    gpus: int | None = None,
    gpu_type: str | None = None,
    gpu_memory: str | None = None,
    gpu_generation: int | None = None,
    cache: str | None = None,
    racks: int | None = None,
    fabrics: int | None = None,
    devices: list[str] | None = None,
    taint: list[str] | None = None,
    policy: PolicyName | None = None,
    results_store: str | None = None,
    database: str | None = None,
    backend: Literal["local", "kubernetes"] | None = None,
    kubeconfig: str | None = None,
    context: str | None = None,
    namespace: str | None = None,
    image: str | None = None,
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None,
    rack_label: str | None = None,
    cluster_scheduler: str | None = None,
    pod_groups: Literal["volcano", "coscheduling"] | None = None,
    memory_per_cpu: str | None = None,
    custom_resources: Literal["all", "none"] | None = None,
    host: str | None = None,
    port: int | None = None,
    foreground: bool = False,
) -> int:
    """Start the server of this machine. It takes up what an earlier one left running.

    For example:
      weft up
      weft up --nodes 4 --cpu 8 --memory 32Gi
      weft up --nodes 8 --gpus 64 --gpu-type v100 --gpu-memory 16Gi --racks 2
      weft up --nodes 4 --taint spot --taint local-3:noisy
      weft up --policy fair
      weft up --results-store /mnt/backup/weft
      weft up --database postgresql://weft@db.example.com/weft
      weft up --backend kubernetes --namespace team-a
      weft up --foreground

    Parameters
    ----------
    nodes
        Divide this machine into so many nodes (default 1).
    cpu
        CPUs of all nodes together (default: what the machine has).
    memory
        Memory of all nodes together.
    gpus
        GPUs of all nodes together.
    gpu_type
        What to call them.
    gpu_memory
        Memory of each of these GPUs: 16Gi.
    gpu_generation
        Generation of the GPUs, for jobs that want one at least so new: 3.
    cache
        Give each node a cache of so much for datasets, as if it were a machine of its own: 10Gi (default: all read the
        server's own store).
    racks
        Spread the nodes over so many racks, for jobs that want to be in one.
    fabrics
        Spread the nodes over so many fast networks.
    devices
        What else each node has a number of: fpga=2. Repeatable.
    taint
        Keep jobs off all nodes (KEY) or off one (NODE:KEY) that do not tolerate KEY. Repeatable.
    policy
        The order of waiting jobs: default, expected, fifo, fifo-backfill, shortest, least-attained or fair.
        Kept for later starts.
    results_store
        A folder on another disk, where checkpoints (while jobs run) and results (at their end) are kept a second
        time. Kept for later starts; none: no longer.
    database
        A PostgreSQL in place of SQLite in the home (WEFT_DATABASE). Its password comes from PGPASSWORD, PGPASSFILE or
        the URL in WEFT_DATABASE. Kept for later starts, without the password.
    backend
        Where tasks run: local, this machine; or kubernetes, a cluster, in which nothing has to be installed. Kept for
        later starts, as are the options of the cluster.
    kubeconfig
        How the cluster is reached (default: KUBECONFIG, else ~/.kube/config).
    context
        Which context of the kubeconfig (default: its current one).
    namespace
        Where jobs' pods are made (default: the context's).
    image
        Weft's own image, which runs beside every task, and for jobs that name none.
    image_pull_policy
        When nodes pull it (default: IfNotPresent).
    custom_resources
        Kubernetes: none leaves TrainingJobs, queues, job types and sizes of the cluster to another control plane.
    rack_label
        The node label that names a node's rack, for jobs that want to be in one (default: weft.dev/rack).
    cluster_scheduler
        Kubernetes: who places the pods of jobs with scheduling: default (default: who does so for everybody else).
    pod_groups
        Kubernetes: make the PodGroup of volcano or of coscheduling for the gangs of such jobs (default: none).
    memory_per_cpu
        Kubernetes: what a task that asks for no memory gets, and may use, for each of its CPUs (default: 4Gi).
    host
        The address to listen on (default 127.0.0.1).
    port
        The port to listen on (default: the last one, else any free one).
    foreground
        Stay in this terminal, with the log on it.
    """
    given = {
        "--nodes": nodes,
        "--cpu": cpu,
        "--memory": memory,
        "--gpus": gpus,
        "--gpu-type": gpu_type,
        "--gpu-memory": gpu_memory,
        "--gpu-generation": gpu_generation,
        "--cache": cache,
        "--racks": racks,
        "--fabrics": fabrics,
        "--devices": ",".join(devices) if devices else None,
        "--policy": policy,
        "--results-store": None if results_store in (None, "none") else str(Path(results_store).absolute()),
        "--database": database,
        "--backend": backend,
        "--kubeconfig": None if kubeconfig is None else str(Path(kubeconfig).expanduser().absolute()),
        "--context": context,
        "--namespace": namespace,
        "--image": image,
        "--image-pull-policy": image_pull_policy,
        "--rack-label": rack_label,
        "--cluster-scheduler": cluster_scheduler,
        "--pod-groups": pod_groups,
        "--memory-per-cpu": memory_per_cpu,
        "--custom-resources": custom_resources,
        "--host": host,
        "--port": port,
    }
    options = [text for name, value in given.items() if value is not None for text in (name, str(value))]
    options += [text for key in taint or () for text in ("--taint", key)]
    options += ["--results-store", "none"] if results_store == "none" else []
    home = home_folder()
    if foreground:
        return _stay(home, options)
    document, started = ensure_server(home, options)
    print(f"server {'started' if started else 'runs already'} at {document['address']}")
    terminal.note(f"pid {document['pid']}, data in {home}, log in {home / 'server.log'}")
    if options and not started:
        terminal.note(
            f"it keeps its options; {' '.join(options)} would need: weft down, then weft up", "yellow"
        )
    terminal.next_step("weft run train.py", "weft ui", "weft status", "weft down")
    return 0


def _stay(home: Path, options: list[str]) -> int:
    if document := running_server(home):
        raise WeftError(f"a server of {home} runs already", f"at {document['address']}", "weft down")
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chdir(home)
    command = server_command(home, options)
    os.execve(command[0], command, server_environment())  # noqa: S606


def down(*, halt: bool = False) -> int:
    """Stop the server. Running tasks go on, and the next server takes them up.

    Parameters
    ----------
    halt
        Halt all jobs first, so that nothing of them runs on.
    """
    home = home_folder()
    document = _own_server(home)
    if document is None:
        terminal.note(f"no server of {home} runs")
        terminal.next_step("weft up")
        return 0
    if halt:
        _halt_all(Client())
    stop_server(document, home)
    print(f"server at {document['address']} stopped")
    terminal.next_step("weft up" if halt else "weft up   (tasks that run go on meanwhile)")
    return 0


def _own_server(home: Path) -> dict[str, Any] | None:
    """The server of this home, also one that no longer answers; never a stranger with a reused pid."""
    document = server_document(home)
    if document is None:
        return None
    pid = int(document["pid"])
    return document if process_alive(pid) and is_server_process(pid) else None


def _halt_all(client: Client) -> None:
    """Halt what is not idle and wait until nothing of it runs."""
    names: list[str] = []
    for page in client.pages():
        names += [item["name"] for item in page["items"] if item["state"] not in IDLE]
    for name in names:
        try:
            client.halt(name)
        except ApiError as problem:
            if problem.status not in (404, 409):
                raise
    if names:
        terminal.note(f"halting {len(names)} job{'s' * (len(names) != 1)}")
    for name in names:
        while client.document(name)["status"]["state"] not in IDLE:
            time.sleep(0.1)


def status(*, output: PageForm = None) -> int:
    """Whether a server runs, where, and what it has to do. Exits with 1 if none runs.

    Parameters
    ----------
    output
        json or yaml.
    """
    home = home_folder()
    try:
        document = Client().status()
    except NoServer as problem:
        if output is not None:
            print_whole({"running": False, "home": str(home)}, output)
        raise NoServer(f"no server of {home} runs", problem.cause, "weft up") from None
    if output is not None:
        print_whole(document, output)
        return 0
    jobs = document.get("jobs") or {}
    for name, value in (
        ("address", document.get("address")),
        ("version", document.get("version")),
        ("pid", document.get("pid")),
        ("home", document.get("home")),
        ("database", document.get("database")),
        ("backend", document.get("backend")),
        ("policy", document.get("policy")),
        ("results", document.get("resultsStore") or "in the home alone"),
        ("up for", moments.age(_seconds(document.get("started")))),
        ("jobs", ", ".join(f"{count} {state}" for state, count in jobs.items() if count) or "none"),
    ):
        terminal.say(f"{name:<10}{value}")
    for line in document.get("notes") or ():
        terminal.note(f"note: {line}", "yellow")
    terminal.next_step("weft ls", "weft nodes", "weft down")
    return 0


def _seconds(moment: object) -> float | None:
    return float(moment) if isinstance(moment, (int, float)) else None


def backup(file: str, /, *, files: bool = False) -> int:
    """Write a consistent copy of the server's data to a file, while it runs.

    The copy holds all jobs with their history and metrics, code packages and secrets:
    keep it safe. Bring it back with weft restore.

    For example:
      weft backup weft-monday.tar

    Parameters
    ----------
    file
        The tar file to write.
    files
        Also copy all jobs' logs, results and checkpoints.
    """
    with meter() as progress:
        size = Client().backup(file, files=files, progress=progress)
    print(f"{file}: {moments.size(size)}")
    if not files:
        terminal.note("without the jobs' logs, results and checkpoints; --files adds them")
    terminal.next_step(f"WEFT_HOME=DIR weft restore {file}")
    return 0


def restore(file: str, /, *, database: str | None = None) -> int:
    """Bring a backup back into this home (WEFT_HOME). No server of it may run.

    For example:
      weft down && weft restore weft-monday.tar
      WEFT_HOME=~/weft-2 weft restore weft-monday.tar --database postgresql://weft@db.example.com/weft

    Parameters
    ----------
    file
        A file that weft backup wrote.
    database
        An empty PostgreSQL for it, in place of SQLite in the home (WEFT_DATABASE).
    """
    home = home_folder()
    if document := running_server(home) or _own_server(home):
        raise WeftError("will not restore", f"a server of {home} runs at {document['address']}", "weft down")
    source = Path(file).absolute()
    if not source.is_file():
        raise WeftError(f"cannot restore {file}", "there is no such file")
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    chosen = [] if database is None else ["--database", database]
    command = server_command(home, ["--restore", str(source), *chosen])
    code = subprocess.run(command, cwd=home, env=server_environment(), check=False).returncode
    if code != 0:
        raise WeftError(f"cannot restore {file}", f"the server ended with exit code {code}; see above")
    terminal.next_step("weft up")
    return 0
