"""Images are put together from files, as `docker save` would have written them."""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from testbed import image
from testbed.image import Link, Text

LDD = """\
/usr/bin/python3.11:
\tlinux-vdso.so.1 (0x00007ffd4a5f2000)
\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f3e1a2b0000)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f3e1a9d5000)
/cache/numpy/core.so:
\tlibopenblas.so => /cache/numpy.libs/libopenblas.so (0x00007f3e18000000)
\tlibmissing.so => not found
\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f3e1a2b0000)
"""


def test_a_layer_has_every_folder_file_and_link(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("run")
    program.chmod(0o750)
    layer = tmp_path / "layer"
    image.write_layer(layer, {"/opt/a/run": program, "/opt/b": Link("a/run"), "/etc/passwd": Text("root\n")})
    with tarfile.open(layer) as read:
        there = {entry.name: entry for entry in read}
        assert {"opt", "opt/a", "opt/a/run", "opt/b", "etc/passwd", "tmp"} <= set(there)
        assert there["opt/a/run"].mode == 0o754  # others must be able to read it
        assert there["opt/a/run"].mtime == int(program.stat().st_mtime)
        assert there["opt/b"].linkname == "a/run"
        assert there["tmp"].mode == 0o1777
        assert {entry.uid for entry in there.values()} == {0}


def test_an_archive_names_its_layers_by_what_is_in_them(tmp_path: Path) -> None:
    layers = [tmp_path / "lower", tmp_path / "upper"]
    for layer in layers:
        image.write_layer(layer, {f"/{layer.name}": Text(layer.name)})
    archive = tmp_path / "image.tar"
    image.write_archive(archive, "localhost/x:y", layers, {"Cmd": ["/upper"]})
    digests = [hashlib.sha256(layer.read_bytes()).hexdigest() for layer in layers]
    with tarfile.open(archive) as read:

        def content(name: str) -> bytes:
            opened = read.extractfile(name)
            assert opened is not None
            return opened.read()

        (manifest,) = json.loads(content("manifest.json"))
        description = json.loads(content(manifest["Config"]))
        assert manifest["RepoTags"] == ["localhost/x:y"]
        assert [hashlib.sha256(content(name)).hexdigest() for name in manifest["Layers"]] == digests
    assert description["rootfs"]["diff_ids"] == [f"sha256:{digest}" for digest in digests]
    assert description["config"] == {"Cmd": ["/upper"]}


def test_libraries_are_those_of_the_system_once_each() -> None:
    assert image.libraries(LDD, "/cache") == [
        "/lib/x86_64-linux-gnu/libz.so.1",
        "/lib64/ld-linux-x86-64.so.2",
    ]


def test_a_tree_follows_links_and_leaves_out_what_is_not_needed(tmp_path: Path) -> None:
    (tmp_path / "library" / "test").mkdir(parents=True)
    (tmp_path / "library" / "test" / "big.py").touch()
    (tmp_path / "library" / "json").mkdir()
    (tmp_path / "library" / "json" / "test.py").touch()
    (tmp_path / "elsewhere.py").touch()
    (tmp_path / "library" / "site.py").symlink_to(tmp_path / "elsewhere.py")
    found = image.tree(tmp_path / "library", "/usr/lib", {"test"})
    assert set(found) == {"/usr/lib/json/test.py", "/usr/lib/site.py"}
