"""Routes of lmlab's verbs: score, fill, ask, encode, detect, each with kind and convention."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from lmlab.core.score import Score
from lmlab.serve.json_answers import json_answer
from lmlab.serve.model_service import ModelService, find_service
from lmlab.serve.request_errors import RequestError
from lmlab.serve.schemas import (
    AskRequest,
    DetectRequest,
    EmbeddingRequest,
    EncodeRequest,
    ErrorAnswer,
    FillRequest,
    ScoreRequest,
)
from lmlab.serve.serving_options import RequestLimits
from lmlab.serve.waiting import results_of

Services = Mapping[str, ModelService]
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer} for status in (400, 401, 403, 404, 413, 429, 503)
}
SCORED_APART = {"texts", "sources", "model"}


def add_verb_routes(app: FastAPI, services: Services, limits: RequestLimits) -> None:
    """Add /v1/embeddings and the routes below /lmlab."""

    @app.post("/v1/embeddings", responses=ERRORS)
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        """Vectors of texts, in OpenAI's form; for systems with hidden states."""
        service = find_service(services, body.model)
        if body.dimensions is not None:
            raise RequestError(
                400, "dimensions does not apply to these models; remove it.", param="dimensions"
            )
        prompts = await run_in_threadpool(service.prompts, body.input)
        job = service.encode([prompt.text for prompt in prompts], {})
        results = await results_of(service, job, request)
        tokens = sum(len(prompt.ids) for prompt in prompts)
        return json_answer(
            {
                "object": "list",
                "model": service.name,
                "data": [
                    {
                        "object": "embedding",
                        "index": index,
                        "embedding": _embedding(result.vector, body.encoding_format),
                    }
                    for index, result in enumerate(results)
                ],
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )

    @app.post("/lmlab/score", responses=ERRORS)
    async def score(body: ScoreRequest, request: Request) -> Response:
        """Log-probabilities of texts, as lmlab score."""
        service = find_service(services, body.model)
        options = body.model_dump(exclude=SCORED_APART)
        job = service.score(body.texts, body.sources, options)
        scores: list[Score] = await results_of(service, job, request)
        return json_answer(
            _answer(
                service,
                scores[0].kind,
                scores[0].convention.as_dict(),
                [score_record(score) for score in scores],
            )
        )

    @app.post("/lmlab/fill", responses=ERRORS)
    async def fill(body: FillRequest, request: Request) -> Response:
        """Predictions of masks, as lmlab fill."""
        service = find_service(services, body.model)
        job = service.fill(body.texts, body.model_dump(exclude={"texts", "model"}))
        results = await results_of(service, job, request)
        quantity = "p(all masks | text)" if results[0].candidates else "p(mask | text)"
        convention = _convention(service, quantity) | {"order": results[0].order}
        records = [result.as_dict() for result in results]
        return json_answer(_answer(service, results[0].kind, convention, records))

    @app.post("/lmlab/ask", responses=ERRORS)
    async def ask(body: AskRequest, request: Request) -> Response:
        """Answers to questions with their evidence, as lmlab ask."""
        service = find_service(services, body.model)
        job = service.ask(body.questions, body.model_dump(exclude={"questions", "model"}))
        results = await results_of(service, job, request)
        convention = _convention(service, "p(answer | question)") | {"method": body.method}
        records = [result.as_dict() for result in results]
        return json_answer(_answer(service, service.model.card.kind, convention, records))

    @app.post("/lmlab/encode", responses=ERRORS)
    async def encode(body: EncodeRequest, request: Request) -> Response:
        """Hidden states of texts or tokens, as lmlab encode."""
        service = find_service(services, body.model)
        options = body.model_dump(exclude={"texts", "model"})
        results = await results_of(service, service.encode(body.texts, options), request)
        convention = _convention(service, "hidden states") | options
        return json_answer(_answer(service, None, convention, [vars(item) for item in results]))

    @app.post("/lmlab/detect", responses=ERRORS)
    async def detect(body: DetectRequest, request: Request) -> Response:
        """The probability of each token that it was replaced, as lmlab detect."""
        service = find_service(services, body.model)
        results = await results_of(service, service.detect(body.texts), request)
        convention = _convention(service, "p(replaced | text), by the discriminator")
        records = [result.as_dict() for result in results]
        return json_answer(_answer(service, None, convention, records))


def _answer(
    service: ModelService, kind: str | None, convention: Any, results: Sequence[Any]
) -> dict[str, Any]:
    """An answer with its kind, which is null for what is no log-probability of a text."""
    return {"model": service.name, "kind": kind, "convention": convention, "results": results}


def _convention(service: ModelService, quantity: str) -> dict[str, Any]:
    """What is returned, and in which tokens."""
    tokenizer = service.model.tokenizer
    spelled = f"{tokenizer.kind}, {tokenizer.vocabulary.size} tokens"
    return {"tokenizer": spelled, "quantity": quantity}


def score_record(score: Score) -> dict[str, Any]:
    """A score without what it shares with the others of its answer."""
    record = dict(vars(score))
    del record["convention"], record["line"]
    record["per_token"] = [vars(token) for token in score.per_token]
    record["mean"] = score.mean
    return record


def _embedding(vector: Any, encoding: str) -> Any:
    """Numbers, or the bytes of 32-bit floats in base64, as OpenAI's client asks for."""
    if encoding == "base64":
        return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()
    return vector
