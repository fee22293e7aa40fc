"""The same no-op jobs on Slurm and on Ray Jobs, where they are installed.

Slurm runs as one node out of a temporary folder, its daemons started by hand: no service manager, no
accounting, no authentication, more CPUs declared than there are, and the scheduler settings that were
fastest for it. Ray lives in an environment of its own under ~/.cache/weft-bench/ray.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import end_processes_with, folder_on_disk, timed, until

RAY = Path("~/.cache/weft-bench/ray").expanduser()
SLURM_CPUS = 64
SLURM_CONFIG = """
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/completed
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1,bf_continue,default_queue_depth=1000
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MaxJobCount=20000
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""

RAY_JOBS = """
import sys, time, ray
from ray.job_submission import JobStatus, JobSubmissionClient

context = ray.init(
    num_cpus=16, include_dashboard=True, logging_level="error", log_to_driver=False, _temp_dir=sys.argv[2]
)
client = JobSubmissionClient(f"http://{context.dashboard_url}")
begin = time.perf_counter()
names = [client.submit_job(entrypoint="true") for _ in range(int(sys.argv[1]))]
while names:
    states = {name: client.get_job_status(name) for name in names}
    assert JobStatus.FAILED not in states.values(), states
    names = [name for name, state in states.items() if state != JobStatus.SUCCEEDED]
    time.sleep(0.05)
print("seconds", time.perf_counter() - begin)
ray.shutdown()
"""


@dataclass(frozen=True, slots=True)
class Peer:
    what: str
    jobs: int = 0
    rate: float | None = None
    note: str = "not installed"
    facts: dict[str, Any] = field(default_factory=dict)

    def dump(self) -> dict[str, Any]:
        measured = {"perSecond": round(self.rate, 3), **self.facts} if self.rate else {"note": self.note}
        return {"what": self.what, "jobs": self.jobs, **measured}


def install() -> None:
    """Slurm from the distribution (needs root), Ray into its own environment."""
    if shutil.which("slurmctld") is None:
        subprocess.run(["apt-get", "install", "-y", "slurm-wlm"], check=True, stdout=subprocess.DEVNULL)
    if not (RAY / "bin" / "ray").exists():
        subprocess.run([sys.executable, "-m", "venv", str(RAY)], check=True)
        subprocess.run([str(RAY / "bin" / "pip"), "install", "--quiet", "ray[default]"], check=True)


def rates(quick: bool) -> list[Peer]:
    return [_guarded(slurm, 100 if quick else 1000), _guarded(ray, 5 if quick else 20)]


def _guarded(measure: Any, jobs: int) -> Peer:
    """A peer that does not work here must not take Weft's own numbers with it."""
    try:
        found: Peer = measure(jobs)
    except (OSError, subprocess.SubprocessError, SystemExit) as problem:
        return Peer(measure.__name__.capitalize(), jobs, None, f"did not work: {str(problem)[:200]}")
    return found


# ── Slurm ────────────────────────────────────────────────────────────────────────────────────────


def slurm(jobs: int) -> Peer:
    what = f"Slurm, {SLURM_CPUS} CPUs declared, tuned, `sbatch` in a loop"
    if not all(shutil.which(tool, path=_path()) for tool in ("slurmctld", "slurmd", "sbatch")):
        return Peer(what, jobs)
    with folder_on_disk() as folder, _slurm_cluster(folder) as environment:
        completed = folder / "completed"

        def run() -> None:
            for _ in range(jobs):
                command = ["sbatch", "-Q", "-o", "/dev/null", "--wrap", "true"]
                subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
            until(lambda: completed.exists() and _lines(completed) >= jobs, "Slurm's jobs", 600)

        seconds = timed(run)
        good = completed.read_text().count("JobState=COMPLETED")
        if good != jobs:
            raise SystemExit(f"{good} of {jobs} Slurm jobs completed")
        version = _printed(["sbatch", "--version"], environment).split()[-1]
    return Peer(what, jobs, jobs / seconds, facts={"version": version, "cpus": SLURM_CPUS})


def _printed(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


@contextlib.contextmanager
def _slurm_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Both daemons in the foreground of this process's care; the environment for its commands."""
    config = folder / "slurm.conf"
    for name in ("state", "spool"):
        (folder / name).mkdir()
    ctld_port, slurmd_port = _free_port(), _free_port()
    host = socket.gethostname().partition(".")[0]
    user = "root" if os.geteuid() == 0 else os.environ["USER"]
    config.write_text(
        SLURM_CONFIG.format(
            host=host, user=user, folder=folder, cpus=SLURM_CPUS, ctld_port=ctld_port, slurmd_port=slurmd_port
        )
    )
    environment = {**os.environ, "PATH": _path(), "SLURM_CONF": str(config)}
    daemons = []
    try:
        for command in (
            ["slurmctld", "-D", "-c", "-f", str(config)],
            ["slurmd", "-D", "-c", "-f", str(config)],
        ):
            with (folder / f"{command[0]}.out").open("wb") as output:
                daemons.append(
                    subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=output)
                )
        until(lambda: _slurm_idle(environment), "Slurm's node", 60, 0.2)
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        end_processes_with(str(folder))


def _slurm_idle(environment: dict[str, str]) -> bool:
    answer = subprocess.run(
        ["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() == "idle"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# ── Ray ──────────────────────────────────────────────────────────────────────────────────────────


def ray(jobs: int) -> Peer:
    what = "Ray Jobs, 16 CPUs declared, one client"
    python = str(RAY / "bin" / "python")
    if not (RAY / "bin" / "ray").exists():
        return Peer(what, jobs)
    with folder_on_disk() as folder:
        environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "WEFT_BENCH_FOLDER": str(folder)}
        try:
            answer = subprocess.run(
                [python, "-c", RAY_JOBS, str(jobs), str(folder)],
                env=environment,
                capture_output=True,
                text=True,
                timeout=600,
                check=False,
            )
        finally:
            end_processes_with(str(folder))  # parts of Ray's dashboard outlive it for a while
        seconds = [line.split()[1] for line in answer.stdout.splitlines() if line.startswith("seconds ")]
        if answer.returncode or not seconds:
            raise SystemExit(answer.stderr.strip().rpartition("\n")[2] or f"exit code {answer.returncode}")
        version = _printed(
            [python, "-c", "import importlib.metadata as m; print(m.version('ray'))"], environment
        )
    return Peer(what, jobs, jobs / float(seconds[0]), facts={"version": version})
