"""`weft results` and `weft checkpoints`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft.cli import moments, terminal
from weft.cli.meter import meter
from weft.cli.output import ListForm, print_table, print_whole
from weft.cli.table import Column
from weft.client.api import Client
from weft.client.download import unpack
from weft.client.transport import segment

CHECKPOINTS = (Column("STEP", right=True), Column("SIZE", right=True), Column("SAVED"), Column("KEPT"))
COLUMNS = (Column("SIZE", right=True), Column("MODIFIED"), Column("PATH"))


def results(job: str, /, *, get: str | None = None, output: ListForm = None) -> int:
    """List a job's result files (what it wrote to RESULT_DIR), or fetch them.

    For example:
      weft results mnist-3
      weft results mnist-3 --get out/

    Parameters
    ----------
    job
        The job's name.
    get
        Fetch all files into this folder.
    output
        json or yaml.
    """
    client = Client()
    found = client.results(job)
    if get is not None:
        return _fetch(client, job, Path(get), found.get("bytes") or 0)
    if output in ("json", "yaml"):
        print_whole(found, str(output))
        return 0
    items = found["items"]
    print_table(
        COLUMNS, [[moments.size(i["size"]), moments.clock(i.get("modified")), i["path"]] for i in items]
    )
    if items:
        terminal.next_step(f"weft results {job} --get DIR")
    else:
        terminal.note("no results; a job's results are the files it writes to RESULT_DIR")
        terminal.next_step(f"weft show {job}")
    return 0


def checkpoints(job: str, /, *, output: ListForm = None) -> int:
    """List the steps a job can go on from: what `weft.checkpoint` saved, and whether the results store has it, too.

    For example:
      weft checkpoints mnist-3
      weft resume mnist-3 --from-checkpoint 200

    Parameters
    ----------
    job
        The job's name.
    output
        json or yaml.
    """
    found = Client().checkpoints(job)
    if output in ("json", "yaml"):
        print_whole(found, str(output))
        return 0
    items = found["items"]
    print_table(
        CHECKPOINTS,
        [[str(i["step"]), moments.size(i["size"]), moments.clock(i["saved"]), _where(i)] for i in items],
    )
    if items:
        terminal.next_step(f"weft resume {job} --from-checkpoint {items[-1]['step']}")
    else:
        terminal.note(
            "no checkpoints that weft.checkpoint saved; other files in CHECKPOINT_DIR are not listed"
        )
        terminal.next_step(f"weft show {job}")
    return 0


def _where(item: dict[str, Any]) -> str:
    return " and ".join(
        place for place, there in (("here", item["here"]), ("results store", item["copied"])) if there
    )


def _fetch(client: Client, job: str, folder: Path, expected: int) -> int:
    with meter() as progress:
        files = client.download(
            f"/v1/jobs/{segment(job)}/results.tar",
            lambda answer: unpack(answer, folder, progress, expected),
        )
    print(f"{files} file{'s' * (files != 1)}, {moments.size(expected)}, in {folder}")
    terminal.next_step(f"ls {folder}")
    return 0
