"""What a pod's status means: whether it gets on, and if not, a code and a sentence that a person can act on. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from weft.backends.kubernetes.client import Document
from weft.model.failures import Code
from weft.model.podpatch import DATA

TASK, AGENT = "task", "weft"
NOT_THERE = re.compile(
    r"not found|manifest unknown|does not exist|no such (?:host|image)|denied|unauthori[sz]ed|forbidden|not present with pull policy",
    re.I,
)
"""Answers to a pull that asking again will not change."""
NO_ROOM = re.compile(
    r"^(?:OutOf\S+|NodeAffinity|UnexpectedAdmissionError|Node\w*|Preempting|TopologyAffinityError)$"
)
"""Kubelet's own words for: not here."""
OWN_DOING = re.compile(
    r"exceed(?:s|ed) (?:the |its )?(?:total |local )?(?:limit|ephemeral)|usage exceeds", re.I
)
"""How kubelet says that a pod used more of the disk than it may."""
WRONG_IMAGE = ("InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
PULLING = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable")
CANNOT_CREATE = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
PUT_OUT = {
    "NodeLost": Code.NODE_LOST,
    "NodeShutdown": Code.NODE_LOST,
    "Shutdown": Code.NODE_LOST,
    "Terminated": Code.NODE_LOST,
    "DeletionByTaintManager": Code.NODE_LOST,
    "DeletionByPodGC": Code.NODE_LOST,
    "Preempting": Code.PREEMPTED,
    "PreemptionByScheduler": Code.PREEMPTED,
    "PreemptionByKubeScheduler": Code.PREEMPTED,
}
"""What the cluster's own words for why a pod was taken away mean, where they do not mean that it was evicted."""
MOUNT_TRIES = 6
KILLED = 137

NO_CLAIM = (
    f"its namespace has no claim {DATA} on the data of the nodes; an administrator gives it one: deploy/data/project.yaml "
    "(docs/kubernetes-install.md#datasets)"
)


@dataclass(frozen=True, slots=True)
class Stuck:
    """Why a container does not start. `certain`: it never will."""

    code: Code
    message: str
    certain: bool = True


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Why a pod is taken away."""

    code: Code
    message: str


@dataclass(frozen=True, slots=True)
class Over:
    """The pod has ended, by itself or by the node's doing."""

    code: int | None
    reason: str | None = None
    """The node put it out: this is why."""
    why: Code = Code.EVICTED
    refused: bool = False
    """The node did not take it at all; another may."""
    own: bool = False
    """It was put out for what it did itself, and would be again."""
    oom: bool = False

    @property
    def not_there(self) -> bool:
        """Whether the node has no room for it now: it did not take it, or put it out for want of something. That it runs out,
        it says of itself up to ten seconds later."""
        return self.refused or (self.reason is not None and self.why is Code.EVICTED and not self.own)


def running(pod: Document) -> bool:
    """Whether the user's container has been started."""
    state = _container(pod, TASK).get("state") or {}
    return "running" in state


def reachable(pod: Document) -> bool:
    """Whether its agent can be asked."""
    own = _container(pod, AGENT)
    return bool(pod.get("status", {}).get("podIP")) and "running" in (own.get("state") or {})


def stuck(pod: Document) -> Stuck | None:
    """What keeps a container from starting."""
    for condition in pod.get("status", {}).get("conditions") or ():
        if pod["spec"].get("nodeName"):
            break  # it has a place, whatever a scheduler that was late has written since
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            said = _short(condition.get("message", ""))
            return Stuck(Code.UNSCHEDULABLE, f"the cluster finds no place for it: {said}", certain=False)
    for name in (DATA, AGENT, TASK):
        own = _container(pod, name)
        waiting = (own.get("state") or {}).get("waiting") or {}
        reason, said = waiting.get("reason", ""), waiting.get("message", "")
        image = own.get("image") or _image(pod, name)
        if reason in WRONG_IMAGE:
            return Stuck(Code.IMAGE_PULL, f"image {image} cannot be used: {said or reason}")
        if reason in PULLING:
            return Stuck(
                Code.IMAGE_PULL,
                f"image {image} cannot be pulled: {_short(said) or reason}",
                bool(NOT_THERE.search(said)),
            )
        if reason in CANNOT_CREATE:
            code = (
                Code.SECRET_MISSING
                if re.search(r"secret .*not found|find key .* in secret", said, re.I)
                else Code.CANNOT_START
            )
            return Stuck(code, f"its container cannot be made: {said or reason}")
        if reason == "CrashLoopBackOff":
            last = (own.get("lastState") or {}).get("terminated") or {}
            how = f"exit code {last['exitCode']}" if "exitCode" in last else "no exit code"
            who = "its container" if name == TASK else "Weft's own part"
            return Stuck(
                Code.CRASH_LOOP,
                f"{who} ({image}) ends again and again at once: {how} {_short(last.get('message', ''))}".rstrip(),
            )
    return None


def pull_failed(pod: Document) -> bool:
    """Whether a pull has failed just now, and is to be tried again."""
    states = (each.get("state") or {} for each in _statuses(pod))
    return any(state.get("waiting", {}).get("reason") == "ErrImagePull" for state in states)


def over(pod: Document) -> Over | None:
    """How the pod ended, if it has."""
    status = pod.get("status", {})
    phase, reason, said = status.get("phase"), status.get("reason", ""), status.get("message", "")
    if phase not in ("Succeeded", "Failed"):
        return None
    ended = (_container(pod, TASK).get("state") or {}).get("terminated") or {}
    if phase == "Failed" and reason:
        if NO_ROOM.match(reason) and reason != "NodeLost":
            told = f"{reason}: {_short(said)}" if said else reason
            return Over(None, told, PUT_OUT.get(reason, Code.CANNOT_START), refused=not ended)
        what = "evicted" if reason == "Evicted" else reason
        told = f"{what}: {_short(said)}" if said else what
        why = PUT_OUT.get(reason, Code.EVICTED)
        return Over(ended.get("exitCode"), told, why, own=bool(OWN_DOING.search(said)))
    return Over(
        ended.get("exitCode", 0 if phase == "Succeeded" else None), oom=ended.get("reason") == "OOMKilled"
    )


def stopped(pod: Document) -> bool:
    """Whether nothing of it runs any more, though it may still be there."""
    if over(pod) is not None:
        return True
    states = [each.get("state") or {} for each in _statuses(pod)]
    return "deletionTimestamp" in pod["metadata"] and not any("running" in state for state in states)


def hands_out(pod: Document) -> bool:
    """Whether its task has ended well and its agent is there still, as one is that hands out shards to others."""
    ended = (_container(pod, TASK).get("state") or {}).get("terminated") or {}
    return reachable(pod) and ended.get("exitCode") == 0


def oom_killed(pod: Document) -> bool:
    """Whether the user's container was ended for its memory limit, now or the time before."""
    own = _container(pod, TASK)
    ends = ((own.get(when) or {}).get("terminated") or {} for when in ("state", "lastState"))
    return any(end.get("reason") == "OOMKilled" for end in ends)


def cut_short(pod: Document, code: int | None, ended: float | None) -> bool:
    """Whether its task ended because the pod was deleted, and not before. Also with exit code 0: a task that saves and ends
    when it is told to has not finished."""
    metadata = pod["metadata"]
    if "deletionTimestamp" not in metadata:
        return False
    latest = datetime.fromisoformat(metadata["deletionTimestamp"]).timestamp()
    asked = latest - (metadata.get("deletionGracePeriodSeconds") or 0)
    return code != 0 or ended is None or ended >= asked


def disturbed(pod: Document | None, otherwise: str) -> Disturbance:
    """Who is putting the pod out, where the cluster says so."""
    for condition in (pod or {}).get("status", {}).get("conditions") or ():
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            reason = condition.get("reason") or condition["type"]
            code = PUT_OUT.get(reason, Code.EVICTED)
            return Disturbance(code, str(condition.get("message") or reason))
    return Disturbance(Code.POD_DELETED, otherwise)


def cannot_mount(event: Document) -> Stuck | None:
    """What an event says of a volume that is not there. Kubelet tries again by itself, and most often with success."""
    if event.get("reason") not in ("FailedMount", "FailedAttachVolume"):
        return None
    said = _short(event.get("message", ""))
    certain = bool(re.search(r"not found|does not exist", said)) or event.get("count", 1) >= MOUNT_TRIES
    if f'persistentvolumeclaims "{DATA}" not found' in said:
        return Stuck(Code.VOLUME_MOUNT, NO_CLAIM)
    return Stuck(Code.VOLUME_MOUNT, f"a volume cannot be mounted: {said}", certain)


def _container(pod: Document, name: str) -> dict[str, Any]:
    return next((each for each in _statuses(pod) if each["name"] == name), {})


def _statuses(pod: Document) -> list[dict[str, Any]]:
    """Of all containers, also of those that run first."""
    status = pod.get("status", {})
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _image(pod: Document, name: str) -> str:
    every = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
    return next((each.get("image", "") for each in every if each["name"] == name), "")


def _short(message: str) -> str:
    """One line of it."""
    line = " ".join(message.split())
    return line if len(line) <= 300 else f"{line[:297]}..."
