"""Real frameworks in pods: their processes find each other by what their job type gives them, in an image without Weft."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import package, until
from testbed import debian, image, node, places, processes

from .conftest import REAL, Town, lacking

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from frameworks import python_of

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("testbed_only")]
ROOT = Path(__file__).parents[2]
MPI = ["openmpi-bin", "openmpi-common", "libopenmpi3", "libpmix2", "libhwloc15", "libhwloc-plugins"]


@pytest.fixture(scope="module")
def framework(testbed_only: None) -> Callable[[str, list[str]], str]:
    """An image of a framework's own: a shell, Python, the framework's packages and Debian's."""

    def make(name: str, packages: list[str]) -> str:
        program = python_of(name)
        if program is None:
            lacking(f"there is no environment with {name}: python scripts/frameworks.py {name}")
        unpacked = debian.unpacked(debian.RUNTIME)
        site = next((program.parents[1] / "lib").glob("python*")) / "site-packages"
        files = {**image.shell_files(unpacked), **image.python_files(site), **of_debian(packages)}
        called, folder = f"localhost/{name}:testbed", places.cache() / "images"
        layer, archive = folder / f"{name}.layer", folder / f"{name}.tar"
        image.write_layer(layer, files)
        image.write_archive(
            archive, called, [layer], {"Env": [f"PATH={image.HOME}/bin:{image.SHELL_PATH}", "LANG=C.UTF-8"]}
        )
        record = processes.read(places.state())
        assert record is not None
        node.load_image(record, unpacked, archive)
        layer.unlink()
        archive.unlink()
        return called

    return make


def of_debian(packages: list[str]) -> image.Files:
    """What these packages have installed on this machine, and the libraries that it wants."""
    if not packages:
        return {}
    listed = subprocess.run(["dpkg", "-L", *packages], capture_output=True, text=True, check=True).stdout
    found = {line: Path(line) for line in listed.splitlines() if Path(line).is_file()}
    kept = {
        name: path
        for name, path in found.items()
        if not name.startswith(("/usr/share/doc", "/usr/share/man"))
    }
    programs = {
        name: Path(f"/usr/bin/{name.rpartition('/')[2]}") for name in ("/usr/bin/mpirun", "/usr/bin/orted")
    }
    code = [path for name, path in kept.items() if ".so" in name or name.startswith("/usr/bin/")]
    return {**{name: Path(name) for name in image.needed(*code)}, **kept, **programs}


def test_mpi(town: Town, framework: Callable[[str, list[str]], str]) -> None:
    """mpirun in one pod starts its processes in others, without ssh, and each is in its worker's place."""
    server = town.server
    digest, data = package({"train.py": (ROOT / "examples" / "mpi" / "train.py").read_text()})
    server.call("PUT", f"/v1/packages/{digest}", data)
    resources = {"cpu": 0.3, "memory": "256Mi"}
    roles = {"launcher": {"resources": resources}, "worker": {"replicas": 2, "resources": resources}}
    spec = {"type": "mpi", "image": framework("mpi", MPI), "code": {"package": digest}, "roles": roles}
    job = {
        "metadata": {"name": "mpi"},
        "spec": {**spec, "command": ["python", "train.py"], "placement": REAL},
    }
    ended = server.run(job, timeout=200)
    assert ended["status"]["state"] == "COMPLETED", (server.story("mpi"), server.text("mpi"))
    text = "\n".join(server.text("mpi"))  # mpirun may put what two processes say at once on one line
    assert {f"rank {rank} of 2 in worker-{rank}" in text for rank in range(2)} == {True}, text
    losses = [point["value"] for point in server.metrics("mpi") if point["name"] == "loss"]
    assert len(losses) == 60
    assert losses[-1] < losses[0] / 100


def test_pytorch_goes_on_from_its_checkpoint_when_a_pod_is_taken_away(
    town: Town, framework: Callable[[str, list[str]], str]
) -> None:
    """torchrun in two pods: all meet anew where they were."""
    server = town.server
    digest, data = package({"train.py": (ROOT / "examples" / "pytorch" / "train.py").read_text()})
    server.call("PUT", f"/v1/packages/{digest}", data)
    roles = {"worker": {"replicas": 2, "resources": {"cpu": 0.5, "memory": "700Mi"}}}
    spec = {"type": "pytorch", "image": framework("torch", []), "code": {"package": digest}, "roles": roles}
    more = {"command": ["python", "train.py"], "env": {"PAUSE": "0.4"}, "placement": REAL, "grace": "1s"}
    server.submit({"metadata": {"name": "torch"}, "spec": {**spec, **more}})
    kept = Path(server.folder("torch"), "checkpoints", "model.pt")
    until(kept.exists, "a checkpoint to have been fetched", 200, every=0.1)
    reached = len(server.metrics("torch"))
    town.kubectl("delete", "pod", "-l", "weft.dev/job=torch,weft.dev/task=worker-1", "--wait=false")
    ended = server.wait_for("torch", timeout=200)
    assert ended["status"]["state"] == "COMPLETED", (server.story("torch"), server.text("torch"))
    begun = [int(line.rpartition(" ")[2]) for line in server.text("torch") if line.startswith("rank 0 of 2")]
    assert begun[0] == 0
    assert 0 < begun[-1] <= reached, "from a checkpoint"
    assert [point["value"] for point in server.metrics("torch") if point["name"] == "accuracy"][-1] > 0.95
