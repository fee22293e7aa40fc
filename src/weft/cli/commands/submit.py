"""`weft submit` and `weft apply`: job files to jobs, checked before any of them is submitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

from cyclopts import Parameter

from weft.cli import terminal
from weft.cli.commands.run import connected, only_dry
from weft.cli.meter import meter
from weft.cli.output import JobForm, print_objects, print_whole
from weft.client.api import Client, Items, Json
from weft.client.documents import Document, find_files, load_documents
from weft.client.errors import ApiError, BadDocument, WeftError
from weft.client.jobspec import as_written
from weft.client.refusals import blamed

KINDS = ("TrainingJob", "Queue", "JobType", "Size", "Cluster", "Dataset")

LOOK = {
    "TrainingJob": "weft ls",
    "Queue": "weft queues",
    "JobType": "weft jobtypes",
    "Size": "weft sizes",
    "Cluster": "weft clusters",
    "Dataset": "weft data ls",
}


def submit(*files: str, dry_run: bool = False, output: JobForm = None) -> int:
    """Submit job files and return at once. Prints the names of the jobs.

    For example:
      weft submit job.yaml
      weft submit a.yaml b.yaml
      weft submit job.yaml --dry-run -o kubernetes

    Parameters
    ----------
    files
        Job files, folders of them, or - for standard input. A file may hold several jobs.
    dry_run
        Submit nothing; print the jobs with every default filled in.
    output
        With --dry-run: print the jobs as yaml, json or what they would be on kubernetes.
    """
    only_dry(output, dry_run)
    documents = _load(files)
    client = connected()
    checked = _check_all(client, documents)
    if dry_run:
        _print_dry(client, documents, checked, output or "yaml")
        return 0
    names = [_submitted(client, document) for document in documents]
    for name in names:
        print(name)
    terminal.next_step(f"weft logs -f {names[0]}", "weft ls")
    return 0


def _print_dry(client: Client, documents: list[Document], checked: list[Json], form: str) -> None:
    if form == "kubernetes":
        print_objects([item for document in documents for item in client.objects(document)])
    else:
        jobs = [as_written(job, document.value) for job, document in zip(checked, documents, strict=True)]
        if form == "yaml":
            print_objects(jobs)
        else:
            print_whole(jobs[0] if len(jobs) == 1 else {"items": jobs}, form)
    terminal.next_step("leave --dry-run out to submit")


def apply(*, file: Annotated[list[str], Parameter(name=["--file", "-f"])]) -> int:
    """Make sure that the jobs, datasets, queues, job types, sizes and clusters of files and folders exist.

    Queues come first, parents before the queues in them, then job types, sizes, clusters and datasets; what exists is changed. Then all jobs are
    checked before any is submitted. A job that exists with the same spec stays as it is; one with another
    spec is an error, because a job that has begun cannot become a different one.

    For example:
      weft apply -f job.yaml
      weft apply -f queues.yaml
      weft apply -f jobs/ -f more.json

    Parameters
    ----------
    file
        A file of such resources, a folder (searched for *.yaml, *.yml and *.json) or -. Repeatable.
    """
    documents = _load(file)
    for document in documents:
        if (kind := document.value.get("kind", KINDS[0])) not in KINDS:
            cause = f"kind: must be {', '.join(KINDS[:-1])} or {KINDS[-1]} (got {kind!r})"
            raise blamed(document, [("kind", cause)], "weft apply --help")
        if document.name is None:
            cause = "metadata.name: is required: apply needs it to know the job again"
            raise blamed(document, [("metadata.name", cause)], "give it a name, or: weft submit")
    client = connected()
    by_kind = {
        kind: [each for each in documents if each.value.get("kind", KINDS[0]) == kind] for kind in KINDS
    }
    if queues := by_kind["Queue"]:
        _apply_queues(client, queues)
    if types := by_kind["JobType"]:
        _apply_declared("jobtype", types, client.job_types, client.put_job_type)
    if sizes := by_kind["Size"]:
        _apply_declared("size", sizes, client.sizes, client.put_size)
    if clusters := by_kind["Cluster"]:
        _apply_declared("cluster", clusters, client.clusters, client.put_cluster)
    if datasets := by_kind["Dataset"]:
        _apply_declared("dataset", datasets, client.datasets, client.put_dataset)
    if jobs := by_kind["TrainingJob"]:
        _apply_jobs(client, jobs)
    terminal.next_step(*(LOOK[kind] for kind, applied in by_kind.items() if applied))
    return 0


def _apply_queues(client: Client, documents: list[Document]) -> None:
    for kept in _apply_declared("queue", _parents_first(documents), client.queues, client.put_queue):
        for note in kept["status"].get("notes") or ():
            terminal.note(f"note: {note}", "yellow")


def _apply_declared(
    kind: str, documents: list[Document], known: Callable[[], Items], put: Callable[[Document], Json]
) -> Items:
    before = {item["metadata"]["name"]: item["spec"] for item in known()}
    applied: Items = []
    refusals: list[WeftError] = []
    for document in documents:
        try:
            kept = put(document)
        except (ApiError, BadDocument) as refusal:
            refusals.append(refusal)
            continue
        name = kept["metadata"]["name"]
        done = "unchanged" if before.get(name) == kept["spec"] else "changed" if name in before else "created"
        print(f"{kind}/{name} {done}")
        applied.append(kept)
    _raise_all(refusals, f"{len(refusals)} of {len(documents)} {kind}s are refused")
    return applied


def _parents_first(documents: list[Document]) -> list[Document]:
    """A queue must exist before those in it. A ring of them is left for the server to refuse."""
    named = {document.name: document for document in documents}
    ordered: list[Document] = []
    for document in documents:
        way = [document]
        while (above := named.get(_parent(way[-1]))) is not None and above not in way:
            way.append(above)
        ordered += [one for one in reversed(way) if one not in ordered]
    return ordered


def _parent(document: Document) -> str | None:
    spec = document.value.get("spec")
    return spec.get("parent") if isinstance(spec, dict) else None


def _apply_jobs(client: Client, documents: list[Document]) -> None:
    checked = _check_all(client, documents)
    existing = [_existing(client, document.name or "") for document in documents]
    conflicts = [
        f"\n  {document.source}: job {document.name} exists with another {', '.join(_differences(old, new))}"
        for document, new, old in zip(documents, checked, existing, strict=True)
        if old is not None and _differences(old, new)
    ]
    if conflicts:
        raise WeftError(
            "nothing applied",
            "".join(conflicts),
            "give the job a new name, or remove the old one first: weft delete NAME",
        )
    for document, old in zip(documents, existing, strict=True):
        name = _submitted(client, document) if old is None else document.name
        print(f"{name} {'created' if old is None else 'unchanged'}")


def _load(files: tuple[str, ...] | list[str]) -> list[Document]:
    if not files:
        raise BadDocument("no job file given", "", "weft submit job.yaml")
    return [document for path in find_files(files) for document in load_documents(path)]


def _check_all(client: Client, documents: list[Document]) -> list[dict[str, Any]]:
    """Every document as the server would take it; all refusals together."""
    checked: list[dict[str, Any]] = []
    refusals: list[WeftError] = []
    for document in documents:
        try:
            checked.append(_checked(client, document))
        except WeftError as refusal:
            refusals.append(refusal)
    _raise_all(refusals, f"nothing submitted: {len(refusals)} of {len(documents)} jobs are refused")
    return checked


def _raise_all(refusals: Sequence[WeftError], what: str) -> None:
    if len(refusals) == 1:
        raise refusals[0]
    if refusals:
        causes = "".join(f"\n  {str(refusal).replace(chr(10), chr(10) + '  ')}" for refusal in refusals)
        raise WeftError(what, causes)


def _checked(client: Client, document: Document) -> dict[str, Any]:
    try:
        return client.check(document)
    except ApiError as problem:
        if problem.status != 409:
            raise
        # Its name is taken, which is for the caller to judge; what would the job be otherwise?
        metadata = {name: value for name, value in document.value["metadata"].items() if name != "name"}
        return client.check(replace(document, value={**document.value, "metadata": metadata}))


def _submitted(client: Client, document: Document) -> str:
    try:
        with meter() as progress:
            return client.submit(document, progress=progress).name
    except ApiError as problem:
        raise BadDocument(document.source, str(problem), problem.next) from None


def _existing(client: Client, name: str) -> dict[str, Any] | None:
    try:
        return client.document(name)
    except ApiError as problem:
        if problem.status == 404:
            return None
        raise


def _differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """The fields of the spec that are not the same."""
    before, after = old["spec"], new["spec"]
    return [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
