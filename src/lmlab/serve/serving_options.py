"""Options of serving; importing this module imports neither torch nor FastAPI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from lmlab.core.errors import UserError
from lmlab.core.options import Option
from lmlab.core.untrusted_input import check_whole_number

KEY_VARIABLE = "LMLAB_API_KEY"
"""Environment variable with the key, of server and workbench alike."""
LIMITS_PANEL = "Limits"


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """What a server accepts: more than this is answered by 400, 413, 429 or 503 and a sentence."""

    max_body: Annotated[int, Option("Largest request in bytes.", panel=LIMITS_PANEL)] = 4_000_000
    max_texts: Annotated[
        int, Option("Most texts, prompts or choices of a request.", panel=LIMITS_PANEL)
    ] = 1024
    max_tokens: Annotated[
        int, Option("Most tokens generated for a prompt.", panel=LIMITS_PANEL)
    ] = 4096
    max_request_tokens: Annotated[
        int, Option("Most tokens of a request, those to generate included.", panel=LIMITS_PANEL)
    ] = 262_144
    max_waiting: Annotated[
        int, Option("Most requests that wait for a model.", panel=LIMITS_PANEL)
    ] = 256
    batch_tokens: Annotated[
        int, Option("Tokens of waiting requests that are batched together.", panel=LIMITS_PANEL)
    ] = 16_384
    timeout: Annotated[
        float, Option("Seconds after which a request is given up.", panel=LIMITS_PANEL)
    ] = 60.0

    def __post_init__(self) -> None:
        for name in ("max_body", "max_texts", "max_tokens", "max_request_tokens", "max_waiting"):
            check_whole_number(f"--{name.replace('_', '-')}", getattr(self, name))
        check_whole_number("--batch-tokens", self.batch_tokens)
        if not 0 < self.timeout <= 86_400:
            raise UserError(f"--timeout must be from 0 to 86400 seconds, got {self.timeout:g}.")


@dataclass(frozen=True, kw_only=True)
class ServingOptions(RequestLimits):
    """Where models are served, to whom, and what is accepted."""

    host: Annotated[str, Option("Address to listen at; any but a loopback one needs a key.")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int, Option("Port to listen at; 0 takes a free one.", minimum=0, maximum=65535)
    ] = 8000
    api_key: Annotated[
        str | None,
        Option(
            "Key that every request must have (Authorization: Bearer KEY).",
            metavar="KEY",
            show_default=f"environment variable {KEY_VARIABLE}",
        ),
    ] = None
    allowed_hosts: Annotated[
        Sequence[str],
        Option(
            "Host name by which the server may be called besides --host; repeatable.",
            flag="--allowed-host",
            metavar="NAME",
        ),
    ] = ()
    workers: Annotated[
        int, Option("Processes that load the models; requests are spread over them.", minimum=1)
    ] = 1
