"""`lmlab.serve`: trained models over HTTP."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lmlab.core.errors import UserError
from lmlab.core.options import Argument, takes
from lmlab.serve.serving_options import ServingOptions

if TYPE_CHECKING:
    from lmlab.verbs.language_model import LanguageModel
    from lmlab.verbs.loading import GivenModel

SHUTDOWN_SECONDS = 5
"""What requests have to end in after Ctrl-C."""
BACKLOG = 2048
"""Connections that wait to be accepted."""


@takes(ServingOptions)
def serve(
    runs: Annotated[
        Sequence[GivenModel], Argument("Runs or Hub folders to serve.", metavar="RUN...")
    ],
    options: ServingOptions,
) -> None:
    """Serve models over HTTP: OpenAI's completions and embeddings, and lmlab's own verbs.

    It runs until it is interrupted. Only this machine can call it, unless another `host` is given;
    then a key is needed. Several `workers` are processes that load the models each; if one ends,
    its requests get the status 503 and another takes its place.
    """
    from lmlab.serve.access import make_access
    from lmlab.verbs.loading import check_list

    check_list(runs, "serve")
    check_installed()
    access = make_access(options)
    with bound_socket(options.host, options.port) as listener:
        if options.workers == 1:
            from lmlab.serve.application import create_app

            run_server(create_app(load_models(runs), options, access=access), listener, options)
            return
        from lmlab.serve.front import create_front
        from lmlab.serve.worker_processes import WorkerProcesses

        with WorkerProcesses(runs, options, key=access.key) as workers:
            run_server(create_front(workers, options, access), listener, options)


def check_installed() -> None:
    """A UserError where the extra is missing."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise UserError(
            "serving needs FastAPI, uvicorn and prometheus-client: pip install 'lmlab[serve]'."
        ) from None


def load_models(runs: Sequence[GivenModel]) -> dict[str, LanguageModel]:
    """The models by the names of their folders."""
    from lmlab.scoring.minimal_pairs import unique_model_names
    from lmlab.verbs.language_model import LanguageModel
    from lmlab.verbs.loading import load

    if not runs:
        raise UserError("no run given; name at least one.")
    models = [run if isinstance(run, LanguageModel) else load(run) for run in runs]
    return dict(zip(unique_model_names([model.path for model in models]), models, strict=True))


def bound_socket(host: str, port: int) -> socket.socket:
    """A listening socket; a UserError where the address can't be used."""
    try:
        [family, kind, protocol, _, address], *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise UserError(f"--host {host!r} is no address of this machine ({error}).") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UserError(
            f"can't listen at {host} port {port} ({error.strerror}); choose another --port, or 0 "
            "for any."
        ) from None
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL of a socket."""
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(application: Any, listener: socket.socket, options: ServingOptions) -> None:
    """Answer requests until Ctrl-C; the address is printed once it answers."""
    import uvicorn

    config = uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    announced_server(uvicorn, config, lambda: _announce(listener)).run(sockets=[listener])


def _announce(listener: socket.socket) -> None:
    print(f"serving at {address_of(listener)}; stop it with Ctrl-C.", flush=True)


def announced_server(uvicorn: Any, config: Any, announce: Callable[[], None]) -> Any:
    """A server that says when it has started."""

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            announce()

    return Server(config)


def options_for_workers(options: ServingOptions, key: str | None) -> dict[str, Any]:
    """The options of a worker process, as JSON."""
    return asdict(options) | {
        "api_key": key,
        "workers": 1,
        "allowed_hosts": [*options.allowed_hosts],
    }


def run_path(run: GivenModel) -> str:
    """The path of a run, which another process can load."""
    if isinstance(run, (str, Path)):
        return str(run)
    raise UserError(
        "several workers load the models themselves; give the paths of runs, or workers=1."
    )
