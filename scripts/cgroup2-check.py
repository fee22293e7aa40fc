"""Limits by cgroup version 2 on a kernel that has it, whatever this machine's has: a virtual machine, emulated.

Debian's kernel is fetched once (it is not installed) and booted by qemu with this machine's files, read-only, as its
root. In it, as process 1, this same script starts real tasks under real limits and prints what became of them
as one line of JSON. Ends with 77 where something that it needs is missing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

SOURCES = Path(__file__).resolve().parent.parent / "src"
MODULES = [
    "virtio", "virtio_ring", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci",
    "netfs", "fscache", "9pnet", "9pnet_virtio", "9p",
]  # fmt: skip
"""What Debian's kernel needs to see a folder of its host, in the order of loading."""
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
    kernel, modules = fetch_kernel()
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "initramfs"
        pack(image, modules, Path(busybox))
        print(json.dumps(boot(qemu, kernel, image), indent=1))


def skip(why: str) -> NoReturn:
    print(why)
    raise SystemExit(SKIP)


def fetch_kernel() -> tuple[Path, Path]:
    """The kernel and its modules, from the cache or from Debian."""
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
    return cache / "vmlinuz", cache / "modules"


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
    for module in MODULES:
        found = next((folder / "all").rglob(f"{module}.ko"))
        found.rename(folder / "kept" / "modules" / found.name)
    next((folder / "all" / "boot").glob("vmlinuz-*")).rename(folder / "kept" / "vmlinuz")


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        skip(f"Debian's kernel cannot be fetched: {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def pack(image: Path, modules: Path, busybox: Path) -> None:
    """The first files that the kernel sees: busybox, the modules, and what to do with them."""
    init = INIT.format(
        modules=" ".join(MODULES), sources=SOURCES, python=sys.executable, script=Path(__file__).resolve()
    )
    with image.open("wb") as archive:
        for folder in ("bin", "proc", "host", "modules"):
            archive.write(entry(folder, 0o040755))
        archive.write(entry("bin/busybox", 0o100755, busybox.read_bytes()))
        archive.write(entry("init", 0o100755, init.encode()))
        for module in MODULES:
            archive.write(entry(f"modules/{module}.ko", 0o100644, (modules / f"{module}.ko").read_bytes()))
        archive.write(entry("TRAILER!!!", 0))


def entry(name: str, mode: int, data: bytes = b"") -> bytes:
    """One file of a cpio archive (`newc`)."""
    path = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + path
    return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)


def boot(qemu: str, kernel: Path, image: Path) -> dict[str, Any]:
    machine = [
        qemu, "-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "512", "-nodefaults", "-nographic", "-no-reboot",
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
    print(MARK + json.dumps(told), flush=True)


def task(found: Any, name: str, request: Any, program: str, cpus: list[int] | None = None) -> dict[str, Any]:
    """Run a program as a supervisor does; how it ended and what it printed."""
    import select

    from weft.backends.logs import TaskLogReader
    from weft.runtime.taskprocess import TaskProcess

    groups, notes = found.task(name, request)
    folder = Path(tempfile.mkdtemp(dir="/run"))
    process = TaskProcess(
        {
            "name": name, "argv": [sys.executable, "-S", "-c", program], "env": {"PATH": "/usr/bin:/bin"}, "cwd": str(folder),
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
