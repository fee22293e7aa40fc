"""What the local engine hands to a supervisor, and what it makes of how a task ended."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.builders import a_complete_job
from weft.backends.api import Assignment
from weft.backends.folders import JobFolder, replace_file
from weft.backends.local import commands
from weft.backends.local.backend import LocalBackend
from weft.backends.local.commands import engines_complaint, isolate
from weft.backends.local.containergroups import ContainerGroups
from weft.backends.local.machine import Shape
from weft.backends.local.ports import places_of
from weft.backends.tasks import Gathering, gather, task_environment
from weft.model.failures import Code, Failure
from weft.model.gang import gang_of
from weft.model.status import Binding, JobStatus, State, TaskStatus
from weft.runtime.hosts import INLINE, hosts
from weft.runtime.tasklog import TaskLog

BASE = {"PATH": "/bin", "PYTHONPATH": "/runtime"}


def placed(**spec: Any) -> Assignment:
    """A job whose tasks lie alternately on two nodes."""
    job = a_complete_job("demo", **spec)
    gang = gang_of(job.spec)
    tasks = tuple(
        TaskStatus(task.name, binding=Binding(task.name, f"local-{task.rank % 2}")) for task in gang.tasks
    )
    return Assignment("u1", "demo", job.spec, gang, JobStatus(State.DEPLOYING, tasks))


def gathered(folder: Path, job: Assignment) -> Gathering:
    ports = list(range(20_000, 20_000 + len(job.gang.tasks)))
    shared = gather(job, 1, places_of(job.gang, ports), JobFolder(str(folder), job.uid).hosts, {}, {})
    if shared.hosts_file is not None:
        replace_file(shared.hosts_file, json.dumps(shared.hosts))
    return shared


def environments(folder: Path, job: Assignment) -> list[dict[str, str]]:
    shared = gathered(folder, job)
    own = JobFolder(str(folder), job.uid)
    return [
        task_environment(BASE, shared, task, own.paths(task.name, 1, "/data"), hide_gpus=False)
        for task in job.gang.tasks
    ]


class TestHosts:
    def test_a_small_gang_has_them_in_its_environment(self, tmp_path: Path) -> None:
        first, *_ = environments(tmp_path, placed(roles={"worker": {"replicas": 3}}))
        assert json.loads(first["WEFT_HOSTS"]) == {"worker": [f"127.0.0.1:2000{i}" for i in range(3)]}
        assert hosts(first) == json.loads(first["WEFT_HOSTS"])
        assert "WEFT_HOSTS_FILE" not in first

    def test_a_wide_gang_shares_a_file(self, tmp_path: Path) -> None:
        wide = environments(tmp_path, placed(roles={"worker": {"replicas": INLINE + 1}}))
        assert all("WEFT_HOSTS" not in env for env in wide)
        assert len({env["WEFT_HOSTS_FILE"] for env in wide}) == 1
        assert hosts(wide[-1])["worker"][-1] == f"127.0.0.1:{20_000 + INLINE}"

    def test_a_job_types_list_of_a_wide_role_is_left_out_and_that_of_a_small_one_is_not(
        self, tmp_path: Path
    ) -> None:
        roles = {"ps": {"replicas": 2}, "worker": {"replicas": INLINE + 1}}
        first, *_ = environments(tmp_path, placed(type="parameter-server", roles=roles))
        assert first["WEFT_PS_HOSTS"] == "127.0.0.1:20000,127.0.0.1:20001"
        assert "WEFT_WORKER_HOSTS" not in first

    @pytest.mark.parametrize("kind", ["command", "parameter-server"])
    def test_an_environment_does_not_grow_with_the_gang(self, tmp_path: Path, kind: str) -> None:
        def size(replicas: int) -> int:
            roles: dict[str, Any] = {"worker": {"replicas": replicas}}
            if kind == "parameter-server":
                roles["ps"] = {}
            return max(len(json.dumps(env)) for env in environments(tmp_path, placed(type=kind, roles=roles)))

        assert size(3000) - size(300) < 100

    def test_outside_a_job_there_are_none(self) -> None:
        with pytest.raises(KeyError):
            hosts({})


def test_a_task_knows_where_to_say_what_it_is_used_for(tmp_path: Path) -> None:
    (env,) = environments(tmp_path, placed(idleTimeout="30m"))
    assert env["WEFT_IDLE_TIMEOUT"] == "1800"
    assert env["WEFT_ACTIVITY_FILE"] == f"{tmp_path}/u1/task-worker-0/active"
    assert env["WEFT_URL_FILE"] == f"{tmp_path}/u1/task-worker-0/url-1"
    (never,) = environments(tmp_path, placed(idleTimeout=0))
    assert "WEFT_IDLE_TIMEOUT" not in never


def test_local_ranks_count_the_tasks_of_a_node(tmp_path: Path) -> None:
    found = environments(tmp_path, placed(roles={"worker": {"replicas": 5}}))
    assert [env["LOCAL_RANK"] for env in found] == ["0", "0", "1", "1", "2"]


class TestContainers:
    def spec(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, tool: str, devices: list[int], driver: str = ""
    ) -> dict[str, Any]:
        """What a supervisor is told of a task that is a container."""
        monkeypatch.setattr(commands, "engine", lambda: f"/usr/bin/{tool}")
        monkeypatch.setattr(os, "geteuid", lambda: 0 if driver == "cgroupfs" else 1000)
        shared = gathered(folder, placed(image="cuda:12"))
        env = {"DATA_DIR": "/data", "CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))}
        spec = {"argv": ["train"], "env": env, "cwd": "/code", "dir": "/task", "cpus": [1]}
        [task] = shared.job.gang.tasks
        own = JobFolder(str(folder), shared.job.uid)
        groups = folder / "groups"
        for hierarchy in ("cpuacct", "memory"):
            (groups / hierarchy).mkdir(parents=True)
            (groups / hierarchy / "cgroup.procs").touch()
        label = ContainerGroups("weft-x", groups)
        label.dockers.drivers["/usr/bin/docker"] = driver
        isolated = isolate(shared, own, task, spec, "/home", devices, label)
        return {**spec, "argv": isolated.argv, "cleanup": isolated.cleanup}

    def container(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, tool: str, devices: list[int]
    ) -> tuple[list[str], Mapping[str, str]]:
        told = self.spec(folder, monkeypatch, tool, devices)
        return told["argv"], told["env"]

    @pytest.mark.parametrize(
        ("tool", "before", "after"),
        [
            ("podman", ["--cgroup-manager=cgroupfs"], ["--cgroups=no-conmon"]),
            ("docker", [], []),
        ],
    )
    def test_it_is_put_below_a_group_that_outlives_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, before: list[str], after: list[str]
    ) -> None:
        told = self.spec(tmp_path, monkeypatch, tool, [], driver="cgroupfs")
        parent = "/weft-x/weft-u1-worker-0-1"
        head = [f"/usr/bin/{tool}", *before, "run", *after, f"--cgroup-parent={parent}", "--rm"]
        assert told["argv"][: len(head)] == head
        assert told["cleanup"][0][: 1 + len(before)] == head[: 1 + len(before)]
        root = f"{tmp_path}/groups"
        assert told["cgroups"] == {
            "folders": [f"{root}/cpuacct{parent}", f"{root}/memory{parent}"],
            "limits": [],
            "joins": [],
            "peak": f"{root}/memory{parent}/memory.max_usage_in_bytes",
            "cpu": f"{root}/cpuacct{parent}/cpuacct.usage",
        }

    @pytest.mark.parametrize("tool", ["podman", "docker"])
    def test_where_groups_are_not_ours_to_make_its_engine_makes_its_own(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str
    ) -> None:
        told = self.spec(tmp_path, monkeypatch, tool, [], driver="systemd")
        assert told["cgroups"] is None
        assert not any("cgroup" in flag for flag in told["argv"])

    def test_docker_is_asked_aside_once_for_all_who_wait_and_again_if_it_gave_no_answer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        docker, answers, job = tmp_path / "docker", tmp_path / "answers", placed(image="cuda:12")
        os.mkfifo(answers)
        docker.write_text(
            f"#!/bin/sh\necho asked >> {tmp_path}/asked\nread code < {answers}\necho cgroupfs\nexit $code\n"
        )
        docker.chmod(0o755)
        monkeypatch.setattr(commands, "engine", lambda: str(docker))
        groups = ContainerGroups("weft-x", tmp_path)

        async def asked(code: int) -> None:
            assert commands.to_be_asked(job, groups) == str(docker)
            waiting = [asyncio.create_task(groups.dockers.ask(str(docker))) for _ in range(5)]
            await asyncio.to_thread(answers.write_text, f"{code}\n")  # while it waits, the server does not
            await asyncio.gather(*waiting)

        async def story() -> None:
            await asked(1)
            assert not groups.dockers.takes_a_parent(str(docker))
            await asked(0)
            assert groups.dockers.takes_a_parent(str(docker))
            assert commands.to_be_asked(job, groups) is None

        asyncio.run(story())
        assert (tmp_path / "asked").read_text() == "asked\n" * 2

    def test_only_docker_is_asked_and_only_for_an_image(self, monkeypatch: pytest.MonkeyPatch) -> None:
        groups = ContainerGroups("weft-x")
        for tool in ("/usr/bin/podman", None):
            monkeypatch.setattr(commands, "engine", lambda tool=tool: tool)
            assert commands.to_be_asked(placed(image="cuda:12"), groups) is None
        monkeypatch.setattr(commands, "engine", lambda: "/usr/bin/docker")
        assert commands.to_be_asked(placed(), groups) is None

    def test_its_group_in_version_2_has_all_in_one_folder(self, tmp_path: Path) -> None:
        (tmp_path / "cgroup.controllers").touch()
        plan = ContainerGroups("weft-x", tmp_path).plan("t")
        own = f"{tmp_path}/weft-x/t"
        assert plan == {
            "folders": [own],
            "limits": [],
            "joins": [],
            "peak": f"{own}/memory.peak",
            "oom": f"{own}/memory.events",
            "cpu": f"{own}/cpu.stat",
        }

    def test_podman_is_given_gpus_by_their_names_in_cdi(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        argv, _ = self.container(tmp_path, monkeypatch, "podman", [1, 3])
        assert [flag for flag in argv if flag.startswith(("--gpus", "--device"))] == [
            "--device=nvidia.com/gpu=1",
            "--device=nvidia.com/gpu=3",
        ]

    def test_docker_is_given_them_as_one_quoted_list(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        argv, _ = self.container(tmp_path, monkeypatch, "docker", [1, 3])
        assert [flag for flag in argv if flag.startswith(("--gpus", "--device"))] == ['--gpus="device=1,3"']

    @pytest.mark.parametrize("tool", ["podman", "docker"])
    def test_inside_they_are_counted_from_0(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str
    ) -> None:
        _, env = self.container(tmp_path, monkeypatch, tool, [1, 3])
        assert env["CUDA_VISIBLE_DEVICES"] == "0,1"

    @pytest.mark.parametrize("tool", ["podman", "docker"])
    def test_without_gpus_there_is_no_flag(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str
    ) -> None:
        argv, env = self.container(tmp_path, monkeypatch, tool, [])
        assert not [flag for flag in argv if flag.startswith(("--gpus", "--device"))]
        assert env["CUDA_VISIBLE_DEVICES"] == ""

    @pytest.mark.parametrize(
        ("lines", "complaint"),
        [
            (
                [
                    "Trying to pull localhost:1/x:1...",
                    "Error: initializing source docker://localhost:1/x:1: refused",
                ],
                "image x could not be pulled: initializing source docker://localhost:1/x:1: refused",
            ),
            (
                ['Error: short-name "x" did not resolve to an alias'],
                'image x could not be pulled: short-name "x" did not resolve to an alias',
            ),
            (
                [
                    "Unable to find image 'x:1' locally",
                    "docker: Error response from daemon: pull access denied for x.",
                    "See 'docker run --help'.",
                ],
                "image x could not be pulled: pull access denied for x.",
            ),
            (
                ["docker: Error response from daemon: could not select device driver."],
                "image x could not be started: could not select device driver.",
            ),
            (["bisecting", "Errors: none"], None),
            ([], None),
        ],
    )
    def test_what_an_engine_complains_of(self, lines: list[str], complaint: str | None) -> None:
        assert engines_complaint("x", lines) == complaint

    @pytest.mark.parametrize(
        ("host", "found"), [("unix:///no/such/socket", False), ("tcp://10.0.0.1:2375", True)]
    )
    def test_docker_counts_where_its_engine_can_be_reached(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, found: bool
    ) -> None:
        docker = tmp_path / "docker"
        docker.touch(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("DOCKER_HOST", host)
        assert commands.engine() == (str(docker) if found else None)


class TestExits:
    def failure(self, folder: Path, job: Assignment, log: str = "", **line: Any) -> Failure | None:
        backend = LocalBackend(folder, Shape(), lambda _name, _key: None)
        task = Path(backend.folder(job.uid).task("worker-0"))
        task.mkdir(parents=True)
        if log:
            written = TaskLog(str(task), 1 << 20, 2)
            written.write(log.encode(), 1.0)
            written.close()
        facts = {
            "task": "worker-0",
            "code": 1,
            "signal": None,
            "oom": False,
            "peak": 2**20,
            "cpu": 0.1,
            "notes": [],
        }
        return backend._exit({**facts, **line}, job).failure

    def test_a_code_of_its_own_needs_no_more_words(self, tmp_path: Path) -> None:
        assert self.failure(tmp_path, placed(), code=125) is None

    def test_a_group_that_refused_the_task_is_the_reason(self, tmp_path: Path) -> None:
        assert self.failure(tmp_path, placed(), code=125, unjoined="/cg/t/cgroup.procs") == Failure(
            Code.CANNOT_START,
            "worker-0 could not be put under its limits, so it was not run: /cg/t/cgroup.procs refused it",
            "worker-0",
        )

    def test_an_image_that_could_not_be_pulled_is_the_reason(self, tmp_path: Path) -> None:
        log = "Trying to pull x:1...\nError: initializing source docker://x:1: refused\n"
        assert self.failure(tmp_path, placed(image="x:1"), log, code=125) == Failure(
            Code.CANNOT_START,
            "worker-0: image x:1 could not be pulled: initializing source docker://x:1: refused",
            "worker-0",
        )

    def test_a_container_that_exits_like_an_engine_is_believed(self, tmp_path: Path) -> None:
        assert self.failure(tmp_path, placed(image="x:1"), "all is well\n", code=125) is None

    def test_out_of_memory_has_limit_and_peak(self, tmp_path: Path) -> None:
        job = placed(roles={"worker": {"resources": {"memory": "1Mi"}}})
        found = self.failure(tmp_path, job, code=None, signal=9, oom=True)
        assert found is not None
        assert found.code is Code.OUT_OF_MEMORY
        assert "reached its limit of 1 MiB (peak 1 MiB)" in found.message

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ({"peak": 2**20 + 4096, "grouped": True}, "reached its limit of 1 MiB (peak 1 MiB)"),
            ({"peak": 2**19, "grouped": True, "oom": True}, "reached its limit of 1 MiB (peak 512 KiB)"),
            ({"peak": 2**25, "grouped": False}, "most likely at its memory limit of 1 MiB"),
            ({"peak": 2**25}, "most likely at its memory limit of 1 MiB"),  # of an older supervisor
            ({"peak": 2**19, "grouped": True}, None),  # somebody else killed it
        ],
    )
    def test_a_container_that_was_killed_says_what_is_known(
        self, tmp_path: Path, line: dict[str, Any], words: str | None
    ) -> None:
        job = placed(image="x:1", roles={"worker": {"resources": {"memory": "1Mi"}}})
        found = self.failure(tmp_path, job, code=137, **line)
        assert (found is None) == (words is None)
        if found is not None and words is not None:
            assert found.code is Code.OUT_OF_MEMORY
            assert words in found.message

    def test_what_ended_well_did_not_fail(self, tmp_path: Path) -> None:
        assert self.failure(tmp_path, placed(), code=0, oom=True) is None
