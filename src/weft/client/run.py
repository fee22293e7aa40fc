"""`weft.run`: submit a function, a job document or a job file, starting a server if none runs.

`weft.dry_run` is what would be submitted, as the next layer down: a job document, which a file can hold.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.client.errors import WeftError
from weft.client.home import home_folder
from weft.client.jobspec import JobOptions, as_written, job_document, overlay, own_python
from weft.runtime.call import LOADING

if TYPE_CHECKING:
    from weft.client.api import Client
    from weft.client.documents import Document
    from weft.client.job import Job
    from weft.model.job import TrainingJob

    AnyTarget = Callable[..., Any] | Mapping[str, Any] | str | os.PathLike[str] | TrainingJob


def run(
    job: AnyTarget,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    project: str | None = None,
    cluster: str | None = None,
    datasets: Sequence[Mapping[str, Any]] = (),
    type: str | None = None,
    replicas: int | None = None,
    min_replicas: int | None = None,
    max_replicas: int | None = None,
    cpu: float | str | None = None,
    memory: str | int | None = None,
    gpu: float | None = None,
    gpu_type: str | None = None,
    gpu_memory: str | int | None = None,
    gpu_generation: int | None = None,
    devices: Mapping[str, int] | None = None,
    size: str | None = None,
    env: Mapping[str, str] | None = None,
    secrets: Sequence[Mapping[str, str]] = (),
    priority: str | int | None = None,
    queue: str | None = None,
    image: str | None = None,
    isolation: str | None = None,
    spread: bool = False,
    one_node: bool = False,
    same_rack: bool = False,
    same_fabric: bool = False,
    selector: Mapping[str, str] | None = None,
    tolerations: Sequence[str] = (),
    deadline: str | float | None = None,
    idle_timeout: str | float | None = None,
    stall_timeout: str | float | None = None,
    restart: str | None = None,
    max_restarts: int | None = None,
    labels: Mapping[str, str] | None = None,
    code: str | os.PathLike[str] | None = None,
    client: Client | None = None,
) -> Job:
    """Submit a job and return its handle at once; `.wait()`, `.logs(follow=True)` and `.result()` follow it.

    `job` is a function of a file or notebook (called in every task with `args` and `kwargs`, which must be
    JSON; `job.result()` gives what rank 0 returned), a job document, a model, or the path of a job file.
    Options change what a document says. `code` is the folder to pack instead of the function's own.
    """
    if loading := os.environ.get(LOADING):
        raise RuntimeError(
            f"weft.run was called while {loading} was being loaded inside a job, which would submit jobs "
            'without end; put the call under: if __name__ == "__main__":'
        )
    options = JobOptions(
        name=name,
        project=project,
        cluster=cluster,
        datasets=datasets,
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
        devices=devices or {},
        size=size,
        env=env or {},
        secrets=secrets,
        priority=priority,
        queue=queue,
        image=image,
        isolation=isolation,
        spread=spread,
        one_node=one_node,
        same_rack=same_rack,
        same_fabric=same_fabric,
        selector=selector or {},
        tolerations=tolerations,
        deadline=deadline,
        idle_timeout=idle_timeout,
        stall_timeout=stall_timeout,
        restart=restart,
        max_restarts=max_restarts,
        labels=labels or {},
    )
    with _asked(job, args, kwargs or {}, options, code, client) as (ready, document, _):
        return ready.submit(document)


def dry_run(
    job: AnyTarget,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    code: str | os.PathLike[str] | None = None,
    client: Client | None = None,
    **options: Any,
) -> dict[str, Any]:
    """The job that `weft.run` would submit for the same arguments, with every default filled in, as a document that can
    be written to a file and run from there. Nothing is submitted."""
    with _asked(job, args, kwargs or {}, JobOptions(**options), code, client) as (ready, document, passing):
        checked = as_written(ready.check(document), document.value)
        if passing:  # there will be no folder to pack later
            checked["spec"]["code"] = ready.put_code(document)
        return checked


@contextmanager
def _asked(
    job: AnyTarget,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: JobOptions,
    code: str | os.PathLike[str] | None,
    client: Client | None,
) -> Iterator[tuple[Client, Document, bool]]:
    """A client, what it is to submit, and whether the code of that is only there meanwhile."""
    if callable(job):
        with tempfile.TemporaryDirectory(prefix="weft-") as scratch:
            value = function_document(job, args, kwargs, options, Path(scratch), code=code)
            ready = client or default_client()
            yield ready, ready.as_document(value), value["spec"]["code"]["path"] == scratch
        return
    if args or kwargs or code is not None:
        raise TypeError("args, kwargs and code belong to a function; a job document says its own")
    ready = client or default_client()
    document = ready.as_document(job)
    yield ready, replace(document, value=overlay(document.value, options)), False


def function_document(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: JobOptions,
    scratch: Path,
    *,
    code: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """The job document that calls a function; a notebook's function is written into `scratch`."""
    from weft.client.functions import function_call, function_file, function_module

    arguments = function_call(function, args, kwargs)
    found = function_file(function)
    if found is not None:
        folder, file = found
        if code is not None:
            whole, folder = folder / file, Path(code).expanduser().absolute()
            if not whole.is_relative_to(folder):
                raise WeftError(f"code folder {code}", f"the function's file {whole} is not inside it")
            file = whole.relative_to(folder)
    else:
        if code is not None:
            raise TypeError("code: a function of a notebook is sent as its source; it has no folder")
        folder, file = scratch, Path(f"{function.__name__}.py")
        (folder / file).write_text(function_module(function))
    command = [
        own_python(),
        "-m",
        "weft.runtime.call",
        f"{file.as_posix()}:{function.__qualname__}",
        arguments,
    ]
    return job_document(command, options, code=str(folder), base=function.__name__)


def default_client() -> Client:
    """A client of this home's server, which is started if none runs."""
    from weft.client.api import Client
    from weft.client.start import ensure_server

    if not os.environ.get("WEFT_ADDRESS"):
        home = home_folder()
        document, started = ensure_server(home)
        if started:
            print(
                f"weft: started a server at {document['address']}, data in {home} (stop it with: weft down)",
                file=sys.stderr,
            )
    return Client()
