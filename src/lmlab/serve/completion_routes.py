"""Routes of OpenAI's interface: models and completions, streamed by server-sent events."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from lmlab.core.errors import UserError
from lmlab.core.untrusted_input import MAX_SEED
from lmlab.serve.batch_queue import Job
from lmlab.serve.completions import (
    Choice,
    CompletionChunk,
    CompletionRecord,
    CompletionSettings,
    completion_kind,
)
from lmlab.serve.json_answers import json_answer, json_bytes
from lmlab.serve.model_service import ModelService, completion_cost, find_service
from lmlab.serve.request_errors import RequestError, error_record, timeout_error
from lmlab.serve.schemas import CompletionRequest
from lmlab.serve.serving_options import RequestLimits
from lmlab.serve.verb_routes import ERRORS
from lmlab.serve.waiting import job_results, results_of, submit

Services = Mapping[str, ModelService]
Send = Callable[[CompletionChunk], None]


def add_completion_routes(app: FastAPI, services: Services, limits: RequestLimits) -> None:
    """Add /v1/models and /v1/completions."""

    @app.get("/v1/models", responses=ERRORS)
    async def models() -> Response:
        """The served models."""
        data = [service.description() for service in services.values()]
        return json_answer({"object": "list", "data": data})

    @app.get("/v1/models/{name:path}", responses=ERRORS)
    async def model(name: str) -> Response:
        """One served model."""
        return json_answer(find_service(services, name).description())

    @app.post("/v1/completions", responses=ERRORS)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Continuations of prompts; with echo and logprobs also scores of the prompts."""
        service = find_service(services, body.model)
        for name in body.unsupported:
            raise RequestError(400, f"{name} does not apply to this server; remove it.", param=name)
        record = CompletionRecord(model=service.name, kind=completion_kind(service.model))
        if not body.stream:
            prepared = await run_in_threadpool(prepare, service, body)
            await results_of(service, prepared.job, request)
            return json_answer(record.whole(prepared.choices))
        events: asyncio.Queue[CompletionChunk | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        send = lambda chunk: loop.call_soon_threadsafe(events.put_nowait, chunk)  # noqa: E731
        prepared = await run_in_threadpool(prepare, service, body, send)
        prepared.job.future.add_done_callback(
            lambda future: loop.call_soon_threadsafe(events.put_nowait, None)
        )
        submit(service, prepared.job)
        first = await next_event(events, service, prepared)
        if first is None:
            job_results(prepared.job)  # an error before the first token has its own status
        usage = bool((body.stream_options or {}).get("include_usage"))
        stream = Stream(service, prepared, record, events, usage)
        return StreamingResponse(stream.lines(first), media_type="text/event-stream")


@dataclass(frozen=True, kw_only=True)
class PreparedCompletion:
    """The choices of a request and the job that makes them."""

    choices: Sequence[Choice]
    job: Job


def prepare(
    service: ModelService, body: CompletionRequest, send: Send | None = None
) -> PreparedCompletion:
    """Check and encode the prompts of a request, and make its job."""
    generation = service.generation()
    prompts = service.prompts(body.prompt)
    wanted = CompletionSettings(
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        stops=body.stops,
        echo=body.echo,
        logprobs=body.logprobs,
    )
    settings = service.completion_settings(prompts, wanted, body.n)
    seed = secrets.randbelow(MAX_SEED) if body.seed is None else body.seed
    choices: list[Choice] = []
    job = CompletionJob(generation, choices, completion_cost(prompts, settings, body.n))
    for number, (prompt, own) in enumerate(zip(prompts, settings, strict=True)):
        for choice in range(body.n):
            choices.append(
                Choice(
                    number * body.n + choice,
                    prompt,
                    own,
                    service.model.tokenizer,
                    seed=seed + number * body.n + choice,
                    send=send,
                    done=job.choice_done,
                )
            )
    return PreparedCompletion(choices=choices, job=job)


class CompletionJob(Job):
    """A job that is done when its choices are, though its batch goes on."""

    done = 0

    def choice_done(self) -> None:
        """One choice has ended."""
        self.done += 1
        if self.done == len(self.items):
            self.finish(list(self.items))

    def cancel(self) -> None:
        """Nobody waits for it: its rows leave the batch."""
        for choice in self.items:
            choice.cancelled = True
        super().cancel()


async def next_event(
    events: asyncio.Queue[CompletionChunk | None], service: ModelService, made: PreparedCompletion
) -> CompletionChunk | None:
    """The next chunk, None after the last; the job is cancelled where it takes too long."""
    try:
        return await asyncio.wait_for(events.get(), service.limits.timeout)
    except TimeoutError:
        made.job.cancel()
        raise timeout_error(service.limits.timeout) from None
    except BaseException:
        made.job.cancel()
        raise


@dataclass(frozen=True)
class Stream:
    """A streamed completion as server-sent events."""

    service: ModelService
    made: PreparedCompletion
    record: CompletionRecord
    events: asyncio.Queue[CompletionChunk | None]
    usage: bool

    async def lines(self, first: CompletionChunk | None) -> AsyncIterator[bytes]:
        """A line for each chunk; an error within the stream is an event too."""
        chunk = first
        try:
            while chunk is not None:
                yield event(self.record.chunk(chunk))
                chunk = await next_event(self.events, self.service, self.made)
            job_results(self.made.job)
            if self.usage:
                yield event(self.record.last(self.made.choices))
            yield b"data: [DONE]\n\n"
        except RequestError as error:
            yield event(error.as_dict())
        except UserError as error:
            yield event(error_record(400, str(error)))
        finally:
            self.made.job.cancel()


def event(record: Any) -> bytes:
    return b"data: " + json_bytes(record) + b"\n\n"
