"""Bring a job's code into its folder: an unpacked package or a git commit, whole or not at all."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tarfile
import threading
import time
from pathlib import Path

from weft.backends.folders import JobFolder
from weft.model.failures import Code as FailureCode
from weft.model.failures import Permanent
from weft.model.job import Code

GIT_TIMEOUT = 600
DONE = ".weft-code"


def bring(code: Code, packages: Path, folder: JobFolder, stop: threading.Event | None = None) -> None:
    """Idempotent: the code folder is replaced in one rename, or left as it is when it is complete.

    Setting `stop` ends a fetch that nobody waits for any more.
    """
    target = Path(folder.code)
    mark = Path(folder.root) / DONE
    wanted = code.package or f"{code.git}@{code.commit}"
    if mark.exists() and mark.read_text() == wanted:
        return
    fresh = Path(folder.root) / "code.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        if code.package is not None:
            unpack(packages / package_file(code.package), fresh, code.package)
        else:
            assert code.git is not None
            assert code.commit is not None
            checkout(code.git, code.commit, fresh, stop or threading.Event())
        if code.subdir is not None and not (fresh / code.subdir).is_dir():
            raise Permanent(
                FailureCode.BAD_CODE, f"the code has no folder {code.subdir!r} (spec.code.subdir)"
            )
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    shutil.rmtree(target, ignore_errors=True)
    fresh.replace(target)
    mark.write_text(wanted)


def package_file(digest: str) -> str:
    return f"{digest.removeprefix('sha256:')}.tar.gz"


def unpack(archive: Path, target: Path, digest: str) -> None:
    """Extract with tarfile's `data` filter: no path, link or device can reach outside the folder."""
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(target, filter="data")
    except FileNotFoundError:
        raise Permanent(
            FailureCode.BAD_CODE, f"package {digest} is not stored here; submit the job again"
        ) from None
    except (tarfile.TarError, EOFError, OSError, ValueError) as problem:
        raise Permanent(FailureCode.BAD_CODE, f"package {digest} cannot be unpacked: {problem}") from None


def checkout(url: str, commit: str, target: Path, stop: threading.Event) -> None:
    """The files of one commit, without the repository around them."""
    # A GIT_DIR of whoever started the server must not make this their repository.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment = {**inherited, "GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "https:ssh:git:file"}
    deadline = time.monotonic() + GIT_TIMEOUT

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["git", "-C", str(target), *arguments]
        with subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            while True:
                try:
                    _, errors = process.communicate(timeout=0.2)
                except subprocess.TimeoutExpired:
                    if stop.is_set() or time.monotonic() > deadline:
                        os.killpg(process.pid, signal.SIGKILL)
                        process.communicate()
                        raise subprocess.TimeoutExpired(command, GIT_TIMEOUT) from None
                else:
                    return subprocess.CompletedProcess(command, process.returncode, "", errors)

    try:
        git("init", "--quiet")
        fetched = git("fetch", "--quiet", "--depth", "1", "--", url, commit)
        if fetched.returncode != 0:  # an abbreviated hash, or a server that does not serve single commits
            fetched = git("fetch", "--quiet", "--tags", "--", url, "+refs/heads/*:refs/remotes/origin/*")
        if fetched.returncode != 0:
            raise Permanent(FailureCode.BAD_CODE, f"git cannot fetch {url}: {_last_line(fetched.stderr)}")
        out = git("checkout", "--quiet", "--detach", commit)
        if out.returncode != 0:
            raise Permanent(FailureCode.BAD_CODE, f"{url} has no commit {commit}")
    except FileNotFoundError:
        raise Permanent(
            FailureCode.BAD_CODE, "code from git needs git, which is not installed here"
        ) from None
    except subprocess.TimeoutExpired:
        raise Permanent(
            FailureCode.BAD_CODE, f"git took longer than {GIT_TIMEOUT} s to fetch {url}"
        ) from None
    shutil.rmtree(target / ".git", ignore_errors=True)


def _last_line(text: str) -> str:
    """What git calls fatal, or else its last words."""
    lines = text.strip().splitlines() or ["no message"]
    return next((line for line in lines if line.startswith("fatal:")), lines[-1])
