"""Probes and measurements for whoever runs Weft: `/healthz`, `/readyz` and `/metrics`, on an address of their own.

They say nothing of any job but how many there are, so they need no token.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from weft.model.status import State

if TYPE_CHECKING:
    from weft.control.control import Control

LONGEST = 4096
"""Bytes of a line of a request."""
PATIENCE = 5.0


class Health:
    """Serves them from the first moment; `control` comes when this server leads."""

    def __init__(self, leads: Callable[[], bool]):
        self.control: Control | None = None
        self._leads = leads
        self._server: asyncio.Server | None = None
        self._registry: Any = None

    async def serve(self, host: str, port: int) -> None:
        self._server = await asyncio.start_server(self._answer, host, port, limit=LONGEST)

    @property
    def address(self) -> tuple[str, int]:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = await asyncio.wait_for(_request(reader), PATIENCE)
            status, kind, body = self._page(asked)
            head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
        except (TimeoutError, OSError, ValueError):
            return
        finally:
            writer.close()

    def _page(self, path: str) -> tuple[str, str, bytes]:
        match path.partition("?")[0]:
            case "/healthz":
                return "200 OK", "text/plain", b"ok\n"
            case "/readyz":
                if self.control is None and self._leads():
                    return "503 Service Unavailable", "text/plain", b"taking over\n"
                return "200 OK", "text/plain", b"leads\n" if self._leads() else b"waits to lead\n"
            case "/metrics":
                from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

                return "200 OK", CONTENT_TYPE_LATEST, generate_latest(self._metrics())
            case _:
                return "404 Not Found", "text/plain", b"/healthz, /readyz, /metrics\n"

    def _metrics(self) -> Any:
        from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

        if self._registry is None:
            self._registry = CollectorRegistry()
            ProcessCollector(registry=self._registry)
            PlatformCollector(registry=self._registry)
            self._registry.register(self)
        return self._registry

    def collect(self) -> Iterable[Any]:
        """As prometheus_client asks for it."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        yield GaugeMetricFamily("weft_leads", "Whether this server decides.", value=float(self._leads()))
        control = self.control
        if control is None:
            return
        states = Counter(job.status.state for job in control.jobs.values())
        jobs = GaugeMetricFamily("weft_jobs", "Jobs that wait or run, by state.", labels=["state"])
        for state in State:
            if not state.idle:
                jobs.add_metric([state.value], states[state])
        yield jobs
        cluster = control.books.cluster
        yield GaugeMetricFamily("weft_nodes", "Nodes.", value=len(cluster.nodes))
        total = int(cluster.total[:, cluster.gpu_columns].sum())
        yield GaugeMetricFamily("weft_gpus", "GPUs of all nodes.", value=total)
        yield GaugeMetricFamily("weft_gpus_free", "GPUs that nobody uses.", value=cluster.idle[1])
        waiting = GaugeMetricFamily("weft_queue_waiting", "Jobs that wait, by queue.", labels=["queue"])
        for name, asking in control.asking().items():
            waiting.add_metric([name], asking.waiting)
        yield waiting
        client = getattr(control.backend.home, "client", None)
        if client is not None:
            calls = CounterMetricFamily("weft_api_calls", "Requests to the API server.", labels=["call"])
            for call, count in client.calls.items():
                calls.add_metric([call], count)
            yield calls


async def _request(reader: asyncio.StreamReader) -> str:
    """The path that is asked for. All of the request is read: closing with some of it unread would look like a crash."""
    words = (await reader.readline()).split()
    while (await reader.readline()).strip():
        pass
    return words[1].decode() if len(words) > 1 else ""


def health_address(text: str) -> tuple[str, int]:
    """HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ValueError(f"{text!r}: write HOST:PORT, for example 0.0.0.0:8471")
    return host.strip("[]"), int(port)
