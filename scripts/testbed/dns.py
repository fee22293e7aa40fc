"""Names of pods: what a cluster's DNS answers for a headless service, and nothing else.

python -m testbed.dns KUBECONFIG ADDRESS    (started by `up`; runs until it is ended)

A pod with a hostname and a subdomain is `HOSTNAME.SUBDOMAIN.NAMESPACE.svc.cluster.local` as soon as it has an address.
"""

from __future__ import annotations

import http.client
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from .api import Api, ApiError

DOMAIN = "cluster.local"
A, IN = 1, 1
NO_SUCH_NAME, NO_ERROR = 3, 0
TTL = 1


def name_of(pod: dict[str, Any]) -> str | None:
    spec = pod["spec"]
    if not spec.get("hostname") or not spec.get("subdomain"):
        return None
    return f"{spec['hostname']}.{spec['subdomain']}.{pod['metadata']['namespace']}.svc.{DOMAIN}".lower()


class Names:
    """Addresses by name, as the API server tells them."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, str]] = {}

    def consider(self, pod: dict[str, Any], gone: bool = False) -> None:
        name, uid = name_of(pod), pod["metadata"]["uid"]
        if name is None:
            return
        address = pod.get("status", {}).get("podIP")
        over = gone or pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        held = self._of.setdefault(name, {})
        if over or not address:
            held.pop(uid, None)
        else:
            held[uid] = address
        if not held:
            del self._of[name]

    def addresses(self, name: str) -> list[str]:
        return list(self._of.get(name.lower(), {}).values())


def answer(question: bytes, names: Names) -> bytes | None:
    """The reply to one packet; None if it is no question that can be answered."""
    if len(question) < 17:
        return None
    number, flags, count = struct.unpack("!HHH", question[:6])
    if flags & 0x8000 or count != 1:
        return None
    labels, at = [], 12
    while at < len(question) and (length := question[at]):
        labels.append(question[at + 1 : at + 1 + length].decode("ascii", "replace"))
        at += 1 + length
    asked = question[12 : at + 5]
    if len(asked) < 5:
        return None
    kind, family = struct.unpack("!HH", asked[-4:])
    found = names.addresses(".".join(labels))
    told = found if (kind, family) == (A, IN) else []
    code = NO_ERROR if found else NO_SUCH_NAME
    header = struct.pack("!HHHHHH", number, 0x8400 | (flags & 0x0100) | 0x80 | code, 1, len(told), 0, 0)
    records = b"".join(struct.pack("!HHHIH", 0xC00C, A, IN, TTL, 4) + socket.inet_aton(each) for each in told)
    return header + asked + records


def follow(api: Api, names: Names) -> None:
    while True:
        try:
            listed = api.get("/api/v1/pods?resourceVersion=0")
            for pod in listed["items"]:
                names.consider(pod)
            for event in api.watch("/api/v1/pods", listed["metadata"]["resourceVersion"]):
                if event["type"] == "ERROR":
                    break
                if event["type"] != "BOOKMARK":
                    names.consider(event["object"], gone=event["type"] == "DELETED")
        except (OSError, http.client.HTTPException, ApiError, ValueError) as problem:
            print(f"watching pods: {problem}; again in 1 s", flush=True)
            time.sleep(1)


def main() -> int:
    kubeconfig, address = sys.argv[1:]
    names = Names()
    threading.Thread(target=follow, args=(Api.of(Path(kubeconfig)), names), daemon=True).start()
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.bind((address, 53))
    print(f"answering on {address}", flush=True)
    while True:
        question, sender = listener.recvfrom(512)
        if (reply := answer(question, names)) is not None:
            listener.sendto(reply, sender)


if __name__ == "__main__":
    sys.exit(main())
