"""Keys of one testbed: its own authority, one certificate for servers and clients on loopback, and tokens."""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path

from . import service

OPENSSL = f"""\
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[leaf]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature, keyEncipherment
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = IP:127.0.0.1, IP:{service.ADDRESS}, DNS:localhost, DNS:kubernetes.default.svc, DNS:kubernetes
"""
CURVE = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
USERS = {
    "admin": ("testbed-admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "kubelet": ("system:node:real-0", "system:nodes"),
}
"""Who has a token: the name and the group that RBAC knows."""


def make(folder: Path) -> dict[str, str]:
    """Writes the keys; returns the token of each user."""
    folder.mkdir(parents=True)
    folder.chmod(0o700)
    (folder / "openssl.cnf").write_text(OPENSSL)
    config = ["-config", "openssl.cnf"]
    days = ["-days", "3650"]
    authority = ["-x509", *CURVE, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=weft-testbed"]
    _openssl(folder, "req", *authority, *days, *config, "-extensions", "authority")
    _openssl(folder, "req", "-new", *CURVE, "-keyout", "leaf.key", "-out", "leaf.csr", "-subj", "/CN=weft-testbed-leaf", *config)  # fmt: skip
    signing = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"]
    signing += ["-extfile", "openssl.cnf", "-extensions", "leaf"]
    _openssl(folder, "x509", "-req", "-in", "leaf.csr", "-out", "leaf.crt", *days, *signing)
    _openssl(folder, "genrsa", "-out", "accounts.key", "2048")
    _openssl(folder, "rsa", "-in", "accounts.key", "-pubout", "-out", "accounts.pub")
    tokens = {user: secrets.token_hex(16) for user in USERS}
    (folder / "tokens.csv").write_text(token_file(tokens))
    return tokens


def token_file(tokens: dict[str, str]) -> str:
    lines = []
    for user, token in tokens.items():
        name, group = USERS[user]
        lines.append(f"{token},{name},{user}" + (f",{group}" if group else ""))
    return "\n".join(lines) + "\n"


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
