"""From a command line to a job document."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from cyclopts import CycloptsError

import weft
from weft.cli.app import COMMANDS, SECRETS, build, dispatch, split_rest
from weft.cli.commands.run import run
from weft.cli.target import job_of
from weft.client.documents import Document
from weft.client.errors import BadDocument
from weft.client.jobspec import (
    BadOption,
    JobOptions,
    active_python,
    as_written,
    device_counts,
    key_values,
    overlay,
    secret_references,
    slug,
)


def parsed(line: list[str]) -> dict[str, Any]:
    """What the `run` function would be called with."""
    before, after = split_rest(line)
    command, bound, extra = build(before).parse_args(before, exit_on_error=False, print_error=False)
    assert command is run
    assert "rest" in extra
    bound.apply_defaults()
    return {**bound.arguments, "rest": after}


def job(
    target: str | None,
    rest: tuple[str, ...] = (),
    code: str | None = None,
    here: Path = Path("/"),
    **said: Any,
) -> Document:
    return job_of(target, rest, JobOptions(**said), code=code, python="python", here=here)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    for name in ("train.py", "sub/train.py", "go.sh", "data.csv"):
        (tmp_path / name).write_text("")
    return tmp_path


# ── the forms ──


def test_a_script_with_options_and_arguments() -> None:
    said = parsed(
        ["run", "train.py", "--replicas", "4", "--cpu", "1", "--memory", "1Gi", "--", "--lr", "0.1"]
    )
    assert (said["target"], said["replicas"], said["cpu"], said["memory"]) == ("train.py", 4, "1", "1Gi")
    assert said["rest"] == ("--lr", "0.1")


def test_a_command_without_a_target() -> None:
    said = parsed(["run", "--detach", "--name", "hello", "--", "sh", "-c", "echo hi"])
    assert (said["target"], said["detach"], said["name"]) == (None, True, "hello")
    assert said["rest"] == ("sh", "-c", "echo hi")


def test_a_job_file() -> None:
    assert parsed(["run", "job.yaml"])["target"] == "job.yaml"


def test_every_option() -> None:
    line = (
        "run t.py --replicas 2 --cpu 500m --memory 1Gi --gpu 1 --gpu-type v100 --size s --name n --type t "
        "--env A=1 --env B=2 --secret s:k=E --priority high --queue q --image i --isolation sandbox --spread "
        "--one-node --deadline 2h --idle-timeout 30m --stall-timeout 10m --restart on-failure --max-restarts 5 "
        "--label a=b --label c=d --code . "
        "--min-replicas 1 --max-replicas 4 --same-rack --same-fabric --gpu-memory 40Gi --gpu-generation 8 "
        "--device rdma=1 --device fpga=2 --selector disk=ssd --selector zone=b --toleration spot --toleration old "
        "--detach --dry-run -o yaml"
    )
    said = parsed(line.split())
    assert (said["env"], said["label"], said["secret"]) == (["A=1", "B=2"], ["a=b", "c=d"], ["s:k=E"])
    assert (said["gpu_memory"], said["gpu_generation"], said["device"]) == ("40Gi", 8, ["rdma=1", "fpga=2"])
    assert (said["selector"], said["toleration"]) == (["disk=ssd", "zone=b"], ["spot", "old"])
    assert (said["gpu_type"], said["max_restarts"], said["output"], said["dry_run"]) == (
        "v100",
        5,
        "yaml",
        True,
    )


@pytest.mark.parametrize(
    "line", [["run", "t.py", "--lr", "1"], ["run", "t.py", "--replicas", "x"], ["run", "-o", "xml"]]
)
def test_mistakes_are_usage_errors(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CycloptsError):
        parsed(line)
    assert dispatch(line) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("weft: ")
    assert said[1].startswith("next: options of your own program go after --")


def test_every_command_exists_and_explains_itself() -> None:
    from importlib import import_module

    for place, summary in [*COMMANDS.values(), *SECRETS.values()]:
        module, _, name = place.partition(":")
        function = getattr(import_module(f"weft.cli.commands.{module}"), name)
        assert inspect.getdoc(function), place
        assert summary.endswith(".")


def test_a_type_may_say_itself_what_it_runs() -> None:
    value = job(None, type="notebook", gpu=1, idle_timeout="0").value
    assert value["metadata"] == {"generateName": "notebook-"}
    worker = {"resources": {"gpu": 1}}
    assert value["spec"] == {"type": "notebook", "idleTimeout": 0, "roles": {"worker": worker}}
    with pytest.raises(BadOption, match="say what to run"):
        job(None)


# ── scripts ──


def test_a_script_takes_the_current_folder_along(folder: Path) -> None:
    document = job("sub/train.py", ("--lr", "0.1"), here=folder, replicas=4, cpu="1", memory="1Gi")
    assert document.value == {
        "apiVersion": "weft.dev/v1",
        "kind": "TrainingJob",
        "metadata": {"generateName": "train-"},
        "spec": {
            "command": ["python", "sub/train.py"],
            "args": ["--lr", "0.1"],
            "code": {"path": "."},
            "roles": {"worker": {"replicas": 4, "resources": {"cpu": "1", "memory": "1Gi"}}},
        },
    }


def test_a_script_elsewhere_takes_its_own_folder(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    document = job(str(folder / "train.py"), here=tmp_path_factory.mktemp("elsewhere"))
    assert document.value["spec"] == {"command": ["python", "train.py"], "code": {"path": str(folder)}}
    document = job("../train.py", here=folder / "sub")
    assert document.value["spec"]["code"] == {"path": str(folder)}


def test_a_script_in_the_home_folder_never_takes_it_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert job("sub/train.py", here=folder).value["spec"]["code"] == {"path": str(folder / "sub")}


def test_a_code_folder_can_be_named(folder: Path) -> None:
    assert job("sub/train.py", code="sub", here=folder).value["spec"] == {
        "command": ["python", "train.py"],
        "code": {"path": str(folder / "sub")},
    }
    with pytest.raises(BadOption, match="not inside --code"):
        job("train.py", code="sub", here=folder)


def test_shell_scripts_and_executables(folder: Path) -> None:
    assert job("go.sh", here=folder).value["spec"]["command"] == ["sh", "go.sh"]
    (folder / "go.sh").chmod(0o755)
    assert job("go.sh", here=folder).value["spec"]["command"] == ["./go.sh"]


@pytest.mark.parametrize(
    ("target", "says"),
    [("nope.py", "no such file"), ("sub", "it is a folder"), ("data.csv", "cannot tell how to run data.csv")],
)
def test_targets_that_are_none(folder: Path, target: str, says: str) -> None:
    with pytest.raises(BadOption, match=says):
        job(target, here=folder)


# ── commands ──


def test_a_command_packs_nothing_unless_told(folder: Path) -> None:
    document = job(None, ("sh", "-c", "echo hi"), name="hello", here=folder)
    assert document.value["metadata"] == {"name": "hello"}
    assert document.value["spec"] == {"command": ["sh", "-c", "echo hi"]}
    assert job(None, ("ls",), code="sub", here=folder).value["spec"]["code"] == {"path": str(folder / "sub")}
    with pytest.raises(BadOption, match="say what to run"):
        job(None)


# ── job files ──


def test_options_change_what_a_file_says(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "metadata: {name: a, labels: {x: y}}\n"
        "spec:\n  {command: [x], env: {A: '1'}, args: [old],\n"
        "   roles: {trainer: {replicas: 1, resources: {cpu: 1}}}}\n"
    )
    document = job(str(path), ("new",), name="b", env={"B": "2"}, replicas=3, memory="1Gi", labels={"k": "v"})
    assert document.value["metadata"] == {"name": "b", "labels": {"x": "y", "k": "v"}}
    assert document.value["spec"] == {
        "command": ["x"],
        "env": {"A": "1", "B": "2"},
        "args": ["new"],
        "roles": {"trainer": {"replicas": 3, "resources": {"cpu": 1, "memory": "1Gi"}}},
    }
    assert (document.source, document.folder) == (str(path), tmp_path)


def test_a_file_with_several_jobs_is_for_apply(tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text("spec: {}\n---\nspec: {}\n")
    with pytest.raises(BadDocument, match="2 documents in it") as refused:
        job(str(tmp_path / "jobs.yaml"))
    assert (refused.value.next or "").startswith("weft apply -f")


# ── options ──


def test_options_that_mean_more_than_a_field() -> None:
    spec = overlay(
        {},
        JobOptions(spread=True, max_restarts=5, priority="7", type="x", deadline="2h", stall_timeout="10m"),
    )["spec"]
    assert spec == {
        "type": "x",
        "deadline": "2h",
        "stallTimeout": "10m",
        "priority": 7,
        "placement": {"strategy": "spread"},
        "restart": {"policy": "on-failure", "max": 5},
    }
    assert overlay({}, JobOptions(one_node=True, priority="high"))["spec"] == {
        "priority": "high",
        "placement": {"nodes": "one"},
    }
    with pytest.raises(BadOption, match="contradict"):
        overlay({}, JobOptions(one_node=True, spread=True))


def test_which_gpus_devices_and_nodes() -> None:
    options = JobOptions(
        gpu=1,
        gpu_memory="40Gi",
        gpu_generation=8,
        devices={"rdma": 1},
        same_fabric=True,
        selector={"disk": "ssd"},
        tolerations=["spot"],
    )
    assert overlay({}, options)["spec"] == {
        "placement": {"nodes": "same-fabric", "selector": {"disk": "ssd"}, "tolerations": ["spot"]},
        "roles": {
            "worker": {
                "resources": {"gpu": 1, "gpuMemory": "40Gi", "gpuGeneration": 8, "devices": {"rdma": 1}}
            }
        },
    }


def test_what_a_file_says_of_devices_and_nodes_stays() -> None:
    written = {
        "placement": {"strategy": "spread", "selector": {"a": "b"}, "tolerations": ["old", "spot"]},
        "roles": {"trainer": {"resources": {"cpu": 2, "devices": {"fpga": 1, "rdma": 1}}}},
    }
    options = JobOptions(devices={"rdma": 2}, selector={"disk": "ssd"}, tolerations=["spot", "new"])
    assert overlay({"spec": written}, options)["spec"] == {
        "placement": {
            "strategy": "spread",
            "selector": {"a": "b", "disk": "ssd"},
            "tolerations": ["old", "spot", "new"],
        },
        "roles": {"trainer": {"resources": {"cpu": 2, "devices": {"fpga": 1, "rdma": 2}}}},
    }


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ({"one_node": True, "same_rack": True}, "--one-node and --same-rack"),
        ({"one_node": True, "same_fabric": True}, "--one-node and --same-fabric"),
        ({"same_rack": True, "same_fabric": True}, "--same-rack and --same-fabric"),
    ],
)
def test_a_job_is_kept_together_in_one_way(said: dict[str, bool], names: str) -> None:
    with pytest.raises(BadOption, match=f"{names}: .* give one of them"):
        overlay({}, JobOptions(**said))  # type: ignore[arg-type]


def test_devices_are_counted() -> None:
    assert device_counts(["rdma=1", "fpga=12", "nvidia.com/mig=2"]) == {
        "rdma": 1,
        "fpga": 12,
        "nvidia.com/mig": 2,
    }
    for wrong in ("rdma", "rdma=", "=1", "rdma=0", "rdma=1.5", "rdma=-1", "rdma=x"):
        with pytest.raises(BadOption, match=f"--device {wrong}: write NAME=COUNT"):
            device_counts([wrong])


def test_tolerations_that_are_no_list_are_refused_by_name() -> None:
    with pytest.raises(BadOption, match="tolerations must be a list"):
        overlay({"spec": {"placement": {"tolerations": "spot"}}}, JobOptions(tolerations=["old"]))


def test_a_program_may_say_what_a_person_may() -> None:
    plural = {"env": "env", "secret": "secrets", "label": "labels", "device": "devices", "data": "datasets"}
    plural |= {"selector": "selector", "toleration": "tolerations"}
    own = {"target", "rest", "detach", "dry_run", "output"}
    typed = {plural.get(name, name) for name in inspect.signature(run).parameters if name not in own}
    assert typed <= set(inspect.signature(weft.run).parameters)


def test_several_roles_need_their_file() -> None:
    roles = {"spec": {"roles": {"a": {}, "b": {}}}}
    with pytest.raises(BadOption, match=r"several roles \(a, b\)"):
        overlay(roles, JobOptions(replicas=2))
    workers = overlay({"spec": {"roles": {"ps": {}, "worker": {}}}}, JobOptions(replicas=2))
    assert workers["spec"]["roles"] == {"ps": {}, "worker": {"replicas": 2}}


def test_the_document_given_is_not_changed() -> None:
    given: dict[str, Any] = {"metadata": {"name": "a"}, "spec": {"env": {"A": "1"}}}
    overlay(given, JobOptions(name="b", env={"B": "2"}))
    assert given == {"metadata": {"name": "a"}, "spec": {"env": {"A": "1"}}}


def test_pairs_and_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "here")
    assert key_values(["A=1=2", "MINE", "E="], "--env") == {"A": "1=2", "MINE": "here", "E": ""}
    assert secret_references(["hub:token=HF", "hub:USER"]) == [
        {"name": "hub", "key": "token", "env": "HF"},
        {"name": "hub", "key": "USER", "env": "USER"},
    ]
    for wrong in (
        lambda: key_values(["A"], "--label"),
        lambda: key_values(["=x"], "--env"),
        lambda: secret_references(["x"]),
    ):
        with pytest.raises(BadOption):
            wrong()


def test_python_is_the_active_environments(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    assert active_python({"VIRTUAL_ENV": str(tmp_path)}) == str(tmp_path / "bin" / "python")
    assert active_python({"CONDA_PREFIX": str(tmp_path)}) == str(tmp_path / "bin" / "python")
    assert active_python({"VIRTUAL_ENV": str(tmp_path)}, own_prefix=str(tmp_path)) == "python"
    assert active_python({"VIRTUAL_ENV": "/gone"}) == "python"
    assert active_python({}) == "python"


def test_names_begin_validly() -> None:
    assert [slug(text) for text in ("My Model.py", "--", "ä", "a" * 99)] == [
        "my-model-py",
        "job",
        "job",
        "a" * 48,
    ]


def test_a_dry_run_shows_what_a_person_would_write() -> None:
    checked = {
        "metadata": {"name": "x-1", "uid": "u", "owner": "o", "created": 1, "labels": {}},
        "spec": {},
        "status": {},
    }
    assert as_written(checked, {"metadata": {"generateName": "x-"}}) == {
        "metadata": {"generateName": "x-", "labels": {}},
        "spec": {},
    }
    assert as_written(checked, {"metadata": {"name": "x-1"}})["metadata"] == {"name": "x-1", "labels": {}}
