"""Images without a registry: docker archives put together from files of this machine.

`localhost/busybox:testbed` is a shell; it is also the container that holds a pod's namespaces. `localhost/weft:testbed` is this
checkout with its dependencies and the interpreter that runs this script. Its lower layer is made once per interpreter
and dependencies, the upper one, the checkout, every time.
"""

from __future__ import annotations

import compileall
import hashlib
import io
import json
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .node import BUSYBOX
from .places import REPOSITORY, cache
from .refusal import Refused
from .telling import step

WEFT = "localhost/weft:testbed"
HOME = PurePosixPath("/opt/weft")
SHELL_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
WAIT = ["/bin/sh", "-c", 'trap "exit 0" TERM INT; while :; do sleep 3600 & wait $!; done']
OMITTED = {
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "site-packages",
    "dist-packages",
}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Link:
    to: str


@dataclass(frozen=True)
class Text:
    text: str
    mode: int = 0o644


Content = Path | Link | Text
Files = dict[str, Content]
"""What is at each absolute path of an image."""


def busybox(debian: Path) -> Path:
    """A shell and its tools, in one static file."""
    archive = cache() / "images" / "busybox.tar"
    archive.parent.mkdir(parents=True, exist_ok=True)
    layer = archive.with_suffix(".layer")
    write_layer(layer, shell_files(debian))
    write_archive(archive, BUSYBOX, [layer], {"Env": [f"PATH={SHELL_PATH}"], "Cmd": WAIT})
    layer.unlink()
    return archive


def weft(debian: Path) -> Path:
    with step("making the image of Weft"):
        project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
        extras = project["optional-dependencies"]
        requirements = [*project["dependencies"], *extras["kubernetes"], *extras["postgres"]]
        lower = _dependencies_layer(requirements, debian)
        upper = cache() / "images" / "weft.layer"
        write_layer(upper, weft_files(REPOSITORY / "src" / "weft"))
        archive = cache() / "images" / "weft.tar"
        environment = [f"PATH={HOME}/bin:{SHELL_PATH}", "PYTHONUNBUFFERED=1", "LANG=C.UTF-8"]
        write_archive(archive, WEFT, [lower, upper], {"Env": environment, "Cmd": ["weft", "--help"]})
    return archive


def _dependencies_layer(requirements: list[str], debian: Path) -> Path:
    recipe = Path(__file__).read_text()
    said = json.dumps([requirements, sys.version_info[:3], sys.base_prefix, recipe])
    layer = cache() / "images" / f"dependencies-{hashlib.sha256(said.encode()).hexdigest()[:12]}.layer"
    if layer.exists():
        return layer
    for old in (cache() / "images").glob("dependencies-*.layer"):
        old.unlink()
    installed = cache() / "images" / "dependencies"
    shutil.rmtree(installed, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]
    done = subprocess.run([*pip, installed, *requirements], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Refused(
            "the image of Weft", done.stderr.strip()[-500:], "is the Python package registry reachable?"
        )
    write_layer(layer, {**shell_files(debian), **python_files(installed)})
    shutil.rmtree(installed)
    return layer


def shell_files(debian: Path) -> Files:
    program = next(path for path in (debian / "bin/busybox", debian / "usr/bin/busybox") if path.exists())
    tools = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    return {
        "/bin/busybox": program,
        **{f"/bin/{tool}": Link("busybox") for tool in tools if tool != "busybox"},
        "/etc/passwd": Text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n"),
        "/etc/group": Text("root:x:0:\nnogroup:x:65534:\n"),
        "/etc/nsswitch.conf": Text("hosts: files dns\n"),
    }


def python_files(installed: Path) -> Files:
    """The interpreter at its own path, where it looks for its library, and the dependencies in an environment of their own."""
    program = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    library = Path(sysconfig.get_path("stdlib"))
    site = f"{HOME}/lib/python{sysconfig.get_python_version()}/site-packages"
    files: Files = {
        str(program): program,
        f"{HOME}/bin/python": Link(str(program)),
        f"{HOME}/bin/python3": Link("python"),
        f"{HOME}/pyvenv.cfg": Text(f"home = {program.parent}\ninclude-system-site-packages = false\n"),
        f"{HOME}/bin/weft": Text(f"#!{HOME}/bin/python\nfrom weft.cli.entry import main\n\nmain()\n", 0o755),
        **tree(library, str(library), OMITTED),
        **tree(installed, site, {"bin"}),
    }
    programs = [program]
    if (spy := installed / "bin/py-spy").exists():
        files[f"{HOME}/bin/py-spy"] = spy
        programs.append(spy)
    shared = [path for path in files.values() if isinstance(path, Path) and ".so" in path.name]
    return {**{library: Path(library) for library in needed(*programs, *shared)}, **files}


def weft_files(source: Path) -> Files:
    """Compiled, as pip would leave it: a pod's start waits for the agent's."""
    compileall.compile_dir(source, quiet=2)
    site = f"{HOME}/lib/python{sysconfig.get_python_version()}/site-packages"
    return tree(source, f"{site}/weft", set())


def tree(folder: Path, at: str, omitted: set[str]) -> Files:
    """The files below a folder; links are followed, because what they point to may stay behind."""
    files: Files = {}
    for path in sorted(folder.iterdir()):
        if path.name in omitted or path.name.startswith("config-"):
            continue
        if path.is_dir():
            files |= tree(path, f"{at}/{path.name}", omitted & {"__pycache__", "tests"})
        elif path.is_file():
            files[f"{at}/{path.name}"] = path
    return files


def needed(*programs: Path) -> list[str]:
    """The shared libraries outside the image's own folders, as the loader finds them."""
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    return libraries(said, str(cache()))


def libraries(said: str, own: str) -> list[str]:
    paths = re.findall(r"^\s+(?:\S+ => )?(/\S+) \(0x", said, re.MULTILINE)
    return sorted({path for path in paths if not path.startswith(own)})


def write_layer(to: Path, files: Files) -> None:
    part = to.with_name(to.name + ".part")
    with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as layer:
        folders = {str(parent) for path in files for parent in PurePosixPath(path).parents} - {"/"}
        for folder in sorted(folders | {"/tmp", "/root", "/proc", "/sys", "/dev"}):
            entry = tarfile.TarInfo(folder.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "/tmp" else 0o755
            layer.addfile(entry)
        for path, content in sorted(files.items()):
            _add(layer, path.lstrip("/"), content)
    part.rename(to)


def _add(layer: tarfile.TarFile, name: str, content: Content) -> None:
    entry = tarfile.TarInfo(name)
    match content:
        case Link(to):
            entry.type, entry.linkname = tarfile.SYMTYPE, to
            layer.addfile(entry)
        case Text(text, mode):
            entry.size, entry.mode = len(text.encode()), mode
            layer.addfile(entry, io.BytesIO(text.encode()))
        case Path():
            seen = content.stat()
            # Compiled modules name their source's time: kept, they need not be compiled again.
            entry.size, entry.mode, entry.mtime = (
                seen.st_size,
                seen.st_mode & 0o777 | 0o444,
                int(seen.st_mtime),
            )
            with content.open("rb") as read:
                layer.addfile(entry, read)


def write_archive(to: Path, name: str, layers: list[Path], runs: dict[str, list[str]]) -> None:
    """What `docker save` would have written: the layers, what is in them, and what runs."""
    digests = [_digest(layer) for layer in layers]
    description = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": runs,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        "history": [{"created_by": "weft testbed"} for _ in layers],
    }
    manifest = {
        "Config": "config.json",
        "RepoTags": [name],
        "Layers": [f"{digest}.tar" for digest in digests],
    }
    part = to.with_name(to.name + ".part")
    with tarfile.open(part, "w") as archive:
        for layer, digest in zip(layers, digests, strict=True):
            archive.add(layer, f"{digest}.tar")
        _add(archive, "config.json", Text(json.dumps(description)))
        _add(archive, "manifest.json", Text(json.dumps([manifest])))
    part.rename(to)


def _digest(path: Path) -> str:
    with path.open("rb") as read:
        return hashlib.file_digest(read, "sha256").hexdigest()
