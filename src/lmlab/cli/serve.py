"""`lmlab serve RUN...`: models over HTTP."""

from __future__ import annotations

from typing import Any

from lmlab.cli.options import NoVerify
from lmlab.cli.terminal import terminal
from lmlab.serve.serving import serve as serve_runs


@terminal(serve_runs)
def serve(no_verify: NoVerify = False, **options: Any) -> None:
    serve_runs(options.pop("runs"), **options)
