"""What is installed on a cluster: kustomize and the chart say the same, and the page says what is allowed and why."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from tests.support.chart import helm, rendered

from weft.backends.kubernetes.datanodes import PEER_PORT, PORT
from weft.backends.kubernetes.names import DATA_AGENTS
from weft.backends.kubernetes.settings import Settings
from weft.data.agent.__main__ import options
from weft.model.podpatch import DATA
from weft.version import __version__

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "chart"
PAGE = ROOT / "docs" / "kubernetes-install.md"
Objects = dict[tuple[str, str], dict[str, Any]]


def by_name(objects: list[dict[str, Any]]) -> Objects:
    return {(item["kind"], item["metadata"]["name"]): item for item in objects}


def kustomized() -> Objects:
    """As `kubectl kustomize` would, for what our file asks of it."""
    told = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())
    assert told.keys() == {"apiVersion", "kind", "namespace", "resources", "images"}
    texts = [(DEPLOY / name).read_text() for name in told["resources"]]
    objects = by_name([item for text in texts for item in yaml.safe_load_all(text)])
    [image] = told["images"]
    [container] = pod(objects)["containers"]
    assert container["image"] == image["name"]
    container["image"] = f"{image.get('newName', image['name'])}:{image['newTag']}"
    return objects


def pod(objects: Objects) -> dict[str, Any]:
    spec: dict[str, Any] = objects["Deployment", "weft"]["spec"]["template"]["spec"]
    return spec


def test_the_chart_and_kustomize_agree_object_by_object() -> None:
    plain = {key: item for key, item in kustomized().items() if key[0] != "CustomResourceDefinition"}
    chart = by_name(rendered(CHART, "weft-system", namespace={"create": True}))
    assert chart.keys() == plain.keys()
    for key, item in plain.items():
        assert chart[key] == item, key


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


def test_by_default_helm_makes_the_namespace() -> None:
    made = by_name(rendered(CHART, "weft-system"))
    whole = by_name(rendered(CHART, "weft-system", namespace={"create": True}))
    assert whole.keys() - made.keys() == {("Namespace", "weft-system")}


def test_the_chart_installs_the_same_custom_resources() -> None:
    """Helm takes all that is in its folder; kustomize what it is told."""
    names = {f"chart/crds/{path.name}" for path in (CHART / "crds").iterdir()}
    told = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["resources"]
    assert names == {name for name in told if "crds/" in name}


def test_the_chart_does_as_its_values_say() -> None:
    made = by_name(
        rendered(
            CHART,
            "elsewhere",
            image={"repository": "registry/weft", "tag": "7"},
            replicas=1,
            storage={"className": "fast", "accessMode": "ReadWriteOnce", "size": "1Gi"},
            tolerations=[{"key": "a", "operator": "Exists"}],
            disruption={"apiVersion": "policy/v1beta1"},
            pullSecrets=[{"name": "mine"}],
        )
    )
    claim = made["PersistentVolumeClaim", "weft"]["spec"]
    assert (claim["storageClassName"], claim["accessModes"]) == ("fast", ["ReadWriteOnce"])
    assert made["Deployment", "weft"]["spec"]["replicas"] == 1
    assert pod(made)["containers"][0]["image"] == "registry/weft:7"
    assert pod(made)["tolerations"] == [{"key": "a", "operator": "Exists"}]
    assert pod(made)["imagePullSecrets"] == [{"name": "mine"}]
    assert made["PodDisruptionBudget", "weft"]["apiVersion"] == "policy/v1beta1"
    assert "weft-system" not in str(made)


def test_the_chart_has_the_groups_of_another_scheduler_made_only_where_that_is_asked_for() -> None:
    asked = {"podGroups": "volcano", "clusterScheduler": "volcano"}
    plain = by_name(rendered(CHART, "weft-system"))
    made = by_name(rendered(CHART, "weft-system", scheduling=asked))
    [before], [after] = (pod(each)["containers"] for each in (plain, made))
    assert after["args"] == [*before["args"], "--cluster-scheduler=volcano", "--pod-groups=volcano"]
    [more] = [
        r for r in made["ClusterRole", "weft"]["rules"] if r not in plain["ClusterRole", "weft"]["rules"]
    ]
    assert (more["resources"], more["verbs"]) == (["podgroups"], ["create"])


def test_nothing_says_another_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert {chart["version"], chart["appVersion"], values["image"]["tag"]} == {__version__}
    assert pod(kustomized())["containers"][0]["image"] == f"weft:{__version__}"


def test_the_pod_is_a_restricted_one() -> None:
    """As the Pod Security Standards of Kubernetes say."""
    spec = pod(kustomized())
    [container] = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    assert all(volume.keys() <= {"name", "persistentVolumeClaim", "emptyDir"} for volume in spec["volumes"])
    assert set(container["resources"]) == {"requests", "limits"}
    assert {"livenessProbe", "readinessProbe", "startupProbe"} <= container.keys()


def test_one_of_two_may_be_taken_at_a_time() -> None:
    made = kustomized()
    assert made["Deployment", "weft"]["spec"]["replicas"] == 2
    assert made["PodDisruptionBudget", "weft"]["spec"]["minAvailable"] == 1


def test_no_secret_is_installed() -> None:
    assert not [key for key in kustomized() if key[0] == "Secret"]


class TestWhatIsAllowed:
    def rules(self) -> dict[str, set[str]]:
        made = kustomized()
        found: dict[str, set[str]] = {}
        for kind in ("ClusterRole", "Role"):
            for rule in made[kind, "weft"]["rules"]:
                for resource in rule["resources"]:
                    found.setdefault(resource, set()).update(rule["verbs"])
        return found

    def test_the_page_tells_all_of_it_and_nothing_more(self) -> None:
        told: dict[str, set[str]] = {}
        for resources, verbs in re.findall(
            r"^\| (`[^|]+) \| ([a-z, ]+) \| [^|]+ \|$", PAGE.read_text(), re.MULTILINE
        ):
            for resource in re.findall(r"`([a-z/]+)`", resources):
                told[resource] = set(verbs.split(", "))
        assert told == self.rules()

    def test_nothing_is_a_wildcard(self) -> None:
        assert "*" not in str([item.get("rules") for item in kustomized().values()])

    def test_secrets_are_made_and_never_read(self) -> None:
        assert self.rules()["secrets"] == {"create"}

    def test_leases_only_in_its_own_namespace(self) -> None:
        assert "leases" not in str(kustomized()["ClusterRole", "weft"])


# ── datasets: deploy/data, and the chart with data.enabled ──


def data_objects() -> list[dict[str, Any]]:
    told = yaml.safe_load((DEPLOY / "data" / "kustomization.yaml").read_text())
    assert told.keys() == {"apiVersion", "kind", "resources", "images"}
    texts = [(DEPLOY / "data" / name).read_text() for name in told["resources"]]
    found = [item for text in texts for item in yaml.safe_load_all(text)]
    [image] = told["images"]
    for item in found:
        for container in containers(item):
            assert container["image"] == image["name"]
            container["image"] = f"{image['name']}:{image['newTag']}"
    return found


def containers(item: dict[str, Any]) -> list[dict[str, Any]]:
    if item["kind"] != "DaemonSet":
        return []
    spec = item["spec"]["template"]["spec"]
    return [*spec["initContainers"], *spec["containers"]]


def placed(objects: list[dict[str, Any]]) -> dict[tuple[str, str, str], dict[str, Any]]:
    return {
        (item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]): item
        for item in objects
    }


def test_the_data_agents_of_the_chart_are_those_of_kustomize() -> None:
    without = placed(rendered(CHART, "weft-system"))
    chart = placed(rendered(CHART, "weft-system", data={"enabled": True}))
    plain = placed(data_objects())
    assert chart.keys() - without.keys() == plain.keys()
    for key, item in plain.items():
        assert chart[key] == item, key


def test_a_data_agent_is_as_confined_as_one_can_be_that_has_a_folder_of_its_node() -> None:
    (agents,) = (item for item in data_objects() if item["kind"] == "DaemonSet")
    spec = agents["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & spec.keys()
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert [volume for volume in spec["volumes"] if "hostPath" in volume] == [
        {"name": "data", "hostPath": {"path": "/var/lib/weft-data", "type": "DirectoryOrCreate"}}
    ]
    own, agent = containers(agents)
    for container in (own, agent):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert "add" not in agent["securityContext"]["capabilities"]
    assert own["securityContext"]["capabilities"]["add"] == ["CHOWN"]
    assert own["command"][-1].endswith("mkdir -p /data/door && chown 8470:8470 /data/door /data")
    assert spec["securityContext"]["runAsUser"] != Settings().run_as, "jobs could change what it keeps"


def test_the_agents_of_the_data_are_where_the_control_plane_looks() -> None:
    found = placed(data_objects())
    where = Settings(namespace="weft-system").data_namespace
    labels = found["DaemonSet", where, "weft-data"]["spec"]["template"]["metadata"]["labels"]
    assert DATA_AGENTS.items() <= labels.items()
    assert (
        found["PersistentVolumeClaim", "weft-system", DATA]["spec"]["volumeName"] == "weft-data-weft-system"
    )
    (agents,) = (item for key, item in found.items() if key[0] == "DaemonSet")
    chosen = options([word.replace("$(NODE)", "n") for word in containers(agents)[1]["args"]])
    assert chosen.engine_listen == f":{PORT}"
    assert chosen.peer_listen == f":{PEER_PORT}"
    assert chosen.quota == 200 << 30
    assert chosen.reserve(1000) == 200
