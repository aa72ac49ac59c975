"""The application: models behind OpenAI's interface and lmlab's own, for any ASGI server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

import lmlab
from lmlab.core.errors import UserError
from lmlab.serve.access import Access, make_access
from lmlab.serve.completion_routes import add_completion_routes
from lmlab.serve.guard import Guard
from lmlab.serve.json_answers import error_answer, json_answer
from lmlab.serve.model_service import ModelService
from lmlab.serve.request_errors import RequestError
from lmlab.serve.schemas import FORMS
from lmlab.serve.server_metrics import ServerMetrics
from lmlab.serve.serving_options import ServingOptions
from lmlab.serve.verb_routes import add_verb_routes
from lmlab.verbs.language_model import LanguageModel

UNREADABLE = "the body must be a JSON object, of Content-Type: application/json."
Services = Mapping[str, ModelService]


def create_app(
    models: Mapping[str, LanguageModel],
    options: ServingOptions | None = None,
    *,
    access: Access | None = None,
) -> FastAPI:
    """An application that serves models by name.

    Others may add routes to it or mount applications below it: `app.state.services` has a
    `ModelService` for each model, `app.state.metrics` the counters; errors, host, origin, key and
    size are handled for added routes too.
    """
    options = options or ServingOptions()
    metrics = ServerMetrics()
    services = {
        name: ModelService(name, model, options, metrics.observer(name))
        for name, model in models.items()
    }

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        for service in services.values():
            service.queue.close()

    # The interactive pages would fetch scripts from elsewhere.
    app = FastAPI(
        title="lmlab", version=lmlab.__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.services, app.state.metrics, app.state.options = services, metrics, options
    add_completion_routes(app, services, options)
    add_verb_routes(app, services, options)
    _add_server_routes(app, services, metrics)
    _add_error_handlers(app)
    metrics.paths = frozenset(app.openapi()["paths"])
    app.add_middleware(
        Guard,
        access=access or make_access(options),
        limits=options,
        observe=metrics.observe_request,
    )
    return app


def _add_server_routes(app: FastAPI, services: Services, metrics: ServerMetrics) -> None:
    @app.get("/health")
    async def health() -> Response:
        """Whether the server answers."""
        return json_answer({"status": "ok"})

    @app.get("/metrics")
    async def server_metrics() -> Response:
        """Counters in Prometheus's text format."""
        for name, service in services.items():
            metrics.waiting.labels(name).set(service.queue.waiting)
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(RequestError)
    async def refused(request: Request, error: RequestError) -> Response:
        return error_answer(error)

    @app.exception_handler(UserError)
    async def user_error(request: Request, error: UserError) -> Response:
        return error_answer(RequestError(400, str(error)))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return error_answer(validation_error(error.errors()))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        path = request.url.path
        sentences = {
            404: f"there is nothing at {path[:100]}; see /openapi.json.",
            405: f"{request.method} does not apply to {path[:100]}; see /openapi.json.",
        }
        sentence = sentences.get(error.status_code, UNREADABLE)
        answer = error_answer(RequestError(error.status_code, sentence))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return error_answer(
                RequestError(503, "memory ran out; send less at once.", code="memory")
            )
        return error_answer(RequestError(500, "the server failed; its log says why."))


def validation_error(errors: Any) -> RequestError:
    """The first problem of a body as a sentence, without repeating what was sent."""
    first = errors[0]
    names = [part for part in first["loc"] if part != "body"]
    name = str(names[0])[:60] if names else None
    if first["type"] == "value_error":
        return RequestError(400, str(first["msg"]).removeprefix("Value error, "))
    if first["type"] == "extra_forbidden" and name is not None:
        return RequestError(400, f"there is no field {name!r}; remove it.", param=name)
    if first["type"] == "json_invalid" or name is None or not isinstance(names[0], str):
        return RequestError(400, UNREADABLE)
    if first["type"] == "missing":
        return RequestError(400, f"{name} is missing; give it.", param=name)
    if name in FORMS:
        return RequestError(400, f"{name} must be {FORMS[name]}.", param=name)
    reason = str(first["msg"]).removeprefix("Input should be ")
    return RequestError(400, f"{name} must be {reason}.", param=name)
