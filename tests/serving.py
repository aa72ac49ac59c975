"""A server process for tests, on a free port of the loopback address."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STOP_SECONDS = 30


@dataclass(frozen=True)
class RunningServer:
    """A server that answers."""

    url: str
    process: subprocess.Popen[str]
    log: Path


@contextmanager
def running_server(
    *arguments: object, environment: Mapping[str, str] | None = None
) -> Iterator[RunningServer]:
    """`lmlab serve` with these arguments until the block ends."""
    with tempfile.NamedTemporaryFile("w", suffix=".log") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "lmlab", "serve", *map(str, arguments), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=log,
            encoding="utf-8",
            env={**os.environ, **(environment or {})},
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            address = re.search(r"http://\S+(?=;)", line)
            assert address, f"{line!r}: {Path(log.name).read_text(encoding='utf-8')}"
            yield RunningServer(address[0], process, Path(log.name))
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
