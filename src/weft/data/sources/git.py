"""The files of one git commit: `git+https://host/repository@commit`, or git+ssh, git+file.

Links and submodules are refused: their content is not in the commit. So are Git LFS pointers, for the same reason.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from weft.data.errors import Corrupt, DataError, Denied, Missing, NoRoom, Refused, Unreachable
from weft.data.patience import PATIENT, Patience
from weft.data.sources import Object, without

TIMEOUT = 3600
CHUNK = 1 << 20
POINTER = b"version https://git-lfs.github.com/spec/"
LONGEST_POINTER = 1024
ASK = """#!/bin/sh
case "$1" in
  Username*) printf %s "$WEFT_GIT_USER" ;;
  *) printf %s "$WEFT_GIT_PASSWORD" ;;
esac
"""
"""How git asks for credentials: they are in the environment of git alone, and in no argument or file."""
LATER = re.compile(
    r"could not resolve|unable to connect|connection (refused|reset|timed out)|couldn't connect|failed to connect|"
    r"timed out|early eof|hung up|rpc failed|returned error: (429|5\d\d)|unable to look up|no route to host",
    re.IGNORECASE,
)
DENIED = re.compile(
    r"authentication failed|permission denied|could not read (username|password)|returned error: 40[13]|"
    r"dubious ownership|host key verification",
    re.IGNORECASE,
)


class GitSource:
    """A bare repository with one commit, fetched when it is listed; its blobs are the objects."""

    stays = proves = False

    def __init__(
        self,
        url: str,
        credentials: Mapping[str, str] | None = None,
        patience: Patience = PATIENT,
        scratch: Path | None = None,
    ):
        found = re.fullmatch(r"git\+((?:https|ssh|file)://[^\s-][^\s]*)@([0-9a-f]{7,64})", url)
        if found is None:
            raise Refused(f"{url!r} is no git source; write git+https://HOST/REPOSITORY@COMMIT")
        self._url, self._commit = found[1], found[2]
        self._credentials = dict(credentials or {})
        self._patience = patience
        self._scratch = scratch
        self._folder: Path | None = None
        self._fetched = False
        self._readers: list[_Reader] = []
        self._lock = threading.Lock()
        self._fetching = threading.Lock()

    def objects(self) -> Iterator[Object]:
        self._fetch()
        listed = self._git("ls-tree", "-r", "-l", "-z", "--full-tree", f"{self._commit}^{{commit}}")
        for line in listed.split(b"\0")[:-1]:
            about, _, path = line.partition(b"\t")
            mode, kind, blob, size = about.decode().split()
            name = path.decode(errors="surrogateescape")
            if kind != "blob" or mode == "120000":
                raise Refused(
                    f"{name} in {self._url} is a {'link' if kind == 'blob' else 'submodule'}, and a dataset holds plain "
                    "files only; commit the files themselves, or make a dataset of the other repository"
                )
            yield Object(name, int(size), blob)

    def read(self, item: Object, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        end = item.size if length is None else min(item.size, offset + length)
        reader = self._reader()
        whole = False
        try:
            at = 0
            for chunk in reader.blob(item):
                if item.size <= LONGEST_POINTER and chunk.startswith(POINTER):
                    raise Refused(
                        f"{item.name} in {self._url} is a Git LFS pointer, and its content is not in git; "
                        "commit the file itself, or take it from where LFS keeps it"
                    )
                wanted = chunk[max(0, offset - at) : max(0, end - at)]
                at += len(chunk)
                if wanted:
                    yield wanted
            whole = True
        finally:
            if whole:
                with self._lock:
                    self._readers.append(reader)
            else:
                reader.close()

    # ── fetching ──

    def _fetch(self) -> None:
        with self._fetching:
            if self._fetched:
                return
            if self._folder is None:
                self._folder = _folder(self, self._scratch)
            self._git("init", "--quiet", "--bare")
            self._patience.ask(self._bring)
            if self._run("cat-file", "-e", f"{self._commit}^{{commit}}")[0] != 0:
                raise Missing(f"{self._url} has no commit {self._commit}; see that it was pushed")
            self._fetched = True

    def _bring(self) -> None:
        code, _, errors = self._run("fetch", "--quiet", "--depth", "1", "--", self._url, self._commit)
        if code != 0 and not LATER.search(errors) and not DENIED.search(errors):
            # an abbreviated hash, or a server that does not give single commits
            code, _, errors = self._run(
                "fetch", "--quiet", "--tags", "--", self._url, "+refs/heads/*:refs/heads/*"
            )
        if code != 0:
            raise self._meant(errors)

    def _meant(self, errors: str) -> DataError:
        lines = errors.strip().splitlines() or ["no message"]
        line = next((line for line in lines if line.startswith("fatal:")), lines[-1])
        why = without(self._credentials, line[:300])
        if "No space left" in errors or "quota exceeded" in errors:
            return NoRoom(f"no room in {self._folder} for {self._url}; make room, then try again")
        if DENIED.search(errors):
            return Denied(f"git cannot fetch {self._url}: {why}; see the secret that secretRef names")
        if LATER.search(errors):
            return Unreachable(f"git cannot fetch {self._url}: {why}; try again later")
        return Missing(f"git cannot fetch {self._url}: {why}; see the url")

    def _git(self, *arguments: str) -> bytes:
        code, output, errors = self._run(*arguments)
        if code != 0:
            raise self._meant(errors)
        return output

    def _run(self, *arguments: str) -> tuple[int, bytes, str]:
        with self._start(*arguments, stderr=subprocess.PIPE) as process:
            try:
                output, errors = process.communicate(timeout=TIMEOUT)
            except BaseException as problem:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                if isinstance(problem, subprocess.TimeoutExpired):
                    raise Unreachable(
                        f"git took longer than {TIMEOUT} s with {self._url}; try later"
                    ) from None
                raise
        return process.returncode, output, errors.decode(errors="replace")

    def _start(self, *arguments: str, stderr: int) -> subprocess.Popen[bytes]:
        assert self._folder is not None
        try:
            return subprocess.Popen(
                ["git", "--git-dir", str(self._folder), *arguments],
                env=self._environment(self._folder),
                stdin=subprocess.PIPE if arguments[0] == "cat-file" else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise Refused(
                "data from git needs git, which is not installed on the server; install it"
            ) from None

    def _environment(self, folder: Path) -> dict[str, str]:
        # A GIT_DIR of whoever started the server must not make this their repository, nor their helpers give away
        # their passwords.
        mine = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        mine |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "https:ssh:file", "LC_ALL": "C"}
        mine["GIT_SSH_COMMAND"] = "ssh -o BatchMode=yes"
        settings = {"credential.helper": "", "core.hooksPath": "/dev/null", "gc.auto": "0"}
        secret = self._credentials.get("password") or self._credentials.get("token")
        if secret is not None:
            ask = folder / "ask"
            if not ask.exists():
                ask.write_text(ASK)
                ask.chmod(0o700)
            mine |= {"GIT_ASKPASS": str(ask), "WEFT_GIT_PASSWORD": secret}
            mine["WEFT_GIT_USER"] = self._credentials.get("user", "git")
            settings["http.followRedirects"] = "false"  # the other server would be told the password too
        mine["GIT_CONFIG_COUNT"] = str(len(settings))
        for number, (key, value) in enumerate(settings.items()):
            mine |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        return mine

    # ── reading ──

    def _reader(self) -> _Reader:
        with self._lock:
            if self._readers:
                return self._readers.pop()
        self._fetch()
        process = self._start("cat-file", "--batch", stderr=subprocess.DEVNULL)
        return _Reader(process, self._url)


class _Reader:
    """A git process that gives one blob after the other."""

    def __init__(self, process: subprocess.Popen[bytes], url: str):
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._url = process, url
        self._asks: IO[bytes] = process.stdin
        self._answers: IO[bytes] = process.stdout
        self.close = weakref.finalize(self, _end, process)

    def blob(self, item: Object) -> Iterator[bytes]:
        try:
            self._asks.write(f"{item.mark}\n".encode())
            self._asks.flush()
        except BrokenPipeError:
            pass  # the answer will be empty
        header = self._answers.readline().decode().split()
        if header != [item.mark, "blob", str(item.size)]:
            raise Corrupt(
                f"{item.name} in {self._url}: git does not give blob {item.mark}; list the source again"
            )
        left = item.size
        while left:
            chunk = self._answers.read(min(CHUNK, left))
            if not chunk:
                raise Corrupt(f"{item.name} in {self._url}: git ended early; try again")
            left -= len(chunk)
            yield chunk
        self._answers.read(1)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                pass
    process.wait()


def _folder(owner: GitSource, scratch: Path | None) -> Path:
    """A locked folder that goes when its owner does; a killed owner's is swept with the store's other leftovers."""
    folder = Path(tempfile.mkdtemp(prefix="git-", dir=scratch))
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)

    def gone() -> None:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)

    weakref.finalize(owner, gone)
    return folder
