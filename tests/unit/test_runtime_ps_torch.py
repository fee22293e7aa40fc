"""`weft.ps` with torch's own tensors, where torch is installed."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from weft import ps

pytest.importorskip("numpy")
torch = pytest.importorskip("torch")


@contextlib.contextmanager
def serving(initial: dict[str, Any], **given: Any) -> Iterator[list[str]]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"127.0.0.1:{sock.getsockname()[1]}" for sock in sockets]
    threads = []
    for index, sock in enumerate(sockets):
        sock.close()
        options = {"address": addresses[index], "server": (index, 2), "workers": 1, **given}
        threads.append(threading.Thread(target=ps.serve, args=(initial,), kwargs=options, daemon=True))
        threads[-1].start()
    yield addresses
    for thread in threads:
        thread.join(10)


def a_model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def test_a_model_learns_as_with_torchs_own_adam() -> None:
    alone, model = a_model(), a_model()
    own = torch.optim.Adam(alone.parameters(), lr=0.01)
    data = torch.randn(20, 4, 6)
    with (
        serving(dict(model.named_parameters()), optimizer=ps.Adam(lr=0.01)) as addresses,
        ps.Client(addresses) as client,
    ):
        for batch in data:
            own.zero_grad()
            alone(batch).square().sum().backward()
            own.step()
            client.pull(into=dict(model.named_parameters()))
            model.zero_grad()
            model(batch).square().sum().backward()
            client.push({name: p.grad for name, p in model.named_parameters()})
        client.pull(into=dict(model.named_parameters()))
    for one, other in zip(alone.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_sparse_gradients_of_an_embedding_are_rows() -> None:
    table = torch.nn.Embedding(9, 3, sparse=True)
    before = table.weight.detach().clone()
    with (
        serving({"table": table.weight}, optimizer=ps.SGD(lr=1.0)) as addresses,
        ps.Client(addresses) as client,
    ):
        table(torch.tensor([7, 1, 7])).sum().backward()
        client.push({"table": table.weight.grad})
        rows = client.pull(rows={"table": torch.tensor([7, 1, 0])}).arrays["table"]
    expected = before[[7, 1, 0]] - torch.tensor([[2.0], [1.0], [0.0]])
    torch.testing.assert_close(torch.from_numpy(rows), expected)
