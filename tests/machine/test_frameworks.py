"""Every job type with its real framework, in an environment of its own (scripts/frameworks.py makes them)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from harness import Server, package, sh, until

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import frameworks  # noqa: E402

New = Callable[..., Server]
pytestmark = [
    pytest.mark.machine,
    pytest.mark.timeout(600),
]  # frameworks take long to start, and longer side by side


def python_of(name: str) -> str:
    """In CI a framework that is not there is a failure; elsewhere its test says what is missing."""
    python = frameworks.python_of(name)
    if python is None:
        told = f"{name} is not installed for the tests: python scripts/frameworks.py {name}"
        pytest.fail(told) if os.environ.get("CI") else pytest.skip(told)
    return str(python)


def trained(
    server: Server, kind: str, environment: str, workers: int = 2, timeout: float = 240, **spec: object
) -> dict:
    """The type's example, run to its end."""
    python = python_of(environment)
    digest = server.put_package(package({"train.py": (ROOT / "examples" / kind / "train.py").read_text()})[1])
    document = {
        "metadata": {"name": kind},
        "spec": {
            "type": kind,
            "code": {"package": digest},
            "command": [python, "train.py"],
            "roles": {"worker": {"replicas": workers, "resources": {"cpu": 0.5}}},
            **spec,
        },
    }
    return server.run(document, "COMPLETED", timeout=timeout)


def series(server: Server, name: str, metric: str) -> list[float]:
    return [point["value"] for point in server.metrics(name) if point["name"] == metric]


def test_pytorch(new_server: New):
    server = new_server()
    trained(server, "pytorch", "torch")
    assert {"rank 0 of 2, from step 0", "rank 1 of 2, from step 0"} <= {*server.text("pytorch")}
    losses = series(server, "pytorch", "loss")
    assert len(losses) == 60
    assert losses[-1] < losses[0] / 3
    assert series(server, "pytorch", "accuracy")[-1] > 0.95


def test_a_pytorch_gang_starts_again_as_a_whole_from_its_checkpoint(new_server: New):
    server = new_server()
    restart = {"policy": "on-failure", "max": 2, "backoff": "0s"}
    done = trained(server, "pytorch", "torch", restart=restart, env={"FAIL_AT": "35"}, grace="2s")
    assert done["status"]["restarts"] >= 1
    assert {"rank 0 of 2, from step 31", "rank 1 of 2, from step 31"} <= {*server.text("pytorch")}
    assert series(server, "pytorch", "accuracy")[-1] > 0.95


FUNCTION = """
import weft

def total(factor, add=0):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    mine = torch.tensor([factor * (dist.get_rank() + 1.0)])
    dist.all_reduce(mine)
    print("rank", dist.get_rank(), "of", dist.get_world_size(), flush=True)
    dist.destroy_process_group()
    return mine.item() + add

if __name__ == "__main__":
    job = weft.run(
        total, args=[10], kwargs={"add": 0.5}, name="function", type="pytorch", replicas=2, cpu=0.5
    )
    print(job.result(timeout=240))
"""


def test_a_function_with_arguments_runs_under_torchrun(new_server: New, tmp_path: Path):
    server = new_server()
    script = tmp_path / "work" / "script.py"
    script.parent.mkdir()
    script.write_text(FUNCTION)
    done = subprocess.run(
        [python_of("torch"), str(script)],
        env={**os.environ, "WEFT_HOME": str(server.home), "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout == "30.5\n", done.stderr
    assert {"rank 0 of 2", "rank 1 of 2"} <= {*server.text("function")}


def elastic_job(server: Server, kind: str = "pytorch-elastic", **env: str) -> dict:
    digest = server.put_package(
        package({"train.py": (ROOT / "examples" / "pytorch" / "train.py").read_text()})[1]
    )
    return {
        "metadata": {"name": "elastic"},
        "spec": {
            "type": kind,
            "code": {"package": digest},
            "command": [python_of("torch"), "train.py"],
            "env": {"PAUSE": "0.1", **env},
            "restart": {"backoff": "0s"},
            "grace": "2s",
            "roles": {"worker": {"replicas": 2, "minReplicas": 1, "resources": {"cpu": 0.5}}},
        },
    }


def steps_of(server: Server, name: str) -> list[int]:
    return [point["step"] for point in server.metrics(name) if point["name"] == "loss"]


def test_pytorch_elastic_goes_on_when_a_task_is_killed(new_server: New):
    server = new_server()
    name = server.submit(elastic_job(server))
    until(lambda: max(steps_of(server, name), default=0) >= 12, "some steps", 240)
    os.killpg(server.pid_of(name, "worker-1"), signal.SIGKILL)
    done = server.wait_for(name, "COMPLETED", timeout=240)
    assert [task["restarts"] for task in done["status"]["tasks"]] == [0, 1]
    assert any(line.startswith("rank 0 of 2, from step 1") for line in server.text(name))
    assert steps_of(server, name)[-1] == 59
    assert series(server, name, "accuracy")[-1] > 0.95


SAVE_EVERY = 10
"""Steps of the example between two checkpoints."""


def meetings(server: Server, name: str) -> list[tuple[int, int]]:
    """How many took part in each rendezvous, and from which step they went on."""
    lines = [line.split() for line in server.text(name) if line.startswith("rank 0 of ")]
    return [(int(line[3].rstrip(",")), int(line[6])) for line in lines]


def lost(server: Server, name: str) -> list[int]:
    """How many steps were computed again after each rendezvous but the first."""
    steps = steps_of(server, name)
    return [before - after + 1 for before, after in pairwise(steps) if after != before + 1]


def meets(server: Server, name: str, world: int, after: int, timeout: float = 240) -> None:
    """Wait for the next rendezvous, and until it has got somewhere."""
    until(lambda: len(meetings(server, name)) > after, f"rendezvous {after + 1}", timeout, every=0.1)
    assert meetings(server, name)[after][0] == world
    first = max(steps_of(server, name), default=0)
    until(
        lambda: max(steps_of(server, name), default=0) > first + SAVE_EVERY + 2,
        "a checkpoint of its own",
        240,
    )


def ends(server: Server, name: str) -> None:
    """What was resized twice has lost no more than it had not saved, and was never restarted."""
    assert [world for world, _ in meetings(server, name)] == [2, 1, 2]
    again = lost(server, name)  # of a rendezvous right after a checkpoint, nothing
    assert len(again) <= 2
    assert max(again, default=0) <= SAVE_EVERY
    assert [task["restarts"] for task in server.status(name)["tasks"]] == [0, 0]
    server.ask(name, "cancel")
    server.wait_for(name, "CANCELLED")


@pytest.mark.parametrize("kind", ["pytorch-elastic", "pytorch"])
def test_pytorch_is_resized_by_a_person(new_server: New, kind: str):
    """Each time the tasks meet anew and go on from the last checkpoint, as many as there are: beside each other, or,
    where torchrun does not take part in it, all started again."""
    server = new_server()
    name = server.submit(elastic_job(server, kind, STEPS="100000"))
    meets(server, name, 2, after=0)
    for number, size in enumerate((1, 2), 1):
        assert server.post(f"/v1/jobs/{name}/scale", {"roles": {"worker": size}}).status == 200
        meets(server, name, size, after=number)
    ends(server, name)


def test_pytorch_elastic_gives_way_to_what_is_more_urgent_and_grows_back(new_server: New):
    server = new_server("--cpu", "1")
    name = server.submit(elastic_job(server, STEPS="100000"))
    meets(server, name, 2, after=0)
    urgent = server.submit(sh("sleep 600", priority="high", roles={"worker": {"resources": {"cpu": 0.5}}}))
    server.wait_for(urgent, "PROCESSING")
    meets(server, name, 1, after=1)
    server.ask(urgent, "cancel")
    meets(server, name, 2, after=2, timeout=300)  # it grows at the earliest a minute after it has shrunk
    ends(server, name)


def test_jax(new_server: New):
    server = new_server()
    trained(server, "jax", "jax")
    assert {"rank 0 of 2, 2 devices", "rank 1 of 2, 2 devices"} <= {*server.text("jax")}
    assert server.text("jax").count("weights [1.0, -2.0, 3.0, 0.5]") == 2


def test_xgboost(new_server: New):
    server = new_server()
    trained(server, "xgboost", "xgboost")
    assert {"rank 0 of 2", "rank 1 of 2"} <= {*server.text("xgboost")}
    errors = series(server, "xgboost", "error")
    assert len(errors) == 20
    assert errors[-1] < errors[0] / 2


def test_tensorflow(new_server: New):
    server = new_server()
    trained(server, "tensorflow", "tensorflow", timeout=240)
    assert {"worker 0, 2 replicas", "worker 1, 2 replicas"} <= {*server.text("tensorflow")}
    losses = series(server, "tensorflow", "loss")
    assert losses[-1] < 0.01 < losses[0]


def test_tensorflow_with_parameter_servers_goes_on_when_a_worker_is_killed(new_server: New):
    """The example as its file has it, but for the interpreter and the code, which `weft run` would pack."""
    server = new_server()
    folder = ROOT / "examples" / "tensorflow"
    document = yaml.safe_load((folder / "job.yaml").read_text())
    code = {"package": server.put_package(package({"ps.py": (folder / "ps.py").read_text()})[1])}
    command = [python_of("tensorflow"), *document["spec"]["command"][1:]]
    env = {"EPOCHS": "40", "PAUSE": "0.5"}
    own = {"code": code, "command": command, "env": env, "grace": "2s"}
    name = server.submit({**document, "spec": {**document["spec"], **own}})
    until(lambda: len(series(server, name, "loss")) >= 3, "some epochs", 120)
    os.killpg(server.pid_of(name, "worker-1"), signal.SIGKILL)
    done = server.wait_for(name, "COMPLETED", timeout=240)
    tasks = {task["name"]: (task["state"], task["restarts"]) for task in done["status"]["tasks"]}
    assert tasks == {
        "chief-0": ("SUCCEEDED", 0),
        "ps-0": ("STOPPED", 0),
        "worker-0": ("STOPPED", 0),
        "worker-1": ("STOPPED", 1),
    }
    losses = series(server, name, "loss")
    assert len(losses) == 40
    assert losses[-1] < losses[0] / 3
    assert "worker 1 serves, restarts 1" in server.text(name)


def test_mpi(new_server: New):
    server = new_server()
    python = python_of("mpi")
    digest = server.put_package(
        package({"train.py": (ROOT / "examples" / "mpi" / "train.py").read_text()})[1]
    )
    roles = {"worker": {"replicas": 2, "resources": {"cpu": 0.5}}, "launcher": {"resources": {"cpu": 0.1}}}
    spec = {"type": "mpi", "code": {"package": digest}, "command": [python, "train.py"], "roles": roles}
    done = server.run({"metadata": {"name": "mpi"}, "spec": spec}, "COMPLETED", timeout=240)
    text = "\n".join(server.text("mpi"))  # mpirun may put what two processes say at once on one line
    assert "rank 0 of 2 in worker-0" in text
    assert "rank 1 of 2 in worker-1" in text
    losses = series(server, "mpi", "loss")
    assert losses[-1] < 0.01 < losses[0]
    states = {task["name"]: task["state"] for task in done["status"]["tasks"]}
    assert states["launcher-0"] == "SUCCEEDED"


def test_a_failed_mpi_program_fails_the_job_with_its_code(new_server: New):
    server = new_server()
    python = python_of("mpi")
    roles = {"worker": {"replicas": 2, "resources": {"cpu": 0.5}}, "launcher": {"resources": {"cpu": 0.1}}}
    program = "from mpi4py import MPI; import sys; sys.exit(7 if MPI.COMM_WORLD.rank else 0)"
    spec = {"type": "mpi", "command": [python, "-c", program], "roles": roles}
    done = server.run({"metadata": {"name": "mpi"}, "spec": spec}, "FAILED", timeout=240)
    assert done["status"]["failure"]["message"] == "launcher-0 exited with code 7"


IN_ANOTHER_ENVIRONMENT = (
    "import sys; sys.path.append(sys.argv.pop(1)); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
)


def test_what_the_runtime_does_with_tensors():
    """The unit tests that need torch, in the environment that has it; pytest comes from this one."""
    tests = ["tests/unit/test_runtime_ps_torch.py", "tests/unit/test_runtime_checkpoint.py"]
    ours = sysconfig.get_paths()["purelib"]
    options = ["-q", "-p", "no:cacheprovider", "-o", "addopts=", "-k", "torch"]
    done = subprocess.run(
        [python_of("torch"), "-c", IN_ANOTHER_ENVIRONMENT, ours, *options, *tests],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
    assert "skipped" not in done.stdout
