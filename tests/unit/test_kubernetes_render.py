"""The objects that a job becomes on Kubernetes.

The files under golden/kubernetes are what people would see. To write them anew after a change that was meant:
`WEFT_GOLDEN=1 python -m pytest tests/unit/test_kubernetes_render.py`, and read the difference.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from support.builders import a_complete_job
from weft.backends.api import Assignment
from weft.backends.kubernetes import names
from weft.backends.kubernetes.dryrun import LATER, objects_of
from weft.backends.kubernetes.nodes import request_of
from weft.backends.kubernetes.pods import literal
from weft.backends.kubernetes.render import Rendered, render, unsupported
from weft.backends.kubernetes.requests import counted
from weft.backends.kubernetes.settings import Settings
from weft.cli.output import as_yaml
from weft.model.failures import Permanent
from weft.model.gang import gang_of
from weft.model.lifecycle import submitted
from weft.model.problems import Invalid
from weft.model.resource import NAME_PATTERN
from weft.model.status import Binding, JobStatus, State, TaskState, TaskStatus
from weft.runtime.agent.script import START
from weft.runtime.hosts import INLINE

GOLDEN = Path(__file__).parent / "golden" / "kubernetes"
UID = "0197f3a2b4c81d2e0001"
SETTINGS = Settings(image="registry.example.com/weft:1.0", instance="home-1")

TRAIN = ["python", "train.py"]
GPU_WORKERS = {"worker": {"replicas": 4, "resources": {"cpu": 8, "memory": "64Gi", "gpu": 2}}}
STORIES: dict[str, dict[str, Any]] = {
    "one-task": {"command": TRAIN, "args": ["--price", "$$5 and $(HOME)"], "env": {"LR": 0.1}},
    "pytorch-gpus": {
        "type": "pytorch",
        "command": TRAIN,
        "roles": GPU_WORKERS,
        "code": {"package": "sha256:" + "0" * 64, "subdir": "vision"},
        "placement": {"selector": {"disk": "ssd"}, "tolerations": ["gpu-only"], "nodes": "same-rack"},
        "metrics": [{"source": "tensorboard"}],
    },
    "parameter-server": {
        "type": "parameter-server",
        "command": TRAIN,
        "image": "python:3.12",
        "grace": "2.5s",
        "roles": {
            "ps": {"image": "ps:1", "resources": {"cpu": "500m"}},
            "worker": {
                "replicas": 2,
                "env": {"ROLE": "w"},
                "resources": {"cpu": 2, "memory": "4Gi", "devices": {"rdma/hca": 1, "fpga": 2}},
            },
        },
    },
    "secrets": {
        "command": TRAIN,
        "env": {"S3_TOKEN": "is replaced"},
        "secrets": [{"name": "s3", "key": "token", "env": "S3_TOKEN"}],
    },
    "patched": {
        "command": TRAIN,
        "placement": {"tolerations": ["spot"]},
        "roles": {
            "worker": {
                "pod": {
                    "metadata": {"annotations": {"sidecar.istio.io/inject": "false"}},
                    "spec": {
                        "dnsPolicy": "Default",
                        "enableServiceLinks": None,
                        "tolerations": [{"key": "gpu", "operator": "Exists"}],
                        "volumes": [
                            {"name": "images", "persistentVolumeClaim": {"claimName": "images"}},
                            {"name": "shm", "emptyDir": {"sizeLimit": "8Gi"}},
                        ],
                        "containers": [
                            {
                                "name": "task",
                                "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
                                "volumeMounts": [{"name": "images", "mountPath": "/weft/data"}],
                            },
                            {"name": "proxy", "image": "proxy:2"},
                        ],
                    },
                }
            }
        },
    },
    "datasets": {
        "command": TRAIN,
        "datasets": [
            {"name": "faces"},
            {"name": "words", "as": "text", "mode": "shard"},
            {"name": "labels", "files": False, "version": "0123456789ab"},
        ],
        "outputs": [{"dataset": "faces-model", "path": "model"}],
    },
    "scheduled-by-the-cluster": {
        "command": TRAIN,
        "scheduling": "default",
        "queue": "research",
        "placement": {"strategy": "spread", "nodes": "same-fabric"},
        "roles": {"worker": {"replicas": 2, "resources": {"gpu": 1, "gpuType": "Tesla-T4"}}},
    },
}


def assigned(name: str = "demo", uid: str = UID, **spec: Any) -> Assignment:
    job = a_complete_job(name, **spec)
    gang = gang_of(job.spec)
    return Assignment(uid, name, job.spec, gang, submitted(gang))


def test_everything_of_a_job_is_in_the_namespace_of_its_project() -> None:
    job = assigned(roles={"worker": {"replicas": 2}})
    job.project = "vision"
    made = rendered(job, code=b"x").objects()
    assert {each["metadata"]["namespace"] for each in made} == {"vision"}
    job.project = None
    assert {each["metadata"]["namespace"] for each in rendered(job).objects()} == {SETTINGS.namespace}


def patched(**spec: Any) -> dict[str, Any]:
    return {"roles": {"worker": {"pod": {"spec": spec}}}}


def rendered(
    job: Assignment,
    *,
    settings: Settings = SETTINGS,
    launch: int = 1,
    tasks: list[str] | None = None,
    code: bytes | None = None,
    pushes: tuple[str, ...] = (),
    script: str = "<the start script>",
) -> Rendered:
    chosen = [task.name for task in job.gang.preferred] if tasks is None else tasks
    return render(
        job, launch, chosen, settings, "owner-uid", code, pushes, "the-token", "the-data-token", script
    )


def container(pod: dict[str, Any], name: str) -> dict[str, Any]:
    return next(found for found in pod["spec"]["containers"] if found["name"] == name)


def variables(pod: dict[str, Any], name: str = "task") -> dict[str, Any]:
    listed = container(pod, name)["env"]
    found = {item["name"]: item.get("value", item.get("valueFrom")) for item in listed}
    assert len(found) == len(listed), "each variable once"
    return found


def told(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(variables(pod, "weft")["WEFT_AGENT"])
    return found


class TestGolden:
    @pytest.mark.parametrize("story", STORIES)
    def test_the_objects_are_those_that_were_read_and_approved(self, story: str) -> None:
        extra: dict[str, Any] = {
            "pytorch-gpus": {"code": b"PACKED"},
            "secrets": {"pushes": ("checkpoints",)},
        }.get(story, {})
        found = "---\n".join(map(as_yaml, rendered(assigned(story, **STORIES[story]), **extra).objects()))
        file = GOLDEN / f"{story}.yaml"
        if os.environ.get("WEFT_GOLDEN"):
            file.write_text(found)
        assert found == file.read_text(), "if this was meant: WEFT_GOLDEN=1, and read the difference"

    def test_there_is_no_file_without_its_story(self) -> None:
        assert {file.stem for file in GOLDEN.iterdir()} == set(STORIES)


class TestNames:
    @given(
        st.from_regex(re.compile(NAME_PATTERN, re.ASCII), fullmatch=True),
        st.from_regex(re.compile(NAME_PATTERN, re.ASCII), fullmatch=True),
        st.integers(0, 9999),
        st.integers(1, 10**6),
    )
    def test_they_are_dns_labels(self, job: str, role: str, index: int, launch: int) -> None:
        base = names.base_name(job, UID)
        task = f"{role}-{index}"
        for name in (base, names.code_name(base), names.group_name(base, launch), names.host_name(task)):
            assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name)
            assert len(name) <= 63
        assert re.match("[a-z]", base), "a service's name begins with a letter"
        assert len(names.pod_name(base, task, launch)) <= 253

    def test_of_two_long_tasks_each_has_its_own(self) -> None:
        role = "r" * 63
        assert names.host_name(f"{role}-1") != names.host_name(f"{role}-2")

    def test_two_jobs_of_one_beginning_are_told_apart_by_their_uids(self) -> None:
        assert names.base_name("a" * 60, "x" * 12) == f"weft-{'a' * 37}-{'x' * 12}"
        assert names.base_name("a" * 36 + "-bcd", UID) == f"weft-{'a' * 36}-{UID[-12:]}"

    def test_everything_has_the_jobs_labels_and_its_owner(self) -> None:
        found = rendered(assigned(type="pytorch", roles=GPU_WORKERS), code=b"x")
        for thing in found.objects():
            labels = thing["metadata"]["labels"]
            assert labels["weft.dev/uid"] == UID
            assert labels["weft.dev/instance"] == "home-1"
            assert thing["metadata"]["namespace"] == "weft"
            owners = thing["metadata"].get("ownerReferences", [])
            assert [owner["uid"] for owner in owners] == ([] if thing is found.owner else ["owner-uid"])


class TestVariables:
    def test_hosts_are_names_of_the_service(self) -> None:
        found = rendered(assigned(roles={"worker": {"replicas": 2}}))
        base = found.owner["metadata"]["name"]
        env = variables(found.pods["worker-1"])
        assert json.loads(env["WEFT_HOSTS"]) == {"worker": [f"worker-{i}.{base}:29500" for i in range(2)]}
        assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == (f"worker-0.{base}", "29500")
        assert (env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"]) == ("1", "2", "0")
        assert found.pods["worker-1"]["spec"]["subdomain"] == base
        assert told(found.pods["worker-1"])["await"] == [f"worker-0.{base}"]

    def test_one_task_is_reached_at_home(self) -> None:
        found = rendered(assigned())
        assert variables(found.pods["worker-0"])["MASTER_ADDR"] == "127.0.0.1"
        assert told(found.pods["worker-0"])["await"] == []
        assert [thing["kind"] for thing in found.shared] == ["Secret", "NetworkPolicy"]

    def test_gpus_are_counted_from_0_whichever_the_node_has_given(self) -> None:
        job = assigned(roles={"worker": {"resources": {"gpu": 2}}})
        job.status = replace(
            job.status, tasks=(TaskStatus("worker-0", binding=Binding("worker-0", "n", gpus=(4, 6))),)
        )
        env = variables(rendered(job).pods["worker-0"])
        assert (env["CUDA_VISIBLE_DEVICES"], env["GPU_COUNT"]) == ("0,1", "2")

    def test_a_task_without_gpus_sees_none(self) -> None:
        assert variables(rendered(assigned()).pods["worker-0"])["CUDA_VISIBLE_DEVICES"] == ""

    def test_a_wide_gang_waits_only_for_where_it_meets(self) -> None:
        job = assigned(roles={"worker": {"replicas": INLINE + 1}})
        found = rendered(job)
        last = found.pods[f"worker-{INLINE}"]
        assert told(last)["await"] == [f"worker-0.{found.owner['metadata']['name']}"]
        assert variables(last)["WEFT_HOSTS_FILE"] == "/weft/task/hosts.json"
        assert "WEFT_HOSTS" not in variables(last)
        assert found.hosts is not None
        assert len(found.hosts["worker"]) == INLINE + 1
        assert told(found.pods["worker-0"])["await"] == []

    def test_a_small_gang_needs_no_file_of_hosts(self) -> None:
        assert rendered(assigned(roles={"worker": {"replicas": 2}})).hosts is None

    def test_a_restarted_task_waits_for_nobody_who_has_ended(self) -> None:
        job = assigned(roles={"worker": {"replicas": 3}})
        states = (TaskState.RUNNING, TaskState.STARTING, TaskState.SUCCEEDED)
        tasks = tuple(
            TaskStatus(task.name, state, Binding(task.name, f"n{task.rank}"), launch=1)
            for task, state in zip(job.gang.tasks, states, strict=True)
        )
        job.status = JobStatus(State.PROCESSING, tasks)
        found = rendered(job, launch=2, tasks=["worker-1"])
        assert list(found.pods) == ["worker-1"]
        assert found.pods["worker-1"]["metadata"]["name"].endswith("-worker-1-2")
        assert told(found.pods["worker-1"])["await"] == []
        assert variables(found.pods["worker-1"])["WORLD_SIZE"] == "3"

    def test_metrics_in_files_are_read_beside_every_task_since_each_has_a_folder_of_its_own(self) -> None:
        job = assigned(roles={"worker": {"replicas": 2}}, metrics=[{"source": "file"}, {"source": "log"}])
        found = rendered(job)
        sources = {name: [m["source"] for m in told(pod)["metrics"]] for name, pod in found.pods.items()}
        assert sources == {"worker-0": ["file", "log"], "worker-1": ["file", "log"]}

    @given(st.text(st.sampled_from("$()ab"), max_size=12))
    def test_a_text_reaches_the_task_as_it_was_written(self, text: str) -> None:
        assert expanded(literal(text)) == text

    def test_the_start_script_is_the_agents(self) -> None:
        job = assigned(command=["echo", "$HOME"])
        pod = render(job, 1, ["worker-0"], SETTINGS, "o", None, (), "t", "d").pods["worker-0"]
        assert [expanded(part) for part in container(pod, "task")["command"]] == [
            "/bin/sh", "-c", START, "weft", "echo", "$HOME",
        ]  # fmt: skip


def expanded(text: str) -> str:
    """What a kubelet makes of a text in which every variable is known, with the empty value."""
    found, at = "", 0
    while at < len(text):
        pair = text[at : at + 2]
        if pair == "$$":
            found, at = found + "$", at + 2
        elif pair == "$(" and (end := text.find(")", at)) > 0:
            at = end + 1
        else:
            found, at = found + text[at], at + 1
    return found


amounts = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from([0, 0.25, 1, 4]),
        "memory": st.sampled_from(["1Mi", "3Gi", 123457]),
        "gpu": st.integers(0, 8),
        "devices": st.just({"rdma/hca": 1}),
    },
)


class TestResources:
    @given(amounts)
    def test_what_a_task_may_use_is_kept_for_it(self, resources: dict[str, Any]) -> None:
        pod = rendered(assigned(roles={"worker": {"resources": resources}})).pods["worker-0"]
        for found in pod["spec"]["containers"]:
            assert found["resources"].get("requests") == found["resources"].get("limits")

    def test_whole_cpus_and_memory_make_a_guaranteed_pod(self) -> None:
        pod = rendered(assigned(roles={"worker": {"resources": {"cpu": 2, "memory": "4Gi"}}})).pods[
            "worker-0"
        ]
        assert all({"cpu", "memory"} <= c["resources"]["limits"].keys() for c in pod["spec"]["containers"])
        assert container(pod, "task")["resources"]["limits"] == {"cpu": "2", "memory": "4Gi"}

    @pytest.mark.parametrize(("cpu", "memory"), [(1, "4Gi"), (8, "32Gi"), (0.1, "409Mi")])
    def test_who_asks_for_no_memory_has_some_for_each_cpu_and_so_a_guaranteed_pod(
        self, cpu: float, memory: str
    ) -> None:
        job = assigned(roles={"worker": {"resources": {"cpu": cpu}}})
        pod = rendered(job).pods["worker-0"]
        assert container(pod, "task")["resources"]["limits"]["memory"] == memory
        assert all({"cpu", "memory"} <= c["resources"]["limits"].keys() for c in pod["spec"]["containers"])
        settings = replace(SETTINGS, memory_per_cpu=1 << 30)
        [less] = counted(job, settings, {}).tasks
        assert less.request.memory >> 20 == int(cpu * 1024) + 128

    def test_no_cpu_means_no_limit(self) -> None:
        pod = rendered(assigned(roles={"worker": {"resources": {"cpu": 0}}})).pods["worker-0"]
        assert container(pod, "task")["resources"] == {}

    @pytest.mark.parametrize(
        ("resources", "size"), [({"memory": "4Gi"}, "2Gi"), ({"cpu": 3}, "6Gi"), ({"cpu": 0}, "1Gi")]
    )
    def test_shared_memory_is_half_of_the_tasks(self, resources: dict[str, Any], size: str) -> None:
        pod = rendered(assigned(roles={"worker": {"resources": resources}})).pods["worker-0"]
        [shm] = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "shm"]
        assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": size}

    def test_in_a_sandbox_the_images_files_cannot_be_changed(self) -> None:
        for isolation, read_only in (("sandbox", True), ("process", None)):
            pod = rendered(assigned(isolation=isolation)).pods["worker-0"]
            confined = container(pod, "task")["securityContext"]
            assert confined.get("readOnlyRootFilesystem") is read_only
            assert "readOnlyRootFilesystem" not in container(pod, "weft")["securityContext"]

    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            ({"roles": {"worker": {"resources": {"gpu": 0.5}}}}, "0.5 of a GPU"),
            ({"isolation": "sandbox"}, None),
            (
                {
                    "scheduling": "default",
                    "roles": {"worker": {"resources": {"gpu": 1, "gpuMemory": "40Gi"}}},
                },
                "gpuMemory is for Weft's own scheduler",
            ),
            ({}, None),
            ({"datasets": [{"name": "faces"}]}, None),
            ({"datasets": [{"name": "faces", "mode": "mount"}]}, "dataset faces: mode: mount needs"),
            ({"datasets": [{"name": "faces"}], "scheduling": "default"}, None),
            ({"roles": {"worker": {"resources": {"gpu": 1, "gpuMemory": "40Gi"}}}}, None),
            (
                patched(nodeSelector={"disk": "ssd"}),
                "worker.pod.spec.nodeSelector is not read by Weft's scheduler",
            ),
            (patched(affinity={}), "`placement` (selector, nodes, strategy), or `scheduling: default`"),
            (patched(topologySpreadConstraints=[]), "`placement.strategy: spread`"),
            ({**patched(nodeSelector={"disk": "ssd"}, affinity={}), "scheduling": "default"}, None),
        ],
    )
    def test_what_no_cluster_can_do_is_said(self, spec: dict[str, Any], words: str | None) -> None:
        found = unsupported(assigned(**spec))
        assert found is None if words is None else found is not None and words in found


def asking(name: str, **requests: str) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": requests}}


class TestTheBooks:
    """What the scheduler counts for a task is what its pod asks for, down to the last sidecar."""

    @pytest.mark.parametrize(
        "spec",
        [
            *STORIES.values(),
            patched(containers=[asking("proxy", cpu="2", memory="3Gi")]),
            patched(containers=[asking("task", cpu="7"), asking("weft", memory="1Gi")]),
            patched(containers=[{"name": "task", "resources": {"limits": {"nvidia.com/gpu": "3", "weft.dev/fpga": "1"}}}]),
            patched(initContainers=[asking("first", cpu="40")], overhead={"memory": "1Gi"}),
        ],
    )  # fmt: skip
    def test_what_is_counted_is_what_is_rendered(self, spec: dict[str, Any]) -> None:
        job = assigned(**{**spec, "scheduling": "weft"})
        pods = rendered(job).pods
        for task in counted(job, SETTINGS, {}).preferred:
            whole = request_of(pods[task.name], SETTINGS)
            told = task.request
            assert (told.cpu, told.memory, told.gpu, told.devices, told.slots) == (
                whole.cpu,
                whole.memory,
                whole.gpu,
                whole.devices,
                1,
            )

    def test_which_gpus_a_task_takes_is_counted_as_before(self) -> None:
        job = assigned(roles={"worker": {"resources": {"gpu": 1, "gpuType": "T4", "gpuMemory": "8Gi"}}})
        [task] = counted(job, SETTINGS, {}).tasks
        assert (task.request.gpu_type, task.request.gpu_memory) == ("T4", 8 * 2**30)

    def test_what_the_cluster_places_is_counted_where_it_is_found(self) -> None:
        [task] = counted(assigned(scheduling="default"), SETTINGS, {}).tasks
        assert (task.request.cpu, task.request.slots) == (0, 0)


class TestDatasets:
    def test_a_task_sees_the_agents_door_and_its_own_versions_and_can_write_to_neither(self) -> None:
        job = assigned(
            datasets=[{"name": "faces"}, {"name": "words", "as": "text"}, {"name": "x", "mode": "stream"}]
        )
        versions = (("faces", "f" * 32), ("words", "a" * 32), ("x", "e" * 32))
        job.status = replace(job.status, datasets=versions)
        pod = rendered(job).pods["worker-0"]
        mounts = {
            mount["mountPath"]: (mount["subPath"], mount["readOnly"])
            for mount in container(pod, "task")["volumeMounts"]
            if mount["name"] == "weft-data"
        }
        assert mounts == {
            "/weft-data": ("door", True),
            "/weft/data/faces": (f"cache/trees/{'f' * 32}", True),
            "/weft/data/text": (f"cache/trees/{'a' * 32}", True),
        }
        assert "hostPath" not in json.dumps(pod), "restricted namespaces would refuse it"
        assert "weft-data" not in json.dumps(container(pod, "weft"))
        assert json.loads(variables(pod)["WEFT_DATASETS"])["text"]["version"] == "a" * 32

    def test_where_the_cluster_places_a_pod_it_waits_for_its_data_on_a_node_that_has_an_agent(self) -> None:
        uses = [{"name": "faces"}, {"name": "words", "files": False}]
        job = assigned(datasets=uses, scheduling="default")
        job.status = replace(job.status, datasets=(("faces", "f" * 32), ("words", "a" * 32)))
        spec = rendered(job).pods["worker-0"]["spec"]
        (waits,) = spec["initContainers"]
        assert waits["command"] == ["python", "-m", "weft.runtime.data.arrival", "f" * 32]
        assert [mount["mountPath"] for mount in waits["volumeMounts"]] == ["/weft-data", "/weft-data-token"]
        assert {"WEFT_DATA_SOCKET", "WEFT_DATA_TOKEN_FILE"} <= {each["name"] for each in waits["env"]}
        assert waits["resources"]["requests"] == waits["resources"]["limits"], "or it is not Guaranteed"
        (near,) = spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert near == {
            "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "weft-data"}},
            "namespaces": ["weft-data"],
            "topologyKey": "kubernetes.io/hostname",
        }

    @pytest.mark.parametrize("more", [{"datasets": [{"name": "faces"}]}, {"scheduling": "default"}])
    def test_no_other_pod_has_a_container_that_runs_first(self, more: dict[str, Any]) -> None:
        assert "initContainers" not in rendered(assigned(**more)).pods["worker-0"]["spec"]

    def test_a_gang_of_the_clusters_own_stays_together_and_near_agents(self) -> None:
        roles = {"worker": {"replicas": 2}}
        placement = {"nodes": "same-rack"}
        job = assigned(datasets=[{"name": "faces"}], scheduling="default", roles=roles, placement=placement)
        affinity = rendered(job).pods["worker-0"]["spec"]["affinity"]["podAffinity"]
        needed = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        assert [each["topologyKey"] for each in needed] == ["weft.dev/rack", "kubernetes.io/hostname"]
        assert affinity["preferredDuringSchedulingIgnoredDuringExecution"]

    def test_a_job_that_reads_nothing_has_nothing_of_it(self) -> None:
        assert "weft-data" not in json.dumps(rendered(assigned()).objects())
        assert "WEFT_DATA_SOCKET" not in variables(rendered(assigned()).pods["worker-0"])

    @pytest.mark.parametrize(
        "spec",
        [
            {"volumes": [{"name": "mine", "persistentVolumeClaim": {"claimName": "weft-data"}}]},
            {"containers": [{"name": "task", "volumeMounts": [{"name": "weft-data", "mountPath": "/all"}]}]},
            {"initContainers": [{"name": "x", "volumeMounts": [{"name": "weft-data", "mountPath": "/all"}]}]},
        ],
    )
    def test_nobody_patches_a_way_to_all_data_of_a_node(self, spec: dict[str, Any]) -> None:
        with pytest.raises(Invalid, match="weft-data is Weft's: write `datasets`"):
            assigned(roles={"worker": {"pod": {"spec": spec}}})


class TestSecrets:
    @given(st.text(), st.text())
    def test_of_the_token_only_its_secret_knows(self, token: str, another: str) -> None:
        job = assigned(**STORIES["secrets"], datasets=[{"name": "faces"}])
        one, other = (
            render(job, 1, ["worker-0"], SETTINGS, "o", None, (), value, value, "script")
            for value in (token, another)
        )
        assert (one.owner, one.pods) == (other.owner, other.pods)
        differing = [thing for thing, same in zip(one.shared, other.shared, strict=True) if thing != same]
        assert [thing["stringData"] for thing in differing] == (
            [{"token": token, "data": token}] if token != another else []
        )

    def test_a_secret_is_named_and_takes_the_place_of_a_variable(self) -> None:
        found = rendered(assigned(**STORIES["secrets"]))
        reference = {"secretKeyRef": {"name": "s3", "key": "token"}}
        assert variables(found.pods["worker-0"])["S3_TOKEN"] == reference


class TestOtherSchedulers:
    def gang(self, **settings: Any) -> Rendered:
        job = assigned(scheduling="default", queue="research", roles={"worker": {"replicas": 3}})
        return rendered(job, settings=replace(SETTINGS, **settings))

    def test_kueue_is_told_of_the_queue_and_the_group(self) -> None:
        pod = self.gang().pods["worker-0"]["metadata"]
        assert pod["labels"]["kueue.x-k8s.io/queue-name"] == "research"
        assert pod["labels"]["kueue.x-k8s.io/pod-group-name"].endswith("-1")
        assert pod["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "3"

    def test_the_default_queue_is_nobodys(self) -> None:
        job = assigned(scheduling="default", roles={"worker": {"replicas": 2}})
        assert "kueue.x-k8s.io/queue-name" not in rendered(job).pods["worker-0"]["metadata"]["labels"]

    def test_no_group_is_named_that_does_not_exist(self) -> None:
        found = self.gang()
        assert all(thing["kind"] != "PodGroup" for thing in found.objects())
        assert 'pod-group"' not in json.dumps(found.pods)
        assert "scheduling.k8s.io" not in json.dumps(found.pods)

    def test_volcano_has_a_group_and_its_annotation(self) -> None:
        found = self.gang(pod_groups="volcano", cluster_scheduler="volcano")
        group, pod = found.shared[-1], found.pods["worker-2"]
        assert (group["apiVersion"], group["kind"]) == ("scheduling.volcano.sh/v1beta1", "PodGroup")
        assert group["spec"] == {"minMember": 3, "queue": "research"}
        assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == group["metadata"]["name"]
        assert pod["spec"]["schedulerName"] == "volcano"

    def test_coscheduling_has_a_group_and_its_label(self) -> None:
        found = self.gang(pod_groups="coscheduling")
        group, pod = found.shared[-1], found.pods["worker-2"]
        assert (group["apiVersion"], group["spec"]) == ("scheduling.x-k8s.io/v1alpha1", {"minMember": 3})
        assert pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == group["metadata"]["name"]
        assert "schedulerName" not in pod["spec"]

    def test_what_weft_places_has_none_of_this(self) -> None:
        job = assigned(queue="research", roles={"worker": {"replicas": 2}})
        found = rendered(job, settings=replace(SETTINGS, pod_groups="volcano"))
        pod = found.pods["worker-0"]
        assert pod["spec"]["schedulerName"] == "weft"
        assert "affinity" not in pod["spec"]
        assert "kueue" not in json.dumps(found.pods)
        assert all(thing["kind"] != "PodGroup" for thing in found.objects())


class TestDryRun:
    def test_what_is_made_later_is_a_sentence(self) -> None:
        job = a_complete_job("demo", code={"git": "https://example.com/x", "commit": "abcdef0"})
        found = objects_of("demo", job.spec, SETTINGS)
        assert [thing["kind"] for thing in found] == ["ConfigMap", "Secret", "NetworkPolicy", "Pod"]
        assert found[1]["stringData"]["token"] == LATER
        assert told(found[-1])["pushes"] == ["code"]

    def test_a_dataset_of_which_the_version_is_not_known_yet_is_shown_as_the_newest(self) -> None:
        found = objects_of("demo", a_complete_job("demo", datasets=[{"name": "faces"}]).spec, SETTINGS)
        assert found[1]["stringData"] == {"token": LATER, "data": LATER}
        mounts = container(found[-1], "task")["volumeMounts"]
        assert {
            "name": "weft-data",
            "mountPath": "/weft/data/faces",
            "readOnly": True,
            "subPath": "cache/trees/the-newest",
        } in mounts

    def test_an_elastic_job_is_shown_at_the_size_it_asks_for(self) -> None:
        job = a_complete_job("demo", roles={"worker": {"replicas": 2, "minReplicas": 1, "maxReplicas": 4}})
        found = objects_of("demo", job.spec, SETTINGS)
        assert [thing["kind"] for thing in found].count("Pod") == 2
        assert variables(found[-1])["WORLD_SIZE"] == "2"

    def test_what_no_cluster_can_run_is_refused(self) -> None:
        job = a_complete_job("demo", roles={"worker": {"resources": {"gpu": 0.5}}})
        with pytest.raises(Permanent, match=r"0\.5 of a GPU cannot be had"):
            objects_of("demo", job.spec, SETTINGS)


def test_the_job_in_the_owner_can_be_read_back() -> None:
    spec = STORIES["patched"]
    job = assigned(**spec)
    written = yaml.safe_load(rendered(job).owner["data"]["job.yaml"])
    again = a_complete_job(**written["spec"])
    assert again.spec == job.spec
