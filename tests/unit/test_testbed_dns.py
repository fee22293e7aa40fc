"""The testbed's DNS answers for pods of headless services, and for nothing else."""

from __future__ import annotations

import socket
import struct
import sys
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from testbed.dns import Names, answer

NAME = "worker-0.job.default.svc.cluster.local"


def pod(
    address: str | None = "10.0.0.7", phase: str = "Running", uid: str = "u", **spec: Any
) -> dict[str, Any]:
    status = {"phase": phase} | ({"podIP": address} if address else {})
    metadata = {"uid": uid, "namespace": "default"}
    return {
        "metadata": metadata,
        "spec": {"hostname": "worker-0", "subdomain": "job", **spec},
        "status": status,
    }


def question(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return struct.pack("!HHHHHH", 4711, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


def asked(names: Names, name: str, kind: int = 1) -> tuple[int, list[str]]:
    reply = answer(question(name, kind), names)
    assert reply is not None
    number, flags, _, count = struct.unpack("!HHHH", reply[:8])
    assert number == 4711
    return flags & 0xF, [socket.inet_ntoa(reply[len(reply) - 16 * n - 4 :][:4]) for n in range(count)]


def test_a_pod_has_a_name_while_it_has_an_address() -> None:
    names = Names()
    names.consider(pod(address=None))
    assert asked(names, NAME) == (3, [])
    names.consider(pod())
    assert asked(names, NAME) == (0, ["10.0.0.7"])
    assert asked(names, NAME.upper()) == (0, ["10.0.0.7"])
    assert asked(names, NAME, kind=28) == (0, []), "there is such a name, without an IPv6 address"
    names.consider(pod(phase="Succeeded"))
    assert asked(names, NAME) == (3, [])


def test_a_pod_that_took_anothers_name_keeps_it_when_that_one_goes() -> None:
    names = Names()
    names.consider(pod(uid="old"))
    names.consider(pod(uid="new", address="10.0.0.8"))
    names.consider(pod(uid="old"), gone=True)
    assert asked(names, NAME) == (0, ["10.0.0.8"])


def test_pods_without_a_subdomain_have_none() -> None:
    names = Names()
    names.consider(pod(subdomain=None))
    assert asked(names, NAME) == (3, [])


@given(st.binary(max_size=80))
def test_any_packet_is_answered_or_not_but_never_fatal(packet: bytes) -> None:
    reply = answer(packet, Names())
    assert reply is None or reply[:2] == packet[:2]
