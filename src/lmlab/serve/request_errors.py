"""Refused and failed requests in OpenAI's form: a sentence with a status, a type and a code."""

from __future__ import annotations

from typing import Any

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
RETRY_SECONDS = 1
"""What a client that is told to come back later waits at least."""


class RequestError(Exception):
    """A request that is refused or could not be finished."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer besides the usual ones."""
        if self.status in (429, 503):
            return {"Retry-After": str(RETRY_SECONDS)}
        return {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}

    def as_dict(self) -> dict[str, Any]:
        return error_record(self.status, self.message, param=self.param, code=self.code)


def error_record(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The body of an answer that is an error."""
    kind = ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def busy_error() -> RequestError:
    return RequestError(
        429, "too many requests wait for this model; try again later.", code="queue_full"
    )


def timeout_error(seconds: float) -> RequestError:
    return RequestError(
        503,
        f"this request took longer than {seconds:g} seconds; make it smaller, try again later, or "
        "start the server with a longer --timeout.",
        code="timeout",
    )


def interrupted_error() -> RequestError:
    return RequestError(
        503, "the process that worked on this request has ended; try again.", code="interrupted"
    )
