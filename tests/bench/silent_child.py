"""A model server that begins every answer and ends none: ``python silent_child.py PORT``."""

from __future__ import annotations

import asyncio
import sys

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'
READY = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{"status":"ok"}'


class Silent(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by the loop; a request comes in one piece."""
        if data.startswith(b"GET"):
            self.transport.write(READY)
        elif data.startswith(b"POST"):
            self.transport.write(HEAD + b"%x\r\n%b\r\n" % (len(EVENT), EVENT))


async def serve(port: int) -> None:
    """Until it is killed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Silent, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
