"""The operations on datasets, and the bytes of their versions for whoever reads them from elsewhere."""

from __future__ import annotations

import re
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse

from weft.control.control import Control
from weft.control.dataprocess import DataFailed
from weft.model.dataset import VERSION_PATTERN, Dataset
from weft.model.failures import Permanent, Temporary
from weft.model.problems import Invalid, Problem
from weft.model.resource import NAME_PATTERN
from weft.server.answers import ref
from weft.server.declared import read_declared
from weft.server.jobs import read_body
from weft.server.operations import Answer, Operation, Param, Query, as_json
from weft.server.path import path_name
from weft.server.problems import ApiProblem
from weft.server.statuses import Datasets, Lineage, Proof, ToldDataset

DATASET = {"$ref": "#/components/schemas/Dataset"}
BINARY = Answer(
    "The bytes; ranges are possible", {"type": "string", "format": "binary"}, "application/octet-stream"
)
FILES = ("version.json", "samples.idx", "names.idx", "names.txt", "marks.bin")
DIGEST = r"^[0-9a-f]{64}$"
MOST_NODES = 10_000
WHICH = Param(
    "version",
    "string",
    "The beginning of a version's name (default: the newest).",
    None,
    pattern=r"^[0-9a-f]{1,32}$",
)


WARM = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "nodes": {"type": "array", "items": {"type": "string"}, "maxItems": MOST_NODES},
        "all": {"type": "boolean"},
    },
}


class DatasetOperations:
    def __init__(self, control: Control, owner: str):
        self._datasets = control.datasets
        self._owner = owner

    def table(self) -> list[Operation]:
        name = {"name": NAME_PATTERN}
        return [
            Operation(
                "GET",
                "/v1/datasets",
                "The datasets",
                self.list_datasets,
                {200: Answer("Datasets", ref(Datasets))},
            ),
            Operation(
                "GET",
                "/v1/datasets/{name}",
                "One dataset: its versions, and who reads them",
                self.get_dataset,
                {200: Answer("The dataset", ref(ToldDataset))},
                problems=(404,),
                path_patterns=name,
            ),
            Operation(
                "PUT",
                "/v1/datasets/{name}",
                "Declare a dataset or change it; a new source is read at once",
                self.put_dataset,
                {200: Answer("Changed", ref(ToldDataset)), 201: Answer("Declared", ref(ToldDataset))},
                body=DATASET,
                problems=(409, 413, 507),
                path_patterns=name,
            ),
            Operation(
                "DELETE",
                "/v1/datasets/{name}",
                "Delete a dataset that no job reads, with its versions",
                self.delete_dataset,
                {204: Answer("Gone")},
                problems=(404, 409, 507),
                path_patterns=name,
            ),
            Operation(
                "POST",
                "/v1/datasets/{name}/refresh",
                "Read the source again: what has changed becomes a new version",
                self.refresh,
                {202: Answer("Being read", ref(ToldDataset))},
                problems=(404,),
                path_patterns=name,
            ),
            Operation(
                "POST",
                "/v1/datasets/{name}/verify",
                "Prove every byte of a version",
                self.verify,
                {200: Answer("What was checked, and what is wrong", ref(Proof))},
                params=(WHICH,),
                problems=(404, 409),
                path_patterns=name,
            ),
            Operation(
                "POST",
                "/v1/datasets/{name}/warm",
                "Bring a version to nodes before anybody reads it there; `status.cached` says how far it is",
                self.warm,
                {202: Answer("On its way", ref(ToldDataset))},
                params=(WHICH,),
                body=WARM,
                problems=(404, 409, 413),
                path_patterns=name,
            ),
            Operation(
                "GET",
                "/v1/datasets/{name}/lineage",
                "What a version was made from, and what was made from it",
                self.lineage,
                {200: Answer("Nodes and edges", ref(Lineage))},
                params=(WHICH,),
                problems=(404, 409),
                path_patterns=name,
            ),
            Operation(
                "GET",
                "/v1/datasets/{name}/objects/{digest}",
                "An object of a version that stays at its source",
                self.object,
                {
                    200: Answer(
                        "The bytes", {"type": "string", "format": "binary"}, "application/octet-stream"
                    )
                },
                params=(WHICH,),
                problems=(404, 409, 502),
                path_patterns={**name, "digest": DIGEST},
            ),
            Operation(
                "GET",
                "/v1/data/versions/{version}/{file}",
                "A file of a version's table",
                self.version_file,
                {200: BINARY},
                problems=(404,),
                path_patterns={
                    "version": r"^[0-9a-f]{32}$",
                    "file": f"^({'|'.join(map(re.escape, FILES))})$",
                },
            ),
            Operation(
                "GET",
                "/v1/data/parts/{digest}",
                "A part of some version",
                self.part,
                {200: BINARY},
                problems=(404,),
                path_patterns={"digest": DIGEST},
            ),
        ]

    async def list_datasets(self, request: Request, query: Query) -> Response:
        return as_json({"items": await self._datasets.documents(*self._datasets)})

    async def get_dataset(self, request: Request, query: Query) -> Response:
        (found,) = await self._datasets.documents(self._datasets.get(path_name(request)))
        return as_json(found)

    async def put_dataset(self, request: Request, query: Query) -> Response:
        name = path_name(request)
        given = await read_declared(request, Dataset, name, "dataset")
        kept, new = await self._datasets.put(name, given, self._owner)
        return as_json(self._datasets.document(kept), 201 if new else 200)

    async def delete_dataset(self, request: Request, query: Query) -> Response:
        await self._datasets.remove(path_name(request), self._owner)
        return Response(status_code=204)

    async def refresh(self, request: Request, query: Query) -> Response:
        dataset = self._datasets.get(path_name(request))
        self._datasets.refresh(dataset.metadata.name or "")
        return as_json(self._datasets.document(dataset), 202)

    async def verify(self, request: Request, query: Query) -> Response:
        try:
            return as_json(await self._datasets.verify(path_name(request), query["version"]))
        except DataFailed as problem:
            raise ApiProblem(409, "Cannot be verified", str(problem)) from None

    async def warm(self, request: Request, query: Query) -> Response:
        name, body = path_name(request), await read_body(request, 1 << 20)
        dataset = self._datasets.get(name)
        nodes, everywhere = _where(name, body)
        try:
            await self._datasets.warm(name, query["version"], [] if everywhere else nodes)
        except (Permanent, Temporary) as problem:
            raise ApiProblem(409, "Cannot be brought there", str(problem)) from None
        (found,) = await self._datasets.documents(dataset)
        return as_json(found, 202)

    async def lineage(self, request: Request, query: Query) -> Response:
        return as_json(self._datasets.lineage(path_name(request), query["version"]))

    async def object(self, request: Request, query: Query) -> Response:
        name, digest = path_name(request), request.path_params["digest"]
        try:
            size, chunks = await self._datasets.object(name, query["version"], digest)
        except DataFailed as problem:
            raise ApiProblem(502, "Its source cannot be read", str(problem)) from None
        return StreamingResponse(
            chunks, media_type="application/octet-stream", headers={"Content-Length": str(size)}
        )

    async def version_file(self, request: Request, query: Query) -> Response:
        version, file = request.path_params["version"], request.path_params["file"]
        if not re.fullmatch(VERSION_PATTERN, version) or file not in FILES:
            raise ApiProblem(404, "Not found", f"there is no file {file} of a version {version}")
        return self._file("versions", version, file)

    async def part(self, request: Request, query: Query) -> Response:
        digest = request.path_params["digest"]
        if not re.fullmatch(DIGEST, digest):
            raise ApiProblem(404, "Not found", f"there is no part {digest}")
        return self._file("parts", digest[:2], digest)

    def _file(self, *steps: str) -> Response:
        path = self._datasets.store.joinpath(*steps)
        if not path.is_file():
            raise ApiProblem(404, "Not found", f"there is no {steps[0].removesuffix('s')} {steps[-1]}")
        return FileResponse(path, media_type="application/octet-stream")


def _where(name: str, body: Any) -> tuple[list[str], bool]:
    """The nodes that were named, or that all are meant."""
    given = body if isinstance(body, dict) else {}
    nodes, everywhere = given.get("nodes") or [], given.get("all", False)
    known = isinstance(nodes, list) and all(isinstance(node, str) for node in nodes)
    if {*given} - {"nodes", "all"} or not known or len(nodes) > MOST_NODES or everywhere not in (True, False):
        raise Invalid(f"dataset {name}", [Problem("nodes", 'write {"nodes": ["NODE"]} or {"all": true}')])
    if bool(nodes) == everywhere:
        raise Invalid(f"dataset {name}", [Problem("nodes", "name nodes, or say that all are meant")])
    return nodes, everywhere
