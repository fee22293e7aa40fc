"""`weft data`: datasets, from where they are to the files and samples that jobs read."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from weft.cli import moments, terminal
from weft.cli.commands.run import connected
from weft.cli.meter import meter
from weft.cli.output import ListForm, PageForm, print_table, print_whole
from weft.cli.table import Column
from weft.client.api import Client
from weft.client.errors import WeftError
from weft.client.jobspec import BadOption

COLUMNS = (
    Column("DATASET"),
    Column("STATE"),
    Column("VERSION"),
    Column("SAMPLES", right=True),
    Column("SIZE", right=True),
    Column("READERS", right=True),
    Column("SOURCE", flexible=True),
)
VERSIONS = (
    Column("VERSION"),
    Column("MADE"),
    Column("SAMPLES", right=True),
    Column("SIZE", right=True),
    Column("PARTS", right=True),
    Column("FROM"),
    Column("READERS", flexible=True),
)
CACHED = (
    Column("NODE"),
    Column("HELD", right=True),
    Column("SHARE", right=True),
    Column("HITS", right=True),
    Column("MISSES", right=True),
    Column("HIT RATIO", right=True),
    Column("FROM AFAR", right=True),
    Column("FROM NODES", right=True),
    Column("WAITED", right=True),
)
EVERY = 0.2
SHORT = 12
Json = dict[str, Any]


def ls(*, output: ListForm = None) -> int:
    """The datasets: their newest versions, and how many jobs read them.

    Parameters
    ----------
    output
        json, yaml or wide (with their projects).
    """
    items = Client().datasets()
    if output in ("json", "yaml"):
        print_whole({"items": items}, str(output))
        return 0
    wide = output == "wide"
    columns = (*COLUMNS[:-1], Column("PROJECT"), COLUMNS[-1]) if wide else COLUMNS
    print_table(columns, [_row(item, wide) for item in items])
    steps = ["weft data add NAME URL"]
    if items:
        name = items[0]["metadata"]["name"]
        steps = [f"weft data show {name}", f"weft run --data {name} ..."]
    terminal.next_step(*steps)
    return 0


def _row(item: Json, wide: bool) -> list[str]:
    status = item["status"]
    newest = (status["versions"] or [{}])[0]
    row = [
        item["metadata"]["name"],
        status["state"],
        (status.get("version") or "-")[:SHORT],
        f"{newest['samples']:,}" if newest else "-",
        moments.size(newest["bytes"]) if newest else "-",
        str(len(status["readers"])),
    ]
    return [
        *row,
        *([item["metadata"].get("project") or "-"] if wide else []),
        _source(item["spec"]["source"]),
    ]


def _source(source: Json) -> str:
    if "url" in source:
        return str(source["url"])
    if "sql" in source:
        return f"{source['sql']['url']}: {' '.join(source['sql']['query'].split())}"
    if "code" in source:
        return f"the command {shlex.join(source['code']['command'])}"
    output = source["output"]
    return f"the results of job {output['job']}{'/' + output['path'] if output.get('path') else ''}"


def add(
    name: str,
    url: str | None = None,
    /,
    *,
    sql: str | None = None,
    query: str | None = None,
    command: str | None = None,
    from_job: str | None = None,
    path: str | None = None,
    endpoint: str | None = None,
    secret: str | None = None,
    pack: Literal["auto", "none"] | None = None,
    in_place: bool = False,
    policy: Literal["nr", "lru"] | None = None,
    quota: str | None = None,
    project: str | None = None,
    share_with: Annotated[list[str] | None, Parameter(name="--share-with")] = None,
    detach: bool = False,
) -> int:
    """Declare a dataset and read its source, showing how far it is. What exists is changed.

    For example:
      weft data add faces ~/faces
      weft data add faces s3://bucket/faces/ --secret s3-creds
      weft data add films s3://bucket/films/ --in-place
      weft data add rows --sql postgresql://db/shop --query 'select * from orders' --secret db
      weft data add model --from-job train-3 --path model

    Parameters
    ----------
    name
        The dataset's name.
    url
        A folder, file://…, s3://…, https://… or git+https://…@COMMIT.
    sql
        The address of a PostgreSQL database, in place of a URL.
    query
        Its rows become the samples.
    command
        A command whose files in RESULT_DIR become the samples; it runs as a job.
    from_job
        A job whose results become the samples.
    path
        Only this folder of them.
    endpoint
        The S3 server, where it is not AWS's own.
    secret
        The stored secret with what the source asks for (weft secrets).
    pack
        auto or none: whether many small files are packed into large ones.
    in_place
        Copy nothing into the server's store, however small: for what is larger than its disk (s3, https).
    policy
        nr or lru: how nodes cache it.
    quota
        How much of each node's cache it may have: 200Gi.
    project
        The project that it belongs to; only that project's jobs read it.
    share_with
        Another project that may read it, or all. Repeatable.
    detach
        Do not wait until it has been read.
    """
    sources: Json = {
        "url": url,
        "sql": {"url": sql, "query": query or ""} if sql else None,
        "code": {"command": command} if command else None,
        "output": {"job": from_job, **({"path": path} if path else {})} if from_job else None,
    }
    given = {kind: value for kind, value in sources.items() if value is not None}
    if len(given) != 1:
        raise BadOption(f"give one source: a URL, --sql, --command or --from-job (weft data add {name} URL)")
    if "url" in given:
        given["url"] = _as_url(given["url"])
    if endpoint:
        given["endpoint"] = endpoint
    cache = {key: value for key, value in (("policy", policy), ("quota", quota)) if value is not None}
    spec: Json = {"source": given}
    spec |= {key: value for key, value in (("secretRef", secret), ("pack", pack)) if value is not None}
    spec |= {"inPlace": True} if in_place else {}
    spec |= {"cache": cache} if cache else {}
    spec |= {"shareWith": share_with} if share_with else {}
    metadata = {"name": name, **({"project": project} if project else {})}
    client = connected()
    kept = client.put_dataset({"kind": "Dataset", "metadata": metadata, "spec": spec})
    return _follow(client, kept, detach)


def _as_url(text: str) -> str:
    """A path of this machine is what people mean who write no scheme."""
    return text if "://" in text else f"file://{os.path.abspath(os.path.expanduser(text))}"  # noqa: PTH100, PTH111


def _follow(client: Client, dataset: Json, detach: bool) -> int:
    name = dataset["metadata"]["name"]
    if detach:
        print(f"dataset/{name} is being read")
        terminal.next_step(f"weft data show {name}")
        return 0
    with meter() as progress:
        while dataset["status"]["state"] == "READING":
            far = dataset["status"].get("progress") or {}
            if progress is not None and far:
                progress(f"reading {name}:", far["bytes"], far["allBytes"])
            time.sleep(EVERY)
            dataset = client.dataset(name)
    status = dataset["status"]
    if status["state"] == "FAILED":
        raise WeftError(f"dataset {name} cannot be read", status["reason"], f"weft data refresh {name}")
    if not status["versions"]:
        raise WeftError(
            f"dataset {name} has no version", "its source was not read", f"weft data refresh {name}"
        )
    newest = status["versions"][0]
    size = moments.size(newest["bytes"])
    print(f"dataset/{name} {newest['version'][:SHORT]}: {newest['samples']:,} samples, {size}")
    terminal.next_step(f"weft run --data {name} ...", f"weft data show {name}")
    return 0


def show(name: str, /, *, output: PageForm = None) -> int:
    """Everything about a dataset: its versions, what they were made from, and who reads them.

    Parameters
    ----------
    name
        The dataset's name.
    output
        json or yaml.
    """
    found = Client().dataset(name)
    if output is not None:
        print_whole(found, output)
        return 0
    spec, status = found["spec"], found["status"]
    print(f"{name}  {status['state']}")
    for what, text in (
        ("source", _source(spec["source"])),
        ("project", found["metadata"].get("project")),
        ("shared with", ", ".join(spec.get("shareWith") or ())),
        ("cache", _cache(spec.get("cache") or {})),
        ("reason", status.get("reason")),
    ):
        if text:
            print(f"  {what + ':':<13}{text}")
    print()
    print_table(VERSIONS, [_version(each) for each in status["versions"]])
    if cached := status.get("cached"):
        print()
        print_table(CACHED, [_cached(each) for each in cached])
    steps = [f"weft run --data {name} ...", f"weft data verify {name}", f"weft data lineage {name}"]
    terminal.next_step(*(steps if status["versions"] else [f"weft data refresh {name}"]))
    return 0


def _cache(cache: Json) -> str:
    return f"{cache.get('policy', 'nr')}{', at most ' + cache['quota'] if cache.get('quota') else ''}"


def _version(each: Json) -> list[str]:
    made_by = (each.get("lineage") or {}).get("job")
    return [
        each["version"][:SHORT],
        moments.clock(each["created"]),
        f"{each['samples']:,}",
        moments.size(each["bytes"]),
        str(each["parts"]),
        f"job {made_by}" if made_by else "its source",
        ", ".join(each["readers"]) or "-",
    ]


def _cached(each: Json) -> list[str]:
    ratio = each.get("hitRatio")
    return [
        each["node"],
        moments.size(sum(each["versions"].values()))
        + (f" of {moments.size(sum(coming.values()))}" if (coming := each.get("warming")) else ""),
        "-" if (share := each.get("heldRatio")) is None else f"{share:.1%}",
        str(each["hits"]),
        str(each["misses"]),
        "-" if ratio is None else f"{ratio:.1%}",
        moments.size(each["remoteBytes"]),
        moments.size(each.get("peerBytes", 0)),
        moments.span(each.get("stallSeconds", 0)),
    ]


def refresh(name: str, /, *, detach: bool = False) -> int:
    """Read a dataset's source again. What has changed becomes a new version; who reads another goes on with that.

    Parameters
    ----------
    name
        The dataset's name.
    detach
        Do not wait until it has been read.
    """
    client = Client()
    return _follow(client, client.refresh_dataset(name), detach)


def warm(
    name: str,
    /,
    *,
    node: list[str] | None = None,
    all: bool = False,
    version: str | None = None,
    detach: bool = False,
) -> int:
    """Bring a dataset to nodes before jobs read it there, showing how far it is.

    For example:
      weft data warm faces --node gpu-3 --node gpu-4
      weft data warm faces --all

    Parameters
    ----------
    name
        The dataset's name.
    node
        A node to bring it to. Repeatable.
    all
        Bring it to every node.
    version
        The beginning of a version's name. Left out: the newest.
    detach
        Do not wait until it is there.
    """
    if bool(node) == all:
        raise BadOption(f"say where to: --node NODE or --all (weft data warm {name} --all; weft nodes)")
    client = Client()
    dataset = client.warm_dataset(name, node or (), version)
    versions = dataset["status"]["versions"]
    found = next(each for each in versions if each["version"].startswith(version or ""))
    which = found["version"]
    if detach:
        print(f"dataset/{name} {which[:SHORT]} is on its way")
        terminal.next_step(f"weft data show {name}")
        return 0
    with meter() as progress:
        while going := [each for each in dataset["status"]["cached"] if which in each["warming"]]:
            if progress is not None:
                done = sum(each["versions"].get(which, 0) for each in going)
                nodes = f"{len(going)} node{'s' * (len(going) != 1)}"
                progress(f"warming {nodes}:", done, sum(each["warming"][which] for each in going))
            time.sleep(EVERY)
            dataset = client.dataset(name)
    for each in dataset["status"]["cached"]:
        if node is None or each["node"] in node:
            held = each["versions"].get(which, 0)
            full = "" if held >= found["bytes"] else ": its cache has no room for more"
            print(f"{each['node']} holds {moments.size(held)} of {moments.size(found['bytes'])}{full}")
    terminal.next_step(f"weft run --data {name} ...", f"weft data show {name}")
    return 0


def verify(name: str, /, *, version: str | None = None, output: PageForm = None) -> int:
    """Prove every byte of a version against the name that its content gave it.

    Parameters
    ----------
    name
        The dataset's name.
    version
        The beginning of a version's name. Left out: the newest.
    output
        json or yaml.
    """
    found = Client().verify_dataset(name, version)
    problems = found["problems"]
    if output is not None:
        print_whole(found, output)
    elif not problems:
        checked = f"{found['samples']:,} samples, {moments.size(found['bytes'])}"
        if there := found.get("elsewhere"):
            checked += f" ({there:,} of them at their source, by size and mark)"
        print(f"dataset/{name} {found['version'][:SHORT]}: {checked}, all as they should be")
        terminal.next_step(f"weft data show {name}")
    else:
        for problem in problems[:20]:
            print(problem, file=sys.stderr)
        raise WeftError(
            f"dataset {name} is damaged",
            f"{len(problems)} problem{'s' * (len(problems) != 1)} in version {found['version'][:SHORT]}",
            f"weft data refresh {name}",
        )
    return 1 if problems else 0


def pull(name: str, folder: str, /, *, version: str | None = None) -> int:
    """Fetch the files of a version into a folder of this machine.

    For example:
      weft data pull faces faces/

    Parameters
    ----------
    name
        The dataset's name.
    folder
        Where to; made if it is not there.
    version
        The beginning of a version's name. Left out: the newest.
    """
    from weft.client.data import pull as fetch

    client = Client()
    versions = client.dataset(name)["status"]["versions"]
    found = [each for each in versions if each["version"].startswith(version or "")]
    if not found:
        which = f"has no version {version}" if version else "has no version yet"
        raise WeftError(f"dataset {name}", which, f"weft data show {name}")
    with meter() as progress:
        files = fetch(client, name, found[0]["version"], Path(folder), progress)
    print(f"{files:,} file{'s' * (files != 1)}, {moments.size(found[0]['bytes'])}, in {folder}")
    terminal.next_step(f"ls {folder}")
    return 0


def lineage(name: str, /, *, version: str | None = None, output: PageForm = None) -> int:
    """What a version was made from, and what was made from it.

    Parameters
    ----------
    name
        The dataset's name.
    version
        The beginning of a version's name. Left out: the newest.
    output
        json or yaml.
    """
    found = Client().lineage(name, version)
    if output is not None:
        print_whole(found, output)
        return 0
    into: dict[str, list[str]] = {}
    for edge in found["edges"]:
        into.setdefault(edge["from"], []).append(edge["to"])
    roots = [node for node in found["nodes"] if not any(edge["to"] == node for edge in found["edges"])]
    for root in sorted(roots):
        _draw(root, into, found["of"])
    terminal.next_step(f"weft data show {name}")
    return 0


def _draw(node: str, into: dict[str, list[str]], of: str, depth: int = 0) -> None:
    mark = "  ◄" if node == of else ""
    print(f"{'   ' * (depth - 1) + '└─ ' if depth else ''}{node}{mark}")
    for child in sorted(into.get(node, ())):
        _draw(child, into, of, depth + 1)


def remove(*names: str) -> int:
    """Delete datasets with all their versions. Refused while a job reads one, or can be resumed to.

    For example:
      weft data rm faces

    Parameters
    ----------
    names
        Names of datasets.
    """
    if not names:
        raise BadOption("name at least one dataset (weft data ls)")
    client = Client()
    for name in names:
        client.delete_dataset(name)
        print(f"dataset/{name} deleted")
    terminal.next_step("weft data ls")
    return 0
