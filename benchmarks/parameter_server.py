"""100 MB of parameters pulled and pushed over loopback, against a plain socket that moves as many bytes.

The plain socket is one process that sends and one that receives into the same memory again and again: the most that
TCP on this machine gives to two processes. A push is answered when it is applied.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import statistics
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection

import numpy as np
from harness import Claim, arguments, clean_memory, print_table, publish, spread, timed

import weft.ps

SIZE = 100_000_000
ARRAYS = 20
AT_ONCE = 4
LEAST = 0.6
SERVERS = (1, 2)


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    rounds = 4 if options.quick else 12
    clean_memory()
    values = {
        f"layer-{i:02}": np.ones((1000, SIZE // ARRAYS // 4000), dtype=np.float32) for i in range(ARRAYS)
    }
    found: dict[str, list[float]] = {}
    with contextlib.ExitStack() as opened:
        raw = opened.enter_context(raw_sockets())
        work: dict[str, Callable[[], None]] = {"raw, to here": raw[0], "raw, from here": raw[1]}
        for servers in SERVERS:
            client = opened.enter_context(parameter_servers(values, servers))
            work |= {f"pull, {servers}": pulling(client), f"push, {servers}": pushing(client, values)}
        half = opened.enter_context(parameter_servers(values, 1, compression="float16"))
        work |= {"pull, float16": pulling(half), "push, float16": pushing(half, values)}
        for number in range(rounds + 1):
            for what, once in work.items():  # side by side, as the machine has other things to do
                seconds = timed(once) / AT_ONCE
                if number:  # the first touches the memory
                    found.setdefault(what, []).append(seconds)
    report(found, options.quick)


def report(found: dict[str, list[float]], quick: bool) -> None:
    def ratio(what: str) -> float:
        raw = found["raw, to here" if what.startswith("pull") else "raw, from here"]
        return statistics.median(one / other for one, other in zip(raw, found[what], strict=True))

    ratios = {what: round(ratio(what), 3) for what in found if not what.startswith("raw")}
    rows = [
        (what, f"{1000 * statistics.median(times):.0f}", f"{SIZE / statistics.median(times) / 1e9:.2f}",
         f"{100 * ratios[what]:.0f} %" if what in ratios else "")
        for what, times in found.items()
    ]  # fmt: skip
    print_table((f"{SIZE / 1e6:.0f} MB", "median ms", "GB/s", "of raw TCP"), rows)
    claims = [
        Claim(f"Parameter server, 100 MB {what}, of raw loopback TCP", ratios[f"{what}, 1"], LEAST, "", at_most=False)
        for what in ("pull", "push")
    ]  # fmt: skip
    details = {"seconds": {what: spread(times) for what, times in found.items()}, "ratios": ratios}
    publish("parameter_server", claims, details, quick)


# ── plain sockets ────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def raw_sockets() -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """Transfers of the same size to here, and from here."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        other = multiprocessing.get_context("spawn").Process(
            target=raw_end, args=(listening.getsockname(),), daemon=True
        )
        other.start()
        here, _ = listening.accept()
    memory = memoryview(bytearray(SIZE))

    def to_here() -> None:
        for _ in range(AT_ONCE):
            here.sendall(b"<")
            fill(here, memory)

    def from_here() -> None:
        for _ in range(AT_ONCE):
            here.sendall(b">")
            here.sendall(memory)
            here.recv(1)

    with here:
        yield to_here, from_here
    other.join()


def raw_end(address: tuple[str, int]) -> None:
    memory = memoryview(bytearray(SIZE))
    with socket.create_connection(address) as sock:
        while what := sock.recv(1):
            if what == b"<":
                sock.sendall(memory)
            else:
                fill(sock, memory)
                sock.sendall(b".")


def fill(sock: socket.socket, view: memoryview) -> None:
    while view:
        view = view[sock.recv_into(view) :]


# ── parameter servers ────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def parameter_servers(
    values: dict[str, np.ndarray], servers: int, compression: str | None = None
) -> Iterator[weft.ps.Client]:
    context = multiprocessing.get_context("spawn")
    addresses, processes = [], []
    for number in range(servers):
        here, there = context.Pipe()
        shapes = {name: value.shape for name, value in values.items()}
        process = context.Process(target=run_server, args=(there, shapes, (number, servers)), daemon=True)
        process.start()
        processes.append(process)
        addresses.append(here.recv())
    with weft.ps.Client(addresses, compression=compression) as client:
        yield client
    for process in processes:
        process.join()


def run_server(told: Connection, shapes: dict[str, Sequence[int]], server: tuple[int, int]) -> None:
    os.environ.pop("CHECKPOINT_DIR", None)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    told.send(address)
    initial = {name: np.ones(shape, dtype=np.float32) for name, shape in shapes.items()}
    weft.ps.serve(initial, optimizer=weft.ps.SGD(lr=1e-6), address=address, server=server, workers=1)


def pulling(client: weft.ps.Client) -> Callable[[], None]:
    def pull() -> None:
        for _ in range(AT_ONCE):
            client.pull()

    return pull


def pushing(client: weft.ps.Client, gradients: dict[str, np.ndarray]) -> Callable[[], None]:
    def push() -> None:
        for _ in range(AT_ONCE):
            client.push(gradients)

    return push


if __name__ == "__main__":
    main()
