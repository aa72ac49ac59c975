"""A worker process of a server: it loads the models and answers at a Unix socket."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from lmlab.core.child_processes import ParentPipe
from lmlab.core.errors import UserError
from lmlab.core.limits import set_limits
from lmlab.core.manifest import set_verification
from lmlab.core.system_files import register

READY = "ready"


def main() -> None:
    """Serve what the parent's first line says, until the parent ends or stops this process."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever is printed is no answer

    def say(word: str) -> None:
        answers.write(word + "\n")
        answers.flush()

    for line in ParentPipe():
        try:
            _serve(json.loads(line), say)
        except UserError as error:
            say(f"error: {error}")
        except KeyboardInterrupt:
            pass
        return


def _serve(settings: dict[str, Any], say: Any) -> None:
    import uvicorn

    from lmlab.serve.application import create_app
    from lmlab.serve.serving import SHUTDOWN_SECONDS, announced_server, load_models
    from lmlab.serve.serving_options import ServingOptions

    set_limits(settings["limits"])
    set_verification(settings["verify"])
    for file in settings["system_files"]:
        register(file)
    application = create_app(load_models(settings["runs"]), ServingOptions(**settings["options"]))
    config = uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(settings["socket"])
        listener.listen(2048)
        announced_server(uvicorn, config, lambda: say(READY)).run(sockets=[listener])


if __name__ == "__main__":
    main()
