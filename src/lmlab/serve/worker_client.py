"""HTTP between the front and a worker: one request on one connection, by h11."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import h11

CONNECTION_HEADERS = frozenset(
    (
        b"connection",
        b"content-length",
        b"keep-alive",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""Headers that belong to one connection and not to what is sent on it."""
CHUNK = 65_536
Headers = list[tuple[bytes, bytes]]


class WorkerEnded(Exception):
    """The connection broke before the answer was complete."""


@dataclass(frozen=True, kw_only=True)
class ForwardedRequest:
    """A request as a worker gets it."""

    method: str
    target: bytes
    headers: Headers
    body: bytes


@dataclass(kw_only=True)
class WorkerAnswer:
    """The beginning of a worker's answer, and its parts as they arrive."""

    status: int
    headers: Headers
    parts: AsyncIterator[bytes] = field(repr=False)

    @property
    def streamed(self) -> bool:
        """Whether it is a stream of events, whose parts are passed on at once."""
        types = [value for name, value in self.headers if name == b"content-type"]
        return any(value.startswith(b"text/event-stream") for value in types)

    async def body(self) -> bytes:
        """All of it; raises `WorkerEnded` where it is incomplete."""
        return b"".join([part async for part in self.parts])


@asynccontextmanager
async def answer_of(socket_path: str, request: ForwardedRequest) -> AsyncIterator[WorkerAnswer]:
    """Send a request and give the beginning of its answer.

    An OSError says that nothing was sent, `WorkerEnded` that the worker ended meanwhile.
    """
    reader, writer = await asyncio.open_unix_connection(socket_path)
    connection = h11.Connection(h11.CLIENT)
    headers = [
        *(pair for pair in request.headers if pair[0] not in CONNECTION_HEADERS),
        (b"content-length", str(len(request.body)).encode()),
        (b"connection", b"close"),
    ]
    try:
        start = h11.Request(method=request.method, target=request.target, headers=headers)
        events = (start, h11.Data(data=request.body), h11.EndOfMessage())
        try:
            writer.write(b"".join(connection.send(event) or b"" for event in events))
            await writer.drain()
        except OSError:
            raise WorkerEnded from None
        response = await _next_event(connection, reader)
        assert isinstance(response, h11.Response), "a worker answers by a response"
        kept = [pair for pair in response.headers if pair[0] not in CONNECTION_HEADERS]
        yield WorkerAnswer(
            status=response.status_code, headers=list(kept), parts=_parts(connection, reader)
        )
    finally:
        writer.close()


async def _parts(connection: h11.Connection, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while isinstance(event := await _next_event(connection, reader), h11.Data):
        yield bytes(event.data)


async def _next_event(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Event:
    try:
        while (event := connection.next_event()) is h11.NEED_DATA:
            connection.receive_data(await reader.read(CHUNK))
    except (OSError, h11.RemoteProtocolError):
        raise WorkerEnded from None
    if isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
        raise WorkerEnded
    assert not isinstance(event, type)
    return event
