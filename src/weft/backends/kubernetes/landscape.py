"""The nodes of a cluster and what everybody else runs on them, kept up by watches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from weft.backends.api import Surroundings
from weft.backends.kubernetes.client import Client, Document
from weft.backends.kubernetes.names import INSTANCE
from weft.backends.kubernetes.nodes import could_take, node_of, request_of, silent, unready
from weft.backends.kubernetes.settings import Settings
from weft.backends.kubernetes.watch import Watch
from weft.model.cluster import node_name
from weft.model.gang import Gang, Request
from weft.model.node import Node

SETTLE = 0.05
"""Changes of nodes are gathered for so long."""
UNFINISHED = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
PROMISED = "spec.nodeName=,status.nominatedNodeName!="
"""Of those for whom another scheduler has put others out: they are to come there. Taking their room would begin it anew."""
HANDED_OVER = 1.0
"""So long a promise outlives its watch's word."""
NOT_READY = 60.0
"""A node that says itself that it is not ready gets nothing new; what runs there goes on, and so long it is waited for:
a kubelet that was started again says so for a moment. One that says nothing is given up: the cluster has waited."""
SHUNNED, LONGEST_SHUNNED = 5.0, 60.0
"""A node to which a bind was refused, or that did not take a pod or put it out, gets nothing new for so long: whoever was to go there is
tried elsewhere. Twice as long each further time, so that every other node has its turn before this one has it again."""
GONE = "it is no longer part of the cluster"


class Landscape:
    def __init__(self, client: Client, settings: Settings):
        self._settings = settings
        self.nodes: dict[str, Node] = {}
        self.images: dict[str, int] = {}
        """The size of each image that lies on some node."""
        self._sick: dict[str, str] = {}
        """Nodes that are given up, and why."""
        self._waits: dict[str, asyncio.TimerHandle] = {}
        """Nodes that say themselves that they are not ready, and when they are given up for it."""
        self._shunned: dict[str, Node] = {}
        """As they are."""
        self._pardons: dict[str, asyncio.TimerHandle] = {}
        self._refusals: dict[str, int] = {}
        """How often in a row a node refused what was to come."""
        self._handed_over: dict[str, asyncio.TimerHandle] = {}
        others = f"{INSTANCE}!={settings.instance}"
        self.watches = [
            Watch(client, "Node", self._node_changed, self._node_gone),
            Watch(client, "Pod", self._other_changed, self._other_gone, labels=others, fields=UNFINISHED),
            Watch(client, "Pod", self._promised, self._unpromised, labels=others, fields=PROMISED),
        ]
        self._told = False
        self._settling: asyncio.TimerHandle | None = None
        self._surroundings: Surroundings

    def begin(self, surroundings: Surroundings) -> None:
        """Before the watches run."""
        self._surroundings = surroundings

    def complete(self) -> None:
        """All that there is was told: from now on changes are news."""
        self._told = True
        self._settled()

    def end(self) -> None:
        timed = (self._waits, self._pardons, self._handed_over)
        for timer in (self._settling, *(each for timers in timed for each in timers.values())):
            if timer is not None:
                timer.cancel()

    def trouble(self, node: str) -> str | None:
        """Why a node was given up, if so."""
        return self._sick.get(node) if node in self.nodes else GONE

    def _node_changed(self, document: Document) -> None:
        node, why = node_of(document, self._settings), unready(document)
        if node.name in self._shunned:
            self._shunned[node.name] = node
            node = replace(node, schedulable=False)
        if self.nodes.get(node.name) != node:
            self.nodes[node.name] = node
            self.images.update(node.holds)
            self._tell_nodes()
        if why is None:
            self._well(node.name)
        elif silent(document):
            self._lose(node.name, why)
        elif node.name not in self._waits:
            loop = asyncio.get_running_loop()
            self._waits[node.name] = loop.call_later(NOT_READY, self._lose, node.name, why)

    def shun(self, name: str) -> None:
        if name not in self._shunned and (node := self.nodes.get(name)) is not None:
            before = self._refusals.get(name, 0)
            self._refusals[name] = before + 1
            seconds = min(SHUNNED * 2.0 ** min(before, 8), LONGEST_SHUNNED)
            self._shunned[name] = node
            self._pardons[name] = asyncio.get_running_loop().call_later(seconds, self._pardon, name)
            self.nodes[name] = replace(node, schedulable=False)
            self._settled()

    def welcomed(self, name: str) -> None:
        """The node has taken what came."""
        self._refusals.pop(name, None)

    def open_to(self, gang: Gang, requests: Iterable[Request]) -> bool:
        """Whether each of these has a node that is open and would be large enough for it."""
        return all(any(could_take(node, gang, each) for node in self.nodes.values()) for each in requests)

    def _pardon(self, name: str) -> None:
        del self._pardons[name]
        node = self._shunned.pop(name)
        if name in self.nodes:
            self.nodes[name] = node
            self._settled()

    def _node_gone(self, document: Document) -> None:
        name = node_name(self._settings.cluster, document["metadata"]["name"])
        self._well(name)
        self.welcomed(name)
        if self.nodes.pop(name, None) is not None:
            self._tell_lost(name, GONE)

    def _well(self, node: str) -> None:
        self._sick.pop(node, None)
        if (timer := self._waits.pop(node, None)) is not None:
            timer.cancel()

    def _lose(self, node: str, why: str) -> None:
        if node not in self._sick:
            self._well(node)
            self._sick[node] = why
            self._tell_lost(node, why)

    def _tell_lost(self, node: str, why: str) -> None:
        """The books know first, so that nothing is placed there again."""
        if self._told:
            self._settled()
            self._surroundings.node_lost(node, why)

    def _tell_nodes(self) -> None:
        if self._settling is None:
            self._settling = asyncio.get_running_loop().call_later(SETTLE, self._settled)

    def _settled(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        self._surroundings.nodes_changed()

    def _other_changed(self, pod: Document) -> None:
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
        if node is None or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            self._surroundings.vacated(uid)
        else:
            name = node_name(self._settings.cluster, node)
            self._surroundings.occupied(uid, name, request_of(pod, self._settings))

    def _other_gone(self, pod: Document) -> None:
        self._surroundings.vacated(pod["metadata"]["uid"])

    def _promised(self, pod: Document) -> None:
        who = _to_come(pod)
        node = node_name(self._settings.cluster, pod["status"]["nominatedNodeName"])
        if (leaving := self._handed_over.pop(who, None)) is not None:
            leaving.cancel()
        self._surroundings.occupied(who, node, request_of(pod, self._settings))

    def _unpromised(self, pod: Document) -> None:
        """Most often it is there now; which of the two watches tells first is not known."""
        who, loop = _to_come(pod), asyncio.get_running_loop()
        self._handed_over[who] = loop.call_later(HANDED_OVER, self._no_longer_promised, who)

    def _no_longer_promised(self, who: str) -> None:
        del self._handed_over[who]
        self._surroundings.vacated(who)


def _to_come(pod: Document) -> str:
    """A pod by another name than when it is there."""
    return f"{pod['metadata']['uid']}-to-come"
