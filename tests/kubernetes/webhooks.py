"""A webhook of the API server, for what somebody else in a cluster may do between two requests of ours."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from testbed import places

from .conftest import Kubectl

Review = dict[str, Any]


def refused(why: str) -> Review:
    return {"allowed": False, "status": {"message": why, "code": 403}}


def patched(*changes: dict[str, Any]) -> Review:
    patch = base64.b64encode(json.dumps(changes).encode()).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": patch}


@contextmanager
def webhook(
    kubectl: Kubectl, resource: str, kind: str, decide: Callable[[dict[str, Any]], Review | None]
) -> Iterator[None]:
    """Asked before any such object is made in the test's namespace; None lets it be. `kind`: Validating or Mutating."""
    keys = places.state() / "keys"

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
            response = {"uid": asked["uid"], **(decide(asked) or {"allowed": True})}
            body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
            answer = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(keys / "leaf.crt", keys / "leaf.key")
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    name = kubectl.namespace
    kubectl("label", "namespace", name, f"webhook={name}")
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": "test.weft.dev",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "namespaceSelector": {"matchLabels": {"webhook": name}},
                "rules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": [resource],
                    }
                ],
                "clientConfig": {
                    "url": f"https://127.0.0.1:{server.server_port}/",
                    "caBundle": base64.b64encode((keys / "ca.crt").read_bytes()).decode(),
                },
            }
        ],
    }
    kubectl.create(configuration)
    try:
        yield
    finally:
        kubectl("delete", f"{kind}WebhookConfiguration", name)
        server.shutdown()
        server.server_close()
