"""etcd, the API server and its controllers, all on loopback and with TLS."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from . import certificates, service
from .api import Api, ApiError, kubeconfig
from .processes import Process, Record, refuse_ended, start
from .telling import step, until

PATIENCE = 60.0
PORTS = ["etcd", "etcd-peer", "apiserver", "kubelet"]
INSTALLED = "system:serviceaccount:weft-system:weft"
"""The account of a control plane in the cluster: what it asks for is written down, and whether it may."""
GRACE = 60
"""A node whose lease is older, in seconds, is NotReady; simulated nodes renew three times as often."""


def bring_up(record: Record, binaries: Path, debian: Path, with_scheduler: bool) -> Api:
    """Ready when the API server is and a pod can be made in the default namespace."""
    with step("starting etcd, kube-apiserver, kube-controller-manager"):
        record.ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        keys = record.folder / "keys"
        tokens = certificates.make(keys)
        server = f"https://127.0.0.1:{record.ports['apiserver']}"
        authority = (keys / "ca.crt").read_bytes()
        for user, token in tokens.items():
            written = keys / f"{user}.kubeconfig"
            written.write_text(kubeconfig(server, authority, token))
            written.chmod(0o600)
        api = Api.of(keys / "admin.kubeconfig")
        (record.folder / "audit.json").write_text(audit_policy())
        start(record, "etcd", etcd(record, debian / "usr" / "bin" / "etcd"))
        apiserver = start(record, "kube-apiserver", api_server(record, binaries / "kube-apiserver"))
        _await(record, apiserver, api)
        start(record, "kube-controller-manager", controllers(record, binaries / "kube-controller-manager"))
        if with_scheduler:
            start(record, "kube-scheduler", scheduler(record, binaries / "kube-scheduler"))
        if not until(lambda: _account_there(api), PATIENCE):
            refuse_ended(record, record.processes[-1], "waiting for the default service account")
        (record.folder / "kubeconfig").write_text((keys / "admin.kubeconfig").read_text())
        (record.folder / "kubeconfig").chmod(0o600)
    return api


def _await(record: Record, apiserver: Process, api: Api) -> None:
    if not until(api.healthy, PATIENCE):
        refuse_ended(record, apiserver, f"waiting {PATIENCE:.0f} s for /readyz")


def _account_there(api: Api) -> bool:
    """Pods are refused until the controllers have made the namespace's service account and its token."""
    try:
        account = api.get("/api/v1/namespaces/default/serviceaccounts/default")
    except ApiError:
        return False
    return bool(account.get("secrets"))


def free_ports(count: int) -> list[int]:
    """Held all at once, so that none is given twice."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def etcd(record: Record, program: Path) -> list[str]:
    client, peer = (f"https://127.0.0.1:{record.ports[name]}" for name in ("etcd", "etcd-peer"))
    keys = record.folder / "keys"
    flags = {
        "name": "testbed",
        "data-dir": record.folder / "etcd",
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"testbed={peer}",
        "logger": "zap",
        "log-level": "warn",
        "quota-backend-bytes": 8
        << 30,  # the default, 2 GiB, is written in minutes by who measures with thousands of pods
        "client-cert-auth": "true",  # whoever writes into etcd is root on the real node
        "cert-file": keys / "leaf.crt",
        "key-file": keys / "leaf.key",
        "trusted-ca-file": keys / "ca.crt",
        "peer-client-cert-auth": "true",
        "peer-cert-file": keys / "leaf.crt",
        "peer-key-file": keys / "leaf.key",
        "peer-trusted-ca-file": keys / "ca.crt",
    }
    return command(program, flags)


def api_server(record: Record, program: Path) -> list[str]:
    keys = record.folder / "keys"
    flags = {
        "etcd-servers": f"https://127.0.0.1:{record.ports['etcd']}",
        "etcd-cafile": keys / "ca.crt",
        "etcd-certfile": keys / "leaf.crt",
        "etcd-keyfile": keys / "leaf.key",
        "bind-address": "127.0.0.1",
        "advertise-address": "127.0.0.1",
        "secure-port": record.ports["apiserver"],
        "endpoint-reconciler-type": "none",  # an endpoint may not be on loopback
        "cert-dir": keys,
        "tls-cert-file": keys / "leaf.crt",
        "tls-private-key-file": keys / "leaf.key",
        "token-auth-file": keys / "tokens.csv",
        "authorization-mode": "Node,RBAC",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": keys / "accounts.pub",
        "service-account-signing-key-file": keys / "accounts.key",
        "service-cluster-ip-range": service.RANGE,
        "audit-policy-file": record.folder / "audit.json",
        "audit-log-path": record.folder / "audit.log",
        "kubelet-preferred-address-types": "InternalIP",  # by default it asks DNS for the node's name
        "kubelet-certificate-authority": keys / "ca.crt",
        "kubelet-client-certificate": keys / "leaf.crt",
        "kubelet-client-key": keys / "leaf.key",
        "allow-privileged": "true",
        "profiling": "false",
    }
    return command(program, flags)


def audit_policy() -> str:
    rules = [{"level": "Metadata", "users": [INSTALLED]}, {"level": "None"}]
    told = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": rules,
    }
    return json.dumps(told)


def controllers(record: Record, program: Path) -> list[str]:
    keys = record.folder / "keys"
    flags = {
        "kubeconfig": keys / "controller-manager.kubeconfig",
        "service-account-private-key-file": keys / "accounts.key",
        "root-ca-file": keys / "ca.crt",
        "use-service-account-credentials": "true",
        "leader-elect": "false",
        "node-monitor-grace-period": f"{GRACE}s",
        "kube-api-qps": 500,  # with the default, 20, it takes a minute until 300 new nodes are free of taints
        "kube-api-burst": 1000,
        "port": 0,
        "secure-port": 0,
    }
    return command(program, flags)


def scheduler(record: Record, program: Path) -> list[str]:
    flags = {
        "kubeconfig": record.folder / "keys" / "scheduler.kubeconfig",
        "leader-elect": "false",
        "kube-api-qps": 5000,  # with the default, 50, it binds no more than that a second
        "kube-api-burst": 5000,
        "port": 0,
        "secure-port": 0,
    }
    return command(program, flags)


def command(program: Path, flags: dict[str, object]) -> list[str]:
    return [str(program), *(f"--{name}={value}" for name, value in flags.items())]
