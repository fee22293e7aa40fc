"""One data agent of this machine: started when it is first asked, started again if it dies, ended when nobody reads.

It outlives the server, as tasks do.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.backends.api import Cached, Reads
from weft.model.failures import Code, Permanent, Temporary

LENGTH = struct.Struct("<I")
LONGEST = 100
"""Characters of a socket's path; the kernel takes no more than 107."""
PATIENCE = 20.0
CREDENTIALS = struct.Struct("3i")


class Agent:
    def __init__(self, node: str, folder: Path, arguments: Sequence[str]):
        self.node = node
        self.folder = folder
        self._arguments = arguments
        place = folder
        if len(str(place)) + len("/door/data.sock") > LONGEST:
            place = Path("/tmp", f"weft-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}")
        self._control = place / "control.sock"
        self.door = place / "door"
        """The folder of the socket that readers use, and of nothing else: an isolated task sees it."""
        self.socket = str(self.door / "data.sock")
        self.readers: set[str] = set()
        """Jobs, by uid, for which there must be an agent."""
        self.grants: dict[str, dict[str, Any]] = {}
        """What running jobs were lent, to be said again to an agent that was started again: it keeps no secrets."""
        self.warming: dict[str, dict[str, Any]] = {}
        """By version: what is asked of the agent until it is there."""
        self.warming_bytes: dict[str, int] = {}
        self.address = ""
        """Where other nodes' agents reach it."""
        self.held: dict[str, int] = {}
        """Bytes of each version that are there, as the agent last said or noted."""
        self._noted_at = 0
        self.read_note()
        self._ended: dict[str, Counter[str]] = {}
        """What readers got that are no longer there, by dataset, since this server began."""
        self._reading: list[dict[str, Any]] = []
        """What the agent last counted for those who are there, a line each job and dataset."""
        self._starting = asyncio.Lock()

    def read_note(self) -> None:
        """What the agent notes now and then, also for the time when it is gone. To count it anew may take it long."""
        note = self.folder / "holds.json"
        with contextlib.suppress(OSError, ValueError):
            if (at := note.stat().st_mtime_ns) != self._noted_at:
                self.held, self._noted_at = json.loads(note.read_bytes()), at

    @property
    def wanted(self) -> bool:
        return bool(self.readers or self.warming)

    # ── jobs ──

    async def grant(self, uid: str, token: str, versions: Mapping[str, Mapping[str, Any]]) -> None:
        self.readers.add(uid)
        self.grants[uid] = {"do": "grant", "job": uid, "token": token, "versions": dict(versions)}
        await self.ask(self.grants[uid])

    async def revoke(self, uid: str) -> None:
        self.readers.discard(uid)
        self.grants.pop(uid, None)
        with contextlib.suppress(OSError, Temporary, Permanent):
            for counted in (await self.ask({"do": "revoke", "job": uid}))["counts"]:
                self._ended.setdefault(counted["dataset"], Counter()).update(Reads.told(counted))
        self._reading = [counted for counted in self._reading if counted["job"] != uid]
        if not self.wanted:
            await self.end()

    # ── data before jobs ──

    async def warm(self, version: str, about: Mapping[str, Any]) -> None:
        self.warming[version] = {"do": "warm", "version": version, **about}
        try:
            self.warming_bytes[version] = (await self.ask(self.warming[version]))["bytes"]
        except BaseException:
            self.warming.pop(version, None)
            raise

    # ── what it says of itself ──

    async def look(self) -> dict[str, Any]:
        """See that it lives, and what it holds and does."""
        status = await self.ask({"do": "status"})
        self.address = status["peerAddress"]
        self._reading = status["counts"]
        self.read_note()
        for version, asked in list(self.warming.items()):
            under_way = status["warming"].get(version)
            if under_way is None:  # it was started again
                await self.ask(asked)
            elif under_way["finished"]:
                self.held = (await self.ask({"do": "holds"}))["versions"]
                self.warming.pop(version, None)
                self.warming_bytes.pop(version, None)
        return status

    def cached(self) -> Cached:
        reads = {name: counted.copy() for name, counted in self._ended.items()}
        for line in self._reading:
            reads.setdefault(line["dataset"], Counter()).update(Reads.told(line))
        return Cached(
            self.node,
            self.held,
            {name: Reads(**counted) for name, counted in reads.items()},
            dict(self.warming_bytes),
        )

    # ── the process ──

    async def end(self) -> None:
        with contextlib.suppress(OSError):
            os.kill(await asyncio.to_thread(self._pid), signal.SIGTERM)

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Started if it is not there, and somebody needs it."""
        async with self._starting:
            for attempt in (1, 2):
                try:
                    return await asyncio.to_thread(self._exchange, request)
                except OSError as problem:
                    if attempt == 2 or not self.wanted:
                        raise Temporary(f"the data agent of {self.node} does not answer: {problem}") from None
                    await self._start()
        raise AssertionError

    async def _start(self) -> None:
        for folder in (self.folder, self.door):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if (owner := self.door.parent.stat().st_uid) != os.getuid():
            raise Permanent(Code.DATA, f"{self.door.parent} belongs to user {owner}; remove it")
        arguments = [
            sys.executable, "-m", "weft.data.agent", "--folder", str(self.folder), "--socket", self.socket,
            "--control", str(self._control), "--node", self.node, *self._arguments,
        ]  # fmt: skip
        with (self.folder / "agent.log").open("ab") as printed:
            process = subprocess.Popen(  # noqa: ASYNC220  (a millisecond, and it is to outlive us)
                arguments, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed, start_new_session=True
            )
        end = asyncio.get_running_loop().time() + PATIENCE
        while asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.02)
            with contextlib.suppress(OSError):
                for grant in ({"do": "status"}, *self.grants.values()):
                    await asyncio.to_thread(self._exchange, grant)
                return
            if process.poll() is not None:
                said = (self.folder / "agent.log").read_text(errors="replace").strip().rpartition("\n")[2]
                raise Permanent(Code.DATA, f"the data agent of {self.node} does not start: {said}")
        raise Temporary(f"the data agent of {self.node} does not start")

    def _connected(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        made.settimeout(PATIENCE)
        try:
            made.connect(str(self._control))
        except OSError:
            made.close()
            raise
        return made

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps(request).encode()
        with self._connected() as made, made.makefile("rb") as answer:
            made.sendall(LENGTH.pack(len(text)) + text)
            head = answer.read(LENGTH.size)
            if len(head) < LENGTH.size:
                raise ConnectionError("it ended the connection")
            header: dict[str, Any] = json.loads(answer.read(LENGTH.unpack(head)[0]))
        if not header["ok"]:
            raise Permanent(Code.DATA, header["message"])
        return header

    def _pid(self) -> int:
        """Whoever answers at the socket: the kernel knows."""
        with self._connected() as made:
            found = made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        pid: int = CREDENTIALS.unpack(found)[0]
        return pid
