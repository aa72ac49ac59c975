"""Checks before a request is read: host, origin, key, size; and its duration afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from lmlab.serve.access import Access
from lmlab.serve.json_answers import error_answer
from lmlab.serve.request_errors import RequestError, timeout_error
from lmlab.serve.serving_options import RequestLimits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
Observe = Callable[[str, int, float], None]
"""Called with the path, the status and the seconds of each answer."""
OPEN_PATHS = frozenset({"/health"})
"""Paths that need no key."""


class Guard:
    """ASGI middleware in front of an application."""

    def __init__(
        self,
        app: App,
        *,
        access: Access,
        limits: RequestLimits,
        observe: Observe = lambda path, status, seconds: None,
    ) -> None:
        self.app, self.access, self.limits, self.observe = app, access, limits, observe

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def observed_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-content-type-options", b"nosniff"),
                    (b"cache-control", b"no-store"),
                ]
            await send(message)

        try:
            try:
                size = self._checked_size(scope)
                body = await self._body(receive, size)
            except RequestError as error:
                await error_answer(error)(scope, receive, observed_send)
                return
            await self.app(scope, replayed(body, receive), observed_send)
        finally:
            self.observe(scope["path"], status, time.perf_counter() - start)

    def _checked_size(self, scope: Message) -> int | None:
        """The announced size of the body; raises where the request is refused."""
        headers = header_values(scope)
        if refusal := self.access.refusal(headers.get("host"), headers.get("origin")):
            raise RequestError(403, refusal)
        if scope["path"] not in OPEN_PATHS and not self.access.has_key(
            headers.get("authorization")
        ):
            raise RequestError(
                401, "this server needs its key: Authorization: Bearer KEY.", code="invalid_api_key"
            )
        announced = headers.get("content-length", "")
        size = int(announced) if announced.isascii() and announced.isdigit() else None
        if size is not None and size > self.limits.max_body:
            raise self._too_large()
        return size

    async def _body(self, receive: Receive, size: int | None) -> bytes:
        """The whole body, bounded in size and time."""
        parts, total = [], 0
        try:
            async with asyncio.timeout(self.limits.timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        break
                    parts.append(message.get("body", b""))
                    total += len(parts[-1])
                    if total > self.limits.max_body:
                        raise self._too_large()
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            raise timeout_error(self.limits.timeout) from None
        return b"".join(parts)

    def _too_large(self) -> RequestError:
        return RequestError(
            413, f"a request has at most {self.limits.max_body} bytes; send less at once."
        )


def header_values(scope: Message) -> dict[str, str]:
    """The headers of a request by name; the last of a name."""
    return {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
    }


def replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives a body that was read, then what else comes."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    return again
