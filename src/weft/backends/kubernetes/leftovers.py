"""What a crash left in the cluster: objects of jobs that are over, and pods that nobody asks about."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from weft.backends.kubernetes import reasons
from weft.backends.kubernetes.client import ApiError, Client, insist
from weft.backends.kubernetes.names import INSTANCE, UID
from weft.backends.kubernetes.settings import Settings
from weft.backends.kubernetes.tracked import Tracked, key_of

FIRST_SWEEP, SWEEP = 5.0, 60.0
log = logging.getLogger("weft.kubernetes")


async def sweep(
    client: Client, settings: Settings, tracked: Tracked, end_leases: Callable[[set[str]], None]
) -> None:
    """`end_leases` is told which jobs there are."""
    pause = FIRST_SWEEP
    while True:
        await asyncio.sleep(pause)
        pause = SWEEP
        for pod in tracked.orphans():
            if reasons.hands_out(pod) and key_of(pod)[0] in tracked.jobs:
                continue  # others may ask it for shards
            metadata = pod["metadata"]
            try:
                await insist(
                    client.delete, "Pod", metadata["name"], metadata["namespace"], 1, metadata["uid"]
                )
            except ApiError as problem:
                log.info("pod %s is left over, and is deleted later: %s", metadata["name"], problem)
        try:
            kept, _ = await client.listing("ConfigMap", labels=f"{INSTANCE}={settings.instance}")
            for metadata in (owner["metadata"] for owner in kept):
                if metadata["labels"].get(UID, "") not in tracked.jobs and not metadata.get(
                    "ownerReferences"
                ):
                    await client.delete("ConfigMap", metadata["name"], metadata["namespace"])
        except ApiError as problem:
            log.info("leftovers are looked for again later: %s", problem)
        end_leases(tracked.jobs)
