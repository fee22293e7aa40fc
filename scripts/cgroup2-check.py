"""Limits by cgroup version 2 on a kernel that has it, whatever this machine's has: a virtual machine, emulated.

Debian's kernel is fetched once (it is not installed) and booted by qemu with this machine's files, read-only, as its
root. In it, as process 1, this same script starts real tasks under real limits and prints what became of them
as one line of JSON. Ends with 77 where something that it needs is missing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

SOURCES = Path(__file__).resolve().parent.parent / "src"
WANTED = ["virtio_pci", "9pnet_virtio", "9p"]
"""What Debian's kernel needs to see a folder of its host; what these need in turn they say themselves, and not every kernel the same."""
INIT = """#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
for module in {modules}; do /bin/busybox insmod /modules/$module.ko || echo "cannot load $module"; done
/bin/busybox mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=512000 host /host
for kind in proc:proc sysfs:sys devtmpfs:dev tmpfs:run; do /bin/busybox mount -t ${{kind%%:*}} none /host/${{kind##*:}}; done
/bin/busybox mount -t cgroup2 none /host/sys/fs/cgroup
/bin/busybox chroot /host /usr/bin/env -i PATH=/usr/bin:/bin PYTHONPATH={sources} PYTHONDONTWRITEBYTECODE=1 {python} {script} inside
/bin/busybox poweroff -f
"""
MARK = "weft-cgroup2 "
SKIP = 77
PATIENCE = 80.0


# ── on this machine ──────────────────────────────────────────────────────────────────────────────


def main() -> None:
    qemu, busybox = shutil.which("qemu-system-x86_64"), shutil.which("busybox")
    if qemu is None or busybox is None:
        skip("qemu-system-x86_64 or busybox is missing (apt-get install qemu-system-x86 busybox-static)")
    cache = fetch_kernel()
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "initramfs"
        pack(image, in_order(cache / "modules"), Path(busybox))
        print(json.dumps(boot(qemu, cache / "vmlinuz", image), indent=1))


def skip(why: str) -> NoReturn:
    print(why)
    raise SystemExit(SKIP)


def fetch_kernel() -> Path:
    """A folder with the kernel and its modules, from the cache or from Debian."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = caches / "weft-cgroup2"
    if not (cache / "vmlinuz").exists():
        if shutil.which("apt-get") is None:
            skip("Debian's kernel cannot be fetched: there is no apt-get")
        caches.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=caches) as folder:
            unpack_kernel(Path(folder))
            shutil.rmtree(cache, ignore_errors=True)
            (Path(folder) / "kept").rename(cache)
    return cache


def unpack_kernel(folder: Path) -> None:
    listed = run("apt-cache", "depends", "linux-image-amd64", cwd=folder)
    package = next(
        (w for w in listed.split() if w.startswith("linux-image-") and w != "linux-image-amd64"), None
    )
    if package is None:
        skip("Debian's kernel cannot be fetched: apt knows no linux-image-amd64")
    run("apt-get", "download", "-qq", package, cwd=folder)
    run("dpkg-deb", "-x", str(next(folder.glob("*.deb"))), "all", cwd=folder)
    (folder / "kept" / "modules").mkdir(parents=True)
    for found in in_order(folder / "all"):
        found.rename(folder / "kept" / "modules" / found.name)
    next((folder / "all" / "boot").glob("vmlinuz-*")).rename(folder / "kept" / "vmlinuz")


def in_order(folder: Path) -> list[Path]:
    """The modules that are wanted, each behind those that it needs."""
    there = {path.stem: path for path in folder.rglob("*.ko")}
    found: dict[str, Path] = {}

    def add(name: str) -> None:
        if name not in found:
            needs = re.search(rb"\0depends=([^\0]*)\0", there[name].read_bytes())
            for other in needs[1].decode().split(",") if needs and needs[1] else ():
                add(other)
            found[name] = there[name]

    for name in WANTED:
        add(name)
    return list(found.values())


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        skip(f"Debian's kernel cannot be fetched: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def pack(image: Path, modules: list[Path], busybox: Path) -> None:
    """The first files that the kernel sees: busybox, the modules, and what to do with them."""
    init = INIT.format(
        modules=" ".join(module.stem for module in modules),
        sources=SOURCES,
        python=sys.executable,
        script=Path(__file__).resolve(),
    )
    with image.open("wb") as archive:
        for folder in ("bin", "proc", "host", "modules"):
            archive.write(entry(folder, 0o040755))
        archive.write(entry("bin/busybox", 0o100755, busybox.read_bytes()))
        archive.write(entry("init", 0o100755, init.encode()))
        for module in modules:
            archive.write(entry(f"modules/{module.name}", 0o100644, module.read_bytes()))
        archive.write(entry("TRAILER!!!", 0))


def entry(name: str, mode: int, data: bytes = b"") -> bytes:
    """One file of a cpio archive (`newc`)."""
    path = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + path
    return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)


def boot(qemu: str, kernel: Path, image: Path) -> dict[str, Any]:
    machine = [
        qemu, "-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "1024", "-nodefaults", "-nographic", "-no-reboot",
        "-serial", "stdio", "-kernel", str(kernel), "-initrd", str(image),
        "-append", "console=ttyS0 quiet panic=-1 mitigations=off",
        "-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
    ]  # fmt: skip
    try:
        printed = subprocess.run(
            machine, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise SystemExit(f"not done after {PATIENCE:g} s: {late.stdout}") from None
    for line in printed.stdout.splitlines():
        if line.startswith(MARK):
            found: dict[str, Any] = json.loads(line.removeprefix(MARK))
            return found
    raise SystemExit(f"the virtual machine gave no answer: {printed.stdout}{printed.stderr}")


# ── inside ───────────────────────────────────────────────────────────────────────────────────────

HUNGRY = "x = bytearray(200 << 20)"
BUSY = """
from time import monotonic, process_time
begun, used = monotonic(), process_time()
while monotonic() - begun < 2: pass
print((process_time() - used) / (monotonic() - begun))
"""
STRAY = "import os, time; os.fork() or (os.setsid(), time.sleep(1000))"
AFFINITY = "import os; print(sorted(os.sched_getaffinity(0)))"
SWALLOWS = "x=$(/bin/busybox yes | /bin/busybox head -c 100000000)"
PLACE = Path("/run/containers")
PODMAN = [
    "/usr/bin/podman", f"--root={PLACE}/root", f"--runroot={PLACE}/run", f"--tmpdir={PLACE}/tmp", "--storage-driver=vfs",
    "--events-backend=none", f"--runtime={shutil.which('crun') or shutil.which('runc', path='/usr/bin:/usr/sbin')}",
]  # fmt: skip
"""Where nothing of this machine's can be written."""


def inside() -> None:
    from weft.backends.local import cgroups
    from weft.model.gang import Request

    found = cgroups.discover("weft-check")
    told = {
        "place": found.memory,
        "notes": found.notes(),
        "hungry": task(found, "hungry", Request(cpu=0, memory=32 << 20), HUNGRY),
        "busy": task(found, "busy", Request(cpu=200), BUSY),
        "pinned": task(found, "pinned", Request(cpu=1000, memory=64 << 20), AFFINITY, cpus=[1]),
        "stray": task(found, "stray", Request(cpu=0, memory=64 << 20), STRAY),
        "left": sorted(path.name for path in Path(str(found.memory)).iterdir() if path.is_dir()),
    }
    cgroups.forget(found)
    told["forgotten"] = not Path(str(found.memory)).exists()
    told["container"] = container(16 << 20)
    print(MARK + json.dumps(told), flush=True)


def container(limit: int) -> dict[str, Any]:
    """One that wants more than its limit, in a group that outlives it, as the local engine starts them."""
    import tarfile

    from weft.backends.local.commands import below
    from weft.backends.local.containergroups import ContainerGroups

    for folder in (PLACE, Path("/dev/shm")):
        folder.mkdir(exist_ok=True)
        subprocess.run(["/usr/bin/mount", "-t", "tmpfs", "none", folder], check=True)
    os.environ |= {"TMPDIR": str(PLACE), "HOME": str(PLACE), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    with tarfile.open(PLACE / "image.tar", "w") as archive:
        archive.add(str(shutil.which("busybox")), "bin/busybox")
    subprocess.run([*PODMAN, "import", PLACE / "image.tar", "localhost/x:1"], check=True, capture_output=True)
    groups = ContainerGroups("weft-contained")
    manager, flags = below(PODMAN[0], groups.parent("x"))
    limits = [f"--memory={limit}", f"--memory-swap={limit}", "--ulimit=nofile=1024:1024", "--network=host"]
    shell = ["localhost/x:1", "/bin/busybox", "sh", "-c", SWALLOWS]
    told = begin("x", [*PODMAN, *manager, "run", *flags, "--rm", *limits, *shell], groups.plan("x"))
    groups.forget()
    return told | {"left": Path(f"/sys/fs/cgroup/{groups.label}").exists()}


def task(found: Any, name: str, request: Any, program: str, cpus: list[int] | None = None) -> dict[str, Any]:
    groups, notes = found.task(name, request)
    return begin(name, [sys.executable, "-S", "-c", program], groups, notes, cpus)


def begin(
    name: str, argv: list[str], groups: Any, notes: Sequence[str] = (), cpus: list[int] | None = None
) -> dict[str, Any]:
    """Run a program as a supervisor does; how it ended and what it printed."""
    import select

    from weft.backends.logs import TaskLogReader
    from weft.runtime.taskprocess import TaskProcess

    folder = Path(tempfile.mkdtemp(dir="/run"))
    process = TaskProcess(
        {
            "name": name, "argv": argv, "env": {"PATH": "/usr/bin:/bin", **os.environ}, "cwd": str(folder),
            "dir": str(folder), "cpus": cpus or [], "cgroups": groups, "notes": list(notes),
            "log": {"segment": 1 << 20, "keep": 2, "rate": 1 << 20}, "metrics": [],
        }
    )  # fmt: skip
    process.prepare()
    process.start(os.open("/dev/null", os.O_RDWR))
    select.select([process.pidfd], [], [])
    ended = process.reap()
    lines, _ = TaskLogReader(str(folder), name).tail(10, final=True)
    return {**ended, "printed": [line.text for line in lines]}


if __name__ == "__main__":
    inside() if sys.argv[1:] == ["inside"] else main()
