"""The API server: plain documents in and out.

Addresses, certificates and credentials are lightkube's; documents stay dictionaries, since rendering makes them
and golden files show them, and since turning thousands of pods into objects would be most of what a watch costs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from pydantic_core import from_json, to_json

from weft.backends.kubernetes.connections import Answer, Connections, Reply, Unanswered

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")
Document = dict[str, Any]
GROUPS = {
    "Pod": "api/v1",
    "Node": "api/v1",
    "ConfigMap": "api/v1",
    "Secret": "api/v1",
    "Service": "api/v1",
    "Event": "api/v1",
    "Namespace": "api/v1",
    "NetworkPolicy": "apis/networking.k8s.io/v1",
    "Lease": "apis/coordination.k8s.io/v1",
    "CustomResourceDefinition": "apis/apiextensions.k8s.io/v1",
    "TrainingJob": "apis/weft.dev/v1",
    "JobType": "apis/weft.dev/v1",
    "Queue": "apis/weft.dev/v1",
    "Size": "apis/weft.dev/v1",
}
PLURALS = {"NetworkPolicy": "networkpolicies"}
CONNECTIONS = 64
"""Requests in flight; watches and what else lasts are not counted."""
PATIENCE = 30.0
UNKNOWN = 401
MERGE = "application/merge-patch+json"
LONGEST_PAUSE = 5.0
log = logging.getLogger("weft.kubernetes")


class ApiError(Exception):
    """The API server said no, or (status 0) nothing at all."""

    def __init__(self, status: int, message: str, reason: str = ""):
        super().__init__(message)
        self.status = status
        self.reason = reason

    @property
    def missing(self) -> bool:
        """There is no such object."""
        return self.status == 404

    @property
    def gone(self) -> bool:
        """The API server itself says that there is none; who answers through its proxy may miss something else."""
        return self.missing and self.reason == "NotFound"

    @property
    def passing(self) -> bool:
        """Worth trying again: nobody answered, or whoever did is not well."""
        return self.status in (0, 408, 429) or self.status >= 500


class Client:
    """One cluster."""

    def __init__(self, kubeconfig: str | None = None, context: str | None = None):
        from lightkube.config import client_adapter
        from lightkube.config.kubeconfig import KubeConfig

        found = KubeConfig.from_file(kubeconfig) if kubeconfig is not None else KubeConfig.from_env()
        config = found.get(context)
        if config is None:
            raise LookupError(f"there is no context {context} in the kubeconfig")
        self.server: str = config.cluster.server
        self.namespace: str = config.namespace or "default"
        params = client_adapter.ConnectionParams(trust_env=False).httpx_params(config)
        self._requests = Connections(self.server, params["verify"], CONNECTIONS, PATIENCE)
        self._auth: httpx2.Auth | None = params["auth"]
        self._authorization: str | None = None
        self.calls: dict[str, int] = {}
        """How many requests of each kind were made; LIST and WATCH are told from GET."""

    async def close(self) -> None:
        self._requests.close()

    # ── documents ──

    async def create(self, document: Document, namespace: str) -> Document:
        return await self._ask(
            "POST", path_of(document["kind"], namespace, group=group_of(document)), document
        )

    async def get(self, kind: str, name: str, namespace: str | None = None) -> Document:
        return await self._ask("GET", path_of(kind, namespace, name))

    async def replace(self, document: Document, namespace: str) -> Document:
        path = path_of(document["kind"], namespace, document["metadata"]["name"])
        return await self._ask("PUT", path, document)

    async def patch(
        self, kind: str, name: str, namespace: str | None, change: Document, part: str | None = None
    ) -> Document:
        """`part`: its status, which is changed by itself."""
        path = path_of(kind, namespace, name)
        return await self._ask("PATCH", f"{path}/{part}" if part else path, change, media=MERGE)

    async def delete(
        self, kind: str, name: str, namespace: str | None, grace: int | None = None, uid: str | None = None
    ) -> None:
        """Gone already is as good."""
        options: Document = {"propagationPolicy": "Background"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            await self._ask("DELETE", path_of(kind, namespace, name), options)
        except ApiError as problem:
            if not problem.missing and not (uid is not None and problem.status == 409):
                raise

    async def bind(self, pod: str, namespace: str, node: str) -> None:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._ask("POST", f"{path_of('Pod', namespace, pod)}/binding", binding)

    async def listing(
        self, kind: str, namespace: str | None = None, **selectors: str
    ) -> tuple[list[Document], str]:
        """All that there are, in pages, and the version from which a watch goes on."""
        found: list[Document] = []
        query = {**_query(selectors), "limit": "500"}
        while True:
            page = await self._ask("GET", path_of(kind, namespace), query=query)
            found += page["items"]
            following = page["metadata"].get("continue")
            if not following:
                return found, page["metadata"]["resourceVersion"]
            query["continue"] = following

    async def watch(
        self, kind: str, version: str, seconds: int, namespace: str | None = None, **selectors: str
    ) -> AsyncIterator[tuple[str, Document]]:
        """What happens after this version, for so many seconds; ERROR comes as an ApiError."""
        query = {
            **_query(selectors),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
        }
        async with self.stream("GET", path_of(kind, namespace), query, counted="WATCH") as reply:
            async for line in _lines(reply.chunks()):
                event = from_json(line)
                if event["type"] == "ERROR":
                    raise _refused(event["object"], event["object"].get("code", 500))
                yield event["type"], event["object"]

    # ── requests ──

    async def _ask(
        self,
        method: str,
        path: str,
        document: Document | None = None,
        query: Mapping[str, str] | None = None,
        media: str = "application/json",
    ) -> Document:
        self._count("LIST" if query else method, path)
        content = to_json(document) if document is not None else b""
        target = f"{path}?{urlencode(query)}" if query else path
        answer = await self._exchange(method, target, content, media)
        if answer.status == UNKNOWN and await self._renewed():
            answer = await self._exchange(method, target, content, media)
        if answer.status >= 400:
            raise _failed(answer.status, answer.body)
        try:
            result: Document = from_json(answer.body)
        except ValueError as problem:
            raise ApiError(0, f"{self.server} answers with something else than JSON: {problem}") from problem
        return result

    async def _exchange(self, method: str, target: str, content: bytes, media: str) -> Answer:
        headers = {"Accept": "application/json", "Content-Type": media, **await self._credentials()}
        with self._told():
            return await self._requests.ask(method, target, headers, content)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | AsyncIterator[bytes] = b"",
        size: int | None = None,
        counted: str | None = None,
    ) -> AsyncIterator[Reply]:
        """A request whose answer is read as it comes; used for watches, and through the proxy for agents. `size`: of what is
        sent piece by piece, and therefore once."""
        self._count(counted or method, path)
        target = f"{path}?{urlencode(query)}" if query else path
        for again in (True, False):
            known = {**(headers or {}), **await self._credentials()}
            with self._told():
                async with self._requests.stream(method, target, known, content, size) as reply:
                    if reply.status < 400:
                        yield reply
                        return
                    said = await reply.read()
            if not (
                again and reply.status == UNKNOWN and isinstance(content, bytes) and await self._renewed()
            ):
                raise _failed(reply.status, said)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What goes wrong on the way, as an ApiError."""
        try:
            yield
        except Unanswered as problem:
            raise ApiError(0, f"{self.server} does not answer: {problem}") from problem

    async def _credentials(self) -> dict[str, str]:
        if self._authorization is None:
            self._authorization = await self._authorize(None)
        return {"Authorization": self._authorization} if self._authorization else {}

    async def _renewed(self) -> bool:
        """Tokens are changed now and then."""
        if (renewed := await self._authorize(UNKNOWN)) is None:
            return False
        self._authorization = renewed
        return True

    async def _authorize(self, status: int | None) -> str | None:
        """As lightkube's credentials say; after an answer with this status, anew, if there is anything newer."""
        import httpx2

        if self._auth is None:
            return "" if status is None else None
        flow = self._auth.async_auth_flow(httpx2.Request("GET", self.server))
        try:
            request = await anext(flow)
            if status is not None:
                request = await flow.asend(httpx2.Response(status, request=request))
        except StopAsyncIteration:
            return None
        except Exception as problem:
            raise self._no_credentials(problem) from problem
        finally:
            await flow.aclose()
        return request.headers.get("Authorization", "")

    def _no_credentials(self, problem: Exception) -> ApiError:
        """The kubeconfig's program that makes them may fail in any way."""
        return ApiError(0, f"{self.server} cannot be asked: {_words(problem)}")

    def _count(self, verb: str, path: str) -> None:
        parts = path.split("/")
        what = "proxy" if "proxy" in parts else "binding" if parts[-1] == "binding" else _plural_in(parts)
        key = f"{verb} {what}"
        self.calls[key] = self.calls.get(key, 0) + 1


async def insist(call: Callable[..., Awaitable[T]], *arguments: Any, whatever: bool = False) -> T:
    """Again and again while nobody answers: an API server that is away comes back, and a job does not fail for it.
    `whatever`: also while it says no, where nothing else can be done."""
    pause = 0.1
    while True:
        try:
            return await call(*arguments)
        except ApiError as problem:
            if not (problem.passing or whatever):
                raise
            log.warning("%s; trying again", problem)
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def path_of(kind: str, namespace: str | None, name: str | None = None, group: str | None = None) -> str:
    plural = PLURALS.get(kind, f"{kind.lower()}s")
    where = f"/namespaces/{namespace}" if namespace is not None else ""
    return f"/{group or GROUPS[kind]}{where}/{plural}{f'/{name}' if name is not None else ''}"


def group_of(document: Document) -> str:
    """Where documents of its version are: there may be kinds of one name in several groups."""
    version: str = document["apiVersion"]
    return f"apis/{version}" if "/" in version else f"api/{version}"


def proxied(namespace: str, pod: str, port: int, path: str) -> str:
    """Where the API server passes a request on to a pod."""
    return f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy{path}"


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """By line feeds alone: what else Python takes for the end of a line may be within a text."""
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line


def _query(selectors: Mapping[str, str]) -> dict[str, str]:
    return {
        {"labels": "labelSelector", "fields": "fieldSelector"}[name]: text for name, text in selectors.items()
    }


def _plural_in(parts: list[str]) -> str:
    plurals = {PLURALS.get(kind, f"{kind.lower()}s") for kind in GROUPS}
    return next((part for part in reversed(parts) if part in plurals), parts[-1])


def _failed(status: int, body: bytes) -> ApiError:
    try:
        document = from_json(body)
    except ValueError:
        return ApiError(status, body.decode(errors="replace").strip() or f"status {status}")
    return _refused(document if isinstance(document, dict) else {}, status)


def _refused(document: Document, status: int) -> ApiError:
    message = document.get("message") or document.get("problem") or f"status {status}"
    return ApiError(status, message, document.get("reason", ""))


def _words(problem: Exception) -> str:
    return str(problem) or type(problem).__name__
