"""`weft run`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from weft.cli import terminal
from weft.cli.meter import meter
from weft.cli.output import JobForm, print_objects, print_whole
from weft.cli.target import job_of
from weft.client.api import Client
from weft.client.home import home_folder
from weft.client.jobspec import (
    BadOption,
    JobOptions,
    active_python,
    as_written,
    dataset_uses,
    device_counts,
    key_values,
    secret_references,
)
from weft.client.start import ensure_server


def _whole(_type: Any, tokens: Sequence[Any]) -> int:
    """cyclopts rounds 1.5 to 2; a person who asks for one and a half tasks should hear of it."""
    text = tokens[0].value
    if not text.lstrip("-").isdigit():
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _gpus(_type: Any, tokens: Sequence[Any]) -> float:
    """Whole ones, or a part of one; whole numbers stay whole in the job file."""
    text = tokens[0].value
    if text.isdigit():
        return int(text)
    try:
        part = float(text)
    except ValueError:
        part = -1.0
    if not 0 < part < 1:
        raise ValueError(f"{text!r} is neither a whole number nor a part of one GPU such as 0.5")
    return part


Whole = Annotated[int, Parameter(converter=_whole)]
Gpus = Annotated[float, Parameter(converter=_gpus)]


def run(
    target: str | None = None,
    /,
    *,
    replicas: Whole | None = None,
    min_replicas: Whole | None = None,
    max_replicas: Whole | None = None,
    cpu: str | None = None,
    memory: str | None = None,
    gpu: Gpus | None = None,
    gpu_type: str | None = None,
    gpu_memory: str | None = None,
    gpu_generation: Whole | None = None,
    device: list[str] | None = None,
    size: str | None = None,
    name: str | None = None,
    project: str | None = None,
    cluster: str | None = None,
    data: list[str] | None = None,
    type: str | None = None,
    env: list[str] | None = None,
    secret: list[str] | None = None,
    priority: str | None = None,
    queue: str | None = None,
    image: str | None = None,
    isolation: str | None = None,
    spread: bool = False,
    one_node: bool = False,
    same_rack: bool = False,
    same_fabric: bool = False,
    selector: list[str] | None = None,
    toleration: list[str] | None = None,
    deadline: str | None = None,
    idle_timeout: str | None = None,
    stall_timeout: str | None = None,
    restart: str | None = None,
    max_restarts: int | None = None,
    label: list[str] | None = None,
    code: str | None = None,
    detach: Annotated[bool, Parameter(name=["--detach", "-d"])] = False,
    dry_run: bool = False,
    output: JobForm = None,
    rest: Annotated[tuple[str, ...], Parameter(parse=False)] = (),
) -> int:
    """Run a script, a command or a job file, and follow it.

    Shows the job's states and logs until it ends; Ctrl-C asks whether to leave,
    halt or cancel it. Exits with 0 if the job completed and with 1 if not.
    Starts a server if none runs.

    For example:
      weft run train.py --replicas 4 --cpu 1 --memory 1Gi -- --lr 0.1
      weft run --detach --name hello -- sh -c 'echo hi'
      weft run job.yaml
      weft run --type notebook --gpu 1
      weft run train.py --gpu 2 --dry-run -o yaml

    Parameters
    ----------
    target
        A script (its folder is sent along) or a job file; the arguments, or a whole command, follow --. Left out: what the type runs.
    replicas
        How many tasks run it; they start together or not at all.
    min_replicas
        Start, and go on, with so few where there is no room for more.
    max_replicas
        Grow to so many while nobody else wants the room.
    cpu
        CPUs of each task: 2, 0.5 or 500m.
    memory
        Memory limit of each task: 512Mi, 1Gi.
    gpu
        GPUs of each task, or a part of one that others may use too: 2, 0.5.
    gpu_type
        Only GPUs of this type.
    gpu_memory
        Only GPUs with at least this much memory of their own: 40Gi.
    gpu_generation
        Only GPUs of this generation or a later one.
    device
        NAME=COUNT: anything else that nodes have a number of, for each task: rdma=1. Repeatable.
    size
        A T-shirt size instead of cpu, memory and gpu: small, v100-2 (weft sizes).
    name
        The job's name; made from the script's if left out.
    project
        The project that it belongs to: on Kubernetes the namespace of its pods.
    data
        A dataset that it reads: NAME, NAME@VERSION, NAME:MODE. Repeatable.
    cluster
        The cluster that it runs in, of those that were added to the server (weft clusters), or any.
    type
        The job type (weft jobtypes).
    env
        NAME=VALUE, or NAME to pass your own value on. Repeatable.
    secret
        NAME:KEY=ENV: a key of a stored secret as a variable. Repeatable.
    priority
        low, normal, high, production or a number.
    queue
        The queue to wait in.
    image
        A container image to run in.
    isolation
        process or sandbox.
    spread
        Place the tasks on as many nodes as possible.
    one_node
        Place all tasks on the same node.
    same_rack
        Place all tasks on nodes of one rack.
    same_fabric
        Place all tasks on nodes of one fabric, the fast network that they hang on.
    selector
        NAME=VALUE: only nodes with this label. Repeatable.
    toleration
        Also nodes with this taint, which all other jobs are kept from. Repeatable.
    deadline
        The job fails when it runs for longer: 30m, 2h.
    idle_timeout
        The job is halted when nothing is done in it for so long (notebooks: 1h); 0 for never.
    stall_timeout
        A task that neither prints, measures nor gives a heartbeat for so long has failed: 10m.
    restart
        never, on-failure, always or exit-code.
    max_restarts
        Restarts of a task before the job fails.
    label
        NAME=VALUE to find the job by. Repeatable.
    code
        The folder to pack and run in (default: the current one, if the script is in it).
    detach
        Return as soon as the job is submitted.
    dry_run
        Submit nothing; print the job with every default filled in.
    output
        With --dry-run or --detach: print the job as yaml or json; with --dry-run also as what it would be on kubernetes.
    """
    only_dry(output, dry_run)
    options = JobOptions(
        name=name,
        project=project,
        cluster=cluster,
        datasets=dataset_uses(data or ()),
        type=type,
        replicas=replicas,
        min_replicas=min_replicas,
        max_replicas=max_replicas,
        cpu=cpu,
        memory=memory,
        gpu=gpu,
        gpu_type=gpu_type,
        gpu_memory=gpu_memory,
        gpu_generation=gpu_generation,
        devices=device_counts(device or ()),
        size=size,
        env=key_values(env or (), "--env"),
        secrets=secret_references(secret or ()),
        priority=priority,
        queue=queue,
        image=image,
        isolation=isolation,
        spread=spread,
        one_node=one_node,
        same_rack=same_rack,
        same_fabric=same_fabric,
        selector=key_values(selector or (), "--selector"),
        tolerations=toleration or (),
        deadline=deadline,
        idle_timeout=idle_timeout,
        stall_timeout=stall_timeout,
        restart=restart,
        max_restarts=max_restarts,
        labels=key_values(label or (), "--label"),
    )
    python = active_python(os.environ)
    document = job_of(target, rest, options, code=code, python=python, here=Path.cwd())
    client = connected()
    if target is None and not rest:
        _in_python(client, document.value["spec"], python)
    if dry_run:
        with meter() as progress:
            if output == "kubernetes":
                print_objects(client.objects(document, progress=progress))
            else:
                checked = client.check(document, progress=progress)
                print_whole(as_written(checked, document.value), output or "yaml")
        terminal.next_step("leave --dry-run out to submit it")
        return 0
    with meter() as progress:
        job = client.submit(document, progress=progress)
    if output is not None:
        print_whole(job.document, output)
    if detach:
        if output is None:
            print(job.name)
        if not _warned(client, job.name):
            terminal.next_step(f"weft logs -f {job.name}", f"weft show {job.name}", f"weft halt {job.name}")
        return 0
    terminal.note(f"job {job.name} submitted")
    from weft.cli.follow import follow

    return follow(client, job)


def only_dry(output: str | None, dry_run: bool) -> None:
    if output == "kubernetes" and not dry_run:
        raise BadOption("--output kubernetes: shows what would be made; add --dry-run")


def _in_python(client: Client, spec: dict[str, Any], python: str) -> None:
    """What a job's type runs, run by the interpreter that is active here, as a script would be."""
    if python == "python":
        return
    command = client.job_type(spec["type"])["spec"].get("command") or [""]
    if command[0] == "python":
        spec["command"] = [python, *command[1:]]


def _warned(client: Client, name: str) -> bool:
    """Say at once what can never start here, rather than let someone find out tomorrow."""
    found = client.explain(name)
    if found.get("possible", True):
        return False
    terminal.note(f"job {name} {found['reason']}", "yellow")
    if not terminal.advise(found):
        terminal.next_step(f"weft explain {name}")
    return True


def connected() -> Client:
    """A client of this home's server, started if none runs: a first `weft run` needs nothing before it."""
    if not os.environ.get("WEFT_ADDRESS"):
        home = home_folder()
        document, started = ensure_server(home)
        if started:
            terminal.note(
                f"started a server at {document['address']}, data in {home} (stop it with: weft down)"
            )
    return Client()
