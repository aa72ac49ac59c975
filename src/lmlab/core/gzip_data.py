"""Decompression of untrusted gzip files: damage is a ValueError, a gzip bomb is bounded."""

from __future__ import annotations

import gzip
import io
import zlib

from lmlab.core.limits import limit, limit_exceeded_error


def unpack_gzip(packed: bytes, *, name: str) -> bytes:
    """The unpacked bytes, at most the limit `unpacked`; raises a ValueError if damaged."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            content = file.read(limit("unpacked") + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(str(error)) from None
    if len(content) > limit("unpacked"):
        raise limit_exceeded_error("unpacked", f"the unpacked bytes of {name} must be")
    return content
