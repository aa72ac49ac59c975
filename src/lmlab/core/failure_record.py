"""The record of a training that ended with an error: failure.json in its run folder.

A kill or a full disk leaves none; such a run has stopped, and its checkpoint says how far it came.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lmlab.core.atomic_files import write_json
from lmlab.core.errors import UserError
from lmlab.core.untrusted_input import read_json_object

FAILURE = "failure.json"


@contextmanager
def recording_failure(folder: Path, *, writes: bool = True) -> Iterator[None]:
    """Write the error that ends this block into the folder; an earlier one is removed first.

    Ctrl-C is no failure. Only a process that `writes` does either.
    """
    if writes:
        with suppress(OSError):
            (folder / FAILURE).unlink(missing_ok=True)
    try:
        yield
    except Exception as error:
        if writes:
            with suppress(UserError, OSError):  # the disk may be full, which is the error itself
                write_json(folder / FAILURE, {"error": failure_sentence(error)})
        raise


def failure_sentence(error: Exception) -> str:
    """One line of an error."""
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}".rstrip(": ")


def read_failure(folder: Path) -> str | None:
    """The recorded error, or None."""
    try:
        return str(read_json_object(folder / FAILURE).get("error", "an unknown error"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, UserError):
        return "an unknown error"
