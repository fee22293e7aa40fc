"""`Job`: a handle on one job of a server."""

from __future__ import annotations

import contextlib
import html
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from weft.client.errors import JobFailed, NoServer, Unreachable, WeftError
from weft.client.transport import segment

if TYPE_CHECKING:
    from weft.client.api import Client

FINISHED = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
IDLE = FINISHED | {"HALTED"}
"""States in which nothing more happens by itself."""
RETURN_FILE = "return.json"
"""Where `weft.runtime.call` leaves what a function returned."""


class Job:
    """A job of a server. `document` is the resource as last seen; `state` and `refresh()` look again."""

    def __init__(self, client: Client, document: dict[str, Any]):
        self.client = client
        self.document = document

    @property
    def name(self) -> str:
        name: str = self.document["metadata"]["name"]
        return name

    @property
    def uid(self) -> str:
        uid: str = self.document["metadata"]["uid"]
        return uid

    @property
    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.document["spec"]
        return spec

    @property
    def status(self) -> dict[str, Any]:
        """As last seen; `refresh()` looks again."""
        return self.document.get("status") or {}

    @property
    def state(self) -> str:
        """The job's state now."""
        state: str = self.refresh().status.get("state", "PENDING")
        return state

    def refresh(self) -> Job:
        self.document = self.client.document(self.name)
        return self

    def wait(self, timeout: float | None = None, *, check: bool = True) -> Job:
        """Wait until the job has ended or is halted.

        Raises `TimeoutError` after `timeout` seconds, and, unless `check` is False, `JobFailed` with the
        failure's sentence and the last log lines when the job did not complete.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (state := self._look(deadline)) not in IDLE:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(
                    f"job {self.name} is still {state} after {timeout:g} s (weft explain {self.name})"
                )
            for _ in self.client.follow_events(self.name, deadline):
                pass  # the stream ends when the job is idle
        if check and state != "COMPLETED":
            raise self._failed(state)
        return self

    def _look(self, deadline: float | None) -> str:
        """The state now, with patience for a server that is being restarted."""
        patience = time.monotonic() + 60.0
        while True:
            try:
                return self.state
            except (NoServer, Unreachable):
                if time.monotonic() > min(patience, deadline or patience):
                    raise
                time.sleep(0.2)

    def _failed(self, state: str) -> JobFailed:
        status = self.status
        failure = status.get("failure") or {}
        sentence = failure.get("message") or status.get("reason") or "no reason was given"
        return JobFailed(self.name, state, sentence, status.get("logTail") or ())

    def logs(
        self, follow: bool = False, *, task: str | None = None, tail: int | None = None
    ) -> Iterator[str]:
        """The job's log lines; with `follow` also those to come, until it has ended. Lines of a job with
        several tasks begin with `[task]`."""
        one = task is not None or len(self.status.get("tasks") or ()) == 1
        batches = (
            self.client.follow_logs(self.name, task=task, tail=tail)
            if follow
            else [list(self.client.logs(self.name, task=task, tail=tail))]
        )
        for batch in batches:
            for line in batch:
                yield line["text"] if one else f"[{line['task']}] {line['text']}"

    @overload
    def metrics(self) -> list[dict[str, Any]]: ...
    @overload
    def metrics(self, name: str) -> list[tuple[int | None, float]]: ...
    def metrics(self, name: str | None = None) -> list[dict[str, Any]] | list[tuple[int | None, float]]:
        """All points, or the `(step, value)` pairs of one metric."""
        points = self.client.metrics(self.name, name)
        return points if name is None else [(point["step"], point["value"]) for point in points]

    def events(self) -> list[dict[str, Any]]:
        """The job's history."""
        return self.client.events(self.name)

    def explain(self) -> dict[str, Any]:
        return self.client.explain(self.name)

    def results(self) -> list[dict[str, Any]]:
        """The files of the results: path, size, modified."""
        items: list[dict[str, Any]] = self.client.results(self.name)["items"]
        return items

    def download(self, folder: str | os.PathLike[str]) -> Path:
        """Fetch all results into a folder, which is returned."""
        from weft.client.download import unpack

        target = Path(folder)
        self.client.download(self._results_path, lambda answer: unpack(answer, target))
        return target

    def result(self, timeout: float | None = None) -> Any:
        """What the function given to `weft.run` returned (on rank 0); waits for the job first."""
        from weft.client.download import read_member

        self.wait(timeout)
        content = self.client.download(self._results_path, lambda answer: read_member(answer, RETURN_FILE))
        if content is None:
            raise WeftError(
                f"job {self.name} has no return value",
                "it does not run a function, or what the function returned cannot be written as JSON",
                f"weft results {self.name}",
            )
        return json.loads(content)

    @property
    def _results_path(self) -> str:
        return f"/v1/jobs/{segment(self.name)}/results.tar"

    def halt(self) -> Job:
        self.document = self.client.halt(self.name).document
        return self

    def resume(self, from_checkpoint: int | None = None) -> Job:
        self.document = self.client.resume(self.name, from_checkpoint).document
        return self

    def scale(self, **roles: int) -> Job:
        self.document = self.client.scale(self.name, **roles).document
        return self

    def cancel(self) -> Job:
        self.document = self.client.cancel(self.name).document
        return self

    def delete(self) -> None:
        self.client.delete(self.name)

    def __repr__(self) -> str:
        return f"<weft.Job {self.name} {self.status.get('state', 'PENDING')}>"

    def _repr_html_(self) -> str:
        """A small card for notebooks, from what the server says now if it answers."""
        with contextlib.suppress(WeftError):
            self.refresh()
        status = self.status
        sentence = (status.get("failure") or {}).get("message") or status.get("reason") or ""
        rows = "".join(
            f"<tr><td>{html.escape(task['name'])}</td><td>{html.escape(task['state'])}</td>"
            f"<td>{html.escape((task.get('binding') or {}).get('node', ''))}</td></tr>"
            for task in (status.get("tasks") or [])[:16]
        )
        return (
            f"<div><b>{html.escape(self.name)}</b> {html.escape(status.get('state', 'PENDING'))} "
            f"{html.escape(sentence)}<table>{rows}</table></div>"
        )
