"""Packed files from outside: damage is a ValueError, and a gzip bomb fills no memory."""

from __future__ import annotations

import gzip
import io
import zlib

from lmlab.core.limits import limit, limit_exceeded_error


def unpack_gzip(packed: bytes, *, name: str) -> bytes:
    """The unpacked bytes, at most the limit `unpacked`; a ValueError where they are damaged."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            content = file.read(limit("unpacked") + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(str(error)) from None
    if len(content) > limit("unpacked"):
        raise limit_exceeded_error("unpacked", f"the unpacked bytes of {name} must be")
    return content
