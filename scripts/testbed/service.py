"""The service `kubernetes`: pods reach the API server by the address that every pod is told.

python -m testbed.service PORT    (started by `up`; runs until it is ended)

It is what kube-proxy does elsewhere, for this one service: bytes are passed on to PORT on loopback, and who does not answer
there is not answered for.
"""

from __future__ import annotations

import asyncio
import sys

RANGE = "10.96.0.0/16"
ADDRESS = "10.96.0.1"
"""The first of the range, as always."""
HTTPS = 443
CHUNK = 1 << 16


async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one side has said all; the other is told."""
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def serve(address: str, listen: int, port: int) -> asyncio.Server:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            further = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(passed_on(reader, further[1]), passed_on(further[0], writer))

    return await asyncio.start_server(connected, address, listen)


async def main() -> None:
    server = await serve(ADDRESS, HTTPS, int(sys.argv[1]))
    print(f"answering on {ADDRESS}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
