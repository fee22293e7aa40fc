"""The operations on clusters that are added to the server."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from weft.control.control import Control
from weft.model.cluster import Cluster
from weft.model.resource import NAME_PATTERN
from weft.server.answers import ref
from weft.server.declared import read_declared
from weft.server.operations import Answer, Operation, Query, as_json
from weft.server.path import path_name
from weft.server.statuses import Clusters, ToldCluster

CLUSTER = ref("Cluster")


class AddedClusterOperations:
    def __init__(self, control: Control, owner: str):
        self._clusters = control.clusters
        self._owner = owner

    def table(self) -> list[Operation]:
        name = {"name": NAME_PATTERN}
        return [
            Operation(
                "GET",
                "/v1/clusters",
                "The clusters that were added to the server's own engine",
                self.list_clusters,
                {200: Answer("Clusters", ref(Clusters))},
            ),
            Operation(
                "GET",
                "/v1/clusters/{name}",
                "One cluster",
                self.get_cluster,
                {200: Answer("The cluster", ref(ToldCluster))},
                problems=(404,),
                path_patterns=name,
            ),
            Operation(
                "PUT",
                "/v1/clusters/{name}",
                "Add a cluster, or reach it in another way; it must answer",
                self.put_cluster,
                {200: Answer("Changed", ref(ToldCluster)), 201: Answer("Added", ref(ToldCluster))},
                body=CLUSTER,
                problems=(409, 413, 507),
                path_patterns=name,
            ),
            Operation(
                "DELETE",
                "/v1/clusters/{name}",
                "Let go of a cluster that no job uses",
                self.delete_cluster,
                {204: Answer("Gone")},
                problems=(404, 409, 507),
                path_patterns=name,
            ),
        ]

    async def list_clusters(self, request: Request, query: Query) -> Response:
        return as_json({"items": [self._clusters.document(cluster) for cluster in self._clusters]})

    async def get_cluster(self, request: Request, query: Query) -> Response:
        return as_json(self._clusters.document(self._clusters.get(path_name(request))))

    async def put_cluster(self, request: Request, query: Query) -> Response:
        name = path_name(request)
        given = await read_declared(request, Cluster, name, "cluster")
        kept, new = await self._clusters.put(name, given, self._owner)
        return as_json(self._clusters.document(kept), 201 if new else 200)

    async def delete_cluster(self, request: Request, query: Query) -> Response:
        await self._clusters.remove(path_name(request), self._owner)
        return Response(status_code=204)
