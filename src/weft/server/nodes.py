"""The operations on nodes: what each has, what is free, who is on which of its CPUs and GPUs."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from weft.control.control import Control
from weft.model.quantities import plain_cpu
from weft.model.resource import NAME_PATTERN
from weft.scheduler.cluster import Room
from weft.server import answers
from weft.server.answers import ref
from weft.server.operations import Answer, Operation, Param, Query, as_json
from weft.server.path import path_name

REASON = Param(
    "reason",
    "string",
    "Why, for those who look.",
    pattern=r"^[^\x00-\x1f\x7f]{1,200}$",
    rule="must be 1 to 200 characters on one line",
)
ByNode = dict[str, list[dict[str, Any]]]


class NodeOperations:
    def __init__(self, control: Control, owner: str):
        self._control = control
        self._owner = owner

    def table(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                "/v1/nodes",
                "Nodes and what is free",
                self.nodes,
                {200: Answer("Nodes", ref(answers.Nodes))},
            ),
            *(
                Operation(
                    "POST",
                    f"/v1/nodes/{{name}}/{verb}",
                    summary,
                    handler,
                    {200: Answer("The node", ref(answers.Node))},
                    params=params,
                    problems=(404, 507),
                    path_patterns={"name": NAME_PATTERN},
                )
                for verb, summary, handler, params in (
                    ("cordon", "Place nothing new on a node; what runs goes on", self.cordon_node, (REASON,)),
                    ("uncordon", "Let tasks come to a node again", self.uncordon_node, ()),
                    ("lost", "Declare a node lost: its tasks run again elsewhere", self.lose_node, (REASON,)),
                )
            ),
        ]

    def document(self) -> dict[str, Any]:
        """All of them, as they are now."""
        tasks, promised = self._tasks(), self._promised()
        rooms = self._control.books.cluster.rooms.values()
        return {"items": [self._node(room, tasks, promised) for room in rooms]}

    async def nodes(self, request: Request, query: Query) -> Response:
        return as_json(self.document())

    async def cordon_node(self, request: Request, query: Query) -> Response:
        await self._control.cordons.cordon(path_name(request), self._owner, query["reason"])
        return self._changed_node(request)

    async def uncordon_node(self, request: Request, query: Query) -> Response:
        await self._control.cordons.uncordon(path_name(request), self._owner)
        return self._changed_node(request)

    async def lose_node(self, request: Request, query: Query) -> Response:
        await self._control.cordons.lose(path_name(request), self._owner, query["reason"])
        return self._changed_node(request)

    def _changed_node(self, request: Request) -> Response:
        room = self._control.books.cluster.rooms[path_name(request)]
        return as_json(self._node(room, self._tasks(), self._promised()))

    def _tasks(self) -> ByNode:
        """Who is where, and on which of its CPUs and GPUs."""
        control = self._control
        found: ByNode = {}
        for job in control.jobs.values():
            if job.uid not in control.books.running:
                continue
            requests = {task.name: task.request for task in job.gang.tasks}
            for task in job.status.tasks:
                if (binding := task.binding) is not None:
                    request = requests[task.name]
                    found.setdefault(binding.node, []).append(
                        {
                            "job": job.name,
                            "uid": job.uid,
                            "task": task.name,
                            "cpu": plain_cpu(request.cpu),
                            "memory": request.memory or None,
                            "cpus": binding.cpus,
                            "gpus": binding.gpus,
                            "gpuShare": plain_cpu(request.gpu_share) or None,
                        }
                    )
        return found

    def _promised(self) -> ByNode:
        """For whom room is kept, from when on."""
        control = self._control
        found: ByNode = {}
        for promise in control.books.promises.values():
            if (job := control.jobs.get(promise.uid)) is None:
                continue
            for node in sorted({binding.node for binding in promise.bindings}):
                here = [binding for binding in promise.bindings if binding.node == node]
                requests = [job.gang.task(binding.task).request for binding in here]
                found.setdefault(node, []).append(
                    {
                        "job": job.name,
                        "uid": job.uid,
                        "start": promise.start,
                        "cpu": plain_cpu(sum(request.cpu for request in requests)),
                        "memory": sum(request.memory for request in requests) or None,
                        "gpus": sorted({gpu for binding in here for gpu in binding.gpus}),
                    }
                )
        return found

    def _node(self, room: Room, tasks: ByNode, promised: ByNode) -> dict[str, Any]:
        node = room.node
        cordon = self._control.cordons.of(node.name)
        types = sorted({gpu.type for gpu in node.gpus})
        whole = {gpu.index for gpu in room.gpus}
        return {
            "name": node.name,
            "labels": dict(node.labels),
            "taints": node.taints,
            "rack": node.rack or None,
            "fabric": node.fabric or None,
            "schedulable": node.schedulable,
            "cordon": cordon.document() if cordon is not None else None,
            "numa": node.numa,
            "capacity": {
                "cpu": plain_cpu(node.cpu),
                "memory": node.memory,
                "gpu": len(node.gpus),
                "gpuType": ",".join(types) or None,
                "gpuMemory": min((gpu.memory for gpu in node.gpus), default=0) or None,
                "gpuGeneration": min((gpu.generation for gpu in node.gpus), default=0) or None,
                "gpuNuma": {str(gpu.index): gpu.numa for gpu in node.gpus} if node.numa else None,
                "devices": dict(node.devices),
            },
            "free": {
                "cpu": plain_cpu(room.cpu),
                "memory": room.memory,
                "gpu": plain_cpu(1000 * len(room.gpus) + sum(room.split.values())),
                "devices": {name: room.device(name) for name, _ in node.devices},
            },
            "gpus": [
                {
                    "index": gpu.index,
                    "type": gpu.type,
                    "free": 1 if gpu.index in whole else plain_cpu(room.split.get(gpu.index, 0)),
                }
                for gpu in node.gpus
            ],
            "splitGpus": {str(index): plain_cpu(left) for index, left in room.split.items()},
            "tasks": tasks.get(node.name, []),
            "promised": promised.get(node.name, []),
            "notes": node.notes,
        }
