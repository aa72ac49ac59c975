"""Texts to score: from a file of any form, from standard input, or from the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lmlab.core.errors import UserError
from lmlab.data.corpus import Split
from lmlab.data.lines import BYTE_ORDER_MARK, check_errors
from lmlab.data.opening import reader_for
from lmlab.data.readers import Example

STDIN = "standard input"


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Texts that are read as they are asked for, and how many bytes that will be, if known."""

    name: str
    examples: Iterator[Example]
    """The texts with what each is given, where it is given something."""
    size: int | None = None
    split: Split | None = None
    """Where a file is read: how far the reader is, and what it met."""

    @property
    def texts(self) -> Iterator[str]:
        """The texts alone; a UserError where they are given something."""
        for example in self.examples:
            if example.condition is not None:
                raise UserError(f"{self.name} holds pairs; give a file with a text a line.")
            yield example.text


def texts_from(
    file: str | None, given: list[str], errors: str, *, instead: str | None = None
) -> Texts:
    """The texts of `FILE`, `-` or the command line; exactly one of these.

    `instead` is the command's option that takes a text, where it has one, to name in advice.
    """
    check_errors(errors)
    if (file is None) == (not given):
        raise UserError(
            "give what to score, and only one of: a FILE, - for standard input, --text."
        )
    if file is None:
        return Texts(name="--text", examples=map(Example, given))
    if file == "-":
        return Texts(name=STDIN, examples=map(Example, stdin_texts(errors)))
    path = Path(file)
    if not path.exists():
        or_text = "" if instead is None else f", or give a text by {instead}"
        raise UserError(f"there is no file {path}; check the path{or_text}.")
    if not path.is_file():
        raise UserError(f"{path} is not a file; give a file with a text a line.")
    split = Split(reader_for(path, check_errors(errors)), name="text")
    return Texts(name=path.name, examples=iter(split), size=split.size_bytes(), split=split)


def stdin_texts(errors: str) -> Iterator[str]:
    """The lines of standard input, empty ones left out, UTF-8 checked."""
    count = 0
    for number, raw in enumerate(sys.stdin.buffer, 1):
        raw = raw.removeprefix(BYTE_ORDER_MARK) if number == 1 else raw
        try:
            text = raw.decode("utf-8", errors).strip()
        except UnicodeDecodeError as error:
            raise UserError(
                f"standard input, line {number}: byte 0x{raw[error.start]:02x} at place "
                f"{error.start + 1} is not UTF-8; convert it, or replace bad bytes with --errors "
                "replace."
            ) from None
        if text:
            count += 1
            yield text
    if not count:
        raise UserError("standard input holds no text; give at least one line.")
