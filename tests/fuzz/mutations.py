"""Mutations of files: of bytes, of lines, of JSON documents, of what is packed, of safetensors."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

Mutate = Callable[[bytes, Random], bytes]

WORDS: tuple[bytes, ...] = (
    *(b"0", b"-1", b"1.5", b"nan", b"inf", b"-inf", b"1e309", b"2147483648", b"68719476736"),
    *(b"9" * 30, b"9" * 5000, b"\xc2\xb2", b"", b" ", b"\t", b"\n", b"\r\n", b"\0", b"\xff\xfe"),
    *(b"\xef\xbb\xbf", b"\xed\xa0\x80", b"<s>", b"</s>", b"<unk>", b"<mask>", b"<pad>"),
    *(b"\\data\\", b"\\end\\", b"ngram 1=", b"\\2-grams:", b"-99", b">", b"[" * 50, b"{" * 50),
    *(b"null", b"true", b'"', b"\xf0\x9f\x8d\x90", "\u202e".encode(), b"a" * 3000),
)
"""What is put in place of words: numbers at the borders, other formats' keywords, odd bytes."""
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 1.5, 1e308, 10**6, 10**12, 2**31, 2**63, 10**30),
    *("", "x", "none", "\ud800", "../x", "/", [], {}, [1], [[]], {"a": 1}, float("nan")),
    *(float("inf"), [None], "9" * 5000, {"": None}),
)
"""What is put in place of a node of a JSON document."""


def mutate_bytes(data: bytes, draw: Random) -> bytes:
    """Up to three changes at random positions."""
    for _ in range(draw.randint(1, 3)):
        data = draw.choice(BYTE_CHANGES)(data, draw)
    return data


def _flip(data: bytes, draw: Random) -> bytes:
    if not data:
        return data
    position = draw.randrange(len(data))
    changed = data[position] ^ (1 << draw.randrange(8))
    return data[:position] + bytes([changed]) + data[position + 1 :]


def _cut(data: bytes, draw: Random) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def _remove(data: bytes, draw: Random) -> bytes:
    position, length = draw.randrange(len(data) + 1), draw.choice((1, 4, 32, 200))
    return data[:position] + data[position + length :]


def _repeat(data: bytes, draw: Random) -> bytes:
    position, length = draw.randrange(len(data) + 1), draw.choice((1, 4, 32, 200))
    return (
        data[:position] + data[position : position + length] * draw.randint(2, 5) + data[position:]
    )


def _insert(data: bytes, draw: Random) -> bytes:
    position = draw.randrange(len(data) + 1)
    return data[:position] + draw.choice(WORDS) + data[position:]


def _overwrite(data: bytes, draw: Random) -> bytes:
    number = struct.pack("<Q", draw.choice((0, 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1)))
    position = draw.randrange(len(data) + 1)
    width = draw.choice((1, 2, 4, 8))
    return data[:position] + number[:width] + data[position + width :]


def _replace_word(data: bytes, draw: Random) -> bytes:
    words = data.split(b" ")
    words[draw.randrange(len(words))] = draw.choice(WORDS)
    return b" ".join(words)


def _swap_lines(data: bytes, draw: Random) -> bytes:
    lines = data.split(b"\n")
    first, second = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]
    return b"\n".join(lines)


BYTE_CHANGES: tuple[Mutate, ...] = (
    *(_flip, _cut, _remove, _repeat, _insert, _overwrite, _replace_word, _swap_lines),
)


def mutate_json(data: bytes, draw: Random) -> bytes:
    """Up to two nodes of a document replaced, removed or wrapped; at times its bytes instead."""
    if draw.random() < 0.2:
        return mutate_bytes(data, draw)
    try:
        document = json.loads(data)
    except ValueError:
        return mutate_bytes(data, draw)
    for _ in range(draw.randint(1, 2)):
        document = _change_node(document, draw)
    if draw.random() < 0.02:
        return b"[" * 200_000
    return json.dumps(document).encode(errors="replace")


def _change_node(document: Any, draw: Random) -> Any:
    """The document with one node changed, each depth as likely."""
    if not isinstance(document, (dict, list)) or not document or draw.random() < 0.1:
        return draw.choice(VALUES)
    keys = list(document) if isinstance(document, dict) else list(range(len(document)))
    key = draw.choice(keys)
    changed: Any = document.copy()
    if draw.random() < 0.1:
        del changed[key]
    else:
        changed[key] = _change_node(document[key], draw)
    return changed


def mutate_lines_of_json(data: bytes, draw: Random) -> bytes:
    """One line of a JSON-lines file changed as a document, or the bytes of all."""
    if draw.random() < 0.4:
        return mutate_bytes(data, draw)
    lines = data.split(b"\n")
    position = draw.randrange(len(lines))
    lines[position] = mutate_json(lines[position], draw).replace(b"\n", b" ")
    return b"\n".join(lines)


def packed(inner: Mutate) -> Mutate:
    """What is packed by gzip is changed before it is packed, or after."""

    def mutate(data: bytes, draw: Random) -> bytes:
        if draw.random() < 0.4:
            return mutate_bytes(data, draw)
        return gzip.compress(inner(gzip.decompress(data), draw), mtime=0)

    return mutate


def mutate_safetensors(data: bytes, draw: Random) -> bytes:
    """The header changed as a JSON document, with its length set right, or any bytes."""
    if draw.random() < 0.4 or len(data) < 8:
        return mutate_bytes(data, draw)
    length = struct.unpack("<Q", data[:8])[0]
    header = mutate_json(data[8 : 8 + length], draw)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]
