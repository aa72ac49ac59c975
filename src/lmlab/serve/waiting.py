"""Waiting for a job: until it is done, the time is over, or the client has gone."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastapi import Request

from lmlab.serve.batch_queue import Abandoned, Job, QueueFull
from lmlab.serve.model_service import ModelService
from lmlab.serve.request_errors import RequestError, busy_error, interrupted_error, timeout_error

POLL_SECONDS = 0.25
"""How often a waiting request looks whether its client is still there."""
CLIENT_GONE = 499


async def results_of(service: ModelService, job: Job, request: Request) -> list[Any]:
    """Submit a job and wait for its results."""
    submit(service, job)
    try:
        await wait_for(asyncio.wrap_future(job.future), service.limits.timeout, request)
    except BaseException:
        job.cancel()
        raise
    return job_results(job)


def submit(service: ModelService, job: Job) -> None:
    try:
        service.queue.submit(job)
    except QueueFull:
        raise busy_error() from None


async def wait_for(future: asyncio.Future[Any], timeout: float, request: Request) -> None:
    """Wait until a future is done, whatever its outcome."""
    deadline = time.monotonic() + timeout
    while not future.done():
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise timeout_error(timeout)
        await asyncio.wait({future}, timeout=min(POLL_SECONDS, remaining))
        if not future.done() and await request.is_disconnected():
            raise RequestError(CLIENT_GONE, "the client has closed the connection.")


def job_results(job: Job) -> list[Any]:
    """The results of a job that is done, or its error."""
    if job.future.cancelled():
        raise interrupted_error()
    try:
        return job.future.result()
    except Abandoned:
        raise interrupted_error() from None
