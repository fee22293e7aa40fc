"""The chart on a real cluster, with PostgreSQL: Helm installs it, it runs jobs of kubectl, and Helm takes it away."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import sh, until
from testbed.node import GATEWAY
from tests.support.chart import helm
from tests.support.postgres import PASSWORD, Postgres, postgres

from .conftest import WEFT_IMAGE
from .test_deploy import DEPLOY
from .test_installed import persistent, server_of
from .test_jobs import BUSYBOX, REAL, small

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("testbed_only", "kube_scheduler")]
OURS = ("-l", "app.kubernetes.io/name=weft", "-o", "name")
KINDS = "deployments,services,serviceaccounts,roles,rolebindings,poddisruptionbudgets,persistentvolumeclaims"


@pytest.fixture
def with_helm(kubeconfig: str, kubectl: Any, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Helm in the test's own namespace; what it installed is taken away."""
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o777)
    kubectl.create(persistent(volume, kubectl.namespace))
    own = {f"HELM_{name}_HOME": str(tmp_path / name) for name in ("CACHE", "CONFIG", "DATA")}
    where = ("--kubeconfig", kubeconfig, "--namespace", kubectl.namespace)

    def run(*words: str) -> str:
        return helm(*words, *where, **own)

    yield run
    if "weft" in run("list", "--short"):
        run("uninstall", "weft")
    kubectl("delete", "pods", "--all", "--grace-period=0", "--force")
    kubectl("delete", "persistentvolume", "weft-test", "--ignore-not-found", "--timeout=55s")


@pytest.fixture
def database(kubectl: Any) -> Iterator[Postgres]:
    """On an address of this machine that pods reach; the secret tells where."""
    with postgres(GATEWAY) as made:
        made.do(f"CREATE ROLE weft LOGIN PASSWORD '{PASSWORD}'", "CREATE DATABASE weft OWNER weft")
        url = f"url=postgresql://weft:{PASSWORD}@{GATEWAY}/weft"
        kubectl("create", "secret", "generic", "weft-database", f"--from-literal={url}")
        yield made


def jobs(database: Postgres) -> dict[str, str]:
    """Their states, as the database has them."""
    with database.connect("weft") as connection:
        return dict(
            connection.execute("select name, state from resources where kind = 'TrainingJob'").fetchall()
        )


def test_helm_installs_it_and_takes_it_away(
    database: Postgres, with_helm: Callable[..., str], kubectl: Any
) -> None:
    repository, _, tag = WEFT_IMAGE.rpartition(":")
    values = (f"image.repository={repository}", f"image.tag={tag}", "disruption.apiVersion=policy/v1beta1")
    chosen = ("--set", ",".join(values), "--wait", "--timeout", "100s")
    said = with_helm("install", "weft", str(DEPLOY / "chart"), *chosen)
    assert "STATUS: deployed" in said
    assert f"kubectl -n {kubectl.namespace} get lease weft" in said, "how to reach it"
    ready = lambda: kubectl.get("deployment", "weft")["status"].get("readyReplicas")  # noqa: E731
    until(lambda: ready() == 2, "both of its pods to be ready", every=0.2)
    leader = kubectl("get", "lease", "weft", "-o", "jsonpath={.spec.holderIdentity}")
    assert f"pod/{leader}" in kubectl("get", "pods", *OURS)
    spec = sh("echo hello", image=BUSYBOX, roles=small(), placement=REAL)["spec"]

    def completes(name: str) -> None:
        job = {"apiVersion": "weft.dev/v1", "kind": "TrainingJob", "metadata": {"name": name}, "spec": spec}
        kubectl("apply", "-f", "-", told=job)
        kubectl("wait", "--for=condition=Complete", f"tj/{name}", "--timeout=55s")

    completes("hello")
    assert jobs(database) == {"hello": "COMPLETED"}
    said = kubectl("logs", leader)
    process = server_of(kubectl.get("pod", leader)["metadata"]["uid"])
    kubectl("delete", "pod", leader, "--grace-period=0", "--force", "--wait=false")
    os.kill(process, signal.SIGKILL)
    completes("again")
    assert kubectl("get", "lease", "weft", "-o", "jsonpath={.spec.holderIdentity}") != leader
    assert jobs(database) == {"hello": "COMPLETED", "again": "COMPLETED"}
    assert PASSWORD not in said
    with_helm("uninstall", "weft", "--wait", "--timeout", "100s")
    until(lambda: kubectl("get", KINDS, *OURS) == "", "everything that it installed to go", every=0.2)
    assert kubectl("get", "clusterroles,clusterrolebindings", *OURS) == ""
    assert "hello" in kubectl("get", "tj"), "resources and jobs stay"
