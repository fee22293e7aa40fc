"""Probes and measurements: what is answered, to whom, and at which moment of a server's life."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from weft.model.status import State
from weft.server.health import LONGEST, Health, health_address


def control(*states: State) -> Any:
    jobs = {str(n): SimpleNamespace(status=SimpleNamespace(state=state)) for n, state in enumerate(states)}
    total = np.array([[4000, 8], [4000, 8]])
    cluster = SimpleNamespace(nodes=["a", "b"], total=total, gpu_columns=slice(1, 2), idle=(0, 5))
    waiting = Counter(state for state in states if state is State.QUEUED)[State.QUEUED]
    return SimpleNamespace(
        jobs=jobs,
        books=SimpleNamespace(cluster=cluster),
        asking=lambda: {"default": SimpleNamespace(waiting=waiting)},
        backend=SimpleNamespace(home=SimpleNamespace(client=SimpleNamespace(calls={"POST binding": 3}))),
    )


async def exchange(health: Health, *parts: bytes) -> str:
    reader, writer = await asyncio.open_connection(*health.address)
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0.01)
    answer = await reader.read()
    writer.close()
    return answer.decode()


def answers(health: Health, *parts: bytes) -> str:
    async def story() -> str:
        await health.serve("127.0.0.1", 0)
        try:
            return await asyncio.wait_for(exchange(health, *parts), 10)
        finally:
            await health.close()

    return asyncio.run(story())


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: here\r\nAccept: */*\r\n\r\n".encode()


def test_it_is_alive_from_the_first_moment() -> None:
    answer = answers(Health(lambda: False), get("/healthz"))
    assert answer.startswith("HTTP/1.1 200 OK\r\n")
    assert answer.endswith("\r\n\r\nok\n")


@pytest.mark.parametrize(
    ("leads", "has_control", "status", "words"),
    [
        (False, False, 200, "waits to lead"),
        (True, False, 503, "taking over"),
        (True, True, 200, "leads"),
    ],
)
def test_it_is_ready_when_it_waits_and_when_it_leads_but_not_in_between(
    leads: bool, has_control: bool, status: int, words: str
) -> None:
    health = Health(lambda: leads)
    health.control = control() if has_control else None
    answer = answers(health, get("/readyz?verbose"))
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert answer.endswith(f"{words}\n")


def test_measurements_of_who_waits_to_lead() -> None:
    answer = answers(Health(lambda: False), get("/metrics"))
    assert "weft_leads 0.0" in answer
    assert "process_resident_memory_bytes" in answer
    assert "weft_jobs" not in answer


def test_measurements_of_who_leads() -> None:
    health = Health(lambda: True)
    health.control = control(State.QUEUED, State.QUEUED, State.PROCESSING, State.COMPLETED)
    answer = answers(health, get("/metrics"))
    for line in (
        "weft_leads 1.0",
        'weft_jobs{state="QUEUED"} 2.0',
        'weft_jobs{state="PROCESSING"} 1.0',
        "weft_nodes 2.0",
        "weft_gpus 16.0",
        "weft_gpus_free 5.0",
        'weft_queue_waiting{queue="default"} 2.0',
        'weft_api_calls_total{call="POST binding"} 3.0',
    ):
        assert line in answer
    assert "COMPLETED" not in answer


def test_a_request_in_pieces_is_read_whole() -> None:
    answer = answers(Health(lambda: True), b"GET /health", b"z HTTP/1.1\r\nHost:", b" here\r\n", b"\r\n")
    assert answer.endswith("ok\n")


@pytest.mark.parametrize("asked", [b"\r\n\r\n", get("/"), get("/v1/jobs"), b"GET /\xff HTTP/1.1\r\n\r\n"])
def test_nothing_else_is_told(asked: bytes) -> None:
    answer = answers(Health(lambda: True), asked)
    assert answer.startswith("HTTP/1.1 404 ") or answer == ""


def test_a_line_without_an_end_is_not_kept() -> None:
    assert answers(Health(lambda: True), b"GET /" + b"x" * 3 * LONGEST) == ""


@pytest.mark.parametrize(
    ("text", "meant"),
    [("0.0.0.0:8471", ("0.0.0.0", 8471)), ("[::1]:0", ("::1", 0)), ("localhost:65535", ("localhost", 65535))],
)
def test_an_address(text: str, meant: tuple[str, int]) -> None:
    assert health_address(text) == meant


@pytest.mark.parametrize("text", ["8471", ":8471", "here:", "here:port", "here:65536"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        health_address(text)
