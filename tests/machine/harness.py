"""Real servers for tests: started, spoken to over HTTP, killed, restarted, and searched for leftovers."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

START_TIMEOUT = 60.0
WAIT = 60.0
FINISHED = {"COMPLETED", "FAILED", "CANCELLED"}
IDLE = FINISHED | {"HALTED"}
UNREACHABLE = (OSError, http.client.HTTPException)


def until(ready: Callable[[], Any], what: str, timeout: float = WAIT, every: float = 0.01) -> Any:
    """Look again and again until something is true; its value. Fails with a sentence after the timeout."""
    deadline = time.monotonic() + timeout
    while not (found := ready()):
        assert time.monotonic() < deadline, f"waited {timeout:g} s in vain for {what}"
        time.sleep(every)
    return found


# ── documents ────────────────────────────────────────────────────────────────────────────────────


def job(*command: str, name: str | None = None, labels: dict[str, str] | None = None, **spec: Any) -> dict:
    """A TrainingJob document; keywords are fields of its spec."""
    if command:
        spec["command"] = list(command)
    metadata: dict[str, Any] = {}
    if name is not None:
        metadata["name"] = name
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": "weft.dev/v1", "kind": "TrainingJob", "metadata": metadata, "spec": spec}


def sh(script: str, **spec: Any) -> dict:
    return job("sh", "-c", script, **spec)


def python(source: str, **spec: Any) -> dict:
    return job("python", "-c", source, **spec)


def package(files: dict[str, str]) -> tuple[str, bytes]:
    """A code package: its digest and its bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(text.encode()), 0o755
            tar.addfile(info, io.BytesIO(text.encode()))
    data = buffer.getvalue()
    return digest_of(data), data


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


# ── a server ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Event:
    event: str
    data: Any
    id: str | None


@dataclass
class Server:
    """One server on one home. It may be killed and started again; its jobs do not mind."""

    home: Path
    arguments: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)
    within: tuple[str, ...] = ()
    """A command that runs the server in its own place, as `unshare` does."""
    process: subprocess.Popen[bytes] | None = None
    pids: list[int] = field(default_factory=list)

    # ── life ──

    def start(self) -> Server:
        self.begin()
        self.ready()
        return self

    def begin(self) -> None:
        """Start the process without waiting for it to answer."""
        self._forget()
        self.home.parent.mkdir(parents=True, exist_ok=True)
        output = self.output.open("ab")
        self.process = subprocess.Popen(
            [*self.within, sys.executable, "-m", "weft.server", "--home", str(self.home), *self.arguments],
            env={**os.environ, "WEFT_HOME": str(self.home), **self.environ},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        output.close()
        self.pids.append(self.process.pid)

    @property
    def output(self) -> Path:
        """What the server prints; beside its home, for the home may be full or read-only."""
        return self.home.with_name(f"{self.home.name}.log")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def ready(self, timeout: float = START_TIMEOUT) -> None:
        def answers() -> bool:
            assert self.running(), f"the server ended: {self.printed()}"
            return self.answering()

        until(answers, f"the server to answer: {self.printed()}", timeout)

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def answering(self) -> bool:
        try:
            return self.facts()["pid"] == self.pid and self.get("/healthz").status == 200
        except (*UNREACHABLE, ValueError, KeyError):
            return False

    def facts(self) -> dict[str, Any]:
        return json.loads((self.home / "server.json").read_text())

    def printed(self) -> str:
        return self.output.read_text()[-3000:] if self.output.exists() else ""

    def kill(self) -> None:
        """kill -9, as a crash or the kernel would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def restart(self) -> None:
        self.kill()
        self.start()

    def stop(self) -> None:
        """SIGTERM; it must end well."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        assert self.process.wait(60) == 0, self.printed()
        self._forget()

    def _forget(self) -> None:
        self._token = None

    # ── talking ──

    @property
    def token(self) -> str:
        if getattr(self, "_token", None) is None:
            self._token: str | None = (self.home / "token").read_text().strip()
        assert self._token is not None
        return self._token

    def connect(self, timeout: float = 20.0) -> http.client.HTTPConnection:
        host, _, port = self.facts()["address"].removeprefix("http://").rpartition(":")
        return http.client.HTTPConnection(host, int(port), timeout=timeout)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        token: str | None = "",
        timeout: float = 20.0,
    ) -> Answer:
        """One request. `token` None sends none, "" the right one."""
        send = dict(headers or {})
        if token is not None:
            send.setdefault("Authorization", f"Bearer {token or self.token}")
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            send.setdefault("Content-Type", "application/json")
        connection = self.connect(timeout)
        try:
            connection.request(method, path, body, send)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    def get(self, path: str, **query: Any) -> Answer:
        return self.call("GET", f"{path}?{urlencode(query)}" if query else path)

    def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        return self.call("POST", path, body, **options)

    def stream(
        self, path: str, timeout: float = WAIT, headers: dict[str, str] | None = None, **query: Any
    ) -> Iterator[Event]:
        """Server-sent events until the stream ends. `follow=None`: of what is a stream anyway."""
        asked = {name: value for name, value in {"follow": "true", **query}.items() if value is not None}
        connection = self.connect(timeout)
        try:
            connection.request(
                "GET",
                f"{path}?{urlencode(asked)}",
                headers={"Authorization": f"Bearer {self.token}", **(headers or {})},
            )
            response = connection.getresponse()
            assert response.status == 200, response.read()
            assert response.getheader("Content-Type", "").startswith("text/event-stream")
            fields: dict[str, str] = {}
            while line := response.readline():
                text = line.decode().rstrip("\n")
                if not text:
                    if "data" in fields:
                        yield Event(fields.get("event", ""), json.loads(fields["data"]), fields.get("id"))
                    fields = {}
                elif not text.startswith(":"):
                    key, _, value = text.partition(": ")
                    fields[key] = value
        finally:
            connection.close()

    def weft(
        self, *words: str, cwd: Path | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """What a person types."""
        done = subprocess.run(
            [str(Path(sys.executable).parent / "weft"), *words],
            capture_output=True, text=True, check=False, timeout=180, cwd=cwd,
            env={**os.environ, "WEFT_HOME": str(self.home), "COLUMNS": "200"},
        )  # fmt: skip
        assert not check or done.returncode == 0, f"weft {' '.join(words)}: {done.stderr}"
        return done

    # ── jobs ──

    def submit(self, document: dict, key: str | None = None) -> str:
        """Submit; the job's name."""
        answer = self.post("/v1/jobs", document, headers={"Idempotency-Key": key} if key else None)
        assert answer.status in (200, 201), answer.body.decode()
        return answer.json["metadata"]["name"]

    def run(self, document: dict, *states: str, timeout: float = WAIT) -> dict:
        """Submit a job and wait for one of these states, or for its end; the whole resource."""
        return self.wait_for(self.submit(document), *states, timeout=timeout)

    def wait_for(self, name: str, *states: str, timeout: float = WAIT) -> dict:
        """Follow the job's events until it is (now) in one of these states; default: any end."""
        wanted = set(states) or FINISHED
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            after = self.history(name)[-1]["seq"]  # before the look: what comes between the two is replayed
            found = self.job(name)
            if found["status"]["state"] in wanted:
                return found
            if found["status"]["state"] in FINISHED:
                break
            with contextlib.suppress(*UNREACHABLE):
                for event in self.stream(
                    f"/v1/jobs/{name}/events", after=after, timeout=deadline - time.monotonic()
                ):
                    if event.event == "end" or event.data.get("state") in wanted:
                        break
        raise AssertionError(f"{name} did not become {' or '.join(sorted(wanted))}: {self.story(name)}")

    def job(self, name: str) -> dict:
        answer = self.get(f"/v1/jobs/{quote(name)}")
        assert answer.status == 200, answer.body.decode()
        return answer.json

    def status(self, name: str) -> dict:
        return self.job(name)["status"]

    def uid(self, name: str) -> str:
        return self.job(name)["metadata"]["uid"]

    def folder(self, name: str) -> Path:
        return self.home / "jobs" / self.uid(name)

    def history(self, name: str) -> list[dict]:
        return self.get(f"/v1/jobs/{name}/events").json["items"]

    def states(self, name: str) -> list[str]:
        """The job's way through the states."""
        return [event["state"] for event in self.history(name) if event["type"] == "state"]

    def story(self, name: str) -> str:
        return json.dumps([self.history(name), self.status(name)], indent=1)

    def ask(self, name: str, verb: str) -> Answer:
        return self.post(f"/v1/jobs/{name}/{verb}")

    def delete(self, name: str) -> Answer:
        return self.call("DELETE", f"/v1/jobs/{name}")

    def gone(self, name: str) -> bool:
        return self.get(f"/v1/jobs/{name}").status == 404

    def logs(self, name: str, **query: Any) -> list[dict]:
        answer = self.get(f"/v1/jobs/{name}/logs", **query)
        assert answer.status == 200, answer.body.decode()
        return answer.json["items"]

    def text(self, name: str, **query: Any) -> list[str]:
        return [line["text"] for line in self.logs(name, **query)]

    def printed_line(self, name: str, text: str, timeout: float = WAIT) -> None:
        """Wait, by following the log, until the job has printed a line that contains this."""
        for event in self.stream(f"/v1/jobs/{name}/logs", timeout=timeout):
            if event.event == "end":
                break
            if any(text in line["text"] for line in event.data["items"]):
                return
        raise AssertionError(f"{name} never printed {text!r}: {self.story(name)}")

    def metrics(self, name: str) -> list[dict]:
        return self.get(f"/v1/jobs/{name}/metrics", limit=1_000_000).json["items"]

    def put_package(self, data: bytes) -> str:
        digest = digest_of(data)
        answer = self.call(
            "PUT", f"/v1/packages/{digest}", data, headers={"Content-Type": "application/gzip"}
        )
        assert answer.status in (200, 201), answer.body
        return digest

    def nodes(self) -> list[dict]:
        return self.get("/v1/nodes").json["items"]

    def reserved(self) -> list[dict]:
        """Nodes of which something is taken."""
        kinds = ("cpu", "memory", "gpu")
        return [n for n in self.nodes() if any(n["free"][k] != n["capacity"][k] for k in kinds)]

    def pid_of(self, name: str, task: str = "worker-0") -> int:
        """Its pid; what it printed may be there a moment before."""
        found = lambda: next(t for t in self.status(name)["tasks"] if t["name"] == task).get("pid")  # noqa: E731
        pid: int = until(found, f"the pid of {task} of {name}")
        return pid

    # ── leftovers ──

    def processes(self) -> dict[int, str]:
        """Every process that carries this home in its environment or arguments, server included."""
        return processes_with(str(self.home))

    def others(self) -> dict[int, str]:
        """Launcher, supervisors, tasks: all but the server."""
        return {pid: line for pid, line in self.processes().items() if pid != self.pid}

    def supervisors(self) -> list[int]:
        """Supervisors that have a task; the launcher and idle ones have none."""
        parents = {parent_of(pid) for pid in self.task_processes()}
        return [pid for pid, line in self.others().items() if "launcher.py" in line and pid in parents]

    def launcher(self) -> int:
        return next(
            p for p, line in self.others().items() if "launcher.py" in line and parent_of(p) == self.pid
        )

    def task_processes(self) -> list[int]:
        return [pid for pid, line in self.others().items() if "launcher.py" not in line]

    def cgroups(self) -> list[Path]:
        label = "weft-" + hashlib.sha256(str(self.home).encode()).hexdigest()[:12]
        return [Path(base) / label for base, names, _ in os.walk("/sys/fs/cgroup") if label in names]

    def close(self) -> None:
        """Stop the server and see that nothing of it is left: no process, no cgroup."""
        problems = []
        try:
            self.stop()
        except (AssertionError, subprocess.TimeoutExpired) as problem:
            problems.append(f"it did not stop: {problem}")
            self.kill()
        problems += nothing_left(self)
        assert not problems, "; ".join(problems)


class QuickServer(Server):
    """Forked from a process that has the server's modules loaded: a start costs what the server does itself."""

    zygote: ClassVar[subprocess.Popen[str] | None] = None
    _pid = 0

    def begin(self) -> None:
        self._forget()
        self.home.parent.mkdir(parents=True, exist_ok=True)
        request = {
            "argv": ["--home", str(self.home), *self.arguments],
            "env": {"WEFT_HOME": str(self.home), **self.environ},
            "output": str(self.output),
        }
        cls = type(self)
        if cls.zygote is None:
            command = [sys.executable, str(Path(__file__).with_name("zygote.py"))]
            cls.zygote = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert cls.zygote.stdin is not None
        assert cls.zygote.stdout is not None
        cls.zygote.stdin.write(json.dumps(request) + "\n")
        cls.zygote.stdin.flush()
        line = cls.zygote.stdout.readline()
        assert line, "the process that forks servers has ended; its traceback is above"
        self._pid = int(line)
        self.pids.append(self._pid)

    @property
    def pid(self) -> int:
        return self._pid

    def running(self) -> bool:
        return alive(self._pid)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        if not self._pid:  # it never began, and 0 would be ourselves
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)
        gone = Path(f"/proc/{self._pid}")  # a leader that is a zombie may still have threads with open files
        until(lambda: not gone.exists(), "the server to end", 15, every=0.001)

    @classmethod
    def close_zygote(cls) -> None:
        if cls.zygote is not None:
            cls.zygote.communicate(timeout=10)
            cls.zygote = None


def nothing_left(server: Server) -> list[str]:
    """What is still there of a stopped server, ended after it has been noted."""
    problems = []
    try:
        until(lambda: not processes_with(str(server.home)), "processes to end", 5)
    except AssertionError:
        left = processes_with(str(server.home))
        problems.append(f"processes left: {left}")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    groups = server.cgroups()
    if groups:
        problems.append(f"cgroups left: {groups}")
        for group in groups:
            for inner in [*group.glob("*/"), group]:
                with contextlib.suppress(OSError):
                    inner.rmdir()
    return problems


def processes_with(text: str) -> dict[int, str]:
    needle = text.encode()
    mine = {os.getpid(), os.getppid()}
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in mine:
            continue
        try:
            arguments = (entry / "cmdline").read_bytes()
            if needle in arguments or needle in (entry / "environ").read_bytes():
                found[int(entry.name)] = arguments.replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            continue
    return found


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
