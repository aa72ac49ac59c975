"""The front of several workers: passes requests on, and answers 503 where a worker ends."""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import ASGIApp

from lmlab.serve.access import Access
from lmlab.serve.guard import Guard, Message, Receive, Send
from lmlab.serve.json_answers import error_answer, json_bytes
from lmlab.serve.request_errors import RequestError, interrupted_error
from lmlab.serve.server_metrics import merge_metrics
from lmlab.serve.serving_options import ServingOptions
from lmlab.serve.worker_client import (
    CONNECTION_HEADERS,
    ForwardedRequest,
    WorkerAnswer,
    WorkerEnded,
    answer_of,
)
from lmlab.serve.worker_processes import Worker, WorkerProcesses

OWN_HEADERS = frozenset((b"cache-control", b"date", b"x-content-type-options"))
"""Headers that the front gives every answer itself."""


def create_front(workers: WorkerProcesses, options: ServingOptions, access: Access) -> ASGIApp:
    """An application that passes requests on; host, origin, key and size are checked before."""
    return Guard(Front(workers), access=access, limits=options)


class Front:
    """Passes each request on to the ready worker with the fewest requests."""

    def __init__(self, workers: WorkerProcesses) -> None:
        self.workers = workers

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        request = forwarded_request(scope, (await receive()).get("body", b""))
        if scope["path"] == "/metrics":
            await (await self._metrics(request))(scope, receive, send)
            return
        passing = asyncio.ensure_future(self._pass_on(request, scope, receive, send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({passing, gone}, return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                passing.result()
        finally:
            # Closing the connection tells the worker that its client has gone.
            passing.cancel()
            gone.cancel()

    async def _pass_on(
        self, request: ForwardedRequest, scope: Message, receive: Receive, send: Send
    ) -> None:
        tried: list[Worker] = []
        while worker := self.workers.choose(tried):
            tried.append(worker)
            worker.requests += 1
            try:
                async with answer_of(worker.socket_path, request) as answer:
                    await _relay(answer, send)
                return
            except WorkerEnded:
                await error_answer(interrupted_error())(scope, receive, send)
                return
            except (ConnectionRefusedError, FileNotFoundError):
                continue  # it has just ended and has not seen the request
            finally:
                worker.requests -= 1
        busy = RequestError(503, "no worker is ready; try again later.", code="no_worker")
        await error_answer(busy)(scope, receive, send)

    async def _metrics(self, request: ForwardedRequest) -> Response:
        """The metrics of all workers, with the worker as a label."""
        texts: dict[str, str] = {}
        for worker in self.workers.ready():
            try:
                async with answer_of(worker.socket_path, request) as answer:
                    texts[str(worker.number)] = (await answer.body()).decode()
            except (OSError, WorkerEnded):
                continue
        media = "text/plain; version=0.0.4; charset=utf-8"
        return Response(merge_metrics(texts), media_type=media)


def forwarded_request(scope: Message, body: bytes) -> ForwardedRequest:
    """The request of an ASGI scope."""
    query = scope.get("query_string", b"")
    return ForwardedRequest(
        method=scope["method"],
        target=scope["raw_path"] + (b"?" + query if query else b""),
        headers=[pair for pair in scope["headers"] if pair[0] not in CONNECTION_HEADERS],
        body=body,
    )


async def _relay(answer: WorkerAnswer, send: Send) -> None:
    """Pass an answer on: whole, so that it can still become a 503, or a stream part by part."""
    headers = [pair for pair in answer.headers if pair[0] not in OWN_HEADERS]
    start = {"type": "http.response.start", "status": answer.status, "headers": headers}
    if not answer.streamed:
        body = await answer.body()
        length = (b"content-length", str(len(body)).encode())
        await send(start | {"headers": [*headers, length]})
        await send({"type": "http.response.body", "body": body})
        return
    await send(start)
    last = b""
    try:
        async for part in answer.parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
    except WorkerEnded:
        last = b"data: " + json_bytes(interrupted_error().as_dict()) + b"\n\n"
    await send({"type": "http.response.body", "body": last})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _lifespan(receive: Receive, send: Send) -> None:
    """Nothing to start or to stop."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
