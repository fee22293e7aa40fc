"""The Kubernetes binaries, compiled once from Debian's source package and kept by version.

An interrupted build goes on where it was: finished binaries stay, and Go keeps what it compiled.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from . import debian
from .places import cache, locked
from .refusal import Refused
from .telling import say, step

VERSION = "1.20.2"
API_SERVER = "kube-apiserver"
PROGRAMS = [API_SERVER, "kube-controller-manager", "kubelet", "kubectl", "kube-scheduler"]
GENERATED = "k8s.io/kubernetes/pkg/generated/openapi"
REFLECT = "github.com/modern-go/reflect2"
MARKER = b"+k8s:openapi-gen="
TAGS = "providerless,dockerless"
"""Without the clouds' libraries and Docker's, which no testbed uses: 250 of 2300 packages, the largest among them."""
TELL_EVERY = 20.0


def folder() -> Path:
    return cache() / f"kubernetes-{VERSION}"


def found() -> Path | None:
    """Where the binaries are, if all are there."""
    return folder() / "bin" if (folder() / ".whole").exists() else None


def mended() -> bool:
    """Whether the API server was built with what `_mend` brings."""
    return (folder() / ".mended").exists()


def missing() -> list[str]:
    """What is to be compiled. Of a build from before the mending the API server alone is made anew: only it was seen
    to die of it."""
    stale = [] if mended() else [API_SERVER]
    return [name for name in PROGRAMS if name in stale or not (folder() / "bin" / name).exists()]


def make() -> Path:
    with locked(cache() / "building", "building Kubernetes"):
        if (there := found()) is not None and mended():
            return there
        compiler = debian.unpacked(debian.COMPILER) / "usr" / "lib" / "go-1.19"
        built = folder() / "bin"
        built.mkdir(parents=True, exist_ok=True)
        workspace = folder() / "workspace"
        tree = _source(workspace)
        _mend(tree)
        with step(f"compiling Kubernetes {VERSION} (minutes, once)"):
            _openapi(tree, workspace, compiler)
            for program in missing():
                _compile(f"k8s.io/kubernetes/cmd/{program}", built / program, workspace, compiler)
        (folder() / ".mended").touch()
        (folder() / ".whole").touch()
        for scaffold in (workspace, debian.unpacked(debian.COMPILER)):
            shutil.rmtree(scaffold)
        return built


def _source(workspace: Path) -> Path:
    tree = workspace / "src" / "k8s.io" / "kubernetes"
    if tree.exists():
        return tree
    with step("fetching the source of Kubernetes"):
        fetched = folder() / "source"
        shutil.rmtree(fetched, ignore_errors=True)
        fetched.mkdir(parents=True)
        archive = debian.source_archive("kubernetes", fetched)
        subprocess.run(["tar", "-xf", archive, "-C", fetched], check=True)
        tree.parent.mkdir(parents=True, exist_ok=True)
        (fetched / f"kubernetes-{VERSION}").rename(tree)
        shutil.rmtree(fetched)
    return tree


def _mend(tree: Path) -> None:
    """The source's reflect2 is from before Go 1.18, which changed how maps are walked: compiled with a later Go, the
    API server dies of the first object of a custom resource. Debian has the version after that."""
    old = tree / "vendor" / REFLECT
    new = debian.unpacked(debian.REFLECT) / "usr" / "share" / "gocode" / "src" / REFLECT
    if not (old / "go_above_118.go").exists():
        shutil.rmtree(old)
        shutil.copytree(new, old, ignore=shutil.ignore_patterns("*_test.go"))


def _openapi(tree: Path, workspace: Path, compiler: Path) -> None:
    """The one generated file that the source lacks: the API server's description of all types."""
    written = tree / "pkg" / "generated" / "openapi" / "zz_generated.openapi.go"
    if written.exists():
        return
    generator = workspace / "openapi-gen"
    _compile("k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen", generator, workspace, compiler)
    with step("generating the API server's OpenAPI types"):
        packages = ",".join(marked_packages(tree))
        command = [str(generator), "-i", packages, "-p", GENERATED, "-O", "zz_generated.openapi"]
        command += ["-h", "hack/boilerplate/boilerplate.generatego.txt", "-r", str(workspace / "violations")]
        command += ["--output-base", str(workspace / "generated")]
        _run(command, tree, workspace, compiler)
        made = workspace / "generated" / "k8s.io/kubernetes/pkg/generated/openapi/zz_generated.openapi.go"
        made.rename(written)


def marked_packages(tree: Path) -> list[str]:
    """The import path of every folder whose types belong into the description."""
    folders = set()
    for top in ("pkg", "staging/src/k8s.io", "cmd"):
        for path in (tree / top).rglob("*.go"):
            if MARKER in path.read_bytes():
                folders.add(path.parent.relative_to(tree).as_posix())
    skipped = ("staging/src/k8s.io/code-generator", "staging/src/k8s.io/sample-apiserver")
    kept = sorted(name for name in folders if not name.startswith(skipped))
    return [f"k8s.io/kubernetes/{name.replace('staging/src/', 'vendor/', 1)}" for name in kept]


def version_flags() -> str:
    """Without them the server calls itself v0.0.0, and clients believe it."""
    major, minor, _ = VERSION.split(".")
    values = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    # Two packages know the version: --version reads the first, the API server's /version the second.
    packages = ("component-base/version", "client-go/pkg/version")
    places = [f"{root}k8s.io/{package}" for root in ("", "k8s.io/kubernetes/vendor/") for package in packages]
    named = (f"-X {place}.{name}={value}" for place in places for name, value in values.items())
    return " ".join(["-s", "-w", *named])


def _compile(package: str, to: Path, workspace: Path, compiler: Path) -> None:
    part = to.with_name(to.name + ".part")
    go = str(compiler / "bin" / "go")
    with step(f"  {to.name}"):
        command = [go, "build", "-v", "-tags", TAGS, "-ldflags", version_flags(), "-o", str(part), package]
        _run(command, workspace / "src" / "k8s.io" / "kubernetes", workspace, compiler)
        part.rename(to)


def _run(command: list[str], within: Path, workspace: Path, compiler: Path) -> None:
    temporary = workspace / "tmp"  # an interrupted build leaves its half gigabyte here, not in /tmp
    temporary.mkdir(parents=True, exist_ok=True)
    env = {
        **os.environ,
        "GOTMPDIR": str(temporary),
        "GO111MODULE": "off",  # module mode refuses the tree: "updates to go.mod needed"
        "CGO_ENABLED": "0",
        "GOPATH": str(workspace),
        "GOROOT": str(compiler),
        "GOCACHE": str(workspace / "go-cache"),
        "GOFLAGS": "",
        "GOGC": "400",  # the compiler is a short process: memory for time
        "PATH": f"{compiler / 'bin'}:{os.environ['PATH']}",
        "PWD": str(within),
    }
    said: list[str] = []
    told = time.monotonic()
    with subprocess.Popen(
        command, cwd=within, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        try:
            for line in running.stderr:
                said.append(line.rstrip())
                if time.monotonic() - told > TELL_EVERY:
                    told = time.monotonic()
                    say(f"    {len(said)} packages, now {said[-1]}")
        except BaseException:
            running.kill()
            raise
    if running.returncode != 0:
        raise Refused(Path(command[0]).name, "\n".join(said[-8:]), "repeat it: what is compiled is kept")
