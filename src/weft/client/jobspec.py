"""From options to a job document: the one place where `weft run` and `weft.run()` say what a job is.

Pure: options in, a `TrainingJob` document out, nothing read but the environment that is handed in. The
server checks the values, so this module knows names and shapes, not rules.
"""

from __future__ import annotations

import copy
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

API_VERSION = "weft.dev/v1"
SERVER_SET = ("uid", "owner", "created")


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What a person may say about a job besides what it runs. None and empty mean: not said."""

    name: str | None = None
    project: str | None = None
    cluster: str | None = None
    datasets: Sequence[Mapping[str, Any]] = ()
    type: str | None = None
    replicas: int | None = None
    cpu: float | str | None = None
    memory: str | int | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    gpu: float | None = None
    gpu_type: str | None = None
    gpu_memory: str | int | None = None
    gpu_generation: int | None = None
    devices: Mapping[str, int] = field(default_factory=dict)
    size: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Sequence[Mapping[str, str]] = ()
    priority: str | int | None = None
    queue: str | None = None
    image: str | None = None
    isolation: str | None = None
    spread: bool = False
    one_node: bool = False
    same_rack: bool = False
    same_fabric: bool = False
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[str] = ()
    deadline: str | float | None = None
    idle_timeout: str | float | None = None
    stall_timeout: str | float | None = None
    restart: str | None = None
    max_restarts: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


class BadOption(ValueError):
    """An option that does not fit the job or cannot be read."""


def job_document(
    command: Sequence[str],
    options: JobOptions,
    *,
    args: Sequence[str] = (),
    code: str | None = None,
    base: str = "job",
) -> dict[str, Any]:
    """The document of a job that runs `command`, or what its type does if that is empty; `base` is the beginning of its name where none is given."""
    spec: dict[str, Any] = {"command": list(command)} if command else {}
    if args:
        spec["args"] = list(args)
    if code is not None:
        spec["code"] = {"path": code}
    metadata = {} if options.name else {"generateName": f"{slug(base)}-"}
    return overlay(
        {"apiVersion": API_VERSION, "kind": "TrainingJob", "metadata": metadata, "spec": spec}, options
    )


def overlay(document: Mapping[str, Any], options: JobOptions, args: Sequence[str] = ()) -> dict[str, Any]:
    """The document with what the options say; everything else stays as it was written."""
    job = copy.deepcopy(dict(document))
    metadata, spec = _part(job, "metadata"), _part(job, "spec")
    if options.name:
        metadata["name"] = options.name
        metadata.pop("generateName", None)
    if options.project:
        metadata["project"] = options.project
    if options.labels:
        _part(metadata, "labels").update(options.labels)
    for name in ("type", "queue", "image", "isolation", "deadline"):
        if (value := getattr(options, name)) is not None:
            spec[name] = value
    if options.idle_timeout is not None:
        spec["idleTimeout"] = _number_or_text(options.idle_timeout)
    if options.stall_timeout is not None:
        spec["stallTimeout"] = options.stall_timeout
    if options.priority is not None:
        spec["priority"] = _number_or_text(options.priority)
    if args:
        spec["args"] = list(args)
    if options.env:
        _part(spec, "env").update(options.env)
    if options.secrets:
        spec["secrets"] = [*(spec.get("secrets") or []), *(dict(secret) for secret in options.secrets)]
    if options.datasets:
        spec["datasets"] = [*_list(spec, "datasets"), *(dict(dataset) for dataset in options.datasets)]
    _place(spec, options)
    if options.restart is not None or options.max_restarts is not None:
        _restart(_part(spec, "restart"), options)
    _gang(spec, options)
    return job


def _gang(spec: dict[str, Any], options: JobOptions) -> None:
    asked = {
        "cpu": options.cpu,
        "memory": options.memory,
        "gpu": options.gpu,
        "gpuType": options.gpu_type,
        "gpuMemory": options.gpu_memory,
        "gpuGeneration": options.gpu_generation,
        "size": options.size,
    }
    resources = {name: value for name, value in asked.items() if value is not None}
    counted = {
        "replicas": options.replicas,
        "minReplicas": options.min_replicas,
        "maxReplicas": options.max_replicas,
    }
    sizes = {name: value for name, value in counted.items() if value is not None}
    if not (sizes or resources or options.devices):
        return
    roles = _part(spec, "roles")
    if len(roles) > 1 and "worker" not in roles:
        raise BadOption(
            f"the job has several roles ({', '.join(roles)}); say replicas and resources in its file"
        )
    role = _part(roles, "worker" if len(roles) != 1 else next(iter(roles)))
    role.update(sizes)
    if resources:
        _part(role, "resources").update(resources)
    if options.devices:
        _part(_part(role, "resources"), "devices").update(options.devices)


def _place(spec: dict[str, Any], options: JobOptions) -> None:
    within = {
        "one": options.one_node and "--one-node",
        "same-rack": options.same_rack and "--same-rack",
        "same-fabric": options.same_fabric and "--same-fabric",
    }
    asked = {nodes: option for nodes, option in within.items() if option}
    if options.spread and options.one_node:
        raise BadOption("--spread and --one-node contradict each other; give one of them")
    if len(asked) > 1:
        raise BadOption(
            f"{' and '.join(asked.values())}: a job is kept together in one way; give one of them"
        )
    if options.spread:
        _part(spec, "placement")["strategy"] = "spread"
    for nodes in asked:
        _part(spec, "placement")["nodes"] = nodes
    if options.cluster is not None:
        _part(spec, "placement")["cluster"] = options.cluster
    if options.selector:
        _part(_part(spec, "placement"), "selector").update(options.selector)
    if options.tolerations:
        placement = _part(spec, "placement")
        placement["tolerations"] = [*dict.fromkeys([*_list(placement, "tolerations"), *options.tolerations])]


def _restart(restart: dict[str, Any], options: JobOptions) -> None:
    """Asking for a number of restarts without a policy means: after failures."""
    if options.restart is not None:
        restart["policy"] = options.restart
    elif "policy" not in restart:
        restart["policy"] = "on-failure"
    if options.max_restarts is not None:
        restart["max"] = options.max_restarts


def _part(whole: dict[str, Any], name: str) -> dict[str, Any]:
    part = whole.get(name)
    if part is None:
        part = whole[name] = {}
    if not isinstance(part, dict):
        raise BadOption(f"{name} must be a mapping of fields in the job's file")
    return part


def _list(whole: dict[str, Any], name: str) -> list[Any]:
    part = whole.get(name) or []
    if not isinstance(part, list):
        raise BadOption(f"{name} must be a list in the job's file")
    return part


def _number_or_text(value: str | float) -> str | float:
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d+", value) else value


def as_written(checked: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """The checked job as a person would write it: without its status and what the server sets, which
    includes a name that it made up."""
    own = asked.get("metadata") or {}
    metadata = {name: value for name, value in checked["metadata"].items() if name not in SERVER_SET}
    if "name" not in own:
        metadata.pop("name", None)
        metadata = {name: own[name] for name in ("generateName",) if name in own} | metadata
    return {n: metadata if n == "metadata" else v for n, v in checked.items() if n != "status"}


def slug(text: str) -> str:
    """The nearest valid beginning of a name. As `weft.model.resource.slug`, whose module costs the 80 ms
    that pydantic takes to import."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:48].strip("-") or "job"


def key_values(pairs: Sequence[str], option: str) -> dict[str, str]:
    """`K=V` pairs as a mapping; `K` alone takes the value that the caller's environment has."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals and option == "--env" and name in os.environ:
            value, equals = os.environ[name], "="
        if not name or not equals:
            raise BadOption(f"{option} {pair}: write NAME=VALUE")
        found[name] = value
    return found


def device_counts(pairs: Sequence[str]) -> dict[str, int]:
    """`NAME=COUNT` pairs as a mapping."""
    found = {}
    for pair in pairs:
        name, _, count = pair.partition("=")
        if not name or not re.fullmatch(r"[0-9]*[1-9][0-9]*", count):
            raise BadOption(f"--device {pair}: write NAME=COUNT, with a whole number from 1 on: fpga=1")
        found[name] = int(count)
    return found


MODES = ("replicate", "shard", "stream", "mount")


def dataset_uses(texts: Sequence[str]) -> list[dict[str, str]]:
    """`NAME[@VERSION][:MODE]` texts as uses of datasets."""
    found = []
    for text in texts:
        match = re.fullmatch(r"([a-z0-9-]+)(?:@([0-9a-f]+))?(?::([a-z]+))?", text)
        if match is None or match[3] not in (None, *MODES):
            raise BadOption(f"--data {text}: write NAME, NAME@VERSION or NAME:MODE ({', '.join(MODES)})")
        given = {"name": match[1], "version": match[2], "mode": match[3]}
        found.append({key: value for key, value in given.items() if value is not None})
    return found


def secret_references(texts: Sequence[str]) -> list[dict[str, str]]:
    """`NAME:KEY=ENV` texts as references to stored secrets; without `=ENV` the key is the variable."""
    found = []
    for text in texts:
        match = re.fullmatch(r"([^:=]+):([^:=]+)(?:=([^:=]+))?", text)
        if match is None:
            raise BadOption(f"--secret {text}: write NAME:KEY=ENV (the stored secret, its key, the variable)")
        found.append({"name": match[1], "key": match[2], "env": match[3] or match[2]})
    return found


def active_python(environment: Mapping[str, str], own_prefix: str = sys.prefix) -> str:
    """What `python` means in the caller's shell: in a job it is the interpreter that Weft runs in, so a
    virtualenv or conda environment that is active and not Weft's own needs its absolute path."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if prefix := environment.get(variable):
            python = Path(prefix) / "bin" / "python"
            if python.exists() and os.path.realpath(prefix) != os.path.realpath(own_prefix):
                return str(python)
            break
    return "python"


def own_python() -> str:
    """The interpreter that runs this program, for jobs that a program submits: what it imports, they can."""
    if sys.prefix != sys.base_prefix or os.environ.get("CONDA_PREFIX"):
        return sys.executable
    plain = shutil.which("python")
    same = plain is not None and os.path.realpath(plain) == os.path.realpath(sys.executable)
    return "python" if same or not sys.executable else sys.executable
