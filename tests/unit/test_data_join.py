"""The two halves together: a reader over a real agent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.datasets import Here, OriginServer, Store, bytes_of
from weft.data.agent.origins import Server
from weft.runtime.data.parts import AgentParts
from weft.runtime.data.reader import Dataset

SAMPLES = {f"{number:03}": bytes_of(number, 1000) for number in range(200)}


@pytest.mark.parametrize("shuffle", [False, True])
def test_all_samples(fast_folder: Path, shuffle: bool) -> None:
    store = Store(fast_folder / "store")
    version = store.add(SAMPLES)
    with OriginServer(store) as origin, Here(fast_folder, Server(origin.url)) as node:
        data = Dataset(AgentParts(node.grant(version)), version, shuffle=shuffle)
        for _ in range(2):
            assert dict(data) == SAMPLES
        child = os.fork()
        if child == 0:
            os._exit(0 if dict(data) == SAMPLES else 1)
        assert os.waitpid(child, 0)[1] == 0
