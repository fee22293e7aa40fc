"""python -m testbed up [--nodes N] [--scheduler] | build | image | down | status"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

from . import binaries, controlplane, debian, image, node, processes
from .api import Api, ApiError
from .places import locked, state
from .refusal import Refused
from .simulated import name_of
from .telling import say, step, until

PATIENCE = 120.0
ORDER = [
    "simulated",
    "dns",
    "service",
    "kubelet",
    "containerd",
    "kube-scheduler",
    "kube-controller-manager",
    "kube-apiserver",
    "etcd",
]
"""Who is ended first: nobody is left without the one it talks to."""
KEPT = {"logs", "lock"}


def up(nodes: int, with_scheduler: bool) -> None:
    folder = state()
    options: dict[str, int | bool] = {"nodes": nodes, "scheduler": with_scheduler}
    debian.check_machine()
    with locked(folder / "lock", "starting the testbed"):
        before = processes.read(folder)
        if before is not None and whole(before) and before.options == options:
            say("the testbed is up already")
            tell(before)
            return
        if before is not None:
            say("an unfinished or different testbed is there: it is taken down first")
            take_down(folder)
        begun = time.monotonic()
        built = binaries.make()
        unpacked = debian.unpacked(debian.RUNTIME)
        pause, weft = image.busybox(unpacked), image.weft(unpacked)
        record = processes.Record(folder, options=options)
        record.save()
        try:
            api = controlplane.bring_up(record, built, unpacked, with_scheduler)
            node.bring_up(record, api, built, unpacked, pause)
            with step(f"loading {image.WEFT}"):
                node.load_image(record, unpacked, weft)
            answer(record, "dns", str(record.folder / "kubeconfig"), node.GATEWAY)
            answer(record, "service", str(record.ports["apiserver"]))
            simulate(record, api, nodes)
        except BaseException:
            say("taking down what was started")
            take_down(folder)
            raise
        record.ready = True
        record.save()
        say(f"the testbed is up after {time.monotonic() - begun:.0f} s")
        tell(record)


def answer(record: processes.Record, name: str, *arguments: str) -> None:
    """What a cluster has beside its nodes, for the pods."""
    scripts = str(Path(__file__).resolve().parents[1])
    command = [sys.executable, "-m", f"testbed.{name}", *arguments]
    running = processes.start(record, name, command, {"PYTHONPATH": scripts})
    if not until(
        lambda: "answering" in processes.log_of(record, name) or not processes.alive(running), PATIENCE
    ) or not processes.alive(running):
        processes.refuse_ended(record, running, "listening for questions")


def simulate(record: processes.Record, api: Api, nodes: int) -> None:
    if not nodes:
        return
    with step(f"registering {nodes} simulated nodes"):
        scripts = str(Path(__file__).resolve().parents[1])
        command = [sys.executable, "-m", "testbed.simulated", str(record.folder / "kubeconfig"), str(nodes)]
        running = processes.start(record, "simulated", command, {"PYTHONPATH": scripts})
        if not until(
            lambda: ready_nodes(api) >= nodes + 1 or not processes.alive(running), PATIENCE, every=0.5
        ):
            processes.refuse_ended(record, running, f"waiting for {name_of(nodes - 1)} to be Ready")
        if not processes.alive(running):
            processes.refuse_ended(record, running, "registering nodes")


def ready_nodes(api: Api) -> int:
    """Ready, and free of the taint that a new node has until the controllers saw it Ready."""
    return sum(
        any(each["type"] == "Ready" and each["status"] == "True" for each in item["status"]["conditions"])
        and not item["spec"].get("taints")
        for item in api.get("/api/v1/nodes?resourceVersion=0")["items"]
    )


def down() -> None:
    folder = state()
    with locked(folder / "lock", "ending the testbed"):
        if processes.read(folder) is None and not processes.marked(folder):
            say(f"no testbed is running ({folder})")
            return
        begun = time.monotonic()
        take_down(folder)
        say(f"the testbed is down after {time.monotonic() - begun:.1f} s; its logs are in {folder / 'logs'}")


def take_down(folder: Path) -> None:
    """Ends exactly what is recorded, then what those left behind."""
    record = processes.read(folder) or processes.Record(folder)
    known = {process.name: process for process in record.processes}
    left: list[str] = []
    for name in ORDER:
        if name in known:
            left += told(processes.end([known[name]]))
        if name == "kubelet":  # nobody starts pods again: theirs can go, while containerd still reaps them
            left += node.tear_down(record)
    left += told(processes.end(processes.marked(folder), patience=0))
    if left:
        said = ", ".join(str(each) for each in left)
        raise Refused(
            "the testbed", f"it left behind {said}", f"end these by hand; {folder}/testbed.json names them"
        )
    for path in folder.iterdir():
        if path.name in KEPT:
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def told(remaining: list[processes.Process]) -> list[str]:
    return [f"process {process.pid} ({process.name})" for process in remaining]


def whole(record: processes.Record) -> bool:
    if not record.ready or not all(processes.alive(process) for process in record.processes):
        return False
    return Api.of(record.folder / "kubeconfig").healthy()


def build() -> None:
    """What takes long, once, without starting anything."""
    debian.check_machine()
    state().mkdir(parents=True, exist_ok=True)
    binaries.make()
    unpacked = debian.unpacked(debian.RUNTIME)
    image.busybox(unpacked)
    image.weft(unpacked)


def refresh() -> None:
    """The image of this checkout as it is now, into the testbed that runs."""
    record = processes.read(state())
    if record is None or not whole(record):
        raise Refused("the image", "no testbed is running", "make k8s-testbed")
    unpacked = debian.unpacked(debian.RUNTIME)
    with step(f"loading {image.WEFT}"):
        node.load_image(record, unpacked, image.weft(unpacked))


def status() -> int:
    record = processes.read(state())
    if record is None:
        say(f"no testbed is running ({state()}); start one: make k8s-testbed")
        return 1
    for process in record.processes:
        log = record.folder / "logs" / f"{process.name}.log"
        say(
            f"{process.name:24} {'alive' if processes.alive(process) else 'ended'}  pid {process.pid:<8} {log}"
        )
    if not whole(record):
        say("the testbed is not whole; start it again: make k8s-testbed")
        return 1
    say(f"{ready_nodes(Api.of(record.folder / 'kubeconfig'))} nodes are Ready")
    tell(record)
    return 0


def tell(record: processes.Record) -> None:
    kubeconfig = record.folder / "kubeconfig"
    kubectl = binaries.folder() / "bin" / "kubectl"
    say(f"  kubeconfig  {kubeconfig}")
    say(f"  images      {image.WEFT}, {node.BUSYBOX}")
    say(f"  try         {kubectl} --kubeconfig {kubeconfig} get nodes")
    say("  tests       .venv/bin/python -m pytest tests/kubernetes")
    say("  end it      make k8s-testbed-down")


def main() -> int:
    parser = argparse.ArgumentParser(prog="testbed", description="A real Kubernetes on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    starting = commands.add_parser("up", help="build what is missing and start")
    starting.add_argument("--nodes", type=int, default=300, help="simulated nodes beside the real one")
    starting.add_argument("--scheduler", action="store_true", help="run kube-scheduler too, to compare with")
    commands.add_parser("build", help="build what is missing, and start nothing")
    commands.add_parser("image", help="load the image of this checkout into the running testbed")
    commands.add_parser("down", help="end everything that was started")
    commands.add_parser("status", help="what runs, and where")
    said = parser.parse_args()
    os.umask(0o022)
    try:
        if said.command == "up":
            up(said.nodes, said.scheduler)
        elif said.command == "build":
            build()
        elif said.command == "image":
            refresh()
        elif said.command == "down":
            down()
        else:
            return status()
    except (Refused, ApiError) as problem:
        print(problem, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
