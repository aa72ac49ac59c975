"""Answers as JSON, which has no infinity: null stands for it."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from starlette.responses import Response

from lmlab.serve.request_errors import RequestError


def json_bytes(record: Any) -> bytes:
    """A record as a line of JSON."""
    try:
        text = json.dumps(record, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError:  # an infinite log-probability, rarely
        text = json.dumps(_finite(record), ensure_ascii=False, allow_nan=False)
    return text.encode()


def json_answer(record: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json_bytes(record), status, headers, media_type="application/json")


def error_answer(error: RequestError) -> Response:
    return json_answer(error.as_dict(), error.status, error.headers)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_finite(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value
