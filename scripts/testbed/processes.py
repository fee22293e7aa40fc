"""The processes of one testbed: written down when started, ended by what was written down.

Identity is (pid, birth, boot): no signal goes to a process that merely has the same number. Every process also carries
`MARK` in its environment, so that children which daemons leave behind (containerd's shims) are found as well.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .places import locked
from .refusal import Refused
from .telling import until

MARK = "WEFT_TESTBED_STATE"
PATIENCE = 5.0


@dataclass(frozen=True)
class Process:
    name: str
    pid: int
    born: int
    boot: str


@dataclass
class Record:
    """What one testbed has to remember in order to be ended."""

    folder: Path
    ready: bool = False
    processes: list[Process] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)
    options: dict[str, int | bool] = field(default_factory=dict)
    commands: dict[str, list[str]] = field(default_factory=dict)
    """How each process was started, and with which variables, to start it again."""
    variables: dict[str, dict[str, str]] = field(default_factory=dict)
    made_folders: list[str] = field(default_factory=list)
    sysctls: dict[str, str] = field(default_factory=dict)

    def save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        said = {name: value for name, value in asdict(self).items() if name != "folder"}
        part = self.folder / "testbed.json.part"
        part.write_text(json.dumps(said, indent=2))
        part.rename(self.folder / "testbed.json")


def read(folder: Path) -> Record | None:
    try:
        said = json.loads((folder / "testbed.json").read_text())
    except FileNotFoundError:
        return None
    said["processes"] = [Process(**process) for process in said["processes"]]
    return Record(folder, **said)


def boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def birth(pid: int) -> int | None:
    """When the process began, in ticks since boot; None if it is gone or only waits to be reaped."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = said.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def alive(process: Process) -> bool:
    return process.boot == boot() and birth(process.pid) == process.born


def start(record: Record, name: str, command: list[str], env: dict[str, str] | None = None) -> Process:
    """A daemon of its own session, its output in `logs/NAME.log`."""
    logs = record.folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / f"{name}.log").open("a" if name in record.commands else "w") as log:
        begun = subprocess.Popen(
            command,
            env={**os.environ, **(env or {}), MARK: str(record.folder)},
            cwd=record.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    begun.returncode = 0  # it outlives this process: nobody here waits for it
    process = Process(name, begun.pid, birth(begun.pid) or 0, boot())
    record.commands[name], record.variables[name] = command, env or {}
    record.processes = [*(each for each in record.processes if each.name != name), process]
    record.save()
    return process


def start_once(folder: Path, name: str, command: Callable[[Record], list[str]]) -> Process:
    """A daemon that the testbed has from now on, if it had it not: of all who need it at the same time the first starts it,
    and it is ended with the rest. Nobody counts who uses it: whoever did might die and not say so."""
    with locked(folder / "lock", f"starting {name}"):
        record = read(folder)
        if record is None:
            raise Refused(name, f"no testbed is running ({folder})", "make k8s-testbed")
        found = next((each for each in record.processes if each.name == name and alive(each)), None)
        return found or start(record, name, command(record))


def kill(record: Record, name: str) -> None:
    """As the kernel would when memory runs out: at once, and only this one."""
    (victim,) = (each for each in record.processes if each.name == name)
    if alive(victim):
        os.kill(victim.pid, signal.SIGKILL)
        until(lambda: not alive(victim), PATIENCE)


def start_again(record: Record, name: str) -> Process:
    """One that has ended, as it was started the first time."""
    return start(record, name, record.commands[name], record.variables[name])


def log_of(record: Record, name: str) -> str:
    return (record.folder / "logs" / f"{name}.log").read_text(errors="replace")


def refuse_ended(record: Record, process: Process, doing: str) -> None:
    """A daemon that ended, or never became ready, in its own last words."""
    log = record.folder / "logs" / f"{process.name}.log"
    last = log.read_text(errors="replace").strip().splitlines()[-3:]
    state = "is alive but not ready" if alive(process) else "ended"
    raise Refused(process.name, f"{state} while {doing}:\n    " + "\n    ".join(last), f"less {log}")


def marked(folder: Path) -> list[Process]:
    """Every process that began with this testbed's mark, recorded or not."""
    wanted = f"{MARK}={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            name = (entry / "comm").read_text().strip()
        except OSError:
            continue
        if (born := birth(int(entry.name))) is not None:
            found.append(Process(name, int(entry.name), born, boot()))
    return found


def end(processes: Iterable[Process], patience: float = PATIENCE) -> list[Process]:
    """Asked first, then killed; those that are still there are given back."""
    ending = [process for process in processes if alive(process)]
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, PATIENCE)):
        for process in ending:
            if alive(process):
                os.kill(process.pid, number)
        if until(lambda: not any(alive(process) for process in ending), seconds, every=0.02):
            return []
    return [process for process in ending if alive(process)]
