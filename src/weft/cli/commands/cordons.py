"""`weft nodes cordon`, `uncordon` and `lost`: which nodes new tasks may come to."""

from __future__ import annotations

from weft.cli import terminal
from weft.client.api import Client


def cordon(node: str, /, *, reason: str | None = None) -> int:
    """Place nothing new on a node; what runs there goes on. Kept until weft nodes uncordon.

    For example:
      weft nodes cordon local-1 --reason "new disk on Monday"

    Parameters
    ----------
    node
        The node's name.
    reason
        Why, for those who look.
    """
    found = Client().cordon(node, reason)
    print(f"node {node} cordoned")
    if count := len(found.get("tasks") or ()):
        terminal.note(f"{count} task{'s' * (count != 1)} there {'go' if count != 1 else 'goes'} on")
    terminal.next_step("weft nodes", f"weft nodes uncordon {node}")
    return 0


def uncordon(node: str, /) -> int:
    """Let tasks come to a node again that was cordoned or lost.

    Parameters
    ----------
    node
        The node's name.
    """
    Client().uncordon(node)
    print(f"node {node} uncordoned")
    terminal.next_step("weft nodes", "weft queue")
    return 0


def lost(node: str, /, *, reason: str | None = None) -> int:
    """Declare a node lost: whatever runs there is killed and runs again elsewhere, without using up restarts.

    The node is cordoned until weft nodes uncordon.

    Parameters
    ----------
    node
        The node's name.
    reason
        Why, for those who look.
    """
    client = Client()
    before = sum(len(item.get("tasks") or ()) for item in client.nodes() if item["name"] == node)
    client.lose_node(node, reason)
    print(f"node {node} lost")
    if before:
        terminal.note(f"{before} task{'s' * (before != 1)} must run elsewhere")
    terminal.next_step("weft ls", f"weft nodes uncordon {node}")
    return 0
