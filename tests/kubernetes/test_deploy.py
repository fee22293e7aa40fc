"""What `kubectl apply -k deploy/` installs, on a real API server: it is taken, and may do what it needs and no more."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.chart import rendered

from .conftest import WEFT_IMAGE, lacking

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
WITHIN = "--namespace=weft-system"
ACCOUNT = "system:serviceaccount:weft-system:weft"
GROUPS = ["system:serviceaccounts", "system:serviceaccounts:weft-system", "system:authenticated"]
OURS = ("trainingjobs", "jobtypes", "queues", "sizes")
EVERYWHERE = {
    "nodes": "list watch",
    "pods": "get list watch create delete",
    "pods/binding": "create",
    "pods/proxy": "get create update",
    "events": "list watch create",
    "configmaps": "get list create delete",
    "secrets": "create",
    "services": "create",
    "networkpolicies.networking.k8s.io": "create",
    "trainingjobs.weft.dev": "list watch create patch delete",
    **{f"{name}.weft.dev": "list watch patch delete" for name in OURS[1:]},
    **{f"{name}.weft.dev/status": "patch" for name in OURS},
}
"""What the control plane calls."""
NEVER = [
    "get secrets", "list secrets", "watch secrets", "update secrets", "delete secrets", "create clusterroles.rbac.authorization.k8s.io",
    "create clusterrolebindings.rbac.authorization.k8s.io", "create roles.rbac.authorization.k8s.io",
    "create rolebindings.rbac.authorization.k8s.io", "delete nodes", "update nodes", "patch nodes", "create pods/exec",
    "create pods/attach", "create pods/portforward", "get pods/log", "update pods", "patch pods", "deletecollection pods",
    "create pods/eviction", "create nodes/proxy", "get nodes/proxy", "impersonate users", "impersonate serviceaccounts",
    "create serviceaccounts", "create serviceaccounts/token", "create namespaces", "delete namespaces",
    "create deployments.apps", "create daemonsets.apps", "create persistentvolumes", "get persistentvolumeclaims", "update configmaps", "delete persistentvolumeclaims", "list services",
    "update customresourcedefinitions.apiextensions.k8s.io", "delete customresourcedefinitions.apiextensions.k8s.io",
    "create mutatingwebhookconfigurations.admissionregistration.k8s.io", "delete events",
    "get leases.coordination.k8s.io", "create leases.coordination.k8s.io", "update leases.coordination.k8s.io",
]  # fmt: skip


@pytest.fixture(scope="module")
def taken_away() -> Iterator[list[Any]]:
    made: list[Any] = []
    yield made
    for kubectl in made:
        own = [
            item for item in _built(kubectl) if item["kind"] != "CustomResourceDefinition"
        ]  # others use them
        kubectl("delete", "-f", "-", WITHIN, "--ignore-not-found", "--timeout=50s", told=as_list(own))


@pytest.fixture
def applied(kubectl: Any, taken_away: list[Any]) -> Any:
    """Everything but the deployment's pods: their image and their volume are not the test's business."""
    if taken_away:
        return kubectl
    if "weft-system" in kubectl("get", "namespaces", "-o", "name"):
        lacking("Weft is installed on this cluster, and the tests would take it away")
    taken_away.append(kubectl)
    objects = _built(kubectl)
    for item in objects:
        if item["kind"] == "Deployment":
            item["spec"]["replicas"] = 0
    kubectl("apply", "-f", "-", WITHIN, told=as_list(objects))
    return kubectl


def _built(kubectl: Any) -> list[dict[str, Any]]:
    """What `kubectl apply -k` sends, with the disruption budget that the server knows."""
    return for_this_server(kubectl, yaml.safe_load_all(kubectl("kustomize", str(DEPLOY))))


def for_this_server(kubectl: Any, made: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the page tells for what is older than 1.21."""
    objects = list(made)
    minor = json.loads(kubectl("version", "-o", "json"))["serverVersion"]["minor"]
    for item in objects:
        if item["kind"] == "PodDisruptionBudget" and int(minor.rstrip("+")) < 21:
            item["apiVersion"] = "policy/v1beta1"
    return objects


def as_list(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": objects}


def _may(kubectl: Any, verb: str, resource: str, namespace: str = "") -> bool:
    """As the API server's own review says; asked without kubectl's looking up of names."""
    plural, _, sub = resource.partition("/")
    name, _, group = plural.partition(".")
    asked: dict[str, str] = {"verb": verb, "resource": name, "group": group, "subresource": sub}
    asked["namespace"] = namespace
    if resource.startswith("leases") and namespace:
        asked["name"] = "weft"
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": ACCOUNT, "groups": GROUPS, "resourceAttributes": asked},
    }
    status = json.loads(kubectl("create", "-o", "json", "-f", "-", told=review))["status"]
    return bool(status["allowed"])


def test_kustomize_makes_what_the_chart_makes(kubectl: Any) -> None:
    plain = {
        (item["kind"], item["metadata"]["name"]): item
        for item in yaml.safe_load_all(kubectl("kustomize", str(DEPLOY)))
        if item["kind"] != "CustomResourceDefinition"
    }
    chart = rendered(DEPLOY / "chart", "weft-system", namespace={"create": True})
    assert {(item["kind"], item["metadata"]["name"]): item for item in chart} == plain


def test_the_server_takes_all_of_it(applied: Any) -> None:
    assert (
        applied.get(WITHIN, "deployment", "weft")["spec"]["template"]["spec"]["serviceAccountName"] == "weft"
    )
    for kind in (
        "service",
        "persistentvolumeclaim",
        "poddisruptionbudget",
        "serviceaccount",
        "role",
        "rolebinding",
    ):
        assert applied.get(WITHIN, kind, "weft")["metadata"]["namespace"] == "weft-system"


def test_the_server_would_take_it_as_it_is_again(applied: Any) -> None:
    """With its two replicas, by a dry run on the server: no pod is made."""
    said = applied("apply", "--dry-run=server", "-f", "-", WITHIN, told=as_list(_built(applied)))
    assert "deployment.apps/weft configured (server dry run)" in said
    assert all(line.endswith("(server dry run)") for line in said.splitlines())


def test_it_would_make_pods_that_the_server_takes(applied: Any) -> None:
    """A deployment's pods are judged when they are made: with the account, as restricted as they are."""
    [deployment] = [item for item in _built(applied) if item["kind"] == "Deployment"]
    pod = {**deployment["spec"]["template"], "apiVersion": "v1", "kind": "Pod"}
    pod["metadata"] = {**pod["metadata"], "name": "weft-try", "namespace": "weft-system"}
    pod["spec"]["containers"][0]["image"] = WEFT_IMAGE
    applied("create", "--dry-run=server", "-f", "-", WITHIN, told=pod)


@pytest.mark.parametrize("resource", EVERYWHERE)
def test_it_may_do_what_it_needs_in_all_namespaces(applied: Any, resource: str) -> None:
    verbs = EVERYWHERE[resource].split()
    assert [verb for verb in verbs if not _may(applied, verb, resource)] == []


def test_it_may_do_nothing_else(applied: Any) -> None:
    asked = [told.split() for told in NEVER]
    assert [f"{verb} {resource}" for verb, resource in asked if _may(applied, verb, resource)] == []


def test_it_may_lead_in_its_own_namespace_alone(applied: Any) -> None:
    verbs = ["get", "create", "update"]
    lease = "leases.coordination.k8s.io"
    assert [verb for verb in verbs if not _may(applied, verb, lease, "weft-system")] == []
    assert [verb for verb in verbs if _may(applied, verb, lease, "kube-system")] == []


def test_kubectl_says_the_same(applied: Any) -> None:
    """The command that the page's reader would use."""
    asked = ("--all-namespaces", f"--as={ACCOUNT}")
    assert applied("auth", "can-i", "create", "pods", "--subresource=binding", *asked).strip() == "yes"
    assert applied("auth", "can-i", "get", "secrets", *asked, check=False).strip() == "no"
