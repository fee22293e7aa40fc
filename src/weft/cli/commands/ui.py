"""`weft ui`: the server's page, in a browser."""

from __future__ import annotations

import os
import sys
from typing import Annotated

from cyclopts import Parameter

from weft.cli import terminal
from weft.cli.commands.run import connected
from weft.client.errors import WeftError


def ui(*, only_print: Annotated[bool, Parameter(name="--print")] = False) -> int:
    """Open the server's page in a browser, signed in. Starts a server if none runs.

    The address holds a code that signs in one browser, once, within a minute; the token is never in it.

    For example:
      weft ui
      weft ui --print

    Parameters
    ----------
    only_print
        Only print the address, as where there is no display.
    """
    client = connected()
    facts = client.status()
    if not facts["page"]:
        raise WeftError(
            f"the server at {facts['address']} has no page",
            "it was installed without (WEFT_NO_PAGE)",
            "weft down; install Weft without WEFT_NO_PAGE; weft ui",
        )
    code = client.ask("POST", "/v1/session/codes")["code"]
    address = f"{os.environ.get('WEFT_ADDRESS', facts['address'])}/#login={code}"
    if not only_print and _has_display() and _opened(address):
        print(f"opened {facts['address']} in your browser")
    else:
        print(address)
        terminal.note("open it within a minute; it signs one browser in, once")
    terminal.next_step("weft ls", "weft status", "weft down")
    return 0


def _has_display() -> bool:
    """Else a browser would open in the terminal."""
    given = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return sys.platform == "darwin" or any(os.environ.get(name) for name in given)


def _opened(address: str) -> bool:
    import webbrowser

    return webbrowser.open(address)
