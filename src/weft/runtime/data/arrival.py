"""Waits until the node lends a job its data: `python -m weft.runtime.data.arrival VERSION…` for those that it wants as files.

For pods that the cluster itself has placed: whom to tell of the job is known only then. What goes wrong is told by who brings
the data, so this has nothing to do but to wait.
"""

from __future__ import annotations

import sys
import time

from weft.runtime.data.errors import DataError
from weft.runtime.data.link import Link

PAUSE = 0.2


def wait(link: Link, versions: list[str], pause: float = PAUSE) -> None:
    told = ""
    while True:
        try:
            link.counts()
            if all(link.has_tree(version) for version in versions):
                return
        except DataError as problem:
            if str(problem) != told:
                told = str(problem)
                print(f"weft: waiting for data: {told}", file=sys.stderr, flush=True)
        time.sleep(pause)


if __name__ == "__main__":
    found = Link.of_this_job()
    if found is None:
        raise SystemExit("weft: WEFT_DATA_SOCKET does not say where the data agent of this node is")
    wait(found, sys.argv[1:])
