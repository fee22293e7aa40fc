"""A real S3 server (moto's) in its own process, and a way to it that can break."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

KEYS = {"accessKeyId": "AKIAEXAMPLE000000000", "secretAccessKey": "not-checked-by-this-server"}


class Bucket:
    """A server with a bucket."""

    def __init__(self, url: str, process: subprocess.Popen[str]):
        self.url, self.process = url, process
        self.credentials = KEYS
        self._client: Any = None

    def client(self, kind: str = "s3") -> Any:
        import boto3

        return boto3.client(
            kind,
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=self.credentials["accessKeyId"],
            aws_secret_access_key=self.credentials["secretAccessKey"],
        )

    def put(self, key: str, data: bytes) -> None:
        self._client = self._client or self.client()
        self._client.put_object(Bucket="bucket", Key=key, Body=data)


@contextmanager
def s3(**environ: str) -> Iterator[Bucket]:
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
        env={**os.environ, **environ},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            if "Running on " in line:
                break
        else:
            raise RuntimeError(f"moto's server did not start: {''.join(said)}")
        reader = threading.Thread(target=process.stderr.read, daemon=True)
        reader.start()
        yield Bucket(said[-1].partition("Running on ")[2].split()[0], process)
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stderr.close()


class Way:
    """A TCP way to a server: it closes after so many bytes of an answer, or lets nobody through."""

    def __init__(self, url: str):
        self._to = ("127.0.0.1", int(url.rpartition(":")[2]))
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.cuts: list[int] = []
        """For the next connections: bytes after which each is closed."""
        self._closed = False
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client = self._listening.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            if self._closed:
                return
            self._open.add(client)
            with socket.create_connection(self._to) as server:
                threading.Thread(target=_pump, args=(client, server), daemon=True).start()
                left = self.cuts.pop(0) if self.cuts else None
                while (left is None or left > 0) and (data := server.recv(65536)):
                    data = data if left is None else data[:left]
                    left = None if left is None else left - len(data)
                    client.sendall(data)
                for each in (client, server):
                    each.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """The server is gone, also for those who talk to it."""
        self._closed = True
        for client in self._open:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def start(self) -> None:
        self._closed = False

    def close(self) -> None:
        self.stop()
        self._listening.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
