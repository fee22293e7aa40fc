"""What Debian's registries give: packages unpacked beside the system, and the source of Kubernetes.

Daemons are unpacked into the cache and not installed: installing etcd or containerd would start them as services.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

from .places import cache
from .refusal import ELSEWHERE, Refused
from .telling import step

RUNTIME = ["etcd-server", "containerd", "runc", "containernetworking-plugins", "busybox-static"]
COMPILER = ["golang-1.19-go", "golang-1.19-src"]
REFLECT = ["golang-github-modern-go-reflect2-dev"]
PROGRAMS = {"openssl": "openssl", "ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
"""Small programs that must be on the path, and the packages that have them."""
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
ROOM = 8 * 2**30


def refuse_elsewhere(os_release: str, uid: int, room: int) -> None:
    """The testbed's own words for machines on which it cannot work."""
    said = dict(line.split("=", 1) for line in os_release.splitlines() if "=" in line)
    system = said.get("PRETTY_NAME", "an unknown system").strip('"')
    if said.get("ID", "").strip('"') != "debian" or said.get("VERSION_ID", "").strip('"') != "12":
        raise Refused("the testbed", f"it is built from packages of Debian 12; this is {system}", ELSEWHERE)
    if uid != 0:
        cause = f"containerd and kubelet need root, this is user {uid}"
        raise Refused("the testbed", cause, f"repeat it as root, or {ELSEWHERE}")
    if room < ROOM:
        cause = (
            f"building Kubernetes needs {ROOM / 2**30:.0f} GB, {cache()} has room for {room / 2**30:.1f} GB"
        )
        raise Refused("the testbed", cause, "make room, or set XDG_CACHE_HOME to a folder with more")


def check_machine() -> None:
    release = Path("/etc/os-release")
    cache().mkdir(parents=True, exist_ok=True)
    room = ROOM if any(cache().glob("kubernetes-*/.whole")) else shutil.disk_usage(cache()).free
    text = release.read_text() if release.exists() else f"PRETTY_NAME={platform.system()}"
    refuse_elsewhere(text, os.geteuid(), room)
    if missing := sorted({package for name, package in PROGRAMS.items() if shutil.which(name) is None}):
        with step(f"installing {', '.join(missing)}"):
            _apt("update", "-qq")
            _apt("install", "-qq", "-y", "--no-install-recommends", *missing)
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        cause = f"mounts cannot be made here ({tried.stderr.strip()}): a container without privileges?"
        raise Refused("the testbed", cause, f"use a virtual machine, or {ELSEWHERE}")


def unpacked(names: list[str]) -> Path:
    """A folder with these packages' files as below `/`; fetched once."""
    folder = cache() / ("debian-" + "-".join(sorted(name.split("-")[0] for name in names)))
    if (folder / ".whole").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    fetched = folder / "packages"
    fetched.mkdir(parents=True)
    with step(f"fetching {', '.join(names)}"):
        try:
            _apt("download", "-qq", *names, within=fetched)
        except Refused:  # a fresh machine has no lists of packages yet
            _apt("update", "-qq")
            _apt("download", "-qq", *names, within=fetched)
        for package in fetched.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    shutil.rmtree(fetched)
    (folder / ".whole").touch()
    return folder


def source_archive(name: str, within: Path) -> Path:
    """The upstream archive of a source package. The machine's own lists stay without sources."""
    lists = within / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    sources = within / "sources.list"
    sources.write_text(source_list(_apt("indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT)")))
    apart = [f"Dir::Etc::sourcelist={sources}", "Dir::Etc::sourceparts=-", f"Dir::State::lists={lists}"]
    options = [word for option in apart for word in ("-o", option)]
    _apt(*options, "update", "-qq", within=within)
    _apt(*options, "source", "--download-only", "-qq", name, within=within)
    found = sorted(within.glob(f"{name}_*.orig.tar.*"))
    if not found:
        raise Refused(
            f"source package {name}", f"no archive came into {within}", "see: apt-get source " + name
        )
    return found[0]


def source_list(targets: str) -> str:
    """deb-src entries for the mirrors of Debian 12 that the machine already uses."""
    known = {tuple(line.split()) for line in targets.splitlines() if len(line.split()) == 3}
    mirrors = sorted({uri for uri, codename, part in known if (codename, part) == ("bookworm", "main")})
    signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    return "".join(
        f"deb-src {signed}{uri} bookworm main\n" for uri in mirrors or ["http://deb.debian.org/debian"]
    )


def _apt(*arguments: str, within: Path | None = None) -> str:
    # The unprivileged user that apt fetches with cannot write into root's folders.
    command = ["apt-get", "-o", "APT::Sandbox::User=root", *arguments]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, cwd=within, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-500:]
        raise Refused(f"apt-get {arguments[0]}", said or f"exit code {done.returncode}", " ".join(command))
    return done.stdout
